"""Draws the pictures of docs/concepts: what moves when, in numbers of the core and of the loop.

    python scripts/concept_pictures.py            # writes docs/img/concepts
    python scripts/concept_pictures.py --check    # exits with 1 where a picture is out of date

Everything that has a number is computed by the part that the page is about, in worlds of a few
devices. Only the safety loop's four steps are drawn as such.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import wattherd as wh
from wattherd.catalog.gpus import GpuModel
from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.core import Core
from wattherd.engine.safety.loop import (
    Breaker,
    Fleet,
    Orders,
    Readings,
    SafetyConfig,
    SafetyLoop,
)
from wattherd.estimate.fragmentation import fragment_rows
from wattherd.estimate.goodput import BestBatch, best
from wattherd.estimate.interference import PairSpeeds
from wattherd.estimate.job_work import constant
from wattherd.estimate.learned_curve import CurvePrior, CurveSample, LearnedCurve
from wattherd.estimate.power_curve import PowerCurve
from wattherd.estimate.target_workload import TargetWorkload
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, SetCap, StartJob
from wattherd.model.event import BudgetChanged, CapApplied, Event, JobStarted, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole, workers
from wattherd.model.training import BatchRange, StepTime, TrainingReport
from wattherd.policy.place.fgd import fgd_key
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.report.charts import Chart
from wattherd.report.export import standalone
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Point,
    Scale,
    band,
    curve_points,
    document,
    dot,
    label,
    polyline,
    segment,
    x_axis,
    y_axis,
)
from wattherd.report.theme import dark_rules
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.surroundings import Surroundings
from wattherd.testing.timed_world import Story, t4_nodes, timed

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "img" / "concepts"
ROOMY = Frame(width=640, height=300, left=60, right=150)


def chart(key: str, title: str, about: str, draw: Callable[[Frame, str], list[Element]]) -> Chart:
    """A picture of marks."""

    def drawn(frame: Frame, name: str) -> Element:
        return document(frame, *draw(frame, name), title=title, about=about, key=name)

    return Chart(key=key, title=title, caption=about, draw=drawn)


def steps(points: list[Point]) -> list[Point]:
    """A value that holds until its next one."""
    found: list[Point] = []
    for at, value in points:
        if found:
            found.append((at, found[-1][1]))
        found.append((at, value))
    return found


# Planned, held, in force --------------------------------------------------------------------------

LIMIT_W = 600.0


def two_jobs() -> list[tuple[float, dict[str, float]]]:
    """A alone at 400 W; B comes at second 1; A's lower cap is read back at second 3."""
    node = NodeSpec(name="n", cpu_milli=8_000, memory_mib=8_192, gpu_count=2, gpu_model="G")
    gpu = GpuModel(
        name="G", idle_w=0.0, max_w=400.0, memory_mib=16_384, source="made up", min_cap_w=100.0
    )
    core = Core(
        CoreConfig(
            cluster=ClusterSpec((node,)),
            planner=FifoGang(),
            power=Uniform(),
            curve_of=lambda _spec, _model: PowerCurve((100.0, 400.0), (0.5, 1.0)),
            gpus={"G": gpu},
        )
    )
    now = {"ordered to A": 0.0, "A": 0.0, "B": 0.0, "planned": 0.0, "held": 0.0}
    found: list[tuple[float, dict[str, float]]] = []

    def heard(event: Event) -> None:
        commands: list[Command] = core.handle(event)
        if isinstance(event, CapApplied):
            now["A"] = event.cap_w or 0.0
        for one in commands:
            if isinstance(one, StartJob):
                now[one.job_id] = one.cap_w or 0.0
            if isinstance(one, StartJob | SetCap) and one.job_id == "A":
                now["ordered to A"] = one.cap_w or 0.0
        now["planned"] = core.planned.used_gpu_milli / 1000
        now["held"] = core.held.used_gpu_milli / 1000
        now["counted"] = core.watts.drawn_mw / 1000
        found.append((event.at_s, dict(now)))

    def submitted(name: str, at_s: float) -> JobSubmitted:
        return JobSubmitted(at_s=at_s, job=JobSpec(id=name, submit_s=at_s, roles=workers(1)))

    heard(BudgetChanged(at_s=0.0, budget_w=LIMIT_W))
    heard(submitted("A", 0.0))
    heard(JobStarted(at_s=0.0, job_id="A", attempt=1))
    heard(submitted("B", 1.0))
    heard(CapApplied(at_s=3.0, job_id="A", attempt=1, cap_w=300.0))
    return found


