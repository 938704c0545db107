"""`power fit`: measurements in, error tables and a versioned model out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.catalog.gpus import Precision, near_rates
from wattherd.errors import UserError
from wattherd.estimate.power_model import Floats, PowerModel, PowerRow, read_model
from wattherd.estimate.saturation import GDDR
from wattherd.estimate.signatures import Signature, SignatureBook, read_book
from wattherd.experiments.power_models.judge import (
    BASELINES,
    CUT,
    MEASURED,
    SPLITS,
    as_measured,
    baseline,
    by_gpu,
    covered,
    half_width,
    mape,
    most_share,
    out_of_fold,
    select,
)
from wattherd.experiments.power_models.learners import LEARNERS, fit
from wattherd.experiments.power_models.measured_once import (
    MeasuredOnceErrors,
    judged_once,
    read_once,
)
from wattherd.experiments.power_models.saturation import SATURATION, able
from wattherd.spelling import hint_for
from wattherd.workload.power_rows import KnownPeakRates

SCHEMA = "wattherd.power-fit/1"
STORED = "wattherd.power-fitted/1"
STATIC = (
    "cap_share", "batch_size", "learning_rate", "params", "flops", "gpu_flops", "gddr", "core_hz",
    "memory_hz",
)  # fmt: skip
COUNTED = (
    "utilisation", "memory_activity", "occupancy", "fp32_activity", "cpu_busy",
    "cpu_instructions_hz", "cpu_cache_hits", "cpu_memory_bytes_hz",
)  # fmt: skip
COVERAGE = 0.9
MADE_BY = "make one with `wattherd power fit --models`"


@dataclass(frozen=True, slots=True)
class _View:
    """A set of features and the rows on which it is judged."""

    name: str
    features: tuple[str, ...]
    rows: Sequence[PowerRow]


def report(
    rows: Sequence[PowerRow],
    *,
    learner: str = "boosting",
    seed: int = 0,
    held_out: Sequence[str] = SPLITS,
) -> dict[str, Any]:
    """The document of error tables, without a model; `held_out` is what to judge on.

    Raises:
        UserError: no such learner or nothing such to hold out, or fewer than two jobs.
    """
    if odd := [one for one in held_out if one not in SPLITS]:
        hint = hint_for(odd[0], SPLITS)
        raise UserError(
            f"{odd[0]!r} is no group that can be held out", field="--held-out", hint=hint
        )
    if learner not in LEARNERS:
        hint = hint_for(learner, LEARNERS)
        raise UserError(f"unknown learner {learner!r}", field="--learner", hint=hint)
    if len({row.job for row in rows}) < 2:
        hint = "errors are judged on jobs left out: give at least two"
        raise UserError("fewer than two jobs: nothing to hold out", field="job", hint=hint)
    able = _present(rows, STATIC + COUNTED)
    if not able:
        problem = "no feature differs between any two rows: nothing to learn from"
        hint = "give columns that vary, such as cap_w, batch_size or utilisation"
        raise UserError(problem, field="FILE", hint=hint)
    views = _views(rows)
    kept, gone = select(rows, able, learner, seed)
    splits = [split for split in held_out if len({getattr(row, split) for row in rows}) > 1]
    return {
        "schema": SCHEMA,
        "rows": len(rows),
        "gpus": sorted({row.gpu for row in rows}),
        "models": sorted({row.model for row in rows}),
        "jobs": len({(row.gpu, row.job) for row in rows}),
        "selection": {
            "learner": learner, "kept": list(kept), "dropped": [asdict(one) for one in gone],
        },
        "errors": [one for split in splits for one in _errors(views, split, seed)],
        "intervals": [
            covered(rows, kept, one, split, COVERAGE)
            for one in (learner, *_strange(rows))
            for split in splits
        ],
        "lookup": lookup_errors(rows),
        "peaks": peaks_of(rows),
        "measured_once": _once_document(judged_once(rows, COVERAGE)),
    }  # fmt: skip


def peaks_of(rows: Sequence[PowerRow]) -> list[dict[str, Any]]:
    """For every GPU type its peak rate (null: nobody knows it), and rows that `saturation` uses.

    `rows_lost` are those that it could use if the rate were known. `maybe` are types of the
    catalogue that may be meant.
    """
    found: dict[str, list[PowerRow]] = {}
    for row in rows:
        found.setdefault(row.gpu, []).append(row)
    return [
        {
            "gpu": gpu,
            "gpu_flops": max(row.values.get("gpu_flops", 0.0) for row in some) or None,
            "rows": len(some),
            "rows_without_rate": sum("gpu_flops" not in row.values for row in some),
            "rows_lost": sum(_lacks_rate_only(row) for row in some),
            "rows_of_saturation": sum(able(SATURATION, row) for row in some),
            "maybe": list(near_rates(gpu)),
        }
        for gpu, some in sorted(found.items())
    ]


def _lacks_rate_only(row: PowerRow) -> bool:
    """Whether a peak rate is all that keeps a row from telling the work of a step."""
    return "gpu_flops" not in row.values and {"batch_size", "flops"} <= set(row.values)


def _once_document(once: MeasuredOnceErrors | None) -> list[dict[str, Any]]:
    """Errors of one measurement carried to other caps, on GPU types that had no part in it."""
    if once is None:
        return []
    return [
        {
            "to": direction,
            "gpu": gpu,
            "mape_pct": pct,
            "covered": once.covered[direction].get(gpu),
        }
        for direction, found in once.error_pct.items()
        for gpu, pct in found.items()
    ]


def _strange(rows: Sequence[PowerRow]) -> tuple[str, ...]:
    """The learner for networks never seen, where their work per step is known."""
    return (SATURATION,) if any("work_s" in row.values for row in rows) else ()


def _present(rows: Sequence[PowerRow], names: Sequence[str]) -> tuple[str, ...]:
    """Features that are known anywhere and vary."""
    return tuple(name for name in names if len({row.values.get(name) for row in rows}) > 1)


def _views(rows: Sequence[PowerRow]) -> list[_View]:
    """From what is known before a job runs, from counters, and from both with one measurement."""
    static, counted = _present(rows, STATIC), _present(rows, COUNTED)
    views = [_View("features", static, rows)]
    if counted:
        views.append(_View("counters", counted, rows))
        views.append(_View("hybrid", static + counted, rows))
    seen = _with_measured(rows)
    if len(seen) > 1:
        # A measurement tells the floor better than the kind of memory does.
        known = tuple(name for name in (*static, *counted) if name != GDDR)
        views.append(_View("hybrid, measured once", (*known, MEASURED, CUT), seen))
    return views


def _with_measured(rows: Sequence[PowerRow]) -> list[PowerRow]:
    """Rows below the highest cap of their job, which know the draw there."""
    top: dict[tuple[str, str], PowerRow] = {}
    for row in rows:
        key = (row.gpu, row.job)
        if "cap_share" in row.values and (
            key not in top or row.values["cap_share"] > top[key].values["cap_share"]
        ):
            top[key] = row
    return [
        replace(row, values={**row.values, **_once_measured(row, first)})
        for row in rows
        if (first := top.get((row.gpu, row.job))) is not None and row is not first
    ]


def _once_measured(row: PowerRow, first: PowerRow) -> dict[str, float]:
    share = first.power_w / first.tdp_w
    return {MEASURED: share, CUT: min(share, row.values["cap_share"])}


def _errors(views: Sequence[_View], split: str, seed: int) -> list[dict[str, Any]]:
    """MAPE by GPU type of baselines and learners, for one way of holding out."""
    rows = views[0].rows
    found = [
        {"split": split, "features": "none", "learner": kind, **one}
        for kind in BASELINES
        for one in by_gpu(rows, baseline(rows, kind, split, seed))
    ]
    for view in views:
        if MEASURED in view.features:
            head = {"split": split, "features": view.name, "learner": "cut at the cap"}
            found.extend({**head, **one} for one in by_gpu(view.rows, as_measured(view.rows)))
        for learner in _learners(view):
            errors = out_of_fold(view.rows, view.features, learner, split, seed)
            head = {"split": split, "features": view.name, "learner": learner}
            found.extend({**head, **one} for one in by_gpu(view.rows, errors))
    return found


def _learners(view: _View) -> tuple[str, ...]:
    """The saturating model knows its features, of which the work of a step is one."""
    told = view.name == "features" and any("work_s" in row.values for row in view.rows)
    return (*LEARNERS, SATURATION) if told else tuple(LEARNERS)


def book_of(rows: Sequence[PowerRow]) -> SignatureBook:
    """What every job of a known batch size drew by cap."""
    return SignatureBook(
        (Signature(row.gpu, _kind(row), row.values["batch_size"]), _cap_w(row), row.power_w)
        for row in rows
        if "batch_size" in row.values
    )


def _kind(row: PowerRow) -> str:
    """Dataset and network where the job names them: the same network on other data differs."""
    return "/".join(row.job.split("/")[:2]) if "/" in row.job else row.model


def _cap_w(row: PowerRow) -> float:
    return row.tdp_w * row.values.get("cap_share", 1.0)


def lookup_errors(rows: Sequence[PowerRow]) -> list[dict[str, Any]]:
    """MAPE of looking up the nearest other batch size of the same model, by GPU type."""
    book = book_of(rows)
    found: dict[str, list[float]] = {}
    missed: dict[str, int] = {}
    signed = [row for row in rows if "batch_size" in row.values]
    left_out: dict[Signature, SignatureBook] = {}
    for row in signed:
        signature = Signature(row.gpu, _kind(row), row.values["batch_size"])
        if signature not in left_out:
            left_out[signature] = book.without(signature)
        near = left_out[signature].find(signature, _cap_w(row))
        if near is None:
            missed[row.gpu] = missed.get(row.gpu, 0) + 1
        else:
            found.setdefault(row.gpu, []).append(float(np.log(near.power_w / row.power_w)))
    return [
        {"gpu": gpu, "mape_pct": mape(np.array(errors)), "rows": len(errors),
         "missed": missed.get(gpu, 0)}
        for gpu, errors in sorted(found.items())
    ]  # fmt: skip


def fitted(
    rows: Sequence[PowerRow], names: Sequence[str], learner: str, seed: int = 0
) -> PowerModel:
    """The model of all rows, with half-widths from held-out jobs, models and GPU types.

    What is stranger is never taken to be known better.
    """
    return _fitted(rows, names, learner, seed)[0]


def _fitted(
    rows: Sequence[PowerRow], names: Sequence[str], learner: str, seed: int
) -> tuple[PowerModel, dict[str, Floats]]:
    """The model, and its log errors (N,) for every way of holding out."""
    scale, regressor = fit(learner, rows, names, seed)
    found = {split: out_of_fold(rows, names, learner, split, seed) for split in SPLITS}
    widths: dict[str, float] = {}
    for split, errors in found.items():
        width = half_width(rows, errors, split, COVERAGE)
        widths[split] = max([width, *widths.values()])
    wrong = {split: _group_pct(rows, errors, split) for split, errors in found.items()}
    used = [row for row in rows if able(learner, row)]
    model = PowerModel(
        learner=learner, scaling=scale, regressor=regressor,
        gpus=tuple(sorted({row.gpu for row in used})),
        models=tuple(sorted({row.model for row in used})),
        half_width=widths, coverage=COVERAGE, most_share=most_share(used),
        error_pct={split: pct for split, pct in wrong.items() if pct is not None},
    )  # fmt: skip
    return model, found


def _group_pct(rows: Sequence[PowerRow], errors: Floats, split: str) -> float | None:
    """MAPE, a mean over the groups held out: each counts the same, however many rows it has."""
    groups = np.array([getattr(row, split) for row in rows])
    found = [mape(errors[groups == name]) for name in sorted(set(groups.tolist()))]
    known = [one for one in found if one is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """What is stored: a model, one for what was never seen, signatures, and of which data.

    `better` are the kinds of strangeness for which the second is less far off where both can
    answer (None: models of earlier versions, which ask it about networks never seen). `once`
    carries a measurement to other caps. `peaks` are those that the user gave.
    """

    model: PowerModel
    book: SignatureBook
    stranger: PowerModel | None = None
    better: frozenset[str] | None = None
    once: MeasuredOnceErrors | None = None
    peaks: KnownPeakRates = field(default_factory=KnownPeakRates)
    rows: int = 0
    data_id: str = ""
    fitted_at_s: float | None = None

    def seen(self, row: PowerRow) -> bool:
        """Whether a job was measured under this cap when the model was fitted."""
        batch = row.values.get("batch_size")
        if batch is None:
            return row.model in self.model.models and row.gpu in self.model.gpus
        return self.book.measured(Signature(row.gpu, _kind(row), batch), _cap_w(row))

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "model": self.model.plain(),
            "stranger": self.stranger.plain() if self.stranger else None,
            "stranger_better": None if self.better is None else sorted(self.better),
            "once": self.once.plain() if self.once else None,
            "peaks": {"given": dict(self.peaks.given), "precision": str(self.peaks.precision)},
            "signatures": self.book.plain(),
            "rows": self.rows,
            "data_id": self.data_id,
        }


def fit_all(
    rows: Sequence[PowerRow],
    names: Sequence[str],
    learner: str,
    seed: int = 0,
    now_s: float | None = None,
    peaks: KnownPeakRates | None = None,
) -> FittedModel:
    """All that is stored of `rows`; `now_s` is its Unix time, `peaks` what users gave."""
    model, errors = _fitted(rows, names, learner, seed)
    stranger, better = None, frozenset[str]()
    for other in _strange(rows):
        stranger, others = _fitted(rows, (), other, seed)
        better = frozenset(split for split in SPLITS if _less(rows, split, others, errors))
    return FittedModel(
        model=model, stranger=stranger, better=better, once=judged_once(rows, COVERAGE),
        book=book_of(rows), rows=len(rows), data_id=data_id(rows), fitted_at_s=now_s,
        peaks=peaks or KnownPeakRates(),
    )  # fmt: skip


def _less(
    rows: Sequence[PowerRow],
    split: str,
    ours: Mapping[str, Floats],
    theirs: Mapping[str, Floats],
) -> bool:
    """Whether our errors are the smaller ones, on rows that both predicted held out."""
    both = ~np.isnan(ours[split] + theirs[split])
    found = [_group_pct(rows, np.where(both, one[split], np.nan), split) for one in (ours, theirs)]
    return found[0] is not None and found[1] is not None and found[0] < found[1]


def data_id(rows: Sequence[PowerRow]) -> str:
    """A hash of the measurements, in whatever order."""
    lines = sorted(
        json.dumps([row.gpu, row.job, row.tdp_w, row.power_w, sorted(row.values.items())])
        for row in rows
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def save(stored: FittedModel, folder: Path) -> dict[str, Any]:
    """Write the next version, `power-vNNNN.json`; what it is called, its number and its id.

    Raises:
        UserError: the folder cannot be written.
    """
    before = _versions(folder)
    parent = _stored(before[-1])["id"] if before else None
    number = int(before[-1].stem.removeprefix("power-v")) + 1 if before else 1
    return write(stored, folder / f"power-v{number:04d}.json", number, parent)


def write(
    stored: FittedModel, path: Path, number: int = 1, parent: str | None = None
) -> dict[str, Any]:
    """Write one file.

    Raises:
        UserError: it cannot be written.
    """
    body = stored.plain()
    identity = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    head = {
        "schema": STORED, "version": number, "id": identity, "parent": parent,
        "data_id": stored.data_id, "fitted_at_s": stored.fitted_at_s,
    }  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**body, **head}), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return {"path": str(path), **{key: head[key] for key in head if key != "schema"}}


def _versions(folder: Path) -> list[Path]:
    return sorted(folder.glob("power-v[0-9][0-9][0-9][0-9].json"))


def _stored(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise UserError(problem, where=str(path), hint=MADE_BY) from None
    except (ValueError, RecursionError):
        raise UserError("is no model", where=str(path), hint=MADE_BY) from None
    if not isinstance(plain, dict) or plain.get("schema") != STORED:
        hint = MADE_BY
        raise UserError(f"is no {STORED}", where=str(path), field="schema", hint=hint)
    return plain


def load(source: Path) -> tuple[dict[str, Any], FittedModel]:
    """Version and id, and what a file or the newest version in a folder holds.

    Raises:
        UserError: there is none, or it is damaged.
    """
    if source.is_dir():
        found = _versions(source)
        if not found:
            raise UserError("holds no model", where=str(source), hint=MADE_BY)
        source = found[-1]
    plain = _stored(source)
    head = {key: plain.get(key) for key in ("version", "id")}
    stranger, better, once = (plain.get(key) for key in ("stranger", "stranger_better", "once"))
    peaks = plain.get("peaks") or {"given": {}, "precision": Precision.FP32}
    return head, FittedModel(
        model=read_model(plain["model"]),
        stranger=read_model(stranger) if stranger else None,
        better=None if better is None else frozenset(better),
        once=read_once(once) if once else None,
        peaks=KnownPeakRates(peaks["given"], Precision(peaks["precision"])),
        book=read_book(plain["signatures"]), rows=int(plain.get("rows", 0)),
        data_id=plain.get("data_id", ""), fitted_at_s=plain.get("fitted_at_s"),
    )  # fmt: skip
