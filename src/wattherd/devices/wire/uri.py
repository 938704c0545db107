"""The address of a device: `SCHEME://HOST:PORT/PATH?OPTION=VALUE&...`, read and checked.

Knows no protocol: which options there are is the drivers' to say (`registry`). Secrets never stand
in an address, which ends up in logs: they come from the file that `credentials` names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from wattherd import units
from wattherd.errors import UserError
from wattherd.spelling import hint_for

TIMEOUT_S = 2.0
"""Below the period of a control loop of a few seconds, above what a slow controller board takes."""
YES, NO = ("1", "true", "yes"), ("0", "false", "no")

WATTS = {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
"""Watts of what instruments count in."""


@dataclass(frozen=True, slots=True)
class Uri:
    """The parts of an address; `authority` is what stands between `//` and the path, as typed."""

    text: str
    scheme: str
    authority: str
    host: str
    port: int | None
    path: str
    options: Mapping[str, str]

    def error(self, problem: str, *, field: str = "", hint: str = "") -> UserError:
        """An error that names this address."""
        return UserError(problem, where=self.text, field=field, hint=hint)

    def allow(self, known: Collection[str]) -> None:
        """Refuse options that nobody would read.

        Raises:
            UserError: an option is not among `known`.
        """
        for name in self.options:
            if name not in known:
                raise self.error("no such option", field=name, hint=hint_for(name, known))

    def needs_host(self) -> str:
        """The host.

        Raises:
            UserError: there is none.
        """
        if not self.host:
            raise self.error("no host named", hint=f"write {self.scheme}://HOST/...")
        return self.host

    def text_of(self, name: str) -> str:
        """An option that has to be given.

        Raises:
            UserError: it is missing or empty.
        """
        if not self.options.get(name):
            raise self.error("is missing", field=name, hint=f"add ?{name}=...")
        return self.options[name]

    def number(self, name: str, default: float) -> float:
        """An option that is a finite number.

        Raises:
            UserError: it is none.
        """
        try:
            value = float(self.options.get(name, default))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{self.options[name]!r} is no number", field=name)
        return value

    def seconds(self, name: str, default_s: float) -> float:
        """An option that is a duration above zero, in seconds.

        Raises:
            UserError: it is none.
        """
        if name not in self.options:
            return default_s
        try:
            value_s = units.seconds(units.plain(self.options[name]), field=name)
        except UserError as error:
            raise self.error(error.problem, field=name, hint=error.hint) from None
        if not 0 < value_s < math.inf:
            raise self.error("must be above zero", field=name)
        return value_s

    @property
    def timeout_s(self) -> float:
        """Seconds that one question to the device may take in all."""
        return self.seconds("timeout", TIMEOUT_S)

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """An option that is one of `known`.

        Raises:
            UserError: it is not.
        """
        value = self.options.get(name, default)
        if value not in known:
            raise self.error(f"{value!r} is unknown", field=name, hint=hint_for(value, known))
        return value

    def flag(self, name: str) -> bool:
        """An option that is on or off; off if not given.

        Raises:
            UserError: it is neither.
        """
        return self.choice(name, (*YES, *NO), "0") in YES

    def file(self, name: str) -> Path | None:
        """An option that names a file.

        Raises:
            UserError: there is no such file.
        """
        if name not in self.options:
            return None
        path = Path(self.options[name]).expanduser()
        if not path.is_file():
            raise self.error(f"no file {path}", field=name)
        return path


def parse(text: str) -> Uri:
    """Read an address; in options `+` stays a plus sign, `&`, `#`, `%` are written %26, %23, %25.

    Raises:
        UserError: it has no scheme, a bad port, an option without `=` or twice, or a password.
    """
    parts = _split(text)
    if parts.username is not None or parts.password is not None:
        # The text is not repeated: it may end up in a log.
        raise UserError("an address carries no user or password",
                        where=f"{parts.scheme}://{parts.hostname}",
                        hint="put them into a file and add ?credentials=FILE")  # fmt: skip
    return Uri(
        text=text,
        scheme=parts.scheme,
        authority=parts.netloc,
        host=parts.hostname or "",
        port=_port(text, parts),
        path=unquote(parts.path),
        options=_options(text, parts.query),
    )


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UserError(f"is no address: {error}", where=text) from None
    if not parts.scheme:
        raise UserError("names no protocol", where=text, hint="write SCHEME://HOST/..., as in"
                        " nvml://0; see `wattherd meter probe`, `wattherd knob probe`")  # fmt: skip
    if parts.fragment:
        raise UserError("`#` ends an address", where=text, hint="write it as %23")
    return parts


def _port(text: str, parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise UserError(f"bad port: {error}", where=text) from None


def _options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals:
            raise UserError("has no value", where=text, field=name, hint=f"write {name}=...")
        if name in options:
            raise UserError("is given twice", where=text, field=name)
        options[name] = unquote(value)
    return options
