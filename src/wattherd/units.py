"""Watts, hertz, seconds and bytes as people write them; nothing else reads or formats them."""

from __future__ import annotations

import math
import re

from wattherd.errors import UserError

_SCALE = {"": 1.0, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_TIME = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip
_RATE = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
MOST_W = 1e15
"""More than all that mankind draws; sums of smaller ones are exact in integers of milliwatts."""
MOST_TEXT = 100
"""Characters of a time. Parts of it are looked for at each of them, by what is left: a text of
20,000 digits would take half a minute, during which a service answers nobody."""
_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"


def watts(given: str | float, *, field: str = "") -> float:
    """`450W`, `40kW`, `1.2MW` in watts; numbers are watts already.

    Raises:
        UserError: anything else; also `10mW`, by which most people mean megawatts, and a text
            without a unit, as nobody can tell whether `20` are watts or kilowatts.
    """
    if isinstance(given, int | float):
        return _number(given, "power", field, hint="write 450W or 40kW", most=MOST_W)
    text = given.strip()
    match = re.fullmatch(rf"{_NUMBER}\s*([mkKMG]?)(W?)", text)
    value = math.inf if match is None else float(match[1]) * _SCALE[match[2]]
    if match is None or value > MOST_W:
        raise UserError(f"{given!r} is no power", field=field, hint="write 450W or 40kW")
    number, scale, unit = match.groups()
    if scale == "m" and value:
        hint = f"write {value:g}W or {number}MW"
        raise UserError(f"{text} may mean milliwatts or megawatts", field=field, hint=hint)
    if not unit and not scale and value:
        hint = f"write {number}W or {number}kW"
        raise UserError(f"{text} has no unit", field=field, hint=hint)
    return value


def joules(given: str, *, field: str = "") -> float:
    """`2kWh`, `500Wh` in joules.

    Raises:
        UserError: anything else.
    """
    try:
        if given.strip().endswith("Wh"):
            return 3600.0 * watts(given.strip().removesuffix("h"), field=field)
    except UserError:
        pass
    raise UserError(f"{given!r} is no energy", field=field, hint="write 500Wh or 2kWh")


def watts_per_second(given: str | float | None, field: str = "") -> float | None:
    """Watts a second, also written without the second: `2kW/s`, `2kW`; None stays None.

    Raises:
        UserError: as of `watts`.
    """
    plain = given.strip().removesuffix("/s") if isinstance(given, str) else given
    return None if plain is None else watts(plain, field=field)


def _number(value: float, what: str, field: str, *, hint: str, most: float = math.inf) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not (math.isfinite(number) and 0 <= number <= most):
        raise UserError(f"{number!r} is no {what}", field=field, hint=hint)
    return number


def plain(text: str) -> str | float:
    """What machines and columns with the unit in their name write: a number stands for itself."""
    return float(text) if re.fullmatch(_NUMBER, text.strip()) else text


def hertz(text: str, *, field: str = "") -> float:
    """`1410MHz`, `1.4GHz` in hertz.

    Raises:
        UserError: anything else; a bare number, too, as most people mean megahertz by it.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([kMG]?)Hz", text.strip())
    if match is None:
        raise UserError(f"{text!r} is no frequency", field=field, hint="write 1410MHz or 1.4GHz")
    return float(match[1]) * _SCALE[match[2]]


def operations_hz(text: str, *, field: str = "") -> float:
    """`16.3TFLOPS`, `1.1PFLOPS`, `16.3 TFLOP/s` in operations per second.

    Raises:
        UserError: anything else; a bare number, too, as most people mean 1e12 by it.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([MGTP])FLOP(?:S|/s)", text.strip())
    value = 0.0 if match is None else float(match[1]) * _RATE[match[2]]
    if not 0 < value < math.inf:
        raise UserError(f"{text!r} is no rate", field=field, hint="write 16.3TFLOPS")
    return value


def seconds(given: str | float, *, field: str = "") -> float:
    """`90s`, `15m`, `2h30m`, `1d` in seconds; numbers are seconds already.

    Raises:
        UserError: anything else; also a text without a unit, as some schedulers count minutes.
    """
    if isinstance(given, int | float):
        return _number(given, "time", field, hint="write 90s, 15m or 2h30m")
    if len(given) > MOST_TEXT:
        raise UserError(
            f"{given[:20]!r}... is no time", field=field, hint="write 90s, 15m or 2h30m"
        )
    text = given.strip()
    plain_number = re.fullmatch(_NUMBER, text)
    if plain_number and float(text):
        hint = f"write {text}s, {text}m or {text}h"
        raise UserError(f"{text} has no unit of time", field=field, hint=hint)
    if plain_number:
        return 0.0
    parts = re.findall(rf"{_NUMBER}(min|[smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UserError(f"{given!r} is no time", field=field, hint="write 90s, 15m or 2h30m")
    return sum(float(number) * _TIME[unit] for number, unit in parts)


def size_bytes(text: str, *, field: str = "") -> int:
    """`80GB`, `64GiB`, `512M` in bytes.

    Raises:
        UserError: anything else.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([kKMGT]i?)?B?", text.strip())
    value = math.inf if match is None else float(match[1]) * _BYTES[match[2] or ""]
    if not math.isfinite(value):
        raise UserError(f"{text!r} is no size", field=field, hint="write 80GB or 64GiB")
    return round(value)


_MANY = re.compile(r"\b(GPU|task)s\b")


def counted(count: float, thing: str) -> str:
    """`1 GPU`, `4 GPUs`, `1,200 jobs`: `thing` is one of them, and its plural ends in `s`."""
    text = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{text} {thing if count == 1 else thing + 's'}"


def singular(things: str) -> str:
    """Words such as `GPUs on n1` or `ps tasks`, of one: `GPU on n1`, `ps task`."""
    return _MANY.sub(r"\1", things, count=1)


def show_watts(value: float) -> str:
    """Watts for people."""
    return f"{value / 1e3:,.1f} kW" if abs(value) >= 10_000 else f"{value:,.0f} W"


def show_exact_watts(value: float) -> str:
    """Watts for people who compare them with others: all digits that matter."""
    if abs(value) >= 10_000:
        return f"{value / 1e3:,.6g} kW"
    return f"{value:,.0f} W" if abs(value) >= 1000 else f"{value:.5g} W"


def show_joules(value: float) -> str:
    """Joules for people."""
    for size, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if abs(value) >= size:
            return f"{value / size:,.4g} {unit}"
    return f"{value:,.4g} J"


def show_hertz(value: float) -> str:
    """A frequency for people."""
    return f"{value / 1e6:,.0f} MHz"


def show_bytes(value: float) -> str:
    """A size for people."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"


def show_ahead(value_s: float) -> str:
    """How far off something is, as people say it: `in about 12 s`, `in about 3 h`."""
    if value_s < 0.5:
        return "any moment now"
    for size_s, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if value_s >= 2 * size_s:
            count = value_s / size_s
            return f"in about {count:.0f} {unit}" if count >= 10 else f"in about {count:.2g} {unit}"
    return f"in about {value_s:.0f} s"


def show_seconds(value: float) -> str:
    """A duration for people."""
    if value < 120:
        return f"{value:,.1f} s"
    return f"{value / 60:,.1f} min" if value < 7200 else f"{value / 3600:,.2f} h"
