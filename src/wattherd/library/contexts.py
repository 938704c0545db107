"""Which service a command talks to, and as whom: options, environment, contexts, this machine.

Contexts stand in `~/.config/wattherd/config.yaml` (`$XDG_CONFIG_HOME`), their tokens beside it in
files of their own that nobody else may read. A context's token goes to the context's service only.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from wattherd.errors import UserError, words
from wattherd.spelling import hint_for

DEFAULT_SERVER = "http://127.0.0.1:8700"
HINT = "see docs/reference/command-line.md"
NAME = re.compile(r"[A-Za-z0-9][\w-]{0,79}", re.ASCII)
OPTION, ENVIRONMENT, HERE = "--server", "WATTHERD_SERVER", "this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A service that a user knows by a name."""

    server: str
    token_file: str = ""
    """Relative to the folder of the configuration."""
    ca: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """What the configuration file says; `use` is the name of the context in use."""

    use: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def called(self, name: str, said: str) -> Context:
        """The context of that name.

        Raises:
            UserError: there is none.
        """
        if name not in self.contexts:
            hint = hint_for(name, self.contexts) if self.contexts else f"write {DEFAULT_SERVER}"
            raise UserError(f"{name!r} is no address and no context", field=said, hint=hint)
        return self.contexts[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenService:
    """The service to talk to, and where each word about it is from."""

    server: str
    server_from: str
    token: str = ""
    token_from: str = ""
    ca: str = ""
    context: str = ""


def folder() -> Path:
    """Where the configuration is."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "wattherd"


def path() -> Path:
    """The configuration file."""
    return folder() / "config.yaml"


def read() -> Contexts:
    """The configuration; an empty one where there is no file.

    Raises:
        UserError: the file cannot be used; names its line.
    """
    file = path()
    if not file.exists():
        return Contexts()
    _check_ours(file)
    from wattherd.workload.scenario import load
    from wattherd.workload.yaml_lines import lines_of

    document = load(file, hint=HINT)
    with lines_of(file):
        _check_fields(document, Contexts, "")
        found = document.get("contexts") or {}
        if not isinstance(found, dict):
            raise _wrong("contexts", "is no table of names")
        contexts = {str(name): _context(str(name), of) for name, of in found.items()}
        use = str(document.get("use") or "")
        if use and use not in contexts:
            raise _wrong("use", f"there is no context {use!r}", hint_for(use, contexts))
    return Contexts(use=use, contexts=contexts)


def _check_ours(file: Path) -> None:
    """Who writes there chooses which service is shown the tokens; as ssh does with its own.

    Raises:
        UserError: others may write there, or it is somebody else's.
    """
    me = os.geteuid()
    try:
        for one in (file, file.parent):
            found = one.stat()
            # Where the umask is 002, one's own group is nobody else's.
            others = 0o002 if found.st_gid == os.getegid() else 0o022
            if me != 0 and found.st_uid not in (0, me):
                hint = "name the service by --server, and make a configuration of your own"
                raise UserError("is another user's", where=str(one), hint=hint)
            if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
                hint = f"look at what it says, then: chmod go-w {one}"
                problem = "others may write there, and so choose who is shown your tokens"
                raise UserError(problem, where=str(one), hint=hint)
    except OSError as error:
        raise UserError(f"cannot be read: {words(error)}", where=str(file)) from None


def _context(name: str, document: Any) -> Context:
    at = f"contexts.{name}"
    if not NAME.fullmatch(name):
        raise _wrong(at, "is no name", "letters, digits, `_` and `-`")
    if not isinstance(document, dict):
        raise _wrong(at, "holds no fields", "it needs `server`")
    _check_fields(document, Context, f"{at}.")
    for key, value in document.items():
        if not isinstance(value, str):
            raise _wrong(f"{at}.{key}", "is no text")
    server = document.get("server", "")
    if not server.startswith(("http://", "https://")):
        raise _wrong(f"{at}.server", f"{server!r} is no address", f"write {DEFAULT_SERVER}")
    return Context(**document)


def _check_fields(document: Mapping[str, Any], kind: type[Context | Contexts], at: str) -> None:
    known = [one.name for one in fields(kind)]
    for key in document:
        if key not in known:
            raise _wrong(f"{at}{key}", "is no field", hint_for(str(key), known))


def _wrong(at: str, problem: str, hint: str = HINT) -> UserError:
    return UserError(problem, where=str(path()), field=at, hint=hint)


def write(contexts: Contexts) -> None:
    """Replace the configuration, all at once; nobody else may read it.

    Raises:
        UserError: it cannot be written.
    """
    import yaml

    known = {
        name: {key: value for key, value in asdict(one).items() if value}
        for name, one in contexts.contexts.items()
    }
    document = {"use": contexts.use, "contexts": known}
    _put(path(), yaml.safe_dump(document, sort_keys=False))


def keep_token(name: str, token: str) -> str:
    """Write a context's token, mode 0600; its path for the configuration.

    Raises:
        UserError: it cannot be written.
    """
    _put(folder() / "tokens" / name, f"{token}\n")
    return f"tokens/{name}"


def forget_token(context: Context) -> None:
    """Remove a token that was kept here; files of the user's own stay."""
    file = folder() / context.token_file
    if context.token_file.startswith("tokens/"):
        file.unlink(missing_ok=True)


def _put(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        for parent in (folder(), file.parent):
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f"cannot be written: {error.strerror}", where=str(file)) from None


def chosen(named: str | None) -> ChosenService:
    """The service that is meant: option before environment before context before this machine.

    `named` and `WATTHERD_SERVER` are addresses or names of contexts. A token of the environment
    is of the service that `WATTHERD_SERVER` names, and goes to no other. Where that names none, it
    goes to a service of which no token is known.

    Raises:
        UserError: no such context, or a file that cannot be used.
    """
    known = read()
    given = os.environ.get("WATTHERD_SERVER")
    said, word = (OPTION, named) if named else (ENVIRONMENT, given) if given else ("", "")
    name, server, said = _meant(known, word or "", said)
    context = known.contexts.get(name)
    by_name = said == OPTION and word == name
    of_environment = bool(given) and _address(known, given or "") == server.rstrip("/")
    token, token_from = "", ""
    if of_environment and not by_name:
        token, token_from = _token_of_environment()
    if not token and context is not None:
        token, token_from = _token_of(name, context)
    if not token and (of_environment or not given):
        token, token_from = _token_of_environment()
    ca = os.environ.get("WATTHERD_CA") or (_beside(context.ca) if context else "")
    return ChosenService(
        server=server.rstrip("/"),
        server_from=said,
        token=token,
        token_from=token_from,
        ca=ca,
        context=name,
    )


def _meant(known: Contexts, word: str, said: str) -> tuple[str, str, str]:
    """The context's name if there is one, the address, and what said so."""
    if not word:
        if known.use:
            return known.use, known.contexts[known.use].server, f"context {known.use}"
        return "", DEFAULT_SERVER, HERE
    if "://" not in word:
        return word, known.called(word, said).server, said
    same = (n for n, one in known.contexts.items() if one.server.rstrip("/") == word.rstrip("/"))
    return next(same, ""), word, said


def _address(known: Contexts, word: str) -> str:
    """What an address or a context's name leads to; empty where it is neither."""
    if "://" not in word:
        word = known.contexts[word].server if word in known.contexts else ""
    return word.rstrip("/")


def _token_of_environment() -> tuple[str, str]:
    token = os.environ.get("WATTHERD_TOKEN")
    if token:
        return token, "WATTHERD_TOKEN"
    file = os.environ.get("WATTHERD_TOKEN_FILE")
    try:
        text = Path(file).read_text(encoding="utf-8").strip() if file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {words(error)}", where="WATTHERD_TOKEN_FILE") from None
    return text, "WATTHERD_TOKEN_FILE" if text else ""


def _token_of(name: str, context: Context) -> tuple[str, str]:
    """The token of a context, which nobody else may be able to read."""
    if not context.token_file:
        return "", ""
    file = Path(_beside(context.token_file))
    again = f"wattherd login --context {name} {context.server}"
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {words(error)}", where=str(file), hint=again) from None
    if stat.S_IMODE(mode) & 0o077:
        hint = f"chmod 600 {file}; if others may have read it, revoke it and log in anew"
        raise UserError("holds a token and others may read it", where=str(file), hint=hint)
    return text, f"context {name}"


def _beside(file: str) -> str:
    return str(folder() / Path(file).expanduser()) if file else ""
