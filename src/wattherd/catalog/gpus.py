"""GPUs by the names that traces use: watts when idle and at most, memory, and the lowest cap.

Units: watts per device, memory in MiB. `max_w` is the TDP, which is the default power limit.
Names in the first block are those of the openb traces, with the figures of the PWR paper; the
paper's experiments reproduce only with exactly these. Below them come current parts. An idle
reading is one without any process on the device: a loaded model or an open CUDA context costs
26 to 66 W more (arXiv:2605.23918). A figure without a source is marked `estimated` in `note`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wattherd.errors import UserError
from wattherd.spelling import hint_for

_PWR = "watts: PWR, CCGrid'25, released code; memory: FGD simulator, ATC'23"
_FGD = "memory: FGD simulator, ATC'23; watts: power limit printed by nvidia-smi"
_NVIDIA = "power limit and memory printed by nvidia-smi in public logs (read 2026-11)"
_AMD = "power cap printed by rocm-smi in public logs (read 2026-11); memory: ROCm GPU table"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One GPU model; `min_cap_w` is the lowest cap its driver takes, None where unpublished."""

    name: str
    idle_w: float
    max_w: float
    memory_mib: int
    source: str
    note: str = ""
    min_cap_w: float | None = None


_TRACES = (
    GpuModel(
        name="T4",
        idle_w=10,
        max_w=70,
        memory_mib=15109,
        min_cap_w=60,
        source=_PWR,
        note="lowest cap: nvidia-smi -q of a T4, public log",
    ),
    GpuModel(name="A10", idle_w=30, max_w=150, memory_mib=22731, source=_PWR),
    GpuModel(
        name="G2",
        idle_w=30,
        max_w=150,
        memory_mib=20000,
        source=_PWR,
        note="disguised in the trace, taken for an A10",
    ),
    GpuModel(
        name="G3",
        idle_w=50,
        max_w=400,
        memory_mib=30000,
        source=_PWR,
        note="disguised in the trace, taken for an A100",
    ),
    GpuModel(
        name="P100",
        idle_w=25,
        max_w=250,
        memory_mib=16280,
        min_cap_w=125,
        source=_PWR,
        note="lowest cap: lowest of the Zeus sweep, NSDI'23",
    ),
    GpuModel(
        name="V100M16",
        idle_w=30,
        max_w=300,
        memory_mib=16160,
        source=_PWR,
        note="idle logs of the SXM2 part say 40 to 44 W",
    ),
    GpuModel(
        name="V100M32",
        idle_w=30,
        max_w=300,
        memory_mib=32510,
        source=_PWR,
        note="idle logs of the SXM2 part say 40 to 44 W",
    ),
    GpuModel(
        name="A100",
        idle_w=50,
        max_w=400,
        memory_mib=81251,
        min_cap_w=100,
        source=_PWR,
        note="the paper's A100; the two sizes are apart below",
    ),
    GpuModel(
        name="P4",
        idle_w=6,
        max_w=75,
        memory_mib=7611,
        source=_FGD,
        note="idle measured: median of 4 logs",
    ),
    GpuModel(
        name="M40",
        idle_w=15,
        max_w=250,
        memory_mib=11448,
        source=_FGD,
        note="idle measured: median of 5 logs",
    ),
    GpuModel(
        name="K80",
        idle_w=29,
        max_w=149,
        memory_mib=11441,
        source="one of the board's two devices; limit and memory by nvidia-smi, OpenMM 2386",
        note="idle measured in P8: median of 7 logs",
    ),
    GpuModel(
        name="1080",
        idle_w=12.5,
        max_w=250,
        memory_mib=11178,
        source=_FGD,
        note="by its memory a GTX 1080 Ti; idle measured: median of 4 logs",
    ),
    GpuModel(
        name="2080",
        idle_w=19,
        max_w=250,
        memory_mib=11019,
        source=_FGD,
        note="by its memory an RTX 2080 Ti; idle measured in P8: median of 3 logs",
    ),
    GpuModel(
        name="3090",
        idle_w=29,
        max_w=350,
        memory_mib=24268,
        source=_FGD,
        note="idle measured: median of 5 logs",
    ),
)

