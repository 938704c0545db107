"""Average watts of a job predicted from its features, by a model that needs no learning library.

A model predicts the logarithm of watts per TDP as a weighted sum, a sum of regression trees or a
small neural network. Fitting is done elsewhere; what was fitted is plain numbers, saved as JSON
and evaluated here. Prediction intervals come with the model, as half-widths in logs for what is
new: a job, a network, a GPU type. They were measured on jobs, networks and types held out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.saturation import Saturation, derived

Floats = NDArray[np.float64]

SCHEMA = "wattherd.power-model/1"
LOGGED = frozenset(
    {"batch_size", "learning_rate", "params", "flops", "cap_share", "gpu_flops", "core_hz",
     "memory_hz", "measured_share", "cut_share", "work_s"}
)  # fmt: skip
"""Features that act by ratio: their logarithm is used."""
_WIDEST = 50.0
"""Half-widths in logs from which nothing is excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRow:
    """What one measurement says: `values` are the features known of it, in base units.

    `model` is the network or benchmark, `job` a model with its fixed settings, measured under
    several caps or clocks. `utilisation` (0 to 1) is measured, None where nothing counted it.
    """

    gpu: str
    model: str
    job: str
    tdp_w: float
    power_w: float
    values: Mapping[str, float]
    utilisation: float | None = None


