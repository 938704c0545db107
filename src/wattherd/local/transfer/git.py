"""Code from a git repository, at one revision, by the git that is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from wattherd.devices.wire.file_places import GitPlace
from wattherd.errors import UserError
from wattherd.local.transfer import files

CALM = (
    "gc.auto=0",
    "core.hooksPath=/dev/null",
    "protocol.ext.allow=never",
    "advice.detachedHead=0",
)
ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
NEVER_ASK = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}


def bring(place: GitPlace, target: Path) -> str:
    """Check a revision out to where nothing is yet; the commit that it is.

    Only that revision is asked for first; servers that know commits by branch only are asked for
    everything.

    Raises:
        UserError: there is no such repository, revision or folder, or no git.
        OSError: it cannot be written.
    """
    part = files.part_of(target)
    files.remove(part)
    part.mkdir(parents=True)
    _git(place, part, "init", "--quiet")
    try:
        _git(place, part, "fetch", "--quiet", "--depth=1", place.url, place.revision)
        found = "FETCH_HEAD"
    except UserError:
        _git(place, part, "fetch", "--quiet", place.url, *ALL)
        found = _known(place, part)
    _git(place, part, "checkout", "--quiet", "--detach", found)
    commit = _git(place, part, "rev-parse", "HEAD").strip()
    if not (part / place.folder).is_dir():
        raise UserError(f"no folder {place.folder!r} at {place.revision}", where=place.url)
    files.settle(part / place.folder, target)
    files.remove(part)
    return commit


def _known(place: GitPlace, folder: Path) -> str:
    """The revision among all that was fetched: a tag or commit, else a branch."""
    for name in (place.revision, f"origin/{place.revision}"):
        try:
            return _git(
                place, folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"
            ).strip()
        except UserError:
            continue
    raise UserError(f"no branch, tag or commit {place.revision!r}", where=place.url)


def _git(place: GitPlace, folder: Path, *arguments: str) -> str:
    """What git answers.

    Raises:
        UserError: it failed; its words.
    """
    calm = [part for one in CALM for part in ("-c", one)]
    try:
        done = subprocess.run(  # noqa: S603 - words are checked where the address is read
            ["git", *calm, "-C", str(folder), *arguments],  # noqa: S607 - the user's own git
            env={**os.environ, **NEVER_ASK},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise UserError("git is not installed here", where=place.url) from None
    if done.returncode:
        words = done.stderr.strip().splitlines()
        fatal = [one for one in words if one.startswith(("fatal:", "error:"))]
        problem = (fatal or words or [f"git {arguments[0]} failed"])[0]
        raise UserError(problem, where=f"{place.url}@{place.revision}")
    return done.stdout
