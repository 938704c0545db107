"""Works: sets of pods that start together, as jobs of the core.

A work is one attempt to run certain pods: a gang whole, any other pod alone, a pod that is on its
node already as what it is. When its pods change, it is called off and another one takes its place;
nothing is remembered that the API does not say.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from wattherd.errors import UserError
from wattherd.kube.api import names
from wattherd.kube.api.objects import ObjectMeta, Pod
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.refusal import NodeRefusal, PodRefused, RefusalToken
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.policy.contract import Share
from wattherd.policy.schedule.gang import STOPS_NOBODY
from wattherd.units import plain, seconds

_DEFAULT_GRACE_S = 30.0
FOREIGN = 1 << 40
"""Of what is not ours to stop: above everything, as priorities of Kubernetes are 32 bits wide."""


@dataclass(frozen=True, slots=True)
class WorkloadPod:
    """A pod of a work and what it asks for."""

    pod: Pod
    ask: PodRequest

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.pod.metadata.uid

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"


@dataclass(frozen=True, slots=True)
class Workload:
    """`members` in the order of their roles; `spec` is the job that stands for them.

    It came at `came_s`, when its newest pod was made by the cluster's clock; a job that was stopped
    keeps the time of its first pods, whatever is made in their place.
    """

    spec: JobSpec
    members: tuple[WorkloadPod, ...]
    seated: bool = False
    """Whether its pods are on their nodes; then `shares` say where."""
    shares: tuple[Share, ...] = ()
    came_s: float = 0.0

    @property
    def id(self) -> str:
        """Of the job."""
        return self.spec.id

    @property
    def uids(self) -> frozenset[str]:
        """Of its pods."""
        return frozenset(member.uid for member in self.members)


def work_of(
    job_id: str,
    members: Sequence[WorkloadPod],
    requests: Sequence[Request],
    at_s: float,
    *,
    priority: int = 0,
    wishes: Sequence[Hashable] = (),
) -> Workload:
    """A job with one role for each different request; members by role, then by name.

    Where `wishes` are given, one for each member, only members of equal ones share a role.
    """
    sorts = list(zip(requests, wishes or [None] * len(requests), strict=True))
    kinds = list(dict.fromkeys(sorts))
    pairs = sorted(
        zip(members, sorts, strict=True), key=lambda pair: (kinds.index(pair[1]), pair[0].key)
    )
    first = members[0].pod
    spec = JobSpec(
        id=job_id,
        submit_s=at_s,
        roles=tuple(_role(number, kind[0], sorts.count(kind)) for number, kind in enumerate(kinds)),
        gpu_models=_models([request for request, _ in kinds]),
        priority=priority,
        queue=queue_of(first),
        tenant=first.metadata.namespace,
        user=first.metadata.namespace,
        grace_s=max(grace_s(member.pod) for member in members),
        labels=_labels(members),
    )
    return Workload(spec, tuple(member for member, _ in pairs), came_s=_made_s(members))


def _labels(members: Sequence[WorkloadPod]) -> tuple[tuple[str, str], ...]:
    never = any(member.pod.spec.preemption_policy == "Never" for member in members)
    return (STOPS_NOBODY,) if never else ()


def seated_work(
    job_id: str,
    members: Sequence[WorkloadPod],
    seats: Sequence[Allocation],
    at_s: float,
    *,
    priority: int,
) -> Workload:
    """A job that runs already, in exactly these seats: facts, of whatever sizes they are.

    Members are by role, as those of jobs that wait, where each has one seat.
    """
    kinds = list(dict.fromkeys(seat.request for seat in seats))
    if len(seats) == len(members):
        order = sorted(range(len(seats)), key=lambda at: kinds.index(seats[at].request))
        members, seats = [members[at] for at in order], [seats[at] for at in order]
    requests = [seat.request for seat in seats]
    first = members[0].pod
    spec = JobSpec(
        id=job_id,
        submit_s=at_s,
        roles=tuple(_role(number, kind, requests.count(kind)) for number, kind in enumerate(kinds)),
        priority=priority,
        queue=queue_of(first),
        tenant=first.metadata.namespace,
        user=first.metadata.namespace,
        grace_s=max(grace_s(member.pod) for member in members),
        labels=_labels(members),
    )
    shares = [Share(seat.node, 1, kinds.index(seat.request), gpus=seat.gpus) for seat in seats]
    return Workload(
        spec, tuple(members), seated=True, shares=tuple(shares), came_s=_made_s(members)
    )


def _made_s(members: Sequence[WorkloadPod]) -> float:
    """When the newest pod was made, since 1970; 0 where none says so."""
    times = [member.pod.metadata.creation_timestamp for member in members]
    return max((datetime.fromisoformat(one).timestamp() for one in times if one), default=0.0)


def widths_of(pod: Pod) -> tuple[int, int] | None:
    """With how few and how many pods its Job runs; None where it does not say so.

    Raises:
        UserError: what it says cannot be read.
    """
    text = pod.metadata.label(names.ELASTIC)
    if text is None:
        return None
    least, dash, most = text.partition("-")
    if not (dash and _is_width(least) and _is_width(most) and int(least) <= int(most)):
        raise UserError(f"{text} are no numbers of pods", field=names.ELASTIC, hint="as in 1-4")
    return int(least), int(most)


def _is_width(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5 and int(text) > 0


def elastic(spec: JobSpec, members: Sequence[WorkloadPod]) -> JobSpec:
    """The job as one that runs with more pods or fewer, if its pods are alike and say so."""
    try:
        widths = widths_of(members[0].pod)
    except UserError:
        return spec
    if widths is None or len(spec.roles) > 1 or not widths[0] <= len(members) <= widths[1]:
        return spec
    role = replace(spec.roles[0], count=widths[0])
    return replace(spec, roles=(role,), min_width=widths[0], max_width=widths[1])


def told_of(spec: JobSpec, members: Sequence[WorkloadPod]) -> JobSpec:
    """The job with all that its first pod says of it: how long it runs, by when, what kind it is.

    What cannot be read was refused before (`check_told`), or is of a pod that runs already.
    """
    about = members[0].pod
    try:
        duration_s, within_s = _seconds(about, names.DURATION), _seconds(about, names.DEADLINE)
    except UserError:
        duration_s = within_s = None
    return replace(
        spec,
        duration_s=duration_s,
        deadline_s=None if within_s is None else spec.submit_s + within_s,
        power_profile=power_profile_of(about),
        labels=(*spec.labels, *_kind(power_profile_of(about))),
    )


def _kind(profile: str) -> tuple[tuple[str, str], ...]:
    """Jobs of one namespace that say so are as fast as each other: what one shows, all have."""
    return (("kind", profile),) if profile else ()


def check_told(pod: Pod) -> None:
    """What a pod says of its job can be read.

    Raises:
        PodRefused: it cannot; the token is `InvalidPod`.
    """
    try:
        for name in (names.DURATION, names.DEADLINE):
            _seconds(pod, name)
        widths_of(pod)
    except UserError as error:
        raise PodRefused(NodeRefusal(RefusalToken.INVALID_POD, error.line())) from None


def _seconds(pod: Pod, name: str) -> float | None:
    text = pod.metadata.annotation(name)
    return None if text is None else seconds(plain(text), field=name)


def power_profile_of(pod: Pod) -> str:
    """The kind of job that a pod says it is, for its power curve; empty where it says nothing."""
    meta = pod.metadata
    return meta.annotation(names.POWER_PROFILE) or meta.label(names.POWER_PROFILE) or ""


def queue_of(pod: Pod) -> str:
    """The queue that a pod names, by our label or Kueue's; `default` where it names none."""
    meta = pod.metadata
    return meta.label(names.QUEUE) or meta.label(names.KUEUE_QUEUE) or "default"


