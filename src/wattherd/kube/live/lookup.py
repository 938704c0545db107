"""What is odd on a cluster: pods that nobody told us of for long, nodes that are over-committed."""

from __future__ import annotations

import http
from collections.abc import Sequence

from wattherd.kube.account.fleet import Holding
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Pod
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi

_POD = decoder(Pod)
_NOWHERE = Pod()


_SHOWN = 5


def note_overfull(feed: ApiFeed, nodes: Sequence[str]) -> None:
    """Have it told which nodes hold more than they have; another scheduler must have done that."""
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    feed.note("others put more on nodes than they have", ", ".join(nodes[:_SHOWN]) + more)


def found_pod(feed: ApiFeed, holding: Holding) -> Pod | None:
    """The pod as it is; one that is on no node where it is no more; None where nobody knows."""
    namespace, _, name = holding.key.partition("/")
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        answer = feed.loop.run(feed.transport.request("GET", path))
    except ApiUnreachable:
        return None
    except RefusedByApi as refused:
        return _NOWHERE if refused.status == http.HTTPStatus.NOT_FOUND else None
    pod = _POD.decode(answer.body)
    return pod if pod.metadata.uid == holding.uid else _NOWHERE
