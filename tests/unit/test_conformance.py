"""The conformance kit: ours pass it, and what is wrong in one way each does not."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wattherd.devices.knobs.contract import KnobLimits, KnobSetting, KnobUnit
from wattherd.devices.meters import replay
from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.signals import schedule
from wattherd.devices.signals.contract import SourceContact, ToldLimits
from wattherd.errors import UserError
from wattherd.experiments.schedule.run import POWER_POLICIES
from wattherd.experiments.schedule.simulators import preset
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.place.contract import INFEASIBLE, Ints, ScoredWorld, Scorer
from wattherd.policy.place.registry import BUILT_IN
from wattherd.policy.place.within_node import best_fit_rows
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.report.charts import Chart
from wattherd.report.plugin_reports import ReportFile, ReportSection
from wattherd.report.svg import Element, Frame
from wattherd.report.svg import document as svg_document
from wattherd.testing.conformance import (
    Nonconforming,
    check_format,
    check_knob,
    check_meter,
    check_power_policy,
    check_report,
    check_scheduler,
    check_scorer,
    check_signal,
)
from wattherd.testing.timed_world import timed

TURNS = itertools.count()
OURS = {
    name: make
    for name, make in preset("none").schedulers.items()
    if name != "hived"  # its cells are whole nodes of one size, the kit's are not
}


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_schedulers_conform(name: str) -> None:
    check_scheduler(OURS[name], seeds=(0, 1))


@pytest.mark.parametrize("name", sorted(POWER_POLICIES))
def test_our_power_policies_conform(name: str) -> None:
    check_power_policy(POWER_POLICIES[name])


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_our_scorers_conform(name: str) -> None:
    check_scorer(BUILT_IN[name], seeds=(0, 1), most_s=10.0)  # the machine may be busy


def test_our_meters_conform(tmp_path: Any) -> None:
    (tmp_path / "watts.csv").write_text("time_s,power_w\n0,100\n60,120\n")
    check_meter(replay, f"replay:{tmp_path}/watts.csv?column=power_w&time=time_s")


class Lazy(FifoGang):
    def plan(self, view: Any, draft: Any) -> None:
        if view.now_s < 200:
            super().plan(view, draft)


class Restless(FifoGang):
    """Everybody is stopped every ten seconds, and goes on from where it was."""

    def plan(self, view: Any, draft: Any) -> None:
        odd = int(view.now_s) // 10 % 2
        wanted = [job for job in view.live() if job.wanted]
        for job in wanted if odd else ():
            draft.stop(job, StopReason.TIME_SLICE)
        if not odd:
            super().plan(view, draft)
        draft.wake_at(float(10 * (int(view.now_s) // 10 + 1)))


class Endless(FifoGang):
    """Stops whom it has just started, at the same instant."""

    def plan(self, view: Any, draft: Any) -> None:
        wanted = [job for job in view.live() if job.wanted]
        for job in wanted:
            draft.stop(job, StopReason.TIME_SLICE)
        if not wanted:
            super().plan(view, draft)


class Moody(FifoGang):
    moods = itertools.count()

    def plan(self, view: Any, draft: Any) -> None:
        if next(self.moods) % 7:
            super().plan(view, draft)
        else:
            draft.wake_at(view.now_s + 3.0)


@pytest.mark.parametrize(
    ("planner", "said"),
    [
        (Lazy, "never ended"),
        (Restless, "was started"),
        (Endless, "no end"),
        (Moody, "other commands"),
    ],
)
def test_what_a_scheduler_must_not_do_is_noticed(planner: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_scheduler(lambda _: planner(), restarts=5)


class Greedy(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return [ask.curve.max_w for ask in asks]


class Mean(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return [ask.curve.floor_w for ask in asks]


class Low(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return [ask.curve.floor_w / 2 for ask in asks]


class Short(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return super().share(asks, watts)[1:]


class Fickle(Uniform):
    turns = itertools.count()

    def share(self, asks: Any, watts: float) -> list[float]:
        low = [ask.curve.floor_w for ask in asks]
        return low if next(self.turns) % 2 else super().share(asks, watts)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Greedy, "were shared"),
        (Mean, "left over"),
        (Low, "for a job that takes"),
        (Short, "caps for"),
        (Fickle, "another answer"),
    ],
)
def test_what_a_power_policy_must_not_do_is_noticed(policy: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_power_policy(policy)


def most_idle(world: ScoredWorld, shape: int, rows: Ints) -> tuple[Ints, Ints]:
    """A scorer as it should be."""
    return world.nodes.idle[rows], best_fit_rows(world, shape, rows)


def scorer(rows: Any, **more: Any) -> Scorer:
    """What is wrong with it is told in `rows`, a function of world, shape and rows."""
    return Scorer(
        name="mine", doc="mine", rows=lambda world, shape, at, options: rows(world, shape, at),
        **more,
    )  # fmt: skip


def keyed(make: Any) -> Any:
    """Rows whose keys `make` gives from the world, the rows and the keys of `most_idle`."""

    def rows(world: ScoredWorld, shape: int, at: Ints) -> tuple[Ints, Ints]:
        keys, gpus = most_idle(world, shape, at)
        return make(world, at, keys), gpus

    return rows


def first_gpu(world: ScoredWorld, shape: int, at: Ints) -> tuple[Ints, Ints]:
    return world.nodes.idle[at], np.zeros(len(at), dtype=np.int64)


def absent_gpu(world: ScoredWorld, shape: int, at: Ints) -> tuple[Ints, Ints]:
    return world.nodes.idle[at], np.full(len(at), 99)


def spoils(what: str) -> Any:
    def rows(world: ScoredWorld, shape: int, at: Ints) -> tuple[Ints, Ints]:
        answer = most_idle(world, shape, at.copy())
        (at if what == "rows" else getattr(world.nodes, what))[:] += 1
        return answer

    return rows


def remembering(world: ScoredWorld, shape: int, at: Ints) -> tuple[Ints, Ints]:
    """Prefers the node whose pods are nearest to the mean: of all nodes, not of those asked."""
    mean = world.nodes.idle.mean()
    return (-abs(world.nodes.idle[at] - mean)).astype(np.int64), best_fit_rows(world, shape, at)


def test_a_scorer_conforms() -> None:
    check_scorer(scorer(most_idle))
    check_scorer(scorer(keyed(lambda w, at, keys: keys * 2**40), blendable=False), seeds=(0,))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (keyed(lambda w, at, keys: 1 / 0), "p0: it raised ZeroDivisionError"),
        (lambda w, s, at: None, "a NoneType is no pair of keys and GPUs"),
        (keyed(lambda w, at, keys: keys.astype(float)), "keys are float64 and no integers"),
        (keyed(lambda w, at, keys: keys * np.nan), "keys: nan for node"),
        (keyed(lambda w, at, keys: keys / 0.5 + np.inf), "keys: inf for node"),
        (keyed(lambda w, at, keys: list(keys)), "keys are a list and no array"),
        (keyed(lambda w, at, keys: keys[1:]), r"keys have the shape \(\d+,\) for \d+ nodes"),
        (keyed(lambda w, at, keys: w.nodes.idle), r"keys have the shape|which other nodes"),
        (keyed(lambda w, at, keys: keys * 0 + INFEASIBLE), "means that it has no room"),
        (keyed(lambda w, at, keys: keys * 2**50), "too large for a blend"),
        (keyed(lambda w, at, keys: keys + next(TURNS)), "another answer next time"),
        (keyed(lambda w, at, keys: keys.argsort().argsort()), "depends? on"),
        (keyed(lambda w, at, keys: w.nodes.memory_free[at]), "depend on free memory"),
        (first_gpu, r"GPU 0 of node \d+ has no room"),
        (absent_gpu, r"GPU 99 of node \d+ has no room"),
        (spoils("rows"), "changed `rows`"),
        (spoils("cpu_free"), "changed the world"),
        (remembering, "keys that were kept choose another node"),
    ],
)
def test_what_a_scorer_must_not_do_is_noticed(rows: Any, said: str) -> None:
    with np.errstate(all="ignore"), pytest.raises(Nonconforming, match=said):
        check_scorer(scorer(rows))


def test_a_scorer_with_wrong_words_or_no_arrays_is_noticed() -> None:
    with pytest.raises(Nonconforming, match="token 'wide' sets"):
        check_scorer(scorer(most_idle, tokens={"wide": {"width": 1.0}}))
    with pytest.raises(Nonconforming, match="use arrays instead of loops"):
        check_scorer(scorer(keyed(slow)), seeds=(0,), most_s=0.05)
    with pytest.raises(Nonconforming, match="function is no Scorer"):
        check_scorer(most_idle)  # type: ignore[arg-type]


def slow(world: ScoredWorld, at: Ints, keys: Ints) -> Ints:
    if len(at) > 100:
        time.sleep(0.1)
    return keys


def meter(value: Any, **more: Any) -> ModuleType:
    driver = SimpleNamespace(sample=lambda: value, close=lambda: None)
    found: Any = SimpleNamespace(OPTIONS=frozenset(), driver=lambda *_: driver, **more)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (MeterSample(float("nan")), "no reading"),
        (100.0, "no MeterSample"),
        (MeterSample(100.0, at_s=1e11), "ahead of its time"),
    ],
)
def test_what_a_meter_must_not_do_is_noticed(value: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_meter(meter(value), "mine://HOST")


class Board:
    """A knob of a board that does what it is told, but for what a test breaks."""

    unit, step = KnobUnit.WATT, 1.0

    def __init__(self, **broken: Any) -> None:
        self.value, self.broken = 400.0, broken

    def limits(self) -> KnobLimits:
        lowest = self.broken.get("lowest", 100.0)
        unit = self.broken.get("unit", self.unit)
        return KnobLimits(unit=unit, lowest=lowest, highest=400.0, default=400.0, now=self.value)

    def read(self) -> KnobSetting:
        return KnobSetting(self.value, self.broken.get("state", {"value": self.value}))

    def write(self, value: float) -> None:
        self.value = value + self.broken.get("off_by", 0.0)

    def put_back(self, state: Any) -> None:
        if "forgets" not in self.broken:
            self.value = state["value"]

    def close(self) -> None:
        if self.broken.get("closed"):
            raise ValueError("closed already")
        self.broken |= {"closed": True} if "closes_once" in self.broken else {}


def knob(**broken: Any) -> ModuleType:
    board = Board(**broken)
    found: Any = SimpleNamespace(OPTIONS=frozenset(), driver=lambda _: board, board=board)
    return found  # type: ignore[no-any-return]


def test_a_knob_is_put_back_as_it_was_found() -> None:
    module = knob()
    module.board.value = 321.0
    check_knob(module, "mine://HOST")
    assert module.board.value == 321.0


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"lowest": 500.0}, "above the highest"),
        ({"unit": KnobUnit.HERTZ}, "limits in Hz, orders in W"),
        ({"off_by": 5.0}, "400 was ordered, 405 is read back"),
        ({"forgets": True}, "put back"),
    ],
)
def test_what_a_knob_must_not_do_is_noticed(broken: dict[str, Any], said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_knob(knob(**broken), "mine://HOST")


def test_a_knob_of_a_state_that_cannot_be_kept_or_that_closes_once_is_noticed() -> None:
    with pytest.raises(TypeError, match="JSON"):
        check_knob(knob(state={"value": object()}), "mine://HOST")
    with pytest.raises(ValueError, match="closed already"):
        check_knob(knob(closes_once=True), "mine://HOST")


def test_a_signal_of_ours_conforms(tmp_path: Path) -> None:
    (tmp_path / "limits.csv").write_text("at,limit\n0,5kW\n")
    ours: Any = SimpleNamespace(OPTIONS=schedule.OPTIONS, signal=schedule.ScheduleFile)
    check_signal(ours, f"schedule:{tmp_path}/limits.csv?start=2026-01-01T00:00:00Z")


class Silent:
    """A signal whose answer is what a test gives it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def told(self) -> Any:
        return self.answer()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: None, "no ToldLimits"),
        (lambda: 1 / 0, "an answer raised ZeroDivisionError"),
        (lambda: time.sleep(0.15), "NoneType is no ToldLimits|took"),
        (
            lambda: ToldLimits(source="x", contact=SourceContact.HEARD, spans=((0, 1, 2),)),  # type: ignore[arg-type]
            "no LimitPeriod",
        ),
    ],
)
def test_what_a_signal_must_not_do_is_noticed(answer: Any, said: str) -> None:
    module: Any = SimpleNamespace(OPTIONS=frozenset(), signal=lambda *_: Silent(answer))
    with pytest.raises(Nonconforming, match=said):
        check_signal(module, "mine://HOST")