def _role(number: int, request: Request, count: int) -> TaskRole:
    return TaskRole(
        name=f"pod (kind {number + 1})" if number else "pod",
        count=count,
        cpu_milli=request.cpu_milli,
        memory_mib=request.memory_mib,
        gpu_count=request.gpu_count,
        gpu_milli=request.gpu_milli,
    )


def grace_s(pod: Pod) -> float:
    """How long a pod may take to stop."""
    given = pod.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE_S if given is None else max(0.0, float(given))


def _models(kinds: Sequence[Request]) -> tuple[str, ...]:
    """Models that any of them may use; whoever chooses knows which one may use which."""
    using = [kind.models for kind in kinds if kind.gpu_count]
    if not all(using):
        return ()
    return tuple(dict.fromkeys(model for models in using for model in models))


def role_of(work: Workload, position: int) -> int:
    """The role of member number `position`."""
    for number, role in enumerate(work.spec.roles):
        if position < role.count:
            return number
        position -= role.count
    raise IndexError(position)


def _without_progress(meta: ObjectMeta) -> Mapping[str, str] | None:
    """A job that tells how far it is asks for nothing else than before."""
    notes = meta.annotations
    if notes is None or names.PROGRESS not in notes:
        return notes
    return {name: text for name, text in notes.items() if name != names.PROGRESS}


def alike(one: Pod, other: Pod) -> bool:
    """Whether a pod is as it was in all that decides when and where it goes."""
    before, now = one.metadata, other.metadata
    return one.spec == other.spec and (
        before.labels == now.labels
        and _without_progress(before) == _without_progress(now)
        and before.deletion_timestamp == now.deletion_timestamp
    )
