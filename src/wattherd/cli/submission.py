"""The words of `submit` and `run`: options, then a job file or a program with its own options.

What stands behind the program, or behind `--`, is the program's. What is neither an option, a job
file nor a program is refused before anything is handed in, with the command line that was meant.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from wattherd.cli.other_schedulers import OPTIONS
from wattherd.cli.piped_job import STDIN, is_piped
from wattherd.errors import UserError
from wattherd.spelling import nearest

JOB_FILES = (".yaml", ".yml", ".json")
_INTERPRETERS = {
    **dict.fromkeys((".py", ".pyw"), ("python",)),
    **dict.fromkeys((".sh", ".bash", ".sbatch", ".slurm", ".job", ".pbs"), ("bash",)),
    ".ipynb": ("jupyter", "execute"),
    ".jl": ("julia",),
    ".r": ("Rscript",),
    ".pl": ("perl",),
    ".js": ("node",),
}
"""What runs a file of that ending that cannot be run by itself."""
_ONE_DASH = re.compile(r"-([A-Za-z][A-Za-z-]{2,})(=.*)?", re.DOTALL)
_SETTING = re.compile(r"[A-Za-z_][\w-]*=.*", re.DOTALL)
_JOB_ID = re.compile(r"j-\d+")
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(?:[3-9]|[1-9]\d+)")
"""Open files of the shell that submits, but for the three that every program has."""
_READERS = re.compile(r"(?:ba|da|k|z)?sh|python[0-9.]*|perl|ruby|node|julia|Rscript")
"""Interpreters."""
_HEAD_BYTES = 4096
"""Of a file, that say what it is."""
_OF_SERVICES = {
    "state",
    "store",
    "port",
    "policy",
    "budget",
    "slots",
    "signals",
    "schedule",
    "oidc",
}


class Submission(click.Command):
    """A command whose words end in a job file or a program."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options up to the job file or the program; options may follow a job file, too.

        Raises:
            UserError: an option is unknown, or a word is neither a job file nor a program.
        """
        if not ctx.resilient_parsing:
            args = self._sorted(ctx, args)
        return super().parse_args(ctx, args)

    def _sorted(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The same words with the job file behind `--file` and the program behind `--`."""
        ours, dashed, command = self._split(ctx, args)
        if command and not dashed and _is_job(command[0]):
            ours, dashed, command = self._split(ctx, [*ours, "--file", *command])
            if command and not dashed and not _is_job(command[0]):
                line = self._line([*ours, "--", *command])
                hint = f"{line} runs that instead of what the file says"
                raise UserError("follows the job file", where=command[0], hint=hint)
        one_more = bool(command) and not dashed and "--file" in ours
        if one_more or ours.count("--file") + ours.count("-f") > 1:
            raise UserError("one job file at a time", field="--file", hint="submit each by itself")
        if not command:
            return ours
        for word in command:
            _check_descriptor(word)
        if "--file" not in ours and "-f" not in ours:
            self._check_program(ours, command, dashed=dashed)
        return [*ours, "--", *command]

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], bool, list[str]]:
        """Our own words, whether `--` ended them, and the words of the program."""
        try:
            found, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        except click.NoSuchOption as error:
            raise self._no_option(error.option_name, args) from None
        words = found.get("command")
        command = list(words) if isinstance(words, tuple | list) else []
        ours = args[: len(args) - len(command)]
        dashed = bool(ours) and ours[-1] == "--"
        ours = ours[:-1] if dashed else ours
        for word in ours:
            self._check_dash(word)
        return ours, dashed, command

    def _names(self) -> list[str]:
        return [name for one in self.params for name in one.opts if name.startswith("--")]

    def _check_dash(self, word: str) -> None:
        """`-name x` would be `-n ame` and the program `x`."""
        long = _ONE_DASH.fullmatch(word)
        begun = [name for name in self._names() if long and name[2:].startswith(long[1])]
        if begun:
            raise UserError("has one dash too few", field=word, hint=f"did you mean {begun[0]!r}?")

    def _no_option(self, name: str, args: Sequence[str]) -> UserError:
        if not name.startswith("--"):
            whole = next((one for one in args if one.startswith(name)), name)
            self._check_dash(whole)
            name = whole
        known = self._names()
        long = f"--{name.lstrip('-')}"
        if long in OPTIONS:
            hint = f"here: {OPTIONS[long]}"
        else:
            near = nearest(long, known) or next((o for o in known if o.startswith(long)), None)
            meant = f"did you mean {near!r}? " if near else ""
            hint = f"{meant}`wattherd {self.name} --help` lists all; a program's stand behind `--`"
        return UserError("there is no such option", field=name, hint=hint)

    def _keeps_input(self, ours: Sequence[str]) -> bool:
        ctx = click.Context(self, resilient_parsing=True)
        return bool(self.make_parser(ctx).parse_args(args=list(ours))[0].get("stdin"))

    def _line(self, words: Sequence[str]) -> str:
        return shlex.join(["wattherd", str(self.name), *words])

    def _check_program(self, ours: list[str], command: list[str], *, dashed: bool) -> None:
        """What is named as the program is one, as far as can be told from here.

        Raises:
            UserError: it is a file of another kind, or nothing at all.
        """
        word, rest = command[0], command[1:]

        def meant(*words: str) -> str:
            return self._line([*ours, "--", *words])

        if word in ("", STDIN):
            hint = "wattherd submit job.yaml, or `wattherd submit - < SCRIPT`"
            raise UserError(f"{word!r} is no program", field="COMMAND", hint=hint)
        if _reads_its_program(command) and not self._keeps_input(ours):
            hint = f"{self._line([*ours, STDIN])} < SCRIPT, or --stdin to attach to it"
            problem = f"{word} would read its program from its input, and find none"
            raise UserError(problem, field="COMMAND", hint=hint)
        if word.startswith("-"):
            hint = self._line([*command, "--", "PROGRAM"])
            raise UserError("options stand before `--`", field=word, hint=hint)
        path = Path(word)
        if path.is_dir():
            raise UserError("is a folder", where=word, hint=_in_folder(path, meant))
        named = "/" in word
        if path.is_file() and (named or shutil.which(word) is None):
            if _runs(path):
                if named:
                    return
                raise UserError("is not on the PATH", where=word, hint=meant(f"./{word}", *rest))
            raise _no_job(path, meant, rest)
        if dashed or shutil.which(word) is not None:
            return
        if "--" in rest:
            at = rest.index("--")
            hint = f"{self._line([*ours, *rest[at:]])}, or {meant(*command)}"
            problem = "stands before `--` and is neither an option nor a job file"
            raise UserError(problem, where=word, hint=hint)
        problem = "is neither a file nor a program here"
        raise UserError(problem, where=word, hint=self._hint_for(ours, command))

    def _hint_for(self, ours: list[str], command: list[str]) -> str:
        word, anyway = command[0], self._line([*ours, "--", *command])
        if _JOB_ID.fullmatch(word):
            return f"wattherd show {word}"
        if _SETTING.fullmatch(word):
            name, _, value = word.partition("=")
            field = nearest(f"--{name}", self._names())
            if field is not None:
                return self._line([*ours, f"{field}={value}", *(command[1:] or ["job.yaml"])])
        files = [one.name for one in _siblings(Path(word)) if one.is_file()]
        near = nearest(Path(word).name, files)
        if near is not None:
            return f"did you mean {near!r}?"
        return f"where the service runs there may be one: {anyway}"