def words(path: Path) -> list[JobSpec]:
    """A format as a package would add one: an id and seconds in each line."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        name, _, lasts = line.partition(" ")
        if not lasts.isdigit():
            raise UserError("is no job", where=f"{path}:{number}")
        found.append(timed(name, 1, lasts_s=float(lasts)))
    return found


def test_a_format_conforms(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("a 10\nb 20\n")
    bad.write_text("a 10\nnonsense\n")
    check_format(words, good, bad)
    for text, said in (("a 10\na 20\n", "several jobs are called"), ("", "gave no jobs")):
        good.write_text(text)
        with pytest.raises(Nonconforming, match=said):
            check_format(words, good, bad)
    good.write_text("a 10\n")

    def raising() -> list[JobSpec]:
        raise IndexError("row 7")

    turns = itertools.count()
    with pytest.raises(Nonconforming, match="other jobs next time"):
        check_format(lambda path: [timed(f"j{next(turns)}", 1, lasts_s=5.0)], good, bad)
    with pytest.raises(Nonconforming, match="raised IndexError"):
        check_format(lambda path: words(path) if path == good else raising(), good, bad)
    with pytest.raises(Nonconforming, match="as if it were none"):
        check_format(lambda path: words(good), good, bad)
    with pytest.raises(Nonconforming, match="is no JobSpec"):
        check_format(lambda path: ["a"], good, bad)  # type: ignore[list-item]

    def nameless(path: Path) -> list[JobSpec]:
        if path == bad:
            raise UserError("is no job")
        return words(path)

    with pytest.raises(Nonconforming, match="does not name the file"):
        check_format(nameless, good, bad)


def test_a_report_conforms() -> None:
    check_report(lambda run: ReportSection(title="Mine", sentences=("One.",)))
    check_report(lambda run: ReportFile(ending="txt", content=b"x"))


def loading(frame: Frame, key: str) -> Element:
    picture = Element("image", href="https://elsewhere.example/x.png")
    return svg_document(frame, picture, title="t", about="a", key=key)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda run: None, "nothing to tell of any run"),
        (lambda run: 1 / 0, "it raised ZeroDivisionError"),
        (lambda run: 3, "int is no ReportSection"),
        (lambda run: ReportSection(title=""), "needs a title"),
        (lambda run: ReportFile(ending="../x", content=""), "no ending"),
        (lambda run: ReportFile(ending="x", content=3), "no text and no bytes"),  # type: ignore[arg-type]
        (lambda run: ReportFile(ending="x", content=str(next(TURNS))), "another file next time"),
        (lambda run: ReportSection(title=str(next(TURNS))), "another section next time"),
        (
            lambda run: ReportSection(
                title="t", charts=(Chart(key="k", title="t", caption="c", draw=loading),)
            ),
            "a chart loads something",
        ),
    ],
)
def test_what_a_report_must_not_do_is_noticed(make: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_report(make)


def test_a_report_that_takes_its_time_is_noticed() -> None:
    with pytest.raises(Nonconforming, match="it took"):
        check_report(lambda run: time.sleep(0.02), most_s=0.01)  # type: ignore[func-returns-value]
