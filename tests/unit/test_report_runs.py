"""Reading run directories: what is grouped together, and how everything else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_runs import a_pack, a_run, write_pack

from wattherd.errors import UserError
from wattherd.report import load_runs
from wattherd.report.runs import parse_pack, short_name


def refusal(directory: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load_runs(directory)
    assert "\n" not in caught.value.line()
    return caught.value


def test_a_run_directory_is_read(tmp_path: Path) -> None:
    write_pack(tmp_path, a_pack([a_run("fgd", 43), a_run("fgd", 42), a_run("pwr", 42)]))
    (trace,) = load_runs(tmp_path).traces
    assert (trace.label, trace.load, trace.cluster.gpus) == ("default", 1.3, 6212)
    assert trace.policies == ("fgd", "pwr")
    assert trace.seeds == (42, 43)
    assert [run.seed for run in trace.of("fgd")] == [42, 43]


def test_sub_directories_are_collected_by_trace_with_default_first(tmp_path: Path) -> None:
    for name in ("cpu050", "default", "gpushare40"):
        trace = f"openb_pod_list_{name}"
        write_pack(tmp_path / name, a_pack([a_run(trace=trace)], trace=trace))
    assert [t.label for t in load_runs(tmp_path).traces] == ["default", "cpu050", "gpushare40"]


def test_policies_run_apart_on_one_trace_are_compared(tmp_path: Path) -> None:
    write_pack(tmp_path / "a", a_pack([a_run("fgd")]))
    write_pack(tmp_path / "b", a_pack([a_run("pwr")]))
    (trace,) = load_runs(tmp_path).traces
    assert trace.policies == ("fgd", "pwr")
    assert [source.directory.name for source in trace.sources] == ["a", "b"]


@pytest.mark.parametrize(
    "changes",
    [{"load": 1.0}, {"ties": "random"}, {"cluster": {"nodes": 2, "gpus": 16}}],
    ids=["load", "tie rule", "cluster"],
)
def test_what_cannot_be_compared_is_kept_apart(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_pack(tmp_path / "a", a_pack([a_run("fgd")]))
    write_pack(tmp_path / "b", a_pack([a_run("fgd")], **changes))
    assert [t.label for t in load_runs(tmp_path).traces] == ["default (a)", "default (b)"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    write_pack(tmp_path / "a", a_pack([a_run("fgd")]))
    write_pack(tmp_path / "b", a_pack([a_run("fgd")]))
    problem = refusal(tmp_path)
    assert "policy 'fgd' with seed 42 appears twice" in problem.problem
    assert str(tmp_path / "a") in problem.hint


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    problem = refusal(tmp_path / "nowhere")
    assert problem.problem == "no such directory"
    assert "--out DIR" in problem.hint


def test_a_directory_without_pack_json_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).problem == "holds no pack.json"
    assert "sim run --out DIR" in refusal(tmp_path).hint
    (tmp_path / "compare.json").touch()
    assert "pareto.svg" in refusal(tmp_path).hint


def test_broken_json_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "pack.json").write_text('{"schema": "wattherd.pack/1",\n "runs": [', "utf-8")
    problem = refusal(tmp_path)
    assert problem.where == f"{tmp_path / 'pack.json'}:2"
    assert "broken JSON" in problem.problem


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000], ids=["bytes", "deep"])
def test_what_is_no_json_at_all_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pack.json").write_bytes(content)
    assert "JSON" in refusal(tmp_path).problem


@pytest.mark.parametrize("payload", [{}, [], {"schema": "wattherd.pack/2"}, {"schema": 1}, 7])
def test_another_schema_is_refused(tmp_path: Path, payload: object) -> None:
    (tmp_path / "pack.json").write_text(json.dumps(payload), encoding="utf-8")
    problem = refusal(tmp_path)
    assert problem.field == "schema"
    assert "wattherd.pack/1" in problem.problem


def without(payload: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in payload.items() if name != key}


CURVE = a_run()["curve"]
WRONG = {
    "load missing": (without(a_pack([a_run()]), "load"), "load"),
    "no cluster": (without(a_pack([a_run()]), "cluster"), "cluster"),
    "no run": (a_pack([]), "runs"),
    "a text for a number": (a_pack([a_run(allocated_pct="much")]), "runs.0.allocated_pct"),
    "a negative count": (a_pack([a_run(), a_run("pwr", placed=-1)]), "runs.1.placed"),
    "infinite": (a_pack([a_run(power_w=float("inf"))]), "runs.0.power_w"),
    "no curve": (a_pack([without(a_run(), "curve")]), "runs.0.curve"),
    "a short curve": (
        a_pack([a_run(curve={**CURVE, "power_w": [1.0]})]),
        "runs.0.curve.power_w",
    ),
    "bins out of order": (
        a_pack([a_run(curve={**CURVE, "arrived_pct": CURVE["arrived_pct"][::-1]})]),
        "runs.0.curve.arrived_pct",
    ),
    "no policy": (a_pack([a_run("", full=1.0, saved=1.0)]), "runs.0.policy"),
    "a control character": (a_pack([a_run("a\nb")]), "runs.0.policy"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_refused_by_name(name: str) -> None:
    payload, field = WRONG[name]
    with pytest.raises(UserError) as caught:
        parse_pack(payload, where="pack.json")
    assert (caught.value.where, caught.value.field) == ("pack.json", field)


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    pack = parse_pack(a_pack([a_run(colour="blue")], weather="fine"))
    assert pack.runs[0].policy == "fgd"


def test_the_final_cluster_is_looked_for_under_the_spelling_of_file_names(tmp_path: Path) -> None:
    write_pack(tmp_path, a_pack([a_run("pwr+fgd:0.1", 7)]))
    (source,) = load_runs(tmp_path).sources
    assert source.final_file(source.pack.runs[0]).name == "final-pwr_fgd_0.1-7.csv.gz"


@pytest.mark.parametrize(
    ("trace", "short"),
    [
        ("openb_pod_list_cpu050", "cpu050"),
        ("openb_pod_list_default.csv.gz", "default"),
        ("generated", "generated"),
        ("", "trace"),
    ],
)
def test_traces_have_short_names(trace: str, short: str) -> None:
    assert short_name(trace) == short
