"""What is written of jobs: in the order in which it was decided, and never on a guess."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from wattherd.kube.api.objects import OwnerReference, Pod
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi
from wattherd.kube.facts.orders import EvictPod, ResizeOwner, ResumeOwner, StopRun
from wattherd.kube.live import enforcer_io
from wattherd.kube.live.enforcer_io import TURN, EnforcerIo, Suspended

JOB = {
    "metadata": {"name": "el", "namespace": "t", "uid": "job-el"},
    "spec": {"completionMode": "Indexed"},
}
PATH = "/apis/batch/v1/namespaces/t/jobs/el"
OWNER = OwnerReference(api_version="batch/v1", kind="Job", name="el", uid="job-el")
POD = EvictPod("uid-0", "t/el-0", "Resized", 0.0)


class SlowApi:
    """Answers when its `delays_s`, one for each request, are over; fails as it is told to."""

    def __init__(self, *delays_s: float, fails: Exception | None = None) -> None:
        self.delays_s, self.fails = list(delays_s), fails
        self.written: list[tuple[str, Any]] = []

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> Any:
        await asyncio.sleep(self.delays_s.pop(0) if self.delays_s else 0.0)
        if method == "PATCH" and self.fails is not None:
            raise self.fails
        if method != "GET":
            self.written.append((path.rpartition("/")[2], json.loads(body)))
        return SimpleNamespace(body=json.dumps(JOB).encode())

    def io(self) -> EnforcerIo:
        tasks = self.tasks = set[asyncio.Task[None]]()
        feed = SimpleNamespace(
            transport=self,
            loop=SimpleNamespace(begin=lambda made: tasks.add(asyncio.ensure_future(made))),
            turns=SimpleNamespace(submit=lambda *_: None),
        )
        return EnforcerIo(feed, None, lambda *_: None)  # type: ignore[arg-type]

    async def done(self) -> None:
        await asyncio.gather(*self.tasks)


def test_of_two_sizes_the_one_that_was_ordered_last_stays() -> None:
    async def both() -> list[int]:
        api = SlowApi(0.05)
        io = api.io()
        io.carry_out(ResizeOwner("job-el", "t", "el", 1))
        io.carry_out(ResizeOwner("job-el", "t", "el", 3))
        await api.done()
        assert not io._of_job
        return [body["spec"]["parallelism"] for _, body in api.written]

    assert asyncio.run(both()) == [1, 3]


def test_a_job_is_run_on_before_what_was_ordered_after_that() -> None:
    async def both() -> list[Any]:
        api = SlowApi(0.05)
        io = api.io()
        io.carry_out(ResumeOwner("job-el", PATH))
        io.carry_out(ResizeOwner("job-el", "t", "el", 3))
        await api.done()
        return [body["spec"].get("parallelism") for _, body in api.written]

    assert asyncio.run(both()) == [None, 3]


def test_who_is_to_return_in_another_size_is_not_run_on_in_the_old_one() -> None:
    async def both() -> list[Any]:
        api = SlowApi()
        io = api.io()
        io.returning["job-el"] = Suspended(PATH, {}, 0, "")
        resize = ResizeOwner("job-el", "t", "el", 3)
        io.resume_those_without([], [resize])
        io.carry_out(resize)
        await api.done()
        return [body["spec"] for _, body in api.written]

    assert asyncio.run(both()) == [{"parallelism": 3, "completions": 3}]


def test_who_has_no_pods_and_no_new_size_is_run_on() -> None:
    async def one() -> list[Any]:
        api = SlowApi()
        io = api.io()
        io.returning["job-el"] = Suspended(PATH, {}, 0, "")
        io.resume_those_without([Pod()])
        await api.done()
        return [body["spec"] for _, body in api.written]

    assert asyncio.run(one()) == [{"suspend": False}]


@pytest.mark.parametrize(
    ("fails", "evicts"),
    [
        (ApiUnreachable("no answer"), False),
        (RefusedByApi(409, "Conflict", "written by others"), False),
        (RefusedByApi(503, "ServiceUnavailable", "later"), False),
        (RefusedByApi(403, "Forbidden", "no right"), True),
        (RefusedByApi(404, "NotFound", "it is gone"), True),
    ],
    ids=["unreachable", "conflict", "overloaded", "forbidden", "gone"],
)
def test_pods_are_evicted_only_where_their_job_is_known_not_to_be_suspended(
    fails: Exception, evicts: bool
) -> None:
    """An evicted pod counts as failed; who may be suspended, or may be later, is asked again."""
    api = SlowApi(fails=fails)
    stop = StopRun(evictions=(POD,), owner=OWNER)
    left = asyncio.run(api.io().stop_run(stop, lambda: True))
    assert [name for name, _ in api.written] == (["eviction"] if evicts else [])
    assert left == ([] if evicts else ["uid-0"])


def test_who_is_suspended_and_does_not_go_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcer_io, "WAIT_S", 0.01)
    api = SlowApi()
    stop = StopRun(evictions=(POD,), owner=OWNER)
    assert asyncio.run(api.io().stop_run(stop, lambda: True)) == []
    assert [name for name, _ in api.written] == ["el", "eviction"]
    assert api.written[0][1]["metadata"]["labels"] == {"wattherd.dev/suspended": TURN}
