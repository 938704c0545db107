"""`GET /metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client.exposition import choose_encoder

from wattherd.model.job import JobSpec
from wattherd.server.api.http import TheCaller
from wattherd.server.api.metrics import Exposition, everybody
from wattherd.server.site.site import LiveSite


@dataclass(frozen=True, slots=True)
class _Page:
    """All that there is to be read by one caller, as encoders want it."""

    site: LiveSite
    exposition: Exposition
    sees: Callable[[JobSpec], bool]

    def collect(self) -> Iterator[Any]:
        """What was counted, then what is."""
        yield from self.site.tally.registry.collect()
        yield from self.exposition.families(self.sees)


def routes(app: FastAPI) -> None:
    """Add the page to an application that has its site."""
    site: LiveSite = app.state.site
    exposition = Exposition(site)
    if site.telemetry is not None:
        own = Exposition(site)
        site.telemetry.observe(lambda: own.series(everybody))

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request, caller: TheCaller) -> Response:
        """What there is to scrape, as text or OpenMetrics."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        page: Any = _Page(app.state.site, exposition, caller.sees)
        return Response(encode(page), media_type=content_type)