def _is_job(word: str) -> bool:
    return word.casefold().endswith(JOB_FILES) or is_piped(word)


def _check_descriptor(word: str) -> None:
    """A pipe of the shell that submits, as `<(...)` makes one, is not there for a job."""
    if _DESCRIPTOR.fullmatch(word):
        problem = "is a pipe of this shell, which the job does not have"
        hint = "`wattherd submit <(...)` reads a job from it; else write it into a file"
        raise UserError(problem, where=word, hint=hint)


def _reads_its_program(command: Sequence[str]) -> bool:
    """Whether that is an interpreter that is told to read its program from standard input."""
    return bool(_READERS.fullmatch(Path(command[0]).name)) and (
        len(command) == 1 or command[1] in (STDIN, "-s")
    )


def check_job_file(path: Path) -> None:
    """Whether a file could hold a job at all, before it is read as one.

    Raises:
        UserError: it is not there, or is something else; the hint says what to do with that.
    """

    def meant(*words: str) -> str:
        return shlex.join(["wattherd", "submit", "--", *words])

    if path.is_dir():
        raise UserError("is a folder", where=str(path), hint=_in_folder(path, meant))
    if not path.exists():
        near = nearest(path.name, [one.name for one in _siblings(path)])
        hint = "docs/reference/job-yaml.md says how to write one"
        hint = hint if near is None else f"did you mean {str(path.with_name(near))!r}?"
        raise UserError("there is no such file", where=str(path), hint=hint)
    if not path.is_file():
        hint = "wattherd submit job.yaml, or `wattherd submit -` with a job piped in"
        raise UserError("is no file", where=str(path), hint=hint)
    yaml = path.suffix.casefold() in JOB_FILES
    if not yaml and not _fields(path):
        raise _no_job(path, meant, [])


