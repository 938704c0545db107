"""What is worth writing about who waits, and when."""

from __future__ import annotations

import pytest

from wattherd.kube.facts.reason_throttle import (
    AGAIN_S,
    BEHIND_S,
    REFRESH_S,
    REPEAT_S,
    SETTLE_S,
    ReasonNotice,
    ReasonThrottle,
)
from wattherd.kube.live.reason_events import pod_subject

GPUS, POWER = "WaitingForGpus", "WaitingForPower"


def notice(
    token: str, text: str = "needs 1 GPU", *, pod: str = "p", uid: str = "u"
) -> ReasonNotice:
    return ReasonNotice(pod_subject(f"default/{pod}", uid), token, text)


def written(teller: ReasonThrottle, now_s: float) -> list[tuple[str, str, int]]:
    return [(one.token, one.text, one.times) for one in teller.due(now_s)]


def test_a_reason_is_written_at_once_and_once() -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS), 0.0)
    assert written(teller, 0.0) == [(GPUS, "needs 1 GPU", 1)]
    teller.tell(notice(GPUS), 1.0)
    assert written(teller, REPEAT_S - 1) == []


def test_another_reason_is_written_once_it_has_held() -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS), 0.0)
    written(teller, 0.0)
    teller.tell(notice(POWER, "adds 60 W"), 100.0)
    assert written(teller, 100.0 + SETTLE_S - 0.1) == []
    assert written(teller, 100.0 + SETTLE_S) == [(POWER, "adds 60 W", 1)]


def test_reasons_that_take_turns_are_not_written() -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS), 0.0)
    written(teller, 0.0)
    count = 0
    for second in range(1, 600):
        teller.tell(notice(POWER if second % 2 else GPUS), float(second))
        count += len(written(teller, float(second)))
    assert count == 0


def test_numbers_of_the_same_reason_are_brought_up_to_date_now_and_then() -> None:
    teller = ReasonThrottle()
    count = 0
    for second in range(3600):
        teller.tell(notice(GPUS, f"{second} of 4000 are free"), float(second))
        count += len(written(teller, float(second)))
    assert count == 3600 / REFRESH_S


def test_what_still_holds_is_said_again_and_counted() -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS), 0.0)
    written(teller, 0.0)
    assert written(teller, REPEAT_S) == [(GPUS, "needs 1 GPU", 2)]
    assert written(teller, 2 * REPEAT_S) == [(GPUS, "needs 1 GPU", 3)]


def test_all_writes_keep_within_a_rate_and_none_is_lost() -> None:
    teller = ReasonThrottle(rate_per_s=10.0, burst=20)
    for pod in range(100):
        teller.tell(notice(GPUS, pod=f"p{pod}"), 0.0)
    assert len(written(teller, 0.0)) == 20
    assert len(written(teller, 1.0)) == 10
    assert sum(len(written(teller, float(second))) for second in range(2, 20)) == 70


def test_what_failed_is_tried_again_but_not_at_once() -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS), 0.0)
    [one] = teller.due(0.0)
    teller.failed(one, 0.0)
    assert written(teller, AGAIN_S - 0.1) == []
    assert written(teller, AGAIN_S) == [(GPUS, "needs 1 GPU", 1)]


@pytest.mark.parametrize("ends", ["forgotten", "placed"])
def test_who_waits_no_more_is_not_said_to_wait(ends: str) -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS), 0.0)
    if ends == "forgotten":
        teller.forget(notice(GPUS).subject.path)
        assert written(teller, 0.0) == []
    else:
        there = ReasonNotice(notice(GPUS).subject, "Scheduled", "to n1", waits=False)
        teller.say(there, 0.0)
        assert written(teller, 0.0) == [("Scheduled", "to n1", 1)]
    assert written(teller, 10_000.0) == []


def test_a_pod_made_anew_under_the_same_name_is_told_as_a_new_one() -> None:
    teller = ReasonThrottle()
    teller.tell(notice(GPUS, uid="old"), 0.0)
    written(teller, 0.0)
    teller.tell(notice(GPUS, uid="new"), 1.0)
    [one] = teller.due(1.0)
    assert (one.subject.uid, one.first, one.times) == ("new", True, 1)


def placed(pod: int) -> ReasonNotice:
    return ReasonNotice(pod_subject(f"default/p{pod}"), "Scheduled", "to n", waits=False)


def test_every_binding_is_told_of_within_the_rate() -> None:
    teller = ReasonThrottle(rate_per_s=1.0, burst=5)
    for pod in range(50):
        teller.say(placed(pod), 0.0)
    assert len(written(teller, 0.0)) == 5
    assert written(teller, 0.0) == []
    told = [one for second in range(1, 60) for one in teller.due(float(second))]
    assert [one.subject for one in told] == [placed(pod).subject for pod in range(5, 50)]


def test_bindings_under_way_go_before_words_about_those_that_are_done() -> None:
    teller = ReasonThrottle()
    teller.say(placed(0), 0.0)
    teller.tell(notice(GPUS), 0.0)
    assert [one.token for one in teller.due(0.0, busy=True)] == [GPUS]
    assert list(teller.due(BEHIND_S - 0.1, busy=True)) == []
    assert [one.token for one in teller.due(BEHIND_S, busy=True)] == ["Scheduled"]
    teller.say(placed(1), 100.0)
    assert [one.subject for one in teller.due(100.0)] == [placed(1).subject]
