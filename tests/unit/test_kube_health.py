"""What kubelets are told: alive, ready, leading; and addresses that are none."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("aiohttp", reason="needs the extra kube")
pytest.importorskip("msgspec", reason="needs the extra kube")

from wattherd.cli.listening import answering
from wattherd.errors import UserError
from wattherd.experiments.schedule.plugin_policies import PluggedPlanner
from wattherd.kube.api.feed import REFUSED_S, RefusedInARow
from wattherd.kube.api.health import Checkup, HealthServer
from wattherd.plugin_watch import PluginWatch


@dataclass
class SomeFeed:
    """A feed in any state."""

    living: bool = True
    seeing: bool = True
    troubles: list[str] = field(default_factory=list)
    refusals: RefusedInARow = field(default_factory=RefusedInARow)

    @property
    def complaints(self) -> list[str]:
        return self.troubles

    def alive(self) -> bool:
        return self.living

    def sees(self) -> bool:
        return self.seeing


def a_checkup(leads: bool = True, **feed: Any) -> Checkup:
    return Checkup(cast("Any", SomeFeed(**feed)), lambda: leads, lambda: "more 1\n")


def test_one_that_stands_by_is_ready_and_says_that_it_does_not_lead() -> None:
    checkup = a_checkup(leads=False)
    assert checkup.look("/readyz") == (200, "ok\n")
    status, metrics = checkup.look("/metrics")
    assert status == 200
    assert "wattherd_kube_leads 0\n" in metrics
    assert "wattherd_kube_troubles 0\n" in metrics
    assert metrics.endswith("more 1\n")


def test_one_of_many_that_work_side_by_side_does_not_say_that_it_leads() -> None:
    status, metrics = Checkup(cast("Any", SomeFeed())).look("/metrics")
    assert status == 200
    assert "wattherd_kube_sees 1\n" in metrics
    assert "leads" not in metrics


def test_one_that_does_not_see_the_cluster_says_why_and_is_not_restarted() -> None:
    checkup = a_checkup(seeing=False, troubles=["/api/v1/nodes: 403"])
    assert checkup.look("/readyz") == (503, "the cluster is not seen\n/api/v1/nodes: 403\n")
    assert checkup.look("/healthz")[0] == 200


def test_one_whose_scheduler_does_not_return_says_where_it_is_and_answers_all_the_same() -> None:
    """What it is fed with is asked for in turn, and its turn would never come."""

    class Asked:
        def __init__(self) -> None:
            self.goes_on = threading.Event()

        def plan(self, view: object, draft: object) -> None:
            self.goes_on.wait(60)

    stuck, draft = Asked(), cast("Any", SimpleNamespace(mark=lambda: 0))
    planner = PluggedPlanner("mine", cast("Any", stuck))
    planner.watch = PluginWatch("scheduler 'mine'", 0.0)
    thread = threading.Thread(
        target=planner.plan, args=(cast("Any", SimpleNamespace(now_s=0.0)), draft)
    )
    thread.start()
    try:
        while not planner.watch.trouble:
            time.sleep(0.01)
        checkup = a_checkup()
        status, text = checkup.look("/readyz")
        assert status == 503
        assert text.startswith("scheduler 'mine' has not returned for 0 s: it is at ")
        assert checkup.look("/healthz")[0] == 200
        metrics = checkup.look("/metrics")[1]
        assert "wattherd_kube_troubles 1\n" in metrics
        assert "more 1" not in metrics
    finally:
        stuck.goes_on.set()
        thread.join()
    assert a_checkup().look("/readyz") == (200, "ok\n")


def test_one_whose_thread_ended_is_restarted() -> None:
    assert a_checkup(living=False).look("/healthz")[0] == 503


def test_it_tells_and_takes_nothing() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = HealthServer(a_checkup(), listener)
    server.begin()
    try:
        with urllib.request.urlopen(f"{url}/healthz?x=1", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(f"{url}/bind", data=b"{}", timeout=60)
    finally:
        server.close()
    assert listener.fileno() == -1


@pytest.mark.parametrize("address", ["8081", "127.0.0.1:", "127.0.0.1:70000", ":8081", "a:b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="no address"), answering(address, a_checkup()):
        pass


def test_one_whose_decisions_are_all_refused_is_not_ready_until_one_is_not() -> None:
    refusals, why = RefusedInARow(), "cannot create resource pods/binding"
    checkup = a_checkup(refusals=refusals)
    now_s = time.monotonic()
    for number in range(3):
        assert checkup.look("/readyz")[0] == 200, "a pod or two may be refused for what they are"
        refusals.heard(why, now_s - REFUSED_S + number)
    assert checkup.look("/readyz") == (503, f"all that is decided is refused: {why}\n")
    assert checkup.look("/healthz")[0] == 200, "to start it again would give it no rights"
    refusals.heard("", now_s)
    assert checkup.look("/readyz")[0] == 200
    for _ in range(9):
        refusals.heard(why, now_s)
    assert checkup.look("/readyz")[0] == 200, "a burst of one moment"


def test_it_lives_and_is_not_ready_while_what_decides_is_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering("127.0.0.1:0") as tell:
        url = capsys.readouterr().err.removeprefix("health on ").strip()
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/readyz", timeout=60)
        tell(a_checkup())
        with urllib.request.urlopen(f"{url}/readyz", timeout=60) as answer:
            assert answer.status == 200
