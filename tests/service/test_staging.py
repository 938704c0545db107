"""Data and code brought to jobs, results taken away: whole or not at all, as the job's user."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_site import Site, passable_site

from wattherd.devices.wire.file_places import GitPlace, parse
from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.transfer import git
from wattherd.local.transfer.files import bring, fill
from wattherd.workload.job_file import validated_job


@pytest.fixture
def site() -> Iterator[Site]:
    with passable_site() as site:
        yield site


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


@pytest.mark.long
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


# --- code from git ---------------------------------------------------------------------------


def repository(folder: Path) -> dict[str, str]:
    """Two commits, by the names that they go by: a tag, a branch, and the numbers of both."""
    run = ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.org", "-C", str(folder)]

    def git(*words: str) -> str:
        return subprocess.run([*run, *words], check=True, capture_output=True, text=True).stdout

    (folder / "train").mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main")
    commits = []
    for number in ("1", "2"):
        (folder / "train" / "version").write_text(number)
        git("add", "-A")
        git("commit", "--quiet", "-m", number)
        commits.append(git("rev-parse", "HEAD").strip())
        if number == "1":
            git("tag", "v1")
            git("branch", "old/style")
    return {"first": commits[0], "second": commits[1]}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    ("revision", "version"),
    [
        ("", "2"),
        ("@main", "2"),
        ("@v1", "1"),
        ("@old/style", "1"),
        ("@FIRST", "1"),
        ("@SHORT", "1"),
    ],
)
def test_code_comes_from_git_at_its_revision(tmp_path: Path, revision: str, version: str) -> None:
    commits = repository(tmp_path / "repo")
    revision = revision.replace("FIRST", commits["first"]).replace("SHORT", commits["first"][:9])
    place = parse(f"git+file://{tmp_path}/repo{revision}")
    assert isinstance(place, GitPlace)
    commit = git.bring(place, tmp_path / "code")
    assert commit == commits["first" if version == "1" else "second"]
    assert (tmp_path / "code" / "train" / "version").read_text() == version
    assert sorted(one.name for one in tmp_path.iterdir()) == ["code", "repo"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_tasks_begin_in_the_folder_of_the_repository_that_was_asked_for(site: Site) -> None:
    commits = repository(site.root.parent / "repo")
    place = f"git+file://{site.root.parent}/repo@v1#subdirectory=train"
    job = site.submit("cat version; pwd", paper=paper_of(code=place))
    site.wait(job, "Succeeded")
    assert f"brought code: commit {commits['first']}" in site.log(job)
    assert site.log(job).endswith(f"1{site.root / job / 'work' / 'code'}\n")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("repo@v9", "no branch, tag or commit 'v9'"),
        ("none", "does not appear to be a git repository"),
        ("repo#subdirectory=docs", "no folder 'docs'"),
    ],
)
def test_what_git_does_not_have_is_told(site: Site, place: str, words: str) -> None:
    repository(site.root.parent / "repo")
    job = site.submit("true", paper=paper_of(code=f"git+file://{site.root.parent}/{place}"))
    site.wait(job, "Failed")
    assert words in site.log(job)
    assert not (site.root / job / "work" / "code").exists()


# --- links -----------------------------------------------------------------------------------


@pytest.mark.long
def test_results_are_not_taken_through_a_link(site: Site) -> None:
    folder = given(site)
    paper = paper_of(outputs={"y": f"{folder}/y"})
    job = site.submit("ln -s /etc/hostname $WATTHERD_OUTPUTS/y", paper=paper)
    site.wait(job, "Failed")
    assert "is a link" in site.log(job)
    assert not (folder / "y").exists()


@pytest.mark.long
def test_data_is_not_brought_through_a_link(site: Site) -> None:
    """Which an earlier run of the job may have left."""
    folder = given(site)
    paper = paper_of(inputs={"set": f"{folder}/data"})
    run = f"rm -r $WATTHERD_INPUTS; ln -s {folder} $WATTHERD_INPUTS; exit $((2 - WATTHERD_ATTEMPT))"
    job = site.submit(run, paper=paper, restarts=1, backoff_s=0.0)
    site.wait(job, "Failed")
    assert "lies behind one" in site.log(job, attempt=2)
    assert not (folder / "set").exists()


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
        {"inputs": {"x": "s3://key:secret@bucket/x"}},
        {"inputs": {"x": "s3:///x"}},
        {"inputs": {"x": "ftp://host/x"}},
        {"code": "git+https://ann:token@host/repo"},
        {"code": "git+https://host/repo@--upload-pack=x"},
        {"code": "git+https://host/repo#egg=x"},
        {"outputs": {"x": "git+https://host/repo"}},
        {"inputs": {"../x": "/x"}},
        {"outputs": {"x": "relative/x"}},
        {"outputs": {"x": {"to": "/x", "when": "never"}}},
        {"s3": {"endpoint": "https://ann:token@host"}},
    ],
)
def test_places_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        paper_of(**fields)


# Checkpoints of other jobs ----------------------------------------------------------------------


@pytest.mark.long
def test_a_checkpoint_of_another_job_is_copied_before_the_first_run_alone(site: Site) -> None:
    saved = site.root.parent / "saved"
    (saved / "deep").mkdir(parents=True)
    (saved / "deep" / "model").write_text("step 7")
    (saved / ".hidden").write_text("x")
    run = (
        "cat $WATTHERD_CHECKPOINT_DIR/deep/model; ls -A $WATTHERD_CHECKPOINT_DIR;"
        " echo later > $WATTHERD_CHECKPOINT_DIR/deep/model; [ $WATTHERD_ATTEMPT = 2 ]"
    )
    paper = paper_of(checkpoint={"from": str(saved)})
    job = site.submit(run, paper=paper, restarts=1, backoff_s=0.01)
    site.wait(job, "Succeeded")
    assert "step 7.hidden\ndeep\n" in site.log(job)
    assert site.log(job, attempt=2) == "later\n.hidden\ndeep\n"
    assert (saved / "deep" / "model").read_text() == "step 7"


@pytest.mark.long
def test_a_checkpoint_that_is_not_there_fails_the_job_and_says_so(site: Site) -> None:
    job = site.submit("echo ran", paper=paper_of(checkpoint={"from": "/no/such/folder"}))
    site.wait(job, "Failed")
    assert "No such file" in site.log(job)
    assert "ran" not in site.log(job)


@pytest.mark.parametrize("cut", range(8))
def test_a_copy_into_a_folder_is_whole_or_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """Whichever step it is at which the machine loses its power."""
    source, folder = tmp_path / "source", tmp_path / "folder"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_text("a")
    (source / "b").write_text("b")
    folder.mkdir()
    steps = 0

    def cutting(real: Any) -> Any:
        def step(*given: Any, **more: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == cut:
                raise KeyboardInterrupt
            return real(*given, **more)

        return step

    with monkeypatch.context() as broken:
        for place, name in ((shutil, "copy2"), (Path, "replace"), (Path, "rmdir"), (Path, "mkdir")):
            broken.setattr(place, name, cutting(getattr(place, name)))
        with contextlib.suppress(KeyboardInterrupt):
            fill(folder, source)
    fill(folder, source)
    found = sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))
    assert found == ["b", "deep", "deep/a"]
    assert not fill(folder, source)  # what the job has written since is the job's


def test_a_folder_or_a_copy_but_not_both() -> None:
    with pytest.raises(UserError, match="leave `from` out"):
        validated_job({"run": "true", "checkpoint": {"dir": "/a", "from": "/b"}}, "job.yaml")
