"""Power curves of a whole fleet, learned together: what one job shows also teaches about the rest.

Logs of relative rate and of watts per watt of cap, at K caps, are one Gaussian vector (2K,) per
job. Its mean and covariance are those of the GPU type, and are learned from all jobs as well, one
step of expectation maximisation per round (Dempster, Laird, Rubin 1977), held by the power law
while samples are few (normal inverse-Wishart). Rate and watts stand in one vector because they
tell of each other: a job that draws little loses little under a cap. A rate's unit is unknown.

A posterior under the right prior needs no correction for having been picked by an optimiser (Smith
and Winkler, The Optimizer's Curse, Management Science 2006), which is why the prior is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.learned_curve import CurveSample
from wattherd.estimate.power_curve import PRIOR_EXPONENT

# --- Page's two-sided cumulative sum over many jobs: several surprises of one sign are a change.
#
# Page, Continuous Inspection Schemes, Biometrika 1954.

Floats = NDArray[np.float64]

SURPRISE_AT = 3.0
"""Standard deviations from which a sample is wild."""
ALLOWED = 0.5
"""Standard deviations per sample that are no reason to worry."""
ALARM = 9.0


@dataclass(frozen=True, slots=True)
class SurpriseSums:
    """Sums of surprises upwards and downwards, of each of two series of N jobs (N, 2, 2).

    `restarts` (N,) counts the changes found.
    """

    sums: Floats
    restarts: NDArray[np.int64]

    @classmethod
    def quiet(cls, jobs: int) -> SurpriseSums:
        """No surprise so far."""
        return cls(np.zeros((jobs, 2, 2)), np.zeros(jobs, dtype=np.int64))

    def told(
        self, jobs: NDArray[np.int64], surprise: Floats
    ) -> tuple[SurpriseSums, NDArray[np.int64]]:
        """After standardised errors (n, 2) of `jobs` (n,); also the jobs that have changed."""
        step = np.clip(surprise, -SURPRISE_AT, SURPRISE_AT)
        both = np.stack([step, -step], axis=2) - ALLOWED
        sums, restarts = self.sums.copy(), self.restarts.copy()
        sums[jobs] = np.maximum(sums[jobs] + both, 0.0)
        changed = jobs[sums[jobs].max(axis=(1, 2)) >= ALARM]
        sums[changed] = 0.0
        restarts[changed] += 1
        return replace(self, sums=sums, restarts=restarts), changed


Bools = NDArray[np.bool_]

SCALE_SD = 5.0
"""Log of a rate's unit: a factor of e**5 either way, that is, unknown."""
RATE_SD = 0.3
WATTS_SD, WATTS_LEVEL_SD = 0.2, 0.4
"""Prior spread of the watts' shape and level, in logs (Zeus: 0.1 to 0.7 by GPU type and cap)."""
TYPICAL_DRAW = 0.8
LENGTH = 0.35
"""Log caps over which deviations keep their sign: 150 and 210 W are one length apart."""
ROUGH_SD = 0.02
STEPS = 2
"""Of expectation maximisation per round."""
OWN_SD = 0.015
"""What is left of each cap alone, whatever the fleet says."""
PRIOR_JOBS, PRIOR_SPREADS = 2.0, 10.0
"""The power law counts as so many jobs for the mean, and for the covariance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTerms:
    """`noise_sd` is a sample's relative error, `memory` what a job keeps from sample to sample.

    Raises:
        UserError: noise or memory out of range.
    """

    idle_w: float = 30.0
    noise_sd: float = 0.05
    memory: float = 0.998

    def __post_init__(self) -> None:
        """Refuse what cannot be learned from."""
        if not 0 < self.noise_sd < 1:
            raise UserError("noise lies above 0, below 1", field="noise_sd")
        if not 0 < self.memory <= 1:
            raise UserError("memory lies above 0, up to 1", field="memory")


@dataclass(frozen=True, slots=True)
class CurvePopulation:
    """Mean (2K,) and covariance (2K, 2K) of a job's logs, rates relative to the highest cap."""

    mean: Floats
    spread: Floats

    @classmethod
    def power_law(cls, caps_w: Floats, idle_w: float) -> CurvePopulation:
        """What is believed of a GPU type of which nothing was measured."""
        count = len(caps_w)
        idle_w = min(idle_w, float(caps_w[0]) / 2)
        share = (caps_w - idle_w) / (caps_w[-1] - idle_w)
        mean = np.concatenate(
            [PRIOR_EXPONENT * np.log(share), np.full(count, np.log(TYPICAL_DRAW))]
        )
        to_top = _to_top(count)[:count, :count]
        spread = np.zeros((2 * count, 2 * count))
        spread[:count, :count] = to_top @ _smooth(caps_w, RATE_SD) @ to_top.T
        spread[count:, count:] = WATTS_LEVEL_SD**2 + _smooth(caps_w, WATTS_SD)
        return cls(mean, spread)

    def taught(self, law: CurvePopulation, means: Floats, covariances: Floats) -> CurvePopulation:
        """After jobs whose logs have these means (N, 2K) and covariances (N, 2K, 2K)."""
        jobs, size = means.shape
        to_top = _to_top(size // 2)
        level = means @ to_top.T
        mean = (PRIOR_JOBS * law.mean + level.sum(axis=0)) / (PRIOR_JOBS + jobs)
        off, moved = level - mean, mean - law.mean
        total = PRIOR_SPREADS * law.spread + PRIOR_JOBS * np.outer(moved, moved) + off.T @ off
        total += to_top @ covariances.sum(axis=0) @ to_top.T
        return CurvePopulation(mean, total / (PRIOR_SPREADS + jobs) + OWN_SD**2 * np.eye(size))


def _smooth(caps_w: Floats, sd: float) -> Floats:
    """Covariance (K, K) that binds neighbouring caps."""
    logs = np.log(caps_w)
    apart = (logs[:, None] - logs[None, :]) / LENGTH
    return np.asarray(sd**2 * np.exp(-0.5 * apart**2) + ROUGH_SD**2 * np.eye(len(logs)))


def _to_top(count: int) -> Floats:
    """Makes rates relative to the one at the highest cap, and leaves watts alone."""
    made = np.eye(2 * count)
    made[:count, count - 1] -= 1.0
    return made


@dataclass(frozen=True, slots=True)
class CurveBeliefs:
    """What is believed of N jobs at K caps: logs of rate, watts of the whole job, and doubts.

    `log_rate` (N, K), `log_rate_cov` (N, K, K), `log_watts_cov` (N, K, K), `watts` (N, K), their
    own standard deviation `watts_sd` (N, K) and `shared_sd` (N, K), the part of the error that
    all jobs have in common while the fleet itself is unknown at that cap.
    """

    log_rate: Floats
    log_rate_cov: Floats
    log_watts_cov: Floats
    watts: Floats
    watts_sd: Floats
    shared_sd: Floats
    able: Bools

    def relative_rate(self) -> Floats:
        """Rate relative to the job's best (N, K); 0 at caps that are none of the job's."""
        logs = np.where(self.able, self.log_rate, -np.inf)
        return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCurves:
    """All that was sampled of N jobs on one GPU type; `told` gives the next value.

    `counts` and `sums` (N, 2K) are effective numbers of samples and sums of their logs.
    """

    terms: FleetTerms
    caps_w: Floats
    able: Bools
    devices: Floats
    counts: Floats
    sums: Floats
    law: CurvePopulation
    population: CurvePopulation
    alarms: SurpriseSums

    @classmethod
    def start(
        cls, caps_w: Sequence[Sequence[float]], devices: Sequence[int], terms: FleetTerms
    ) -> FleetCurves:
        """Nothing but the power law; `caps_w` are each job's.

        Raises:
            UserError: no job, or a job without caps.
        """
        if not caps_w or not all(caps_w):
            raise UserError("every job needs a cap", field="caps_w")
        grid = np.array(sorted({cap for one in caps_w for cap in one}), dtype=np.float64)
        able = np.array([[cap in set(one) for cap in grid.tolist()] for one in caps_w])
        law = CurvePopulation.power_law(grid, terms.idle_w) if len(grid) > 1 else _single(grid)
        zeros = np.zeros((len(caps_w), 2 * len(grid)))
        return cls(
            terms=terms, caps_w=grid, able=able, devices=np.array(devices, dtype=np.float64),
            counts=zeros, sums=zeros, law=law, population=law,
            alarms=SurpriseSums.quiet(len(caps_w)),
        )  # fmt: skip

    @property
    def samples(self) -> Floats:
        """Effective number of samples of every job (N,)."""
        return np.asarray(self.counts[:, : len(self.caps_w)].sum(axis=1))

    def told(self, round_of: Sequence[CurveSample | None]) -> FleetCurves:
        """After one round: at most one sample of every job.

        A wild sample counts less (Huber's weight); a job whose surprises add up starts anew.

        Raises:
            UserError: watts or rate not above zero, or a cap that is none of the job's.
        """
        seen = [job for job, sample in enumerate(round_of) if sample is not None]
        if not seen:
            return self
        jobs = np.array(seen, dtype=np.int64)
        found = [sample for sample in round_of if sample is not None]
        caps = np.array([self._cap(job, one) for job, one in zip(seen, found, strict=True)])
        logs = np.log([[one.rate, one.power_w] for one in found])
        logs[:, 1] -= np.log(self.devices[jobs] * self.caps_w[caps])
        places = np.stack([caps, caps + len(self.caps_w)], axis=1)
        surprise = self._surprise(jobs, places, logs)
        counts, sums = self.counts.copy(), self.sums.copy()
        alarms, changed = self.alarms.told(jobs, surprise)
        counts[jobs] *= self.terms.memory
        sums[jobs] *= self.terms.memory
        counts[changed], sums[changed] = 0.0, 0.0
        weight = np.minimum(1.0, (SURPRISE_AT / np.maximum(np.abs(surprise), 1e-9)) ** 2)
        counts[jobs[:, None], places] += weight
        sums[jobs[:, None], places] += weight * logs
        told = replace(self, counts=counts, sums=sums, alarms=alarms)
        return replace(told, population=told.learned_population())

    def _cap(self, job: int, sample: CurveSample) -> int:
        if not (0 < sample.power_w < np.inf and 0 < sample.rate < np.inf):
            raise UserError("watts and rate must be above zero", field="sample")
        at = int(np.searchsorted(self.caps_w, sample.cap_w))
        if at == len(self.caps_w) or self.caps_w[at] != sample.cap_w or not self.able[job, at]:
            raise UserError(f"{sample.cap_w:g} W is none of the job's caps", field="cap_w")
        return at

    def _surprise(self, jobs: NDArray[np.int64], places: NDArray[np.int64], logs: Floats) -> Floats:
        """Standardised errors (n, 2) of what was expected."""
        mean, covariance = self._posterior()
        variance = covariance[jobs[:, None], places, places] + self.terms.noise_sd**2
        return np.asarray((logs - mean[jobs[:, None], places]) / np.sqrt(variance))

    def _posterior(self) -> tuple[Floats, Floats]:
        """Means (N, 2K) and covariances (N, 2K, 2K) of every job's logs."""
        half = len(self.caps_w)
        prior = self.population.spread.copy()
        prior[:half, :half] += SCALE_SD**2
        precision = np.linalg.inv(prior)
        told = self.counts / self.terms.noise_sd**2
        covariance = np.linalg.inv(precision + told[:, :, None] * np.eye(2 * half))
        pull = precision @ self.population.mean + self.sums / self.terms.noise_sd**2
        mean = np.einsum("nab,nb->na", covariance, pull)
        return np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)

    def learned_population(self) -> CurvePopulation:
        """The population by all jobs that were ever sampled."""
        made = self
        for _ in range(STEPS):
            mean, covariance = made._posterior()
            seen = made.samples > 0
            population = made.population.taught(made.law, mean[seen], covariance[seen])
            made = replace(made, population=population)
        return made.population

    def beliefs(self) -> CurveBeliefs:
        """What all samples say."""
        half = len(self.caps_w)
        mean, covariance = self._posterior()
        own = np.maximum(np.einsum("naa->na", covariance)[:, half:], 0.0)
        watts = np.exp(mean[:, half:] + own / 2) * self.devices[:, None] * self.caps_w
        spread = np.diag(self.population.spread)[half:]
        jobs = (self.counts[:, :half] > 0).sum(axis=0) + PRIOR_JOBS
        shared = np.minimum(1.0, own / spread) * np.sqrt(spread / jobs)
        return CurveBeliefs(
            log_rate=mean[:, :half],
            log_rate_cov=covariance[:, :half, :half],
            log_watts_cov=covariance[:, half:, half:],
            watts=watts, watts_sd=watts * np.sqrt(own), shared_sd=watts * shared, able=self.able,
        )  # fmt: skip


def _single(grid: Floats) -> CurvePopulation:
    """A fleet whose jobs all know one cap has nothing to choose."""
    level = WATTS_LEVEL_SD**2 + ROUGH_SD**2
    spread = np.diag([ROUGH_SD**2, level])
    return CurvePopulation(np.array([0.0, np.log(TYPICAL_DRAW)]) * np.ones(2 * len(grid)), spread)