def watts_that_move() -> Chart:
    """Two jobs under a limit, over time."""
    known = two_jobs()
    end_s = 4.0

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        (bottom, top), (left, right) = frame.y_range, frame.x_range
        x, y = Scale(0.0, end_s, left, right), Scale(0.0, 700.0, bottom - 40, top)
        inner = Frame(
            width=frame.width, height=frame.height - 40, left=left, right=frame.right,
            top=top, bottom=frame.bottom,
        )  # fmt: skip
        found = [
            y_axis(PlotAxis(low=0, high=700, title="watts", count=7), y, inner),
            segment((left, y(LIMIT_W)), (right, y(LIMIT_W)), "ceiling"),
            label("limit", right + 8, y(LIMIT_W) - 8, class_="axis-title"),
        ]
        lines = {
            "counted": ("total", "counted"),
            "A": ("line k0", "A's cap in force"),
            "ordered to A": ("front", ""),
            "B": ("line k1", "B's cap in force"),
        }
        for name, (class_, said) in lines.items():
            points = [(x(at_s), y(now.get(name, 0.0))) for at_s, now in known if now.get(name)]
            found.append(polyline([*steps(points), (right, points[-1][1])], class_))
            if said and name != "B":
                found.append(label(said, right + 8, points[-1][1] + 10))
        found.append(label("B's cap, the same", right + 8, y(300.0) + 26))
        found.append(label("ordered to A", x(1.1), y(300.0) + 12))
        for at_s, said in ((1.0, "B is submitted"), (3.0, "A's lower cap is read back: B starts")):
            found += [
                segment((x(at_s), bottom - 40), (x(at_s), top), "now"),
                label(said, x(at_s) + 4, y(40.0)),
            ]
        for row, name in enumerate(("planned", "held")):
            at_y = bottom - 18 + 18 * row
            found.append(label(f"GPUs {name}", right + 8, at_y))
            for at_s in (0.5, 2.0, 3.5):
                value = [now for told_s, now in known if told_s <= at_s][-1][name]
                found.append(
                    label(f"{value:g}", x(at_s), at_y, anchor="middle", class_="axis-title")
                )
        return found

    about = (
        "A's cap is lowered so that B fits. Until A's lower cap is read back, A counts at its old "
        "one, and B waits although its GPU is planned for it and free."
    )
    return chart("watts-that-move", "Planned, held, and the cap in force", about, draw)


# A cut --------------------------------------------------------------------------------------------

DEVICES, BEFORE_W, AFTER_W, CUT_S, END_S, DELAY_S = 8, 2800.0, 2000.0, 60, 120, 2


def a_cut_seen() -> dict[str, list[float]]:
    """Eight devices that want 400 W each; caps take two seconds to be in force."""
    fleet = Fleet(
        feed=np.zeros(DEVICES, dtype=np.int64),
        floor_w=np.full(DEVICES, 100.0),
        max_w=np.full(DEVICES, 400.0),
        breaker=Breaker(rated_w=np.full(2, 1e9)),
    )
    loop = SafetyLoop(fleet, SafetyConfig(start_heat=0.0))
    cap_w = np.full(DEVICES, 400.0)
    draw_w, coming = np.zeros(DEVICES), [cap_w] * DELAY_S
    noise = np.random.default_rng(1)
    seen: dict[str, list[float]] = {"draw": [], "counted": [], "limit": []}
    for at_s in range(END_S):
        limit_w = BEFORE_W if at_s < CUT_S else AFTER_W
        shown_w = draw_w * (1.0 + 5e-4 * noise.standard_normal(DEVICES))
        orders: Orders = loop.cycle(
            Readings(
                now_s=float(at_s),
                draw_w=shown_w,
                draw_at_s=np.full(DEVICES, float(at_s)),
                cap_w=cap_w.copy(),
                feed_w=np.array([shown_w.sum()]),
                feed_at_s=np.array([float(at_s)]),
                off=np.zeros(DEVICES, dtype=bool),
                site_w=float(shown_w.sum()),
                site_at_s=float(at_s),
            ),
            np.array([1e9, limit_w]),
        )
        coming.append(orders.cap_w)
        cap_w = np.clip(coming.pop(0), 100.0, 400.0)
        draw_w = draw_w + 0.9 * (np.minimum(400.0, cap_w) - draw_w)
        for name, value in (
            ("draw", draw_w.sum()), ("counted", loop.caps.counted_w.sum()), ("limit", limit_w)
        ):  # fmt: skip
            seen[name].append(float(value))
    return seen


