"""However many small jobs keep coming, a gang as wide as the cluster gets its turns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.testing.timed_world import Story, t4_nodes, timed

PATIENCE_S = 120.0
HEIGHT = 3.0
GPUS = 4
LASTING_S = 2_500.0


@pytest.mark.long
@given(
    gaps=st.lists(st.sampled_from([5.0, 15.0, 30.0]), min_size=1, max_size=8),
    lengths=st.lists(st.sampled_from([20.0, 90.0, 400.0]), min_size=1, max_size=8),
    packing=st.booleans(),
)
@settings(max_examples=times(15), deadline=None)
def test_a_gang_as_wide_as_the_cluster_is_not_starved(
    gaps: list[float], lengths: list[float], packing: bool
) -> None:
    """It waits for its patience, then for room under the height, then for those before it.

    A resident's turn comes once every `HEIGHT` slices or so; those of less service before it are
    `HEIGHT` x `GPUS` at most, and run their present lag down, `GPUS` at a time.
    """
    jobs, at_s = [], 0.0
    while at_s < LASTING_S:
        lasts_s = lengths[len(jobs) % len(lengths)]
        jobs.append(timed(f"j{len(jobs)}", at_s=at_s, lasts_s=lasts_s))
        at_s += gaps[len(jobs) % len(gaps)]
    wide = timed("wide", GPUS, at_s=10.0, lasts_s=50.0)
    planner = Gandiva(patience_s=PATIENCE_S, height=HEIGHT, packing=packing)
    story = Story(planner, t4_nodes(2, 2), [*jobs, wide])
    bound_s = PATIENCE_S + HEIGHT * max(lengths) + 60.0 * HEIGHT * GPUS
    assert story.starts("wide")[0] <= 10.0 + bound_s
    assert len(story.core.finished) == len(jobs) + 1
