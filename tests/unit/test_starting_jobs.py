"""Jobs that wait for their devices: who is looked at, and in which order."""

from __future__ import annotations

from wattherd.engine.core.plan import StartingJobs


def test_who_lacks_a_device_is_looked_at_when_one_comes_free_on_that_node() -> None:
    starting = StartingJobs()
    for name in ("a", "b", "c"):
        starting.put(name)
    assert starting.due() == ["a", "b", "c"]
    starting.look_past("a", 0)
    starting.look_past("b", 1)
    assert starting.due() == ["c"]
    assert sorted(starting.looked_past()) == ["a", "b"]
    starting.freed(1)
    assert starting.due() == ["b", "c"]
    starting.freed(0)
    assert starting.due() == ["a", "b", "c"]
    assert list(starting.looked_past()) == []


def test_a_job_that_is_planned_anew_is_looked_at_and_keeps_its_place() -> None:
    starting = StartingJobs()
    starting.put("a")
    starting.put("b")
    starting.look_past("a", 0)
    starting.put("a")
    assert starting.due() == ["a", "b"]
    assert len(starting) == 2


def test_who_has_left_the_line_is_not_looked_at_when_a_device_comes_free() -> None:
    starting = StartingJobs()
    starting.put("a")
    starting.put("b")
    starting.look_past("a", 0)
    starting.drop("a")
    starting.freed(0)
    assert starting.due() == ["b"]
    starting.put("a")
    assert starting.due() == ["b", "a"]
