"""The published placement rules once more, as slow plain Python: what the engine is judged by.

Written from the papers' text (FGD, ATC'23; PWR, CCGrid'25; for the dot product's variants the FGD
artifact's behaviour), without a line shared with `policy` and `engine`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from wattherd.model.job import Request
from wattherd.policy.place.registry import PlacePolicy
from wattherd.testing.plain_cluster import PlainNode, Task, fragment, watts

MAX_CPU, MAX_GPU = 128_000, 8_000
"""The largest machine of the trace (MaxSpec), against which the baselines measure."""
Options = Mapping[str, float]
Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """What a score is asked: this request on this node, given what is expected."""

    node: PlainNode
    request: Request
    workload: Sequence[Task] = ()
    options: Options = field(default_factory=dict)


Score = tuple[int, int | None]
"""Raw score, and the GPU for a sharing request (None for others)."""


def lowest_gpus(node: PlainNode, request: Request) -> tuple[int, ...]:
    """The lowest-numbered GPUs with room."""
    roomy = [gpu for gpu, free in enumerate(node.gpus) if free >= request.gpu_milli]
    return tuple(roomy[: request.gpu_count]) if request.gpu_count else ()


def best_fit_gpu(ask: ScoreQuestion) -> int | None:
    """The GPU with the least sufficient room, the lowest number on ties."""
    if not ask.request.is_sharing:
        return None
    free = ask.node.gpus
    return min((free[gpu], gpu) for (gpu,) in _candidates(ask.node, ask.request))[1]


def _candidates(node: PlainNode, request: Request) -> list[tuple[int, ...]]:
    """GPU sets a score weighs: each GPU with room for a sharing request, else the lowest."""
    if not request.is_sharing:
        return [lowest_gpus(node, request)]
    return [(gpu,) for gpu, free in enumerate(node.gpus) if free >= request.gpu_milli]


def _first_best(ask: ScoreQuestion, raw: Callable[[PlainNode], int]) -> Score:
    candidates = _candidates(ask.node, ask.request)
    scores = [raw(ask.node.after(ask.request, gpus)) for gpus in candidates]
    at = scores.index(max(scores))
    return scores[at], candidates[at][0] if ask.request.is_sharing else None


def first_fit(ask: ScoreQuestion) -> Score:
    """Every node with room is as good as another."""
    return 0, best_fit_gpu(ask)


def best_fit(ask: ScoreQuestion) -> Score:
    """Half of what is left of CPU and half of what is left of GPU, the less the better."""
    left_cpu = (ask.node.cpu - ask.request.cpu_milli) / MAX_CPU
    left_gpu = (ask.node.idle - ask.request.total_gpu_milli) / MAX_GPU
    return int(100 * (1 - (0.5 * left_cpu + 0.5 * left_gpu))), best_fit_gpu(ask)


def gpu_packing(ask: ScoreQuestion) -> Score:
    """GPUs in use, then free GPUs of a node in use, then free nodes."""
    gpu, free = best_fit_gpu(ask), ask.node.gpus
    if not ask.request.gpu_count:
        return 0, gpu
    if all(milli == 1000 for milli in free):
        return max(33 - len(free), len(free)), gpu
    roomy = [milli for milli in sorted(free) if milli >= ask.request.gpu_milli]
    taken = roomy[: ask.request.gpu_count]
    if 1000 in taken:
        return max(50 - taken.count(1000), 33), gpu
    return max(100 - int(sum(int(milli * 100 / 1000) for milli in taken) / 10), 50), gpu


def gpu_clustering(ask: ScoreQuestion) -> Score:
    """75, 50, 25 or 0 by who is on the node, and up to 25 for how full it is."""
    gpu = best_fit_gpu(ask)
    if not ask.request.gpu_count:
        return 0, gpu
    kinds = {_kind(pod) for pod, _ in ask.node.pods if pod.gpu_count}
    full = int(Fraction(25 * (MAX_GPU - ask.node.idle), MAX_GPU))
    if kinds == {_kind(ask.request)}:
        return 75 + full, gpu
    if _kind(ask.request) in kinds:
        return 50 + full, gpu
    return (full if kinds else 25 + full), gpu


def _kind(request: Request) -> str:
    return "share-gpu" if request.is_sharing else f"{request.gpu_count}-gpu"


def fgd(ask: ScoreQuestion) -> Score:
    """How much fragmentation falls, through a sigmoid to 0..scale or in steps of a quantum."""
    before = fragment(ask.node, ask.workload)
    scale, quantum = ask.options.get("scale", 100.0), ask.options.get("quantum", 0.0)

    def raw(after: PlainNode) -> int:
        gain = before - fragment(after, ask.workload)
        return round(gain / quantum) if quantum else int(scale / (1 + math.exp(-gain / 1000)))

    return _first_best(ask, raw)


def pwr(ask: ScoreQuestion) -> Score:
    """Watts before less watts after, truncated."""
    before = watts(ask.node)
    return _first_best(ask, lambda after: int(before - watts(after)))


def pwr_expected(ask: ScoreQuestion) -> Score:
    """Expected watts after this pod and one of the target less watts before, truncated."""
    before = watts(ask.node)
    return _first_best(ask, lambda after: -int(_expected_watts(after, ask.workload) - before))


def _expected_watts(node: PlainNode, workload: Sequence[Task]) -> Fraction:
    mean = Fraction(0) if workload else watts(node)
    for task in workload:
        pod = Request(
            cpu_milli=task.cpu,
            gpu_count=task.gpus,
            gpu_milli=task.gpu_milli,
            models=tuple(task.models),
        )
        outcomes = [node]
        if node.fits(pod):
            outcomes = [node.after(pod, gpus) for gpus in _candidates(node, pod)]
        mean += Fraction(task.share) * min(watts(outcome) for outcome in outcomes)
    return mean


def dot_product(ask: ScoreQuestion) -> Score:
    """1 minus the mean product of normalised free and asked vectors; the best pairing counts."""
    method = ("merge", "share", "divide", "extend")[int(ask.options.get("dim", 0))]
    norm = ("max", "node", "pod")[int(ask.options.get("norm", 0))]
    best, chosen = -1.0, None
    for free, asked, gpu in _pairings(ask, method):
        mean = _mean_product(free, asked, _units(ask, norm, len(free)))
        score = 1 - (math.tanh(mean / 10) if norm == "pod" else mean)
        if score > best:
            best, chosen = score, gpu
    if method == "merge":
        chosen = best_fit_gpu(ask)
    return int(100 * max(best, 0.0)), chosen if ask.request.is_sharing else None


def _mean_product(free: Vector, asked: Vector, units: Vector) -> float:
    total = 0.0
    for have, want, unit in zip(free, asked, units, strict=True):
        total += (have / unit) * (want / unit) if unit > 0 else 0.0
    return total / len(free)


def _units(ask: ScoreQuestion, norm: str, width: int) -> Vector:
    cpu, gpu = {
        "max": (MAX_CPU, MAX_GPU),
        "node": (ask.node.spec.cpu_milli, 1000 * len(ask.node.gpus)),
        "pod": (ask.request.cpu_milli, ask.request.total_gpu_milli),
    }[norm]
    return (float(cpu), *[float(gpu)] * (width - 1))


def _pairings(ask: ScoreQuestion, method: str) -> Iterable[tuple[Vector, Vector, int | None]]:
    """Vectors of the node and of the request, and the GPU that the pairing stands for."""
    node, asked = ask.node, ask.request.total_gpu_milli
    cpu, asked_cpu = float(node.cpu), float(ask.request.cpu_milli)
    whole = [gpu for gpu, free in enumerate(node.gpus) if free == 1000]
    pool = [(1000 * len(whole), whole[0])] if whole else []
    if method == "merge":
        yield (cpu, float(node.idle)), (asked_cpu, float(asked)), None
        return
    in_use = [(free, gpu) for gpu, free in enumerate(node.gpus) if free < 1000]
    if method == "extend":
        entries = [entry for entry in [*in_use, *pool] if entry[0]]
        have = (cpu, *(float(free) for free, _ in entries))
        for at, (free, gpu) in enumerate(entries):
            if free >= asked:
                want = (float(asked) if other == at else 0.0 for other in range(len(entries)))
                yield have, (asked_cpu, *want), gpu
        return
    # A request without GPUs pairs with every GPU, and with the pool even if that is empty.
    groups = [*(in_use if asked < 1000 else []), *(pool or [(0, -1)])]
    for free, gpu in groups:
        if free >= asked and not (method == "divide" and not node.idle):
            part = cpu * free / node.idle if method == "divide" else cpu
            yield (part, float(free)), (asked_cpu, float(asked)), gpu


# --- decisions -------------------------------------------------------------------------------

SCORES: Mapping[str, Callable[[ScoreQuestion], Score]] = {
    "first-fit": first_fit,
    "best-fit": best_fit,
    "dot-product": dot_product,
    "gpu-packing": gpu_packing,
    "gpu-clustering": gpu_clustering,
    "fgd": fgd,
    "pwr": pwr,
    "pwrexp": pwr_expected,
}
SPREAD = {"best-fit": 0, "pwr": 100, "pwrexp": 100}
"""Scores that are spread to 0..100 over the feasible nodes, and what they are if all are equal."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One scorer of a blend by name, with its options and weight."""

    name: str
    options: Options
    weight: int


