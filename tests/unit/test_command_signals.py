"""Signals that a command answers are its own for as long as it runs."""

from __future__ import annotations

import os
import signal

import click
import pytest

from wattherd.cli.signals import on_signals


def test_a_command_answers_its_signals_while_it_runs_and_leaves_no_handler() -> None:
    heard: list[str] = []
    before = signal.getsignal(signal.SIGHUP)

    @click.command()
    def command() -> None:
        on_signals(lambda: heard.append("again"), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)

    command.main([], standalone_mode=False)
    assert heard == ["again"]
    assert signal.getsignal(signal.SIGHUP) is before


def test_handlers_are_put_back_after_a_failure_too() -> None:
    before = signal.getsignal(signal.SIGTERM)

    @click.command()
    def command() -> None:
        on_signals(lambda: None, signal.SIGTERM)
        raise click.ClickException("no such knob")

    with pytest.raises(click.ClickException):
        command.main([], standalone_mode=False)
    assert signal.getsignal(signal.SIGTERM) is before
