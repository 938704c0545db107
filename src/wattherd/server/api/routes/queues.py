"""Queues: looked at, stopped, and changed while the site is at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Query

from wattherd.errors import UserError
from wattherd.model.event import QueuesChanged, QueueStarted, QueueStopped
from wattherd.server.api.http import TheCaller, TheSite, action_of, done, look_up
from wattherd.server.api.schemas.groupings import QueuesDocument
from wattherd.server.api.schemas.shape import answers
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView
from wattherd.server.documents.queue_changes import QueueChange, changed, event_of, present, removed
from wattherd.server.problems import NotFound
from wattherd.server.site.groupings import queues_document
from wattherd.server.site.site import LiveSite
from wattherd.workload.scenario import QueueField

ACTIONS = {"stop": QueueStopped, "start": QueueStarted}
QueueName = Annotated[str, Path(description="its name", examples=["research"])]
Scale = Annotated[bool, Query(description="the guarantees of those beside it make up for it")]
Action = Annotated[str, action_of(ACTIONS)]
Asked = Annotated[
    QueueChange, Body(examples=[{"guaranteed_pct": 60, "maximum_pct": 100, "scale_others": True}])
]
Tree = Annotated[
    QueueField,
    Body(
        examples=[
            {
                "name": "root",
                "children": [
                    {"name": "research", "guaranteed_pct": 60},
                    {"name": "service", "guaranteed_pct": 40},
                ],
            }
        ]
    ),
]
Change = Callable[[QueueField], QueueField]


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    changing = asyncio.Lock()  # a change is made of the tree that the one before it left
    _look_routes(app)

    async def change(site: LiveSite, caller: Caller, how: Change, what: str) -> dict[str, Any]:
        async with changing:
            return await _change(site, caller, how, what)

    @app.put("/api/v1/queues", responses=answers(QueuesDocument))
    async def replace_queues(site: TheSite, caller: TheCaller, tree: Tree) -> dict[str, Any]:
        """Another tree in place of the one there is, in force at once and after every restart."""
        return await change(site, caller, lambda _: tree, "another tree")

    @app.put("/api/v1/queues/{queue}", responses=answers(QueuesDocument))
    async def set_queue(
        site: TheSite, caller: TheCaller, queue: QueueName, asked: Asked
    ) -> dict[str, Any]:
        """Change one queue, or make it below `parent`; guarantees must still add up."""
        return await change(site, caller, lambda root: changed(root, queue, asked), f"set {queue}")

    @app.delete("/api/v1/queues/{queue}", responses=answers(QueuesDocument))
    async def remove_queue(
        site: TheSite, caller: TheCaller, queue: QueueName, *, scale_others: Scale = False
    ) -> dict[str, Any]:
        """Do away with a queue in which no job is left, and with those below it."""

        def without(root: QueueField) -> QueueField:
            if queue not in root.names():
                raise NotFound(f"no queue {queue!r}", hint=f"queues: {', '.join(root.names())}")
            return removed(root, queue, scale_others=scale_others)

        return await change(site, caller, without, f"remove {queue}")


def _look_routes(app: FastAPI) -> None:
    @app.get("/api/v1/queues", responses=answers(QueuesDocument))
    async def list_queues(site: TheSite) -> dict[str, Any]:
        """Queues as a list, parents first: promised, allowed and used, stopped since when."""
        return await look_up(site, queues_document)

    @app.post("/api/v1/queues/{queue}/{action}", responses=answers(QueuesDocument))
    async def act_on_queue(
        site: TheSite, caller: TheCaller, queue: QueueName, action: Action
    ) -> dict[str, Any]:
        """Stop a queue (what runs goes on, nothing more is started), or start it again."""
        try:
            names = (await look_up(site, present)).names()
        except UserError:
            names = site.config.queues.names() if site.config.queues else []
        if not names:
            hint = "give `serve` a file with `queues`"
            raise UserError("this site has no queues of its own", field="queue", hint=hint)
        if queue not in names or action not in ACTIONS:
            hint = f"queues: {', '.join(names)}; actions: {', '.join(ACTIONS)}"
            raise NotFound(f"no queue {queue!r} or no action {action!r}", hint=hint)
        event = ACTIONS[action](at_s=0.0, queue=queue)
        await done(site.keeper.post(event, by=caller.by))
        return await look_up(site, queues_document)


async def _change(site: LiveSite, caller: Caller, how: Change, what: str) -> dict[str, Any]:
    """Post the event; queues that are gone are not stopped when they come back one day."""

    def plan(look: SiteView) -> tuple[QueuesChanged, list[str]]:
        event = event_of(look, how, what)
        names = QueueField.model_validate(event.queues).names()
        return event, sorted(set(look.core.stopped) - set(names))

    event, gone = await look_up(site, plan)
    await done(site.keeper.post(event, by=caller.by))
    for name in gone:
        started = QueueStarted(at_s=0.0, queue=name, cause=what)
        await done(site.keeper.post(started, by=caller.by))
    return await look_up(site, queues_document)
