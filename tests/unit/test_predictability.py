"""The predictability classifier: published tables on public data, and honest online scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.predictability import (
    ALL,
    AT_SUBMISSION,
    FEATURES,
    TOP_FIVE,
    CurveReplay,
    EndedJobs,
    Importance,
    classifier,
    cross_validated,
    importances,
    learned,
    replayed,
    score_curve,
    selected,
)
from wattherd.workload.aiturbo import read_labelled

pytest.importorskip("sklearn")
AT = {name: column for column, name in enumerate(FEATURES)}


@pytest.fixture(scope="session")
def labelled(traces: Path) -> EndedJobs:
    return read_labelled(traces / "aiturbo" / "ddl_jobs_8692.csv").history


def made_up(count: int = 400, seed: int = 1) -> EndedJobs:
    """Jobs whose label follows from final accuracy and, less surely, from their type."""
    chance = np.random.default_rng(seed)
    values = chance.uniform(0.1, 1.0, (count, len(FEATURES)))
    values[:, AT["Job type"]] = chance.integers(1, 4, count)
    unpredictable = values[:, AT["Accuracy"]] < 0.3
    return EndedJobs(values, unpredictable)


# Published tables, re-analysed: (accuracy, F1, AUC) per feature set and kind.
TABLE = {
    "all": {
        "majority": (0.850, 0.0, 0.5),
        "knn": (0.997, 0.990, 0.997),
        "logistic": (0.990, 0.966, 0.995),
        "svm": (0.998, 0.993, 0.998),
    },
    "submission": {
        "knn": (0.899, 0.649, 0.886),
        "logistic": (0.861, 0.414, 0.848),
        "svm": (0.868, 0.390, 0.853),
    },
    "top five": {
        "knn": (0.991, 0.969, 0.994),
        "logistic": (0.984, 0.946, 0.996),
        "svm": (0.988, 0.960, 0.993),
    },
}
SLOW_TABLE = {
    "all": {"forest": (0.999, 0.998, 1.0), "mlp": (0.999, 0.996, 0.998)},
    "submission": {"forest": (0.909, 0.682, 0.923), "mlp": (0.897, 0.645, 0.917)},
    "top five": {"forest": (0.994, 0.980, 0.999), "mlp": (0.992, 0.974, 0.996)},
}
SETS = {"all": ALL, "submission": AT_SUBMISSION, "top five": TOP_FIVE}


def check_table(
    history: EndedJobs, table: dict[str, dict[str, tuple[float, float, float]]]
) -> None:
    for features, kinds in table.items():
        for kind, (accuracy, f1, auc) in kinds.items():
            scores = cross_validated(history, SETS[features], kind)
            assert scores.accuracy == pytest.approx(accuracy, abs=0.02), (features, kind)
            assert scores.f1 == pytest.approx(f1, abs=0.04), (features, kind)
            assert scores.auc == pytest.approx(auc, abs=0.02), (features, kind)


@pytest.mark.data
def test_the_data_set_is_whole(labelled: EndedJobs) -> None:
    assert labelled.values.shape == (8690, 15)
    assert labelled.unpredictable.mean() == pytest.approx(0.1497, abs=5e-5)
    assert (labelled.values[:, AT["GPU"]] == 0).mean() == pytest.approx(0.117, abs=1e-3)


@pytest.mark.long
@pytest.mark.data
def test_fast_classifiers_score_as_tabulated(labelled: EndedJobs) -> None:
    check_table(labelled, TABLE)


@pytest.mark.data
@pytest.mark.slow
def test_slow_classifiers_score_as_tabulated(labelled: EndedJobs) -> None:
    check_table(labelled, SLOW_TABLE)


@pytest.mark.long
@pytest.mark.data
def test_the_five_strongest_features_are_those_reported(labelled: EndedJobs) -> None:
    found = {one.feature: one for one in importances(labelled)}
    expected = {
        "Accuracy": (-0.808, -0.489, -0.598, 0.409),
        "Loss": (0.539, 0.413, 0.506, 0.169),
        "Running time": (-0.295, -0.378, -0.463, 0.164),
        "Resubmit": (0.472, 0.472, 0.472, 0.071),
        "Memory": (0.149, 0.123, 0.142, 0.020),
    }
    for name, (pearson, kendall, spearman, impurity) in expected.items():
        one = found[name]
        assert (one.pearson, one.kendall, one.spearman) == pytest.approx(
            (pearson, kendall, spearman), abs=1e-3
        )
        assert one.impurity == pytest.approx(impurity, abs=0.02)
    assert set(selected(list(found.values()))) == set(TOP_FIVE)


@pytest.mark.long
@pytest.mark.data
def test_online_scores_rise_with_time_and_hindsight_misleads_early(labelled: EndedJobs) -> None:
    points = score_curve(
        labelled, np.random.default_rng(0), fractions=(0.0, 0.05, 0.5), kind="logistic"
    )
    start, early, half = points
    assert start.current.accuracy == pytest.approx(0.861, abs=0.005)  # submission features only
    assert start.current.auc < early.current.auc < half.current.auc
    assert early.hindsight.accuracy < 0.85 < early.current.accuracy  # worse than a constant


def test_status_is_not_known_at_submission() -> None:
    assert len(AT_SUBMISSION) == 11
    assert not {"Accuracy", "Loss", "Running time", "Throughput"} & set(AT_SUBMISSION)


def test_a_replay_ends_at_what_was_recorded() -> None:
    history = made_up()
    end = replayed(history, 1.0, np.random.default_rng(2))
    assert end == pytest.approx(history.values)


def test_a_replay_changes_status_only_and_starts_at_the_worst_of_the_type() -> None:
    history = made_up()
    start = replayed(history, 0.0, np.random.default_rng(2), CurveReplay(noise=0.0))
    same = [AT[name] for name in (*AT_SUBMISSION, "Throughput")]
    assert (start[:, same] == history.values[:, same]).all()
    assert (start[:, AT["Running time"]] == 0).all()
    assert (start[:, AT["Loss"]] >= history.values[:, AT["Loss"]]).all()
    kind = history.values[:, AT["Job type"]] == 2
    losses = history.values[kind, AT["Loss"]]
    expected = np.maximum(losses, np.percentile(losses, 95))
    assert start[kind, AT["Loss"]] == pytest.approx(expected)


def test_a_replay_never_looks_at_the_label() -> None:
    history = made_up()
    flipped = EndedJobs(history.values, ~history.unpredictable)
    one, two = (replayed(h, 0.3, np.random.default_rng(4)) for h in (history, flipped))
    assert (one == two).all()


def test_a_straight_replay_is_half_way_at_half_time() -> None:
    history = made_up()
    start, half, end = (
        replayed(history, f, np.random.default_rng(2), CurveReplay(bend=0.0, noise=0.0))
        for f in (0.0, 0.5, 1.0)
    )
    loss = AT["Loss"]
    assert half[:, loss] == pytest.approx((start[:, loss] + end[:, loss]) / 2)


@pytest.mark.long
def test_a_judge_answers_with_probabilities() -> None:
    history = made_up()
    judge = learned(history, np.random.default_rng(0), kind="logistic")
    late = judge.while_running(replayed(history, 0.95, np.random.default_rng(1)))
    assert ((late >= 0) & (late <= 1)).all()
    assert late[history.unpredictable].mean() > late[~history.unpredictable].mean() + 0.3
    assert judge.at_submission(history.columns(AT_SUBMISSION)).shape == (400,)


def test_features_are_chosen_by_the_sum_of_their_ranks() -> None:
    def one(name: str, value: float) -> Importance:
        return Importance(
            feature=name, pearson=-value, kendall=value, spearman=value, impurity=value
        )

    assert selected([one("a", 0.1), one("b", 0.3), one("c", 0.2)], 2) == ("b", "c")


def test_scores_of_a_constant_show_that_accuracy_says_little() -> None:
    scores = cross_validated(made_up(), ALL, "majority")
    assert scores.f1 == 0.0
    assert scores.auc == scores.balanced == 0.5
    assert scores.accuracy > 0.7


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="unknown classifier 'tree'"):
        classifier("tree")


HEADER = ",".join([*FEATURES, "Predictability"])
GOOD = ",".join(["1"] * 15)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (GOOD + ",2", "jobs.csv:2: Predictability: '2' is neither 0 nor 1"),
        (GOOD[:-1] + "x,0", "jobs.csv:2: Resubmit: 'x' is no number"),
        (GOOD[:-1] + "nan,0", "jobs.csv:2: Resubmit: 'nan' is negative or no number"),
        (GOOD + ",0", "needs jobs of both labels"),
        (GOOD[:-1] + ",0", "needs jobs of both labels"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: str, problem: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEADER}\n{row}\n")
    with pytest.raises(UserError, match=problem):
        read_labelled(path)


def test_incomplete_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEADER}\n{GOOD},0\n{GOOD},1\n,{GOOD[2:]},1\n")
    read = read_labelled(path)
    assert read.incomplete == 1
    assert read.history.unpredictable.tolist() == [False, True]
