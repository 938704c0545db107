"""Sweeps in trouble: killed midway, policies that do their worst, a cache full of scraps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import wattherd as wh
from service.serving import WATTHERD
from wattherd.plugins import announced

pytestmark = pytest.mark.long
ROWS = [
    {"id": f"j{n}", "submit_s": 60.0 * n, "gpus": 1 + n % 3, "duration_s": 900.0 + n}
    for n in range(9)
]
CLUSTER = "1x4:V100M16"
WORST = '''
"""Schedulers that do their worst, and one that notes who runs it."""

import os
import signal
import sys
import time
from pathlib import Path

from wattherd.policy.schedule.gang import Gang


def noted(given):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()} {given.seed}\\n")
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return Gang()


def raises(given):
    raise ValueError("made of\\nnothing")


class Midway:
    def plan(self, view, draft):
        raise KeyError("a")


def midway(given):
    return Midway()


def leaves(given):
    sys.exit("bye")


def falls(given):
    os._exit(7)


def shot(given):
    os.kill(os.getpid(), signal.SIGKILL)


def forks(given):
    if os.fork() == 0:
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(f"{os.getpid()} child\\n")
        time.sleep(60)
    time.sleep(0.5)
    os._exit(7)


def prints(given):
    print('{"result": {"row": {"jobs": 0}}}', flush=True)
    return Gang()


def endless(given):
    while True:
        time.sleep(0.01)


def meddles(given):
    path = Path(os.environ["MEDDLED"])
    path.write_text(path.read_text() + "late,9e5,1,60\\n")
    return Gang()
'''
NAMES = [
    "noted",
    "raises",
    "midway",
    "leaves",
    "falls",
    "forks",
    "shot",
    "prints",
    "endless",
    "meddles",
]


@pytest.fixture
def worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The schedulers above, installed; notes go to `notes`."""
    site = tmp_path / "site"
    about = site / "worst-1.dist-info"
    about.mkdir(parents=True)
    (site / "worst.py").write_text(WORST)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: worst\nVersion: 1\n")
    entries = "".join(f"{name} = worst:{name}\n" for name in NAMES)
    (about / "entry_points.txt").write_text(f"[wattherd.schedule]\n{entries}")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("WATTHERD_CACHE", str(tmp_path / "cache"))
    announced.cache_clear()
    # In this process the table of schedulers is made already.
    from wattherd.experiments.schedule import plugin_policies, simulators

    none = simulators.PRESETS["none"]
    more = replace(none, schedulers={**plugin_policies.schedulers(), **none.schedulers})
    monkeypatch.setitem(cast("dict[str, Any]", simulators.PRESETS), "none", more)
    yield tmp_path
    announced.cache_clear()


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def swept(policies: list[str], **more: Any) -> wh.SweptRuns:
    return wh.sweep(ROWS, CLUSTER, policies, processes=2, **more)