def other_document(path: Path) -> UserError | None:
    """What a file that is no job file is for, by its fields; None if that cannot be told."""
    from wattherd.workload.scenario import load

    try:
        document = load(path) if path.is_file() else {}
    except UserError:
        return None
    if {"run", "taskRoles", "app"} & document.keys():
        return None
    given, name = document.keys(), shlex.quote(str(path))
    if {"apiVersion", "kind"} <= given:
        hint = f"kubectl apply -f {name}, see docs/guides/kubernetes.md"
        return UserError("is a Kubernetes object, not a job file", where=str(path), hint=hint)
    if {"cluster", "jobs"} <= given:
        hint = f"wattherd sim run {name}"
        return UserError("is a scenario, not a job file", where=str(path), hint=hint)
    if given == {"queues"}:
        hint = f"wattherd queues apply {name}"
        return UserError("holds queues, not a job", where=str(path), hint=hint)
    if given & _OF_SERVICES:
        hint = f"wattherd serve --config {name}"
        return UserError("configures a service, it is no job file", where=str(path), hint=hint)
    return None


def _no_job(path: Path, meant: Callable[..., str], rest: Sequence[str]) -> UserError:
    """A file that is there and is no job file: run it by its interpreter, if it has one."""
    found, name = _interpreter(path), str(path)
    if found is None and _runs(path):
        found = ()
        name = name if "/" in name else f"./{name}"
    if found is None:
        hint = f"wattherd submit job.yaml, or {meant('PROGRAM')}"
        if path.suffix.casefold() not in JOB_FILES and _fields(path):
            hint = f"if it is a job file: wattherd submit --file {shlex.quote(name)}"
        return UserError("is neither a job file (YAML) nor a program", where=str(path), hint=hint)
    hint = meant(*found, name, *rest)
    if b"#SBATCH" in _head(path):
        hint += "; its #SBATCH lines are not read, see docs/tutorials/from-slurm.md"
    return UserError("is a program, not a job file", where=str(path), hint=hint)


def _interpreter(path: Path) -> tuple[str, ...] | None:
    """What runs a file, by its ending or its first line; None if it is no script."""
    known = _INTERPRETERS.get(path.suffix.casefold())
    if known is not None:
        return known
    first = _head(path).split(b"\n", 1)[0]
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [one for one in words[1:] if not one.startswith("-")]
    return (Path(words[0]).name,) if words else None


def _runs(path: Path) -> bool:
    """A file that the system can run by itself."""
    head = _head(path)
    return os.access(path, os.X_OK) and (head.startswith((b"#!", b"\x7fELF")))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def _fields(path: Path) -> bool:
    """Whether it is YAML of a job's fields."""
    from wattherd.workload.scenario import load

    try:
        return bool({"run", "taskRoles", "app"} & load(path).keys())
    except UserError:
        return False


def _siblings(path: Path) -> Iterator[Path]:
    try:
        yield from path.parent.iterdir()
    except OSError:
        return


def _in_folder(path: Path, meant: Callable[..., str]) -> str:
    files = sorted(one for one in path.glob("*") if one.suffix.casefold() in JOB_FILES[:2])
    return f"wattherd submit {shlex.quote(str(files[0]))}" if files else meant("PROGRAM")
