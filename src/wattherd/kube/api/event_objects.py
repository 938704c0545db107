"""Events of `events.k8s.io/v1`, as we write them: what `kubectl describe` shows of an object."""

from __future__ import annotations

from wattherd.kube.api.api_objects import ObjectReference
from wattherd.kube.api.objects import Object, ObjectMeta


class EventSeries(Object, frozen=True):
    """How often the same was said, and when last (`MicroTime`)."""

    count: int = 0
    last_observed_time: str | None = None


class ApiEvent(Object, frozen=True):
    """News about `regarding`; of `note`, 1,024 bytes at most are taken."""

    api_version: str = "events.k8s.io/v1"
    kind: str = "Event"
    metadata: ObjectMeta = ObjectMeta()
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    note: str = ""
    type: str = ""
