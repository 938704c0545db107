"""Reading node and pod lists: what is understood, and how everything else is refused."""

from __future__ import annotations

import gzip
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.workload import table
from wattherd.workload.openb import read_nodes, read_pods

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
NODES = "sn,cpu_milli,memory_mib,gpu,model"
TIMED = f"{PODS},gpu_spec,creation_time,deletion_time,scheduled_time"


def pods_of(path: Path) -> tuple[TracePod, ...]:
    return read_pods(path, known=GPUS)


def nodes_of(path: Path) -> ClusterSpec:
    return read_nodes(path, known=GPUS)


def a_file(folder: Path, *lines: str, name: str = "list.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# --- what is understood ---------------------------------------------------------------------


def test_a_pod_list_with_the_five_required_columns(tmp_path: Path) -> None:
    path = a_file(tmp_path, PODS, "a,12000,16384,1,460", "b,500,0,0,0", "c,96000,9,8,1000")
    assert pods_of(path) == (
        TracePod(
            name="a", request=Request(cpu_milli=12000, memory_mib=16384, gpu_count=1, gpu_milli=460)
        ),
        TracePod(name="b", request=Request(cpu_milli=500)),
        TracePod(
            name="c", request=Request(cpu_milli=96000, memory_mib=9, gpu_count=8, gpu_milli=1000)
        ),
    )


def test_columns_are_found_by_name_and_further_ones_ignored(tmp_path: Path) -> None:
    header = "qos,num_gpu,gpu_milli, cpu_milli ,name,memory_mib,gpu_spec"
    path = a_file(tmp_path, header, "LS,1,1000,2000,a,64,V100M16|V100M32|V100M32")
    assert pods_of(path)[0].request == Request(
        cpu_milli=2000,
        memory_mib=64,
        gpu_count=1,
        gpu_milli=1000,
        models=("V100M16", "V100M32", "V100M32"),
    )


@pytest.mark.parametrize(
    ("what", "created", "deleted", "scheduled", "submit_s", "duration_s"),
    [
        ("all three times", "100", "250", "120", 100.0, 130.0),
        ("never scheduled: counted from its creation", "100", "250", "", 100.0, 150.0),
        ("never deleted", "100", "", "120", 100.0, None),
        ("deleted before it was scheduled", "100", "110", "120", 100.0, None),
        ("no creation", "", "250", "120", None, 130.0),
        ("no times at all", "", "", "", None, None),
        ("ends as it begins", "7", "7", "7", 7.0, 0.0),
    ],
)
def test_times_of_a_pod(
    tmp_path: Path,
    what: str,
    created: str,
    deleted: str,
    scheduled: str,
    submit_s: float | None,
    duration_s: float | None,
) -> None:
    pod = pods_of(a_file(tmp_path, TIMED, f"a,1,1,0,0,,{created},{deleted},{scheduled}"))[0]
    assert (pod.submit_s, pod.duration_s) == (submit_s, duration_s), what


def test_a_node_list(tmp_path: Path) -> None:
    path = a_file(tmp_path, NODES, "n1,64000,262144,2,P100", "n2,32000,1024,0,")
    assert nodes_of(path).nodes == (
        NodeSpec(name="n1", cpu_milli=64000, memory_mib=262144, gpu_count=2, gpu_model="P100"),
        NodeSpec(name="n2", cpu_milli=32000, memory_mib=1024),
    )


def test_a_node_list_may_name_cpus(tmp_path: Path) -> None:
    path = a_file(tmp_path, f"{NODES},cpu_model", "a,1,1,0,,Xeon 8163", "b,1,1,0,,")
    assert [node.cpu_model for node in nodes_of(path).nodes] == ["Xeon 8163", ""]


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("gzip under any name", gzip.compress(f"{PODS}\na,1,2,0,0\n".encode())),
        ("a byte order mark", f"\ufeff{PODS}\na,1,2,0,0\n".encode()),
        ("Windows line ends", f"{PODS}\r\na,1,2,0,0\r\n".encode()),
        ("no newline at the end", f"{PODS}\na,1,2,0,0".encode()),
        ("blank lines between and after", f"{PODS}\n\na,1,2,0,0\n\n\n".encode()),
        ("quotes", f'{PODS}\n"a","1",2,0,0\n'.encode()),
        ("blanks around the cells", f"{PODS}\n a , 1 ,2,0,0\n".encode()),
        ("nameless columns that a spreadsheet left", f"{PODS},,\na,1,2,0,0,,\n".encode()),
        ("leading zeros", f"{PODS}\na,{'0' * 40}1,02,0,0\n".encode()),
    ],
)
def test_the_same_pod_in_another_guise(tmp_path: Path, what: str, content: bytes) -> None:
    path = tmp_path / "pods.txt"
    path.write_bytes(content)
    assert pods_of(path) == (TracePod(name="a", request=Request(cpu_milli=1, memory_mib=2)),), what


