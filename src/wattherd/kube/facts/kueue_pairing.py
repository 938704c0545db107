"""Which pod of a workload each stand-in stands for, once both are there.

Until its pods are bound a workload counts on the nodes that it was admitted for. From then on each
stand-in is where its pod is, and bears what was asked of it and read back: so that pods of Kueue
are capped like any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from wattherd.kube.api import names
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.pod_request import ask_of_foreign

_TOLD = (names.CAP_ASKED_W, names.CAP_APPLIED_W)


@dataclass(slots=True)
class Pairs:
    """Of one workload: real pods by the uid of their stand-in."""

    real: dict[str, Pod] = field(default_factory=dict)
    _stand_in: dict[str, str] = field(default_factory=dict)
    """By the uid of a real pod."""

    def knows(self, uid: str) -> bool:
        """Whether a real pod has its stand-in."""
        return uid in self._stand_in

    def paired(self, pod: Pod, stand_ins: Mapping[str, Pod]) -> str | None:
        """The uid of the stand-in for a real pod, now and later; None where all have theirs.

        A pod says itself whose it is: it is paired with one of its namespace that asks for as much.
        """
        uid = pod.metadata.uid
        if uid not in self._stand_in:
            label = pod.metadata.label(names.KUEUE_POD_SET)
            found = next(
                (
                    one
                    for one, stand_in in stand_ins.items()
                    if self._suits(one, label) and _covers(stand_in, pod)
                ),
                None,
            )
            if found is None:
                return None
            self._stand_in[uid] = found
        stand_in = self._stand_in[uid]
        self.real[stand_in] = pod
        return stand_in

    def _suits(self, stand_in: str, pod_set: str | None) -> bool:
        return stand_in not in self.real and pod_set in (None, stand_in.split("/")[1])

    def parted(self, uid: str) -> str | None:
        """A real pod is gone: the uid of its stand-in, if it had one."""
        stand_in = self._stand_in.pop(uid, None)
        if stand_in is not None:
            del self.real[stand_in]
        return stand_in


def _covers(stand_in: Pod, real: Pod) -> bool:
    same = stand_in.metadata.namespace == real.metadata.namespace
    return same and _gpus(real) <= _gpus(stand_in)


def _gpus(pod: Pod) -> int:
    return ask_of_foreign(pod).devices


def in_place(stand_in: Pod, real: Pod) -> Pod:
    """The stand-in, where its pod is and capped as that is."""
    written = real.metadata.annotations or {}
    told = {name: written[name] for name in _TOLD if name in written}
    meta, gone = stand_in.metadata, real.metadata.deletion_timestamp
    own = (meta.annotations or {}) | told
    about = replace(meta, annotations=own, deletion_timestamp=gone)
    return replace(
        stand_in, metadata=about, spec=replace(stand_in.spec, node_name=real.spec.node_name)
    )