class Regressor(Protocol):
    """A fitted function of rows of features."""

    def predict(self, features: Floats) -> Floats:
        """Values (N,) at `features` (N, F)."""
        ...

    def plain(self) -> dict[str, Any]:
        """Everything it needs, as JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of weights and biases, rectified between; a single layer is a linear model.

    Values stay between `least` and `most`: far from what was learned from, lines run away.
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    least: float
    most: float

    def predict(self, features: Floats) -> Floats:
        """Values (N,) at `features` (N, F)."""
        found = features
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found = found @ weight + bias
            if number + 1 < len(self.weights):
                found = np.maximum(found, 0.0)
        return np.clip(found[:, 0], self.least, self.most)

    def plain(self) -> dict[str, Any]:
        """Everything it needs, as JSON."""
        return {
            "kind": "layers",
            "weights": [one.tolist() for one in self.weights],
            "biases": [one.tolist() for one in self.biases],
            "least": self.least,
            "most": self.most,
        }


@dataclass(frozen=True, slots=True)
class Tree:
    """A regression tree by node number; a leaf has left -1. Rows up to the threshold go left."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    value: tuple[float, ...]

    def predict(self, features: Floats) -> Floats:
        """Values (N,) at `features` (N, F)."""
        left, right = np.array(self.left), np.array(self.right)
        feature, threshold = np.array(self.feature), np.array(self.threshold)
        at = np.zeros(len(features), dtype=np.int64)
        while (inner := np.flatnonzero(left[at] >= 0)).size:
            here = at[inner]
            low = features[inner, feature[here]] <= threshold[here]
            at[inner] = np.where(low, left[here], right[here])
        return np.asarray(np.array(self.value)[at], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Trees:
    """A start value and `rate` times the sum of trees (Friedman, Annals of Statistics 2001)."""

    start: float
    rate: float
    trees: tuple[Tree, ...]

    def predict(self, features: Floats) -> Floats:
        """Values (N,) at `features` (N, F)."""
        # The published library compares single precision with its thresholds.
        rounded = features.astype(np.float32).astype(np.float64)
        total = np.full(len(features), self.start)
        for tree in self.trees:
            total += self.rate * tree.predict(rounded)
        return total

    def plain(self) -> dict[str, Any]:
        """Everything it needs, as JSON."""
        trees = [
            [list(t.left), list(t.right), list(t.feature), list(t.threshold), list(t.value)]
            for t in self.trees
        ]
        return {"kind": "trees", "start": self.start, "rate": self.rate, "trees": trees}


@dataclass(frozen=True, slots=True)
class Scaling:
    """Names of the features, and mean and spread by which each was brought to scale."""

    names: tuple[str, ...]
    mean: Floats
    spread: Floats

    def matrix(self, rows: Sequence[Mapping[str, float]]) -> Floats:
        """Scaled features (N, F); what a row does not know counts as average."""
        raw = raw_matrix(rows, self.names)
        return np.nan_to_num((raw - self.mean) / self.spread, nan=0.0)


def raw_matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Floats:
    """Features (N, F), logarithms where they act by ratio, NaN where unknown.

    Raises:
        UserError: a feature that must be above zero is not.
    """
    table = np.full((len(rows), len(names)), np.nan)
    for at, row in enumerate(rows):
        for column, name in enumerate(names):
            if name in row:
                table[at, column] = _value(name, row[name])
    return table


def _value(name: str, value: float) -> float:
    if name not in LOGGED:
        return value
    if value <= 0:
        raise UserError(f"{value:g} is not above zero", field=name)
    return math.log(value)


def scaling(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Scaling:
    """Mean and spread of every feature; one that is nowhere known or never varies stays 0."""
    raw = raw_matrix(rows, names)
    known = ~np.isnan(raw)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, raw, 0.0).sum(axis=0) / count
    off = np.where(known, raw - mean, 0.0)
    spread = np.sqrt((off**2).sum(axis=0) / count)
    return Scaling(tuple(names), mean, np.where(spread > 1e-9, spread, 1.0))


@dataclass(frozen=True, slots=True)
class Predicted:
    """Watts with the ends of their interval."""

    power_w: float
    low_w: float
    high_w: float


def between(power_w: float, width: float, most_w: float) -> Predicted:
    """An interval of `width` in logs on both sides, which ends at `most_w` at the latest."""
    if width > _WIDEST:
        return Predicted(power_w, 0.0, math.inf)
    factor = math.exp(width)
    return Predicted(power_w, power_w / factor, min(power_w * factor, max(most_w, power_w)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """A fitted model; `half_width` is in logs: for a new job, a new model, a new GPU type.

    `error_pct` is the mean absolute error on such, a mean over all held out. No interval ends
    above `most_share` of the TDP.
    """

    learner: str
    scaling: Scaling
    regressor: Regressor
    gpus: tuple[str, ...]
    models: tuple[str, ...]
    half_width: Mapping[str, float]
    coverage: float = 0.9
    error_pct: Mapping[str, float] = field(default_factory=dict)
    most_share: float = math.inf

    def log_share(self, rows: Sequence[Mapping[str, float]]) -> Floats:
        """Logarithms of watts per TDP (N,)."""
        return self.regressor.predict(self.scaling.matrix(rows))

    def predict(self, gpu: str, model: str, tdp_w: float, values: Mapping[str, float]) -> Predicted:
        """Watts of a job; the interval is wider for models and GPU types never seen."""
        power_w = tdp_w * math.exp(float(self.log_share([derived(gpu, values)])[0]))
        width = self.width(self.strange(gpu, model))
        return between(power_w, width, self.most_share * tdp_w)

    def strange(self, gpu: str, model: str) -> tuple[str, ...]:
        """What of a job the model has never seen: its GPU type, its network, both; else the job."""
        known = {"gpu": gpu in self.gpus, "model": model in self.models}
        return tuple(kind for kind, seen in known.items() if not seen) or ("job",)

    def width(self, strange: Sequence[str]) -> float:
        """The half-width in logs; errors of a new type and of a new network add in squares."""
        return math.hypot(*(self.half_width.get(kind, math.inf) for kind in strange))

    def plain(self) -> dict[str, Any]:
        """Everything it needs, as JSON; an infinite width is null."""
        return {
            "schema": SCHEMA,
            "learner": self.learner,
            "features": list(self.scaling.names),
            "mean": self.scaling.mean.tolist(),
            "spread": self.scaling.spread.tolist(),
            "gpus": list(self.gpus),
            "models": list(self.models),
            "half_width": {k: v if math.isfinite(v) else None for k, v in self.half_width.items()},
            "coverage": self.coverage,
            "error_pct": dict(self.error_pct),
            "most_share": self.most_share if math.isfinite(self.most_share) else None,
            "regressor": self.regressor.plain(),
        }


def read_model(plain: Mapping[str, Any]) -> PowerModel:
    """The model that `plain` describes.

    Raises:
        UserError: it is no model of this schema.
    """
    if plain.get("schema") != SCHEMA:
        raise UserError(f"is no {SCHEMA}", field="schema", hint="made by `wattherd power fit`")
    try:
        names = tuple(plain["features"])
        scale = Scaling(names, np.array(plain["mean"]), np.array(plain["spread"]))
        widths = {k: math.inf if v is None else float(v) for k, v in plain["half_width"].items()}
        return PowerModel(
            learner=plain["learner"], scaling=scale, regressor=_regressor(plain["regressor"]),
            gpus=tuple(plain["gpus"]), models=tuple(plain["models"]), half_width=widths,
            coverage=float(plain["coverage"]), error_pct=plain.get("error_pct", {}),
            most_share=float(plain.get("most_share") or math.inf),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"damaged model: {error}", field="model") from None


def _regressor(plain: Mapping[str, Any]) -> Regressor:
    if plain["kind"] == "layers":
        return Layers(
            tuple(np.array(one, dtype=np.float64) for one in plain["weights"]),
            tuple(np.array(one, dtype=np.float64) for one in plain["biases"]),
            float(plain["least"]),
            float(plain["most"]),
        )
    if plain["kind"] == "saturation":
        keys = ("shared", "floors", "mosts")
        return Saturation(*(tuple(float(one) for one in plain[key]) for key in keys))
    trees = tuple(Tree(*(tuple(column) for column in one)) for one in plain["trees"])
    return Trees(float(plain["start"]), float(plain["rate"]), trees)