def a_cut() -> Chart:
    """The draw of a room under a limit that falls at once."""
    seen = a_cut_seen()
    since, until = CUT_S - 5, CUT_S + 15
    within_s = next(
        at for at in range(CUT_S, END_S) if max(seen["draw"][at:]) <= AFTER_W
    ) - CUT_S  # fmt: skip

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        x = Scale(since - CUT_S, until - CUT_S, *frame.x_range)
        y = Scale(0.0, 3500.0, *frame.y_range)
        found = [
            x_axis(PlotAxis(low=since - CUT_S, high=until - CUT_S, title="seconds after the cut"),
                   x, frame),
            y_axis(PlotAxis(low=0, high=3500, title="watts", count=7), y, frame),
        ]  # fmt: skip
        for name, class_ in (("limit", "ceiling"), ("counted", "front"), ("draw", "line k0")):
            points = [(x(at - CUT_S), y(seen[name][at])) for at in range(since, until + 1)]
            found.append(polyline(steps(points) if name == "limit" else points, class_))
        right = frame.x_range[1] + 8
        found += [
            label("limit", right, y(seen["limit"][-1]) - 12),
            label("counted at worst", right, y(seen["limit"][-1]) + 4),
            label("drawn", right, y(seen["draw"][-1]) + 20, class_="name k0"),
            label(f"within the limit after {within_s} s", x(within_s + 2.0), y(2400.0)),
        ]
        return found

    about = (
        "The limit of eight devices falls by 800 W at once. Orders take two seconds. What counts "
        "falls last: a lower cap counts only once it was read back."
    )
    return chart("a-cut", "A cut", about, draw)


# The tree -----------------------------------------------------------------------------------------

TREE = """
name: site
budget: 1700W
children:
  - {name: rack-1, budget: 700W}
  - {name: rack-2, budget: 1200W}
"""