def test_pods_that_ask_for_the_same_share_one_request(tmp_path: Path) -> None:
    first, second = pods_of(a_file(tmp_path, PODS, "a,1,1,0,0", "b,1,1,0,0"))
    assert first.request is second.request


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, f"{PODS}\na,1,1,0,0\n".encode())
    os.close(writing)
    try:
        assert len(pods_of(Path(f"/dev/fd/{reading}"))) == 1
    finally:
        os.close(reading)


# --- what is refused ------------------------------------------------------------------------


def refusal(read: Callable[[Path], object], path: Path) -> UserError:
    with pytest.raises(UserError) as refused:
        read(path)
    line = refused.value.line()
    assert len(line.splitlines()) == 1
    assert line.startswith(str(path))
    return refused.value


BAD_PODS = [
    ("a fraction", "a,1.5,1,0,0", "cpu_milli", "'1.5' is not a whole number", "1000"),
    ("a word", "a,1,abc,0,0", "memory_mib", "'abc' is not a whole number", "MiB"),
    ("nothing", "a,,1,0,0", "cpu_milli", "is empty", ""),
    ("infinity", "a,inf,1,0,0", "cpu_milli", "'inf' is not a whole number", ""),
    ("digits that are not ASCII", "a,٣,1,0,0", "cpu_milli", "is not a whole number", ""),
    ("an underscore", "a,1_000,1,0,0", "cpu_milli", "is not a whole number", ""),
    ("a negative number", "a,-4,1,0,0", "cpu_milli", "'-4' is negative", ""),
    ("a negative fraction", "a,1,-0.5,0,0", "memory_mib", "'-0.5' is negative", ""),
    ("more than 2**53", "a,9007199254740993,1,0,0", "cpu_milli", "is more than", ""),
    ("a number of 5000 digits", f"a,{'9' * 5000},1,0,0", "cpu_milli", "is more than", ""),
    ("more than a whole GPU", "a,1,1,1,1001", "gpu_milli", "'1001' is more than 1000", ""),
    ("more GPUs than make sense", "a,1,1,1000001,1000", "num_gpu", "is more than", ""),
    ("a GPU with no share of it", "a,1,1,1,0", "gpu_milli", "is 0 with num_gpu 1", "1000"),
    ("a share of no GPU", "a,1,1,0,500", "gpu_milli", "is 500 with num_gpu 0", "num_gpu 1"),
    ("shares of several GPUs", "a,1,1,2,500", "gpu_milli", "is 500 with num_gpu 2", "whole"),
    ("a pod without a name", " ,1,1,0,0", "name", "is empty", ""),
    ("a row too short", "a,1,1,0", "", "4 cells, the header has 5", "cut short"),
    ("a row too long", "a,1,1,0,0,0", "", "6 cells, the header has 5", "quotes"),
]


@pytest.mark.parametrize(("what", "row", "field", "problem", "hint"), BAD_PODS)
def test_a_bad_pod_is_refused_by_line_and_column(
    tmp_path: Path, what: str, row: str, field: str, problem: str, hint: str
) -> None:
    error = refusal(pods_of, a_file(tmp_path, PODS, "fine,1,1,0,0", row))
    assert error.where.endswith("list.csv:3"), what
    assert error.field == field, what
    assert problem in error.problem, what
    assert hint in error.hint, what
    assert len(error.line()) < 200 + len(str(tmp_path)), what


