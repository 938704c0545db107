"""The site's watts: budget, draw, and limits from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Body, FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field

from wattherd.errors import UserError
from wattherd.experiments.grid.delivery import BaselineMethod, DeliveryEvent
from wattherd.experiments.grid.promise import moment, share, zone_of
from wattherd.experiments.schedule.budget_notes import notes_at_work
from wattherd.model.event import BudgetAnnounced, BudgetChanged
from wattherd.server.api.http import TheCaller, TheSite, done, look_up
from wattherd.server.api.schemas.power import (
    DeliveryDocument,
    LiveTreeDocument,
    PowerDocument,
    PromiseDocument,
)
from wattherd.server.api.schemas.shape import answers
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView, power_document
from wattherd.server.documents.privacy import of_power, seen_by
from wattherd.server.documents.site_delivery import asked_in, event_document, site_delivery
from wattherd.server.documents.site_promise import site_promise
from wattherd.server.site.power_tree import tree_document
from wattherd.server.site.site import LiveSite
from wattherd.units import seconds, watts

Answer = TypeVar("Answer")
FARTHEST_S = 366 * 86_400.0
LONGEST_SCHEDULE = 1 << 18
MOST_SIGNALS = 16
Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Budget(BaseModel):
    """A budget: `40kW`, a number of watts, or null for none."""

    model_config = ConfigDict(extra="forbid")

    budget: str | Number | None = Field(examples=["40kW"])
    within: str | Number | None = Field(
        default=None, alias="in", examples=["10m"], description="from then on, not at once"
    )

    def event(self, now_s: float) -> BudgetChanged | BudgetAnnounced:
        """What is to happen.

        Raises:
            UserError: neither watts nor time, or no limit for a time to come.
        """
        budget_w = None if self.budget is None else watts(self.budget, field="budget")
        if self.within is None:
            return BudgetChanged(at_s=0.0, budget_w=budget_w)
        if budget_w is None:
            raise UserError("no limit cannot be announced", field="in", hint="leave it out")
        ahead_s = seconds(self.within, field="in")
        if not 0 <= ahead_s <= FARTHEST_S:
            raise UserError(f"{self.within} is out of range", field="in", hint="a year at most")
        return BudgetAnnounced(at_s=0.0, begins_s=now_s + ahead_s, budget_w=budget_w)


class ScheduleUpload(BaseModel):
    """Limits by time, as a file has them; its name tells CSV from YAML."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200, examples=["limits.csv"])
    text: str = Field(max_length=LONGEST_SCHEDULE, examples=["at,limit,until\n18:00,6kW,22:00\n"])


class Scheduled(BaseModel):
    """A schedule, or null for none."""

    model_config = ConfigDict(extra="forbid")

    schedule: ScheduleUpload | None = Field(description="its limits take the place of earlier ones")


class Signals(BaseModel):
    """Addresses of limits from outside; none ends what was listened to."""

    model_config = ConfigDict(extra="forbid")

    signals: list[Annotated[str, Field(max_length=2000)]] = Field(
        max_length=MOST_SIGNALS, examples=[["https://grid.example/limits?safe=8kW"]]
    )


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _signal_routes(app)

    @app.get("/api/v1/power", responses=answers(PowerDocument))
    async def get_power(
        site: TheSite,
        caller: TheCaller,
        last: Annotated[int, Query(ge=0, le=7200, description="samples")] = 1,
    ) -> dict[str, Any]:
        """Budget, draw and headroom, the last samples, and what limits from outside say."""
        return await _document(site, caller, last)

    @app.get("/api/v1/power/tree", responses=answers(LiveTreeDocument))
    async def get_power_tree(site: TheSite) -> dict[str, Any]:
        """The power tree: levels above the machine, the machine and its devices, with their draw.

        Rows stand in the order of the drawing. What no meter says is null, never 0.
        """
        levels, now_s = site.levels(), site.clock.now_s()
        return await look_up(site, lambda look: tree_document(look, levels, site.tree, now_s))

    @app.get("/api/v1/power/promise", responses=answers(PromiseDocument))
    async def get_power_promise(
        site: TheSite,
        reduce: Annotated[str | None, Query(description="so much less, `2kW`")] = None,
        limit: Annotated[str | None, Query(description="so much at most, or all")] = None,
        lead: Annotated[str, Query(alias="in", description="from then on, from now")] = "10min",
        lasts: Annotated[str, Query(alias="for", description="for so long")] = "1h",
        sure: Annotated[str, Query(description="how sure it is to be")] = "95%",
    ) -> dict[str, Any]:
        """What can be promised of a reduction that is asked for: watts, from when, how sure.

        By what the jobs that run draw now. Nothing is ordered: a budget that is announced is.
        """
        if reduce is not None and limit is not None:
            raise UserError("needs one of `reduce` and `limit`", field="reduce", hint="reduce=2kW")
        reduce_w = None if reduce is None else watts(reduce, field="reduce")
        limit_w = None if limit is None else watts(limit, field="limit")
        lead_s, for_s = seconds(lead, field="in"), seconds(lasts, field="for")
        certain, now_s = share(sure, "sure"), site.clock.now_s()
        return await look_up(
            site,
            lambda look: site_promise(
                look, now_s, reduce_w=reduce_w, limit_w=limit_w, lead_s=lead_s, for_s=for_s,
                sure=certain,
            ),
        )  # fmt: skip

    _delivery_route(app)

    @app.put("/api/v1/power", responses=answers(PowerDocument))
    async def set_power(
        site: TheSite, caller: TheCaller, budget: Annotated[Budget, Body()]
    ) -> dict[str, Any]:
        """Another budget, from now on or announced for later: then it is met when it comes."""
        event = budget.event(site.clock.now_s())
        await done(site.keeper.post(event, by=caller.by))
        return await _document(site, caller)


