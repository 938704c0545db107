"""The API server refuses what a leader of an earlier term still sends, by the policy we ship."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, a_pod
from kube_parts import a_transport
from kube_server import wait_until
from term_fence import ACTS, GATE, Act, fenced, leases_of, refusal, signed

from wattherd.kube.api.binder import Bind, Binder, BindingState
from wattherd.kube.api.lease import Elector, Term, Times
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.facts.orders import ReleasePod
from wattherd.kube.live.leadership import Releaser

LEASE, TERM, HOLDER = "leader", 5, "the-leader"
NEVER = {
    "an earlier term": str(TERM - 1),
    "no number": "five",
    "a negative one": f"-{TERM}",
    "none": "",
    "one that no integer holds": "9" * 30,
}
ALWAYS = {"this term": str(TERM), "a later one": str(TERM + 1)}
ASKED = {"scheduler": 2, "admit": 2}
"""How often a mode asks itself before a request goes out: as it begins, and as it is written."""


@pytest.fixture(params=ACTS)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lease(plane: ControlPlane, namespace: str, mode: str) -> Iterator[str]:
    """The uid of one in its fifth term, that fences what the mode does to pods."""
    led = {"leaseTransitions": TERM, "holderIdentity": HOLDER}
    with fenced(plane.api, namespace, LEASE, mode, **led) as uid:
        yield uid


@pytest.fixture
def act(mode: str) -> Act:
    """What the mode does to pods."""
    return ACTS[mode]


def make(api: KubeApi, namespace: str, mode: str, name: str = "pod") -> str:
    """A pod that no scheduler touches, as the mode finds it; its uid."""
    gated = GATE if mode == "admit" else {}
    made = a_pod(name, scheduler="tests", spec=gated)
    return str(api.create(f"/api/v1/namespaces/{namespace}/pods", made)["metadata"]["uid"])


def is_free(api: KubeApi, namespace: str, name: str = "pod") -> bool:
    """Whether nothing was decided about it yet."""
    pod = api.pod(namespace, name)
    return "wattherd.dev/decision" not in pod["metadata"].get("annotations", {})


@pytest.mark.parametrize("term", NEVER.values(), ids=NEVER)
def test_what_was_not_decided_in_this_term_is_refused_with_both_terms(
    plane: ControlPlane, namespace: str, mode: str, act: Act, lease: str, term: str
) -> None:
    api = plane.api
    make(api, namespace, mode)
    why = refusal(lambda: act(api, namespace, "pod", signed(lease, term)))
    told = f"decided in term '{term}' of lease {namespace}/{LEASE}"
    assert f"{told}, in which term {TERM} has begun, of {HOLDER}" in why
    assert is_free(api, namespace)


@pytest.mark.parametrize("term", ALWAYS.values(), ids=ALWAYS)
def test_what_was_decided_in_this_term_is_done(
    plane: ControlPlane, namespace: str, mode: str, act: Act, lease: str, term: str
) -> None:
    """A later one: of a leader whose lease this API server has not seen yet."""
    make(plane.api, namespace, mode)
    act(plane.api, namespace, "pod", signed(lease, term))
    assert not is_free(plane.api, namespace)


def test_others_are_left_alone(
    plane: ControlPlane, namespace: str, mode: str, act: Act, lease: str
) -> None:
    """Who leads by another lease, by none, and who is none of ours."""
    early = signed(lease, 1)
    without = {name: text for name, text in early.items() if name != "wattherd.dev/lease"}
    notes = {"other-lease": signed("another", 1), "no-lease": without, "foreign": {}}
    for name, given in notes.items():
        make(plane.api, namespace, mode, name)
        act(plane.api, namespace, name, given)


def test_whoever_changes_another_thing_of_a_pod_decides_nothing(
    plane: ControlPlane, namespace: str
) -> None:
    """Its annotations are those of a term that is long over."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    with fenced(api, namespace, LEASE, "admit", leaseTransitions=TERM) as lease:
        api.create(pods, a_pod("pod", scheduler="tests", spec=GATE, annotations=signed(lease, 1)))
        api.merge(f"{pods}/pod", {"metadata": {"labels": {"team": "ml"}}})
        assert refusal(lambda: ACTS["admit"](api, namespace, "pod", signed(lease, 1, number=2)))


def test_who_leads_is_let_through_whatever_was_done_to_the_lease(
    plane: ControlPlane, namespace: str, mode: str, act: Act, lease: str
) -> None:
    """It was deleted and is made again, with the first term; then somebody writes to it."""
    api = plane.api
    for name in ("new", "late"):
        make(api, namespace, mode, name)
    api.delete(f"{leases_of(namespace)}/{LEASE}")
    about = ObjectMeta(name=LEASE, namespace=namespace)
    with a_transport(plane.kubeconfig, timeout_s=60) as (loop, transport):
        term = Term(about=about, identity="one", times=Times())
        elector = Elector(transport, term, np.random.default_rng(1))
        work = loop.begin(elector.run())
        wait_until(elector.may_act, "it leads")
        assert (elector.epoch, elector.lease_uid != lease) == (1, True)
        act(api, namespace, "new", signed(elector.lease_uid, 1))
        late = signed(elector.lease_uid, 0)
        wait_until(lambda: refusal(lambda: act(api, namespace, "late", late, "?dryRun=All")),
                   "its lease is seen")  # fmt: skip
        api.merge(f"{leases_of(namespace)}/{LEASE}", {"spec": {"leaseTransitions": 100}})
        wait_until(lambda: elector.epoch == 100, "it goes on in the term that somebody wrote")
        assert elector.may_act()
        work.cancel()


Sends = Callable[[Callable[[], bool]], tuple[BindingState, str]]


@pytest.fixture
def sends(plane: ControlPlane, namespace: str, mode: str, lease: str) -> Iterator[Sends]:
    """Our own client sends what was decided a term ago, as long as it holds that it leads."""
    uid, notes = make(plane.api, namespace, mode), signed(lease, TERM - 1)
    draws = np.random.default_rng(1)
    with a_transport(plane.kubeconfig, timeout_s=60) as (loop, transport):

        def send(leads: Callable[[], bool]) -> tuple[BindingState, str]:
            if mode == "admit":
                order = ReleasePod(uid, f"{namespace}/pod", "d-1", notes, needs=())
                released = loop.run(Releaser(transport, draws, may_act=leads).release(order, {}))
                return released.outcome, released.why
            order = Bind(namespace=namespace, pod="pod", uid=uid, node="nowhere", decision="d-1",
                         annotations=notes)  # fmt: skip
            bound = loop.run(Binder(transport, draws, may_bind=leads).bind(order))
            return bound.outcome, bound.why

        yield send


def test_a_leader_that_is_refused_is_denied_and_told_why(sends: Sends) -> None:
    outcome, why = sends(lambda: True)
    assert outcome is BindingState.DENIED
    assert f"in which term {TERM} has begun" in why


def test_one_that_was_stopped_after_it_asked_itself_is_fenced_and_lacks_nothing(
    sends: Sends, mode: str
) -> None:
    """It holds that it leads until the request is written, and no longer."""
    asked = iter([True] * ASKED[mode])
    outcome, why = sends(lambda: next(asked, False))
    assert outcome is BindingState.FENCED
    assert f"in which term {TERM} has begun" in why
