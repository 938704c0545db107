"""Data and code brought to jobs, results taken away: whole or not at all, as the job's user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_site import Site

from wattherd.errors import UserError
from wattherd.runtime.local import run_dir
from wattherd.runtime.local.executor import end_stray
from wattherd.runtime.local.staging import bring
from wattherd.testing.live import MemoryJournal
from wattherd.workload.job_file import validated_job


@pytest.fixture
def site() -> Iterator[Site]:
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    site = Site(above / "jobs", MemoryJournal())
    yield site
    site.keeper.end()
    for folder in site.root.glob("*/run-*"):
        end_stray(folder)
    shutil.rmtree(above)


def paper_of(**fields: Any) -> dict[str, Any]:
    return validated_job({"run": "true", **fields}, "test").paper()


def given(site: Site) -> Path:
    """A folder of data, one of code, and one for results."""
    folder = site.root.parent / "given"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "data" / "deep" / "x").write_text("42")
    (folder / "code").mkdir()
    (folder / "code" / "train.sh").write_text(
        "cat $WATTHERD_INPUTS/set/deep/x > $WATTHERD_OUTPUTS/y"
    )
    return folder


def test_data_and_code_come_and_results_go(site: Site) -> None:
    folder = given(site)
    paper = paper_of(
        inputs={"set": f"file://{folder}/data"}, code=f"{folder}/code",
        outputs={"y": f"file://{folder}/results/y"},
    )  # fmt: skip
    job = site.submit("sh train.sh", paper=paper)
    site.wait(job, "Succeeded")
    assert (folder / "results" / "y").read_text() == "42"
    assert [one.name for one in (folder / "results").iterdir()] == ["y"]


def test_all_of_a_gang_wait_for_the_copy(site: Site) -> None:
    paper = paper_of(inputs={"set": f"{given(site)}/data"}) | {"launch": "task"}
    job = site.submit("cat $WATTHERD_INPUTS/set/deep/x", tasks=2, paper=paper)
    site.wait(job, "Succeeded")
    assert [site.log(job, rank=rank) for rank in (0, 1)] == ["42", "42"]


def test_what_failed_takes_nothing_away(site: Site) -> None:
    folder = given(site)
    paper = paper_of(outputs={"y": f"{folder}/y"})
    job = site.submit("echo half > $WATTHERD_OUTPUTS/y; exit 3", paper=paper)
    site.wait(job, "Failed")
    assert not (folder / "y").exists()


def test_what_is_not_there_says_so(site: Site) -> None:
    job = site.submit("true", paper=paper_of(inputs={"set": "/no/such/data"}))
    site.wait(job, "Failed")
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert end["exit_code"] == 125
    assert "/no/such/data" in site.log(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")
def test_a_job_is_brought_nothing_that_its_user_may_not_read(site: Site) -> None:
    """The interpreter must be one that the user can run."""
    secret = given(site) / "secret"
    secret.write_text("hidden")
    secret.chmod(0o600)
    paper = paper_of(inputs={"s": str(secret)}, user="nobody")
    job = site.submit("cat $WATTHERD_INPUTS/s", paper=paper)
    site.wait(job, "Failed")
    assert "Permission denied" in site.log(job)
    assert "hidden" not in site.log(job)
    assert not (site.root / job / "work" / "inputs" / "s").exists()


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for name, file in (("new", "b"), ("old", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(file)
    bring(tmp_path / "new", tmp_path / "old")
    assert [one.name for one in (tmp_path / "old").iterdir()] == ["b"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new", "old"]


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": {"x": "s3://bucket/x"}},
        {"inputs": {"../x": "/x"}},
        {"outputs": {"x": "relative/x"}},
        {"code": "/c", "container": {"image": "train:1", "tag_allowed": True}},
    ],
)
def test_places_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        paper_of(**fields)
