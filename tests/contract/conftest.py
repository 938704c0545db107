"""Every scenario is played on a simulated plant and on processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shells import Local, Setup, Shell, Simulated

Begin = Callable[[Setup], Shell]


@pytest.fixture(params=["simulated", pytest.param("local", marks=pytest.mark.long)])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Begin]:
    """Begins a site; all of them end with the test."""
    begun: list[Shell] = []

    def begin(setup: Setup) -> Shell:
        shell = Simulated(setup) if request.param == "simulated" else Local(setup, tmp_path)
        begun.append(shell)
        return shell

    yield begin
    for shell in begun:
        shell.close()
