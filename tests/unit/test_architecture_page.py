"""ARCHITECTURE.md and the pages beside it name only what exists, and leave no room out."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

from wattherd.catalog.gpus import GpuModel
from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.core import Core
from wattherd.estimate.power_curve import PowerCurve
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, SetCap, StartJob
from wattherd.model.event import BudgetChanged, CapApplied, JobStarted, JobSubmitted
from wattherd.model.job import JobSpec, workers
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.ordered import Ordered
from wattherd.policy.schedule.priorities import Fifo
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.testing.live import MemoryJournal, PaperExecutor, SetClock
from wattherd.testing.timed_world import t4_nodes, timed

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "wattherd"
PAGE = ROOT / "ARCHITECTURE.md"
PAGES = [
    PAGE,
    ROOT / "docs" / "guides" / "extend.md",
    *sorted((ROOT / "docs" / "concepts").glob("inside-*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("00[4-8]-*.md")),
]
FILE = re.compile(
    r"(?<![\w/.{}])([\w.{}-]+(?:/[\w.{}-]+)*\.(?:py|md|toml|json|html))(?::([A-Za-z_][\w.]*))?"
)
DOCS = [ROOT / "docs" / room for room in ("concepts", "guides", "decisions", "reference")]
TICKED = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FOLDER = re.compile(r"[\w-]+(?:/[\w-]+)+/?|[\w-]+/")
CAMEL = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+(?:\.\w+)*")
DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+")
OTHERS = {"PodGroup", "JobSet"}
"""Classes of others that pages name."""
MADE_UP = re.compile(r"my_|shortest_first|even|load_file|file_knob|minutes|uptime")
"""Files that a guide has its reader write."""


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines, with what its classes define: `f`, `C`, `C.method`, `C.field`."""
    found: set[str] = set()
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= _defined(one)
        if isinstance(one, (ast.ClassDef, ast.FunctionDef)):
            for part in ast.walk(one):
                found |= {f"{one.name}.{name}" for name in _defined(part)}
    return frozenset(found)


def _defined(one: ast.AST) -> set[str]:
    match one:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {one.name}
        case ast.Assign():
            return {
                name.id for to in one.targets for name in ast.walk(to) if isinstance(name, ast.Name)
            } | {to.attr for to in one.targets if isinstance(to, ast.Attribute)}
        case (
            ast.AnnAssign(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Attribute(attr=name))
        ):
            return {name}
        case _:
            return set()


@cache
def all_names() -> frozenset[str]:
    """Every name of every module of the package and of its SDK."""
    paths = [*SRC.rglob("*.py"), *(ROOT / "sdk" / "src").rglob("*.py")]
    return frozenset[str]().union(*map(names_in, paths))


def where_is(path: str) -> Path | None:
    """A file or folder of the repository, or of the package."""
    found = (base / path for base in (SRC, ROOT, *DOCS))
    return next((one for one in found if one.exists()), None)


def missing(text: str) -> list[str]:
    """What a page names and the repository does not have."""
    lost: list[str] = []
    for path, name in FILE.findall(text):
        if MADE_UP.search(path) or path.startswith(".."):
            continue
        found = where_is(path)
        bare = list(SRC.rglob(path)) if found is None and "/" not in path else []
        if found is None and not bare:
            lost.append(path)
        elif name and not any(name in names_in(one) for one in ([found] if found else bare)):
            lost.append(f"{path}:{name}")
    for word in TICKED.findall(FENCE.sub("", text)):
        if FILE.fullmatch(word) or MADE_UP.search(word):
            continue
        if FOLDER.fullmatch(word):
            if where_is(word) is None:
                lost.append(word)
        elif CAMEL.fullmatch(word):
            if word not in all_names() | OTHERS:
                lost.append(word)
        elif DOTTED.fullmatch(word) and (SRC / word.split(".")[0]).is_dir() and not _is_there(word):
            lost.append(word)
    return lost


def _is_there(dotted: str) -> bool:
    """Whether `engine.core`, `engine.core.core` or `engine.core.core.Core.handle` exists."""
    parts = dotted.split(".")
    for at in range(len(parts), 0, -1):
        base = SRC.joinpath(*parts[:at])
        rest = ".".join(parts[at:])
        if base.is_dir() and not rest:
            return True
        if base.with_suffix(".py").exists():
            return not rest or rest in names_in(base.with_suffix(".py"))
    return False


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_function_and_class_on_the_page_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_the_walk_has_a_file_and_a_function_at_every_step() -> None:
    walk = section("One job, from submit to watts")
    steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert len(steps) >= 20
    assert [step for step in steps if not any(name for _, name in FILE.findall(step))] == []
    assert len({path for path, _ in FILE.findall(walk)}) >= 30


@pytest.mark.parametrize(
    "text",
    [
        "`engine/core/conduct.py`",
        "`engine/core/core.py:Core.handle_all`",
        "engine/core/core.py:Nothing, in a picture without ticks",
        "`Watts`, the class: `TreeWatts`",
        "`engine.core.nothing`",
        "`engine.core.core.Core.nothing`",
        "`runtime/kube`",
        "`GuardedDraft.rollback`",
        "[guide](docs/guides/nothing.md)",
    ],
)
def test_a_name_that_is_not_there_is_found(text: str) -> None:
    assert missing(text)


