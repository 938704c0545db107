"""Brings a job its data and code, or takes its results away: what the supervisor starts.

    python -I transfer.zip PLAN.json bring | success | checkpoint

`bring` fetches what is not there yet, so that a later run of the job finds it. `success` takes all
results away, `checkpoint` those that are wanted whenever a run stops with its state saved. Nothing
is brought or taken through a link that leads out of the job's folder.

A full disk or too many open files are no reason to fail a job: what fails for want of something is
tried again for `PATIENCE_S`. What has been brought or taken as a whole is not copied again.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattherd.devices.wire.file_places import BucketPlace, FilePlace, GitPlace, parse
from wattherd.errors import UserError, WattherdError
from wattherd.local.observation import certain, passes, present
from wattherd.local.transfer import bucket_read, bucket_write, files, git
from wattherd.local.transfer.bucket import BucketClient
from wattherd.units import show_bytes, show_seconds

CANNOT_STAGE = 125
"""Exit code when data, code or results could not be copied."""
PLAN = Mapping[str, Any]
PATIENCE_S, FIRST_PAUSE_S, MOST_PAUSE_S = 600.0, 0.5, 30.0
"""How long what passes is waited for, and the pauses between two tries."""


def patiently(action: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
    """Do it, again while it fails for want of something: pauses grow up to `MOST_PAUSE_S`.

    Raises:
        WattherdError, OSError: it fails for another reason, or has for `patience_s`.
    """
    began_s, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        try:
            return action()
        except OSError as error:
            if not passes(error) or time.monotonic() - began_s >= patience_s:
                raise
            print(f"wattherd: {_line(error)}; tried again", flush=True)  # noqa: T201
        time.sleep(pause_s)
        pause_s = min(MOST_PAUSE_S, 2 * pause_s)


def stage(plan_file: Path, phase: str) -> None:
    """Do what a phase asks for.

    Raises:
        WattherdError, OSError: something cannot be copied.
    """
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    if phase == "bring":
        stage_in(plan)
    else:
        stage_out(plan, phase)


def stage_in(plan: PLAN) -> None:
    """Bring what is not there yet.

    Raises:
        WattherdError, OSError: something cannot be brought.
    """
    Path(plan["outputs"]).mkdir(parents=True, exist_ok=True)
    if plan.get("checkpoint"):
        source, folder = map(Path, plan["checkpoint"])
        began_s = time.monotonic()
        if files.fill(folder, source):
            _say(f"begins from the checkpoint in {source}", began_s)
    for target, source in plan["bring"].items():
        at = _within(Path(target), Path(plan["folder"]))
        if certain(present(at)) is None:
            began_s = time.monotonic()
            told = _bring(plan, source, at)
            if told:
                _say(f"brought {at.name}: {told}", began_s)


def _bring(plan: PLAN, source: str, target: Path) -> str:
    """What there is to tell of it."""
    place = parse(source)
    if isinstance(place, FilePlace):
        files.bring(Path(place.path), target)
        return ""
    if isinstance(place, GitPlace):
        return f"commit {git.bring(place, target)} of {place.url}"
    came = bucket_read.bring(BucketClient(plan["s3"]), place, target)
    unchecked = f", {came.unchecked} without a checksum" if came.unchecked else ""
    return f"{_amount(came.objects, came.size_bytes)} from {place}{unchecked}"


def stage_out(plan: PLAN, phase: str) -> None:
    """Take away what that phase takes.

    Raises:
        WattherdError, OSError: something cannot be taken.
    """
    outputs = Path(plan["outputs"])
    for name, where in plan["take"].items():
        if phase == "success" or where["when"] == phase:
            began_s = time.monotonic()
            told = _take(plan, _within(outputs / name, Path(plan["folder"])), where["to"])
            if told:
                _say(f"took {name}: {told}", began_s)


def _take(plan: PLAN, source: Path, target: str) -> str:
    place = parse(target)
    if isinstance(place, FilePlace):
        files.bring(source, Path(place.path))
        return ""
    if isinstance(place, BucketPlace):
        return f"{_amount(*bucket_write.take(BucketClient(plan['s3']), source, place))} to {place}"
    raise UserError("results cannot be taken to a git repository", where=target)


def _within(path: Path, folder: Path) -> Path:
    """The path, which no link of the job's makes mean another place.

    Raises:
        UserError: it does.
    """
    if path.resolve() != folder.resolve() / path.relative_to(folder):
        raise UserError("is a link, or lies behind one", where=str(path))
    return path


def _amount(objects: int, size: int) -> str:
    return f"{objects:,} {'file' if objects == 1 else 'files'}, {show_bytes(size)}"


def _say(text: str, began_s: float) -> None:
    print(f"wattherd: {text}, {show_seconds(time.monotonic() - began_s)}", flush=True)  # noqa: T201


def run(plan_file: Path, phase: str) -> int:
    """The exit code: 0, or that something could not be copied and why was said."""
    if phase != "bring":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stop's grace is for this, too
    try:
        patiently(lambda: stage(plan_file, phase))
    except (WattherdError, OSError) as error:
        print(f"wattherd: cannot stage: {_line(error)}", flush=True)  # noqa: T201
        return CANNOT_STAGE
    return 0


def _line(error: Exception) -> str:
    return error.line() if isinstance(error, UserError) else str(error)


def main() -> None:
    """Do what the command line says."""
    sys.exit(run(Path(sys.argv[1]), sys.argv[2]))