BAD_NODES = [
    ("an unknown model", "n,1,1,2,P10", "model", "unknown GPU model 'P10'", "'P100'"),
    ("GPUs without a model", "n,1,1,2,", "model", "is empty on a node with 2 GPUs", ""),
    ("a model without GPUs", "n,1,1,0,T4", "model", "'T4' on a node without GPUs", ""),
    ("milli-GPU in the count", "n,1,1,8000,G2", "gpu", "'8000' is more than 128", "count"),
    ("a negative count", "n,1,1,-1,G2", "gpu", "'-1' is negative", ""),
    ("a node without a name", ",1,1,0,", "sn", "is empty", ""),
    ("a fraction of a CPU", "n,0.5,1,0,", "cpu_milli", "'0.5' is not a whole number", ""),
    ("absurd memory", "n,1,1099511627777,0,", "memory_mib", "is more than", ""),
]


@pytest.mark.parametrize(("what", "row", "field", "problem", "hint"), BAD_NODES)
def test_a_bad_node_is_refused_by_line_and_column(
    tmp_path: Path, what: str, row: str, field: str, problem: str, hint: str
) -> None:
    error = refusal(nodes_of, a_file(tmp_path, NODES, row))
    assert error.where.endswith("list.csv:2"), what
    assert error.field == field, what
    assert problem in error.problem, what
    assert hint in error.hint, what


def test_a_complaint_reads_as_one_line(tmp_path: Path) -> None:
    path = a_file(tmp_path, PODS, "a,1.5,1,0,0")
    assert refusal(pods_of, path).line() == (
        f"{path}:2: cpu_milli: '1.5' is not a whole number (hint: milli-vCPU: one vCPU is 1000)"
    )


@pytest.mark.parametrize(
    ("what", "spec", "problem", "hint"),
    [
        ("an unknown model", "T4|V100", "unknown GPU model 'V100'", "'V100M16' or 'V100M32'"),
        ("an empty model between bars", "T4||P100", "unknown GPU model ''", "known: "),
        ("another separator", "T4,P100", "unknown GPU model", ""),
    ],
)
def test_a_gpu_spec_names_known_models(
    tmp_path: Path, what: str, spec: str, problem: str, hint: str
) -> None:
    error = refusal(pods_of, a_file(tmp_path, f"{PODS},gpu_spec", f'a,1,1,1,1000,"{spec}"'))
    assert (error.field, problem in error.problem) == ("gpu_spec", True), what
    assert hint in error.hint, what


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1", "1e999"])
def test_a_time_is_a_finite_number_of_seconds(tmp_path: Path, text: str) -> None:
    error = refusal(pods_of, a_file(tmp_path, TIMED, f"a,1,1,0,0,,{text},,"))
    assert error.field == "creation_time"


def test_an_unknown_cpu_model_is_refused(tmp_path: Path) -> None:
    error = refusal(nodes_of, a_file(tmp_path, f"{NODES},cpu_model", "a,1,1,0,,Xeon 8136"))
    assert (error.field, error.hint) == ("cpu_model", "did you mean 'Xeon 8163'?")


@pytest.mark.parametrize(
    ("read", "header", "row", "field"),
    [(pods_of, PODS, "twin,1,1,0,0", "name"), (nodes_of, NODES, "twin,1,1,0,", "sn")],
)
def test_a_name_used_twice_tells_where_it_was_first(
    tmp_path: Path, read: Callable[[Path], object], header: str, row: str, field: str
) -> None:
    other = row.replace("twin", "other")
    error = refusal(read, a_file(tmp_path, header, row, other, row))
    assert error.where.endswith(":4")
    assert (error.field, error.hint) == (field, "first in line 2")


