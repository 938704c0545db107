"""`benchmarks/kube_day.py`: the arithmetic of its books."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from wattherd.catalog.gpus import GPUS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import kube_day
import kube_day_ledger as day

A100, V100 = day.MODELS
A = GPUS[A100]
GPUS_OF = {A100: 16, V100: 16}
IDLE_W = 16 * A.idle_w + 16 * GPUS[V100].idle_w


def a_job(name: str = "j", *, pods: int = 1, gpus: int = 8, hours: float = 1.0,
          milli: int = 1000, kind: str = "", priority: str = "low") -> day.DayJob:  # fmt: skip
    return day.DayJob(
        name=name, at_s=0.0, pods=pods, gpus=gpus, milli=milli, model=A100, kind=kind,
        priority=priority, hours=hours,
    )  # fmt: skip


def books(*jobs: day.DayJob, budget_w: float = 1e6, **options: dict[str, float]) -> day.DayLedger:
    return day.DayLedger(jobs, GPUS_OF, budget_w, **options)


def run(ledger: day.DayLedger, pod: str, job: str, cap_w: float | None = None,
        device: tuple[object, ...] = ()) -> None:  # fmt: skip
    ledger.runs(pod, job, device=device, cap_w=cap_w)


def test_a_job_at_full_power_takes_its_hours_and_what_it_drew_is_exact() -> None:
    ledger = books(a_job())
    ledger.advance(600)
    run(ledger, "p", "j")
    assert ledger.draw_w == IDLE_W + 8 * (A.max_w - A.idle_w)
    assert ledger.next_end_s() == 600 + 3600
    assert ledger.advance(7200) == ["j"]
    assert ledger.draw_w == IDLE_W
    assert ledger.done_gpu_h() == pytest.approx(8)
    joules = 7200 * IDLE_W + 3600 * 8 * (A.max_w - A.idle_w)
    assert ledger.energy_j == pytest.approx(joules)
    assert ledger.waits_s("low") == [600]


def test_a_gang_neither_works_nor_draws_before_all_its_pods_run() -> None:
    ledger = books(a_job(pods=2))
    run(ledger, "p", "j")
    ledger.advance(3600)
    assert (ledger.draw_w, ledger.done_gpu_h()) == (IDLE_W, 0)
    assert ledger.waits_s("low") == [3600]
    run(ledger, "q", "j")
    assert ledger.advance(7200) == ["j"]
    assert ledger.done_gpu_h() == pytest.approx(16)


def test_the_lowest_cap_of_a_gang_sets_its_pace_and_each_pod_draws_its_own() -> None:
    ledger = books(a_job(pods=2))
    run(ledger, "p", "j", 200.0)
    run(ledger, "q", "j", 300.0)
    rate = day.curve("", A100).rate(200.0)
    assert 0 < rate < 1
    assert ledger.draw_w == pytest.approx(IDLE_W + 8 * (200 + 300 - 2 * A.idle_w))
    assert ledger.next_end_s() == pytest.approx(3600 / rate)
    ledger.advance(1800)
    run(ledger, "p", "j", 300.0)
    assert ledger.done_gpu_h() == pytest.approx(8 * rate)


def test_no_kind_draws_more_than_was_measured_nor_less_than_where_its_curve_begins() -> None:
    measured = day.curve("llama-8b", A100)
    for cap_w, drawn_w in ((None, measured.max_w), (20.0, measured.floor_w)):
        ledger = books(a_job(kind="llama-8b"))
        run(ledger, "p", "j", cap_w)
        assert ledger.draw_w == pytest.approx(IDLE_W + 8 * (drawn_w - A.idle_w))


def test_a_stop_loses_what_came_after_the_last_checkpoint_and_counts_once() -> None:
    ledger = books(a_job(pods=2))
    run(ledger, "p", "j")
    run(ledger, "q", "j")
    ledger.advance(day.CHECKPOINT_S + 60)
    ledger.gone("p")
    ledger.gone("q")
    ledger.gone("unknown")
    assert ledger.stops == 1
    assert ledger.lost_s == pytest.approx(60 * 16)
    assert ledger.done_gpu_h() == pytest.approx(16 * day.CHECKPOINT_S / 3600)
    assert ledger.draw_w == pytest.approx(IDLE_W)
    ledger.advance(1000)
    assert ledger.done_gpu_h() == pytest.approx(16 * day.CHECKPOINT_S / 3600)


def test_pods_of_a_job_that_ended_lose_nothing_when_they_go() -> None:
    ledger = books(a_job())
    run(ledger, "p", "j")
    ledger.advance(4000)
    ledger.gone("p")
    run(ledger, "late", "j")
    assert (ledger.stops, ledger.lost_s, ledger.live()) == (0, 0, 0)
    assert ledger.done_gpu_h() == pytest.approx(8)


def test_a_shared_gpu_draws_all_it_can_once() -> None:
    ledger = books(*(a_job(f"j{n}", gpus=1, milli=500) for n in range(3)))
    run(ledger, "p0", "j0", device=("n", "0"))
    run(ledger, "p1", "j1", device=("n", "0"))
    one_w = A.max_w - A.idle_w
    assert ledger.draw_w == pytest.approx(IDLE_W + one_w)
    run(ledger, "p2", "j2", device=("n", "1"))
    assert ledger.draw_w == pytest.approx(IDLE_W + 2 * one_w)
    ledger.gone("p0")
    assert ledger.draw_w == pytest.approx(IDLE_W + 2 * one_w)
    ledger.gone("p1")
    assert ledger.draw_w == pytest.approx(IDLE_W + one_w)


def test_seconds_above_are_those_in_which_the_draw_was_above() -> None:
    ledger = books(a_job(hours=0.5), budget_w=IDLE_W + 100)
    ledger.advance(100)
    run(ledger, "p", "j")
    ledger.advance(3600)
    assert ledger.above_s == pytest.approx(1800)
    assert ledger.most_above_w == pytest.approx(8 * (A.max_w - A.idle_w) - 100)


def test_static_caps_hold_all_gpus_in_the_budget_and_slow_who_runs() -> None:
    watts = day.budget_w(GPUS_OF, 0.6)
    caps_w = day.static_caps_w(GPUS_OF, watts)
    assert watts - 32 <= sum(GPUS_OF[model] * cap_w for model, cap_w in caps_w.items()) <= watts
    ledger = books(a_job(), budget_w=watts, caps_w=caps_w)
    run(ledger, "p", "j")
    assert ledger.draw_w == pytest.approx(IDLE_W + 8 * (caps_w[A100] - A.idle_w))
    assert ledger.next_end_s() > 3600


def test_quotas_at_full_power_are_in_the_budget_and_one_more_gpu_of_each_is_not() -> None:
    watts = day.budget_w(GPUS_OF, 0.6)
    allowed = day.quotas(GPUS_OF, watts)
    rise_w = {model: GPUS[model].max_w - GPUS[model].idle_w for model in GPUS_OF}
    drawn_w = IDLE_W + sum(count * rise_w[model] for model, count in allowed.items())
    assert drawn_w <= watts < drawn_w + sum(rise_w.values())


def test_a_day_is_the_same_for_a_seed_and_asks_for_the_load() -> None:
    jobs = day.a_day(200, 50, load=0.75, seed=1)
    assert jobs == day.a_day(200, 50, load=0.75, seed=1) != day.a_day(200, 50, load=0.75, seed=2)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert sum(job.work_s for job in jobs) == pytest.approx(0.75 * 50 * 8 * day.DAY_S, rel=0.02)
    assert max(job.pods for job in jobs) <= 50 / 2 / 8
    assert {job.priority for job in jobs} == set(day.PRIORITIES)
    assert any(job.milli < 1000 for job in jobs)
    assert any(job.pods > 1 for job in jobs)


def test_a_share_is_asked_for_as_one_by_who_can_and_as_a_whole_gpu_by_who_cannot() -> None:
    job = a_job(gpus=1, milli=250)
    for shares, whole in ((True, None), (False, "1")):
        template = kube_day.a_job(job, shares=shares)["spec"]["template"]
        notes = template["metadata"]["annotations"]
        asked = template["spec"]["containers"][0]["resources"]["limits"]
        assert asked.get("nvidia.com/gpu") == whole
        assert notes.get("wattherd.dev/gpu-milli") == ("250" if shares else None)


def test_pods_of_a_job_say_its_model_priority_and_number() -> None:
    made = kube_day.a_job(a_job(pods=3, priority="high"), suspend=True)["spec"]
    assert (made["parallelism"], made["completions"], made["suspend"]) == (3, 3, True)
    spec = made["template"]["spec"]
    assert spec["priorityClassName"] == "day-high"
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": A100}


def test_kueue_has_a_flavor_for_each_model_with_its_quota_of_gpus() -> None:
    objects = dict(kube_day.kueue_objects({A100: 5, V100: 7}))
    flavors = objects["clusterqueues"]["spec"]["resourceGroups"][0]["flavors"]
    found = {
        one["name"]: amount["nominalQuota"]
        for one in flavors
        for amount in one["resources"]
        if amount["name"] == "nvidia.com/gpu"
    }
    assert found == {A100.lower(): "5", V100.lower(): "7"}


def test_the_clock_of_the_day_goes_slower_as_threads_wait_for_a_core() -> None:
    assert kube_day.unhindered(0, 0) == 1
    assert kube_day.unhindered(5, 0) == 1
    assert kube_day.unhindered(1, 3) == 0.25


def test_the_clock_stands_no_stiller_than_its_process_and_never_goes_back() -> None:
    clock = kube_day.DayClock(100.0, [os.getpid()])
    seen = [clock.now_s()]
    for _ in range(5):
        clock.renew()
        seen.append(clock.now_s())
    assert seen == sorted(seen)
    assert 0 < clock.rate <= 100
