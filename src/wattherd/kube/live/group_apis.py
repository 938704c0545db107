"""In which version an API server has groups as objects, and where one of them is told something.

Kubernetes has given native groups a new version with each release and serves the old one no more:
v1alpha2 in 1.36, v1alpha3 and v1beta1 in 1.37. What is read of them is the same in all of these;
only the condition that says how a group fares has another name since v1alpha3.
"""

from __future__ import annotations

from collections.abc import Callable

from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.discovery import is_kind_served
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.facts.pod_groups import GROUP_APIS, GroupId, GroupKind
from wattherd.kube.facts.reason_throttle import ReasonSubject, SubjectKind

PLURAL = "podgroups"
_FIRST_NATIVE = "scheduling.k8s.io/v1alpha2"


class GroupApis:
    """The version of each kind of groups on one cluster; none before `find`."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._versions: dict[GroupKind, str] = {}

    def find(self, feed: ApiFeed) -> dict[GroupKind, str]:
        """Ask the API server; paths of the lists of those kinds that it serves."""
        for kind, versions in GROUP_APIS.items():
            served = next((one for one in versions if _is_served(feed, one)), None)
            if served is not None:
                self._versions[kind] = served
        return {kind: f"/apis/{one}/{PLURAL}" for kind, one in self._versions.items()}

    def selections(self, feed: ApiFeed) -> dict[GroupKind, Selection[PodGroup]]:
        """What to follow: the kinds that are served, and those of others that may be installed."""
        found: dict[GroupKind, Selection[PodGroup]] = {}
        paths = self.find(feed)
        for kind, versions in GROUP_APIS.items():
            if kind is not GroupKind.NATIVE:
                path, served = f"/apis/{versions[0]}/{PLURAL}", Served.WHILE_INSTALLED
                found[kind] = Selection(paths.get(kind, path), PodGroup, served=served)
            elif kind in paths:
                found[kind] = Selection(paths[kind], PodGroup)
        return found

    def noting(self, kind: GroupKind) -> Callable[[bool], None]:
        """Is to be called with whether a kind of `selections` is served."""

        def note(served: bool) -> None:  # noqa: FBT001
            if served:
                self._versions.setdefault(kind, GROUP_APIS[kind][0])

        return note

    def subject(self, group: GroupId, uid: str = "") -> ReasonSubject | None:
        """A group that something is told of, where its kind is served."""
        version = self._versions.get(group.kind)
        if version is None:
            return None
        path = f"/apis/{version}/namespaces/{group.namespace}/{PLURAL}/{group.name}"
        return ReasonSubject(SubjectKind.GROUP, version, group.namespace, group.name, path, uid)


def _is_served(feed: ApiFeed, version: str) -> bool:
    return is_kind_served(feed, f"/apis/{version}", PLURAL)


def condition_type(version: str) -> str:
    """The condition by which groups of a version say whether they have their places."""
    native = version.partition("/")[0] == GroupKind.NATIVE
    later = native and version != _FIRST_NATIVE
    return "PodGroupInitiallyScheduled" if later else "PodGroupScheduled"