def shared_in_tree() -> dict[str, dict[str, float]]:
    """Caps by rack and job: rates of a grow least with more watts, those of c most."""
    rows = [
        {"job": f"{rack}-{name}", "domain": rack, "cap_w": cap, "power_w": cap,
         "rate": (cap - 80.0) ** bend}
        for rack in ("rack-1", "rack-2")
        for name, bend in (("a", 0.3), ("b", 0.5), ("c", 0.9))
        for cap in (100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree.yaml"
        tree.write_text(TREE, encoding="utf-8")
        chosen = wh.allocate(rows, tree=tree)
    found: dict[str, dict[str, float]] = {"rack-1": {}, "rack-2": {}}
    for row in chosen.jobs:
        rack, _, name = str(row["job"]).rpartition("-")
        found[rack][name] = float(row["cap_w"] or 0.0)  # type: ignore[arg-type]
    return found


def the_tree() -> Chart:
    """Budgets on two levels, and what jobs get below them."""
    caps = shared_in_tree()
    budgets = {"site": 1700.0, "rack-1": 700.0, "rack-2": 1200.0}
    drawn = {name: sum(one.values()) for name, one in caps.items()}
    drawn["site"] = sum(drawn.values())

    def domain(name: str, x: float, y: float) -> list[Element]:
        full = 150.0 * drawn[name] / budgets[name]
        return [
            Element("rect", x=x, y=y, width=150, height=34, class_="idle"),
            Element("rect", x=x, y=y, width=full, height=34, class_="busy", opacity=0.45),
            label(f"{name}: {drawn[name]:g} of {budgets[name]:g} W", x + 75, y + 17,
                  anchor="middle", class_="axis-title"),
        ]  # fmt: skip

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        top = frame.top
        found = []
        for at, (rack, jobs) in enumerate(caps.items()):
            x = 70.0 + 310.0 * at
            found += [
                segment((320, top + 40), (x + 75, top + 100), "base"),
                *domain(rack, x, top + 100),
            ]
            for number, (name, cap_w) in enumerate(jobs.items()):
                job_x = x - 45 + 85 * number
                found += [
                    segment((x + 75, top + 134), (job_x + 35, top + 180), "base"),
                    Element("rect", x=job_x, y=top + 180, width=70, height=34, class_="idle"),
                    label(f"{name}: {cap_w:g} W", job_x + 35, top + 197, anchor="middle",
                          class_="axis-title"),
                ]  # fmt: skip
        return [*found, *domain("site", 245, top + 6)]

    about = (
        "Each domain carries what is below it and stays within its own budget. Here rack-1 and the "
        "site are the limits that bind; rack-2 has room that the site cannot feed."
    )
    return chart("the-tree", "Budgets in a tree", about, draw)


# Fragmentation ------------------------------------------------------------------------------------

NODES = {
    "free where it is of use": (1000, 1000, 0, 0),
    "the same GPUs, in parts": (500, 500, 500, 500),
    "in parts that nobody asks for": (750, 750, 250, 250),
}
"""Free milli-GPU on four GPUs: two GPUs' worth on each node."""


def unusable() -> dict[str, float]:
    """Milli-GPU on each node that a typical pod cannot use: half ask for 0.5, half for 2 GPUs."""
    target = TargetWorkload(
        weight=np.array([0.5, 0.5]),
        cpu_milli=np.array([1000, 1000]),
        gpu_milli=np.array([500, 1000]),
        gpu_count=np.array([1, 2]),
        allowed=np.array([[True, False], [True, False]]),
    )
    size = len(NODES)
    rows = fragment_rows(
        target, np.full(size, 96_000), np.array(list(NODES.values())), np.zeros(size, dtype=int)
    )
    return dict(zip(NODES, rows.tolist(), strict=True))


def fragmentation() -> Chart:
    """Three nodes with as much free, of which more and less is of use."""
    lost = unusable()

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        found = []
        for row, (name, free) in enumerate(NODES.items()):
            y = frame.top + 14 + 62 * row
            for gpu, milli in enumerate(free):
                x = 20.0 + 66 * gpu
                used = 56.0 * (1000 - milli) / 1000
                found += [
                    Element("rect", x=x, y=y, width=56, height=40, class_="idle"),
                    Element("rect", x=x, y=y, width=used, height=40, class_="busy"),
                ]
            ratio = 100 * lost[name] / sum(free)
            found += [
                label(name, 300, y + 10, class_="axis-title"),
                label(f"{sum(free) / 1000:g} GPUs free; a typical pod cannot use "
                      f"{lost[name] / 1000:g} ({ratio:.0f} %)", 300, y + 30),
            ]  # fmt: skip
        return found

    about = (
        "Half of the pods ask for half a GPU, half for two whole ones. The same free GPUs are of "
        "less use to them in parts. Dark is in use."
    )
    return chart("fragmentation", "Fragmentation: free, and of no use", about, draw)


# Whole scores -------------------------------------------------------------------------------------

GAINS = (-75.0, 5.0, 12.0, -20.0, 35.0, 20.0)
"""By how many milli-GPU a pod makes fragments fewer on each of six nodes, in their order."""
FGD = {"fgd": 100.0, "fgd@scale=1000": 1000.0}
"""The score of an infinite gain, by policy."""


def score(gain: float, scale: float) -> float:
    """A node's score, in hundredths of the most."""
    return 100.0 * int(fgd_key(gain, scale, 0.0)) / scale


def winner(scale: float) -> int:
    """The first node with the best score, counted from 1."""
    scores = [score(gain, scale) for gain in GAINS]
    return scores.index(max(scores)) + 1


def whole_scores() -> Chart:
    """Scores over gains, in coarse and in fine steps, and six nodes on both."""
    low, high = -100.0, 100.0
    at = np.arange(low, high + 0.5, 0.5).tolist()

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        x, y = Scale(low, high, *frame.x_range), Scale(47.0, 53.0, *frame.y_range)
        found = [
            x_axis(PlotAxis(low=low, high=high, title="fragments fewer, milli-GPU"), x, frame),
            y_axis(PlotAxis(low=47, high=53, title="score, of 100"), y, frame),
        ]
        for number, (name, scale) in enumerate(FGD.items()):
            points = steps([(x(gain), y(score(gain, scale))) for gain in at])
            found += [polyline(points, f"line k{number}")]
            found += [
                dot((x(gain), y(score(gain, scale))), 5.0, f"dot k{number}") for gain in GAINS
            ]
            end_y = y(score(high, scale)) + (16 if number == 0 else -8)
            right = frame.x_range[1] + 8
            found.append(label(name, right, end_y, class_=f"name k{number}"))
            found.append(label(f"takes node {winner(scale)}", right, end_y + 15))
        for number, gain in enumerate(GAINS, start=1):
            above = y(max(score(gain, scale) for scale in FGD.values()))
            found.append(
                label(str(number), x(gain), above - 13, anchor="middle", class_="axis-title")
            )
        return found

    about = (
        f"Six nodes, numbered in their order. In whole hundredths four of them have the same "
        f"score, and the first of these, node {winner(FGD['fgd'])}, wins. In steps a tenth as "
        f"coarse node {winner(FGD['fgd@scale=1000'])} is better than all others."
    )
    return chart("whole-scores", "Scores in whole numbers", about, draw)


# Turns and pairs ----------------------------------------------------------------------------------

PAIRS = {"a pair that pays": (0.8, 0.7), "a pair that does not": (0.3, 0.4)}
"""Speeds of a and of b on one GPU, over those that they have alone."""
ALONE_S = 300.0


def turns_taken(speeds: tuple[float, float]) -> dict[str, list[tuple[float, float]]]:
    """When each of two jobs on one GPU ran under Gandiva: (start, end) in seconds."""
    share = (TaskRole(gpu_memory_mib=5_000),)
    jobs = [
        timed(name, lasts_s=ALONE_S, roles=share, profile=profile)
        for name, profile in (("a", "x"), ("b", "y"))
    ]
    plant = DurationPlant(
        cost=constant(0.0),
        report_s=20.0,
        surroundings=Surroundings(pairs=PairSpeeds({("x", "y"): speeds})),
    )
    story = Story(Gandiva(), t4_nodes(1), jobs, plant=plant)
    found = {}
    for job in jobs:
        ends = [*story.stops(job.id), story.ended(job.id)]
        found[job.id] = list(zip(story.starts(job.id), ends, strict=True))
    return found


def turns_and_pairs() -> Chart:
    """Two jobs on one GPU, whose pair pays and whose pair does not."""
    known = {name: turns_taken(speeds) for name, speeds in PAIRS.items()}

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        x = Scale(0.0, 760.0, *frame.x_range)
        axis = PlotAxis(low=0, high=760, title="seconds")
        found = [x_axis(axis, x, frame)]
        for number, (name, jobs) in enumerate(known.items()):
            y = frame.top + 2 + 88 * number
            a, b = PAIRS[name]
            said = f"{name}: {a:g} + {b:g} = {a + b:g} of one job alone"
            found.append(label(said, frame.left, y + 8, class_="axis-title"))
            for row, (job, spans) in enumerate(jobs.items()):
                top = y + 20 + 26 * row
                found.append(label(job, frame.left - 8, top + 10, anchor="end"))
                found += [
                    Element("rect", x=x(start), y=top, width=x(end) - x(start), height=20,
                            class_=f"bar k{row}")
                    for start, end in spans
                ]  # fmt: skip
                last = spans[-1][1]
                found.append(label(f"ends at {last:g} s", x(last) + 6, top + 10))
        return found

    about = (
        "Two jobs of 300 s each on one GPU. Both take turns of 60 s, then Gandiva runs them at the "
        "same time for a slice. A pair that is faster together stays; one that is slower is "
        "taken apart and goes on in turns."
    )
    return chart("turns-and-pairs", "Turns, and a pair that is tried", about, draw)


# Goodput ------------------------------------------------------------------------------------------

STEP = StepTime(
    pass_s=0.02, sample_s=0.0008, node_sync_s=0.015, node_ring_s=0.0015,
    network_sync_s=0.06, network_ring_s=0.002, overlap=2.0,
)  # fmt: skip
BATCHES = BatchRange(initial=128, most=4096, least_local=16, most_local=512)
NOISE = {"early: noise scale 256": 256.0, "late: noise scale 4,096": 4096.0}
GPUS = np.arange(1, 17)
PER_NODE = 4


def best_batches(noise_scale: float) -> BestBatch:
    """Goodput and batch on 1 to 16 GPUs, four to a node."""
    report = TrainingReport(
        step_time=STEP, grad_sqr=1.0, grad_var=noise_scale / BATCHES.initial,
        most_replicas=len(GPUS), batches=BATCHES,
    )  # fmt: skip
    return best(report, (GPUS + PER_NODE - 1) // PER_NODE, GPUS)


def goodput_by_gpus() -> Chart:
    """How much faster one job learns on more GPUs, early and late in its training."""

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        x, y = Scale(1.0, 16.0, *frame.x_range), Scale(0.0, 10.0, *frame.y_range)
        found = [
            x_axis(PlotAxis(low=1, high=16, title="GPUs, four on each node", count=15), x, frame),
            y_axis(PlotAxis(low=0, high=10, title="goodput, of one GPU", count=5), y, frame),
        ]
        for number, (name, noise_scale) in enumerate(NOISE.items()):
            one = best_batches(noise_scale)
            shares = one.goodput / one.goodput[0]
            batches = one.local * (one.accumulation + 1) * GPUS
            found.append(polyline(curve_points(GPUS, shares, x, y), f"line k{number}"))
            for gpus in (4, 8, 16):
                at = (x(gpus), y(float(shares[gpus - 1])))
                found.append(dot(at, 5.0, f"dot k{number}"))
                said = f"batch {batches[gpus - 1]:,}"
                found.append(
                    label(said, at[0] - 4, at[1] - 13, anchor="end")
                    if number
                    else label(said, at[0], at[1] + 15, anchor="middle")
                )
            end_y = y(float(shares[-1]))
            found.append(label(name, frame.x_range[1] + 8, end_y, class_=f"name k{number}"))
        return found

    about = (
        "One job on more and more GPUs, each time with the batch size of most goodput. Early, a "
        "larger batch is worth little, and a second node makes the job slower. Late in the same "
        "training, when gradients are noisier, sixteen GPUs are worth nine."
    )
    return chart("goodput", "Goodput, early and late", about, draw)


# A curve learned ----------------------------------------------------------------------------------

CAPS_W = tuple(float(cap) for cap in range(100, 301, 25))
NEED_W = 220.0
"""Above this cap the job of the picture draws no more and gets no faster."""
SAMPLED_W = (300.0, 100.0, 200.0, 150.0)


def true_rate(cap_w: float) -> float:
    """Steps per second of the job of the picture, which the learner does not know."""
    return 10.0 * min(1.0, (cap_w - 40.0) / (NEED_W - 40.0)) ** 0.75


def curve_after(samples: int) -> LearnedCurve:
    """What is known after so many samples, each with 5 % error."""
    chance = np.random.default_rng(1)
    curve = LearnedCurve.start(CurvePrior(caps_w=CAPS_W, idle_w=40.0, max_w=300.0))
    for cap_w in SAMPLED_W[:samples]:
        off = 1.0 + 0.05 * chance.standard_normal(2)
        drawn_w = 0.95 * min(cap_w, NEED_W)
        curve = curve.learned(CurveSample(cap_w, drawn_w * off[0], true_rate(cap_w) * off[1]))
    return curve


def a_curve_learned() -> Chart:
    """Belief about a job's rate after one sample and after four, and what is so."""

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        x, y = Scale(100.0, 300.0, *frame.x_range), Scale(0.0, 16.0, *frame.y_range)
        right = frame.x_range[1] + 8
        found = [
            x_axis(PlotAxis(low=100, high=300, title="cap, watts"), x, frame),
            y_axis(PlotAxis(low=0, high=16, title="steps per second"), y, frame),
        ]
        for number, samples in enumerate((1, len(SAMPLED_W))):
            curve = curve_after(samples)
            rates = [point.rate for point in curve.points()]
            spread = np.exp(2.0 * curve.rate_sd()).tolist()
            known = list(zip(CAPS_W, rates, spread, strict=True))
            upper = [(x(cap), y(min(16.0, rate * times))) for cap, rate, times in known]
            lower = [(x(cap), y(rate / times)) for cap, rate, times in known]
            found += [
                band(upper, lower, f"band k{number}"),
                polyline([(x(cap), y(rate)) for cap, rate, _ in known], f"line k{number}"),
                label("after 1 sample" if samples == 1 else f"after {samples}", right,
                      y(rates[-1]) + (2 if number else -14), class_=f"name k{number}"),
            ]  # fmt: skip
        found += [
            polyline([(x(cap), y(true_rate(cap))) for cap in CAPS_W], "front"),
            label("as it is", right, y(true_rate(CAPS_W[-1])) + 12),
        ]
        return found

    about = (
        "The rate of a job that needs no more than 220 W. After one sample at 300 W the belief has "
        "the shape of the GPU type's power law. After three more, at 100, 200 and 150 W, it has "
        "the job's own. Bands are two standard deviations."
    )
    return chart("a-curve-learned", "A power curve, learned", about, draw)


# The safety loop ----------------------------------------------------------------------------------

LOOP = (
    ("1. Judge the meters", "late, frozen or lying ones count at their worst"),
    ("2. Read the caps back", "a lower cap counts once it was read back"),
    ("3. Worst cases", "what each device may draw, and other load"),
    ("4. Order caps", "so that the worst cases fit every limit"),
)


def safety_loop() -> Chart:
    """The four steps of a cycle, and what stands at both ends."""

    def draw(frame: Frame, key: str) -> list[Element]:
        del key
        top, found = frame.top + 8, []
        for row, (name, what) in enumerate(LOOP):
            y = top + 56 * row
            found += [
                Element("rect", x=170, y=y, width=300, height=42, class_="idle"),
                label(name, 320, y + 13, anchor="middle", class_="axis-title"),
                label(what, 320, y + 30, anchor="middle"),
            ]
            if row:
                found += arrow((320, y - 14), (320, y))
        ends = ((20, "meters", 0), (20, "limits", 3), (520, "devices", 3), (520, "lease: 15 s", 0))
        for x, name, row in ends:
            y = top + 56 * row
            found += [
                Element("rect", x=x, y=y, width=100, height=42, class_="idle"),
                label(name, x + 50, y + 21, anchor="middle", class_="axis-title"),
            ]
        found += arrow((120, top + 21), (170, top + 21))
        found += arrow((120, top + 189), (170, top + 189))
        found += arrow((470, top + 189), (520, top + 189))
        found += arrow((570, top + 42), (570, top + 168))
        found.append(label("without news:", 564, top + 92, anchor="end"))
        found.append(label("to the floor", 564, top + 108, anchor="end"))
        return found

    about = (
        "Once a second: meters are judged, caps read back, worst cases summed, and caps ordered "
        "that fit every limit. Each order is a lease: without news a device falls to its floor."
    )
    return chart("safety-loop", "One cycle of the safety loop", about, draw)


def arrow(start: Point, end: Point) -> list[Element]:
    """A straight arrow, along or down."""
    (x, y), down = end, start[0] == end[0]
    tip = (
        [(x, y), (x - 4, y - 7), (x + 4, y - 7)]
        if down
        else [(x, y), (x - 7, y - 4), (x - 7, y + 4)]
    )
    head = " ".join(f"{a:g},{b:g}" for a, b in tip)
    return [segment(start, end, "total"), Element("polygon", points=head, class_="marker")]


@functools.cache
def pictures() -> dict[str, str]:
    """Every picture by file name, each an SVG document."""
    low = Frame(width=640, height=240, left=60, right=150)
    known = [
        (watts_that_move(), Frame(width=640, height=340, left=60, right=170)),
        (a_cut(), ROOMY),
        (the_tree(), low),
        (fragmentation(), Frame(width=640, height=210)),
        (safety_loop(), low),
        (whole_scores(), ROOMY),
        (turns_and_pairs(), Frame(width=640, height=230, left=30, right=20)),
        (goodput_by_gpus(), Frame(width=640, height=300, left=60, right=190)),
        (a_curve_learned(), ROOMY),
    ]
    found = {}
    for one, frame in known:
        text = standalone(one, 2, one.key, frame, more_rules=dark_rules(2))
        found[f"{one.key}.svg"] = text
    return found


def main(arguments: list[str]) -> int:
    """Write the pictures, or say which are out of date."""
    stale = []
    for name, text in pictures().items():
        file = FOLDER / name
        if "--check" in arguments:
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(file)
    if stale:
        print(f"out of date: {', '.join(stale)}; run python scripts/concept_pictures.py")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