_NVIDIA_PARTS = (
    GpuModel(
        name="A30",
        idle_w=33,
        max_w=165,
        memory_mib=24576,
        source=_NVIDIA,
        note="idle measured: median of 4 logs",
    ),
    GpuModel(
        name="A40",
        idle_w=30,
        max_w=300,
        memory_mib=46068,
        min_cap_w=100,
        source=_NVIDIA,
        note="idle measured: median of 5 logs; lowest cap: Zeus sweep, NSDI'23",
    ),
    GpuModel(
        name="A100-40GB-PCIe",
        idle_w=35,
        max_w=250,
        memory_mib=40960,
        source=_NVIDIA,
        note="idle measured: median of 5 logs",
    ),
    GpuModel(
        name="A100-40GB",
        idle_w=50,
        max_w=400,
        memory_mib=40960,
        min_cap_w=100,
        source=_NVIDIA,
        note="SXM4; idle measured: median of 7 logs; cap: nvidia-docker issue 1648",
    ),
    GpuModel(
        name="A100-80GB-PCIe",
        idle_w=45,
        max_w=300,
        memory_mib=81920,
        min_cap_w=150,
        source=_NVIDIA,
        note="idle measured: median of 4 logs; lowest cap: nvidia-smi -q, public log",
    ),
    GpuModel(
        name="A100-80GB",
        idle_w=62,
        max_w=400,
        memory_mib=81920,
        min_cap_w=100,
        source=_NVIDIA,
        note="SXM4; idle measured: median of 5 logs; cap: DCGM issue 152",
    ),
    GpuModel(
        name="L4",
        idle_w=14,
        max_w=72,
        memory_mib=23034,
        source=_NVIDIA,
        note="idle measured: median of 4 logs",
    ),
    GpuModel(
        name="L40S",
        idle_w=22,
        max_w=350,
        memory_mib=46068,
        source=_NVIDIA,
        note="idle measured: median of 5 logs",
    ),
    GpuModel(
        name="H100-PCIe",
        idle_w=45.5,
        max_w=350,
        memory_mib=81559,
        source=_NVIDIA,
        note="idle measured: median of 4 logs",
    ),
    GpuModel(
        name="H100-SXM",
        idle_w=72,
        max_w=700,
        memory_mib=81559,
        min_cap_w=200,
        source=_NVIDIA,
        note="idle measured: 8 GPUs, 69 to 72 W, 2025-07; lowest cap: arXiv:2604.11391",
    ),
    GpuModel(
        name="H200",
        idle_w=78,
        max_w=700,
        memory_mib=143771,
        min_cap_w=200,
        source=_NVIDIA,
        note="SXM; idle measured: median of 7 logs; lowest cap: arXiv:2604.11391",
    ),
    GpuModel(
        name="GH200",
        idle_w=88.5,
        max_w=900,
        memory_mib=97871,
        source=_NVIDIA,
        note="GPU limit, 96 GB part, shares its module with Grace; idle measured: median of 4 logs",
    ),
    GpuModel(
        name="B200",
        idle_w=137,
        max_w=1000,
        memory_mib=183359,
        source=_NVIDIA,
        note="idle measured: median of 5 logs, air-cooled",
    ),
    GpuModel(
        name="B300",
        idle_w=182,
        max_w=1100,
        memory_mib=275040,
        source=_NVIDIA,
        note="SXM6, air-cooled; idle measured: median of 6 logs, 135 to 238 W",
    ),
    GpuModel(
        name="GB200",
        idle_w=163,
        max_w=1200,
        memory_mib=189471,
        source=_NVIDIA,
        note="one GPU of the superchip; idle measured: median of 5 logs",
    ),
    GpuModel(
        name="GB300",
        idle_w=234,
        max_w=1400,
        memory_mib=284208,
        source=_NVIDIA,
        note="one GPU of the superchip; idle measured: median of 3 logs, 172 to 237 W",
    ),
)

_OTHER_PARTS = (
    GpuModel(
        name="MI210",
        idle_w=42,
        max_w=300,
        memory_mib=65536,
        source=_AMD,
        note="idle measured: median of 10 devices in 5 logs",
    ),
    GpuModel(
        name="MI250X",
        idle_w=91,
        max_w=560,
        memory_mib=131072,
        source=_AMD,
        note="both dies together; idle measured: median of 13 devices in 5 logs",
    ),
    GpuModel(
        name="MI300X",
        idle_w=162.5,
        max_w=750,
        memory_mib=196608,
        source=_AMD,
        note="idle measured: median of 10 devices in 5 logs, 141 to 180 W",
    ),
    GpuModel(
        name="MI325X",
        idle_w=139.5,
        max_w=1000,
        memory_mib=262144,
        source=_AMD,
        note="idle measured: mean of 2 logs",
    ),
    GpuModel(
        name="MI350X",
        idle_w=257,
        max_w=1000,
        memory_mib=294912,
        source=_AMD,
        note="idle measured: mean of 2 devices in one log",
    ),
    GpuModel(
        name="MI355X",
        idle_w=238,
        max_w=1400,
        memory_mib=294912,
        source=_AMD,
        note="idle measured: ROCm issue 5219, 2025-08",
    ),
    GpuModel(
        name="Gaudi3",
        idle_w=227,
        max_w=900,
        memory_mib=131072,
        min_cap_w=450,
        source="hl-smi: limit and memory printed for an HL-325L; caps: Habana docs",
        note="idle measured: mean of 2 devices in one log; the settable cap ends at 850 W",
    ),
)

GPUS: Mapping[str, GpuModel] = MappingProxyType(
    {entry.name: entry for entry in (*_TRACES, *_NVIDIA_PARTS, *_OTHER_PARTS)}
)


def gpu(name: str) -> GpuModel:
    """The GPU called `name`.

    Raises:
        UserError: the catalog has no such GPU.
    """
    if name not in GPUS:
        raise UserError(f"unknown GPU model {name!r}", hint=hint_for(name, GPUS))
    return GPUS[name]
