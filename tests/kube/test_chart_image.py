"""What the chart would have the image run: programs that it has, commands that they know."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helm_chart import DEPLOY, VARIANTS, Tools
from kube_api import Object

from wattherd.cli.kube import kube

RECIPE = (DEPLOY / "Containerfile").read_text()
[ENTRY] = json.loads(re.findall(r"^ENTRYPOINT (.+)$", RECIPE, flags=re.MULTILINE)[-1])
PYTHON = str(Path(ENTRY).parent / "python")
PROGRAMS = {"wattherd": {ENTRY, PYTHON}, "kube-scheduler": {"kube-scheduler"}}
"""By image, all that can be run in it: neither has a shell."""
HOOKS = ("postStart", "preStop")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def containers(objects: list[Object]) -> Iterator[Object]:
    for one in objects:
        spec = one["spec"].get("template", {}).get("spec", {}) if "spec" in one else {}
        yield from spec.get("initContainers", ())
        yield from spec.get("containers", ())


def image_of(container: Object) -> str:
    name: str = container["image"].split("@")[0].split("/")[-1].split(":")[0]
    return name


def programs_of(container: Object) -> Iterator[str]:
    """What it names instead of the image's entry point, or beside that."""
    asked = [container.get(probe, {}) for probe in PROBES]
    asked += [container.get("lifecycle", {}).get(hook, {}) for hook in HOOKS]
    commands = [container.get("command"), *(one.get("exec", {}).get("command") for one in asked)]
    yield from (command[0] for command in commands if command)


def test_the_recipe_makes_the_python_that_probes_name() -> None:
    assert f'["/usr/bin/python3", "-m", "venv", "{Path(PYTHON).parents[1]}"]' in RECIPE
    assert f"COPY --from=build {Path(PYTHON).parents[1]} {Path(PYTHON).parents[1]}" in RECIPE


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_that_is_run_is_in_its_image(helm: Tools, variant: str) -> None:
    found = list(containers(helm.rendered(VARIANTS[variant])))
    assert found
    for container in found:
        assert set(programs_of(container)) <= PROGRAMS[image_of(container)], container["name"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_commands_know_every_option_that_they_are_given(helm: Tools, variant: str) -> None:
    for container in containers(helm.rendered(VARIANTS[variant])):
        if image_of(container) != "wattherd":
            continue
        group, name, *options = container["args"]
        assert group == kube.name
        kube.commands[name].make_context(name, options).close()


def test_the_helpers_probe_passes_once_its_socket_is_listened_on(
    helm: Tools, tmp_path: Path
) -> None:
    found = containers(helm.rendered({"agent": {"enabled": True}}))
    [helper] = [one for one in found if one["name"] == "cap-helper"]
    [path] = [each[9:] for each in helper["args"] if each.startswith("--socket=")]
    at = str(tmp_path / "caps.sock")
    program, *arguments = helper["startupProbe"]["exec"]["command"]
    assert program == PYTHON
    command = [sys.executable, *(each.replace(path, at) for each in arguments)]
    assert at in command[-1]

    def passes() -> bool:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0

    assert not passes()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(at)
        assert not passes()  # it is there, and nobody answers
        listener.listen()
        assert passes()
    assert not passes()
