"""Files that documents show are read by the code that uses them; tables of words are whole."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import docs_commands as docs
from wattherd.devices.signals.contract import SignalSite
from wattherd.devices.signals.schedule import ScheduleFile
from wattherd.devices.wire import uri
from wattherd.devices.wire.credentials import read_credentials
from wattherd.experiments.grid.promise import read_loads
from wattherd.hold.site_file import read_site
from wattherd.hold.site_storage import StorageSpec, storage_of
from wattherd.kube.api import names
from wattherd.kube.facts.crd import definitions
from wattherd.kube.facts.refusal import RefusalToken
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.server.kube.switchboard import read_switches
from wattherd.server.settings.config import read_config
from wattherd.workload.dcim.table import read_table
from wattherd.workload.imports.site import ImportLog
from wattherd.workload.imports.slurm import read_sacct
from wattherd.workload.job_file import read_job
from wattherd.workload.native import read_jobs
from wattherd.workload.rates_file import read_rates
from wattherd.workload.scenario import validated
from wattherd.workload.tree_file import read_tree

_BLOCK = re.compile(r"^```(yaml|yml|json|jsonl|toml|csv)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"^cat > (\S+) <<'?(\w+)'?\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
_APPLIED = re.compile(r"^kubectl apply -f - <<'?(\w+)'?\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
CHART = docs.REPOSITORY / "deploy" / "kubernetes" / "chart"
DEFINITIONS = {one["spec"]["names"]["kind"]: one for one in definitions()}


@dataclass(frozen=True)
class Shown:
    """A file as a page shows it; `kind` is the block's language, or the end of the file's name."""

    page: str
    line: int
    name: str
    kind: str
    text: str


def shown() -> Iterator[Shown]:
    for path in docs.PAGES:
        text, page = path.read_text(encoding="utf-8"), docs.name_of(path)
        for found in _BLOCK.finditer(text):
            yield Shown(page, _line(text, found), "", found[1], found[2])
        for found in _HERE.finditer(text):
            yield Shown(page, _line(text, found), found[1], Path(found[1]).suffix[1:], found[3])
        for found in _APPLIED.finditer(text):
            yield Shown(page, _line(text, found), "objects.yaml", "yaml", found[2])


def _line(text: str, found: re.Match[str]) -> int:
    return text[: found.start()].count("\n") + 1


ALL = list(shown())


def job(path: Path) -> None:
    """A part of one is a job with something to run."""
    if "run" not in yaml.safe_load(path.read_text()):
        path.write_text(f"run: 'true'\n{path.read_text()}")
    read_job(path)


def scenario(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    document.setdefault("cluster", "1x8:A100")
    document.setdefault("jobs", {"file": "jobs.csv"})
    validated(document, str(path))


def schedule(path: Path) -> None:
    ScheduleFile(uri.parse(f"schedule:{path}"), SignalSite(base_w=40_000.0, least_w=1_000.0)).told()


def switches(path: Path) -> None:
    """With the file of secrets that their addresses name."""
    if "ipmi:" in path.read_text() and shutil.which("ipmitool") is None:
        pytest.skip("ipmitool is not installed; the other page's switches need none")
    (path.parent / "bmc.yaml").write_text("username: power\npassword: change-me\n")
    path.write_text(path.read_text().replace("/switches/", f"{path.parent}/"))
    read_switches(path)


def objects(path: Path) -> None:
    """Ours are read as the operator reads them, others have a kind and a name."""
    for one in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind", "metadata"} <= one.keys(), one
        if str(one["apiVersion"]).startswith("wattherd.dev/"):
            definition = DEFINITIONS[one["kind"]]["spec"]
            schema = _closed(definition["versions"][0]["schema"]["openAPIV3Schema"])
            jsonschema.Draft4Validator(schema).validate(one)  # as OpenAPI 3.0 has it


def _closed(schema: Any) -> Any:
    """The same schema without other fields, which the API server would drop."""
    if not isinstance(schema, dict):
        return schema
    known = {name: _closed(part) for name, part in schema.items() if name != "properties"}
    if "properties" in schema:
        parts = {name: _closed(part) for name, part in schema["properties"].items()}
        open_ones = {"metadata": {}, "apiVersion": {}, "kind": {}} if "spec" in parts else {}
        known |= {"properties": parts | open_ones, "additionalProperties": False}
    return known


def values(path: Path) -> None:
    """On top of the chart's own, as helm has it."""
    document = yaml.safe_load((CHART / "values.yaml").read_text())
    known = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(_on_top(document, yaml.safe_load(path.read_text())), known)


