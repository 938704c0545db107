"""Whether pods would start now, and where: feasible, not reserved.

The answer is that of this moment and binds nobody: room and watts are taken for the length of the
question and given back before it is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from wattherd.errors import UserError
from wattherd.kube.account.quota import OUTSIDE, QueueQuota
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.objects import Container, Object, Pod, PodSpec
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.decide.reasons import finding_of
from wattherd.kube.decide.remedies import Remedies, Remedy
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.node_filter import Volumes, unsupported
from wattherd.kube.facts.pod_request import ask_of
from wattherd.kube.facts.refusal import PodRefused
from wattherd.kube.facts.workload import WorkloadPod

SCHEMA = "wattherd.kube.simulate/1"
MOST_PODS = 2000
MOST_AT_WORK = 64
"""Asked of one who decides for a cluster meanwhile, and answers others within 200 ms."""


class _Item(Object, frozen=True):
    kind: str = ""
    items: list[Pod] | None = None


_ITEM, _POD = decoder(_Item), decoder(Pod)


def read_pods(body: bytes, most: int = MOST_PODS) -> list[Pod]:
    """A pod, or a list of at most so many pods (`kind: List` or `PodList`), as JSON.

    Raises:
        UserError: it is neither, or there are too many.
    """
    try:
        item = _ITEM.decode(body)
        pods = item.items or [] if item.items is not None else [_POD.decode(body)]
    except msgspec.MsgspecError as error:
        raise UserError(f"no pod: {error}", hint="send a Pod, or a List of pods") from None
    if not 0 < len(pods) <= most or not all(pod.spec.containers for pod in pods):
        hint = f"send 1 to {most} pods with containers"
        raise UserError(f"{len(pods)} pods, or one without containers", hint=hint)
    return pods


@dataclass(frozen=True, slots=True)
class PodFeasibility:
    """Answers on the account that `diagnosis` and `remedies` look at, within `quota`."""

    diagnosis: Diagnosis
    remedies: Remedies
    volumes: Volumes
    quota: QueueQuota

    def of(self, pods: Sequence[Pod], *, seeks_help: bool = True) -> dict[str, Any]:
        """Whether all of `pods` would start together: `wattherd.kube.simulate/1`.

        What would help is sought by trying, which takes long on large clusters: not where others
        wait for their turn.
        """
        try:
            members = [self._member(number, pod) for number, pod in enumerate(pods)]
        except PodRefused as refused:
            refusal = refused.refusal
            return _answer([], PodFinding(str(refusal.token), refusal.text), ())
        if self.diagnosis.chooser.fleet.placer is None:
            return _answer([], self.diagnosis.of(members[0]), ())
        admitted, beyond = self.quota.admits(members)
        with self.remedies.placed(members[:admitted]) as places:
            told = [
                self._place(member, *place) for member, place in zip(members, places, strict=False)
            ]
            finding = None if beyond is None else finding_of(beyond)
            if len(places) < admitted:
                finding = self._why(members[len(places) :])
        helps = seeks_help and beyond is None and finding is not None
        return _answer(told, finding, self.remedies.of(members) if helps else ())

    def _why(self, left: Sequence[WorkloadPod]) -> PodFinding:
        """What keeps the first of those `left`, beside whom all of them need a place."""
        first = left[0]
        suits, within = self.diagnosis.eligible.mask(first.pod), self.quota.within(first.pod)
        if within is not None and suits.any() and not (suits & within).any():
            return PodFinding(str(OUTSIDE.token), OUTSIDE.text)
        return self.diagnosis.of(first, len(left) - 1, within)

    def _member(self, number: int, pod: Pod) -> WorkloadPod:
        uid = f"simulated-{number}"
        about = pod.metadata
        name = about.name or f"{about.generate_name}{number}"
        about = replace(about, uid=uid, name=name, namespace=about.namespace or "default")
        pod = replace(pod, metadata=about, spec=_defaulted(pod.spec))
        refusal = unsupported(pod, self.volumes)
        if refusal is not None:
            raise PodRefused(refusal)
        return WorkloadPod(pod, ask_of(pod))

    def _place(
        self, member: WorkloadPod, node: str, gpus: Iterable[int], mw: int
    ) -> dict[str, Any]:
        return {
            "pod": member.key,
            "node": node,
            "gpus": list(gpus),
            "watts": mw / 1000,
            "power_domain": self.diagnosis.chooser.fleet.nodes[node].domain,
        }


def _defaulted(spec: PodSpec) -> PodSpec:
    """As the API server would write it: who names a limit alone asks for as much."""

    def given(container: Container) -> Container:
        amounts = container.resources
        if amounts is None or not amounts.limits:
            return container
        asked = {**amounts.limits, **(amounts.requests or {})}
        return replace(container, resources=replace(amounts, requests=asked))

    return replace(
        spec,
        containers=[given(one) for one in spec.containers or ()],
        init_containers=[given(one) for one in spec.init_containers or ()],
    )


def _answer(
    places: list[dict[str, Any]], finding: PodFinding | None, remedies: Iterable[Remedy]
) -> dict[str, Any]:
    """What cannot all be is not said to be placed in part."""
    return {
        "schema": SCHEMA,
        "feasible": finding is None,
        "reserved": False,
        "pods": places if finding is None else [],
        "reason": None if finding is None else finding.token,
        "text": "" if finding is None else finding.text,
        "would_start": [remedy_document(remedy) for remedy in remedies],
    }


def remedy_document(remedy: Remedy) -> dict[str, Any]:
    """As JSON."""
    return {
        "kind": remedy.kind,
        "text": remedy.text,
        "raise_w": remedy.watts or {},
        "pods": list(remedy.pods),
    }
