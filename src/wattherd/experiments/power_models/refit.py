"""`power refit`: judge the newest stored model by new rows, and fit anew if a rule says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattherd.estimate.power_model import PowerRow
from wattherd.estimate.refit import Fitted, RefitTerms, should_refit
from wattherd.experiments.power_models.fit import FittedModel, data_id, fit_all, load, save
from wattherd.experiments.power_models.judge import mape

SCHEMA = "wattherd.power-refit/1"


def refit(
    folder: Path, rows: Sequence[PowerRow], terms: RefitTerms, now_s: float, *, dry: bool = False
) -> dict[str, Any]:
    """The document of one look; `rows` are all measurements there are, old ones included.

    Rows of a signature and cap that the model has seen are old. Features and learner stay those of
    the version before; `power fit` chooses them anew.

    Raises:
        UserError: the folder holds no model, or cannot be written.
    """
    head, stored = load(folder)
    errors = _errors(stored, rows)
    model = stored.model
    known = Fitted(
        rows=stored.rows, half_width=model.half_width.get("job", math.inf), coverage=model.coverage
    )
    age_s = now_s - (stored.fitted_at_s or 0.0)
    same = stored.data_id == data_id(rows)
    reason = None if same else should_refit(known, errors, age_s, terms)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": head["version"],
        "age_s": age_s,
        "rows": stored.rows,
        "new_rows": len(errors),
        "new_mape_pct": mape(_array(errors)) if errors else None,
        "reason": None if reason is None else str(reason),
    }
    if reason is not None and not dry:
        names = model.scaling.names
        document["model"] = save(fit_all(rows, names, model.learner, now_s=now_s), folder)
    return document


def _errors(stored: FittedModel, rows: Sequence[PowerRow]) -> list[float]:
    """Logs of predicted / measured of rows that the stored model has not seen."""
    found = []
    for row in rows:
        if stored.seen(row):
            continue
        guess = stored.model.predict(row.gpu, row.model, row.tdp_w, row.values)
        found.append(math.log(guess.power_w / row.power_w))
    return found


def _array(errors: Sequence[float]) -> Any:
    import numpy as np

    return np.array(errors)
