"""What a comparison shows, in a few plain sentences for the head of a report.

The first sentence is the answer. Each one states figures of the table below it and nothing that the
table does not hold. Policies whose figures print alike tie, and are called so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattherd.report.compare import CompareRow, pareto_front, power_and_gpus
from wattherd.report.schedule_pareto import front
from wattherd.report.schedule_runs import PolicyFigures, Sim
from wattherd.report.svg import tick_label
from wattherd.units import show_seconds

SPAN = "mean over 20 to 80 % arrived"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _all_of(count: int) -> str:
    return "Both" if count == 2 else f"All {count}"


# --- Placement: `wattherd sim pack`.


def pack_findings(rows: Sequence[CompareRow]) -> list[str]:
    """Sentences on one trace: most GPUs, least power, and who is on the Pareto front."""
    if len(rows) < 2:
        return [_alone(rows[0])] if rows else []
    return [_most_gpus(rows), *_least_power(rows), *_pack_front(rows)]


def _alone(row: CompareRow) -> str:
    held = f"{row.allocated_pct.mean:.2f} % of all GPUs ({_gpus(row.allocated_gpus.mean)})"
    return f"{row.policy} allocated {held}; nothing to compare it with."


def _most_gpus(rows: Sequence[CompareRow]) -> str:
    ordered = sorted(rows, key=lambda row: -row.allocated_pct.mean)
    share = f"{ordered[0].allocated_pct.mean:.2f} %"
    first = [row for row in rows if f"{row.allocated_pct.mean:.2f} %" == share]
    held = ordered[0].allocated_gpus.mean
    if len(first) == len(rows):
        return f"{_all_of(len(rows))} policies tie: each allocates {share} ({_gpus(held)})."
    base = next(row for row in rows if row.policy == row.baseline)
    other, aside = (ordered[len(first)], ", the next") if base in first else (base, "")
    ahead = f"{_gpus(held - other.allocated_gpus.mean)} more than {other.policy}{aside}"
    if len(first) > 1:
        names = listed([row.policy for row in first])
        return f"{names} tie: each allocates {share} at the end, {ahead}."
    return f"{first[0].policy} allocates the most GPUs: {share} at the end, {ahead}."


def _gpus(count: float) -> str:
    amount = tick_label(count, 0 if count >= 10 else 1)
    return f"{amount} GPUs" if amount != "1" else "1 GPU"


def _least_power(rows: Sequence[CompareRow]) -> list[str]:
    """Who saves most, to a tenth of a percent; nothing where no power was estimated."""
    base = rows[0].baseline
    saved = {row.policy: round(row.mean_saving_pct.mean, 1) for row in rows if row.mean_saving_pct}
    if not saved:
        return []
    most = max(saved.values())
    if most <= 0:
        tie = not any(saved.values())
        said = "All policies draw the same power" if tie else f"{base} draws the least power"
        return [f"{said} at equal load, {SPAN}."]
    first = [policy for policy, one in saved.items() if one == most]
    less = f"{most:.1f} % less than {base}, {SPAN}."
    if len(first) > 1:
        return [f"{listed(first)} tie at equal load: each draws {less}"]
    return [f"{first[0]} draws the least power at equal load: {less}"]


def _pack_front(rows: Sequence[CompareRow]) -> list[str]:
    found = power_and_gpus(rows).items()
    points = {policy: (round(saved, 1), round(held, 1)) for policy, (saved, held) in found}
    best = pareto_front(points)
    if len(set(points.values())) < 2:
        return []
    if len({points[name] for name in best}) == 1:
        return [f"No other policy is better than {listed(best)} in GPUs or in power saved."]
    names = listed(best)
    return [f"No policy beats {names} in both GPUs and power saved; each is a different trade."]


# --- Scheduling: `wattherd sim run`.


def sim_findings(sim: Sim) -> list[str]:
    """What a reader should take away: fastest, least energy, the front, budgets, priors."""
    shown = sim.policies
    done = [one for one in shown if one.finished == one.jobs and one.avg_jct_s is not None]
    return [
        *_COMPLETION.sentences(done),
        *_ENERGY.sentences(done),
        *_sim_front(shown),
        *_undone(shown),
        *_budget(shown, limited=sim.budget is not None),
        *_priors(sim),
    ]


def show_kwh(energy_j: float) -> str:
    """Kilowatt-hours with joules beside them."""
    kwh = energy_j / 3.6e6
    return f"{tick_label(kwh, 1 if kwh >= 10 else 3)} kWh ({tick_label(energy_j / 1e6, 1)} MJ)"


@dataclass(frozen=True, slots=True)
class _Contest:
    """A figure of which less is better, and the words for one policy, the first and a tie."""

    value: Callable[[PolicyFigures], float]
    show: Callable[[PolicyFigures], str]
    alone: str
    first: str
    tie: str
    lead: str

    def sentences(self, entrants: Sequence[PolicyFigures]) -> list[str]:
        """Who comes first, and by how much; none where nobody may take part."""
        if not entrants:
            return []
        ordered = sorted(entrants, key=self.value)
        best = self.show(ordered[0])
        alike = [one for one in ordered if self.show(one) == best or not self._ahead(ordered, one)]
        names = listed([one.policy for one in alike])
        if len(ordered) == 1:
            return [f"{names} {self.alone} {best}."]
        text = f"{names} {self.first if len(alike) == 1 else self.tie}: {best}"
        if len(alike) == len(ordered):
            return [f"{text}."]
        other = ordered[len(alike)]
        by = f"{self._ahead(ordered, other):.1f} % {self.lead}"
        return [f"{text}, {by} than {other.policy}, the next."]

    def _ahead(self, ordered: Sequence[PolicyFigures], other: PolicyFigures) -> float:
        """By how many percent of the other's figure the first leads, to a tenth."""
        theirs = self.value(other)
        return round(100 * (1 - self.value(ordered[0]) / theirs), 1) if theirs else 0.0


