"""Jobs that may wait, when they would run by each rule, and what that saves: `power defer`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.deferral import (
    ONE_START,
    RULES,
    Deferrable,
    DeferralOutcome,
    RateSignal,
    optimum,
    outcome,
)
from wattherd.estimate.rates import EnergyRates
from wattherd.spelling import hint_for

SCHEMA = "wattherd.deferral/1"
_ALIASES = {
    "submit_s": ("submit_s", "arrival_time"),
    "duration_s": ("duration_s", "length"),
    "gpus": ("gpus", "cpus"),
}
JOULES_KWH = 3.6e6
HINT = "a CSV file with `submit_s,duration_s,gpus` and, if known, `deadline_s`"


def read_jobs(
    path: Path, *, start_s: float, wait_s: float, gpu_w: float, speeds: tuple[float, ...]
) -> list[Deferrable]:
    """Jobs of a CSV file: native ones, or PAI's as GAIA published them.

    Times of the file count from `start_s`. A job without a `deadline_s` may wait `wait_s`.

    Raises:
        UserError: unreadable, a column that is missing, or a value that makes no sense.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(text.splitlines(), strict=True))
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=str(path), hint=HINT) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"is no CSV: {error}", where=str(path), hint=HINT) from None
    found = []
    for number, row in enumerate(rows):
        where = f"{path}:{number + 2}"
        submit_s, work_s, gpus = (_value(row, name, where) for name in _ALIASES)
        given = row.get("deadline_s")
        ends_s = float(given) if given else submit_s + work_s + wait_s
        try:
            found.append(
                Deferrable(
                    name=row.get("id") or f"{number}",
                    submit_s=start_s + submit_s,
                    work_s=work_s,
                    gpus=gpus,
                    watts=gpus * gpu_w,
                    deadline_s=start_s + ends_s,
                    speeds=speeds,
                )
            )
        except UserError as error:
            raise UserError(error.problem, where=where, field=error.field) from None
    if not found:
        raise UserError("has no jobs", where=str(path), hint=HINT)
    return found


def _value(row: Mapping[str, str], name: str, where: str) -> float:
    for alias in _ALIASES[name]:
        text = row.get(alias)
        if text:
            try:
                value = float(text)
            except ValueError:
                value = -1.0
            if not 0 <= value < 1e12:
                raise UserError(f"{text!r} is no usable number", where=where, field=alias)
            return value
    raise UserError("is missing", where=where, field=name, hint=HINT)


def within(jobs: Sequence[Deferrable], signal: RateSignal) -> list[Deferrable]:
    """The jobs whose whole time is one of known rates."""
    return [
        one
        for one in jobs
        if one.submit_s >= signal.edges_s[0] and one.deadline_s <= signal.ends_s + 1e-6
    ]


def compared(
    jobs: Sequence[Deferrable],
    rates: EnergyRates,
    signal: RateSignal,
    rules: Sequence[str],
    gpus: float | None,
) -> tuple[list[DeferralOutcome], DeferralOutcome, float | None]:
    """The outcome of each rule, of running at once, and the least that a program comes to.

    Raises:
        UserError: a rule that is unknown, or SciPy is not installed.
    """
    for name in rules:
        if name not in RULES:
            raise UserError(f"unknown rule {name!r}", field="--rule", hint=hint_for(name, RULES))

    def follow(name: str) -> DeferralOutcome:
        return outcome(name, jobs, [RULES[name](one, signal) for one in jobs], rates)

    found = [follow(name) for name in rules]
    return found, follow("now"), optimum(jobs, signal, gpus)


def document(
    outcomes: Sequence[DeferralOutcome],
    at_once: DeferralOutcome,
    least: float | None,
    what: str,
    jobs: int,
    left_out: int,
    rates: EnergyRates,
) -> dict[str, Any]:
    """`wattherd.deferral/1`: cost, emissions, waits; `saved_pct` against running at once."""
    scale = JOULES_KWH if what == "cost" else JOULES_KWH * 1e3
    bound = None if least is None else least / scale
    first = _figure(at_once, what)
    return {
        "schema": SCHEMA,
        "by": what,
        "currency": rates.currency,
        "jobs": jobs,
        "left_out": left_out,
        "rules": [
            {
                "rule": one.rule,
                "kwh": one.bill.energy_j / JOULES_KWH,
                "cost": one.bill.cost if one.bill.unpriced_j == 0 else None,
                "co2e_kg": one.bill.co2e_kg if one.bill.unrated_j == 0 else None,
                "saved_pct": _saved_pct(_figure(one, what), first),
                "above_optimum_pct": None
                if not bound
                else 100.0 * (_figure(one, what) / bound - 1.0),
                "mean_completion_s": one.mean_completion_s,
                "mean_wait_s": one.mean_wait_s,
                "stops": one.stops,
                "missed": one.missed,
                "peak_gpus": one.peak_gpus,
            }
            for one in outcomes
        ],
        "optimum": {what if what == "cost" else "co2e_kg": bound,
                    "saved_pct": None if bound is None else _saved_pct(bound, first)},
    }  # fmt: skip


def _figure(one: DeferralOutcome, what: str) -> float:
    return one.bill.cost if what == "cost" else one.bill.co2e_kg


def _saved_pct(value: float, first: float) -> float | None:
    return 100.0 * (1.0 - value / first) if first else None


def write_begins(
    path: Path, jobs: Sequence[Deferrable], signal: RateSignal, rule: str, start_s: float
) -> None:
    """A native job file in which each job begins when the rule says.

    Raises:
        UserError: a rule that pauses jobs, which no begin time can say.
    """
    if rule not in ONE_START:
        hint = f"rules of one start: {', '.join(ONE_START)}"
        raise UserError(
            f"{rule} may start a job twice, and a job file holds one begin time",
            field="--out",
            hint=hint,
        )
    lines = ["id,submit_s,gpus,duration_s,deadline_s,begin_s"]
    for job in jobs:
        # Begin times of a job file count from its submission.
        begin_s = RULES[rule](job, signal)[0].start_s - job.submit_s
        submit_s, ends_s = job.submit_s - start_s, job.deadline_s - start_s
        lines.append(
            f"{job.name},{submit_s:.3f},{job.gpus:g},{job.work_s:.3f},{ends_s:.3f},{begin_s:.3f}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