@pytest.mark.parametrize(
    "text",
    [
        "`engine/core/core.py:Core.handle`",
        "`engine.core.core.Core.handle`",
        "`GuardedDraft.undo`, `PowerAccount`, `JobSubmitted`",
        "`engine/core`, `sim/`",
        "`wattherd submit job.yaml`, `mark`, `TABLE`",
    ],
)
def test_a_name_that_is_there_is_not_complained_of(text: str) -> None:
    assert missing(text) == []


# --- rooms -----------------------------------------------------------------------------------


def section(heading: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    assert f"\n## {heading}\n" in text
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_room_is_described_and_no_other() -> None:
    tree = FENCE.search(section("Rooms"))
    assert tree is not None
    lines = re.findall(r"^ +([\w/]+/|\w+\.py) +(\S.*)$", tree[0], flags=re.MULTILINE)
    rooms = {
        f"{path.parent.relative_to(SRC).as_posix()}/"
        for path in SRC.rglob("__init__.py")
        if path.parent != SRC and len(path.relative_to(SRC).parts) <= 3
    }
    files = {path.name for path in SRC.glob("*.py") if not path.name.startswith("_")}
    assert {name for name, _ in lines} == rooms | files
    assert len(lines) == len(rooms | files)


def test_the_package_diagram_is_what_the_script_draws() -> None:
    """Where this fails: `python scripts/package_diagram.py --write`."""
    path = ROOT / "scripts" / "package_diagram.py"
    spec = importlib.util.spec_from_file_location("package_diagram", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert PAGE.read_text(encoding="utf-8").count(script.block()) == 1
    assert "kube.decide" in script.diagram()
    assert "engine.power" in script.diagram()


def test_the_glossary_is_in_order_and_names_a_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `[^`]+` \|$", section("Words"), flags=re.MULTILINE)
    words = [row.strip() for row in rows][1:] if rows and rows[0] == "Word" else [*rows]
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))
    needed = {"planned", "held", "cap in force", "floor (power)", "domain", "feed (power)", "draft"}
    needed |= {"guard", "look-ahead", "gang", "cell", "wish (caps)", "lease (caps)", "set aside"}
    assert needed <= set(words)


def test_a_submission_takes_the_steps_of_the_walk_in_their_order() -> None:
    """From the writer of the journal to the executor; the journal is one in memory."""
    walk = section("One job, from submit to watts")
    walk = walk.partition("\n7. ")[2].partition("\n17. ")[0]
    steps = [(path, name) for path, name in FILE.findall(walk) if name.split(".")[-1].islower()]
    elsewhere = {
        ("store/journal.py", "Journal.append"),
        ("local/executor.py", "LocalExecutor.start"),
    }
    assert elsewhere <= set(steps)
    steps = [step for step in steps if step not in elsewhere]
    assert len(steps) >= 18
    core = Core(
        CoreConfig(
            cluster=t4_nodes(2),
            planner=Ordered(rules=RankingRules(order=Fifo())),
            round_s=0.0,
        )
    )
    clock = SetClock()
    loop = CoreLoop(core, MemoryJournal(), clock)
    loop.recover(PaperExecutor())
    loop.post(BudgetChanged(at_s=0.0, budget_w=130.0), by="ann")
    loop.turn()
    calls: list[tuple[str, str]] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and SRC in path.parents:
            calls.append((path.relative_to(SRC).as_posix(), frame.f_code.co_qualname))

    loop.submit(timed("new"), {}, by="ann")
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for clock.at_s in (1.0, 2.0, 3.0):
            loop.turn()
    finally:
        sys.setprofile(before)
    left = iter(calls)
    assert [step for step in steps if step not in left] == []


# --- the time chart --------------------------------------------------------------------------


def test_the_time_chart_is_what_the_core_does() -> None:
    """A alone at 400 W; B comes; A is told 300 W; B starts only when A's cap was read back."""
    cluster = ClusterSpec(
        (NodeSpec(name="n", cpu_milli=8_000, memory_mib=8_192, gpu_count=2, gpu_model="G"),)
    )
    a_gpu = GpuModel(
        name="G", idle_w=0.0, max_w=400.0, memory_mib=16_384, source="made up", min_cap_w=100.0
    )
    core = Core(
        CoreConfig(
            cluster=cluster,
            planner=FifoGang(),
            power=Uniform(),
            curve_of=lambda _spec, _model: PowerCurve((100.0, 400.0), (0.5, 1.0)),
            gpus={"G": a_gpu},
        )
    )

    def submitted(name: str, at_s: float) -> JobSubmitted:
        return JobSubmitted(at_s=at_s, job=JobSpec(id=name, submit_s=at_s, roles=workers(1)))

    def told(commands: list[Command]) -> list[tuple[str, str, float | None]]:
        caps = [one for one in commands if isinstance(one, StartJob | SetCap)]
        return [(type(one).__name__, one.job_id, one.cap_w) for one in caps]

    core.handle(BudgetChanged(at_s=0.0, budget_w=600.0))
    assert told(core.handle(submitted("A", 0.0))) == [("StartJob", "A", 400.0)]
    core.handle(JobStarted(at_s=0.0, job_id="A", attempt=1))
    assert told(core.handle(submitted("B", 1.0))) == [("SetCap", "A", 300.0)]
    assert core.held.used_gpu_milli == 1_000
    assert core.planned.used_gpu_milli == 2_000
    assert core.watts.drawn_mw == 400_000
    read_back = core.handle(CapApplied(at_s=2.0, job_id="A", attempt=1, cap_w=300.0))
    assert told(read_back) == [("StartJob", "B", 300.0)]
    assert core.held.used_gpu_milli == 2_000
    assert core.watts.drawn_mw == 600_000
