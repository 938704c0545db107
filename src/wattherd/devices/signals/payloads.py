"""What a grid operator's numbers mean in watts, for the signals that a power limit can follow.

OpenADR 2.0b (profile specification, table of signal types): LOAD_CONTROL x-loadControlCapacity is
the share 0 to 1 of full consumption, x-loadControlPercentOffset a change of it in percent,
x-loadControlSetpoint and LOAD_DISPATCH setpoint an absolute power, LOAD_DISPATCH delta a change.
SIMPLE levels 0 to 3 mean what the site says. OpenADR 3.0 (definition, section on payload types):
DISPATCH_SETPOINT and IMPORT_CAPACITY_LIMIT are absolute, DISPATCH_SETPOINT_RELATIVE a change.
"""

from __future__ import annotations

from collections.abc import Sequence

SCALES = {"none": 1.0, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3, "c": 1e-2, "d": 1e-1}
"""SI prefixes of OpenADR 2.0b's `siScaleCode` that a power may carry."""
UNITS_3 = {"W": 1.0, "KW": 1e3, "kW": 1e3, "MW": 1e6}


def limit_w(
    name: str, kind: str, payload: float, *, scale: float, base_w: float, simple_w: Sequence[float]
) -> float | None:
    """The limit that an OpenADR 2.0b payload asks for; None for signals that limit no power.

    `scale` is watts per unit of an absolute payload; `simple_w` the limits of levels 0, 1, ...
    """
    match name, kind:
        case "LOAD_CONTROL", "x-loadControlCapacity":
            return payload * base_w if 0.0 <= payload <= 1.0 else None
        case "LOAD_CONTROL", "x-loadControlPercentOffset":
            return base_w * (1.0 + payload / 100.0)
        case ("LOAD_CONTROL", "x-loadControlSetpoint") | ("LOAD_DISPATCH", "setpoint"):
            return payload * scale
        case "LOAD_DISPATCH", "delta":
            return base_w + payload * scale
        case (("SIMPLE" | "simple"), "level"):
            level = int(payload)
            known = simple_w and level == payload and level >= 0
            return simple_w[min(level, len(simple_w) - 1)] if known else None
    return None


def limit_w_3(kind: str, payload: float, *, scale: float, base_w: float) -> float | None:
    """The limit that an OpenADR 3 payload asks for; None for types that limit no power."""
    match kind:
        case "DISPATCH_SETPOINT" | "IMPORT_CAPACITY_LIMIT":
            return payload * scale
        case "DISPATCH_SETPOINT_RELATIVE":
            return base_w + payload * scale
    return None
