"""Which jobs are of one kind, and so as fast as each other on the same devices.

A kind is what a user declares (`kind:` of a job file, a trace's profile, or the label `kind`), else
the command in a normal form: the words that the shell would make of it, without options of which it
is known that they do not change how long a step takes. Nothing else is left out: a batch size or
the name of a model in a command makes another kind. Two commands that are kept apart learn twice;
two that are wrongly put together would spoil what is learned of both.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache

from wattherd.model.job import JobSpec

SAME_SPEED = frozenset(
    {
        "seed", "random-seed", "lr", "learning-rate", "weight-decay", "momentum", "dropout",
        "epochs", "max-epochs", "num-epochs", "num-train-epochs", "steps", "max-steps", "name",
        "run-name", "tag", "output", "output-dir", "out", "out-dir", "log-dir", "logdir",
        "save-dir", "checkpoint", "checkpoint-dir", "ckpt-dir", "resume", "resume-from",
    }
)  # fmt: skip
"""Options that say how long or how well is trained, or where results go, and not how fast."""
LONGEST = 200
"""Letters of a kind that are kept; of a longer one the rest is told by its digest."""
_SHELLS = ("/bin/sh", "-c")


def job_kind(spec: JobSpec) -> str:
    """The kind of a job; kinds of two tenants are two, whatever they are called.

    Empty for a job of which nothing is said, not even what it runs: it is like no other.
    """
    commands = tuple(role.command for role in spec.roles if role.command)
    label = next((value for name, value in spec.labels if name == "kind"), "")
    name = _named(spec.profile or label, commands)
    return f"{spec.tenant}\n{name}" if name and spec.tenant else name


def kind_name(kind: str) -> str:
    """What users call it."""
    return kind.rpartition("\n")[2]


@lru_cache(maxsize=4096)
def _named(declared: str, commands: tuple[tuple[str, ...], ...]) -> str:
    words = declared.split() or [word for one in commands for word in _normal(_words(one))]
    name = " ".join(words)  # no kind has a line break in it: what is before one is the tenant
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]
    return f"{name[:LONGEST]}... {digest}"


def _words(command: Sequence[str]) -> list[str]:
    """The words of a command; of a line for the shell, those that the shell would make of it."""
    if tuple(command[:2]) != _SHELLS or len(command) < 3:
        return [part for word in command for part in word.split()]
    try:
        return [part for word in shlex.split(command[2]) for part in word.split()]
    except ValueError:  # a quote that never ends is the shell's to refuse
        return command[2].split()


def _normal(words: Sequence[str]) -> Iterator[str]:
    """Without options that leave the speed as it is, and their values."""
    drop_value = False
    for word in words:
        is_option = word.startswith("-") and not _is_number(word)
        if drop_value and not is_option:
            drop_value = False
            continue
        name, equals, _ = word.partition("=")
        dropped = name.lstrip("-").replace("_", "-").lower() in SAME_SPEED
        if dropped and (is_option or equals):
            drop_value = is_option and not equals
            continue
        drop_value = False
        yield word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
