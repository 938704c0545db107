"""Folders are handed over to a job's account, and nothing that was put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.local.accounts import SecretPlaces
from wattherd.local.ownership import hand_over
from wattherd.local.secrets import MOST_BYTES, secrets_of

ACCOUNT = (65_534, 65_534)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands folders over")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    (tmp_path / "j-1" / "run-1").mkdir(parents=True)
    (tmp_path / "j-1" / "work").mkdir()
    return tmp_path / "j-1"


def give(job: Path) -> None:
    hand_over(job, job / "run-1", [job / "work"], job / "run-1" / "progress.jsonl", ACCOUNT)


def test_own_files_are_given_away_before_the_folder_is_open(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches the folder from another job of the account finds it closed until the end."""
    (job / "run-1").chmod(0o700)
    modes = []
    change = os.fchown

    def watched(descriptor: int, uid: int, gid: int) -> None:
        modes.append(stat.S_IMODE((job / "run-1").stat().st_mode))
        change(descriptor, uid, gid)

    monkeypatch.setattr(os, "fchown", watched)
    give(job)
    assert modes == [0o700] * 4
    assert stat.S_IMODE((job / "run-1").stat().st_mode) == 0o1770
    assert (job / "run-1" / "progress.jsonl").stat().st_uid == ACCOUNT[0]


@pytest.mark.parametrize("plant", ["link", "second name", "pipe", "folder link"])
def test_what_was_planted_is_not_followed(job: Path, tmp_path: Path, plant: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("root's")
    precious.chmod(0o640)
    reports = job / "run-1" / "progress.jsonl"
    if plant == "link":
        reports.symlink_to(precious)
    elif plant == "second name":
        reports.hardlink_to(precious)
    elif plant == "pipe":
        os.mkfifo(reports)
    else:
        reports.symlink_to(tmp_path / "not-there-yet")
    give(job)
    found = precious.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, precious.read_text()) == (0o640, 0, "root's")
    assert not (tmp_path / "not-there-yet").exists()
    assert stat.S_ISREG(reports.lstat().st_mode)


def test_a_folder_that_is_a_link_is_refused(job: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (job / "work").rmdir()
    (job / "work").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        give(job)
    assert (tmp_path / "elsewhere").stat().st_uid == 0


@pytest.mark.parametrize("user", [None, ACCOUNT])
def test_a_secret_without_end_is_not_taken_into_memory(
    job: Path, user: tuple[int, int] | None
) -> None:
    endless = job.parent / "endless"
    with endless.open("wb") as stream:
        stream.truncate(1 << 40)
    endless.chmod(0o644)
    places = SecretPlaces(anywhere=False, folders=(job.parent,), variables=frozenset())
    with pytest.raises(UserError, match="is longer than"):
        secrets_of({"secrets": {"A": f"file:{endless}"}}, user, places)
    with endless.open("r+b") as stream:
        stream.truncate(MOST_BYTES // 2)
    with pytest.raises(UserError, match="zero byte"):
        secrets_of({"secrets": {"A": f"file:{endless}"}}, user, places)


@pytest.mark.parametrize("name", ["A=B", "", "1A", "A B", "A\0B"])
def test_a_secret_has_the_name_of_a_variable(job: Path, name: str) -> None:
    places = SecretPlaces(anywhere=True, folders=(), variables=frozenset())
    with pytest.raises(UserError, match="no name of a variable"):
        secrets_of({"secrets": {name: "env:HOME"}}, None, places)