def command(folder: Path, out: str, seeds: int = 8, **more: str) -> subprocess.Popen[bytes]:
    wh.Table.of_rows(ROWS).write_csv(folder / "jobs.csv")
    line = f"sim sweep --jobs {folder}/jobs.csv --cluster {CLUSTER} --policy noted,fifo,srtf"
    line += f" --budget none --budget 700W --seed 1..{seeds} --processes 2 --out {folder}/{out}"
    return subprocess.Popen(
        [*WATTHERD, *line.split()], env={**os.environ, **more},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_a_killed_sweep_goes_on_where_it_was(worst: Path) -> None:
    whole = command(worst, "whole", seeds=5, WATTHERD_CACHE=str(worst / "other"))
    assert whole.communicate(timeout=120)[1]
    assert whole.returncode == 0
    (worst / "notes").unlink()
    killed = command(worst, "again", seeds=5, PAUSE="0.3")
    until = time.monotonic() + 60
    while len(notes(worst)) < 5 and time.monotonic() < until:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    begun = notes(worst)
    assert 5 <= len(begun) < 10
    assert not (worst / "again").exists()
    while not all(gone(int(line.split()[0])) for line in begun) and time.monotonic() < until:
        time.sleep(0.02)
    assert all(gone(int(line.split()[0])) for line in begun), "workers outlive their sweep"
    kept = len(list((worst / "cache").rglob("*.json")))
    assert kept >= 3
    resumed = command(worst, "again", seeds=5)
    said = resumed.communicate(timeout=120)[1].decode()
    assert resumed.returncode == 0
    assert f"30 cells: {30 - kept} computed, {kept} known" in said
    # What was not kept was in the making when it was killed: one cell of each process at most.
    assert len(notes(worst)) <= 10 + 2
    for name in ("sweep.csv", "sweep.json"):
        one, other = ((worst / out / name).read_bytes() for out in ("whole", "again"))
        assert one == other.replace(b"/again", b"/whole")
    third = command(worst, "third", seeds=5)
    assert b"30 cells: 0 computed, 30 known" in third.communicate(timeout=60)[1]


def test_the_worst_policies_fail_alone(worst: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ["raises", "fifo", "midway", "leaves", "falls", "shot", "prints", "endless", "srtf"]
    found = swept(names, limit_s=8.0)
    rows = {row["policy"]: row for row in found.runs}
    assert list(rows) == names
    hint = "(hint: see docs/guides/plugins.md)"
    told = f"worst:raises: raises: failed: ValueError: made of nothing {hint}"
    assert rows["raises"]["failure"] == told
    assert rows["leaves"]["failure"] == f"worst:leaves: leaves: failed: SystemExit: bye {hint}"
    assert rows["falls"]["failure"] == "its process ended with exit code 7"
    assert rows["shot"]["failure"] == "its process was killed (SIGKILL)"
    assert rows["endless"]["failure"] == "took longer than 8 s"
    for name in ("fifo", "srtf", "prints"):
        assert (rows[name]["failure"], rows[name]["finished"]) == (None, len(ROWS))
    assert (rows["midway"]["failure"], rows["midway"]["finished"]) == (None, 0)
    assert "KeyError" in str(rows["midway"]["unfinished_why"])
    assert {row["policy"] for row in found.failures} == {
        "raises", "leaves", "falls", "shot", "endless",
    }  # fmt: skip
    assert capfd.readouterr().out == ""
    again = swept(names[:-2])
    assert again.computed == 4, "what failed is tried again, nothing else is"


def test_what_is_the_same_is_computed_once(worst: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        wh.Table.of_rows(ROWS).write_csv(tmp_path / name / "jobs.csv")
    jobs = {name: tmp_path / name / "jobs.csv" for name in ("a", "b")}
    found = wh.sweep(jobs, CLUSTER, "noted", seeds=[1, 2])
    assert [row["workload"] for row in found.runs] == ["a", "a", "b", "b"]
    assert (len(notes(worst)), found.computed) == (2, 2)
    changed = [*ROWS[:-1], {**ROWS[-1], "duration_s": 5.0}]
    wh.Table.of_rows(changed).write_csv(jobs["b"])
    other = wh.sweep(jobs, CLUSTER, "noted", seeds=[1, 2])
    assert (len(notes(worst)), other.computed) == (4, 2)
    one, two, three, four = other.runs["avg_jct_s"]
    assert one == two != three == four
    (tmp_path / "site" / "worst.py").write_text(WORST.replace("return Gang()", "return  Gang()"))
    assert wh.sweep(jobs, CLUSTER, ["noted", "fifo"], seeds=[1]).computed == 4
    assert wh.sweep(jobs, CLUSTER, ["noted", "fifo"], seeds=[1]).computed == 0


def test_scraps_in_the_cache_are_computed_anew(worst: Path) -> None:
    policies = ["fifo", "srtf", "drf"]
    table = swept(policies).runs.write_csv(worst / "a.csv").read_bytes()
    files = sorted((worst / "cache").rglob("*.json"))
    assert len(files) == 3
    files[0].write_bytes(files[0].read_bytes()[:100])
    files[1].write_bytes(b"")
    entry = json.loads(files[2].read_text())
    entry["value"] = entry["value"].replace('"finished":9', '"finished":8')
    files[2].write_text(json.dumps(entry))
    found = swept(policies)
    assert found.computed == 3
    assert found.runs.write_csv(worst / "b.csv").read_bytes() == table
    assert swept(policies).computed == 0


def test_two_sweeps_at_once_share_a_cache(worst: Path) -> None:
    both = [command(worst, out, seeds=3) for out in ("one", "two")]
    assert all(b"18 cells" in one.communicate(timeout=120)[1] for one in both)
    assert [one.returncode for one in both] == [0, 0]
    one, two = ((worst / out / "sweep.csv").read_bytes() for out in ("one", "two"))
    assert one == two
    assert len(list((worst / "cache").rglob("*.json"))) == 18


def test_an_input_that_changes_under_way_is_told(
    worst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = wh.Table.of_rows(ROWS).write_csv(worst / "jobs.csv")
    monkeypatch.setenv("MEDDLED", str(jobs))
    found = wh.sweep(jobs, CLUSTER, "meddles", processes=1)
    assert found.runs["failure"] == ["what it reads changed while it ran; run it again"]
    assert not list((worst / "cache").rglob("*.json"))


def test_nothing_is_kept_where_that_is_wished_or_impossible(worst: Path) -> None:
    for cache in (False, worst / "site" / "worst.py" / "cache"):
        assert [swept(["fifo"], cache=cache).computed for _ in range(2)] == [1, 1]
    assert not (worst / "cache").exists()
    elsewhere = worst / "elsewhere"
    assert [swept(["fifo"], cache=elsewhere).computed for _ in range(2)] == [1, 0]


def test_a_script_needs_no_guard(worst: Path) -> None:
    """And one that is read from standard input, as a notebook's cell, works as well."""
    script = f"import wattherd as wh\nprint(wh.sweep({ROWS!r}, {CLUSTER!r}).runs['finished'])\n"
    (worst / "script.py").write_text(script)
    for arguments, told in (([str(worst / "script.py")], None), (["-"], script)):
        done = subprocess.run(
            [sys.executable, *arguments], input=told, capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert done.stdout == "[9]\n"


def test_rows_of_frames_are_named_in_failures(worst: Path) -> None:
    bad = [*ROWS[:2], {**ROWS[2], "gpus": "many"}]
    found = wh.sweep({"good": ROWS, "bad": bad}, CLUSTER, "fifo")
    assert found.runs["failure"][0] is None
    assert str(found.runs["failure"][1]).startswith("bad, row 3: gpus")


def test_jobs_drawn_by_seed(worst: Path) -> None:
    def drawn(seed: int) -> list[dict[str, Any]]:
        return [{**row, "duration_s": 100.0 * seed} for row in ROWS]

    clusters = [CLUSTER, "1x8:T4"]
    found = wh.sweep(drawn, clusters, ["fifo", "srtf"], seeds=[3, 4])
    places = [(row["cluster"], row["policy"], row["seed"]) for row in found.runs]
    assert places == [(c, p, s) for c in clusters for p in ("fifo", "srtf") for s in (3, 4)]
    assert found.runs["makespan_s"][0] != found.runs["makespan_s"][1]
    assert found.runs.where(failure=None).arrow().num_rows == 8


@pytest.mark.parametrize(
    "line",
    [
        "sim sweep --cluster 1x4:T4",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --policy fifoo",
        "sim sweep --jobs {jobs} --cluster 1x4:T5",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --budget 9",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --power fair",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --seed x",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --limit 0",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --parquet",
        "sim sweep --jobs {jobs} --cluster 1x4:T4 --cache x --no-cache",
        "sim sweep --jobs {jobs}.not --cluster 1x4:T4",
        "sim sweep --jobs /dev/stdin --cluster 1x4:T4",
        "sim sweep {jobs}",
    ],
)
def test_what_no_cell_could_use_is_refused_at_once(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from wattherd.cli.main import main

    jobs = wh.Table.of_rows(ROWS).write_csv(tmp_path / "jobs.csv")
    with pytest.raises(SystemExit) as ended:
        main(line.format(jobs=jobs).split())
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert "hint: " in said.err


def test_the_cache_is_shown_and_cleared(worst: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wattherd.cli.main import main

    def say(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    swept(["fifo", "srtf"])
    told = json.loads(say("cache", "show", "-o", "json"))
    assert (told["folder"], told["entries"], told["of_other_versions"]) == (
        str(worst / "cache"), 2, 0,
    )  # fmt: skip
    assert say("cache", "clear", "--others") == f"deleted 0 results from {worst / 'cache'}\n"
    assert say("cache", "clear") == f"deleted 2 results from {worst / 'cache'}\n"
    os.environ["WATTHERD_CACHE"] = "off"
    assert say("cache", "show").startswith("off")
    assert say("cache", "clear").startswith("off")


def places(folder: Path, *words: str) -> list[dict[str, Any]]:
    from wattherd.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["sim", "sweep", *words, "--out", str(folder / "out")])
    assert ended.value.code == 0
    cells: list[dict[str, Any]] = json.loads((folder / "out" / "sweep.json").read_text())["cells"]
    return cells


def test_scenarios_are_grids_and_options_go_before_them(
    worst: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = (
        "cluster: 1x4:V100M16\njobs: {file: jobs.csv, format: native}\npreset: none\n"
        "policies: [fifo, srtf]\nbudgets: [null, 700W]\npower: [uniform, nash]\nseed: 5\n"
    )
    for name in ("a", "b"):
        wh.Table.of_rows(ROWS).write_csv(worst / name / "jobs.csv")
        (worst / name / "site.yaml").write_text(scenario)
    one, two = (str(worst / name / "site.yaml") for name in ("a", "b"))
    cells = places(worst, one)
    assert len(cells) == 2 * (1 + 2)
    assert {(cell["workload"], cell["seed"]) for cell in cells} == {("site", 5)}
    cells = places(worst, one, two, "--policy", "drf", "--budget", "none", "--seed", "1,2")
    assert [(cell["workload"], cell["seed"]) for cell in cells] == [
        (one, 1), (one, 2), (two, 1), (two, 2),
    ]  # fmt: skip
    assert "4 cells: 2 computed, 2 known" in capsys.readouterr().err
    more = str(wh.Table.of_rows(ROWS[:3]).write_csv(worst / "more.csv"))
    words = ["--jobs", more, "--cluster", "1x4:T4", "--cluster", "1x2:T4", "--policy", "fifo"]
    cells = places(worst, one, *words, "--budget", "150W", "--power", "pause", "--set", "seed=7")
    assert [(cell["workload"], cell["cluster"], cell["power"], cell["seed"], cell["jobs"])
            for cell in cells] == [
        ("more", "1x4:T4", "pause", 7, 3), ("more", "1x2:T4", "pause", 7, 3),
    ]  # fmt: skip


def test_names_alone_are_printed(worst: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = wh.Table.of_rows(ROWS).write_csv(worst / "jobs.csv")
    places(worst, "--jobs", str(jobs), "--cluster", CLUSTER, "--policy", "srtf", "-o", "name")
    assert capsys.readouterr().out == "srtf\n"


def test_an_interrupted_sweep_ends_its_processes(worst: Path) -> None:
    begun = command(worst, "out", PAUSE="20")
    until = time.monotonic() + 60
    while not notes(worst) and time.monotonic() < until:
        time.sleep(0.02)
    begun.send_signal(signal.SIGINT)
    said = begun.communicate(timeout=30)[1].decode()
    assert (begun.returncode, "Traceback" in said) == (130, False)
    assert all(gone(int(line.split()[0])) for line in notes(worst))


def test_children_of_a_dead_process_hold_nothing_up(worst: Path) -> None:
    began = time.monotonic()
    found = swept(["forks", "fifo"])
    assert found.runs["failure"] == ["its process ended with exit code 7", None]
    assert time.monotonic() - began < 30
    (child,) = (int(line.split()[0]) for line in notes(worst))
    until = time.monotonic() + 10
    while not gone(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert gone(child)