def _delivery_route(app: FastAPI) -> None:
    @app.get("/api/v1/power/delivery", responses=answers(DeliveryDocument))
    async def get_power_delivery(
        site: TheSite,
        event: Annotated[
            str | None, Query(description="its id; without it and a start the last one seen")
        ] = None,
        start: Annotated[
            str | None, Query(description="of the event", examples=["2026-11-21T18:00:00Z"])
        ] = None,
        end: Annotated[
            str | None, Query(description="of the event", examples=["2026-11-21T19:00:00Z"])
        ] = None,
        limit: Annotated[
            str | None, Query(description="so much at most was asked for", examples=["6kW"])
        ] = None,
        reduce: Annotated[str | None, Query(description="so much below the baseline was")] = None,
        announced: Annotated[str | None, Query(description="when; the baseline ends then")] = None,
        baseline: Annotated[
            BaselineMethod, Query(description="what would have been drawn")
        ] = BaselineMethod.HOUR_BEFORE,
        zone: Annotated[str, Query(description="whose days, for ten-in-ten")] = "UTC",
        event_day: Annotated[list[str] | None, Query(description="not for a baseline")] = None,
    ) -> dict[str, Any]:
        """Prove what was delivered in an event, by what was drawn: baseline, watts, lateness.

        By the service's own record, which reaches 30 days back. The event is one that signals asked
        for in that time, or that `start`, `end` and `limit` or `reduce` tell of.
        """
        whose = _named(lambda: zone_of(zone), "zone")
        days = event_day or ()
        if start is None or end is None:
            told = {"start": start, "end": end, "limit": limit, "reduce": reduce,
                    "announced": announced}  # fmt: skip
            more = next((name for name, one in told.items() if one is not None), None)
            if more is not None:
                raise UserError("needs start and end", field=more,
                                hint="or leave it out: the event says that")  # fmt: skip
            seen = site.signals.seen.named(event, time.time())
            return await asyncio.to_thread(
                lambda: site_delivery(site.store.projection, site.clock.epoch, asked_in(seen),
                                      baseline, whose, days) | {"event": event_document(seen)}
            )  # fmt: skip
        if event is not None:
            raise UserError("is either named or told", field="event", hint="without start, end")
        begin_s = _named(lambda: moment(start, zone=whose), "start")
        asked = DeliveryEvent(
            start_s=begin_s,
            end_s=_named(lambda: moment(end, zone=whose), "end"),
            limit_w=None if limit is None else watts(limit, field="limit"),
            reduction_w=None if reduce is None else watts(reduce, field="reduce"),
            announced_s=(
                None
                if announced is None
                else _named(lambda: moment(announced, zone=whose), "announced")
            ),
        )
        if begin_s > time.time():
            raise UserError("is still to come", field="start", hint="ask when the event is over")
        return await asyncio.to_thread(
            site_delivery, site.store.projection, site.clock.epoch, asked, baseline, whose,
            days,
        ) | {"event": None}  # fmt: skip


def _named(read: Callable[[], Answer], field: str) -> Answer:
    """What `read` finds; what it does not understand is in that field."""
    try:
        return read()
    except UserError as error:
        raise UserError(error.problem, field=field, hint=error.hint) from None


def _signal_routes(app: FastAPI) -> None:
    @app.put("/api/v1/power/schedule", responses=answers(PowerDocument))
    async def set_power_schedule(
        site: TheSite, caller: TheCaller, asked: Annotated[Scheduled, Body()]
    ) -> dict[str, Any]:
        """Limits by date or time of day, or none any more; falls are met when they come."""
        plan = asked.schedule
        if plan is None:
            return await _changed(site, caller, site.signals.drop_schedule)
        return await _changed(site, caller, lambda: site.signals.set_schedule(plan.name, plan.text))

    @app.put("/api/v1/power/signals", responses=answers(PowerDocument))
    async def set_power_signals(
        site: TheSite, caller: TheCaller, asked: Annotated[Signals, Body()]
    ) -> dict[str, Any]:
        """Whom to listen to for limits: web documents, a grid operator; all others no more."""
        return await _changed(site, caller, lambda: site.signals.set_signals(asked.signals))


def _seen(look: SiteView, caller: Caller, last: int) -> dict[str, Any]:
    seen = seen_by(look, caller)
    return of_power(power_document(look, last=last), seen) | {
        "notes": notes_at_work(look.core, seen)
    }


async def _changed(site: LiveSite, caller: Caller, change: Callable[[], None]) -> dict[str, Any]:
    def do() -> None:
        change()
        site.signals.look()

    await asyncio.to_thread(do)
    return await _document(site, caller)


async def _document(site: LiveSite, caller: Caller, last: int = 1) -> dict[str, Any]:
    document = await look_up(site, lambda look: _seen(look, caller, last))
    told = {**document, **site.signals.told()}
    if site.limits is not None and site.config.site is not None:
        levels = [level.words() for level in site.limits.levels()]
        told["notes"] = [*told["notes"], *levels]
    told["rates"] = None if site.rates is None else site.rates.document(time.time())
    return {**told, "instruments": await asyncio.to_thread(site.instruments.rows)}
