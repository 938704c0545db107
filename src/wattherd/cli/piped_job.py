"""A job that comes through a pipe: a job file, or a script that its first line says how to run.

`wattherd submit - < train.sh` and `wattherd submit <(make-job)`. What comes is read once, whole,
and kept with the job: nothing of the pipe is there any more when the job starts.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from pathlib import Path, PurePath
from typing import Any

from wattherd.errors import UserError

STDIN = "-"
MOST_BYTES = 1 << 20
"""Of a job file."""
MOST_SCRIPT_BYTES = (1 << 17) - 1
"""Of a script, which is one word of a command: Linux takes no longer one (`MAX_ARG_STRLEN`)."""
WRITER_S = 5.0
"""For somebody to begin to write into a named pipe."""
_BY_TEXT = {
    **dict.fromkeys(("sh", "bash", "dash", "ksh", "zsh", "python"), "-c"),
    **dict.fromkeys(("perl", "ruby", "node", "julia", "rscript"), "-e"),
}
"""The option by which an interpreter takes its program as a word."""
_JOB_FIELD = re.compile(r"^(run|taskRoles|app)\s*:", re.MULTILINE)


def is_piped(word: str) -> bool:
    """Whether a word names standard input or a pipe, as `<(...)` of a shell does."""
    return word == STDIN or Path(word).is_fifo()


def piped_job(path: Path) -> dict[str, Any]:
    """The document of a job that is read from standard input (`-`) or a pipe.

    Raises:
        UserError: nothing comes, or something that is neither a job file nor a script.
    """
    where = "standard input" if str(path) == STDIN else str(path)
    text = _text(_standard_input(where) if str(path) == STDIN else _of_pipe(path), where)
    if text.startswith("#!"):
        return {"run": _run_of(text, where), "workdir": str(Path.cwd())}
    return _of_job_file(text, where)


def _of_job_file(text: str, where: str) -> dict[str, Any]:
    from wattherd.workload.job_file import HINT, seen_from, validated_job
    from wattherd.workload.scenario import document_of

    try:
        document = document_of(text, where, hint=HINT)
    except UserError:
        if _JOB_FIELD.search(text):
            raise
        document = {}
    if not {"run", "taskRoles", "app"} & document.keys():
        hint = "a script begins with its interpreter, such as #!/bin/bash"
        problem = "is neither a job file (YAML) nor a script"
        raise UserError(problem, where=where, hint=hint)
    job = seen_from(validated_job(document, where), Path.cwd())
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True)


# A script is handed on as a word and not as a file: the job may start tomorrow, on another machine.
def _run_of(text: str, where: str) -> list[str]:
    """The command that runs a script.

    Raises:
        UserError: its interpreter takes no program as a word, or it is too long for one.
    """
    words = text.partition("\n")[0][2:].split()
    if words and PurePath(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    kind = re.match(r"[a-z]*", PurePath(words[0]).name.lower()) if words else None
    option = _BY_TEXT.get(kind[0]) if kind else None
    if option is None:
        hint = "write it into a file: wattherd submit -- PROGRAM FILE"
        raise UserError("no interpreter that is known here", where=f"{where}:1", hint=hint)
    if "\n#SBATCH" in text:
        hint = "options of `submit` say the same, see docs/tutorials/from-slurm.md"
        raise UserError("its #SBATCH lines would not be read", where=where, hint=hint)
    if len(text.encode()) > MOST_SCRIPT_BYTES:
        problem = f"is longer than {MOST_SCRIPT_BYTES // 1024} KiB"
        raise UserError(problem, where=where, hint="wattherd submit -- PROGRAM FILE")
    return [*words, option, text]


# What comes -------------------------------------------------------------------------------------


def _text(given: bytes, where: str) -> str:
    """What was read, as text.

    Raises:
        UserError: nothing, too much, or no text.
    """
    if len(given) > MOST_BYTES:
        raise UserError(f"is longer than {MOST_BYTES >> 20} MiB", where=where)
    try:
        text = given.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UserError("is no text (UTF-8)", where=where, hint="a job file, or a script")
    if not text.strip():
        hint = "wattherd submit - < job.yaml"
        raise UserError("is empty: there is nothing to run", where=where, hint=hint)
    return text


def _standard_input(where: str) -> bytes:
    """All of it.

    Raises:
        UserError: it cannot be read, or is a terminal, at which a job would be typed in vain.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        hint = "wattherd submit - < job.yaml"
        raise UserError("nothing is piped in", where=where, hint=hint)
    try:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=where) from None


# Opened without waiting: a named pipe into which nobody writes would keep `open` for ever. Who has
# it open for writing may take its time.
def _of_pipe(path: Path) -> bytes:
    """What is written into a pipe, until its writer closes it.

    Raises:
        UserError: it cannot be read, or nobody writes.
    """
    found, writer, last_s = b"", False, time.monotonic() + WRITER_S
    try:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    try:
        while len(found) <= MOST_BYTES:
            try:
                part = os.read(end, 1 << 16)
            except BlockingIOError:
                writer = True
                select.select([end], [], [])
                continue
            writer, found = writer or bool(part), found + part
            if not part and writer:
                return found
            if not part and time.monotonic() > last_s:
                hint = "wattherd submit job.yaml"
                raise UserError("nobody writes into this pipe", where=str(path), hint=hint)
            if not part:
                time.sleep(0.05)
    finally:
        os.close(end)
    return found
