"""GPUs by the names that traces use: watts when idle and at most, memory, and the lowest cap.

Units: watts per device, memory in MiB. `max_w` is the TDP, which is the default power limit.
Names in the first block are those of the openb traces, with the figures of the PWR paper; the
paper's experiments reproduce only with exactly these. Below them come current parts. An idle
reading is one without any process on the device: a loaded model or an open CUDA context costs
26 to 66 W more (arXiv:2605.23918). A figure without a source is marked `estimated` in `note`.

Peak rates and kinds of memory are a table of their own, `RATES`, as measurements name more types
than clusters do. `rates` finds an entry by what traces, people and drivers call it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from wattherd.errors import UserError
from wattherd.spelling import hint_for, nearest

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


class Precision(StrEnum):
    """Of the numbers that a job multiplies."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"


class GpuMemory(StrEnum):
    """Memory in stacks beside the chip, or chips on the board, which draw more while they wait."""

    STACKED = "HBM"
    ON_BOARD = "GDDR"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRates:
    """Peak rates of dense work in operations per second, and the memory, of one GPU type.

    A multiply-add is two operations. `tf32` and `fp16` are those of the matrix units, None where
    there are none. `aliases` are further names, as `_spelled` writes them.
    """

    name: str
    fp32: float
    tf32: float | None = None
    fp16: float | None = None
    memory_b_s: float
    memory: GpuMemory
    source: str
    aliases: tuple[str, ...] = ()

    def peak(self, precision: Precision = Precision.FP32) -> float:
        """The rate at this precision, at FP32 where the part has no units for it."""
        found = {"fp32": self.fp32, "tf32": self.tf32, "fp16": self.fp16}[precision]
        return found or self.fp32


_HBM, _GDDR = GpuMemory.STACKED, GpuMemory.ON_BOARD
_CORES = "cores x 2 x boost clock, as the data sheet counts"


def _sheet(
    name: str,
    fp32: float,
    tf32: float | None,
    fp16: float | None,
    gigabytes_s: float,
    memory: GpuMemory,
    source: str,
    *aliases: str,
) -> PeakRates:
    """An entry in 1e12 operations and 1e9 bytes per second, as data sheets print them."""
    tf32, fp16 = (None if rate is None else 1e12 * rate for rate in (tf32, fp16))
    return PeakRates(
        name=name, fp32=1e12 * fp32, tf32=tf32, fp16=fp16, memory_b_s=1e9 * gigabytes_s,
        memory=memory, source=source, aliases=aliases,
    )  # fmt: skip


