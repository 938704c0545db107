"""What the tests of the SDK share: a run directory as wattherd makes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from train_runs import RunDir

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)