def _on_top(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {name: _on_top(below.get(name), part) for name, part in above.items()}


def plain(path: Path) -> None:
    """Parts of somebody else's files: whole documents of their kind."""
    if path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".toml":
        tomllib.loads(path.read_text())
    else:
        assert list(yaml.safe_load_all(path.read_text()))


def serve_config(path: Path) -> None:
    read_config(path, {})


def storages(path: Path) -> None:
    """As part of a site with the feed that they name."""
    names = {"row-a": 0}
    for name, one in yaml.safe_load(path.read_text())["storages"].items():
        storage_of(name, StorageSpec.model_validate(one), names, f"storages.{name}")


def credentials(path: Path) -> None:
    read_credentials(path)


def rates(path: Path) -> None:
    read_rates(str(path))


def accounting(path: Path) -> None:
    log = ImportLog(str(path))
    assert read_sacct(path.read_text(), log, 3600.0)
    assert log.unreadable == []


def pod_parts(path: Path) -> None:
    """Parts of a pod or a Job; whatever of ours they name is a name of ours."""
    text = path.read_text()
    assert yaml.safe_load(text)
    ours = {value for value in vars(names).values() if isinstance(value, str)}
    assert set(re.findall(r"wattherd\.dev/[a-z-]+", text)) <= ours


LOADERS: tuple[tuple[str, str, Callable[[Path], object]], ...] = (
    (r".*", r"^apiVersion: (?!kubescheduler)", objects),
    (r".*#bmc\.yaml|guides/meters\.md", "", credentials),
    (r".*#switches\.yaml", "", switches),
    (r".*#\S*values\.yaml", "", values),
    (r".*#(site|stored)\.yaml", "", read_site),
    (r"guides/(hold|swings)\.md", r"^limit:", read_site),
    (r"guides/hold\.md", r"^site:", serve_config),
    (r"guides/hold\.md", r"^storages:", storages),
    (r"guides/notifications\.md", r"^run:", job),
    (r"guides/notifications\.md", r'^\{"schema"', plain),
    (r".*#serve\.yaml|guides/(security|single-sign-on|notifications)\.md", "", serve_config),
    (r"guides/kubernetes-staging\.md#job\.yaml", "", objects),
    (r".*#job\.yaml|guides/(local|training-sdk|everyday)\.md", "", job),
    (r"guides/demand-response\.md", r"^limits:", schedule),
    (r"guides/power-tree\.md", r"^caps:", scenario),
    (
        r"guides/(power-tree|power-tree-import|x)\.md|reference/curves\.md",
        r"^name:|^# tree",
        read_tree,
    ),
    (r"guides/power-tree-import\.md#site\.csv", "", read_table),
    (r"guides/cost-and-carbon\.md#(tariff\.yaml|day\.csv)", "", rates),
    (r"guides/demand-response\.md#loads\.csv", "", read_loads),
    (r"guides/import\.md#sacct\.txt", "", accounting),
    (r"guides/scenarios\.md|tutorials/queues\.md", "", scenario),
    (r"reference/job-files\.md", "", read_jobs),
    (r"reference/(api|command-line)\.md", "", plain),
    (r"guides/kubernetes\.md", r"^(extenders|conditions):", plain),
    (r"guides/kubernetes-schedulers\.md", r"^(spec|metadata):", pod_parts),
    (r"guides/write-a-policy\.md", r"^# pyproject", plain),
)
"""Page (and name of the file), a pattern of its text, and what reads it in earnest."""


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.page}:{one.line} {one.name}")
def test_a_file_that_is_shown_is_read_by_what_uses_it(one: Shown, tmp_path: Path) -> None:
    where = one.page.removeprefix("docs/") + (f"#{one.name}" if one.name else "")
    loaders = [
        load
        for page, text, load in LOADERS
        if re.fullmatch(page, where) and re.search(text, one.text, re.MULTILINE)
    ]
    assert loaders, f"{where}:{one.line}: nothing reads it; name its loader in this test"
    path = tmp_path / (Path(one.name).name or f"shown.{one.kind}")
    path.write_text(one.text)
    loaders[0](path)


def test_a_field_that_boards_refuse_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "bmc.yaml"
    path.write_text("user: power\npassword: change-me\n")
    with pytest.raises(Exception, match="cannot use user"):
        credentials(path)


def words(page: str, heading: str) -> set[str]:
    """What stands in the first column of the table below a heading."""
    text = (docs.REPOSITORY / page).read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


OF_PODS = {str(ReasonCode[name]) for path in (docs.REPOSITORY / "src/wattherd/kube").rglob(
    "*.py") for name in re.findall(r"ReasonCode\.([A-Z_]+)", path.read_text())}  # fmt: skip


@pytest.mark.parametrize(
    ("page", "heading", "known"),
    [
        ("docs/reference/reasons.md", "Why a job waits, or does not run", {*map(str, ReasonCode)}),
        ("docs/reference/reasons.md", "Why a job was stopped", {*map(str, StopReason)}),
        ("docs/guides/kubernetes-explain.md", "The reasons", {*map(str, RefusalToken)} | OF_PODS),
    ],
)
def test_a_table_of_all_reasons_has_all_of_them(page: str, heading: str, known: set[str]) -> None:
    assert words(page, heading) == known
