"""Single cells of a table as numbers and model names, with complaints that name the cell.

What depends on several cells of a row is judged by the reader of the table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wattherd.errors import UserError
from wattherd.spelling import hint_for
from wattherd.workload.source import shown

# Up to here every integer survives a trip through a float.
MAX_INTEGER = 2**53
_MAX_DIGITS = len(str(MAX_INTEGER))

_UNITS: Mapping[str, str] = MappingProxyType(
    {
        "cpu_milli": "milli-vCPU: one vCPU is 1000",
        "memory_mib": "MiB: one GiB is 1024",
        "num_gpu": "a count of GPUs: half a GPU is num_gpu 1 with gpu_milli 500",
        "gpu": "a count of GPUs",
        "gpu_milli": "thousandths of one GPU: a whole GPU is 1000",
    }
)


@dataclass(frozen=True, slots=True)
class CellPlace:
    """Where a cell stands: `FILE:LINE`."""

    where: str

    def error(self, field: str, problem: str, hint: str = "") -> UserError:
        """A complaint about the cell of column `field`."""
        return UserError(problem, where=self.where, field=field, hint=hint)

    def integer(self, field: str, text: str, *, at_most: int = MAX_INTEGER) -> int:
        """A whole number from 0 to `at_most`.

        Raises:
            UserError: empty, negative, not a whole number, or too large.
        """
        digits = text.strip()
        unit = _UNITS.get(field, "")
        if digits.isascii() and digits.isdigit():
            value = int(digits) if len(digits.lstrip("0")) <= _MAX_DIGITS else MAX_INTEGER + 1
            if value > at_most:
                raise self.error(field, f"{shown(digits)} is more than {at_most}", unit)
            return value
        if not digits:
            raise self.error(field, "is empty", unit)
        if digits.startswith("-") and digits[1:].replace(".", "", 1).isdigit():
            raise self.error(field, f"{shown(digits)} is negative", unit or "a whole number from 0")
        raise self.error(field, f"{shown(text)} is not a whole number", unit or "digits alone")

    def count(self, field: str, text: str) -> int:
        """A whole number above zero.

        Raises:
            UserError: none, or zero.
        """
        value = self.integer(field, text)
        if not value:
            raise self.error(field, "is zero", "one or more")
        return value

    def seconds(self, field: str, text: str) -> float | None:
        """Seconds of 0 or more; None for an empty cell.

        Raises:
            UserError: not a finite number, or negative.
        """
        if not text.strip():
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(
                field,
                f"{shown(text)} is not a number of seconds",
                "a plain number, such as 90 or 0.5",
            )
        if value < 0:
            raise self.error(field, f"{shown(text)} is negative", "seconds since the trace began")
        return value

    def name(self, field: str, text: str) -> str:
        """A name, without surrounding blanks.

        Raises:
            UserError: it is empty.
        """
        name = text.strip()
        if not name:
            raise self.error(field, "is empty", "every row needs a name of its own")
        return name

    def model(self, field: str, text: str, known: Collection[str], kind: str) -> str:
        """A model name of the catalog, without surrounding blanks.

        Raises:
            UserError: `known` does not hold it.
        """
        name = text.strip()
        if name not in known:
            raise self.error(field, f"unknown {kind} model {shown(name)}", hint_for(name, known))
        return name
