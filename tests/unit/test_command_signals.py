"""Signals that a command answers are its own for as long as it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import click
import pytest

from wattherd.cli.signals import on_signals, set_on


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


class Locked:
    """An event whose lock may be held by whoever the signal interrupts, as that of threading."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heard = threading.Semaphore(0)

    def set(self) -> None:
        with self.lock:
            self.heard.release()


def test_an_event_is_set_though_who_was_interrupted_holds_its_lock() -> None:
    event, heard = Locked(), []

    @click.command()
    def command() -> None:
        set_on({signal.SIGHUP: event})
        with event.lock:
            os.kill(os.getpid(), signal.SIGHUP)
        heard.append(event.heard.acquire(timeout=60))

    command.main([], standalone_mode=False)
    assert heard == [True]


WAITS = """
import signal, threading, time
import click
from wattherd.cli.signals import set_on

@click.command()
def command():
    over = threading.Event()
    set_on({signal.SIGTERM: over})
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # another thread is handed it
    print("waits", flush=True)
    over.wait()
    print("ended", flush=True)

command()
"""


def test_a_signal_that_another_thread_is_handed_ends_who_waits() -> None:
    """Where every thread may get a signal the kernel chooses one, and Python wakes nobody."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline() == "waits\n"
            one.terminate()
            assert one.wait(timeout=60) == 0
            assert one.stdout.read() == "ended\n"
        finally:
            one.kill()


def test_events_of_signals_leave_no_handler_no_thread_and_the_wakeup_as_it_was() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    threads = threading.active_count()
    again, ended = threading.Event(), threading.Event()

    @click.command()
    def command() -> None:
        set_on({signal.SIGTERM: ended, signal.SIGHUP: again})
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert again.wait(60)
        assert not ended.is_set()

    command.main([], standalone_mode=False)
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == before
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1