def weighed(policy: PlacePolicy) -> list[Weighed] | None:
    """A parsed policy for `decide`; None if a part of it draws or is not restated here."""
    names = [part.scorer.name for part in policy.parts]
    if policy.random_ties or policy.random_gpu or not set(names) <= set(SCORES):
        return None
    return [
        Weighed(
            part.scorer.name,
            dict(zip(part.scorer.options, part.options.tolist(), strict=True)),
            part.weight,
        )
        for part in policy.parts
    ]


def decide(
    nodes: Sequence[PlainNode], request: Request, blend: Sequence[Weighed], workload: Sequence[Task]
) -> tuple[int, tuple[int, ...]] | None:
    """Node and GPUs: the first of the best nodes, the GPU by the last scorer of the blend."""
    feasible = [n for n, node in enumerate(nodes) if node.fits(request)]
    if not feasible:
        return None
    totals = dict.fromkeys(feasible, 0)
    for part in blend:
        asks = {n: ScoreQuestion(nodes[n], request, workload, part.options) for n in feasible}
        scores = {n: SCORES[part.name](ask) for n, ask in asks.items()}
        raw = _spread({n: score for n, (score, _) in scores.items()}, part.name)
        for n in feasible:
            totals[n] += part.weight * raw[n]
    best = max(feasible, key=lambda n: (totals[n], -n))
    gpu = scores[best][1]
    return best, lowest_gpus(nodes[best], request) if gpu is None else (gpu,)


def _spread(raw: Mapping[int, int], name: str) -> Mapping[int, int]:
    if name not in SPREAD:
        return raw
    low, high = min(raw.values()), max(raw.values())
    if low == high:
        return dict.fromkeys(raw, SPREAD[name])
    return {n: (score - low) * 100 // (high - low) for n, score in raw.items()}
