"""Jobs that come through standard input or a pipe: read once and whole, or refused."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wattherd.cli import piped_job as module
from wattherd.cli.main import main
from wattherd.cli.piped_job import MOST_BYTES, MOST_SCRIPT_BYTES, is_piped, piped_job
from wattherd.errors import UserError

Put = Callable[[bytes], None]
TAKEN, REFUSED = 4, 2
"""Nothing listens where jobs would be handed in: 2 is a refusal of the words."""
SCRIPT = b"#!/bin/bash -e\necho one\ncat <<END\ntwo\nEND\n"


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Put:
    """On standard input."""
    monkeypatch.chdir(tmp_path)

    def given(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return given


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def _write_into(path: Path, *parts: bytes, pause_s: float = 0.0) -> threading.Thread:
    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for part in parts:
                time.sleep(pause_s)
                pipe.write(part)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def _bash(words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", words.replace("wattherd", f"{sys.executable} -m wattherd.cli.main")],
        env={**os.environ, "WATTHERD_SERVER": "http://127.0.0.1:1", **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("first", "runs"),
    [
        ("#!/bin/sh", ["/bin/sh", "-c"]),
        ("#!/bin/bash -e", ["/bin/bash", "-e", "-c"]),
        ("#! /usr/bin/env python3", ["python3", "-c"]),
        ("#!/usr/bin/env -S python3.11 -u", ["python3.11", "-u", "-c"]),
        ("#!/usr/bin/perl", ["/usr/bin/perl", "-e"]),
        ("#!/usr/bin/env Rscript", ["Rscript", "-e"]),
    ],
)
def test_a_script_is_kept_whole_as_a_word_of_its_interpreter(
    put: Put, first: str, runs: list[str]
) -> None:
    text = f"{first}\nprint('é')\n"
    put(text.encode())
    assert piped_job(Path("-")) == {"run": [*runs, text], "workdir": str(Path.cwd())}


def test_a_script_so_kept_runs_as_its_file_would(put: Put, tmp_path: Path) -> None:
    put(SCRIPT)
    file = tmp_path / "script.sh"
    file.write_bytes(SCRIPT)
    file.chmod(0o755)
    as_file = subprocess.run([str(file)], capture_output=True, check=True).stdout
    as_word = subprocess.run(
        piped_job(Path("-"))["run"], stdin=subprocess.DEVNULL, capture_output=True, check=True
    ).stdout
    assert as_word == as_file == b"one\ntwo\n"


def test_a_job_file_is_seen_from_where_it_was_piped(put: Put, tmp_path: Path) -> None:
    put(b"run: echo hi\ngpus: 2\nworkdir: data\ncheckpoint: {dir: kept}\n")
    found = piped_job(Path("-"))
    assert (found["run"], found["gpus"]) == ("echo hi", 2)
    assert found["workdir"] == str(tmp_path / "data")
    assert found["checkpoint"]["dir"] == str(tmp_path / "kept")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"echo hi\n", "neither a job file"),
        (b"a: 1\n", "neither a job file"),
        (b"- run: x\n", "neither a job file"),
        (b"apiVersion: v1\nkind: Pod\n", "neither a job file"),
        (b"run: [\n", "no YAML"),
        (b"run: x\ngpu: 2\n", "gpus"),
        (b"\xff\xfe", "no text"),
        (b"#!/bin/sh\n\0", "no text"),
        (b"#!\n", "no interpreter"),
        (b"#!/usr/bin/awk -f\n", "no interpreter"),
        (b"#!/bin/bash\n#SBATCH --gpus=2\ntrue\n", "#SBATCH"),
        (b"#!/bin/sh\n" + b"#" * MOST_SCRIPT_BYTES, "longer than 127 KiB"),
        (b"#" * (MOST_BYTES + 1), "longer than 1 MiB"),
    ],
    ids=range(15),
)
def test_what_is_no_job_is_refused_and_nothing_runs(
    put: Put, content: bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(content)
    with pytest.raises(SystemExit) as left:
        main(["submit", "-"])
    said = capsys.readouterr().err
    assert (left.value.code, problem in said, "Traceback" in said) == (REFUSED, True, False), said


def test_the_longest_script_is_a_word_that_the_system_takes(put: Put) -> None:
    text = b"#!/bin/sh\necho long\n"
    put(text + b"#" * (MOST_SCRIPT_BYTES - len(text)))
    run = piped_job(Path("-"))["run"]
    assert subprocess.run(run, capture_output=True, check=True).stdout == b"long\n"


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(UserError, match="nothing is piped in"):
        piped_job(Path("-"))


def test_a_pipe_is_read_until_its_writer_is_done(fifo: Path) -> None:
    writer = _write_into(fifo, b"#!/bin/sh\n", b"echo slowly", b" written\n", pause_s=0.1)
    assert is_piped(str(fifo))
    assert piped_job(fifo)["run"][-1] == "#!/bin/sh\necho slowly written\n"
    writer.join()


def test_a_pipe_into_which_nobody_writes_does_not_hang(
    fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITER_S", 0.2)
    with pytest.raises(UserError, match="nobody writes into this pipe"):
        piped_job(fifo)


def test_a_device_is_no_job_file(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be read for ever."""
    with pytest.raises(SystemExit) as left:
        main(["submit", "--file", "/dev/zero"])
    assert (left.value.code, "is no file" in capsys.readouterr().err) == (REFUSED, True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--", "bash"], "would read its program from its input"),
        (["--", "python3", "-"], "would read its program from its input"),
        (["-g", "2", "bash", "-s", "one"], "would read its program from its input"),
        (["--", "bash", "/dev/fd/63"], "is a pipe of this shell"),
        (["--", "cat", "/proc/self/fd/12"], "is a pipe of this shell"),
        (["--", "/dev/fd/63"], "is a pipe of this shell"),
        (["--", "-"], "is no program"),
    ],
)
def test_a_program_that_would_find_nothing_to_run_is_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["submit", *words])
    said = capsys.readouterr().err
    assert (left.value.code, problem in said, "hint:" in said) == (REFUSED, True, True), said


@pytest.mark.parametrize(
    "words",
    [
        ["--stdin", "--", "bash"], ["-i", "-g", "1", "python3", "-"],
        ["--", "tar", "-cf", "-", "."], ["--", "bash", "-c", "cat /dev/fd/63"],
        ["--", "cat", "/dev/fd/0"],
    ],
)  # fmt: skip
def test_a_program_that_has_its_input_or_needs_none_is_taken(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATTHERD_SERVER", "http://127.0.0.1:1")
    with pytest.raises(SystemExit) as left:
        main(["submit", *words])
    assert left.value.code == TAKEN, capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("printf '#!/bin/sh\\ntrue\\n' | wattherd submit -", TAKEN),
        ("wattherd submit - -g 1 <<< 'run: date'", TAKEN),
        ("wattherd submit --dry-run <(echo 'run: date')", TAKEN),
        ("wattherd submit -f <(sleep 1; echo 'run: date')", TAKEN),
        ("wattherd submit /dev/stdin < <(echo 'run: date')", TAKEN),
        ("wattherd submit -", REFUSED),
        ("wattherd submit - <&-", REFUSED),
        ("wattherd submit -- bash <(echo true)", REFUSED),
        ("wattherd submit <(true)", REFUSED),
        ("wattherd submit - extra <<< 'run: date'", REFUSED),
    ],
)
def test_a_shell_pipes_jobs_in(typed: str, code: int) -> None:
    found = _bash(typed)
    assert (found.returncode, "Traceback" in found.stderr) == (code, False), found.stderr
