"""Measurements of watts with features: our own CSV form, Zeus' summaries, GPU counters of HKBU.

Ours has a row per measurement: `gpu, model, tdp_w, power_w` and any of `job, cap_w, batch_size,
learning_rate, params, flops, gpu_flops, utilisation, memory_activity, occupancy, fp32_activity,
core_hz, memory_hz, cpu_busy, cpu_instructions_hz, cpu_cache_hits, cpu_memory_bytes_hz`
(docs/concepts/power-prediction.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.power_model import PowerRow
from wattherd.estimate.saturation import derived
from wattherd.spelling import hint_for
from wattherd.workload.cells import Place
from wattherd.workload.curves import ZEUS
from wattherd.workload.numbers import finite
from wattherd.workload.table import Layout, rows

NUMBERS = (
    "cap_w", "batch_size", "learning_rate", "params", "flops", "gpu_flops", "utilisation",
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
# Peak FP32 rates and TDP printed on the data sheets; V100 in its PCIe form (1380 MHz, as measured).
GPU_FLOPS: Mapping[str, float] = {"P100": 9.3e12, "V100": 14e12, "A40": 37.4e12, "RTX8000": 16.3e12}
TDP_W: Mapping[str, float] = {
    "V100": 250.0, "RTX8000": 260.0, "GTX980": 165.0, "GTX1080TI": 250.0, "TITANX": 250.0,
}  # fmt: skip


def read_power_rows(
    sources: Sequence[str], kind: str = "native", train: Path | None = None
) -> tuple[PowerRow, ...]:
    """The measurements of files, each given as `FILE` or `GPU=FILE`.

    `train` is Zeus' training summary, which knows the learning rates.

    Raises:
        UserError: unknown format or bad content, with file, line and field.
    """
    if kind not in FORMATS:
        raise UserError(f"unknown format {kind!r}", field="--format", hint=hint_for(kind, FORMATS))
    found: list[PowerRow] = []
    for source in sources:
        gpu, equals, name = source.partition("=")
        path = Path(name if equals else source)
        read = FORMATS[kind](path, gpu if equals else _gpu_of(path), train)
        found.extend(replace(row, values=derived(row.gpu, row.values)) for row in read)
    if not found:
        raise UserError("no measurement", field="FILE", hint="name at least one file")
    return tuple(found)


def _gpu_of(path: Path) -> str:
    """GPU type by the words of a file name: summary_power_v100.csv, rtx8000-dvfs-real.csv."""
    words = path.stem.upper().replace("-", "_").split("_")
    return next((word for word in words if word in GPU_FLOPS or word in TDP_W), words[-1])


def _native(path: Path, _gpu: str, _train: Path | None) -> Iterator[PowerRow]:
    for line, cells in rows(path, NATIVE):
        gpu, model, tdp, power, job, *numbers = (cell.strip() for cell in cells)
        place = Place(f"{path}:{line}")
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
        if gpu in GPU_FLOPS:
            values["gpu_flops"] = GPU_FLOPS[gpu]
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
    """CUDA kernels at several clocks with what the GPU counted meanwhile."""
    if gpu not in TDP_W:
        hint = hint_for(gpu, TDP_W) or "write GPU=FILE"
        raise UserError(f"TDP of {gpu!r} is not known", where=str(path), field="FILE", hint=hint)
    for line, cells in rows(path, COUNTERS):
        benchmark, argument, *texts = (cell.strip() for cell in cells)
        core, memory, power, dram, active, occupied, fp32 = (
            finite(text, path, line, name)
            for text, name in zip(texts, COUNTERS.required[2:], strict=True)
        )
        values = {
            "core_hz": core * 1e6, "memory_hz": memory * 1e6, "memory_activity": dram,
            "utilisation": active, "occupancy": occupied, "fp32_activity": fp32,
            "gpu_flops": GPU_FLOPS[gpu],
        }  # fmt: skip
        yield PowerRow(
            gpu=gpu, model=benchmark, job=f"{benchmark}/{argument}", tdp_w=TDP_W[gpu],
            power_w=power, values=values, utilisation=active,
        )  # fmt: skip


def _dlbench(path: Path, gpu: str, _train: Path | None) -> Iterator[PowerRow]:
    """Caffe networks at core x memory clocks; clocks told as offsets only are left out."""
    if gpu not in TDP_W:
        hint = hint_for(gpu, TDP_W) or "write GPU=FILE"
        raise UserError(f"TDP of {gpu!r} is not known", where=str(path), field="FILE", hint=hint)
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
            tdp_w=TDP_W[gpu], power_w=_positive(path, line, "power/W", power), values=values,
        )  # fmt: skip


FORMATS: Mapping[str, Callable[[Path, str, Path | None], Iterator[PowerRow]]] = {
    "native": _native,
    "zeus": _zeus,
    "hkbu": _counters,
    "dlbench": _dlbench,
}


def _positive(path: Path, line: int, column: str, text: str) -> float:
    value = finite(text, path, line, column)
    if value <= 0:
        problem = f"{text!r} is not above zero"
        raise UserError(problem, where=f"{path}:{line}", field=column, hint="a measured number")
    return value
