"""What the version before the rooms were named anew left behind is read, and goes on.

`old_states/before-rooms-*` were written by that version itself: a service that was stopped with
jobs running and waiting, the same store compacted, runs of the simulator, a held site, the custom
resources, and every option of every command.
"""

from __future__ import annotations

import copy
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from click.testing import CliRunner, Result

from service.serving import Serving
from wattherd.cli.main import cli
from wattherd.engine.core.config import RULES
from wattherd.errors import UserError
from wattherd.hold.saved_state import read_memory
from wattherd.kube.api.names import OURS
from wattherd.server.documents.sentences import chapter_of
from wattherd.server.journal.snapshot_codec import _ROOMS
from wattherd.server.recovery.recovery import RecoveredCore, recover
from wattherd.server.recovery.replay import settings_of
from wattherd.store.store import ClusterStore

OLD = Path(__file__).parent / "old_states"
REPOSITORY = Path(__file__).parents[2]
LISTED = {"Blocked": "Queued", "Held": "Paused"}
"""States of the core that the list of jobs calls otherwise."""
CONFIG = """
policy: capacity
budget: 40W
slots: 4
queues:
  name: root
  children:
    - {name: default, guaranteed_pct: 50, maximum_pct: 100}
    - {name: night, guaranteed_pct: 50, maximum_pct: 100}
"""


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(OLD / f"before-rooms-{name}.tar.xz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
        packed.extractall(folder)
    for told in folder.rglob("sim.json"):  # where the jobs of a run were read from
        told.write_text(told.read_text().replace("@FOLDER@", str(folder)))
    return folder


def called(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'state' / 'journal.sqlite'}"


def recovered(folder: Path) -> RecoveredCore:
    """A service of the same configuration, as far as it knows its store."""
    store = ClusterStore.open(url(folder))
    try:
        return recover(store, settings_of(store.snapshots)[-1][1])
    finally:
        store.close()


def states(core: Any) -> dict[str, str]:
    return {past.job_id: past.state for past in core.history.jobs.values()}


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    return unpack("busy", tmp_path)


def test_rooms_of_snapshots_are_rooms_of_the_house() -> None:
    for room in _ROOMS:
        assert (REPOSITORY / "src" / "wattherd" / room / "__init__.py").is_file(), room


def test_old_jobs_are_as_they_were(busy: Path) -> None:
    told = {one["id"]: one for one in json.loads((busy / "jobs.json").read_text())["jobs"]}
    lived = recovered(busy)
    jobs = lived.replay.state.core.jobs
    assert {job.id for job in jobs.values()} <= told.keys()
    going = {one for one, job in told.items() if job["finished"] is None}
    assert going
    assert going <= {job.id for job in jobs.values()}
    for one in going:
        state = str(jobs[one].state.value)
        assert LISTED.get(state, state) == told[one]["state"], one
        if state == "Running":
            assert jobs[one].cap_w == told[one]["cap_w"], one
    assert lived.entries == 118, "the journal stands for snapshots of another version"
    assert [note for note in lived.notes if "snapshot of entry 118 is not used" in note]


def test_all_answers_of_an_old_store_are_given_again(busy: Path) -> None:
    recovered(busy)  # brings the tables up to date, as the first start does
    done = called("store", "verify", "--state", str(busy / "state"), "-o", "json")
    assert done.exit_code == 0, done.output
    verdict = json.loads(done.stdout)
    assert (verdict["entries"], verdict["answers"], verdict["problems"]) == (118, 71, [])
    assert [note[:21] for note in verdict["notes"]] == [
        "snapshot of entry 96 ",
        "snapshot of entry 118",
    ]


def test_a_compacted_old_store_says_how_it_is_made_whole_and_that_works(tmp_path: Path) -> None:
    folder = unpack("compacted", tmp_path)
    with pytest.raises(UserError, match="begins with entry 39") as refused:
        recovered(folder)
    assert "store import ARCHIVE later.jsonl.gz --state whole" in refused.value.hint
    verified = called("store", "verify", "--state", str(folder / "state"))
    assert verified.exit_code == 1
    assert "store import ARCHIVE later.jsonl.gz --state whole" in verified.stdout
    later, whole = str(tmp_path / "later.jsonl.gz"), str(tmp_path / "whole" / "state")
    assert called("store", "export", later, "--state", str(folder / "state")).exit_code == 0
    archive = str(folder / "archive.jsonl.gz")
    done = called("store", "import", archive, later, "--state", whole)
    assert done.exit_code == 0, done.output
    assert recovered(tmp_path / "whole").entries == 118
    done = called("store", "verify", "--state", whole)
    assert "sound" in done.stdout.splitlines(), done.stdout


@pytest.mark.parametrize(
    ("part", "state"), [(1.002, "Running"), (0.97, "Running"), (1.3, "Queued")]
)
def test_a_kernel_that_came_with_the_new_version_has_no_run_begin_anew(
    part: float, state: str, busy: Path
) -> None:
    """Both differ: the rules of decision, and by some MiB what the machine says of its memory."""
    store = ClusterStore.open(url(busy))
    try:
        was = settings_of(store.snapshots)[-1][1]
        node = replace(was.node, memory_mib=round(part * was.node.memory_mib))
        gpu = replace(was.gpu, memory_mib=node.memory_mib // 4)
        lived = recover(store, replace(was, rules=RULES, node=node, gpu=gpu))
    finally:
        store.close()
    job = lived.replay.state.core.jobs["j-13"]
    assert job.state.value == state
    told = [chapter_of(line)[0] for line in job.story]
    assert told[:3] == ["It was submitted.", "Run 1 of it was started.", "It began to work."]
    anew = ["The service has other devices or other rules now; its run begins anew."]
    assert told[3:] == ([] if state == "Running" else anew)
    waits = [chapter_of(line)[0] for line in lived.replay.state.core.jobs["j-17"].story]
    assert waits.count("It was submitted.") == 1, waits


@pytest.mark.parametrize("run", ["flat", "tree", "joules"])
def test_old_runs_replay_and_are_explained_alike(run: str, tmp_path: Path) -> None:
    folder = unpack("runs", tmp_path) / run
    done = called("sim", "replay", str(folder))
    assert done.exit_code == 0, done.output
    assert done.stdout == (folder / "replayed.txt").read_text()
    (told,) = folder.glob("explained-*.txt")
    job = told.stem.removeprefix("explained-")
    explained = called("sim", "explain", str(folder), job, "--policy", "fifo")
    # That version wrote `1 GPUs`.
    assert explained.stdout == told.read_text().replace("asks for 1 GPUs", "asks for 1 GPU")


@pytest.mark.parametrize("run", ["flat", "tree", "joules", "pack"])
def test_old_runs_are_reported(run: str, tmp_path: Path) -> None:
    folder = unpack("runs", tmp_path) / run
    done = called("report", str(folder), "-o", str(tmp_path / "report.html"))
    assert done.exit_code == 0, done.output
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_what_an_old_loop_has_learned_is_taken_over(tmp_path: Path) -> None:
    folder = unpack("hold", tmp_path)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("@FOLDER@", str(folder)))
    memory, problem = read_memory(folder / "site.journal.json")
    assert memory is not None, problem
    assert problem == ""
    assert [one.name for one in memory.devices] == [f"node-{n}" for n in range(4)]
    assert memory.feeds == ("row",)


CHECKS = "x-kubernetes-validations"
_FOR_WHAT_HAS = re.compile(
    r"!has\(self\.spec\.(\w+)\) \|\| "
    r"|!\(has\(self\.spec\.(\w+)\) && has\(self\.spec\.[\w.]+\)\) \|\| "
)


def _is_of_new(rule: str, was: Any) -> bool:
    """Whether a rule holds of every object without a property that was not there before."""
    found = _FOR_WHAT_HAS.match(rule)
    known = was.get("properties", {}).get("spec", {}).get("properties", {})
    return found is not None and (found[1] or found[2]) not in known


def _as_before(was: Any, now: Any) -> Any:
    """What is there now, without properties that were not there: whoever states none needs none.

    A description is told to readers and admits or refuses nothing: it may be worded anew. A rule
    for what has a new property refuses no object that has none.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        if CHECKS in now:
            checks = [one for one in now[CHECKS] if not _is_of_new(one["rule"], was)]
            now = {key: one for key, one in now.items() if key != CHECKS}
            if checks:
                now[CHECKS] = checks
        if isinstance(was.get("description"), str) and isinstance(now.get("description"), str):
            now = {**now, "description": was["description"]}
        known = was.get("properties")
        if isinstance(known, dict) and isinstance(now.get("properties"), dict):
            kept = {name: one for name, one in now["properties"].items() if name in known}
            now = {**now, "properties": kept}
        return {key: _as_before(was.get(key), one) for key, one in now.items()}
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [_as_before(*pair) for pair in zip(was, now, strict=True)]
    return now


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda spec: spec["properties"].update(new={"type": "string"}), True),
        (lambda spec: spec["properties"]["old"].update(description="said anew"), True),
        (lambda spec: spec["properties"].update(description={"type": "integer"}), False),
        (lambda spec: spec.update(required=["old"]), False),
        (lambda spec: spec["properties"]["old"].update(maxLength=3), False),
        (lambda spec: spec["properties"].pop("old"), False),
        (lambda spec: spec.update({CHECKS: [{"rule": "false"}]}), False),
        (lambda spec: spec.update({CHECKS: [{"rule": "!has(self.spec.new) || false"}]}), True),
        (lambda spec: spec.update({CHECKS: [{"rule": "!has(self.spec.new) && false"}]}), False),
        (lambda spec: spec.update({CHECKS: [{"rule": "!has(self.spec.old) || false"}]}), False),
        (
            lambda spec: spec.update(
                {CHECKS: [{"rule": "!(has(self.spec.new) && has(self.spec.new.at)) || false"}]}
            ),
            True,
        ),
    ],
)
def test_only_a_property_more_leaves_old_objects_as_good_as_they_were(
    change: Callable[[dict[str, Any]], object], *, same: bool
) -> None:
    old = {"type": "string", "description": "as it was said"}
    properties = {"old": old, "description": {"type": "string"}}
    properties["spec"] = {"properties": {"old": old}}
    was = {"versions": [{"schema": {"properties": properties}}]}
    now = copy.deepcopy(was)
    change(now["versions"][0]["schema"])
    assert (_as_before(was, now) == was) is same


def test_custom_resources_and_annotations_of_old_clusters_are_known(tmp_path: Path) -> None:
    folder = unpack("kube", tmp_path)
    for old in sorted((folder / "crds").glob("*.yaml")):
        new = REPOSITORY / "deploy" / "kubernetes" / "crds" / old.name
        was, now = (yaml.safe_load(one.read_text())["spec"] for one in (old, new))
        assert _as_before(was, now) == was, old.name
    text = "\n".join(
        one.read_text() for one in sorted((REPOSITORY / "src" / "wattherd").rglob("*.py"))
    )
    names = (folder / "annotations.txt").read_text().split()
    assert len(names) > 30
    missing = [
        name for name in names
        if f"{{OURS}}{name}" not in text and f'OURS + "{name}"' not in text
    ]  # fmt: skip
    assert OURS == "wattherd.dev/"
    assert missing == []


def options(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    """Every command with each of its options and arguments, as `before-rooms-options.txt` has."""
    for one in command.params:
        if isinstance(one, click.Option):
            for name in (*one.opts, *one.secondary_opts):
                yield " ".join([*path, name])
        else:
            yield " ".join([*path, f"<{one.name}>"])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield " ".join([*path, name])
            yield from options(below, (*path, name))


def test_every_old_command_line_still_parses() -> None:
    old = (OLD / "before-rooms-options.txt").read_text().splitlines()
    assert len(old) > 1000
    assert set(old) - set(options(cli, ())) == set()


@pytest.mark.long
def test_a_service_goes_on_with_an_old_state(busy: Path) -> None:
    told = {one["id"]: one["state"] for one in json.loads((busy / "jobs.json").read_text())["jobs"]}
    config = busy / "serve.yaml"
    config.write_text(CONFIG)
    serving = Serving(busy / "state", "--config", str(config), "--slots", "4")
    try:
        serving.begin()
        serving.ready()
        # What ran before the machine was started anew is tried again; who waits for it still waits.
        serving.wait_for("j-13", "Running")
        found = {one["id"]: one["state"] for one in serving.ask("jobs?limit=1000")["jobs"]}
        assert found.keys() == told.keys()
        assert found["j-15"] == told["j-15"]
        story = serving.ask("jobs/j-13")["story"]
        ends = [one["cause"] for one in story if one["what"].startswith("Its run ended")]
        anew = [one for one in story if one["what"].endswith("its run begins anew.")]
        # On a machine like that of the time, the run is looked at; on another one, there is none.
        assert (ends, len(anew)) in ((["exit code 143"], 0), ([], 1)), story
        waiting = {one for one, state in told.items() if state == "Paused"} | {"j-17", "j-23"}
        assert {one: found[one] for one in waiting} == {one: told[one] for one in waiting}
        assert serving.state_of("j-1") == "Succeeded"
        assert serving.state_of("j-8") == "Cancelled"
        assert serving.state_of("j-18") == "Failed"
        assert serving.submit("true") == "j-26"
    finally:
        serving.end()