# Matrix rates are those without sparsity, half of what newer sheets print.
# fmt: off
_RATES = (
    _sheet("K80", 4.37, None, None, 240, _GDDR,
           "NVIDIA Tesla K80 data sheet: 8.74 for two devices"),
    _sheet("M40", 7.0, None, None, 288, _GDDR, "NVIDIA Tesla M40 data sheet"),
    _sheet("P4", 5.5, None, None, 192, _GDDR, "NVIDIA Tesla P4 data sheet"),
    _sheet("P100", 9.3, None, 18.7, 732, _HBM, "NVIDIA Tesla P100 data sheet, PCIe", "P100PCIE"),
    _sheet("P100-SXM2", 10.6, None, 21.2, 732, _HBM, "NVIDIA Tesla P100 data sheet, NVLink"),
    _sheet("V100", 14.0, None, 112, 900, _HBM, "NVIDIA V100 data sheet, PCIe", "V100PCIE"),
    _sheet("V100-SXM2", 15.7, None, 125, 900, _HBM, "NVIDIA V100 data sheet, SXM2",
           "V100M16", "V100M32"),
    _sheet("T4", 8.1, None, 65, 320, _GDDR, "NVIDIA T4 data sheet"),
    _sheet("A10", 31.2, 62.5, 125, 600, _GDDR, "NVIDIA A10 data sheet", "G2"),
    _sheet("A30", 10.3, 82, 165, 933, _HBM, "NVIDIA A30 data sheet"),
    _sheet("A40", 37.4, 74.8, 149.7, 696, _GDDR, "NVIDIA A40 data sheet"),
    _sheet("A100", 19.5, 156, 312, 1555, _HBM, "NVIDIA A100 data sheet; memory: the 40 GB form",
           "A100PCIE", "A100SXM4", "A100SXM", "G3"),
    _sheet("L4", 30.3, 60, 121, 300, _GDDR, "NVIDIA L4 data sheet"),
    _sheet("L40", 90.5, 90.5, 181, 864, _GDDR, "NVIDIA L40 data sheet"),
    _sheet("L40S", 91.6, 183, 362, 864, _GDDR, "NVIDIA L40S data sheet"),
    _sheet("H100-PCIe", 51, 378, 756, 2000, _HBM, "NVIDIA H100 data sheet, PCIe"),
    _sheet("H100-SXM", 67, 494.7, 989.4, 3350, _HBM, "NVIDIA H100 data sheet, SXM5", "H100HBM3"),
    _sheet("H200", 67, 494.7, 989.4, 4800, _HBM, "NVIDIA H200 data sheet, SXM"),
    _sheet("GH200", 67, 494.7, 989.4, 4000, _HBM, "NVIDIA GH200 data sheet"),
    _sheet("B200", 75, 1125, 2250, 8000, _HBM,
           "NVIDIA HGX B200 data sheet, an eighth of the board"),
    _sheet("MI210", 22.6, None, 181, 1600, _HBM, "AMD Instinct MI210 data sheet; FP32: vector"),
    _sheet("MI250X", 47.9, None, 383, 3200, _HBM, "AMD Instinct MI250X data sheet; FP32: vector"),
    _sheet("MI300X", 163.4, 653.7, 1307.4, 5300, _HBM,
           "AMD Instinct MI300X data sheet; FP32: vector"),
    _sheet("MI325X", 163.4, 653.7, 1307.4, 6000, _HBM,
           "AMD Instinct MI325X data sheet; FP32: vector"),
    _sheet("GTX980", 4.98, None, None, 224, _GDDR, f"GTX 980: 2048 {_CORES}, 1216 MHz"),
    _sheet("GTX1080Ti", 11.3, None, None, 484, _GDDR,
           f"GTX 1080 Ti: 3584 {_CORES}, 1582 MHz", "1080"),
    _sheet("TitanX", 11.0, None, None, 480, _GDDR, f"Titan X (Pascal): 3584 {_CORES}, 1531 MHz",
           "TITANXPASCAL"),
    _sheet("RTX2070Super", 9.06, None, 72.5, 448, _GDDR,
           f"RTX 2070 Super: 2560 {_CORES}, 1770 MHz", "GTX2070S", "RTX2070S"),
    _sheet("RTX2080Ti", 13.4, None, 107.6, 616, _GDDR,
           f"RTX 2080 Ti: 4352 {_CORES}, 1545 MHz", "2080"),
    _sheet("RTX3090", 35.6, 71, 142, 936, _GDDR,
           "NVIDIA GA102 whitepaper; matrix rates with 16-bit sums", "3090"),
    _sheet("RTX6000", 16.3, None, 130.5, 672, _GDDR, "NVIDIA Quadro RTX 6000 data sheet (Turing)"),
    _sheet("RTX8000", 16.3, None, 130.5, 672, _GDDR, "NVIDIA Quadro RTX 8000 data sheet (Turing)"),
    _sheet("RTX-A6000", 38.7, 77.4, 154.8, 768, _GDDR, "NVIDIA RTX A6000 data sheet", "A6000"),
    _sheet("RTX6000-Ada", 91.1, 182.1, 364.2, 960, _GDDR, "NVIDIA RTX 6000 Ada data sheet",
           "RTX6000ADAGENERATION"),
)
# fmt: on
RATES: Mapping[str, PeakRates] = MappingProxyType({entry.name: entry for entry in _RATES})
_BRANDS = frozenset({"NVIDIA", "AMD", "TESLA", "QUADRO", "GEFORCE", "INSTINCT"})


def _spelled(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB` as `A100SXM4`: without makers, memory sizes and punctuation."""
    words = re.findall(r"[A-Z0-9]+", name.upper())
    return "".join(w for w in words if w not in _BRANDS and not re.fullmatch(r"\d+GB", w))


_BY_SPELLING: Mapping[str, PeakRates] = {
    name: entry for entry in _RATES for name in (_spelled(entry.name), *entry.aliases)
}


def rates(name: str) -> PeakRates | None:
    """Peak rates and memory of the GPU that people, traces or its driver call `name`.

    None where nothing is known, or a name means several parts (`H100`).
    """
    return _BY_SPELLING.get(_spelled(name))


def near_rates(name: str) -> tuple[str, ...]:
    """Types with known rates that `name` may mean: those that it begins, else the nearest one."""
    said = _spelled(name)
    begun = tuple(entry.name for entry in _RATES if said and _spelled(entry.name).startswith(said))
    if begun:
        return begun
    near = nearest(said, _BY_SPELLING)
    return () if near is None else (_BY_SPELLING[near].name,)