@pytest.mark.parametrize(
    ("what", "read", "header", "problem", "hint"),
    [
        ("one is missing", pods_of, "name,cpu_milli,memory_mib,num_gpu", "no column gpu_milli", ""),
        ("several are missing", pods_of, "name,num_gpu", "cpu_milli, memory_mib, gpu_milli", ""),
        ("the found ones are listed", pods_of, "name,x,y", "(found: name, x, y)", ""),
        ("a slip", pods_of, PODS.replace("cpu_milli", "cpu_mili"), "no column", "'cpu_mili' to"),
        ("nodes for pods", pods_of, NODES, "no column", "this is a node list, expected a pod"),
        ("pods for nodes", nodes_of, PODS, "no column", "this is a pod list, expected a node"),
        ("one column twice", pods_of, f"{PODS},name", "column 'name' appears twice", ""),
        ("no CSV at all", pods_of, "hello world", "(found: hello world)", "has the columns"),
    ],
)
def test_a_header_that_does_not_fit(
    tmp_path: Path,
    what: str,
    read: Callable[[Path], object],
    header: str,
    problem: str,
    hint: str,
) -> None:
    error = refusal(read, a_file(tmp_path, header, "a,1,1,0,0"))
    assert error.where.endswith(":1"), what
    assert problem in error.problem, what
    assert hint in error.hint, what


@pytest.mark.parametrize("read", [pods_of, nodes_of])
@pytest.mark.parametrize(
    ("what", "content", "problem"),
    [
        ("an empty file", b"", "the file is empty"),
        ("only blank lines", b"\n\n\n", "the file is empty"),
        ("an empty gzip", gzip.compress(b"", mtime=0), "the file is empty"),
        (
            "a truncated gzip",
            gzip.compress(random.Random(1).randbytes(4000))[:-300],
            "truncated gzip file",
        ),
        ("a gzip cut in its header", gzip.compress(b"x", mtime=0)[:5], "truncated gzip file"),
        ("a damaged gzip", gzip.compress(PODS.encode())[:-6] + b"\0" * 6, "damaged gzip file"),
        ("a gzip of another method", b"\x1f\x8b\x07" + b"\0" * 20, "damaged gzip file"),
        ("Latin-1", "näme,cpu_milli\n".encode("latin-1"), "not UTF-8 text at byte 2"),
        ("UTF-16", PODS.encode("utf-16"), "not UTF-8 text"),
        ("zeros without an end", b"\0" * (3 << 20), "line longer than"),
        ("an open quote", b'"name,cpu_milli\n' * 3, "not CSV"),
        ("old Macintosh line ends", b"name,a\rb,c\r", "not CSV"),
    ],
)
def test_what_is_no_table(
    tmp_path: Path, read: Callable[[Path], object], what: str, content: bytes, problem: str
) -> None:
    path = tmp_path / "junk"
    path.write_bytes(content)
    assert problem in refusal(read, path).problem, what


@pytest.mark.parametrize(("read", "header"), [(pods_of, PODS), (nodes_of, NODES)])
def test_a_header_without_rows(tmp_path: Path, read: Callable[[Path], object], header: str) -> None:
    assert "no rows" in refusal(read, a_file(tmp_path, header)).problem


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    a_file(tmp_path, PODS, name="pods.csv")
    missing = refusal(pods_of, tmp_path / "pod.csv")
    assert missing.problem == "no such file"
    assert "pods.csv" in missing.hint
    assert refusal(pods_of, tmp_path).problem == "is a directory"
    assert "no such file" in refusal(pods_of, tmp_path / "no" / "where.csv").problem
    below_a_file = refusal(pods_of, tmp_path / "pods.csv" / "x")
    assert "cannot be read" in below_a_file.problem
    with pytest.raises(UserError, match="cannot be opened"):
        pods_of(tmp_path / "nul\0byte")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = a_file(tmp_path, PODS)
    path.chmod(0)
    assert "Permission denied" in refusal(pods_of, path).problem


