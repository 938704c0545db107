"""Wiring: third-party scorers, warm-up, and the way out on an interrupt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from wattherd import plugins
from wattherd.cli import main as entry
from wattherd.errors import UserError
from wattherd.experiments.placement import policies as compose
from wattherd.model.job import TracePod
from wattherd.policy.place.contract import Ints, Normalise, ScoredWorld, Scorer
from wattherd.policy.place.registry import BUILT_IN, parse_policy
from wattherd.policy.place.within_node import best_fit_rows
from wattherd.testing.builders import a_cluster, a_node, exclusive, sharing


@dataclass(frozen=True)
class Entry:
    """As much of an entry point as is looked at."""

    name: str
    loaded: object
    value: str = "somewhere:SCORER"

    def load(self) -> object:
        return self.loaded


def most_cpu_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: np.ndarray
) -> tuple[Ints, Ints]:
    keys = (options[0] * world.nodes.cpu_free[rows]).astype(np.int64)
    return keys, best_fit_rows(world, shape, rows)


MOST_CPU = Scorer(
    name="most-cpu",
    doc="Most free CPU",
    rows=most_cpu_rows,
    normalise=Normalise.SPREAD,
    options={"sign": 1.0},
    tokens={"least": {"sign": -1.0}},
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Entry]]:
    """Entry points that the test installs."""
    entries: list[Entry] = []
    fake = SimpleNamespace(entry_points=lambda *, group: entries)
    monkeypatch.setattr(plugins, "metadata", fake)
    for known in (plugins.announced, compose.scorers):
        known.cache_clear()
    yield entries
    for known in (plugins.announced, compose.scorers):
        known.cache_clear()


PODS = tuple(TracePod(name=f"p{n}", request=sharing(1_000, 500)) for n in range(4))
NODES = a_cluster(
    a_node("little", cpu_milli=2_000, gpus=1),
    a_node("much", cpu_milli=9_000, gpus=1),
    a_node("some", cpu_milli=4_000, gpus=1),
)


def chosen(policy: str, *, compiled: bool = True) -> str:
    placer = compose.build_placer(
        NODES,
        PODS,
        compose.place_policy(policy),
        draws=np.random.default_rng(0),
        compiled=compiled,
    )
    found = placer.choose(exclusive(1_000, 1))
    assert found is not None
    return NODES.nodes[found.node].name


def test_a_third_party_scorer_decides_without_a_kernel(installed: list[Entry]) -> None:
    installed.append(Entry("most-cpu", MOST_CPU))
    assert chosen("most-cpu") == "much"
    assert chosen("most-cpu@least") == "little"
    assert chosen("most-cpu+first-fit:0.5") == "much"
    assert set(compose.scorers()) == {*BUILT_IN, "most-cpu"}


def test_a_blend_of_kernels_and_definitions_is_taken_by_definitions(
    installed: list[Entry],
) -> None:
    installed.append(Entry("most-cpu", MOST_CPU))
    for policy in ("fgd+most-cpu:0.3", "most-cpu+pwr+fgd:0.1:0.2"):
        assert chosen(policy) == chosen(policy, compiled=False)


def test_what_is_no_scorer_is_one_line(installed: list[Entry]) -> None:
    installed.append(Entry("odd", object()))
    with pytest.raises(UserError) as error:
        compose.place_policy("odd")
    assert error.value.line() == (
        "somewhere:SCORER: entry point 'odd' is no Scorer (hint: see docs/guides/write-a-policy.md)"
    )


def test_a_package_that_is_wrong_is_no_matter_to_other_policies(installed: list[Entry]) -> None:
    installed += [Entry("odd", object()), Entry("fgd", object())]
    assert chosen("fgd") == "little"
    assert compose.scorers()["fgd"] is BUILT_IN["fgd"]
    assert "odd" in compose.scorers()


def test_a_package_names_no_kernel_of_ours(installed: list[Entry]) -> None:
    installed.append(Entry("mine", replace(MOST_CPU, kernel_id=BUILT_IN["first-fit"].kernel_id)))
    assert chosen("mine") == "much"


def failing(how: str) -> Scorer:
    def rows(world: ScoredWorld, shape: int, at: Ints, options: np.ndarray) -> tuple[Ints, Ints]:
        if how == "raises":
            raise KeyError("a\nb")
        keys = np.full(len(at), np.nan) if how == "nan" else np.zeros(1, dtype=np.int64)
        return keys, best_fit_rows(world, shape, at)  # type: ignore[return-value]

    return Scorer(name="other", doc="", rows=rows)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "KeyError: 'a\\\\nb'"),
        ("nan", "keys: nan for node 0"),
        ("short", r"keys have the shape \(1,\) for 3 nodes"),
    ],
)
def test_a_scorer_that_fails_ends_a_study_and_is_answered_for_live(
    installed: list[Entry], caplog: pytest.LogCaptureFixture, how: str, said: str
) -> None:
    installed.append(Entry("mine", failing(how)))
    with pytest.raises(UserError, match=f"scorer 'mine' failed: {said}"):
        chosen("mine")
    live = compose.live_policy("mine+first-fit:0.9")
    placer = compose.build_placer(NODES, PODS, live, draws=np.random.default_rng(0))
    for name in ("little", "much", "some"):
        found = placer.place_one(exclusive(1_000, 1))
        assert found is not None
        assert NODES.nodes[found.node].name == name  # by first fit alone
    assert [one.levelname for one in caplog.records].count("ERROR") == len(
        {one.message for one in caplog.records}
    )
    assert "scorer 'mine' failed" in caplog.text


def test_without_plugins_there_are_the_built_in_ones(installed: list[Entry]) -> None:
    assert compose.scorers() == dict(BUILT_IN)


@pytest.mark.parametrize("policy", ["fgd", "pwr+fgd:0.1", "random"])
def test_warming_up_leaves_no_trace(policy: str) -> None:
    before = chosen(policy)
    compose.warm_up(compose.place_policy(policy))
    assert chosen(policy) == before


def test_an_interrupt_is_a_word_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry.cli, "main", stop)
    with pytest.raises(SystemExit) as ended:
        entry.main(["policies"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "wattherd: interrupted\n"


def test_a_scorer_may_be_kept_from_kernels() -> None:
    """What a third party would have: the same rows, no kernel."""
    plain = {name: replace(scorer, kernel_id=None) for name, scorer in BUILT_IN.items()}
    assert not parse_policy("fgd", plain).compiled
    assert parse_policy("fgd").compiled
