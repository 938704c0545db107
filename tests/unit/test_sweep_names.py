"""What a result is named by: content counts, names do not, and what cannot be read has no name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wattherd.experiments.sweep import fingerprint
from wattherd.experiments.sweep.cell import FileDigests, ScheduleCell, grid
from wattherd.plugins import announced
from wattherd.workload.scenario import validated

JOBS = "id,submit_s,gpus,duration_s\na,0,1,60\nb,30,2,90\n"
RATES = "start,price\n2026-01-01T00:00Z,0.2\n"
TREE = "name: site\nnodes: ['*']\nbudget: 900W\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "tree.yaml").write_text(TREE)
    (tmp_path / "rates.csv").write_text(RATES)
    (tmp_path / "speeds.csv").write_text("kind,gpu_model,gpus,rate\nbert,T4,1,10\n")
    (tmp_path / "power.csv").write_text("profile,gpu_model,watts,rate\n")
    return tmp_path


def cell(folder: Path, *, file: str = "jobs.csv", **more: Any) -> ScheduleCell:
    jobs = {"file": str(folder / file), "format": "native", **more.pop("jobs", {})}
    fields = {"cluster": "1x4:T4", "jobs": jobs, "preset": "none", "policies": ["fifo"], **more}
    return ScheduleCell(workload=file, scenario=validated(fields, "test"))


def key(one: ScheduleCell) -> str | None:
    return one.key(FileDigests())


def test_equal_inputs_under_another_name_are_the_same(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "jobs.csv", folder / "elsewhere" / "other.csv")
    assert key(cell(folder)) == key(cell(folder / "elsewhere", file="other.csv")) is not None


def test_the_ending_of_a_file_counts(folder: Path) -> None:
    (folder / "jobs.jsonl").write_text(JOBS)
    assert key(cell(folder)) != key(cell(folder, file="jobs.jsonl"))


DIFFERENT: dict[str, dict[str, Any]] = {
    "policy": {"policies": ["srtf"]},
    "cluster": {"cluster": "1x4:V100M16"},
    "budget": {"budgets": ["500W"]},
    "power": {"power": ["uniform"], "budgets": ["500W"]},
    "seed": {"seed": 2},
    "preset": {"preset": "locality"},
    "restart": {"restart": "3s"},
    "until": {"until": "1h"},
    "caps": {"caps": {"delay": "5s"}},
    "queues": {"queues": {"name": "root"}},
    "sleep": {"sleep": {"after": "1min"}},
    "faults": {"faults": [{"at": 5, "node": "node-00000"}]},
    "idle watts": {"node_idle_w": 10},
    "format": {"jobs": {"format": "tiresias"}},
}


def test_every_choice_is_part_of_the_name(folder: Path) -> None:
    names = [key(cell(folder, **more)) for more in ({}, *DIFFERENT.values())]
    assert None not in names
    assert len(set(names)) == len(names)


FILES: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "jobs": ("jobs.csv", lambda _: {}),
    "tree": ("tree.yaml", lambda folder: {"power_tree": str(folder / "tree.yaml")}),
    "speeds": ("speeds.csv", lambda folder: {"speed": {"table": str(folder / "speeds.csv")}}),
    "rates": ("rates.csv", lambda folder: {"rates": str(folder / "rates.csv")}),
    "power profiles": (
        "power.csv", lambda folder: {"jobs": {"power_profiles": str(folder / "power.csv")}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_under_the_same_name_is_another_input(name: str, folder: Path) -> None:
    file, fields = FILES[name]
    one = cell(folder, **fields(folder))
    before = key(one)
    path = folder / file
    content = path.read_bytes()
    stat = path.stat()
    path.write_bytes(content.replace(content[-3:-2], b"7"))
    import os

    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # and nobody sees it by the time
    assert before is not None
    assert key(one) not in (before, None)
    path.write_bytes(content)
    assert key(one) == before


def test_profiles_may_be_a_folder(folder: Path) -> None:
    profiles = folder / "apps"
    (profiles / "bert").mkdir(parents=True)
    (profiles / "bert" / "speed.csv").write_text("a")
    one = cell(folder, jobs={"profiles": str(profiles)})
    names = [key(one)]
    (profiles / "bert" / "speed.csv").write_text("b")
    names.append(key(one))
    (profiles / "bert" / "speed.csv").rename(profiles / "bert" / "other.csv")
    names.append(key(one))
    assert len(set(names)) == 3
    assert None not in names


UNNAMED: dict[str, dict[str, Any]] = {
    "rates of the web": {"rates": "https://example.org/rates.csv"},
    "a file that is not there": {"rates": "/nowhere/rates.csv"},
    "a tree that is not there": {"power_tree": "/nowhere/tree.yaml"},
    "a format of a package": {"jobs": {"format": "of-somebody"}},
}


@pytest.mark.parametrize("name", UNNAMED)
def test_what_cannot_be_read_for_certain_has_no_name(name: str, folder: Path) -> None:
    assert key(cell(folder, **UNNAMED[name])) is None


# --- Plug-ins.


PLANNER = "def make(given):\n    raise ValueError({number})\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution of a package and a module beside it, announced as the scheduler `mine`."""
    site = tmp_path / "site"
    inside = site / "swept_plugin"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    (inside / "plan.py").write_text(PLANNER.format(number=1))
    (inside / "table.csv").write_text("1,2\n")
    (site / "swept_beside.py").write_text("A = 1\n")
    about = site / "swept_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: swept-plugin\nVersion: 1.0\nRequires-Dist: numpy>=2\n"
    )
    (about / "entry_points.txt").write_text("[wattherd.schedule]\nmine = swept_plugin.plan:make\n")
    named = ["swept_plugin/__init__.py", "swept_plugin/plan.py", "swept_beside.py"]
    (about / "RECORD").write_text("".join(f"{one},,\n" for one in named))
    monkeypatch.syspath_prepend(str(site))
    announced.cache_clear()
    yield site
    announced.cache_clear()


