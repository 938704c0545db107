"""The dashboard's pages over a second scheduler at work: now, cluster, queue and decisions.

The same pages as of a service of our own, made from the scheduler's core. Watts are what may be
drawn at most, as the budgets count them; nothing is kept from before this copy began, and nothing
can be changed here: on Kubernetes that is done by objects, whose rights the cluster keeps.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.decide.feasibility import MOST_AT_WORK, read_pods
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import SITE
from wattherd.kube.live.scheduler import LiveScheduler
from wattherd.local.devices import Machine
from wattherd.model.cluster import NodeSpec
from wattherd.model.command import Command
from wattherd.model.event import Event
from wattherd.server.api.connections import server_of
from wattherd.server.documents.documents import SiteView
from wattherd.server.hardware.draw import DrawBook, DrawSample
from wattherd.server.journal.job_history import PastJob
from wattherd.server.journal.timeline import SYSTEM, SiteTimeline
from wattherd.server.web.page_reader import PageReader
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.pages import PageProblem, add_pages
from wattherd.store.entry import JournalEntry
from wattherd.store.projection import Projection
from wattherd.units import show_watts

PERIOD_S = 1.0


class Pasts(Mapping[str, PastJob]):
    """What pages ask of a job's past, of those that the core knows now."""

    def __init__(self, core: Core) -> None:
        """The core as it is; asked between two turns only."""
        self._core = core

    def __getitem__(self, job_id: str) -> PastJob:
        """The name is the pod's, without what tells its attempts apart."""
        record = self._core.jobs[job_id]
        pod = job_id.rpartition("#")[0]
        return PastJob(spec=record.spec, paper={"name": pod}, by="", first_start_s=None)

    def __iter__(self) -> Iterator[str]:
        """All ids."""
        return iter(self._core.jobs)

    def __len__(self) -> int:
        """How many."""
        return len(self._core.jobs)


class NoArchive:
    """Pods that are over are the API server's to tell of."""

    def jobs(self, asked: object) -> Sequence[Mapping[str, Any]]:
        """None."""
        del asked
        return ()

    def job(self, job_id: str) -> None:
        """None."""
        del job_id


class Dashboard:
    """What a scheduler at work lets pages look at; `begin` it before the scheduler."""

    def __init__(self, live: LiveScheduler) -> None:
        """Samples once a second from `begin` on."""
        self._scheduler: KubeScheduler = live.scheduler
        self._feed: ApiFeed = live.feed
        self._book = DrawBook()
        self._chronicle = SiteTimeline()
        self._serial = count(1)
        self._epoch = time.time() - time.monotonic()
        self._scheduler.dialogue.witness = self._note
        self._feed.also(self._sample_on)

    def scene(self) -> PageSource:
        """For the pages."""
        return PageSource(
            look=self._look,
            now_s=time.monotonic,
            chronicle=self._chronicle,
            projection=cast("Projection", NoArchive()),
            state=Path(),
            runs=Path("runs"),
            signals=self._domains,
            moves=True,
        )

    def _look(self, of: Callable[[SiteView], Any]) -> Any:
        return self._feed.turn(self._asked, of)

    def _asked(self, of: Callable[[SiteView], Any]) -> Any:
        core = self._scheduler.core
        if core is None:
            problem = "The cluster has not been seen yet, or it has no node."
            raise PageProblem(503, "Not yet", problem)
        return of(SiteView(core, Pasts(core), self._book, self._machine(core), self._epoch))

    def _machine(self, core: Core) -> Machine:
        """Nodes differ: what stands for all is the GPU that there is most of."""
        nodes = core.config.cluster.nodes
        models = Counter({node.gpu_model: 0 for node in nodes if node.gpu_count})
        for node in nodes:
            if node.gpu_count:
                models[node.gpu_model] += node.gpu_count
        model = max(models, key=lambda name: (models[name], name), default="T4")
        node = nodes[0] if nodes else NodeSpec(name="", cpu_milli=0, memory_mib=0)
        return Machine(node=node, devices=(), gpu=GPUS[model], stated="model")

    # What happens ---------------------------------------------------------------------------------

    def _note(self, event: Event, commands: Sequence[Command]) -> None:
        entry = JournalEntry(seq=next(self._serial), event=event, by=SYSTEM)
        self._chronicle.note(entry, commands)

    def _sample_on(self) -> None:
        while not self._feed.over.wait(PERIOD_S):
            if self._feed.sees():
                self._feed.turn(self._sample)

    def _sample(self) -> None:
        placer, core = self._scheduler.fleet.placer, self._scheduler.core
        if placer is None or core is None:
            return
        chooser = self._scheduler.chooser
        budget_mw = chooser.domains.budgets_mw.get(SITE)
        rise_mw = chooser.columns().rise_mw
        by_job = {
            record.id: float(sum(rise_mw[one.node] * len(one.gpus) for one in record.allocations))
            / 1000
            for record in core.jobs.values()
            if record.active
        }
        self._book.add(
            DrawSample(
                at_s=time.monotonic(),
                draw_w=chooser.carried_mw(placer.state)[SITE] / 1000,
                budget_w=None if budget_mw is None else budget_mw / 1000,
                by_job=by_job,
                stated="model",
            )
        )

    def _domains(self) -> list[dict[str, Any]]:
        """What every domain may draw of its budget, where the page Now tells of limits."""
        return self._feed.turn(self._by_domain)

    def _by_domain(self) -> list[dict[str, Any]]:
        chooser = self._scheduler.chooser
        placer = chooser.fleet.placer
        if placer is None:
            return []
        budgets, carried = chooser.domains.budgets_mw, chooser.carried_mw(placer.state)
        return [
            {
                "signal": f"power domain {name}" if name else "site",
                "contact": f"{show_watts(mw / 1000)} may be drawn of {show_watts(most / 1000)}",
                "note": "",
            }
            for name, mw in sorted(carried.items())
            if (most := budgets.get(name)) is not None
        ]

    # Pods -----------------------------------------------------------------------------------------

    def why(self, namespace: str, name: str) -> str:
        """What is told of a pod."""
        return self._feed.turn(self._why, f"{namespace}/{name}")

    def _why(self, key: str) -> str:
        told = self._scheduler.told(key)
        return told or "Nothing keeps this pod from running, or it is not known."

    def simulate(self, body: bytes) -> dict[str, Any]:
        """Whether pods would start now.

        Raises:
            UserError: it is no pod.
        """
        pods = read_pods(body, MOST_AT_WORK)
        found: dict[str, Any] = self._feed.turn(self._scheduler.simulate, pods)
        return found


def dashboard_app(dashboard: Dashboard) -> FastAPI:
    """The pages, `/jobs/NAMESPACE/NAME`, and `POST /simulate`."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    add_pages(app, dashboard.scene())

    def pod(namespace: str, name: str) -> Response:
        raise PageProblem(200, f"{namespace}/{name}", dashboard.why(namespace, name))

    async def simulate(request: Request) -> Response:
        try:
            found = await asyncio.to_thread(dashboard.simulate, await request.body())
        except UserError as error:
            return PlainTextResponse(f"{error.line()}\n", 400)
        return JSONResponse(found)

    app.add_api_route("/jobs/{namespace}/{name}", pod, methods=["GET"], response_model=None)
    app.add_api_route("/simulate", simulate, methods=["POST"], response_model=None)
    app.add_middleware(PageReader)
    return app


class Pages:
    """Serves an application on a listening socket, in a thread of its own."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        """Nothing is answered before `begin`."""
        self._server = server_of(app)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="wattherd-pages", daemon=True
        )

    def begin(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.should_exit = True
        self._thread.join()
