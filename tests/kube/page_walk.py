"""A page for operators followed from top to bottom, as whoever reads it would."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from control_plane import ControlPlane
from helm_chart import REPOSITORY, Tools

import docs_commands as docs

GUIDES = REPOSITORY / "docs" / "guides"


def reader(plane: ControlPlane, folder: Path) -> Tools:
    """In an empty folder but for `deploy`, with helm, kubectl and wattherd at hand."""
    at, programs = folder / "here", folder / "bin"
    at.mkdir()
    programs.mkdir()
    (at / "deploy").symlink_to(REPOSITORY / "deploy")
    for name in ("helm", "kubectl"):
        (programs / name).symlink_to(plane.programs / name)
    path = os.pathsep.join((str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")))
    compiled = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    given = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(compiled)}  # not compiled for every page
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())
    python = f"env {words} {shlex.quote(sys.executable)}"
    wattherd = programs / "wattherd"
    wattherd.write_text(f'#!/bin/sh\nexec {python} -m wattherd.cli.main "$@"\n')
    wattherd.chmod(0o755)
    return Tools(programs, plane.kubeconfig, folder, at=at)


def followed(tools: Tools, page: str) -> dict[str, str]:
    """What each command said, by its first line; it must succeed."""
    said: dict[str, str] = {}
    for command in docs.commands(GUIDES / f"{page}.md"):
        first = " ".join(command.text.split("\n", 1)[0].split())
        said[first] = said.get(first, "") + tools.run("bash", "-c", command.text)
    return said


def one_that(said: dict[str, str], *words: str) -> str:
    """What the only command with all of `words` said."""
    [found] = [text for command, text in said.items() if all(word in command for word in words)]
    return found
