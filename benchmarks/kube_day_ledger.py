"""What a day of jobs did: work, waits, draw and energy, from where pods ran under which caps.

Plain arithmetic on what `kube_day.py` saw, the same for all contenders; times are seconds of the
day that is played. Nothing changes between two moments at which something was seen, so that sums
over time are exact.

* A job works while all its pods run, on each of its GPUs as fast as the lowest cap of its pods lets
  it (the catalogue's curves: of its kind where measured, else the prior).
* A GPU of a job that works draws the lower of its cap and what its kind draws at most; every other
  GPU draws what it does when idle. A GPU that is shared draws all it can.
* A job that stops before its end loses what it did since its last checkpoint.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.estimate.power_curve import PowerCurve, prior_of
from wattherd.workload.power_profiles import built_in

DAY_S = 86400.0
LAST_ARRIVAL_S = 22 * 3600.0
CHECKPOINT_S = 600.0
SAME_W = 0.5
"""Caps are whole watts: a sum of them that is above by less is not."""
MODELS = ("A100-80GB", "V100M32")
KINDS = {
    "A100-80GB": ("llama-8b", "mpt-7b", "mpt-13b", ""),
    "V100M32": ("resnet50", "bert-squad", "deepspeech2", "shufflenet", ""),
}
"""By model the kinds of jobs: measured ones, and those of which nothing is known."""
PRIORITIES = {"low": 0, "normal": 100, "high": 1000}
PRIORITY_SHARES = (0.3, 0.5, 0.2)
NODE_GPUS = 8
_PROFILES = built_in()


@dataclass(frozen=True, slots=True, kw_only=True)
class DayJob:
    """`pods` of `gpus` GPUs each, or one pod with `milli` thousandths of a GPU.

    It comes at `at_s` and takes `hours` at full power on `model`, the only one that it may use.
    """

    name: str
    at_s: float
    pods: int
    gpus: int
    milli: int = 1000
    model: str
    kind: str
    priority: str
    hours: float

    @property
    def width(self) -> float:
        """GPUs that work for it at once."""
        return self.pods * self.gpus * self.milli / 1000

    @property
    def work_s(self) -> float:
        """GPU-seconds at full power."""
        return 3600 * self.hours * self.width


def curve(kind: str, model: str) -> PowerCurve:
    """Of a kind of job on a model: as measured, else the prior."""
    measured = _PROFILES.get(kind, {}).get(model)
    return prior_of(model) if measured is None else measured


def fleet_models(nodes: int) -> list[str]:
    """By node its model: as many of the one as of the other."""
    return [MODELS[row % len(MODELS)] for row in range(nodes)]


def gpus_by_model(nodes: int) -> dict[str, int]:
    """How many GPUs there are of each model."""
    models = fleet_models(nodes)
    return {model: NODE_GPUS * models.count(model) for model in MODELS}


def budget_w(gpus: Mapping[str, int], part: float) -> float:
    """What all GPUs draw when idle, and `part` of what they may draw above that."""
    idle_w = sum(count * GPUS[model].idle_w for model, count in gpus.items())
    most_w = sum(count * GPUS[model].max_w for model, count in gpus.items())
    return float(math.floor(idle_w + part * (most_w - idle_w)))


def static_caps_w(gpus: Mapping[str, int], watts: float) -> dict[str, float]:
    """A cap for every GPU of a model, the same part of its maximum: all together are in budget."""
    most_w = sum(count * GPUS[model].max_w for model, count in gpus.items())
    return {model: float(math.floor(GPUS[model].max_w * watts / most_w)) for model in gpus}


def quotas(gpus: Mapping[str, int], watts: float) -> dict[str, int]:
    """By model how many GPUs may be busy at full power, the others idle: the same part of each."""
    idle_w = sum(count * GPUS[model].idle_w for model, count in gpus.items())
    rise_w = sum(
        count * (GPUS[model].max_w - GPUS[model].idle_w) for model, count in gpus.items()
    )  # fmt: skip
    part = min(1.0, max(0.0, (watts - idle_w) / rise_w))
    return {model: math.floor(part * count) for model, count in gpus.items()}


def a_day(jobs: int, nodes: int, *, load: float, seed: int) -> list[DayJob]:
    """Jobs that ask for `load` of all GPUs at full power over the day, more at noon than at night.

    Six in ten are small: a share of a GPU, or one to four of one node. The others take whole nodes:
    one, two, four and so on up to an eighth of a model's. Lengths are log-normal (sigma 1.1, five
    minutes at least), scaled to the load.
    """
    draw = np.random.default_rng(seed)
    most = max(1, nodes // len(MODELS) // NODE_GPUS)
    widths = [2**power for power in range(int(math.log2(most)) + 1)]
    made = []
    for number in range(jobs):
        pods, gpus, milli = 1, NODE_GPUS, 1000
        if draw.random() < 0.6:
            gpus = int(draw.choice([1, 1, 2, 4]))
            if gpus == 1 and draw.random() < 0.4:
                milli = int(draw.choice([250, 500]))
        else:
            pods = int(draw.choice(widths))
        model = MODELS[int(draw.integers(len(MODELS)))]
        kinds = KINDS[model]
        made.append(
            DayJob(
                name=f"job-{number}",
                at_s=_arrival(draw),
                pods=pods,
                gpus=gpus,
                milli=milli,
                model=model,
                kind="" if milli < 1000 else kinds[int(draw.integers(len(kinds)))],
                priority=str(draw.choice(list(PRIORITIES), p=PRIORITY_SHARES)),
                hours=float(draw.lognormal(0.0, 1.1)),
            )
        )
    asked_s = load * nodes * NODE_GPUS * DAY_S
    return sorted(_scaled(made, asked_s), key=lambda job: job.at_s)


def _arrival(draw: np.random.Generator) -> float:
    """Thinning: from none at midnight to the most at noon there is a factor of four."""
    while True:
        at_s = float(draw.uniform(0, LAST_ARRIVAL_S))
        if draw.random() < 0.625 - 0.375 * math.cos(2 * math.pi * at_s / DAY_S):
            return at_s


def _scaled(jobs: Sequence[DayJob], asked_s: float) -> list[DayJob]:
    factor = asked_s / sum(job.work_s for job in jobs)
    return [
        DayJob(
            name=job.name, at_s=job.at_s, pods=job.pods, gpus=job.gpus, milli=job.milli,
            model=job.model, kind=job.kind, priority=job.priority,
            hours=max(5 / 60, factor * job.hours),
        )
        for job in jobs
    ]  # fmt: skip


@dataclass(slots=True)
class _Pod:
    job: str
    device: tuple[object, ...]
    """Of one with a share: which GPU."""
    cap_w: float | None


@dataclass(slots=True)
class _Progress:
    job: DayJob
    curve: PowerCurve
    left_s: float
    """GPU-seconds at full power, at `seen_s`."""
    pods: dict[str, _Pod] = field(default_factory=dict)
    seen_s: float = 0.0
    first_s: float | None = None
    run_s: float = 0.0
    """How long it has worked since it last started."""
    rate: float = 0.0
    """Of full speed; 0 while it does not work."""
    rise_w: float = 0.0
    """What its GPUs draw above idle; of a share nothing, that is told by GPU."""
    ended: bool = False

    @property
    def end_s(self) -> float:
        return self.seen_s + self.left_s / (self.rate * self.job.width) if self.rate else math.inf

    def to(self, now_s: float) -> None:
        if self.rate:
            self.left_s -= self.rate * self.job.width * (now_s - self.seen_s)
            self.run_s += now_s - self.seen_s
        self.seen_s = now_s

    def lose(self) -> float:
        """Back to the last checkpoint; the GPU-seconds that are lost."""
        since_s = self.rate * self.job.width * (self.run_s % CHECKPOINT_S)
        lost_s = min(since_s, self.job.work_s - self.left_s)
        self.left_s += lost_s
        self.run_s = 0.0
        return lost_s


class DayLedger:
    """The books of one day on `gpus` (how many of each model) under a budget.

    `caps_w` are caps by model of pods that have none of their own.
    """

    def __init__(
        self,
        jobs: Sequence[DayJob],
        gpus: Mapping[str, int],
        budget_w: float,
        caps_w: Mapping[str, float] | None = None,
    ) -> None:
        self._jobs = {
            job.name: _Progress(job, curve(job.kind, job.model), job.work_s) for job in jobs
        }
        self._caps_w = dict(caps_w or {})
        self.budget_w = budget_w
        self._owners: dict[str, _Progress] = {}
        """By pod that runs."""
        self._live: dict[str, _Progress] = {}
        """Jobs that work."""
        self._sharing: Counter[tuple[object, ...]] = Counter()
        """By GPU that is shared: how many pods work there."""
        self.now_s = 0.0
        self.draw_w = float(sum(count * GPUS[model].idle_w for model, count in gpus.items()))
        self.energy_j = self.above_s = self.most_above_w = self.lost_s = 0.0
        self.stops = 0

    # --- what was seen -------------------------------------------------------------------------

    def runs(self, pod: str, job: str, *, device: tuple[object, ...], cap_w: float | None) -> None:
        """A pod runs, under a cap for each of its GPUs (None: its model's); as often as is seen."""
        one = self._jobs[job]
        known = one.pods.get(pod)
        if one.ended or (known is not None and known.cap_w == cap_w):
            return
        one.pods[pod] = _Pod(job, device, cap_w)
        self._owners[pod] = one
        self._settle(one)

    def gone(self, pod: str) -> None:
        """A pod runs no more; of one that did not there is nothing to say."""
        one = self._owners.pop(pod, None)
        if one is None:
            return
        one.to(self.now_s)
        if one.rate:
            self.lost_s += one.lose()
            self.stops += 1
            self._rest(one)
        one.pods.pop(pod, None)

    def advance(self, to_s: float) -> list[str]:
        """Nothing was seen until `to_s`; the jobs that ended meanwhile."""
        ended = []
        while self.now_s < to_s:
            first = min(self._live.values(), key=lambda one: one.end_s, default=None)
            ends = first is not None and first.end_s <= to_s
            next_s = max(self.now_s, first.end_s) if ends and first is not None else to_s
            self._integrate(next_s - self.now_s)
            self.now_s = next_s
            if ends and first is not None:
                first.to(self.now_s)
                first.ended, first.left_s = True, 0.0
                self._rest(first)
                ended.append(first.job.name)
        return ended

    def next_end_s(self) -> float:
        """When a job ends, if nothing else happens before."""
        return min((one.end_s for one in self._live.values()), default=math.inf)

    def _integrate(self, seconds: float) -> None:
        self.energy_j += self.draw_w * seconds
        if self.draw_w > self.budget_w + SAME_W and seconds > 0:
            self.above_s += seconds
            self.most_above_w = max(self.most_above_w, self.draw_w - self.budget_w)

    def _settle(self, one: _Progress) -> None:
        """It works as its pods and their caps now are, or does not."""
        if len(one.pods) != one.job.pods:
            return
        one.to(self.now_s)
        if one.first_s is None:
            one.first_s = self.now_s
        self._rest(one)
        self._live[one.job.name] = one
        caps_w = [self._cap_w(one, pod) for pod in one.pods.values()]
        one.rate = one.curve.rate(min(caps_w))
        if one.job.milli < 1000:
            (pod,) = one.pods.values()
            self._sharing[pod.device] += 1
            if self._sharing[pod.device] == 1:
                self.draw_w += self._shared_rise_w(one.job.model)
        else:
            one.rise_w = one.job.gpus * sum(cap_w - GPUS[one.job.model].idle_w for cap_w in caps_w)
            self.draw_w += one.rise_w

    def _rest(self, one: _Progress) -> None:
        """It does not work any more."""
        if self._live.pop(one.job.name, None) is None:
            return
        if one.job.milli < 1000:
            (pod,) = one.pods.values()
            self._sharing[pod.device] -= 1
            if not self._sharing[pod.device]:
                del self._sharing[pod.device]
                self.draw_w -= self._shared_rise_w(one.job.model)
        self.draw_w -= one.rise_w
        one.rise_w = one.rate = 0.0

    def _shared_rise_w(self, model: str) -> float:
        most_w = min(self._caps_w.get(model, math.inf), GPUS[model].max_w)
        return most_w - GPUS[model].idle_w

    def _cap_w(self, one: _Progress, pod: _Pod) -> float:
        """What a GPU of it draws: no more than its kind does, no less than its curve begins at."""
        cap_w = self._caps_w.get(one.job.model, math.inf) if pod.cap_w is None else pod.cap_w
        return min(max(cap_w, one.curve.floor_w), one.curve.max_w)

    # --- what came of it -----------------------------------------------------------------------

    def done_gpu_h(self) -> float:
        """Work that was done and not lost."""
        for one in self._live.values():
            one.to(self.now_s)
        return sum(one.job.work_s - one.left_s for one in self._jobs.values()) / 3600

    def ended(self) -> int:
        """How many jobs are through."""
        return sum(one.ended for one in self._jobs.values())

    def live(self) -> int:
        """How many jobs work."""
        return len(self._live)

    def waits_s(self, priority: str) -> list[float]:
        """From coming to first working; of those who never did, until now."""
        return sorted(
            (self.now_s if one.first_s is None else one.first_s) - one.job.at_s
            for one in self._jobs.values()
            if one.job.priority == priority and one.job.at_s <= self.now_s
        )

    def scores(self) -> dict[str, float]:
        """Everything that is compared."""
        found = {
            "work_gpu_h": self.done_gpu_h(),
            "jobs_ended": float(self.ended()),
            "energy_kwh": self.energy_j / 3.6e6,
            "above_s": self.above_s,
            "most_above_w": self.most_above_w,
            "used_part": self.energy_j / max(1e-9, self.budget_w * self.now_s),
            "stops": float(self.stops),
            "lost_gpu_h": self.lost_s / 3600,
        }
        for priority in PRIORITIES:
            waits = self.waits_s(priority) or [0.0]
            found[f"wait_{priority}_mean_min"] = statistics.mean(waits) / 60
            found[f"wait_{priority}_p95_min"] = float(np.quantile(waits, 0.95)) / 60
        return found
