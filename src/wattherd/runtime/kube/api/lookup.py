"""A pod that nobody told us of for long: what the API server says when asked."""

from __future__ import annotations

import http

from wattherd.runtime.kube.api.api_objects import decoder
from wattherd.runtime.kube.api.feed import Feed
from wattherd.runtime.kube.api.objects import Pod
from wattherd.runtime.kube.api.transport import Refused, Unreachable
from wattherd.runtime.kube.pods.fleet import Holding

_POD = decoder(Pod)
_NOWHERE = Pod()


def found_pod(feed: Feed, holding: Holding) -> Pod | None:
    """The pod as it is; one that is on no node where it is no more; None where nobody knows."""
    namespace, _, name = holding.key.partition("/")
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        answer = feed.loop.run(feed.transport.request("GET", path))
    except Unreachable:
        return None
    except Refused as refused:
        return _NOWHERE if refused.status == http.HTTPStatus.NOT_FOUND else None
    pod = _POD.decode(answer.body)
    return pod if pod.metadata.uid == holding.uid else _NOWHERE
