"""Commands that keep running do not end because nobody can be told anything."""

from __future__ import annotations

import errno
import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import wattherd.cli
from wattherd.cli.listening import say
from wattherd.errors import UserError
from wattherd.server.notify.notifier import Notifier
from wattherd.store.entry import StoreFailure


class _Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Full())
    say("wattherd serves")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("wattherd serves")


@pytest.mark.parametrize("command", ["serve", "kube", "kube_nodes"])
def test_commands_that_keep_running_talk_by_that_alone(command: str) -> None:
    text = (Path(wattherd.cli.__file__).parent / f"{command}.py").read_text(encoding="utf-8")
    assert "say(" in text
    assert "err=True" not in text


def test_what_keeps_notifications_waiting_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Any] = [StoreFailure("disk is full")] * 3
    failures += [None, StoreFailure("disk is full"), UserError("no such file")]

    def settle(_: Notifier) -> None:
        if (failure := failures.pop(0)) is not None:
            raise failure

    monkeypatch.setattr(Notifier, "_settle", settle)
    for step in ("_take", "_dispatch", "_keep"):
        monkeypatch.setattr(Notifier, step, lambda _: None)
    notifier = Notifier.__new__(Notifier)
    notifier._waits = ""
    with caplog.at_level(logging.WARNING):
        while failures:
            notifier.look()
    assert [one.getMessage() for one in caplog.records] == [
        "notifications wait: disk is full", "notifications wait: disk is full",
        "notifications wait: no such file",
    ]  # fmt: skip