def test_not_utf_8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_bytes(f"{PODS}\na,1,1,0,0\nb\xff,1,1,0,0\n".encode("latin-1"))
    assert refusal(pods_of, path).where.endswith(":3")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_file_of_ten_million_rows_fails_fast_and_small(tmp_path: Path, packed: bool) -> None:
    """Ten million rows, of which no more are looked at than the limit."""
    path = tmp_path / "huge.csv"
    block = b"\n".join([b"pod-0123456789,12000,16384,1,1000"] * 100_000) + b"\n"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as out:
        out.write(f"{PODS}\n".encode())
        for _ in range(100):
            out.write(block)
    tracemalloc.start()
    began = time.process_time()
    error = refusal(pods_of, path)
    spent, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.problem == "more than 2,000,000 rows"
    assert spent < 5
    assert peak < 16 << 20


def test_a_pipe_ends_at_the_limit_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_ROWS", 3)
    monkeypatch.setattr(table, "line_count", lambda path, stop_after: 0)
    rows = [f"p{number},1,1,0,0" for number in range(4)]
    assert len(pods_of(a_file(tmp_path, PODS, *rows[:3]))) == 3
    assert "more than 3 rows" in refusal(pods_of, a_file(tmp_path, PODS, *rows)).problem


# --- anything at all ------------------------------------------------------------------------

CELLS = st.sampled_from(
    ["a", "b", "1", "0", "1000", "-1", "1.5", "", " ", "T4", "T4|P100", '"', "\0", "inf", "9" * 20]
)
LINES = st.lists(CELLS, max_size=10).map(",".join)
NEARLY_TABLES = st.tuples(
    st.sampled_from([PODS, NODES, TIMED, f"{NODES},cpu_model", "name"]),
    st.lists(LINES, max_size=4),
).map(lambda parts: "\n".join([parts[0], *parts[1]]).encode())
ANYTHING = st.one_of(st.binary(max_size=300), NEARLY_TABLES)


@given(content=ANYTHING, packed=st.booleans(), kept=st.integers(0, 400))
@example(content=b"\x1f\x8b", packed=False, kept=400)
@example(content=b"name,cpu_milli\x00\n", packed=False, kept=400)
@settings(
    max_examples=times(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_bytes_are_a_list_or_a_user_error(
    tmp_path: Path, content: bytes, packed: bool, kept: int
) -> None:
    path = tmp_path / "anything"
    path.write_bytes((gzip.compress(content) if packed else content)[:kept])
    for read in (pods_of, nodes_of):
        assert len(complaint(read, path).splitlines()) <= 1


def complaint(read: Callable[[Path], object], path: Path) -> str:
    try:
        read(path)
    except UserError as error:
        return error.line()
    return ""


# --- the published traces -------------------------------------------------------------------


@pytest.mark.data
def test_the_published_cluster(openb: Path) -> None:
    cluster = nodes_of(openb / "openb_node_list_gpu_node.csv")
    assert len(cluster.nodes) == 1213
    assert cluster.gpu_milli == 6_212_000
    assert sum(node.cpu_milli for node in cluster.nodes) == 107_018_000
    assert sum(node.memory_mib for node in cluster.nodes) == 503_828_480


@pytest.mark.data
def test_the_published_node_list_with_cpu_only_nodes(openb: Path) -> None:
    nodes = nodes_of(openb / "openb_node_list_all_node.csv").nodes
    assert len(nodes) == 1523
    assert sum(node.gpu_count == 0 for node in nodes) == 310


@pytest.mark.data
def test_the_published_default_trace(openb: Path) -> None:
    pods = pods_of(openb / "openb_pod_list_default.csv")
    requests = [pod.request for pod in pods]
    assert len(pods) == 8152
    assert sum(request.gpu_count == 0 for request in requests) == 1088
    assert sum(request.is_sharing for request in requests) == 3078
    assert sum(request.memory_mib for request in requests) == 303_546_211
    shapes = {(r.cpu_milli, r.gpu_milli, r.gpu_count, r.models) for r in requests}
    assert len(shapes) == 91


@pytest.mark.data
def test_every_published_pod_list_is_accepted(openb: Path) -> None:
    lists = sorted(openb.glob("openb_pod_list_*.csv"))
    assert lists
    for path in lists:
        assert len(pods_of(path)) > 7000