_COMPLETION = _Contest(
    value=lambda one: one.avg_jct_s or 0.0,
    show=lambda one: f"{show_seconds(one.avg_jct_s or 0.0)} on average",
    alone="completes jobs in",
    first="completes jobs soonest",
    tie="complete jobs equally soon",
    lead="sooner",
)
_ENERGY = _Contest(
    value=lambda one: one.all_energy_j,
    show=lambda one: show_kwh(one.all_energy_j),
    alone="uses",
    first="uses the least energy",
    tie="use the same energy",
    lead="less",
)


def _sim_front(shown: Sequence[PolicyFigures]) -> list[str]:
    best = front(shown)
    if len(shown) < 2 or len(best) < 2 or len(best) == len(shown):
        return []
    names = listed(best)
    return [f"No policy beats {names} in both completion time and energy."]


def _undone(shown: Sequence[PolicyFigures]) -> list[str]:
    return [
        f"{one.policy} finished {tick_label(one.finished)} of {tick_label(one.jobs)} jobs"
        + (f"; {tick_label(one.rejected)} can never run." if one.rejected else ".")
        for one in shown
        if one.finished < one.jobs
    ]


def _budget(shown: Sequence[PolicyFigures], *, limited: bool) -> list[str]:
    over = [one for one in shown if one.over_budget_s > 0]
    exempt = [one for one in shown if one.exempt_s > 0]
    if limited and not over and not exempt:
        never = "No policy ever" if len(shown) > 1 else f"{shown[0].policy} never"
        return [f"{never} drew more than the budget."]
    return [
        f"{one.policy} drew more than the budget for {show_seconds(one.over_budget_s)}."
        for one in over
    ] + [
        f"{one.policy} drew more than the budget for {show_seconds(one.exempt_s)} that are exempt: "
        "caps of changes that nobody announced were not in force yet (caps.delay)."
        for one in exempt
    ]


def _priors(sim: Sim) -> list[str]:
    """Watts that nobody measured, and what that means for ways of sharing them."""
    jobs, prior = sim.watts.jobs, sim.watts.prior
    if not prior:
        return []
    whose = f"all {tick_label(jobs)}" if prior == jobs else f"{tick_label(prior)} of {jobs}"
    said = f"Watts of {whose} jobs are priors: nobody measured their power curves."
    if sim.budget is None or prior < jobs or sim.power == "uniform":
        return [said]
    apart = f"`{sim.power}` then tells jobs apart by their GPU model and GPU count only"
    return [f"{said} {apart}; compare it with `uniform` before you rely on it."]
