"""Drivers of other packages: what they do wrong is a `DeviceError`, as if the device were to blame.

Whoever reads meters and sets knobs counts with devices that do not answer, and with no other
failure. A driver that raises anything else, or answers with what is none, must not end the thread
that asks it. One that does not return is told of (`plugin_watch`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from numbers import Real
from typing import TypeVar, cast

from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.errors import UserError
from wattherd.plugin_watch import PluginWatch
from wattherd.plugins import GUIDE

T = TypeVar("T")
MOST_WORDS = 200
MOST = sys.float_info.max
_log = logging.getLogger(__name__)


def require_methods(driver: object, *names: str) -> None:
    """Check that what a package made is a driver at all.

    Raises:
        TypeError: it lacks a method.
    """
    for name in names:
        if not callable(getattr(driver, name, None)):
            raise TypeError(f"it made a {type(driver).__name__}, which has no `{name}`")


class PluginCalls:
    """Calls a driver of somebody else's, and says once what it does wrong again and again."""

    def __init__(self, name: str) -> None:
        """`name` is the protocol that the package speaks."""
        self.name = name
        self.watch = PluginWatch(f"driver {name!r}", aside=True)
        self._said: set[str] = set()

    def answer(self, call: Callable[[], T], kind: type[T]) -> T:
        """What the driver answers.

        Raises:
            DeviceError: it raised, or answered with something of another kind.
        """
        try:
            with self.watch:
                found = call()
        except DeviceError:
            raise
        except (Exception, SystemExit) as error:
            raise self._trouble(f"{type(error).__name__}: {error}", error) from error
        self.check(found, kind)
        return found

    def check(self, found: object, kind: type | tuple[type, ...]) -> None:
        """Whether a part of an answer is of a kind.

        Raises:
            DeviceError: it is not.
        """
        if not isinstance(found, kind):
            raise self._trouble(f"it answered with {found!r}"[:MOST_WORDS])

    def number(self, found: object, *, least: float = 0.0, most: float = MOST) -> None:
        """Whether a part of an answer is a number from `least` to `most`.

        Raises:
            DeviceError: it is none. Watts that are no number would make all sums none.
        """
        self.check(found, Real)
        if not least <= cast("float", found) <= most:  # so is what is no number
            raise self._trouble(f"it answered with {found!r}"[:MOST_WORDS])

    def close(self, call: Callable[[], None]) -> None:
        """Let go; there is nobody left who could do anything about a failure."""
        try:
            with self.watch:
                call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            self._tell(f"{type(error).__name__}: {error}", error)

    def _trouble(self, told: str, error: BaseException | None = None) -> DeviceError:
        words = self._tell(told, error)
        return DeviceError(DeviceErrorKind.GARBAGE, f"the driver {self.name!r} failed: {words}")

    def _tell(self, told: str, error: BaseException | None) -> str:
        words = " ".join(told.split())[:MOST_WORDS]
        if words not in self._said and len(self._said) < MOST_WORDS:
            self._said.add(words)
            _log.error("driver %r failed: %s", self.name, words)
            _log.debug("driver %r failed", self.name, exc_info=error)
        return words


def made(uri: Uri, make: Callable[[], T]) -> T:
    """What a package makes for an address.

    Raises:
        UserError: the address cannot be used, or the package failed.
    """
    try:
        with PluginWatch(f"driver {uri.scheme!r}"):
            return make()
    except (UserError, DeviceError):
        raise
    except (Exception, SystemExit) as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_WORDS]
        raise uri.error(f"the driver {uri.scheme!r} failed: {told}", hint=GUIDE) from error
