"""Kubernetes quantities (`500m`, `1.5Gi`, `12e6`), exactly, as integers.

The notation is that of the API (apimachinery, `resource.Quantity`): a signed decimal number and a
suffix, binary (`Ki` to `Ei`), decimal (`n` to `E`) or an exponent (`e3`). Where a result is no
integer, the API rounds away from zero; so do we, so that a request is never counted as less than
it is. `wattherd.units` reads what people write for us; this is what other programs write.
"""

from __future__ import annotations

import re
from functools import lru_cache

from wattherd.errors import UserError

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<part>\d*))?"
    r"(?:(?P<binary>[KMGTPE]i)|[eE](?P<exponent>[+-]?\d{1,3})|(?P<decimal>[numkMGTPE]?))",
    re.ASCII,
)
_LONGEST = 64
"""Characters; nobody writes a longer number, and its digits would cost us time."""
_MIB = 2**20


def whole(text: str | int) -> int:
    """The amount as an integer, fractions rounded away from zero: GPUs, pods, bytes.

    Raises:
        UserError: this is no quantity.
    """
    return _scaled(text, 0)


def milli(text: str | int) -> int:
    """The amount in thousandths, rounded away from zero: CPUs in milli-vCPU.

    Raises:
        UserError: this is no quantity.
    """
    return _scaled(text, 3)


def mib_needed(size_bytes: int) -> int:
    """MiB that hold `size_bytes`, rounded up: what a pod asks for."""
    return -(-size_bytes // _MIB)


def mib_offered(size_bytes: int) -> int:
    """Whole MiB in `size_bytes`, rounded down: what a node has."""
    return size_bytes // _MIB


@lru_cache(maxsize=4096)
def _scaled(text: str | int, places: int) -> int:
    """`text` times 10 to the power of `places`."""
    form = _FORM.fullmatch(str(text)) if len(str(text)) <= _LONGEST else None
    if form is None or not (form["whole"] or form["part"]):
        raise UserError(f"{str(text)[:_LONGEST]!r} is no quantity", hint="write 500m, 4 or 1.5Gi")
    part = form["part"] or ""
    digits = int(form["whole"] + part) << _BINARY.get(form["binary"] or "", 0)
    tens = int(form["exponent"] or _DECIMAL[form["decimal"] or ""]) + places - len(part)
    size: int = digits * 10**tens if tens >= 0 else -(-digits // 10**-tens)
    return -size if form["sign"] == "-" else size
