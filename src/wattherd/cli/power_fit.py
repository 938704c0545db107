"""`wattherd power learn`, `fit` and `predict`: curves learned online, watts predicted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.options import parse_seeds
from wattherd.cli.output import printed, prints
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.experiments.power_models.predict import MeasuredDraw
    from wattherd.workload.power_rows import KnownPeakRates

POWER_FORMATS = "native|zeus|hkbu|dlbench|emerald|auto"
_PRECISIONS = "fp32|tf32|fp16"


@click.command("learn")
@click.argument("curves", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    default="native",
    show_default=True,
    metavar="native|zeus|emerald",
    help="Format of the curves.",
)
@click.option("--shares", default="0.6,0.7,0.8", show_default=True, help="Budgets, of all draw.")
@click.option("--samples", default=20, show_default=True, help="Noisy samples of each job.")
@click.option("--noise", default=0.05, show_default=True, help="Their relative error.")
@click.option(
    "--meter-noise",
    default=0.002,
    show_default=True,
    help="Relative error of the meter above all jobs; 0: there is none.",
)
@click.option("--seed", default="1..4", show_default=True, help="42, 42..51 or 1,5,9.")
@click.option("--pause", is_flag=True, help="Jobs may be paused.")
@click.option("--paused-w", default="0W", show_default=True, help="What a paused job draws.")
@click.option(
    "--at-least",
    type=click.FloatRange(min=0.0),
    help="Exit with 1 if a run reaches less of the optimum.",
)
@prints
def learn(
    *,
    curves: Path,
    kind: str,
    shares: str,
    samples: int,
    noise: float,
    meter_noise: float,
    seed: str,
    pause: bool,
    paused_w: str,
    at_least: float | None,
    output: str,
) -> int:
    """Allocate by curves learned from noisy samples, judged by the measured ones.

    Budgets are shares of the summed draw at each job's highest-draw point, and hold while learning.
    """
    from wattherd.experiments.power_models.curves import LearningScenario, lesson
    from wattherd.units import watts
    from wattherd.workload.curves import read_curves

    terms = LearningScenario(
        shares=numbers(shares, "--shares"),
        samples=samples,
        noise_sd=noise,
        meter_sd=meter_noise or None,
        seeds=tuple(parse_seeds(seed)),
        paused_w=watts(paused_w, field="--paused-w") if pause else None,
    )
    document = lesson(read_curves(curves, kind), terms)
    if not printed(document, output):
        _show_lesson(document)
    return int(at_least is not None and not document["worst_of_optimum"] >= at_least)


def numbers(text: str, field: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises:
        UserError: one of them is none.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        hint = "numbers separated by commas"
        raise UserError(f"{text!r} is no list of numbers", field=field, hint=hint) from None


def _show_lesson(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = [
        [
            f"{one['budget_share']:g}",
            f"{one['optimum']:.4f}",
            f"{100 * one['median_of_optimum']:.1f}",
            f"{100 * one['worst_of_optimum']:.1f}",
            f"{100 * one['median_drawn_of_budget']:.1f}",
            f"{100 * one['most_drawn_of_budget']:.2f}",
            f"{100 * one['most_drawn_while_learning']:.2f}",
            f"{100 * one['median_progress_while_learning']:.1f}",
        ]
        for one in document["budgets"]
    ]
    head = [
        "BUDGET",
        "OPTIMUM",
        "REACHED %",
        "WORST %",
        "DRAWN %",
        "MOST %",
        "MOST EVER %",
        "PROGRESS MEANWHILE %",
    ]
    print_table(head, rows, right_from=0)
    worst = 100 * document["worst_of_optimum"]
    click.echo(
        f"{document['jobs']} jobs, {document['samples']} samples each; worst {worst:.2f} %"
        " of the known-curve optimum; drawn in % of the budget, in the end and ever while learning"
    )


@click.command("fit")
@click.argument("files", nargs=-1, required=True, metavar="[GPU=]FILE...")
@click.option(
    "--format",
    "kind",
    default="native",
    show_default=True,
    metavar=POWER_FORMATS,
    help="Format of the measured files.",
)
@click.option(
    "--train", type=click.Path(path_type=Path), help="Zeus' training summary: learning rates."
)
@click.option(
    "--learner",
    default="boosting",
    show_default=True,
    metavar="linear|boosting|network",
    help="What learns watts from features.",
)
@click.option("--models", type=click.Path(path_type=Path), help="Folder for the next version.")
@click.option("--out", type=click.Path(path_type=Path), help="File for this model alone.")
@click.option("--seed", default=0, show_default=True, help="Of folds and learners.")
@click.option(
    "--peak",
    "given",
    multiple=True,
    metavar="GPU=16.3TFLOPS",
    help="Peak rate of a GPU type, in place of the catalogue's.",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    metavar=_PRECISIONS,
    help="At which precision the jobs compute: which peak rate of the catalogue counts.",
)
@click.option(
    "--held-out",
    default="job,model,gpu",
    show_default=True,
    help="What is left out to judge by; fewer take less time.",
)
@prints
def fit(
    *,
    files: tuple[str, ...],
    kind: str,
    train: Path | None,
    learner: str,
    models: Path | None,
    out: Path | None,
    seed: int,
    given: tuple[str, ...],
    precision: str,
    held_out: str,
    output: str,
) -> None:
    """Learn to predict watts, and say how well that works for what was never seen.

    Errors are mean absolute percentages on held-out jobs, models and GPU types. The model uses the
    features that selection keeps.
    """
    from wattherd.experiments.power_models.fit import fit_all, report, save, write
    from wattherd.workload.power_rows import read_power_rows

    peaks = _peaks(given, precision)
    rows = read_power_rows(files, kind, train, peaks)
    splits = [split.strip() for split in held_out.split(",")]
    document = report(rows, learner=learner, seed=seed, held_out=splits)
    if models is not None or out is not None:
        kept = document["selection"]["kept"]
        stored = fit_all(rows, kept, learner, seed, now_s=time.time(), peaks=peaks)
        if models is not None:
            document["model"] = save(stored, models)
        if out is not None:
            document["model"] = write(stored, out)
    if printed(document, output):
        return
    _show_fit(document)


def _peaks(given: tuple[str, ...], precision: str) -> KnownPeakRates:
    """What `--peak` and `--precision` say.

    Raises:
        UserError: no GPU type, no rate or no precision.
    """
    from wattherd.catalog.gpus import Precision
    from wattherd.spelling import hint_for
    from wattherd.units import operations_hz
    from wattherd.workload.power_rows import KnownPeakRates

    if precision not in list(Precision):
        hint = hint_for(precision, Precision)
        raise UserError(f"unknown precision {precision!r}", field="--precision", hint=hint)
    found = {}
    for text in given:
        gpu, equals, rate = text.partition("=")
        if not (gpu.strip() and equals):
            hint = "write the GPU type as in the measurements: RTX6000=16.3TFLOPS"
            raise UserError(f"{text!r} names no GPU type", field="--peak", hint=hint)
        found[gpu.strip()] = operations_hz(rate, field="--peak")
    return KnownPeakRates(found, Precision(precision))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _show_fit(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    gpus = document["gpus"]
    table: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in document["errors"]:
        key = (one["split"], one["features"], one["learner"])
        table.setdefault(key, {})[one["gpu"]] = _percent(one["mape_pct"])
    for one in document["lookup"]:
        key = ("job", "batch size", "lookup")
        table.setdefault(key, {})[one["gpu"]] = _percent(one["mape_pct"])
    rows = [[*key, *(found.get(gpu, "-") for gpu in gpus)] for key, found in table.items()]
    print_table(["HELD OUT", "KNOWN", "BY", *(f"{g} MAPE %" for g in gpus)], rows, right_from=3)
    selection = document["selection"]
    click.echo(f"selection keeps {', '.join(selection['kept'])}")
    for one in selection["dropped"]:
        before, after = one["before_pct"], one["after_pct"]
        click.echo(f"  drops {one['feature']}: MAPE {before:.2f} -> {after:.2f} %")
    for one in document["intervals"]:
        click.echo(_interval(one))
    for direction, name in (("down", "lower"), ("up", "higher")):
        once = [one for one in document["measured_once"] if one["to"] == direction]
        if once:
            found = ", ".join(f"{one['gpu']} {_percent(one['mape_pct'])}" for one in once)
            held = [one["covered"] for one in once if one["covered"] is not None]
            hold = f"; intervals hold {100 * sum(held) / len(held):.1f} %" if held else ""
            click.echo(f"measured once, carried to {name} caps: MAPE % {found}{hold}")
    for line in _peaks_told(document["peaks"]):
        click.echo(line)
    if "model" in document:
        made = document["model"]
        click.echo(f"version {made['version']} ({made['id']}): {made['path']}")


_NEW = {"job": "job", "model": "model", "gpu": "GPU type"}


def _interval(one: dict[str, Any]) -> str:
    who = f"new {_NEW[one['split']]}, {one['learner']}"
    if one["half_width_pct"] is None:
        return f"{who}: too few to tell an interval from, none can be promised"
    wide = f"{who}: {100 * one['asked']:.0f} % intervals, +{_percent(one['half_width_pct'])} %"
    if one["covered"] is None:
        return f"{wide} by {one['method']}; too few to measure how often they hold"
    groups = ", ".join(f"{g['name']} {_percent(100 * g['covered'])}" for g in one["groups"])
    by = f" ({groups})" if 0 < len(one["groups"]) <= _MOST_GROUPS else ""
    return f"{wide} by {one['method']}, hold {_percent(100 * one['covered'])} %{by}"


_MOST_GROUPS = 12


def _peaks_told(peaks: list[dict[str, Any]]) -> list[str]:
    """For which GPU types no peak rate is known, and what that costs."""
    from wattherd.experiments.power_models.predict import peak_hint

    return [
        f"no peak rate is known for {one['gpu']}: {_lost(one)}; {peak_hint(one['gpu'])}"
        for one in peaks
        if one["rows_without_rate"]
    ]


def _lost(one: dict[str, Any]) -> str:
    if one["rows_lost"]:
        return f"saturation does without {one['rows_lost']} of its {one['rows']} rows"
    return "predictions do without it"


@click.command("refit")
@click.argument("files", nargs=-1, required=True, metavar="[GPU=]FILE...")
@click.option("--models", required=True, type=click.Path(path_type=Path), help="Folder.")
@click.option(
    "--format",
    "kind",
    default="native",
    show_default=True,
    metavar=POWER_FORMATS,
    help="Format of the measured files.",
)
@click.option("--train", type=click.Path(path_type=Path), help="Zeus' training summary.")
@click.option("--every", default="7d", show_default=True, help="Greatest age of a model.")
@click.option("--growth", default=0.2, show_default=True, help="Share of new rows that suffices.")
@click.option("--dry-run", is_flag=True, help="Only say whether it is time.")
@prints
def refit(
    *,
    files: tuple[str, ...],
    models: Path,
    kind: str,
    train: Path | None,
    every: str,
    growth: float,
    dry_run: bool,
    output: str,
) -> None:
    """Fit the next version if the newest no longer holds, is old, or much was measured since.

    FILES are all measurements there are; run it from a timer. It does nothing without new rows.
    """
    from wattherd.estimate.refit import RefitTerms
    from wattherd.experiments.power_models.fit import load
    from wattherd.experiments.power_models.refit import refit
    from wattherd.units import seconds
    from wattherd.workload.power_rows import read_power_rows

    terms = RefitTerms(every_s=seconds(every, field="--every"), growth=growth)
    rows = read_power_rows(files, kind, train, load(models)[1].peaks)
    document = refit(models, rows, terms, time.time(), dry=dry_run)
    if printed(document, output):
        return
    wrong = _percent(document["new_mape_pct"])
    click.echo(
        f"version {document['version']}: {document['new_rows']} new rows, off by {wrong} %;"
        f" reason to refit: {document['reason'] or 'none'}"
    )
    if "model" in document:
        made = document["model"]
        click.echo(f"version {made['version']} ({made['id']}): {made['path']}")


@click.command("predict")
@click.option("--models", required=True, type=click.Path(path_type=Path), help="Folder or file.")
@click.option("--gpu", required=True, help="GPU type, as in the measurements.")
@click.option("--model", required=True, help="Network, as in the measurements.")
@click.option("--dataset", default="", help="Its data set, which helps to recognise the job.")
@click.option("--tdp", required=True, metavar="250W", help="Highest power limit of the GPU.")
@click.option("--cap", metavar="200W", help="Power limit; the TDP if left out.")
@click.option("--set", "given", multiple=True, metavar="FEATURE=NUMBER", help="batch_size=64, ...")
@click.option(
    "--peak", metavar="16.3TFLOPS", help="Peak rate of the GPU type; else the catalogue's."
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "fp16"]),
    help="At which the job computes (fp16 for bf16, too): the catalogue's rate for it counts.",
)
@click.option(
    "--measured",
    metavar="212W@250W",
    help="What this very job drew on this GPU type, under which cap.",
)
@prints
def predict(
    *,
    models: Path,
    gpu: str,
    model: str,
    dataset: str,
    tdp: str,
    cap: str | None,
    given: tuple[str, ...],
    peak: str | None,
    precision: str | None,
    measured: str | None,
    output: str,
) -> None:
    """Predict the average watts of one device, with an interval.

    A job that was measured is looked up; what it drew under one cap is carried to another; anything
    else is the model's guess.
    """
    from wattherd.experiments.power_models.predict import WantedPrediction, peak_at, predict
    from wattherd.units import operations_hz, watts

    tdp_w = watts(tdp, field="--tdp")
    cap_w = watts(cap, field="--cap") if cap else tdp_w
    if not 0 < cap_w <= tdp_w:
        raise UserError(
            "the cap must be above 0 and at most the TDP", field="--cap", hint=f"at most {tdp}"
        )
    values = _given(given)
    if peak is not None:
        values["gpu_flops"] = operations_hz(peak, field="--peak")
    if precision is not None:
        if "gpu_flops" in values:
            raise UserError("the peak rate is given already", field="--precision",
                            hint="leave out one of the two")  # fmt: skip
        values["gpu_flops"] = peak_at(gpu, precision)
    job = WantedPrediction(
        gpu=gpu, model=model, tdp_w=tdp_w, cap_w=cap_w, values=values, dataset=dataset,
        once=_measured(measured, tdp_w) if measured else None,
    )  # fmt: skip
    document = predict(models, job)
    if not printed(document, output):
        _show_prediction(document, gpu)


def _measured(text: str, tdp_w: float) -> MeasuredDraw:
    """`212W@250W`: watts under a cap.

    Raises:
        UserError: it is written otherwise, or cannot be.
    """
    from wattherd.experiments.power_models.predict import MeasuredDraw
    from wattherd.units import watts

    power, at, cap = text.partition("@")
    hint = "write what was read and the cap meanwhile: 212W@250W"
    if not at:
        raise UserError(f"{text!r} names no cap", field="--measured", hint=hint)
    found = MeasuredDraw(watts(power, field="--measured"), watts(cap, field="--measured"))
    if not 0 < found.cap_w <= tdp_w:
        problem = f"the cap {cap} does not lie above 0, up to the TDP"
        raise UserError(problem, field="--measured", hint=hint)
    if not 0 < found.power_w <= MOST_OF_TDP * tdp_w:
        problem = f"{power} is no draw of a GPU with a TDP of {tdp_w:g} W"
        raise UserError(problem, field="--measured", hint=hint)
    return found


MOST_OF_TDP = 1.5
"""Short bursts are above the limit, averages of a minute are not: what is more is a mistake."""


def _show_prediction(document: dict[str, Any], gpu: str) -> None:
    told = f"model {document['model_w']:.1f} W, "
    asked = f"{100 * document['coverage']:.0f} %"
    within = (
        f"{asked} within {document['low_w']:.1f} W to {document['high_w']:.1f} W"
        if document["high_w"] is not None
        else f"no {asked} interval can be promised"
    )
    click.echo(f"{document['power_w']:.1f} W ({document['source']}; {told}{within})")
    for note in document["notes"]:
        click.echo(f"note: {note}")
    if (advice := document["advice"]) is None:
        return
    known, off = ", ".join(advice["gpus"]), advice["error_pct"]
    far = f": on a type left out, predictions were {off:.0f} % off" if off is not None else ""
    click.echo(f"nothing was measured on {gpu}, only on {known}{far}")
    better = advice["once_error_pct"]
    gain = f"; one measurement makes that {better:.0f} %" if better is not None else ""
    click.echo(f"measure once, while the job runs at its limit of {advice['cap_w']:g} W{gain}:")
    read, *again = advice["commands"]
    click.echo(f"  {read}")
    for command in again:
        click.echo(f"  {command}  # WATTS: the mean of what was read")


def _given(texts: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals:
            raise UserError(f"{text!r} has no number", field="--set", hint="batch_size=64")
        found[name.strip()] = numbers(number, "--set")[0]
    return found


COMMANDS = (learn, fit, refit, predict)
