"""Power profiles of jobs from a CSV file: `profile, gpu_model, watts, rate`, a row per point.

`watts` is what one GPU draws on average under a cap, `rate` how fast the job is then, in any unit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from wattherd.catalog.power_profiles import MEASURED
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, concave_hull
from wattherd.spelling import hint_for
from wattherd.workload.cells import CellPlace
from wattherd.workload.table import Layout, finite, rows

Profiles = Mapping[str, Mapping[str, PowerCurve]]
"""Profile and GPU model to its curve."""
LAYOUT = Layout(kind="power profile list", required=("profile", "gpu_model", "watts", "rate"))


def built_in() -> Profiles:
    """The measured profiles of the catalogue."""
    return {
        name: {model: concave_hull(points) for model, points in models.items()}
        for name, models in MEASURED.items()
    }


def read_profiles(path: Path, *, known: Collection[str]) -> Profiles:
    """The profiles of a file; `known` are the GPU models there are.

    Raises:
        UserError: bad content, an unknown GPU, watts or rates that are not above zero, or watts
            that appear twice, with file, line and field.
    """
    points: dict[str, dict[str, dict[float, float]]] = {}
    for line, cells in rows(path, LAYOUT):
        place = CellPlace(f"{path}:{line}")
        profile, model, watts, rate = (cell.strip() for cell in cells)
        if not profile:
            raise place.error("profile", "is empty", "every profile has a name")
        if model not in known:
            raise place.error("gpu_model", f"unknown GPU {model!r}", hint_for(model, known))
        at = points.setdefault(profile, {}).setdefault(model, {})
        watts_w, relative = (
            finite(cell, path, line, name) for cell, name in ((watts, "watts"), (rate, "rate"))
        )
        for name, value in (("watts", watts_w), ("rate", relative)):
            if value <= 0:
                raise place.error(name, f"{value:g} is not above zero", "a measured number")
        if watts_w in at:
            raise place.error("watts", f"{watts} W appears twice", "one row per point")
        at[watts_w] = relative
    if not points:
        raise UserError("holds no profile", where=str(path), hint="is this the right file?")
    return {
        name: {model: concave_hull(sorted(at.items())) for model, at in models.items()}
        for name, models in points.items()
    }
