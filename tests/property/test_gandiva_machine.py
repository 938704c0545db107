"""Gandiva under any legal sequence of events, on a cluster so small that it does all it can.

Beside what holds for every planner (`test_core_machine`): its own book of homes agrees with the
plan, whatever is packed, taken apart, moved, grown or lost.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from test_core_machine import NARROW, SHARED, CoreMachine

from effort import times
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import JobProgressed
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.gandiva_nodes import NOTHING, GandivaNodes

CROWDED = ClusterSpec(
    tuple(
        NodeSpec(
            name=f"n{number}", cpu_milli=4_000, memory_mib=64_000, gpu_count=gpus, gpu_model="T4"
        )
        for number, gpus in enumerate((2, 1, 4))
    )
)


class GandivaMachine(CoreMachine):
    planner = staticmethod(lambda: Gandiva(patience_s=200.0))
    roles = st.one_of(SHARED, SHARED, SHARED, NARROW)
    cluster = CROWDED
    elastic = True

    @rule(
        rates=st.lists(st.sampled_from([0.4, 0.6, 1.0, 1.0]), min_size=1, max_size=5),
        slices=st.integers(1, 3),
    )
    def slices_pass(self, rates: list[float], slices: int) -> None:
        """Small jobs come; everybody does as told and reports, slice after slice."""
        for name in ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"):
            if name not in self.shell.submitted:
                role = TaskRole(gpu_memory_mib=5_000)
                self.shell.submit(JobSpec(id=name, submit_s=0.0, roles=(role,), profile=name[1]))
        for _ in range(slices):
            self.one_slice(rates)

    def one_slice(self, rates: list[float]) -> None:
        for run in self.shell.with_status("stopping"):
            self.shell.stopped(run)
        for run in self.shell.with_status("ordered"):
            self.shell.started(run)
        self.shell.now_s += 30.0
        for number, run in enumerate(self.shell.with_status("running")):
            job = self.shell.core.jobs.get(run.job_id)
            if job is not None:
                self.shell.deliver(
                    JobProgressed(
                        at_s=self.shell.now_s,
                        job_id=run.job_id,
                        attempt=run.attempt,
                        progress=job.progress + 1.0,
                        rate_per_s=rates[number % len(rates)],
                    )
                )
        if self.shell.wakes:
            self.shell.wake()

    @invariant()
    def the_book_of_homes_agrees_with_the_plan(self) -> None:
        memory = self.shell.core._memory.get("gandiva") if hasattr(self, "shell") else None
        if memory is None:
            return
        core, homes = self.shell.core, memory.homes
        check_demand(homes)
        check_turns(homes)
        on_gpu: Counter[tuple[int, int]] = Counter()
        for name, resident in memory.residents.items():
            assert bool(resident.home) != (name in memory.queue)
            if name not in core.jobs or not core.jobs[name].wanted:
                continue
            wanted = core.jobs[name].wanted
            assert {one.node for one in wanted} == set(resident.needs)
            on_gpu.update((one.node, gpu) for one in wanted for gpu in one.gpus)
            asked = sum(need[0] for need in resident.needs.values())
            given = sum(len(one.gpus) for one in wanted)
            if resident.narrowed:  # a budget fell since: it has its width back by its next slice
                assert core.config.narrow
                assert given < asked + resident.grown
            else:
                assert given == asked + resident.grown
            partner = resident.partner
            if partner is not None and partner.job.wanted:
                assert partner.job.wanted[0].gpus == wanted[0].gpus
        assert all(count <= 2 for count in on_gpu.values())


def check_demand(homes: GandivaNodes) -> None:
    for node, residents in enumerate(homes.on):
        total = list(NOTHING)
        pairs = 0
        for resident in residents.values():
            total = [a + b for a, b in zip(total, resident.needs[node], strict=True)]
            pairs += resident.partner is not None
            assert resident.partner is None or resident.partner.partner is resident
        total[0] -= pairs // 2
        assert homes.demand[node] == tuple(total)
        assert (homes.affinity[node] is None) == (not residents)


def check_turns(homes: GandivaNodes) -> None:
    """Where nothing is to be looked at again, nobody waits who fits beside those that run."""
    left = [list(one) for one in homes.capacity]
    for node, residents in enumerate(homes.on):
        for one in residents.values():
            need = list(one.needs[node])
            if one.partner is not None and one.partner.job.number < one.job.number:
                need[0] = 0
            if one.running:
                left[node] = [have - each for have, each in zip(left[node], need, strict=True)]
    for residents in homes.on:
        for one in residents.values():
            if one.running or one.partner is not None or homes.touched & one.needs.keys():
                continue
            assert any(
                each > have
                for node, need in one.needs.items()
                for each, have in zip(need, left[node], strict=True)
            )


def test_gandiva_keeps_its_books_whatever_happens() -> None:
    GandivaMachine.TestCase.settings = settings(max_examples=times(150), stateful_step_count=60)
    GandivaMachine.TestCase().runTest()
