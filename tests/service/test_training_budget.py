"""Real training jobs under a falling and rising budget end as if nobody had touched them."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from training_runs import ENVIRONMENT, EXAMPLES, STEP, final_loss, undisturbed

pytest.importorskip("sqlalchemy", reason="the extra `server` is not installed")


from wattherd.local.orphans import end_stray
from wattherd.model.event import BudgetChanged
from wattherd.server.documents.documents import job_document
from wattherd.server.settings.config import ServeConfig
from wattherd.server.site.site import LiveSite, open_site
from wattherd.workload.job_file import JobFile

pytestmark = pytest.mark.long

MOST_S = 60.0
JOBS = {
    "numpy": {"mlp": 6000, "cnn": 4000, "attention": 4000},
    "torch": {"torch_mlp": 4000, "torch_cnn": 2500, "torch_transformer": 1500},
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LiveSite]:
    site = open_site(ServeConfig(state=tmp_path / "state", slots=3))
    yield site
    site.close()
    for folder in (tmp_path / "state").glob("jobs/*/run-*"):
        end_stray(folder)


def submit(site: LiveSite, example: str, steps: int) -> str:
    options = ["--steps", str(steps), "--every", "1000000"]
    argv = [sys.executable, str(EXAMPLES / f"{example}.py"), *options]
    job = JobFile(run=list(argv), checkpoint={"grace": 60}, envs=ENVIRONMENT)  # type: ignore[arg-type]
    return site.keeper.submit(job.spec(), job.paper(), by="ann").result(MOST_S)


def told(site: LiveSite, job: str) -> str:
    """What it printed in all its runs, in order."""
    runs = sorted(
        (site.config.state / "jobs" / job).glob("run-*"),
        key=lambda folder: int(folder.name.removeprefix("run-")),
    )
    logs = [run / "logs" / "0.log" for run in runs]
    return "".join(log.read_text() for log in logs if log.exists())


def until(true: Callable[[], object], most_s: float) -> None:
    end_s = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.1)


@pytest.mark.parametrize("family", ["numpy", "torch"])
def test_a_budget_that_falls_and_rises_costs_time_only(
    site: LiveSite, tmp_path: Path, family: str
) -> None:
    if family == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    patience_s = 500.0 if family == "torch" else MOST_S
    jobs = {submit(site, example, steps): example for example, steps in JOBS[family].items()}

    def states() -> list[str]:
        return [site.look(lambda look, j=job: job_document(look, j))["state"] for job in jobs]

    def budget(watts: float | None) -> None:
        event = BudgetChanged(at_s=0.0, budget_w=watts)
        site.keeper.post(event, by="ann").result(MOST_S)

    until(lambda: all(len(STEP.findall(told(site, job))) > 100 for job in jobs), patience_s)
    budget(5.0)  # half of what three slots may draw: slower
    time.sleep(1.5)
    budget(2.6)  # the floor of two of them and an idle one
    until(lambda: states().count("Running") < 3, patience_s)
    time.sleep(1.5)
    budget(None)
    until(lambda: all(state in ("Succeeded", "Failed") for state in states()), patience_s)
    assert states() == ["Succeeded"] * 3
    attempts = [site.look(lambda look, j=job: job_document(look, j))["attempts"] for job in jobs]
    assert max(attempts) > 1
    for job, example in jobs.items():
        steps = JOBS[family][example]
        whole = undisturbed(tmp_path, example, "--steps", str(steps), "--every", "1000000")
        assert STEP.findall(told(site, job)) == STEP.findall(whole)
        assert abs(final_loss(told(site, job)) - final_loss(whole)) <= 1e-6
