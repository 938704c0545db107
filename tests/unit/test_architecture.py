"""The house rules that a machine can check: who may import whom, and that nothing is left out."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import wattherd
from wattherd.engine.placement.state import ClusterState
from wattherd.model.allocation import Allocation
from wattherd.policy.place import dispatch
from wattherd.policy.place.registry import BUILT_IN
from wattherd.testing.builders import (
    a_cluster,
    a_node,
    a_placer,
    a_state,
    cpu_only,
    exclusive,
    sharing,
    spellings,
)

PACKAGE = Path(wattherd.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 800
"""The longest is `engine/core/core.py`: one class, one concept, a theory of operation at its head.
A longer file holds a second concept, which wants a file of its own."""
UNNAMED = {"util", "utils", "helper", "helpers", "common", "misc", "base", "manager"}
PURE_ROOMS = ("model", "catalog", "estimate", "policy", "engine")
# Redraws the published simulator's own shuffle, from the seed it is given.
STREAMS_OF_OTHERS = {("policy/schedule/gavel.py", "RandomState")}
IMPURE = {
    *("time", "datetime", "random", "secrets", "os", "pathlib", "socket", "asyncio", "threading"),
    *("multiprocessing", "logging", "subprocess", "io", "tempfile", "uuid", "sys"),
}


def imports(path: Path) -> Iterator[str]:
    """Every module imported anywhere in the file, functions included."""
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            yield statement.module or ""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


# --- imports ---------------------------------------------------------------------------------


def test_the_import_contracts_hold() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_read_no_clock_file_socket_or_chance(room: str) -> None:
    found = {
        (name_of(path), module)
        for path in (PACKAGE / room).rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in IMPURE
    }
    assert not found


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_make_no_random_stream(room: str) -> None:
    """A generator arrives as an argument; only tests and shells seed one."""
    makers = ("default_rng", "np.random.seed", "RandomState", "SeedSequence")
    found = {
        (name_of(path), maker)
        for path in (PACKAGE / room).rglob("*.py")
        for maker in makers
        if maker in path.read_text(encoding="utf-8")
    }
    assert found <= STREAMS_OF_OTHERS


def test_only_tests_import_the_testing_package() -> None:
    found = {
        (name_of(path), module)
        for path in SOURCES
        if PACKAGE / "testing" not in path.parents
        for module in imports(path)
        if module.startswith("wattherd.testing") or module.split(".")[0] in ("hypothesis", "pytest")
    }
    assert not found


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    judged = ("wattherd.estimate", "wattherd.engine", "wattherd.policy", "numpy")
    allowed = {"wattherd.policy.place.registry"}  # to read a parsed policy
    for name in ("oracle.py", "plain_cluster.py"):
        found = {module for module in imports(PACKAGE / "testing" / name)
                 if module.startswith(judged)}  # fmt: skip
        assert found <= allowed


def test_builders_and_oracle_come_without_hypothesis() -> None:
    code = (
        "import sys; from wattherd.testing import builders, oracle, plain_cluster\n"
        "assert 'hypothesis' not in sys.modules and 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- files -----------------------------------------------------------------------------------


def test_no_file_is_too_long_to_read() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_two_public_classes_share_a_name() -> None:
    """One word has one meaning: who searches for a class finds one."""
    defined: dict[str, list[str]] = {}
    for path in SOURCES:
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                defined.setdefault(statement.name, []).append(name_of(path))
    assert len(defined) > 1_000
    assert {name: where for name, where in defined.items() if len(where) > 1} == {}


def test_every_module_says_what_it_is_by_its_name() -> None:
    assert [name_of(path) for path in SOURCES if path.stem.strip("_") in UNNAMED] == []


# --- scorers and their kernels ---------------------------------------------------------------

REQUESTS = (
    cpu_only(3_000),
    sharing(2_000, 300),
    sharing(1_000, 500, "T4"),
    exclusive(4_000, 1),
    exclusive(8_000, 2),
)


@pytest.fixture(scope="module")
def state() -> ClusterState:
    """A small cluster in use, on which scorers differ."""
    cluster = a_cluster(
        a_node("a", cpu_milli=33_000, gpus=4),
        a_node("b", cpu_milli=64_000, gpus=2, model="T4"),
        a_node("c", cpu_milli=16_000, gpus=0),
        a_node("d"),
    )
    state = a_state(cluster, REQUESTS)
    state.place(Allocation(sharing(2_000, 300), 0, (2,)))
    state.place(Allocation(exclusive(8_000, 2), 3, (0, 1)))
    state.place(Allocation(sharing(1_000, 500), 1, (1,)))
    for request in REQUESTS:
        state.intern(request)
    return state


def answers(name: str, state: ClusterState) -> dict[tuple[int, int], tuple[int, int]]:
    """Key and GPU by the scorer's definition, of every feasible (shape, node)."""
    scorer = BUILT_IN[name]
    options = np.array(list(scorer.options.values()), dtype=np.float64)
    found = {}
    for shape, request in enumerate(map(state.intern, REQUESTS)):
        for n, node in enumerate(state.cluster.nodes):
            if REQUESTS[shape].fits(node) and (n, shape) != (1, 4):  # `b` has one whole GPU left
                keys, gpus = scorer.rows(state.world, request, np.array([n]), options)
                found[shape, n] = int(keys[0]), int(gpus[0])
    return found


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_scorer_is_dispatched_to_its_own_kernel(name: str, state: ClusterState) -> None:
    scorer = BUILT_IN[name]
    assert scorer.kernel_id is not None
    options = np.array(list(scorer.options.values()), dtype=np.float64)
    expected, plain = answers(name, state), answers("first-fit", state)
    for (shape, n), answer in expected.items():
        request = state.intern(REQUESTS[shape])
        key, gpu = dispatch.score_node(scorer.kernel_id, state.world, request, n, options)
        assert (int(key), int(gpu)) == answer
    # First fit is also what an unknown number would get.
    assert (expected != plain) == (scorer.kernel_id != BUILT_IN["first-fit"].kernel_id)


def test_kernel_numbers_are_unique() -> None:
    """Scorers with the same number have the same definition, and no other shares it."""
    pairs = {(scorer.kernel_id, scorer.rows) for scorer in BUILT_IN.values()}
    assert len({number for number, _ in pairs}) == len({rows for _, rows in pairs}) == len(pairs)


def test_every_policy_file_is_registered() -> None:
    """A file with a SCORER that the registry does not know would silently be missing."""
    folder = PACKAGE / "policy" / "place"
    with_scorer = {path.stem for path in folder.glob("*.py") if "\nSCORER = " in path.read_text()}
    registered = {scorer.rows.__module__.rpartition(".")[2] for scorer in BUILT_IN.values()}
    assert with_scorer == registered | {"random"}  # `random` shares first fit's definition


@pytest.mark.parametrize("policy", spellings())
def test_every_spelling_decides(policy: str, state: ClusterState) -> None:
    assert a_placer(state, policy).choose(sharing(1, 1)) is not None


def test_no_two_modules_of_tests_have_one_name() -> None:
    """Where folders are no packages, the second of two would not be collected."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
