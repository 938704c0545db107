"""The generated workload and the mix sweep on it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.curve_judge import CurveJudge
from wattherd.estimate.ps_job import LossKind
from wattherd.estimate.speed import asked_shape
from wattherd.experiments.published.aiturbo_hpdc21 import shape_of_sweep
from wattherd.experiments.schedule.ps_mix import (
    COMPARED,
    SHARES,
    MixMean,
    MixRun,
    Sweep,
    means,
    run_mix,
    sweep,
    taught_judge,
)
from wattherd.sim.ps_plant import Utilisation
from wattherd.workload.aiturbo import read_labelled
from wattherd.workload.ps_jobs import EPOCHS_S, SHAPES, PsMix, generate

SMALL = PsMix(jobs=24, gpus=32)


@pytest.fixture(scope="module")
def judge() -> CurveJudge:
    return taught_judge(SMALL)


def test_mixes_of_one_seed_differ_in_loss_alone() -> None:
    none, all_ = (generate(replace(SMALL, unpredictable=share), 3) for share in (0.0, 1.0))
    assert none.specs == all_.specs
    for name, one in none.truths.items():
        other = all_.truths[name]
        assert (one.speed, one.steps, one.run_noise) == (other.speed, other.steps, other.run_noise)
        assert one.loss.kind is LossKind.CONVERGING is not other.loss.kind
    assert none.epoch_steps == all_.epoch_steps


def test_the_share_of_unpredictable_jobs_is_as_asked_and_grows_by_inclusion() -> None:
    silent = [
        {name for name, one in work.truths.items() if not one.predictable}
        for work in (generate(replace(SMALL, unpredictable=share), 5) for share in SHARES)
    ]
    assert [len(names) for names in silent] == [0, 6, 12, 18, 24]
    assert all(fewer < more for fewer, more in pairwise(silent))


def test_load_is_gpu_time_asked_for_while_jobs_arrive() -> None:
    mix = PsMix(jobs=300, load=4.0)
    work = generate(mix, 1)
    asked_gpu_s = sum(
        asked_shape(spec).gpus
        * work.truths[spec.id].steps
        * work.truths[spec.id].speed.step_s(asked_shape(spec))
        for spec in work.specs
    )
    assert asked_gpu_s / (work.specs[-1].submit_s * mix.gpus) == pytest.approx(4.0, rel=0.02)


def test_what_users_declare_says_nothing_about_the_length_of_a_job() -> None:
    work = generate(PsMix(jobs=2000), 1)
    specs = work.specs
    lengths = [work.truths[one.id].steps * _step_s(work, one) for one in specs]
    epochs = [work.epoch_steps[one.id] * _step_s(work, one) for one in specs]
    assert abs(np.corrcoef(np.log(lengths), np.log(epochs))[0, 1]) < 0.1
    assert np.median(epochs) == pytest.approx(dict(EPOCHS_S)[0.5], rel=0.2)


def _step_s(work, spec) -> float:  # type: ignore[no-untyped-def]
    return float(work.truths[spec.id].speed.step_s(asked_shape(spec)))


@pytest.mark.long
def test_a_run_repeats_itself_exactly(judge: CurveJudge) -> None:
    few = replace(SMALL, jobs=10)
    one, two = (run_mix("aiturbo", few, 0, judge) for _ in range(2))
    assert replace(one, cpu_s=0.0) == replace(two, cpu_s=0.0)


@pytest.mark.long
def test_resizing_beats_shapes_as_asked_for_in_a_burst(judge: CurveJudge) -> None:
    runs = {policy: run_mix(policy, SMALL, 0, judge) for policy in ("fifo", "aiturbo")}
    assert runs["aiturbo"].avg_jct_h < runs["fifo"].avg_jct_h
    assert runs["aiturbo"].use.gpu_pct > runs["fifo"].use.gpu_pct
    assert runs["fifo"].starts == 1.0


def test_jobs_that_can_never_run_are_no_good_average(judge: CurveJudge) -> None:
    wide = PsMix(jobs=60, gpus=8)
    with pytest.raises(UserError, match="never ended"):
        run_mix("fifo", wide, 0, judge)


@pytest.mark.parametrize(
    "wrong", [{"policies": ("fifi",)}, {"mix": PsMix(gpus=12)}], ids=["policy", "gpus"]
)
def test_a_bad_sweep_is_refused_before_it_runs(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Sweep(**wrong)  # type: ignore[arg-type]


def a_run(policy: str, share: float, seed: int, jct_h: float, gpu: float, gap: float) -> MixRun:
    use = Utilisation(gpu_pct=gpu, cpu_pct=10.0, held_pct=90.0, gap_points=gap)
    return MixRun(
        policy=policy, unpredictable=share, seed=seed, avg_jct_h=jct_h, median_jct_h=jct_h,
        p99_jct_h=jct_h, makespan_h=jct_h, starts=1.0, use=use, cpu_s=0.0,
    )  # fmt: skip


def test_means_are_over_seeds() -> None:
    rows = means([a_run("fifo", 0.5, seed, 2.0 + seed, 40.0, 20.0) for seed in (0, 1)])
    assert [(row.seeds, row.avg_jct_h, row.gpu_pct) for row in rows] == [(2, 2.5, 40.0)]


def shape_counts(optimus: tuple[float, ...], ours: tuple[float, ...]) -> list[float]:
    rows: list[MixMean] = []
    for share, theirs, own in zip(SHARES, optimus, ours, strict=True):
        rows += means(
            [
                a_run("fifo", share, 0, 20.0, 30.0, 25.0),
                a_run("tiresias", share, 0, 12.0, 30.0, 25.0),
                a_run("optimus", share, 0, theirs, 30.0, 25.0),
                a_run("aiturbo", share, 0, own, 60.0, 20.0),
            ]
        )
    return [check.ours for check in shape_of_sweep(rows) if check.tolerance is not None]


def test_the_published_shape_is_told_from_others() -> None:
    good = shape_counts((5.0, 5.5, 6.0, 6.5, 7.0), (4.0, 4.1, 4.2, 4.3, 4.4))
    assert good == [0, 0, 0, 0, 0, 0]
    flat = shape_counts((5.0, 5.0, 6.0, 5.5, 7.0), (4.0, 4.1, 6.1, 4.3, 7.1))
    assert flat[:4] == [2, 1, 2, 2]


@pytest.mark.slow
def test_the_published_shape_holds_on_the_generated_workload() -> None:
    """Both ends of what `wattherd reproduce aiturbo-hpdc21` checks, on other seeds."""
    wish = Sweep(shares=(0.0, 1.0), seeds=(4, 5, 6, 7))
    rows = {(row.policy, row.unpredictable): row for row in means(sweep(wish))}
    assert set(rows) == {(policy, share) for policy in COMPARED for share in (0.0, 1.0)}
    jct = {key: row.avg_jct_h for key, row in rows.items()}
    assert jct["optimus", 1.0] > jct["optimus", 0.0]
    for share in (0.0, 1.0):
        ours, fifo = rows["aiturbo", share], rows["fifo", share]
        assert ours.avg_jct_h <= min(jct["optimus", share], jct["tiresias", share])
        assert 2 * ours.avg_jct_h <= max(jct["optimus", share], jct["tiresias", share])
        assert ours.gpu_pct >= fifo.gpu_pct + 15
        assert ours.gap_points < fifo.gap_points
    relative = [jct["tiresias", share] / jct["aiturbo", share] for share in (0.0, 1.0)]
    assert relative[1] < relative[0]
    assert math.isclose(jct["tiresias", 0.0], jct["tiresias", 1.0])  # it never looks at the loss


@pytest.mark.data
def test_the_data_set_says_what_the_workload_claims(traces: Path) -> None:
    """Length of epochs, their worthlessness as a forecast, and that silent jobs are short."""
    stats = pytest.importorskip("scipy.stats")
    history = read_labelled(traces / "aiturbo" / "ddl_jobs_8692.csv").history
    wanted = ("Step", "Batch Size", "Throughput", "Epoch", "Running time")
    steps, batch, throughput, epochs, running_s = history.columns(wanted).T
    epoch_s = steps * batch / throughput
    assert stats.spearmanr(epochs * epoch_s, running_s)[0] == pytest.approx(-0.16, abs=0.005)
    for part, seconds in EPOCHS_S[1:-1]:
        assert np.quantile(epoch_s, part) == pytest.approx(seconds, rel=0.02)
    silent = history.unpredictable
    assert np.median(running_s[silent]) == pytest.approx(8 * 60, rel=0.05)
    assert np.median(running_s[~silent]) == pytest.approx(2.5 * 3600, rel=0.05)
    asked = sum(cores * count for _, _, _, cores, count in SHAPES)
    assert asked / sum(gpus * count for _, _, gpus, _, count in SHAPES) == pytest.approx(
        5.0, abs=0.05
    )
