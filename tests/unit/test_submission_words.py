"""Words of `submit` and `run`: what is no option, job file or program is refused with a way out.

Nothing listens where these commands would hand a job in: exit code 2 says that the words were
refused, 4 that they were taken for a job.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from wattherd.cli.jobs import run, submit
from wattherd.cli.main import COMMANDS, cli, main
from wattherd.cli.other_schedulers import COMMANDS as FOREIGN
from wattherd.cli.other_schedulers import OPTIONS as FOREIGN_OPTIONS

Say = Callable[..., tuple[int, str]]
TAKEN, REFUSED = 4, 2
NAMES = sorted(name for one in submit.params for name in one.opts if name.startswith("--"))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Say:
    """Exit code and what is said on stderr, in an empty folder."""
    monkeypatch.setenv("WATTHERD_SERVER", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(left.value.code or 0), said.err

    return typed


def typos() -> Iterator[str]:
    """Every long option with one dash, a letter too few, too many, or two of them swapped."""
    for name in [*NAMES, *(f"--{one}" for one in ("budget", "policy", "batch", "cpus-per-gpu"))]:
        word = name[2:]
        yield from (f"--{word}x", f"--{word[0]}{word}")
        if name in NAMES:
            yield f"-{word}"
        for at in range(1, len(word)):
            yield f"--{word[:at]}{word[at + 1 :]}"
            yield f"--{word[: at - 1]}{word[at]}{word[at - 1]}{word[at + 1 :]}"


TYPOS = sorted({word for word in typos() if word not in NAMES and len(word) > 3})


@pytest.mark.long
@pytest.mark.parametrize("after", [("4",), ()], ids=["a value", "no value"])
def test_no_misspelt_option_becomes_a_program(say: Say, after: tuple[str, ...]) -> None:
    taken = []
    for word in (*TYPOS, *(f"{word}=4" for word in TYPOS)):
        code, said = say("submit", word, *after, "--", "true")
        if code != REFUSED or "hint:" not in said or word.partition("=")[0] not in said:
            taken.append((word, code, said))
    assert taken == []


@pytest.mark.parametrize("option", sorted(FOREIGN_OPTIONS))
def test_options_of_other_schedulers_lead_to_ours(say: Say, option: str) -> None:
    code, said = say("submit", option, "4", "--", "true")
    assert (code, FOREIGN_OPTIONS[option] in said) == (REFUSED, True)
    words = shlex.split(FOREIGN_OPTIONS[option].split("`")[0])
    ours = {name for one in submit.params for name in one.opts} | {"--"}
    assert all(word in ours for word in words[:1] if word.startswith("-"))


KINDS: dict[str, tuple[bytes, str]] = {
    "train.py": (b"print(1)\n", "wattherd submit -g 2 -- python train.py"),
    "run.sh": (b"echo 1\n", "wattherd submit -g 2 -- bash run.sh"),
    "old.sbatch": (b"#!/bin/bash\n#SBATCH --gpus=2\n", "wattherd submit -g 2 -- bash old.sbatch"),
    "lab.ipynb": (b"{}", "wattherd submit -g 2 -- jupyter execute lab.ipynb"),
    "fitting": (b"#!/usr/bin/env -S perl -w\n", "wattherd submit -g 2 -- perl fitting"),
    "fit.jl": (b"1\n", "wattherd submit -g 2 -- julia fit.jl"),
    "README.md": (b"# Read\n", "wattherd submit job.yaml"),
    "notes.txt": (b"", "wattherd submit job.yaml"),
    "data.csv": (b"a,b\n1,2\n", "wattherd submit job.yaml"),
    "setup.toml": (b"[run]\n", "wattherd submit job.yaml"),
    "weights.bin": (bytes(range(256)), "wattherd submit job.yaml"),
    "job.txt": (b"run: 'true'\n", "wattherd submit --file job.txt"),
    "pod.yaml": (b"apiVersion: v1\nkind: Pod\n", "kubectl apply -f pod.yaml"),
    "world.yaml": (b"cluster: 1x1:T4\njobs: {file: x}\n", "wattherd sim run world.yaml"),
    "serve.yaml": (b"slots: 2\n", "wattherd serve --config serve.yaml"),
    "tree.yaml": (b"queues: {name: root}\n", "wattherd queues apply tree.yaml"),
    "typo.yaml": (b"run: 'true'\ngpu: 2\n", "gpus"),
    "list.yaml": (b"- run: 'true'\n", "job-yaml.md"),
    "empty.yaml": (b"", "job-yaml.md"),
    "torn.yaml": (b"run: [", "job-yaml.md"),
    "bytes.yaml": (b"\xff\xfe\x00", "job-yaml.md"),
    "half.json": (b"{", "job-yaml.md"),
}


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("how", ["alone", "by --file", "behind --", "executable", "with options"])
def test_no_file_of_another_kind_is_handed_in(say: Say, name: str, how: str) -> None:
    content, hint = KINDS[name]
    path = Path(name)
    path.write_bytes(content)
    given = ["-g", "2"]
    match how:
        case "by --file":
            if name == "job.txt":
                assert say("submit", "--file", name)[0] == TAKEN
                return
            given += ["--file", name]
            hint = hint.replace(" -g 2", "")
        case "behind --":
            given += ["--", f"./{name}"]
        case "with options":
            given += [name, "-g", "3"]
        case "executable":
            path.chmod(0o755)
            given += [name]
            hint = "wattherd submit -g 2 -- ./" + name if content.startswith(b"#!") else hint
        case _:
            given += [name]
    code, said = say("submit", *given)
    assert (code, "hint:" in said) == (REFUSED, True), said
    if how != "behind --" or not name.endswith((".yaml", ".json", ".txt")):
        assert hint in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train.py", "--lr", "3"], "-- python train.py --lr 3"),
        (["there.yml"], "did you mean 'there.yaml'?"),
        (["."], "wattherd submit there.yaml"),
        (["qeue"], "wattherd submit -- qeue"),
        (["j-12"], "wattherd show j-12"),
        (["gpus=4", "there.yaml"], "wattherd submit --gpus=4 there.yaml"),
        (["gpus=4", "--", "true"], "wattherd submit -- true"),
        (["there.yaml", "sh", "-c", "true"], "wattherd submit --file there.yaml -- sh -c true"),
        (["there.yaml", "there.yaml"], "by itself"),
        (["--", "-g", "2", "true"], "options stand before `--`"),
        (["https://example.org/job.yaml"], "job-yaml.md"),
        (["--", "-"], "wattherd submit job.yaml, or"),
        ([""], "wattherd submit job.yaml, or"),
        ([], "wattherd submit -- python"),
    ],
)  # fmt: skip
def test_words_that_are_nothing_lead_to_what_was_meant(
    say: Say, words: list[str], hint: str
) -> None:
    Path("train.py").write_text("")
    Path("there.yaml").write_text("run: 'true'\n")
    for command in (["submit"], ["run"]):
        code, said = say(*command, *words)
        assert (code, "hint:" in said) == (REFUSED, True), said
        if command == ["submit"]:
            assert hint in said


@pytest.mark.parametrize(
    "words",
    [
        ["job.yaml"],
        ["job.yaml", "-g", "2"],
        ["-g", "2", "job.yaml", "--name", "x"],
        ["job.json"],
        ["job.yaml", "-g", "2", "--", "sh", "-c", "exit 1"],
        ["-f", "job.yaml"],
        ["-g4", "-nx", "-t12h", "--", "true"],
        ["sh", "-c", "true", "-g", "--", "--whatever"],
        ["./program", "-n", "5"],
        ["--", "no-such-program-here", "-n", "5"],
        ["--app", "jupyter"],
        ["--gpu-type", "A100,H100", "--gpu-type", "T4", "--", "true"],
        ["-e", "A=-n", "-e", "B=--", "--", "true"],
    ],
)
def test_jobs_are_taken_as_they_were(say: Say, words: list[str]) -> None:
    Path("job.yaml").write_text("run: 'true'\n")
    Path("job.json").write_text('{"run": "true"}')
    Path("program").write_text("#!/bin/sh\n")
    Path("program").chmod(0o755)
    for command in ("submit", "run"):
        assert say(command, *words)[0] == TAKEN, (command, words)


def test_what_follows_a_program_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    for command in (submit, run):
        context = command.make_context("x", ["-g", "2", "sh", "-g", "7", "-n", "x", "--help"])
        seen.append(context.params)
    assert [(one["gpus"], one["command"]) for one in seen] == [
        ("2", ("sh", "-g", "7", "-n", "x", "--help"))
    ] * 2


# Commands of other schedulers ---------------------------------------------------------------------


def command_of(words: list[str]) -> click.Command:
    """The command that a line begins with, down to its group's."""
    at: click.Command = cli
    context = click.Context(cli)
    for word in words:
        if not isinstance(at, click.Group) or word.startswith("-"):
            break
        found = at.get_command(context, word)
        if found is None:
            break
        at = found
    return at


