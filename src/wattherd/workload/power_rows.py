"""Measurements of watts with features: our own CSV form, Zeus' summaries, HKBU's kernels, Caffe.

Ours has a row per measurement: `gpu, model, tdp_w, power_w` and any of `job, cap_w, batch_size,
learning_rate, params, flops, gpu_flops, gddr, utilisation, memory_activity, occupancy,
fp32_activity, core_hz, memory_hz, cpu_busy, cpu_instructions_hz, cpu_cache_hits,
cpu_memory_bytes_hz` (docs/concepts/power-prediction.md). Where no column says the peak rate of a
GPU type, it is what the user says, else what the catalogue knows; so is `gddr`, 1 for memory chips
on the board.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wattherd.catalog.gpus import Precision, rates
from wattherd.errors import UserError
from wattherd.estimate.power_model import PowerRow
from wattherd.estimate.saturation import derived
from wattherd.spelling import hint_for
from wattherd.workload.cells import CellPlace
from wattherd.workload.curves import EMERALD, ZEUS
from wattherd.workload.source import opened
from wattherd.workload.table import Layout, finite, rows

NUMBERS = (
    "cap_w", "batch_size", "learning_rate", "params", "flops", "gpu_flops", "gddr", "utilisation",
    "memory_activity", "occupancy", "fp32_activity", "core_hz", "memory_hz", "cpu_busy",
    "cpu_instructions_hz", "cpu_cache_hits", "cpu_memory_bytes_hz",
)  # fmt: skip
SIZES = ("cap_w", "batch_size", "learning_rate", "params", "flops", "gpu_flops")
"""Of these none can be zero: some are taken as logarithms."""
NATIVE = Layout(
    kind="list of power measurements",
    required=("gpu", "model", "tdp_w", "power_w"),
    optional=("job", *NUMBERS),
)
TRAIN = Layout(
    kind="Zeus training summary",
    required=("dataset", "network", "batch_size", "optimizer", "learning_rate"),
)
COUNTERS = Layout(
    kind="GPU counters",
    required=(
        "benchmark", "argNo", "core_frequency", "memory_frequency", "average_power", "DRAMA",
        "SMACT", "SMOCC", "FP32A",
    ),
)  # fmt: skip

DLBENCH = Layout(kind="Caffe at several clocks", required=("coreF", "memF", "arg", "power/W"))
KERNELS = Layout(
    kind="CUDA kernels at several clocks",
    required=("appName", "coreF", "memF", "argNo", "power/W"),
)
AUTO = "auto"
A100_W = 400.0
_MOST_HEADER = 1 << 16
_KERNEL_NAMES = {
    "matrixMulG": "matrixMulGlobal", "matrixMulShared": "matrixMul", "matrixMulS": "matrixMul",
    "nn": "nnForward",
}  # fmt: skip
_NETWORK = re.compile(
    r"(?P<name>googlenet|resnet|vgg|ffn\w*)\S*?(?:-b(?P<batch>\d+))?[-.]", re.IGNORECASE
)
# Trainable parameters and multiply-adds of one sample forward, to the leading digit: ShuffleNet v2
# and ResNet-50 by their papers (the former at 32 x 32), BERT base at 384 and 64 tokens, Deep Speech
# 2 for about ten seconds of speech, NeuMF with MovieLens-1M's users and items.
STRUCTURES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("cifar100", "shufflenetv2"): (1.3e6, 4.5e7),
    ("imagenet", "resnet50"): (2.6e7, 4.1e9),
    ("librispeech", "deepspeech2"): (8.7e7, 2e10),
    ("movielens-1m", "ncf"): (1.6e6, 1e5),
    ("sentiment140", "bert_base_uncased"): (1.1e8, 5.5e9),
    ("squad", "bert_base_uncased"): (1.1e8, 3.5e10),
}
# TDP printed on the data sheets; V100 in its PCIe form (1380 MHz, as measured).
TDP_W: Mapping[str, float] = {
    "V100": 250.0, "RTX8000": 260.0, "GTX980": 165.0, "GTX1080TI": 250.0, "TITANX": 250.0,
    "GTX2070S": 215.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownPeakRates:
    """Peak rates by GPU type in operations per second: `given` ones, else the catalogue's."""

    given: Mapping[str, float] = field(default_factory=dict)
    precision: Precision = Precision.FP32

    def of(self, gpu: str) -> float | None:
        """The rate of a GPU type; None where nobody has said."""
        if gpu in self.given:
            return self.given[gpu]
        entry = rates(gpu)
        return None if entry is None else entry.peak(self.precision)

    def known(self, row: PowerRow) -> PowerRow:
        """The row with a peak rate, its own if it has one, and with what follows from it."""
        peak = row.values.get("gpu_flops", self.of(row.gpu))
        values = dict(row.values) if peak is None else {**row.values, "gpu_flops": peak}
        return replace(row, values=derived(row.gpu, values))


