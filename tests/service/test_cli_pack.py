"""`wattherd sim pack` from the outside: what it prints and leaves behind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pack_cli import (
    NODES,
    PERCENT_CURVES,
    WATTHERD,
    Run,
    a_table,
    an_order,
    content,
    one_line,
    pack,
    shell,
)

from wattherd.cli.main import cli, main
from wattherd.errors import UserError
from wattherd.experiments.schedule.descriptions import POWER_NOTES, SCHEDULER_NOTES
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.policy.place.registry import BUILT_IN
from wattherd.testing.builders import a_cluster
from wattherd.testing.plain_cluster import (
    cpu_watts,
    exact_fragment,
    gpu_watts,
    plain_nodes,
    tasks,
)

# --- the document ----------------------------------------------------------------------------


def test_the_document_has_the_promised_fields_and_types(given: Path, wattherd: Run) -> None:
    result = wattherd(*pack(given, "-o", "json", policy="fgd,pwr+fgd:0.1", seed="3..4"))
    assert (result.code, result.err) == (0, "")
    document = result.document
    assert document["schema"] == "wattherd.pack/1"
    assert document["nodes_file"] == str(given / "nodes.csv")
    assert document["pods_file"] == str(given / "pods.csv")
    assert (document["trace"], document["order_file"]) == ("pods", None)
    assert (document["load"], document["ties"]) == (1.3, "order")
    assert document["impossible"]["pods"] == 0
    assert {name: type(value) for name, value in document["cluster"].items()} == {
        **dict.fromkeys(("nodes", "gpus", "gpu_milli", "cpu_milli"), int),
        **dict.fromkeys(("idle_w", "full_w"), float),
    }
    runs = document["runs"]
    assert [(run["policy"], run["seed"]) for run in runs] == [
        ("fgd", 3),
        ("fgd", 4),
        ("pwr+fgd:0.1", 3),
        ("pwr+fgd:0.1", 4),
    ]
    for run in runs:
        assert {name: type(value) for name, value in run.items()} == {
            **dict.fromkeys(("policy", "trace"), str),
            **dict.fromkeys(("seed", "pods", "placed", "failed"), int),
            **dict.fromkeys(("allocated_pct", "grar", "frag_ratio_pct", "power_w", "cpu_s"), float),
            "curve": dict,
        }
        check_run(run, document)


def check_run(run: dict[str, Any], document: dict[str, Any]) -> None:
    assert run["placed"] + run["failed"] == run["pods"] > 0
    assert 0 < run["allocated_pct"] <= 100
    assert 0 < run["grar"] <= 1
    assert 0 <= run["frag_ratio_pct"] <= 100
    assert document["cluster"]["idle_w"] < run["power_w"] <= document["cluster"]["full_w"]
    curve = run["curve"]
    assert list(curve) == ["arrived_pct", *PERCENT_CURVES, "power_w"]
    assert curve["arrived_pct"] == list(range(131))
    for name, values in curve.items():
        assert len(values) == 131
        assert all(value is None or isinstance(value, int | float) for value in values)
        if name in PERCENT_CURVES:
            assert all(value is None or 0 <= value <= 100 for value in values)
    grown = [value for value in curve["power_w"] if value is not None]
    assert grown == sorted(grown)


@pytest.mark.parametrize(("load", "bins"), [("0.5", 51), ("1.0", 101), ("2", 201)])
def test_the_curve_ends_at_the_load(given: Path, wattherd: Run, load: str, bins: int) -> None:
    run = wattherd(*pack(given, "-o", "json", "--load", load)).document["runs"][0]
    assert run["curve"]["arrived_pct"] == list(range(bins))


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_every_policy_runs(given: Path, wattherd: Run, policy: str) -> None:
    document = wattherd(*pack(given, "-o", "json", policy=policy)).document
    check_run(document["runs"][0], document)


def test_the_table_names_the_policies(given: Path, wattherd: Run) -> None:
    result = wattherd(*pack(given, policy="fgd,best-fit,pwr+fgd:0.1"))
    assert (result.code, result.err) == (0, "")
    for name in ("fgd", "best-fit", "pwr+fgd:0.1"):
        assert sum(line.startswith(f"{name} ") for line in result.out.splitlines()) == 1


def test_kernels_and_definitions_give_the_same_document(given: Path, wattherd: Run) -> None:
    documents = []
    for more in ((), ("--reference",)):
        command = pack(given, "-o", "json", *more, policy="fgd,pwrexp,random")
        document = wattherd(*command).document
        for run in document["runs"]:
            del run["cpu_s"]
        documents.append(document["runs"])
    assert documents[0] == documents[1]


# --- what it leaves behind -------------------------------------------------------------------

DECISION_COLUMNS = [
    *("step", "pod_row", "node_row", "gpu_ids", "arrived_gpu_milli", "used_gpu_milli"),
    *("frag_gpu_milli", "power_cpu_w", "power_gpu_w"),
]
FINAL_COLUMNS = [
    *("node", "gpu_model", "cpu_milli", "cpu_free_milli", "memory_free_mib", "gpu_free_milli"),
]


def test_files_and_their_names(given: Path, tmp_path: Path, wattherd: Run) -> None:
    out = tmp_path / "new" / "run"
    policies = "pwr+fgd:0.1,fgd@scale=1000"
    result = wattherd(*pack(given, "--out", out, "--decisions", policy=policies, seed="3,5"))
    assert result.code == 0
    assert result.err == f"wrote {out / 'pack.json'}\n"
    stems = [f"{name}-{seed}" for name in ("pwr_fgd_0.1", "fgd@scale=1000") for seed in (3, 5)]
    assert {path.name for path in out.iterdir()} == {
        "pack.json",
        *(f"decisions-{stem}.csv.gz" for stem in stems),
        *(f"final-{stem}.csv.gz" for stem in stems),
    }


def test_the_file_is_the_document_that_is_printed(
    given: Path, tmp_path: Path, wattherd: Run
) -> None:
    result = wattherd(*pack(given, "--out", tmp_path, "-o", "json"))
    written = json.loads((tmp_path / "pack.json").read_text(encoding="utf-8"))
    assert written == result.document


def test_decisions_are_written_only_when_asked_for(
    given: Path, tmp_path: Path, wattherd: Run
) -> None:
    wattherd(*pack(given, "--out", tmp_path))
    assert {path.name for path in tmp_path.glob("*-fgd-*")} == {"final-fgd-1.csv.gz"}


@pytest.mark.parametrize("policy", [*BUILT_IN, "pwr+fgd:0.1"])
def test_replaying_the_decisions_by_hand(
    given: Path, tmp_path: Path, wattherd: Run, policy: str
) -> None:
    """From the CSV files alone: every placement has room, every column and the end follow."""
    run = wattherd(
        *pack(given, "--out", tmp_path, "--decisions", "-o", "json", policy=policy)
    ).document["runs"][0]
    cluster = a_cluster(*map(node_of, a_table(given / "nodes.csv")))
    requests = [request_of(row) for row in a_table(given / "pods.csv")]
    nodes, workload = plain_nodes(cluster), tasks(requests)
    (decisions,) = tmp_path.glob("decisions-*")
    rows = a_table(decisions)
    assert list(rows[0]) == DECISION_COLUMNS
    arrived = used = placed = 0
    for step, row in enumerate(rows):
        request, at = requests[int(row["pod_row"])], int(row["node_row"])
        arrived += request.total_gpu_milli
        if at >= 0:
            gpus = tuple(int(gpu) for gpu in row["gpu_ids"].split("-") if gpu)
            assert nodes[at].fits(request)
            nodes[at].place(request, gpus)
            assert min(nodes[at].gpus, default=0) >= 0
            used += request.total_gpu_milli
            placed += 1
        else:
            assert row["gpu_ids"] == ""
            assert not any(node.fits(request) for node in nodes)
        assert int(row["step"]) == step
        assert (int(row["arrived_gpu_milli"]), int(row["used_gpu_milli"])) == (arrived, used)
        assert float(row["power_cpu_w"]) == sum(cpu_watts(node) for node in nodes)
        assert float(row["power_gpu_w"]) == sum(gpu_watts(node) for node in nodes)
        if step % 20 == 0 or step == len(rows) - 1:
            exact = float(sum(exact_fragment(node, workload) for node in nodes))
            assert float(row["frag_gpu_milli"]) == pytest.approx(exact, abs=1e-4)
    assert (run["pods"], run["placed"]) == (len(rows), placed)
    assert run["allocated_pct"] == pytest.approx(100 * used / cluster.gpu_milli)
    assert run["power_w"] == float(rows[-1]["power_cpu_w"]) + float(rows[-1]["power_gpu_w"])
    idle = cluster.gpu_milli - used
    assert run["frag_ratio_pct"] == pytest.approx(100 * exact / idle, abs=1e-6)
    assert 1.3 * cluster.gpu_milli - 8_000 < arrived < 1.3 * cluster.gpu_milli + 8_000
    (final,) = tmp_path.glob("final-*")
    assert [list(row.values()) for row in a_table(final)] == [
        [
            node.spec.name,
            node.spec.gpu_model,
            str(node.spec.cpu_milli),
            str(node.cpu),
            str(node.memory),
            "-".join(map(str, node.gpus)),
        ]
        for node in nodes
    ]
    assert list(a_table(final)[0]) == FINAL_COLUMNS


def node_of(row: dict[str, str]) -> NodeSpec:
    return NodeSpec(
        name=row["sn"],
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        gpu_count=int(row["gpu"]),
        gpu_model=row["model"],
    )


def request_of(row: dict[str, str]) -> Request:
    return Request(
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        gpu_count=int(row["num_gpu"]),
        gpu_milli=int(row["gpu_milli"]),
        models=tuple(name for name in row["gpu_spec"].split("|") if name),
    )


# --- orders and ties -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["order.json.gz", "order.json"])
def test_an_order_file_sets_arrivals_and_ties(
    given: Path, tmp_path: Path, wattherd: Run, name: str
) -> None:
    arrivals, ties = [5, 0, 3, 3, 8], list(range(NODES))[::-1]
    order = an_order(tmp_path / name, arrivals, ties)
    out = tmp_path / "run"
    result = wattherd(
        *pack(given, "--order", order, "--out", out, "--decisions", policy="first-fit")
    )
    assert result.code == 0
    rows = a_table(out / "decisions-first-fit-1.csv.gz")
    assert [int(row["pod_row"]) for row in rows] == arrivals
    nodes = a_table(given / "nodes.csv")
    requests = [request_of(row) for row in a_table(given / "pods.csv")]
    first = next(at for at in ties if requests[5].fits(node_of(nodes[at])))
    assert int(rows[0]["node_row"]) == first
    document = json.loads((out / "pack.json").read_text())
    assert document["order_file"] == str(order)
    assert document["runs"][0]["pods"] == 5


def test_random_ties_change_decisions_and_say_so(
    given: Path, tmp_path: Path, wattherd: Run
) -> None:
    found = {}
    for ties in ("order", "random"):
        out = tmp_path / ties
        wattherd(*pack(given, "--ties", ties, "--out", out, "--decisions"))
        assert json.loads((out / "pack.json").read_text())["ties"] == ties
        found[ties] = a_table(out / "decisions-fgd-1.csv.gz")
    assert [row["pod_row"] for row in found["order"]] == [row["pod_row"] for row in found["random"]]
    assert found["order"] != found["random"]


def test_pods_that_fit_nowhere_are_counted_and_not_fatal(folder: Path, wattherd: Run) -> None:
    with (folder / "pods.csv").open("a") as pods:
        pods.write("giant,1000,1,64,1000,,,,,,\ntiny,900000000,1,1,10,,,,,,\n")
        pods.write("giant-too,1000,1,64,1000,,,,,,\n")
    result = wattherd(*pack(folder, "-o", "json"))
    assert result.code == 0
    (note,) = result.err.splitlines()
    assert note.startswith("note: 3 pods fit no node even when it is empty (first: needs 64 GPUs,")
    impossible = result.document["impossible"]
    assert impossible["pods"] == 3
    assert [(one["pods"], one["example"]) for one in impossible["requests"]] == [
        (2, "giant"),
        (1, "tiny"),
    ]
    assert result.document["runs"][0]["failed"] >= 3


def test_pods_with_only_the_required_columns(folder: Path, wattherd: Run) -> None:
    rows = a_table(folder / "pods.csv")
    names = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    (folder / "pods.csv").write_text("\n".join(lines))
    assert wattherd(*pack(folder)).code == 0


# --- the same question with departures --------------------------------------------------------


def churn(folder: Path, *more: object) -> list[object]:
    inputs = ("--nodes", folder / "nodes.csv", "--pods", folder / "pods.csv", "--policy", "fgd")
    return ["sim", "churn", *inputs, "-o", "json", *more]


@pytest.mark.parametrize("arrivals", [1, 200])
def test_churn_averages_over_any_number_of_arrivals(
    given: Path, wattherd: Run, arrivals: int
) -> None:
    result = wattherd(*churn(given, "--arrivals", arrivals, "--load", "0.001"))
    assert (result.code, result.err) == (0, "")
    (run,) = result.document["runs"]
    assert run["arrivals"] >= arrivals
    assert 0 <= run["allocated_pct"] <= 100


def test_churn_on_a_cluster_without_gpus_is_one_line(folder: Path, wattherd: Run) -> None:
    content("nodes.csv", b"sn,cpu_milli,memory_mib,gpu,model\nn,1000,1,0,\n")(folder)
    one_line(wattherd(*churn(folder)), ["the cluster has no GPU", "hint:"])


def test_churn_of_pods_without_run_times_is_one_line(folder: Path, wattherd: Run) -> None:
    content("pods.csv", b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,9\n")(folder)
    one_line(wattherd(*churn(folder)), ["deletion_time", "no GPU pod has a run time", "hint:"])


# --- debugging, pipes, start-up --------------------------------------------------------------


def test_debug_shows_the_traceback(given: Path) -> None:
    result = shell("--debug", *pack(given, policy="fdg"))
    assert result.code != 0
    assert "Traceback (most recent call last)" in result.err
    assert "UserError: policy 'fdg'" in result.err


def test_debug_lets_the_error_through(given: Path) -> None:
    with pytest.raises(UserError):
        main([str(word) for word in ("--debug", *pack(given, policy="fdg"))])


@pytest.mark.long
@pytest.mark.parametrize("output", ["json", "table"])
def test_a_closed_pipe_is_quiet(given: Path, output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*WATTHERD, *map(str, pack(given, "-o", output))],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode != 0


@pytest.mark.long
def test_data_goes_to_stdout_and_talk_to_stderr(given: Path, tmp_path: Path) -> None:
    result = shell(*pack(given, "--out", tmp_path, "-o", "json"), "--processes", 2)
    assert result.code == 0
    assert result.document["runs"]
    assert result.err == f"wrote {tmp_path / 'pack.json'}\n"
    assert result.document["command"].startswith("wattherd sim pack --nodes")


def test_help_needs_no_arrays_and_little_time() -> None:
    code = (
        "import sys; from wattherd.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        "heavy = ('numpy', 'numba', 'rich', 'jinja2', 'pydantic', 'pooch')\n"
        "assert not [name for name in heavy if sys.modules.get(name)]"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr == ""
    assert "Usage: wattherd" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize("arguments", [["sim", "--help"], ["sim", "pack", "--help"]])
def test_help_of_the_command_needs_no_arrays(arguments: list[str]) -> None:
    code = (
        f"import sys; from wattherd.cli.main import main\n"
        f"try:\n    main({arguments!r})\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        "loaded = {name for name, module in sys.modules.items() if module}\n"
        "assert not {'numpy', 'numba'} & loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_every_command_explains_itself() -> None:
    for command in cli.list_commands(None):  # type: ignore[arg-type]
        result = CliRunner().invoke(cli, [command, "--help"], prog_name="wattherd")
        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: wattherd {command}")


def test_the_list_of_policies(wattherd: Run) -> None:
    result = wattherd("policies", "-o", "json")
    document = result.document
    assert document["schema"] == "wattherd.policies/1"
    assert [one["name"] for one in document["place"]][: len(BUILT_IN)] == list(BUILT_IN)
    assert {one["name"] for one in document["schedulers"]} == set(SCHEDULER_NOTES)
    assert {one["name"] for one in document["power"]} == set(POWER_NOTES)
    table = wattherd("policies").out
    assert all(note in table for note in (*SCHEDULER_NOTES.values(), *POWER_NOTES.values()))
    for name, scorer in BUILT_IN.items():
        assert name in table
        assert all(word in table for word in scorer.tokens)
