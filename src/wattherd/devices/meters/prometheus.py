"""A query of Prometheus, or of what speaks its API: `prom+http://HOST:9090/api/v1?query=...`.

An instant query (Prometheus documentation, "HTTP API") stamps its answer with the time of asking,
however old the sample behind it: up to five minutes. So the age must come with the query: a range
as in `power_watts[2m]` answers raw samples with their own times, of which the last is taken; or
`at=QUERY` names a second query for the time, such as `min(timestamp(power_watts))`.

`dcgm=HOST` writes both queries for the GPUs of a host with dcgm-exporter, whose power field is
called DCGM_FI_DEV_POWER_USAGE, and dcgm_power_usage before its version 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire import web
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.devices.wire.web import Server

OPTIONS = frozenset({"query", "at", "dcgm", *web.OPTIONS})
DCGM_FIELDS = "DCGM_FI_DEV_POWER_USAGE", "dcgm_power_usage"


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Asks `query` for the value and, if given, `at` for its Unix time."""

    server: Server
    path: str
    query: str
    at: str = ""
    concurrent = True

    def sample(self) -> MeterSample:
        """The one value of the query.

        Raises:
            DeviceError: no answer, no series or several.
        """
        value, at_s = self._ask(self.query)
        return MeterSample(value, self._ask(self.at)[0] if self.at else at_s)

    def close(self) -> None:
        """Nothing is kept open."""

    def _ask(self, query: str) -> tuple[float, float]:
        target = f"{self.path}/query?{urlencode({'query': query})}"
        return _latest(_data(self.server.get(target)), query)


def driver(uri: Uri, clock: Clock) -> Prometheus:
    """The driver that `uri` names.

    Raises:
        UserError: no query, or two ways to state it.
    """
    del clock  # the server's counts
    query, at = _queries(uri)
    path = quote(uri.path.rstrip("/") or "/api/v1")
    return Prometheus(web.server(uri, web.bearer), path, query, at)


def _queries(uri: Uri) -> tuple[str, str]:
    if "dcgm" not in uri.options:
        return uri.text_of("query"), uri.options.get("at", "")
    if "query" in uri.options or "at" in uri.options:
        raise uri.error("writes the query itself", field="dcgm", hint="leave out query and at")
    host = re.escape(uri.text_of("dcgm")).replace("\\", "\\\\")
    new, old = (f'{name}{{instance=~"{host}(:[0-9]+)?"}}' for name in DCGM_FIELDS)
    return f"sum({new}) or sum({old})", f"min(timestamp({new})) or min(timestamp({old}))"


def _data(answer: Any) -> Mapping[str, Any]:
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or answer.get("status") != "success":
        raise DeviceError(DeviceErrorKind.GARBAGE, "the answer is not of Prometheus' API")
    return data


def _latest(data: Mapping[str, Any], query: str) -> tuple[float, float]:
    """Value and time of the one series of an answer."""
    try:
        moment = _moment(data["resultType"], data["result"], query)
        return float(moment[1]), float(moment[0])
    except (KeyError, IndexError, TypeError, ValueError):
        raise DeviceError(DeviceErrorKind.GARBAGE, f"{query!r} gave no number") from None


def _moment(kind: str, result: Sequence[Any], query: str) -> Sequence[Any]:
    if kind == "scalar":
        return result
    if not result:
        raise DeviceError(DeviceErrorKind.ABSENT, f"no series answers {query!r}")
    if len(result) > 1:
        problem = f"{len(result)} series answer {query!r}; wrap it in sum(...) or name one"
        raise DeviceError(DeviceErrorKind.GARBAGE, problem)
    moment: Sequence[Any] = result[0]["values"][-1] if kind == "matrix" else result[0]["value"]
    return moment
