"""A power tree as documents describe it: nested domains, checked field by field."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from wattherd.errors import UserError
from wattherd.model.power_tree import BudgetStep, PowerTree, TreeDomain
from wattherd.units import watts_per_second
from wattherd.workload.budget_text import parse_steps


class DomainSpec(BaseModel):
    """A branch of the power tree: its budget, what it loses, and what hangs on it."""

    model_config = ConfigDict(extra="forbid")
    name: str
    level: str = Field(default="", description="what its kind is called: row, rack")
    budget: str | float | None = Field(
        default=None, description="40kW, or steps that are known beforehand: 0:40kW,2h:30kW"
    )
    signal: str | None = Field(
        default=None, description="steps that come unannounced, in the form of `budget`"
    )
    ramp_up: str | float | None = Field(
        default=None, description="what it carries may rise so much a second: 2kW/s"
    )
    ramp_down: str | float | None = Field(
        default=None, description="stops that a plan makes are spread to so much a second"
    )
    loss: float = Field(default=0.0, ge=0, lt=1, description="part of its input that is lost")
    nodes: list[str] = Field(
        default=[], description="nodes it feeds: names, first..last, or patterns with *"
    )
    children: list[DomainSpec] = []


def tree_of(root: DomainSpec, where: str) -> PowerTree:
    """The tree under `root`; `where` is what it was read from.

    Raises:
        UserError: a budget of another form, or a tree that makes no sense.
    """
    try:
        return PowerTree(tuple(_walk(root, None)))
    except UserError as error:
        place = ": ".join(part for part in (where, error.where) if part)
        raise UserError(error.problem, where=place, field=error.field, hint=error.hint) from None


def _walk(domain: DomainSpec, parent: str | None) -> Iterator[TreeDomain]:
    steps = _steps(domain)
    if len({one.at_s for one in steps}) < len(steps):
        problem = "budget and signal change at the same time"
        raise UserError(problem, where=domain.name, field="signal", hint="let one of them begin")
    begins = steps[0].budget_w if steps and steps[0].at_s == 0 else None
    yield TreeDomain(
        name=domain.name,
        parent=parent,
        budget_w=begins,
        loss=domain.loss,
        level=domain.level,
        nodes=tuple(domain.nodes),
        steps=tuple(one for one in steps if one.at_s > 0),
        ramp_up_w_s=watts_per_second(domain.ramp_up, f"{domain.name}.ramp_up"),
        ramp_down_w_s=watts_per_second(domain.ramp_down, f"{domain.name}.ramp_down"),
    )
    for child in domain.children:
        yield from _walk(child, domain.name)


def _steps(domain: DomainSpec) -> list[BudgetStep]:
    """Both kinds of steps in order of time."""
    steps = [
        BudgetStep(at_s=at_s, budget_w=budget_w, announced=field == "budget")
        for field in ("budget", "signal")
        if (text := getattr(domain, field)) is not None
        for at_s, budget_w in parse_steps(text, field=f"{domain.name}.{field}")
    ]
    return sorted(steps, key=lambda one: one.at_s)
