"""The least that a device is believed to reach: learned where it stands, undone by two looks."""

from __future__ import annotations

import numpy as np
import pytest

from safety_room import a_fleet
from wattherd.engine.safety.response import DrawResponse


def told(response: DrawResponse, looks: list[tuple[float, float]], at_s: float = 0.0) -> float:
    """The reach, W, of a device after (cap in force, draw), once a second."""
    for cap_w, draw_w in looks:
        at_s += 1.0
        response.learn(
            np.array([cap_w]), np.array([draw_w]), may=np.ones(1, dtype=np.bool_),
            told=np.ones(1, dtype=np.bool_), now_s=at_s, settle_s=np.full(1, 2.0), step_s=1.0,
        )  # fmt: skip
    return float(response.reach_w[0])


def stuck(response: DrawResponse) -> float:
    """It kept a cap of 700 W, and draws as much still where 200 W were claimed to be in force."""
    return told(response, [(700.0, 690.0)] * 30 + [(200.0, 695.0)] * 10)


def test_a_device_that_draws_the_same_at_a_lower_cap_has_its_reach_there() -> None:
    assert stuck(DrawResponse(a_fleet(1))) == pytest.approx(695.0)


def test_a_reach_goes_when_two_looks_show_what_a_lower_cap_allows() -> None:
    """All that needs a cap which stands for longer would learn nothing of it."""
    response = DrawResponse(a_fleet(1))
    stuck(response)
    assert told(response, [(200.0, 430.0), (200.0, 215.0), (200.0, 214.0)], at_s=40.0) == 0.0


@pytest.mark.parametrize(
    "looks",
    [
        [(200.0, 430.0), (200.0, 215.0), (200.0, 600.0)],
        [(200.0, 60.0)] * 5,
        [(200.0, 600.0)] * 10,
    ],
    ids=["one look", "at rest", "little lower"],
)
def test_neither_one_look_nor_a_rest_nor_a_slightly_lower_draw_undoes_it(
    looks: list[tuple[float, float]],
) -> None:
    response = DrawResponse(a_fleet(1))
    stuck(response)
    assert told(response, looks, at_s=40.0) >= 595.0
