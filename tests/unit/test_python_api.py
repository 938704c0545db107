"""`import wattherd`: the names on its page, the blocks of that page, frames in and tables out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import wattherd as wh
from wattherd.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ROWS = [
    {"id": f"j{n}", "submit_s": 60.0 * n, "gpus": 1 + n % 3, "duration_s": 900.0 + n}
    for n in range(9)
]
CLUSTER = "1x4:V100M16"


def command(line: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    return int(ended.value.code or 0)


def figures(found: wh.Simulation) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "cpu_s"} for row in found.summary]


def test_names_are_those_of_the_page() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    results = {
        "Simulation", "SweptRuns", "Comparison", "Packing", "ChosenCaps", "PredictedDraw",
    }  # fmt: skip
    assert told | results == set(dir(wh)) - {"__version__"}
    assert all(re.search(rf"`{name}`", PAGE) for name in results)


def test_the_stub_gives_every_name_and_no_other() -> None:
    stub = ast.parse((ROOT / "src" / "wattherd" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        alias.asname for node in stub.body if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }  # fmt: skip
    assert imported | {"__version__"} == set(wh.__all__)
    for name in wh.__all__:
        assert getattr(wh, name) is not None


def test_an_unknown_name_is_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulation'"):
        wh.simulation  # type: ignore[attr-defined]  # noqa: B018


def test_the_import_loads_nothing_heavy() -> None:
    heavy = "('numpy', 'yaml', 'pydantic')"
    code = f"import sys, wattherd; print([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks_of_the_page_run(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["id,submit_s,gpus,duration_s", *(f"j{n},{60 * n},2,600" for n in range(6))]
    (tmp_path / "jobs.csv").write_text("\n".join(lines) + "\n")
    exec(compile(block, "docs/reference/python.md", "exec"), {})


def test_frames_and_rows_and_files_are_the_same_jobs(tmp_path: Path) -> None:
    pd.DataFrame(ROWS).to_csv(tmp_path / "jobs.csv", index=False)
    given: list[Any] = [
        ROWS, pd.DataFrame(ROWS), pl.DataFrame(ROWS), pa.Table.from_pylist(ROWS),
        wh.Table.of_rows(ROWS), tmp_path / "jobs.csv", str(tmp_path / "jobs.csv"),
    ]  # fmt: skip
    one, *others = [figures(wh.simulate(jobs, CLUSTER, "srtf", budget=900)) for jobs in given]
    assert one[0]["finished"] == len(ROWS)
    assert all(other == one for other in others)


def test_it_is_what_the_command_line_does(tmp_path: Path) -> None:
    jobs = wh.Table.of_rows(ROWS).write_csv(tmp_path / "jobs.csv")
    found = wh.simulate(jobs, CLUSTER, ["fifo", "srtf"], budget="900W")
    asked = f"sim run --jobs {jobs} --format native --preset none --cluster {CLUSTER}"
    asked += f" --policy fifo,srtf --budget 900W --out {tmp_path / 'cli'}"
    assert command(asked) == 0
    found.save(tmp_path / "python")
    for policy in ("fifo", "srtf"):
        for name in (f"jobs-{policy}.csv", f"runs-{policy}.csv", f"power-{policy}.csv"):
            ours, theirs = ((tmp_path / one / name).read_bytes() for one in ("python", "cli"))
            assert ours == theirs
    assert command(f"sim replay {tmp_path / 'python'}") == 0


def test_a_saved_run_of_a_frame_can_be_replayed(tmp_path: Path) -> None:
    folder = wh.simulate(pl.DataFrame(ROWS), CLUSTER, "srtf", budget="900W").save(tmp_path / "run")
    assert command(f"sim replay {folder}") == 0
    assert command(f"sim explain {folder} j3") == 0
    assert command(f"report {folder}") == 0


def test_missing_cells_of_frames_are_missing() -> None:
    rows = [{**row, "deadline_s": 5000.0 if n == 0 else None} for n, row in enumerate(ROWS)]
    ways = [rows, pd.DataFrame(rows), pl.DataFrame(rows, strict=False)]
    one, *others = [figures(wh.simulate(jobs, CLUSTER, "fifo")) for jobs in ways]
    assert one[0]["deadlines"] == 1
    assert others == [one] * 2


def test_errors_name_the_row() -> None:
    bad = [*ROWS[:2], {**ROWS[2], "gpus": "many"}]
    with pytest.raises(wh.UserError, match="jobs, row 3: gpus") as told:
        wh.simulate(bad, CLUSTER)
    assert "/tmp" not in str(told.value)
    nodes = [{"sn": "n", "cpu_milli": 1, "memory_mib": 1, "gpu": 1, "model": "T4"}] * 2
    with pytest.raises(wh.UserError, match="nodes, row 2"):
        wh.pack(nodes, [], ["fgd"])


@pytest.mark.parametrize("bad", [7, {"id": "a"}, [1, 2], b"id,submit_s", None])
def test_what_is_no_table_is_refused(bad: object) -> None:
    with pytest.raises(wh.UserError, match="jobs") as told:
        wh.simulate(bad, CLUSTER)
    assert told.value.hint


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"policies": "fifoo"}, "unknown policy 'fifoo'"),
        ({"budget": "9mW"}, "budget"),
        ({"budget": float("nan")}, "no budget"),
        ({"power": "fair"}, "unknown power policy"),
        ({"colour": "red"}, "colour"),
        ({"preset": "mine"}, "preset"),
    ],
)
def test_wrong_words_are_refused_with_a_hint(more: dict[str, Any], said: str) -> None:
    with pytest.raises(wh.UserError, match=said):
        wh.simulate(ROWS, CLUSTER, **more)


def test_tables_leave_as_arrow_and_parquet(tmp_path: Path) -> None:
    found = wh.simulate(ROWS, CLUSTER, ["fifo", "srtf"], budget=900)
    frame = pl.DataFrame(found.jobs)
    assert frame.height == 2 * len(ROWS)
    assert frame.filter(pl.col("policy") == "srtf")["energy_j"].sum() > 0
    assert pd.DataFrame.from_arrow(found.summary)["policy"].tolist() == ["fifo", "srtf"]
    found.save(tmp_path / "run", parquet=True)
    assert pl.read_parquet(tmp_path / "run" / "power.parquet").equals(pl.DataFrame(found.power))


def test_tables_say_what_pages_say() -> None:
    table = wh.Table.of_rows([{"a": 1, "b": None}, {"a": 2.5, "b": "<x>"}])
    assert table["a"] == [1.0, 2.5]
    assert "&lt;x&gt;" in table._repr_html_()
    assert len(wh.Table({})) == 0
    long = wh.Table({"n": list(range(5000))})
    assert "4,980 rows more" in repr(long)
    assert len(long.where(n=7)) == 1
    with pytest.raises(wh.UserError, match="unequal length"):
        wh.Table({"a": [1], "b": []})


def test_in_a_notebook_a_run_shows_figures_and_a_plot() -> None:
    shown = wh.simulate(ROWS, CLUSTER, ["fifo", "srtf"])._repr_html_()
    assert "<table>" in shown
    assert "<svg" in shown


def test_budgets_as_numbers_are_watts() -> None:
    assert figures(wh.simulate(ROWS, CLUSTER, budget=1000)) == figures(
        wh.simulate(ROWS, CLUSTER, budget="1kW")
    )
    assert len(wh.simulate(ROWS, CLUSTER, budget=100).unfinished) == len(ROWS)


def test_caps_and_predictions_need_what_the_commands_need(tmp_path: Path) -> None:
    points = [{"job": "a", "cap_w": cap, "power_w": cap, "rate": cap} for cap in (100, 200)]
    assert wh.allocate(points, 250).jobs["cap_w"] == [200.0]
    assert wh.allocate(points, 150.0, "uniform").total_w == 100
    with pytest.raises(wh.UserError, match="count"):
        wh.allocate(points, 150, count="volts")
    with pytest.raises(wh.UserError, match="cap"):
        wh.predict(tmp_path, gpu="V100", model="resnet50", tdp=250, cap="300W")


def own_order(given: Any) -> Any:
    """A scheduler of the caller: ours, under another name."""
    from wattherd.experiments.schedule.simulators import preset

    return preset("none").scheduler("srtf", given)


def test_a_function_is_a_scheduler_beside_ours() -> None:
    found = wh.simulate(ROWS, CLUSTER, ["srtf", own_order], budget=900)
    ours, own = figures(found)
    assert own["policy"] == "own-order"
    assert {**own, "policy": ""} == {**ours, "policy": ""}
    assert found.explain("j3", policy="own-order").state == "Succeeded"
    (alone,) = figures(wh.simulate(ROWS, CLUSTER, own_order, budget=900))
    assert alone == own


def test_a_function_that_makes_no_scheduler_is_told(tmp_path: Path) -> None:
    def srtf(given: Any) -> Any:
        return None

    with pytest.raises(wh.UserError, match="is a scheduler of ours"):
        wh.simulate(ROWS, CLUSTER, [srtf])
    with pytest.raises(wh.UserError, match="is no policy"):
        wh.simulate(ROWS, CLUSTER, [lambda given: None])
    with pytest.raises(wh.UserError, match="is no policy"):
        wh.simulate(ROWS, CLUSTER, [3])  # type: ignore[list-item]

    def nothing(given: Any) -> Any:
        return None

    with pytest.raises(wh.UserError, match="has no `plan`"):
        wh.simulate(ROWS, CLUSTER, [nothing])


def test_results_print_their_tables_and_show_their_plots(tmp_path: Path) -> None:
    found = wh.simulate(ROWS, CLUSTER, "srtf", budget=900)
    assert repr(found) == repr(found.summary)
    assert "waited" in repr(found.explain("j3")).splitlines()[-1]
    assert set(found.plots) >= {"completion", "gpus", "power-srtf"}
    plot = found.plots["power-srtf"]
    assert plot._repr_svg_().startswith("<svg")
    assert plot.save(tmp_path / "new" / "a.svg").read_text().startswith("<?xml")
    with pytest.raises(wh.UserError, match="is no SVG"):
        plot.save(tmp_path / "a.png")
    with pytest.raises(wh.UserError, match="cannot be written"):
        plot.save(tmp_path / "new" / "a.svg" / "b.svg")
    assert plot._repr_svg_() not in found._repr_html_()
    assert found.plots["completion"]._repr_svg_() in found._repr_html_()


def test_columns_are_chosen_by_name() -> None:
    table = wh.Table.of_rows(ROWS).select("gpus", "id")
    assert table.columns == ("gpus", "id")
    with pytest.raises(wh.UserError, match=r"no column 'gpu'.*did you mean 'gpus'"):
        table.select("gpu")