@pytest.mark.parametrize(
    "file", ["swept_plugin/plan.py", "swept_plugin/table.csv", "swept_beside.py",
             "swept_plugin-1.0.dist-info/METADATA"],
)  # fmt: skip
def test_a_plugin_counts_by_its_code(file: str, folder: Path, package: Path) -> None:
    mine, ours = cell(folder, policies=["mine"]), cell(folder)
    before, before_ours = key(mine), key(ours)
    path = package / file
    text = path.read_text()
    path.write_text(text.replace("1.0", "1.1").replace("1", "2", 1))
    announced.cache_clear()
    assert before is not None
    assert key(mine) not in (before, None)
    assert key(ours) == before_ours
    path.write_text(text)
    announced.cache_clear()
    assert key(mine) == before


def test_a_plugin_is_not_imported_to_be_named(folder: Path, package: Path) -> None:
    (package / "swept_plugin" / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert key(cell(folder, policies=["mine"])) is not None


def test_compiled_leftovers_do_not_count(folder: Path, package: Path) -> None:
    before = key(cell(folder, policies=["mine"]))
    left = package / "swept_plugin" / "__pycache__"
    left.mkdir()
    (left / "plan.cpython-311.pyc").write_bytes(b"x")
    assert key(cell(folder, policies=["mine"])) == before


def test_a_plugin_without_source_has_no_name(folder: Path, package: Path) -> None:
    shutil.rmtree(package / "swept_plugin")
    assert fingerprint.of_plugin("schedule", "mine") is None
    assert key(cell(folder, policies=["mine"])) is None


def test_our_own_code_is_part_of_the_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wattherd

    before = key(cell(folder))
    copy = tmp_path / "copy" / "wattherd"
    source = Path(wattherd.__file__).parent
    for room in ("policy", "sim", "server"):
        (copy / room).mkdir(parents=True)
        (copy / room / "a.py").write_text("a = 1\n")
    shutil.copy(source / "__init__.py", copy)
    monkeypatch.setattr(wattherd, "__file__", str(copy / "__init__.py"))
    names = [before]
    for change in ("", "policy/a.py", "sim/a.py", "server/a.py"):
        if change:
            (copy / change).write_text("a = 2\n")
        fingerprint.made_by.cache_clear()
        names.append(key(cell(folder)))
    fingerprint.made_by.cache_clear()
    assert len(set(names)) == 4
    assert names[-1] == names[-2]  # the service decides nothing that is simulated


# --- The grid.


def test_the_grid_is_whole_and_in_order(folder: Path) -> None:
    scenario = cell(
        folder, policies=["fifo", "srtf"], budgets=[None, "500W"], power=["uniform", "nash"]
    ).scenario
    places = [tuple(one.place().values())[2:] for one in grid("jobs", scenario, (3, 4))]
    assert len(set(places)) == len(places) == 2 * (1 + 2) * 2
    assert places[:4] == [
        ("fifo", None, None, 3), ("fifo", None, None, 4),
        ("fifo", "uniform", "500W", 3), ("fifo", "uniform", "500W", 4),
    ]  # fmt: skip


def test_a_cell_travels_whole(folder: Path) -> None:
    for more in ({}, *DIFFERENT.values()):
        one = cell(folder, **more)
        again = ScheduleCell.of_document(one.document())
        assert again == one
        assert key(again) == key(one)
