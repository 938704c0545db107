"""The environment that a job gets from the shell it is submitted from, as `sbatch --export` has it.

`export` says what is wanted: ALL (without a word), NONE, names, or NAME=VALUE. The command line
chooses from its own environment and sends the chosen variables with the job, as `environment`.
ALL leaves out what is the session's or the account's, what schedulers set, and whatever by its name
or its value may be a secret; a name that is written down counts, but never one of the account's:
HOME and its kin are always those of whoever the job runs as.

The default holds where the service is on the machine of the shell, which both name by
`this_machine`: paths of another machine would be no help.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from wattherd.errors import UserError

ALL, NONE = "ALL", "NONE"
MOST_BYTES = 64 << 10
"""Of all names and values together: every job keeps its own in the journal."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ACCOUNT = frozenset({
    "HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "MAIL", "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
})  # fmt: skip
"""Those of whoever the job runs as, never the submitter's."""
SESSION = frozenset({
    "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "TMP", "TEMP", "TERM", "TERMINFO", "COLORTERM",
    "COLUMNS", "LINES", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX", "TMUX_PANE", "STY",
    "WINDOWID", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "LS_COLORS", "KRB5CCNAME", "INVOCATION_ID",
    "JOURNAL_STREAM", "NOTIFY_SOCKET", "MAINPID", "OLDPS1", "HISTFILE", "HISTSIZE",
})  # fmt: skip
"""Of one terminal, login or service, which will be over when the job runs."""
SESSIONS = ("SSH_", "GPG_", "XDG_", "SUDO_", "LISTEN_", "TERM_")
"""How names of that kind begin."""
SCHEDULERS = frozenset({
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "RANK", "LOCAL_RANK",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
"""Which devices and which task: said by the service, run by run."""
SCHEDULERS_BEGIN = ("WATTHERD_", "PET_", "KUBEFLOW_TRAINER_", "TORCHELASTIC_")
KEPT = frozenset({"WATTHERD_SERVER", "WATTHERD_CA"})
"""A job may submit others."""
SECRET = re.compile(
    r"(TOKENS?|PASSWD|PASSPHRASE|PASSPHRASES|CREDENTIALS?|CREDS|COOKIES?|KEYS?"
    r"|AUTH|AUTHORIZATION|ASKPASS|JWT|BEARER)\d*(_|$)"
    r"|(^|_)(PASS|PWD|PAT|DSN|SAS)\d*(_|$)|PRIVATE_|CONNECTION_?STRING|SECRET|PASSWORD|WEBHOOK"
    r"|PASS(FILE|COMMAND)",
    re.IGNORECASE,
)
"""Names of secrets: a part of them ends so. TOKENIZERS_PARALLELISM is none."""
SECRET_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\w://[^\s@/]*:[^\s@]+@"  # a password, in which there may be a slash
    r"|\bhttps?://[^\s@/?#]+@"  # a token in place of a user
    r"|(password|passwd|passphrase|secret|token|credentials?|signature|(api|access|account)_?key"
    r"|(?<![a-z])(sig|pwd))\s*=\s*[^\s&;]"
    r"|\bbearer\s+\w|\bauthorization\s*:",
    re.IGNORECASE,
)
"""A private key, an address with a password or token in it, or `password=...` and its kin."""
ISSUED = re.compile(
    r"(?<![A-Za-z0-9])("
    r"gh[pousr]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{15}|xox[a-z]-[\w-]{8}|xapp-[\w-]{8}"
    r"|[sr]k_(live|test)_\w{8}|sk-(ant|proj|svcacct|or)-[\w-]{8}|sk-[A-Za-z0-9]{32}|hf_[A-Za-z0-9]{20}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30}"
    r"|npm_[A-Za-z0-9]{20}|pypi-[\w-]{16}|dop_v1_\w{20}|hvs\.[\w-]{20}|wh_[0-9a-f]{8}_[\w-]{20}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]"
    r")|hooks\.slack\.com/services/"
)
"""Tokens as those who issue them mark them, so that scanners find them: GitHub, GitLab, Slack,
Stripe, OpenAI, Anthropic, Hugging Face, AWS, Google, npm, PyPI, DigitalOcean, Vault, ours; JWT."""


class Environment(BaseModel):
    """Variables of a shell, and which machine it is on; empty is any machine."""

    model_config = ConfigDict(extra="forbid")

    machine: str = Field(default="", max_length=64, description="whose paths they are")
    variables: dict[str, str] = Field(default={}, description="names and values, 64 KiB at most")

    @field_validator("variables")
    @classmethod
    def _not_too_many(cls, variables: dict[str, str]) -> dict[str, str]:
        return _checked(variables)

    def here(self) -> dict[str, str]:
        """What counts on this machine, nothing if it is of another; one copy of equal ones."""
        if self.machine not in ("", this_machine()):
            return {}
        return _one_of(tuple(sorted(without_account(self.variables).items())))


def words_of(export: str | Sequence[str]) -> list[str]:
    """The words of `export`: a text is split at commas."""
    parts = export.split(",") if isinstance(export, str) else export
    return [part.strip() for part in parts if part.strip()]


def exported(export: str | Sequence[str], shell: Mapping[str, str]) -> dict[str, str]:
    """The variables of `shell` that `export` names, and those it sets.

    Raises:
        UserError: a word that is no name, one the shell does not have or that is the account's, or
            too much altogether.
    """
    found: dict[str, str] = {}
    for word in words_of(export):
        name, equals, value = word.partition("=")
        if not equals and word == ALL:
            found = {one: shell[one] for one in sorted(shell) if is_passed_on(one, shell[one])}
    for word in words_of(export):
        name, equals, value = word.partition("=")
        if equals or word not in (ALL, NONE):
            _check_name(name, shell, given=bool(equals))
            found[name] = value if equals else shell[name]
    try:
        return _checked(found)
    except ValueError as error:
        raise UserError(str(error), field="--export", hint=_greatest(found)) from None


def is_passed_on(name: str, value: str) -> bool:
    """Whether ALL takes this variable: neither of account, session nor scheduler, nor a secret."""
    if SECRET_VALUE.search(value) or ISSUED.search(value) or not _writable(value):
        return False
    return name in KEPT or not (
        not NAME.fullmatch(name)
        or name in ACCOUNT | SESSION | SCHEDULERS
        or name.startswith((*SESSIONS, *SCHEDULERS_BEGIN))
        or SECRET.search(name)
    )


def without_account(variables: Mapping[str, str]) -> dict[str, str]:
    """The same without those of the account, whatever a client sends."""
    return {name: value for name, value in variables.items() if name not in ACCOUNT}


@lru_cache(maxsize=1)
def this_machine() -> str:
    """A name of this machine, or container, for as long as it is up; empty if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return hashlib.sha256(f"{boot}/{socket.gethostname()}".encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _one_of(variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Thousands of jobs from one shell share one dictionary; nobody changes it."""
    return dict(variables)


def _checked(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a variable")
    size = sum(len(name) + len(value.encode(errors="replace")) for name, value in variables.items())
    if size > MOST_BYTES:
        raise ValueError(f"the environment has {size} bytes, {MOST_BYTES} at most are kept")
    return variables


def _check_name(name: str, shell: Mapping[str, str], *, given: bool) -> None:
    if not NAME.fullmatch(name):
        hint = "ALL, NONE, NAME or NAME=VALUE, with commas between them"
        raise UserError(f"{name!r} is no name of a variable", field="--export", hint=hint)
    if name in ACCOUNT:
        hint = f"a job that needs another one sets it: -e {name}=..."
        raise UserError(f"{name} is that of the job's account", field="--export", hint=hint)
    if not given and name not in shell:
        hint = "export it first, or write NAME=VALUE"
        if name.upper() in (ALL, NONE):
            hint = f"did you mean {name.upper()}?"
        raise UserError(f"this shell has no variable {name}", field="--export", hint=hint)


def _greatest(variables: Mapping[str, str]) -> str:
    names: Iterable[str] = sorted(variables, key=lambda one: -len(variables[one]))
    return f"name what is needed; the greatest are {', '.join(list(names)[:3])}"


def _writable(value: str) -> bool:
    """A text that a file can hold."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