@pytest.mark.parametrize("word", sorted(FOREIGN))
@pytest.mark.parametrize("rest", [[], ["17"], ["show", "job", "17"], ["hold", "j-3"], ["x.sh"]])
def test_words_of_other_schedulers_lead_to_a_command_that_is_there(
    say: Say, word: str, rest: list[str]
) -> None:
    assert word not in COMMANDS
    code, said = say(word, *rest)
    line = said.split("hint: ")[1].rstrip().removesuffix(")")
    program, *words = shlex.split(line)
    assert (code, program) == (REFUSED, "wattherd")
    known = command_of(words)
    if known is cli:
        assert words in (["--version"], ["--help"], ["17", "--help"]) or words[-1] == "--help"
    given = {name for one in known.params for name in one.opts} | {"--help", "--", "-c"}
    before = words[: words.index("--")] if "--" in words else words
    assert all(one.split("=")[0] in given for one in before if one.startswith("-")) or known is cli


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("status", "wattherd queue"),
        ("status j-3", "wattherd show j-3"),
        ("ps", "wattherd queue"),
        ("jobs", "wattherd queue"),
        ("list", "wattherd queue"),
        ("kill j-3 j-4", "wattherd cancel j-3 j-4"),
        ("scancel 17", "wattherd cancel j-17"),
        ("stop", "wattherd cancel JOB"),
        ("delete resnet", "wattherd cancel resnet"),
        ("squeue --me", "wattherd queue"),
        ("sbatch --gpus=2 job.sh", "wattherd submit -- bash job.sh"),
        ("srun -n 1 python t.py --lr 3", "wattherd run -- python t.py --lr 3"),
        ("sinfo", "wattherd nodes"),
        ("sacct -j 17", "wattherd history"),
        ("scontrol show job 17", "wattherd show j-17"),
        ("scontrol hold 17", "wattherd pause j-17"),
        ("describe job j-3", "wattherd explain j-3"),
        ("get nodes", "wattherd nodes"),
        ("apply -f job.yaml", "wattherd submit job.yaml"),
        ("help queue", "wattherd queue --help"),
        ("Kill j-3", "wattherd cancel j-3"),
    ],
)
def test_habits_lead_to_the_right_command(say: Say, typed: str, told: str) -> None:
    code, said = say(*typed.split())
    assert (code, f"(hint: {told})" in said) == (REFUSED, True), said


def test_q_is_short_for_queue(say: Say) -> None:
    assert say("q")[0] == TAKEN