def read_power_rows(
    sources: Sequence[str],
    kind: str = "native",
    train: Path | None = None,
    peaks: KnownPeakRates | None = None,
) -> tuple[PowerRow, ...]:
    """The measurements of files, each given as `FILE` or `GPU=FILE`.

    `train` is Zeus' training summary, which knows the learning rates. The format `auto` tells the
    format of each file by its columns.

    Raises:
        UserError: unknown format or bad content, with file, line and field.
    """
    if kind != AUTO and kind not in FORMATS:
        hint = hint_for(kind, (AUTO, *FORMATS))
        raise UserError(f"unknown format {kind!r}", field="--format", hint=hint)
    peaks = peaks or KnownPeakRates()
    found: list[PowerRow] = []
    for source in sources:
        gpu, equals, name = source.partition("=")
        path = Path(name if equals else source)
        read = FORMATS[_told(path) if kind == AUTO else kind]
        found.extend(map(peaks.known, read(path, gpu if equals else _gpu_of(path), train)))
    if not found:
        raise UserError("no measurement", field="FILE", hint="name at least one file")
    return tuple(found)


def _gpu_of(path: Path) -> str:
    """GPU type by the words of a file name: summary_power_v100.csv, rtx8000-dvfs-real.csv."""
    words = path.stem.upper().replace("-", "_").split("_")
    return next((word for word in words if word in TDP_W or rates(word)), words[-1])


def _told(path: Path) -> str:
    """The format whose columns the file has."""
    head = _columns(path)
    for kind, layouts in LAYOUTS.items():
        if any(head.issuperset(layout.required) for layout in layouts):
            return kind
    hint = "name the format, or see docs/concepts/power-prediction.md for the columns"
    raise UserError("the columns are of no known format", where=str(path), hint=hint)


def _columns(path: Path) -> frozenset[str]:
    """What the first line names; what is no table is refused by whoever reads on."""
    with opened(path) as stream:
        line = stream.readline(_MOST_HEADER).decode("utf-8-sig", errors="replace")
    return frozenset(name.strip() for name in line.split(","))


def _native(path: Path, _gpu: str, _train: Path | None) -> Iterator[PowerRow]:
    for line, cells in rows(path, NATIVE):
        gpu, model, tdp, power, job, *numbers = (cell.strip() for cell in cells)
        place = CellPlace(f"{path}:{line}")
        known = {
            name: _known(path, line, name, text)
            for name, text in zip(NUMBERS, numbers, strict=True)
            if text
        }
        tdp_w = _positive(path, line, "tdp_w", tdp)
        cap_w = known.pop("cap_w", tdp_w)
        yield PowerRow(
            gpu=place.name("gpu", gpu),
            model=place.name("model", model),
            job=job or model,
            tdp_w=tdp_w,
            power_w=_positive(path, line, "power_w", power),
            values={"cap_share": cap_w / tdp_w, **known},
            utilisation=known.get("utilisation"),
        )


def _known(path: Path, line: int, name: str, text: str) -> float:
    """A feature; sizes are above zero, rates and shares may be zero."""
    if name in SIZES:
        return _positive(path, line, name, text)
    value = finite(text, path, line, name)
    if value < 0:
        problem = f"{text!r} is negative"
        raise UserError(problem, where=f"{path}:{line}", field=name, hint="a measured number")
    return value


def _zeus(path: Path, gpu: str, train: Path | None) -> Iterator[PowerRow]:
    """A job is dataset/network/batch size/optimizer; TDP is the highest limit of the file."""
    rates = _learning_rates(train) if train else {}
    table = list(rows(path, ZEUS))
    tdp_w = max(_positive(path, line, "power_limit", cells[4]) for line, cells in table)
    for line, cells in table:
        dataset, network, batch, optimizer, cap, _seconds, power = (cell.strip() for cell in cells)
        key = (dataset, network, batch, optimizer)
        values = {
            "cap_share": _positive(path, line, "power_limit", cap) / tdp_w,
            "batch_size": _positive(path, line, "batch_size", batch),
        }
        if (dataset, network) in STRUCTURES:
            values["params"], values["flops"] = STRUCTURES[dataset, network]
        if key in rates:
            values["learning_rate"] = rates[key]
        yield PowerRow(
            gpu=gpu, model=network, job="/".join(key), tdp_w=tdp_w,
            power_w=_positive(path, line, "average_power", power), values=values,
        )  # fmt: skip


def _learning_rates(path: Path) -> dict[tuple[str, ...], float]:
    """Geometric mean of the learning rates with which each job was trained."""
    logs: dict[tuple[str, ...], list[float]] = {}
    for line, cells in rows(path, TRAIN):
        *key, rate = (cell.strip() for cell in cells)
        logs.setdefault(tuple(key), []).append(
            math.log(_positive(path, line, "learning_rate", rate))
        )
    return {key: math.exp(math.fsum(found) / len(found)) for key, found in logs.items()}


