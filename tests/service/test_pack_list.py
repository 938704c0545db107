"""Whether a list of pods fits: `sim pack` without `--load` lets each pod arrive once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import docs_commands as docs
import wattherd as wh
from wattherd.cli.main import cli
from wattherd.workload.openb import NODE_LIST, POD_LIST

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,32000,65536,2,T4\nn2,32000,65536,2,T4\n"


def lists(folder: Path, *gpus: int) -> list[str]:
    """Two nodes of two GPUs, and a pod for each number of GPUs."""
    rows = "".join(f"p{at},1000,1024,{count},1000\n" for at, count in enumerate(gpus))
    (folder / "nodes.csv").write_text(NODES)
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
    (folder / "pods.csv").write_text(head + rows)
    return ["--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv")]


def packed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["sim", "pack", "--processes", "1", "--reference", *words])


def test_a_list_that_fits_is_said_to(tmp_path: Path) -> None:
    done = packed(*lists(tmp_path, 2, 1, 1), "--policy", "best-fit", "--seed", "1..3")
    said = "The list fits under best-fit: all 3 pods find room in all 3 orders tried."
    assert done.stdout.splitlines()[0] == said


def test_a_list_that_does_not_fit_says_how_many_pods_find_no_room(tmp_path: Path) -> None:
    done = packed(*lists(tmp_path, 2, 2, 1), "--policy", "best-fit")
    said = "The list does not fit under best-fit: 1 of 3 pods find no room."
    assert done.stdout.splitlines()[0] == said


def test_an_order_may_decide_whether_it_fits(tmp_path: Path) -> None:
    """The single GPUs on one node each leave none for the pair: first-fit never does that."""
    inputs = lists(tmp_path, 1, 1, 2)
    done = packed(*inputs, "--policy", "random,first-fit", "--seed", "1..30")
    random, first_fit = done.stdout.splitlines()[:2]
    assert re.search(r"0 to 1 of 3 pods find no room\. It fits in \d+ of 30 orders\.$", random)
    assert first_fit.startswith("The list fits under first-fit")


def test_each_pod_arrives_once_unless_more_load_is_asked_for(tmp_path: Path) -> None:
    inputs = lists(tmp_path, 1, 1)
    once = json.loads(packed(*inputs, "--policy", "fgd", "-o", "json").stdout)
    assert (once["load"], once["whole_list"], once["runs"][0]["pods"]) == (0.5, True, 2)
    more = json.loads(packed(*inputs, "--policy", "fgd", "--load", "2", "-o", "json").stdout)
    assert (more["load"], more["whole_list"], more["runs"][0]["pods"]) == (2.0, False, 8)
    assert "The list" not in packed(*inputs, "--policy", "fgd", "--load", "2").stdout


def test_the_curve_ends_where_the_table_does_on_a_small_cluster(tmp_path: Path) -> None:
    """The second pod of 8 GPUs brings 50 % of three nodes to 66.7 %; the line ended at 33 %."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
        f"{name},64000,262144,8,V100M16\n" for name in "abc"))  # fmt: skip
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,4000,8192,8,1000\n")
    inputs = ("--nodes", str(nodes), "--pods", str(pods), "--policy", "fgd", "--load", "0.5")
    (run,) = json.loads(packed(*inputs, "-o", "json").stdout)["runs"]
    known = [one for one in run["curve"]["allocated_pct"] if one is not None]
    assert (
        known[-1] == pytest.approx(run["allocated_pct"], abs=0.01) == pytest.approx(66.67, abs=0.01)
    )


def test_python_says_the_same(tmp_path: Path) -> None:
    lists(tmp_path, 2, 1, 1)
    found = wh.pack(tmp_path / "nodes.csv", tmp_path / "pods.csv", "best-fit", seeds=(1, 2))
    assert [(run.pods, run.placed) for run in found.runs] == [(3, 3), (3, 3)]


def test_a_list_without_gpus_is_refused(tmp_path: Path) -> None:
    inputs = lists(tmp_path)
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1024,0,0\n"
    )
    assert "no pod asks for a GPU" in str(packed(*inputs, "--policy", "fgd").exception)


@pytest.mark.parametrize("option", ["nodes", "pods"])
def test_the_columns_of_both_files_are_told(option: str) -> None:
    columns = NODE_LIST.columns if option == "nodes" else POD_LIST.columns
    page = (docs.REPOSITORY / "docs" / "reference" / "pack-json.md").read_text()
    table = page.partition(f"| column of `--{option}` |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == columns
    shown = packed("--help").stdout.partition(f"Columns of --{option}")[2].partition("Columns")[0]
    assert [one for one in columns if one not in shown] == []
