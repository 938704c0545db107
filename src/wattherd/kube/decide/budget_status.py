"""What status and conditions of power domains and budgets say; times are Unix seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import UNSET, UnsetType, structs

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.api.objects import StatusCondition
from wattherd.kube.facts.power_kinds import (
    PowerBudget,
    PowerBudgetStatus,
    PowerDomain,
    PowerDomainStatus,
    Step,
)
from wattherd.kube.facts.power_plan import PlanVerdict, PowerState, Stated, shown
from wattherd.units import show_watts

READY, WITHIN = "Ready", "WithinBudget"


@dataclass(frozen=True, slots=True)
class DomainFigures:
    """Of one domain with all below it: nodes, and what they may draw with what is on them."""

    nodes: int = 0
    bound_mw: int = 0
    doing: str = ""
    """What is being done where that is more than the budget."""


def figures_of(chooser: Chooser) -> dict[str, DomainFigures]:
    """Of every domain that feeds nodes, and of the site."""
    fleet, domains, placer = chooser.fleet, chooser.domains, chooser.fleet.placer
    if placer is None:
        return {}
    nodes: Counter[str] = Counter()
    for facts in fleet.order:
        nodes.update(domains.tree.path(facts.domain))
    carried = domains.carried_mw(chooser.columns(), placer.state)
    return {name: DomainFigures(count, carried[name]) for name, count in nodes.items()}


def stamp(at_s: float) -> str:
    """A time as the API writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def domain_status(
    domain: PowerDomain, state: PowerState, figures: DomainFigures, now_s: float
) -> PowerDomainStatus:
    """The status of a domain."""
    name = domain.metadata.name
    budget_mw = state.budgets_mw.get(name)
    verdict = state.domains.get(name, PlanVerdict())
    limit = shown(None if budget_mw is None else budget_mw / 1000)
    conditions = [
        ready(verdict, f"{figures.nodes} nodes, {limit}"),
        _within(figures, budget_mw),
    ]
    step = state.steps.get(name)
    return PowerDomainStatus(
        observed_generation=domain.metadata.generation,
        nodes=figures.nodes,
        bound_watts=figures.bound_mw / 1000,
        budget_watts=UNSET if budget_mw is None else budget_mw / 1000,
        next_step=UNSET if step is None else _step(*step),
        conditions=dated(conditions, domain.status.conditions, domain.metadata.generation, now_s),
    )


def _within(figures: DomainFigures, budget_mw: int | None) -> StatusCondition:
    if budget_mw is None:
        return StatusCondition(type=WITHIN, status="True", reason="NoLimit", message="no limit")
    bound, limit = show_watts(figures.bound_mw / 1000), show_watts(budget_mw / 1000)
    text = f"its nodes may draw {bound} of {limit}"
    if figures.bound_mw <= budget_mw:
        return StatusCondition(type=WITHIN, status="True", reason="WithinBudget", message=text)
    text = f"{text}; {figures.doing or 'nothing here is ours to cap or stop'}"
    return StatusCondition(type=WITHIN, status="False", reason="OverBudget", message=text)


def budget_status(budget: PowerBudget, state: PowerState, now_s: float) -> PowerBudgetStatus:
    """The status of a budget."""
    name = budget.metadata.name
    said = state.said.get(name, Stated())
    verdict = state.budgets.get(name, PlanVerdict())
    text = f"{budget.spec.domain} may draw {shown(said.now_w)}"
    step = UNSET if said.step_at_s is None else _step(said.step_at_s, said.step_w)
    return PowerBudgetStatus(
        observed_generation=budget.metadata.generation,
        watts=UNSET if said.now_w is None else said.now_w,
        next_step=step,
        conditions=dated(
            [ready(verdict, text)], budget.status.conditions, budget.metadata.generation, now_s
        ),
    )


def ready(verdict: PlanVerdict, text: str) -> StatusCondition:
    """Whether an object is in force as it stands, with `text` if it is."""
    return StatusCondition(
        type=READY,
        status="True" if verdict.ready else "False",
        reason=str(verdict.word),
        message=verdict.text or text,
    )


def _step(at_s: float, watts: float | None) -> Step:
    return Step(at=stamp(at_s), watts=UNSET if watts is None else watts)


def dated(
    fresh: Sequence[StatusCondition],
    before: Sequence[StatusCondition] | UnsetType,
    generation: int,
    now_s: float,
) -> list[StatusCondition]:
    """Conditions with the time since when their status is what it is."""
    old: Mapping[str, StatusCondition] = {
        one.type: one for one in (() if isinstance(before, UnsetType) else before)
    }
    found = []
    for one in fresh:
        known = old.get(one.type)
        same = known is not None and known.status == one.status and known.last_transition_time
        since = known.last_transition_time if known is not None and same else stamp(now_s)
        found.append(
            structs.replace(one, last_transition_time=since, observed_generation=generation)
        )
    return found
