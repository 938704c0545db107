"""CPU packages: watts when idle and at most, and physical cores.

Units: watts per package (socket). One core is two vCPU in the traces; Grace has one thread per
core, so there one vCPU is a core. The first block is the PWR paper's table. Idle watts of few
newer packages are published: where none is, `note` says `estimated` and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wattherd.errors import UserError
from wattherd.spelling import hint_for

_PWR = "PWR, CCGrid'25, power table of the released code"
_AMD = "TDP and cores as published by AMD"
_INTEL = "TDP and cores as published by Intel"
# AnandTech measured 65 W of 225 W on Rome and 100 W of 280 W on Milan: 0.29 and 0.36.
_CHIPLETS = "idle estimated: 0.3 of TDP, between Rome (0.29) and Milan (0.36) as AnandTech measured"
_MONOLITH = "idle estimated: 0.15 of TDP, AnandTech's 30 to 50 W for monolithic server parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuModel:
    """One CPU package with `cores` physical cores."""

    name: str
    idle_w: float
    max_w: float
    cores: int
    source: str
    note: str = ""


_PAPER = (
    CpuModel(name="Xeon E5-2682 v4", idle_w=15, max_w=120, cores=16, source=_PWR),
    CpuModel(name="Xeon 8163", idle_w=20, max_w=165, cores=24, source=_PWR),
    CpuModel(name="Xeon 8369B", idle_w=20, max_w=270, cores=32, source=_PWR),
    CpuModel(name="Xeon 6326", idle_w=20, max_w=185, cores=16, source=_PWR),
    CpuModel(name="Xeon 8269CY", idle_w=20, max_w=205, cores=26, source=_PWR),
)

_CURRENT = (
    CpuModel(
        name="EPYC 7742",
        idle_w=65,
        max_w=225,
        cores=64,
        source=_AMD,
        note="idle measured: AnandTech, Milan review, 2021-03, Rome",
    ),
    CpuModel(
        name="EPYC 7763",
        idle_w=100,
        max_w=280,
        cores=64,
        source=_AMD,
        note="idle measured: AnandTech, Milan review, 2021-03, about 100 W",
    ),
    CpuModel(name="EPYC 9654", idle_w=108, max_w=360, cores=96, source=_AMD, note=_CHIPLETS),
    CpuModel(name="EPYC 9754", idle_w=108, max_w=360, cores=128, source=_AMD, note=_CHIPLETS),
    CpuModel(name="Xeon 8480+", idle_w=105, max_w=350, cores=56, source=_INTEL, note=_CHIPLETS),
    CpuModel(name="Xeon 8592+", idle_w=105, max_w=350, cores=64, source=_INTEL, note=_CHIPLETS),
    CpuModel(name="Xeon 6776P", idle_w=105, max_w=350, cores=64, source=_INTEL, note=_CHIPLETS),
    CpuModel(name="Xeon 6980P", idle_w=150, max_w=500, cores=128, source=_INTEL, note=_CHIPLETS),
    CpuModel(
        name="Grace",
        idle_w=38,
        max_w=250,
        cores=72,
        source="NVIDIA: 500 W for the superchip of two, memory included",
        note=_MONOLITH,
    ),
)

CPUS: Mapping[str, CpuModel] = MappingProxyType(
    {entry.name: entry for entry in (*_PAPER, *_CURRENT)}
)

# Published figures assume this package on every node: the released node list carries no labels.
REFERENCE_CPU = "Xeon E5-2682 v4"

# The paper's notebook maps GPU models to CPUs; its experiments do not use the map.
PAPER_CPU_BY_GPU: Mapping[str, str] = MappingProxyType(
    {
        "T4": "Xeon 8163",
        "A10": "Xeon 8369B",
        "G2": "Xeon 8369B",
        "A100": "Xeon 8369B",
        "G3": "Xeon 8369B",
        "V100M16": "Xeon 6326",
        "V100M32": "Xeon 6326",
        "P100": REFERENCE_CPU,
        "": REFERENCE_CPU,
    }
)


def cpu(name: str) -> CpuModel:
    """The CPU called `name`.

    Raises:
        UserError: the catalog has no such CPU.
    """
    if name not in CPUS:
        raise UserError(f"unknown CPU model {name!r}", hint=hint_for(name, CPUS))
    return CPUS[name]
