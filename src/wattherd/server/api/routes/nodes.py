"""Nodes and single devices: taken out of use and back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Path
from pydantic import BaseModel, ConfigDict, Field

from wattherd.errors import UserError
from wattherd.model.event import DeviceDrained, DeviceReturned, NodeLost, NodeReturned
from wattherd.server.api.http import TheCaller, TheSite, action_of, done, look_up
from wattherd.server.api.schemas.power import NodesDocument
from wattherd.server.api.schemas.shape import answers
from wattherd.server.documents import documents
from wattherd.server.problems import Conflict, NotFound
from wattherd.server.site.site import LiveSite

ACTIONS = {"drain": NodeLost, "return": NodeReturned}
DEVICE_ACTIONS = {"drain": DeviceDrained, "return": DeviceReturned}
LONGEST_REASON = 200
NodeName = Annotated[str, Path(description="its name", examples=["gpu-node-1"])]
Gpu = Annotated[str, Path(description="UUID or number", examples=["GPU-5c2a1b9e"])]
Action = Annotated[str, action_of(ACTIONS)]
DeviceAction = Annotated[str, action_of(DEVICE_ACTIONS)]


class Why(BaseModel):
    """Why something is done, for those who see it later."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=LONGEST_REASON, examples=["fan replaced at noon"])


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _device_routes(app)

    @app.post("/api/v1/nodes/{node}/{action}", responses=answers(NodesDocument))
    async def act_on_node(
        site: TheSite, caller: TheCaller, node: NodeName, action: Action
    ) -> dict[str, Any]:
        """Drain a node: its jobs checkpoint and queue again; or return it to use."""
        known = await look_up(site, lambda look: [n.name for n in look.core.config.cluster.nodes])
        if node not in known:
            raise NotFound(f"no node {node!r}", hint="`wattherd nodes` lists all")
        if action not in ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(ACTIONS))
        if action == "drain" and len(known) > 1:
            hint = "`wattherd gpus drain N` takes single slots out of use"
            raise UserError("is one machine's, as all its slots are", where=node, hint=hint)
        if action == "return" and await _still_stopping(site):
            raise Conflict("jobs on it are still being stopped", where=node, hint="try again soon")
        event = ACTIONS[action](at_s=0.0, node=node, cause=f"{action} by {caller.by}")
        await done(site.keeper.post(event, by=caller.by))
        return await look_up(site, documents.nodes_document)


def _device_routes(app: FastAPI) -> None:
    @app.post("/api/v1/gpus/{gpu}/{action}", responses=answers(NodesDocument))
    async def act_on_gpu(
        site: TheSite,
        caller: TheCaller,
        gpu: Gpu,
        action: DeviceAction,
        why: Annotated[Why | None, Body()] = None,
    ) -> dict[str, Any]:
        """Drain one device (its jobs checkpoint and queue again, others stay); or return it.

        `gpu` is its UUID or number.
        """
        node, number = site.machine.place(_number(site, gpu))
        if action not in DEVICE_ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(DEVICE_ACTIONS))
        said = why.reason if why is not None else ""
        cause = said or f"{action} by {caller.by}"
        event = DEVICE_ACTIONS[action](at_s=0.0, node=node, gpu=number, cause=cause)
        await done(site.keeper.post(event, by=caller.by))
        return await look_up(site, documents.nodes_document)


def _number(site: LiveSite, gpu: str) -> int:
    devices = site.machine.devices
    named = [at for at, one in enumerate(devices) if gpu in (one.uuid or str(at), str(at))]
    if not named:
        raise NotFound(f"no GPU {gpu!r}", hint="`wattherd gpus` lists all")
    return named[0]


async def _still_stopping(site: LiveSite) -> bool:
    """Whether runs are left that a drained node was to end."""
    lost = await look_up(site, lambda look: bool(look.core.lost))
    return lost and bool(site.executor.usage())
