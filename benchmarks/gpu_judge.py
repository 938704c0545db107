"""Tables of what `gpu_power.py` measured; and small files of it, for keeping.

    python benchmarks/gpu_judge.py keep measured benchmarks/measured/MY-GPU/run-1
    python benchmarks/gpu_judge.py tables benchmarks/measured/MY-GPU
    python benchmarks/gpu_judge.py rows benchmarks/measured/MY-GPU       # for `power fit`
    python benchmarks/gpu_judge.py predict benchmarks/measured/MY-GPU FOLDER-OF-ZEUS

Watts are the slope of NVML's energy counter between its first and last change within a span.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MULTIPLY_ADDS = {"gpt2-small": 68.1e9, "resnet18": 1.82e9}
"""Of one sample forward: 512 tokens by 123.6 M weights and attention; an image of 224 x 224."""
RATES = {"H100-SXM": {"fp32": 67e12, "bf16": 989.4e12}}
"""Peak rates by the data sheet (`catalog/gpus.py`)."""


class Run:
    """One run that was kept; all times are seconds from its beginning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, Any] = json.loads((folder / "found.json").read_text())

    @cached_property
    def counters(self) -> Floats:
        """(N, 4): time, power now, mean power, joules; a row for every change."""
        return _rows(self.folder / "counters.csv.gz")

    @cached_property
    def samples(self) -> Floats:
        """(N, 2): time and watts, of the parts `steps` and `checkpoints`."""
        return _rows(self.folder / "samples.csv.gz")

    @cached_property
    def state(self) -> Floats:
        """(N, 4): time, use of the GPU in percent, MHz, degrees Celsius."""
        return _rows(self.folder / "state.csv.gz")

    def joules(self, from_s: float, until_s: float) -> float:
        """Of a span, between changes of the counter by their slope."""
        table = self.counters[np.append(True, np.diff(self.counters[:, 3]) > 0)]
        return float(np.interp(until_s, table[:, 0], table[:, 3])
                     - np.interp(from_s, table[:, 0], table[:, 3]))  # fmt: skip

    def watts(self, from_s: float, until_s: float) -> float:
        return self.joules(from_s, until_s) / (until_s - from_s)

    # What is told ------------------------------------------------------------------------------

    def renewed_s(self) -> dict[str, float]:
        """Median time between two values of each counter, under a steady load."""
        found = {}
        for name, column in (("instant", 1), ("average", 2), ("energy", 3)):
            changed = np.flatnonzero(np.diff(self.counters[:, column]) != 0) + 1
            found[name] = float(np.median(np.diff(self.counters[changed, 0])))
        found["samples"] = float(np.median(np.diff(self.samples[:, 0])))
        return found

    def delays_s(self) -> dict[str, dict[str, float]]:
        """Medians over steps of load: until half and nine tenths of the rise show."""
        waves = [one for one in self.found["steps"] if one["kind"] == "step"][1:]
        found: dict[str, dict[str, float]] = {}
        for name, table in self._series().items():
            late = [_late(table, one["on_s"], one["off_s"]) for one in waves]
            half, most = np.median(np.array(late), axis=0)
            found[name] = {"half_s": float(half), "nine_tenths_s": float(most)}
        return found

    def squares(self) -> dict[str, dict[str, float]]:
        """Root mean square (W) about the mean of load that comes and goes, by frequency."""
        kinds: dict[str, list[Any]] = defaultdict(list)
        for one in self.found["steps"]:
            kinds[one["kind"]].append(one)
        del kinds["step"]
        found: dict[str, dict[str, float]] = {}
        for kind, waves in kinds.items():
            from_s, until_s = waves[0]["on_s"] + 1.0, waves[-1]["off_s"]
            found[kind] = {}
            for name, table in self._series().items():
                inside = (table[:, 0] >= from_s) & (table[:, 0] <= until_s)
                found[kind][name] = float(table[inside, 1].std())
        return found

    def _series(self) -> dict[str, Floats]:
        now, mean = self.counters[:, [0, 1]], self.counters[:, [0, 2]]
        return {"samples": self.samples, "instant": now, "average": mean}

    def points(self) -> list[dict[str, Any]]:
        """Of the spectrum, all turns together: samples/s, W, J each, use of the GPU, MiB."""
        turns: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for one in self.found["spectrum"]["points"]:
            turns[tuple(one[key] for key in ("model", "micro", "accumulation", "duty"))].append(one)
        found = []
        for (model, micro, accumulation, duty), points in sorted(turns.items()):
            lasted_s = sum(one["until_s"] - one["from_s"] for one in points)
            joules = sum(self.joules(one["from_s"], one["until_s"]) for one in points)
            count = sum(one["steps"] for one in points) * micro * accumulation
            use = [self._use(one["from_s"] + 0.5, one["until_s"]) for one in points]
            found.append({
                "model": model, "micro": micro, "accumulation": accumulation, "duty": duty,
                "per_s": count / lasted_s, "watts": joules / lasted_s, "joules": joules / count,
                "use_pct": float(np.mean(use)), "memory_mib": points[-1]["memory_mib"],
                "watts_by_turn": [self.watts(one["from_s"], one["until_s"]) for one in points],
            })  # fmt: skip
        return found

    def _use(self, from_s: float, until_s: float) -> float:
        inside = (self.state[:, 0] >= from_s) & (self.state[:, 0] <= until_s)
        return float(self.state[inside, 1].mean())

    def service(self) -> dict[str, Any]:
        """The service's word beside the job's own, and beside the energy counter."""
        told = self.found["service"]
        speeds = []
        for one in told["own"]:
            if one["kind"] != "phase":
                continue
            learned = next(row for row in told["learned"]
                           if row["accumulation"] == -(-64 // one["most"]))  # fmt: skip
            speeds.append({
                "micro": one["most"], "learned_s": learned["step_s"], "windows": learned["count"],
                "own_s": one["gpu_s"] / one["steps"],
            })  # fmt: skip
        began_s, ended_s = told["started_s"], told["finished_s"]
        draw = np.array(told["samples"])
        spans = []
        for one in told["own"]:
            if one["kind"] == "phase":
                from_s, until_s = one["from_s"] + 3.0, one["until_s"]
                spans.append({"micro": one["most"], "service_w": _mean(draw, from_s + 1, until_s),
                              "counter_w": self.watts(from_s, until_s)})  # fmt: skip
        return {
            "speeds": speeds, "watts": spans, "energy_j": told["energy_j"],
            "counter_j": self.joules(began_s, ended_s),
            "budgets": [self._budget(told, row) for row in told["budgets"]],
        }  # fmt: skip

    def plain(self) -> list[dict[str, Any]]:
        """The same of a training that lets nothing be chosen."""
        told = self.found["plain"]
        return [self._budget(told, row) for row in told["budgets"]]

    def _budget(self, told: Any, row: Any) -> dict[str, Any]:
        """Watts under a budget from 4 s after it was given; steps a second then."""
        from_s, until_s = row["at_s"] + 4.0, row["at_s"] + 18.0
        inside = [one for one in told["own"]
                  if one["from_s"] >= from_s and one["until_s"] <= until_s]  # fmt: skip
        lasted_s = sum(one["until_s"] - one["from_s"] for one in inside)
        each = [self.watts(at, at + 1.0) for at in np.arange(from_s, until_s - 1.0, 1.0)]
        return {
            "budget_w": float(row["budget"].removesuffix("W")),
            "watts": self.watts(from_s, until_s), "most_w_of_1s": max(each),
            "per_s": sum(one["steps"] for one in inside) / lasted_s,
            "at_first_w": self.watts(row["at_s"] + 2.0, row["at_s"] + 8.0),
            "at_last_w": self.watts(row["at_s"] + 10.0, row["at_s"] + 18.0),
        }  # fmt: skip


def _mean(table: Floats, from_s: float, until_s: float) -> float:
    return float(table[(table[:, 0] >= from_s) & (table[:, 0] <= until_s), 1].mean())


def _late(table: Floats, on_s: float, off_s: float) -> tuple[float, float]:
    """Seconds from the beginning of load until half, and nine tenths, of the rise shows."""
    at_s, watts = table[:, 0], table[:, 1]
    low_w = watts[np.searchsorted(at_s, on_s) - 1]
    inside = (at_s >= on_s) & (at_s <= off_s)
    high_w = float(np.percentile(watts[inside], 90))
    found = [
        float(at_s[inside][np.argmax(watts[inside] >= low_w + part * (high_w - low_w))] - on_s)
        for part in (0.5, 0.9)
    ]
    return found[0], found[1]


def _rows(path: Path) -> Floats:
    with gzip.open(path, "rt") as file:
        return np.array(
            [[float(cell or "nan") for cell in row] for row in list(csv.reader(file))[1:]]
        )


# Keeping ---------------------------------------------------------------------------------------


def keep(out: Path, folder: Path) -> None:
    """Small files of a run: times from its beginning, and no name or path of the machine."""
    found = json.loads((out / "found.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    zero_s = float(np.floor(_rows(out / "counters.csv.gz")[0, 0]))
    kept: dict[str, Any] = {"idle": found.get("idle", {})}
    kept |= {part: found[part] for part in ("card", "steps", "spectrum") if part in found}
    if "checkpoints" in found:
        kept["checkpoints"] = {**found["checkpoints"], "capture": _capture(found["checkpoints"])}
    if "meters" in found:
        kept["call_s"] = {name: one["call_s"] for name, one in found["meters"].items()}
    if "service" in found:
        kept["service"] = _service(found["service"])
    if "plain" in found:
        kept["plain"] = _budgets(found["plain"])
    kept = _shifted(kept, zero_s)
    (folder / "found.json").write_text(json.dumps(kept, indent=1) + "\n")
    spans = [(one["on_s"] - 1.0, one["off_s"] + 2.0) for one in kept.get("steps", ())]
    if "checkpoints" in kept:
        spans.append((kept["checkpoints"]["from_s"], kept["checkpoints"]["until_s"]))
    for name, columns, rounded in (
        ("counters", (0, 1, 2, 3), (3, 1, 1, 1)),
        ("state", (0, 1, 4, 5), (1, 0, 0, 0)),
        ("samples", (0, 1), (3, 1)),
    ):
        table = _rows(out / f"{name}.csv.gz")[:, columns]
        table[:, 0] -= zero_s
        if name == "samples":
            inside = [any(low <= at <= high for low, high in spans) for at in table[:, 0]]
            table = table[inside]
            if not len(table):
                continue
        if name == "counters":
            table[:, 3] -= table[0, 3]
        heads = {"counters": "time_s,instant_w,average_w,energy_j", "samples": "time_s,watts",
                 "state": "time_s,gpu_pct,sm_mhz,celsius"}  # fmt: skip
        lines = [",".join(f"{cell:.{digits}f}" for cell, digits in zip(row, rounded, strict=True))
                 for row in table]  # fmt: skip
        text = "\n".join([heads[name], *lines]) + "\n"
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _capture(found: Any) -> Any:
    return found["capture"]["recordings"][0] if "recordings" in found["capture"] else None


def _service(told: Any) -> dict[str, Any]:
    keys = ("gpu_model", "batch", "accumulation", "cap_w", "step_s", "count", "of")
    measured = told["show_after_phases"]["speed"]["measured"]
    return {
        **_budgets(told),
        "learned": [{key: row[key] for key in keys} for row in measured if row["of"] == "this job"],
        "started_s": _unix_s(told["show"]["started"]),
        "finished_s": _unix_s(told["show"]["finished"]),
        "energy_j": told["show"]["energy_j"],
        "lifted_s": told.get("lifted", {}).get("at_s"),
        "swings_of_job": _capture({"capture": told["swings_of_job"]}),
    }  # fmt: skip


def _budgets(told: Any) -> dict[str, Any]:
    shown = ("cap_w", "micro_batch", "watts")
    return {
        "own": told["own"],
        "budgets": [
            {"at_s": one["at_s"], "budget": one["budget"],
             "shown": {key: one["show"][key] for key in shown}}
            for one in told["budgets"]
        ],
        "samples": [(_unix_s(one["at"]), one["draw_w"]) for one in told["power"]["samples"]],
    }  # fmt: skip


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _shifted(value: Any, zero_s: float) -> Any:
    """The same with Unix times as seconds from the beginning; floats are cut to six digits."""
    if isinstance(value, dict):
        return {key: _shifted(one, zero_s) for key, one in value.items() if key != "timestamp"}
    if isinstance(value, (list, tuple)):
        return [_shifted(one, zero_s) for one in value]
    if isinstance(value, float):
        return round(value - zero_s, 4) if value > 1e9 else float(f"{value:.6g}")
    return value


# Tables ----------------------------------------------------------------------------------------


def tables(folder: Path) -> Iterable[str]:
    """All numbers of the documents, as Markdown."""
    runs = [Run(one.parent) for one in sorted(folder.glob("**/found.json"))]
    for run in runs:
        found = run.found
        yield f"\n## {run.folder.name}: {found['card']['name']}, driver {found['card']['driver']}\n"
        yield f"idle {run.watts(found['idle']['from_s'], found['idle']['until_s']):.1f} W\n"
        if "steps" in found:
            yield from _of_meters(run)
        if "service" in found:
            yield from _of_service(run)
        if "plain" in found:
            yield from map(_of_budget, run.plain())
        if "spectrum" in found:
            yield from _of_spectrum(run)
        if "checkpoints" in found:
            yield from _of_checkpoints(run)


def _of_meters(run: Run) -> Iterable[str]:
    renewed, delays, squares = run.renewed_s(), run.delays_s(), run.squares()
    often = " | ".join(squares)
    yield f"| NVML | renewed every | half of a step shows after | nine tenths | {often} |"
    yield f"|{'---|' * (4 + len(squares))}"
    for name in ("samples", "instant", "average"):
        rms = " | ".join(f"{one[name]:.0f} W" for one in squares.values())
        yield (f"| {name} | {1e3 * renewed[name]:.0f} ms | {delays[name]['half_s']:.2f} s "
               f"| {delays[name]['nine_tenths_s']:.2f} s | {rms} |")  # fmt: skip
    calls = run.found["call_s"]
    yield f"\na question of energy takes {1e3 * calls['energy']:.1f} ms, "
    yield f"of power {1e6 * calls['instant']:.0f} us"


def _of_service(run: Run) -> Iterable[str]:
    found = run.service()
    yield "\n| micro-batch | s a step, learned | windows | own mean | W, service | W, counter |"
    yield "|---|---|---|---|---|---|"
    for speed, draw in zip(found["speeds"], found["watts"], strict=True):
        yield (f"| {speed['micro']} | {speed['learned_s']:.3f} | {speed['windows']} "
               f"| {speed['own_s']:.3f} | {draw['service_w']:.0f} "
               f"| {draw['counter_w']:.0f} |")  # fmt: skip
    told_j, true_j = found["energy_j"], found["counter_j"]
    yield f"\nenergy {told_j:.0f} J, by the counter {true_j:.0f} J: {told_j / true_j - 1:+.1%}"
    yield from map(_of_budget, found["budgets"])


def _of_budget(one: dict[str, Any]) -> str:
    names = ("budget_w", "watts", "most_w_of_1s", "at_first_w", "at_last_w")
    cells = [f"{one[name]:.0f} W" for name in names]
    return f"| {' | '.join(cells)} | {one['per_s']:.2f} |"


def _of_spectrum(run: Run) -> Iterable[str]:
    yield "\n| model | micro-batch | accumulated | duty | samples/s | W | J each | use | MiB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in run.points():
        yield (f"| {one['model']} | {one['micro']} | {one['accumulation']} | {one['duty']:.0%} "
               f"| {one['per_s']:,.0f} | {one['watts']:.0f} | {one['joules']:.3g} "
               f"| {one['use_pct']:.0f} % | {one['memory_mib']:,} |")  # fmt: skip


def _of_checkpoints(run: Run) -> Iterable[str]:
    found = run.found["checkpoints"]
    lasted = [one["until_s"] - one["from_s"] for one in found["written"]]
    seen = found["capture"]
    strongest = seen["strongest"]
    yield f"\n{len(lasted)} checkpoints of {np.mean(lasted):.1f} s on average; "
    yield (f"a capture at {seen['rate_hz']:.0f} Hz: worst swing {seen['worst_swing_w']:.0f} W, "
           f"rise {seen['ramp_up_w_s']:.0f} W/s, strongest {strongest['frequency_hz']:.2f} Hz "
           f"of {strongest['swing_w']:.0f} W")  # fmt: skip


# Models of watts --------------------------------------------------------------------------------


def rows(folder: Path, gpu: str = "H100-SXM", rate: str = "") -> Iterable[str]:
    """The spectrum without accumulation and pauses, in the native format of `power fit`."""
    yield "gpu,model,job,tdp_w,power_w,batch_size,flops" + (",gpu_flops" if rate else "")
    for run in (Run(one.parent) for one in sorted(folder.glob("**/found.json"))):
        if "spectrum" not in run.found:
            continue
        tdp_w = run.found["card"]["default_limit_mw"] * 1e-3
        for one in run.points():
            if one["accumulation"] == 1 and one["duty"] == 1.0:
                model, micro = one["model"], one["micro"]
                peak = f",{RATES[gpu][rate]:.6g}" if rate else ""
                yield (f"{gpu},{model},{model}-{micro},{tdp_w:g},{one['watts']:.1f},{micro},"
                       f"{MULTIPLY_ADDS[model]:.6g}{peak}")  # fmt: skip


def predict(folder: Path, zeus: Path) -> Iterable[str]:
    """`saturation`, learned from Zeus' V100, A40 and P100 alone, held against the spectrum."""
    import tempfile

    from wattherd.experiments.power_models.learners import target
    from wattherd.experiments.power_models.saturation import SATURATION, able, fit_saturation
    from wattherd.workload.power_rows import read_power_rows

    files = [str(zeus / f"summary_power_{gpu}.csv") for gpu in ("v100", "a40", "p100")]
    known = read_power_rows(files, "zeus", zeus / "summary_train.csv")
    known = [row for row in known if able(SATURATION, row)]
    scaling, model = fit_saturation(known, target(known))
    watts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for rate in ("fp32", "bf16"):
            path = Path(scratch) / "rows.csv"
            path.write_text("\n".join(rows(folder, rate=rate)))
            new = read_power_rows([str(path)])
            shares = np.exp(model.predict(scaling.matrix([
                {"cap_share": 1.0, **row.values} for row in new])))  # fmt: skip
            watts[rate] = [row.tdp_w * float(one) for row, one in zip(new, shares, strict=True)]
    yield "| model | batch | W measured | by its FP32 rate | by its bf16 rate |"
    yield "|---|---|---|---|---|"
    for row, plain, matrix in zip(new, watts["fp32"], watts["bf16"], strict=True):
        yield (f"| {row.model} | {row.values['batch_size']:.0f} | {row.power_w:.0f} | {plain:.0f} "
               f"| {matrix:.0f} |")  # fmt: skip
    for rate, found in watts.items():
        off = [abs(one / row.power_w - 1) for row, one in zip(new, found, strict=True)]
        yield f"\nby the {rate} rate: {np.mean(off):.0%} off on average, {max(off):.0%} at most"


if __name__ == "__main__":
    if sys.argv[1:2] == ["keep"]:
        keep(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["tables"]:
        print("\n".join(tables(Path(sys.argv[2]))))
    elif sys.argv[1:2] == ["rows"]:
        print("\n".join(rows(Path(sys.argv[2]))))
    elif sys.argv[1:2] == ["predict"]:
        print("\n".join(predict(Path(sys.argv[2]), Path(sys.argv[3]))))
    else:
        sys.exit(__doc__)