def _counters(path: Path, gpu: str, _train: Path | None) -> Iterator[PowerRow]:
    """CUDA kernels at several clocks, in two of three files without what the GPU counted."""
    tdp_w = _tdp_w(path, gpu)
    if _columns(path).issuperset(KERNELS.required):
        yield from _kernels(path, gpu, tdp_w)
        return
    for line, cells in rows(path, COUNTERS):
        benchmark, argument, *texts = (cell.strip() for cell in cells)
        core, memory, power, dram, active, occupied, fp32 = (
            finite(text, path, line, name)
            for text, name in zip(texts, COUNTERS.required[2:], strict=True)
        )
        values = {
            "core_hz": core * 1e6, "memory_hz": memory * 1e6, "memory_activity": dram,
            "utilisation": active, "occupancy": occupied, "fp32_activity": fp32,
        }  # fmt: skip
        yield PowerRow(
            gpu=gpu, model=benchmark, job=f"{benchmark}/{argument}", tdp_w=tdp_w,
            power_w=power, values=values, utilisation=active,
        )  # fmt: skip


def _kernels(path: Path, gpu: str, tdp_w: float) -> Iterator[PowerRow]:
    """The same kernels with clocks and watts only; two of them have other names there."""
    for line, cells in rows(path, KERNELS):
        name, core, memory, argument, power = (cell.strip() for cell in cells)
        name = _KERNEL_NAMES.get(name, name)
        values = {
            "core_hz": _positive(path, line, "coreF", core) * 1e6,
            "memory_hz": _positive(path, line, "memF", memory) * 1e6,
        }
        yield PowerRow(
            gpu=gpu, model=name, job=f"{name}/{argument}", tdp_w=tdp_w,
            power_w=_positive(path, line, "power/W", power), values=values,
        )  # fmt: skip


def _emerald(path: Path, _gpu: str, _train: Path | None) -> Iterator[PowerRow]:
    """LLM jobs of Emerald's demonstration on A100 (400 W) under caps; nothing says their work."""
    for line, cells in rows(path, EMERALD):
        job, cap, _rate, _total, power = (cell.strip() for cell in cells)
        yield PowerRow(
            gpu="A100", model="_".join(job.split("_")[:3]), job=job, tdp_w=A100_W,
            power_w=_positive(path, line, "power per GPU", power),
            values={"cap_share": _positive(path, line, "GPU power cap", cap) / A100_W},
        )  # fmt: skip


def _tdp_w(path: Path, gpu: str) -> float:
    if gpu not in TDP_W:
        hint = hint_for(gpu, TDP_W) or "write GPU=FILE"
        raise UserError(f"TDP of {gpu!r} is not known", where=str(path), field="FILE", hint=hint)
    return TDP_W[gpu]


def _dlbench(path: Path, gpu: str, _train: Path | None) -> Iterator[PowerRow]:
    """Caffe networks at core x memory clocks; clocks told as offsets only are left out."""
    tdp_w = _tdp_w(path, gpu)
    for line, cells in rows(path, DLBENCH):
        core, memory, command, power = (cell.strip() for cell in cells)
        core_mhz, memory_mhz = (
            finite(core, path, line, "coreF"), finite(memory, path, line, "memF")
        )  # fmt: skip
        if core_mhz <= 0 or memory_mhz <= 0:
            continue
        found = _NETWORK.search(command)
        name = (found["name"] if found else command).lower()
        values = {"core_hz": core_mhz * 1e6, "memory_hz": memory_mhz * 1e6}
        if found and found["batch"]:
            values["batch_size"] = float(found["batch"])
        yield PowerRow(
            gpu=gpu, model=name, job=f"{name}/{values.get('batch_size', 0):g}",
            tdp_w=tdp_w, power_w=_positive(path, line, "power/W", power), values=values,
        )  # fmt: skip


FORMATS: Mapping[str, Callable[[Path, str, Path | None], Iterator[PowerRow]]] = {
    "native": _native,
    "zeus": _zeus,
    "hkbu": _counters,
    "dlbench": _dlbench,
    "emerald": _emerald,
}
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "native": (NATIVE,),
    "zeus": (ZEUS,),
    "hkbu": (COUNTERS, KERNELS),
    "dlbench": (DLBENCH,),
    "emerald": (EMERALD,),
}


def _positive(path: Path, line: int, column: str, text: str) -> float:
    value = finite(text, path, line, column)
    if value <= 0:
        problem = f"{text!r} is not above zero"
        raise UserError(problem, where=f"{path}:{line}", field=column, hint="a measured number")
    return value
