"""Watts: budget, draw, limits from outside, and what they are measured and limited with."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wattherd.devices.signals.contract import SourceContact
from wattherd.server.api.schemas.jobs import MORNING, EnergyBill
from wattherd.server.api.schemas.shape import ApiShape, told, version

Stated = Literal["model", "measured"]
EVENING = "2026-11-21T18:00:00.000+00:00"


class SourceBudget(ApiShape):
    """The budget that one source has stated; of several the lowest counts."""

    source: str = told("`operators`, a schedule or a signal", "operators")
    budget_w: float | None = told("null: no limit", 8000.0)


class AnnouncedBudget(ApiShape):
    """A budget that begins later."""

    at: str | None = told("when", EVENING)
    budget_w: float | None = told("null: no limit", 6000.0)
    source: str = told("who says so", "operators")


class PowerSample(ApiShape):
    """What was drawn at one moment."""

    at: str | None = told("a time", MORNING)
    draw_w: float = told("of the whole site", 7420.0)
    budget_w: float | None = told("in force then", 8000.0)
    by_job: dict[str, float] = told(
        "draw of each job; of jobs that are not the caller's to see one sum, `others`",
        {"j-12": 512.5, "others": 6907.5},
    )


class SignalAnswer(ApiShape):
    """What was answered to an event of a grid operator."""

    event: str = told("its id", "ev-4")
    answer: str = told("`optIn`, `optOut` or `cancelled`", "optIn")
    reason: str = told("why", "")


class SignalState(ApiShape):
    """One address that is listened to."""

    signal: str = told("the address", "https://grid.example/limits?safe=8kW")
    contact: SourceContact = told("whether it is heard", "heard")
    heard_at: str | None = told("when it was last heard", "2026-11-21T08:00:00Z")
    note: str = told("what is wrong, if something is", "")
    events: list[SignalAnswer] = told("of a grid operator")


class LimitSpan(ApiShape):
    """A limit from outside and when it holds."""

    from_: str | None = Field(
        alias="from", description="null: since ever", examples=["2026-11-21T18:00:00Z"]
    )
    until: str | None = told("null: for good", "2026-11-21T22:00:00Z")
    limit_w: float | None = told("null: none", 6000.0)
    source: str = told("who says so", "limits.csv")


class Instrument(ApiShape):
    """How one device is measured and limited."""

    device: str = told("`GPU 0`, or `processor`", "GPU 0")
    uuid: str = told("of a GPU", "GPU-5c2a1b9e")
    watts: Literal["measured", "shared out", "estimated", ""] = told(
        "where its watts come from", "measured"
    )
    meter: str = told("address of its meter", "nvml://GPU-5c2a1b9e")
    control: Literal["caps", "duty", "limit", ""] = told("how it is slowed", "caps")
    knob: str = told("address of its limit", "nvml://GPU-5c2a1b9e")
    problems: list[str] = told("what is wrong with them", [])


class RatesNow(ApiShape):
    """What a kilowatt-hour costs and emits now."""

    source: str = told("where that is from", "tariff.yaml")
    currency: str = told("empty where none is stated", "EUR")
    price_per_kwh: float | None = told("null: not known", 0.31)
    carbon_g_per_kwh: float | None = told("null: not known", 310.0)
    problem: str = told("why something is not known, or could not be read again", "")


class PowerDocument(ApiShape):
    """Budget, draw and headroom of a site."""

    schema_: Literal["wattherd.power/1"] = version("wattherd.power/1")
    budget_w: float | None = told("in force; null: none", 8000.0)
    draw_w: float | None = told("now; null: not known yet", 7420.0)
    headroom_w: float | None = told("budget less draw", 580.0)
    budgets: list[SourceBudget] = told("by source")
    announced: list[AnnouncedBudget] = told("budgets to come")
    notes: list[str] = told("what the budget cannot power: idle devices, jobs that never fit", [])
    stated: Stated = told("whether watts are measured, or come from a model", "measured")
    over_s: float = told("time spent above budgets", 0.0)
    over_j: float = told("energy drawn above budgets", 0.0)
    samples: list[PowerSample] = told("the last ones, oldest first; `last` says how many")
    signals: list[SignalState] = told("addresses that are listened to")
    timeline: list[LimitSpan] = told("limits from outside, present and to come")
    instruments: list[Instrument] = told("meters and limits of each device")
    bill: EnergyBill | None = told("of all energy since there were rates; null: there are none")
    rates: RatesNow | None = told("rates now; null: none are configured")


class LiveTreeRow(ApiShape):
    """A level, the machine or one of its devices."""

    name: str = told("unique among rows of its kind", "rack-1")
    kind: Literal["level", "node", "device"] = told("what it is", "level")
    parent: str = told("a node hangs on a level, a device on a node; empty at the top", "site")
    depth: int = told("in the drawing: 0 at the top", 1)
    limit_w: float | None = told("null: none", 6000.0)
    limit_by: str = told(
        "who set it: `configuration`; of the machine the source whose budget is the lowest;"
        " of a device `cap`, or `device` for the most that it draws",
        "configuration",
    )
    draw_w: float | None = told("null: not known", 5200.0)
    least_w: float | None = told("what is known to be drawn, at least", 5200.0)
    other_w: float | None = told(
        "the part that this machine does not draw; of the machine what its devices do not", 900.0
    )
    headroom_w: float | None = told("limit less draw; null: not known", 800.0)
    free_w: float | None = told(
        "what may be added without any level above exceeding its limit", 800.0
    )
    free_complete: bool = told("false: `free_w` is the most that it can be", True)  # noqa: FBT003 - an example
    age_s: float | None = told("since the draw was last known; null: it never was", 0.6)
    stated: Literal["measured", "model", ""] = told("where the draw is from", "measured")
    problem: str = told("what is wrong with its place in the tree, if something is", "")
    over: bool = told("more is drawn than the limit", False)  # noqa: FBT003 - an example


class LiveTreeDocument(ApiShape):
    """The power tree of a running service."""

    schema_: Literal["wattherd.live-tree/1"] = version("wattherd.live-tree/1")
    at: str = told("when", MORNING)
    rows: list[LiveTreeRow] = told("in the order of the drawing, from the top")


class PromisedReduction(ApiShape):
    """Watts less than now, when, and what is done for it."""

    reduction_w: float = told("less than is drawn now", 1800.0)
    from_s: float = told("after the order", 600.0)
    for_s: float = told("for so long", 3600.0)
    sure: float = told("the probability with which it is reached", 0.95)
    capped: list[str] = told("jobs at their lowest cap", ["j-12"])
    stopped: list[str] = told("jobs that are stopped", ["j-14"])


class PromiseDocument(ApiShape):
    """What can be promised of a reduction that was asked for."""

    schema_: Literal["wattherd.promise/1"] = version("wattherd.promise/1")
    at: str | None = told("when the draw was last sampled", MORNING)
    stated: Stated = told("whether that is measured, or comes from a model", "measured")
    asked_w: float = told("less than now", 2000.0)
    met: bool = told("whether as much can be promised", False)  # noqa: FBT003 - an example
    draw_w: float = told("of the whole site", 7420.0)
    offer: PromisedReduction = told("what is promised: the least that is done for it")
    steps: list[PromisedReduction] = told("the most that can be promised at each time")


class DeliveredQuarter(ApiShape):
    """A quarter of an hour of an event; null where too little was sampled."""

    start_s: float = told("Unix seconds", 1_795_284_000.0)
    end_s: float = told("Unix seconds; the last one may be shorter", 1_795_284_900.0)
    baseline_w: float | None = told("what would have been drawn", 7420.0)
    target_w: float | None = told("what was to be drawn at most", 6000.0)
    draw_w: float | None = told("what was drawn", 5890.0)
    reduction_w: float | None = told("below the baseline", 1530.0)
    seen: float = told("the share of it that samples cover", 1.0)


class SeenEventDocument(ApiShape):
    """What was asked for from outside, as the service has seen it."""

    id: str = told("the grid operator's, or when it began", "evt-7")
    source: str = told("who asked for it", "openadr3+https://vtn.example/v3?program=7")
    limit_w: float = told("so much at most", 6000.0)
    start_s: float = told("Unix seconds", 1_795_284_000.0)
    end_s: float = told("Unix seconds; now, where it goes on", 1_795_287_600.0)
    announced_s: float = told("when the service first heard of it", 1_795_280_400.0)
    cancelled: bool = told("true: it was taken back before its end", False)  # noqa: FBT003 - an example


class DeliveryDocument(ApiShape):
    """What was delivered in an event, by what was drawn."""

    schema_: Literal["wattherd.delivery/1"] = version("wattherd.delivery/1")
    stated: Stated = told("measured all the time, or at times by a model", "measured")
    method: Literal["hour-before", "ten-in-ten"] = told("how the baseline is made", "hour-before")
    basis: str = told("in words", "mean of the hour that ended at 2026-11-21T17:45:00+00:00")
    reduction_w: float = told("below the baseline, on average", 1480.0)
    asked_w: float = told("below the baseline, as it was asked for", 1420.0)
    performance: float | None = told("delivered of asked for; null if nothing was", 1.04)
    energy_j: float = told("joules below the baseline", 5_328_000.0)
    late_s: float | None = told("until draw stayed at or below the target; null: never", 12.0)
    above_s: float = told("all time above the target", 12.0)
    unseen_s: float = told("time without a sample, which proves nothing", 0.0)
    worst_w: float = told("the most above the target", 900.0)
    slots: list[DeliveredQuarter] = told("quarter of an hour by quarter of an hour")
    event: SeenEventDocument | None = told("null where start and end were named")


class DeviceRow(ApiShape):
    """One device: who is on it, what it draws and may draw."""

    number: int = told("on its node, from 0", 0)
    uuid: str = told("empty where there is none", "GPU-5c2a1b9e")
    meter: str = told("address of its meter", "nvml://GPU-5c2a1b9e")
    knob: str = told("address of its limit", "nvml://GPU-5c2a1b9e")
    model: str = told("of the device", "A100")
    state: Literal["Ready", "Drained", "Lost"] = told("whether it is in use", "Ready")
    cause: str = told("why it is drained", "")
    since: str | None = told("since when it is drained", None)
    draw_w: float | None = told("now", 256.0)
    stated: Stated = told("whether that is measured, or comes from a model", "measured")
    cap_w: float | None = told("lowest power limit of the jobs on it", 280.0)
    jobs: list[str] = told("who holds it; `others` stands for jobs not to be seen", ["j-12"])


class NodeRow(ApiShape):
    """One node and its devices."""

    name: str = told("of the node", "gpu-node-1")
    state: Literal["Ready", "Lost"] = told("`Lost` also if it is drained", "Ready")
    gpus: list[DeviceRow] = told("its devices")


class NodesDocument(ApiShape):
    """Nodes, their devices, and who is on them."""

    schema_: Literal["wattherd.nodes/1"] = version("wattherd.nodes/1")
    nodes: list[NodeRow] = told("all of them")
    gpu_max_w: float = told("the most that a device draws", 400.0)
