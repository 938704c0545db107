"""What every folder of tests may use."""

from __future__ import annotations

import os
from pathlib import Path

# As the command line does, and before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from promises import PromiseBroken

REPOSITORY = Path(__file__).resolve().parents[1]

# Kernels compile on their first call, which no deadline should mistake for a slow property.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_REAL = ("tests/kube", "tests/servers", "tests/service")
"""Real processes, servers and clocks at work, which a busy machine can hold up."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These get one more try, few in a whole run, and what failed first is told in full."""
    for item in items:
        if any(item.path.is_relative_to(REPOSITORY / folder) for folder in _REAL):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=PromiseBroken))


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes name no test: a compressed file holds its hour, and workers must agree on names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def openb() -> Path:
    """The openb traces, found by WATTHERD_DATA; the test is skipped where they are absent."""
    data = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data")
    folder = data / "openb"
    if not (folder / "openb_node_list_gpu_node.csv").is_file():
        pytest.skip(f"no openb traces in {folder}; set WATTHERD_DATA")
    return folder


@pytest.fixture(scope="session")
def traces() -> Path:
    """Published job traces, found by WATTHERD_DATA; the test is skipped where they are absent."""
    data = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data")
    if not (data / "traces").is_dir():
        pytest.skip(f"no traces in {data / 'traces'}; set WATTHERD_DATA")
    return data / "traces"
