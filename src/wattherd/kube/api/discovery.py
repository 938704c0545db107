"""Which kinds an API server has, asked for when we start.

No answer is no answer: whoever took it for a no, while an API server starts or cannot be reached,
would go without the budgets, queues and groups that are there until somebody starts him anew. So
it is asked again until the API server says yes or no; meanwhile nothing is decided.
"""

from __future__ import annotations

import http

import msgspec

from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Object
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi

AGAIN_S = 1.0
_UNKNOWN = "it is not known what the API server has"


class _Resource(Object, frozen=True):
    name: str = ""


class _Resources(Object, frozen=True):
    """APIResourceList: the kinds of one group and version."""

    resources: list[_Resource] | None = None


_RESOURCES = decoder(_Resources)


def is_kind_served(feed: ApiFeed, path: str, plural: str) -> bool:
    """Whether the API server knows a kind; waits for as long as nobody answers.

    A version may be there for others of its group. False if `feed` is unwanted before that.
    """
    answer = _asked(feed, path)
    try:
        found = _RESOURCES.decode(answer or b"{}").resources
    except msgspec.MsgspecError:
        return False
    return any(one.name == plural for one in found or ())


def _asked(feed: ApiFeed, path: str) -> bytes | None:
    """What is said of a group and version; None where there is none."""
    while not feed.unwanted.is_set():
        try:
            answer = feed.loop.run(feed.transport.request("GET", path))
        except (RefusedByApi, ApiUnreachable) as problem:
            missing = (
                isinstance(problem, RefusedByApi) and problem.status == http.HTTPStatus.NOT_FOUND
            )
            feed.note(_UNKNOWN, "" if missing else str(problem))
            if missing:
                return None
            feed.unwanted.wait(AGAIN_S)
        else:
            feed.note(_UNKNOWN)
            return answer.body
    return None
