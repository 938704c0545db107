"""The templates of docs/guides/extend.md, tried as a contributor would: copied in, then used.

The sources are copied to a folder of their own, files of the guide are added, lines of the guide go
into the files that they are for. Commands and a service are then run from there.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import docs_commands as docs

pytestmark = pytest.mark.long
GUIDE = docs.REPOSITORY / "docs" / "guides" / "extend.md"
BLOCK = re.compile(r"^```python\n# (new|into): (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^(\w+) = ([({])(.*?)[)}]$", re.MULTILINE | re.DOTALL)
MOUNT = "uptime.routes(app)"
ROUTE = """
import json
from wattherd.server.app import api
from wattherd.server.api.routes.uptime import UptimeDocument
from wattherd.server.api.schemas.shape import example
app = api()
operation = app.openapi()["paths"]["/api/v1/uptime"]["get"]
assert operation["x-least-role"] == "viewer"
assert operation["summary"] == "How many jobs are not over"
print(json.dumps(example(UptimeDocument)))
"""


def insert(text: str, lines: str, path: str) -> str:
    """A file with the imports and the entry of a table that the guide shows for it."""
    table = TABLE.search(lines)
    assert table is not None, path
    opening = re.search(rf"^{table[1]}\b[^\n]*?= ?\{table[2]}", text, re.MULTILINE)
    assert opening is not None, f"{path} has no table {table[1]}"
    text = text[: opening.end()] + "\n" + table[3] + text[opening.end() :]
    imports = [line for line in lines.splitlines() if line.startswith("from ")]
    head = "from __future__ import annotations\n"
    assert head in text, path
    return text.replace(head, "\n".join([head, *imports, ""]), 1)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with everything that the guide adds."""
    root = tmp_path_factory.mktemp("extended")
    tree = docs.REPOSITORY / "src" / "wattherd"
    for path in tree.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            there = root / "src" / "wattherd" / path.relative_to(tree)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
    text = GUIDE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python\n") >= 12
    for kind, name, lines in blocks:
        path = root / name
        assert path.exists() == (kind == "into"), name
        path.write_text(lines if kind == "new" else insert(path.read_text(), lines, name))
    assert f"`{MOUNT}`" in text
    app = root / "src" / "wattherd" / "server" / "app.py"
    mounted = app.read_text().replace(
        "    events.routes(app)\n", f"    events.routes(app)\n    {MOUNT}\n"
    )
    mounted = mounted.replace(
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nfrom wattherd.server.api.routes import uptime\n",
    )
    assert mounted.count("uptime") == 2
    app.write_text(mounted)
    return root


def run(sources: Path, *words: str, cwd: Path) -> str:
    """What a command printed, run from the extended sources."""
    environment = {**os.environ, "PYTHONPATH": str(sources / "src"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wattherd(sources: Path, *words: str, cwd: Path) -> str:
    return run(sources, "-m", "wattherd", *words, cwd=cwd)


def test_the_new_names_are_listed(sources: Path, tmp_path: Path) -> None:
    listed = wattherd(sources, "policies", cwd=tmp_path)
    assert re.search(r"^\W*(schedul\w*\W+)?shortest-first\b.*a template", listed, re.MULTILINE), (
        listed
    )
    assert re.search(r"\beven\b.*a template", listed), listed


def test_scheduler_power_policy_and_format_run_a_workload(sources: Path, tmp_path: Path) -> None:
    """Two GPUs, three jobs that come at once: the longest waits; 240 W are kept, too."""
    (tmp_path / "jobs.csv").write_text("submit_min,gpus,run_min\n0,1,30\n0,1,10\n0,1,20\n")
    words = "sim run --jobs jobs.csv --format minutes --preset none"
    words += " --cluster 1x2:T4 --policy shortest-first"
    wattherd(sources, *words.split(), "--out", "free", cwd=tmp_path)
    with (tmp_path / "free" / "jobs-shortest-first.csv").open() as stream:
        rows = {row["job"]: row for row in csv.DictReader(stream)}
    begun = sorted(rows, key=lambda one: float(rows[one]["start_s"]))
    lasts_s = [float(rows[one]["finish_s"]) - float(rows[one]["start_s"]) for one in begun]
    assert lasts_s == [600.0, 1200.0, 1800.0]
    assert float(rows[begun[-1]]["start_s"]) == 600.0
    wattherd(
        sources, *words.split(), "--power", "even", "--budget", "240W", "--out", "few", cwd=tmp_path
    )
    document = json.loads((tmp_path / "few" / "sim.json").read_text())
    assert document["policies"][0]["finished"] == 3
    assert document["policies"][0]["over_budget_s"] == 0.0


def test_a_meter_and_a_knob_answer_and_complain(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "watts").write_text("123.5\n")
    (tmp_path / "limit").write_text("250\n")
    assert "123.5" in wattherd(
        sources, "meter", "read", f"load-file://{tmp_path}/watts", cwd=tmp_path
    )
    assert "250" in wattherd(sources, "knob", "read", f"file-knob://{tmp_path}/limit", cwd=tmp_path)
    (tmp_path / "watts").write_text("many\n")
    code = (
        "from wattherd.devices.meters.registry import open_meter\n"
        "from wattherd.devices.knobs.registry import open_knob\n"
        "from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind\n"
        f"knob = open_knob('file-knob://{tmp_path}/limit')\n"
        "assert knob.set(200.0).in_force and knob.read().value == 200.0\n"
        "assert knob.restore().in_force and knob.read().value == 250.0\n"
        "try:\n"
        f"    open_meter('load-file://{tmp_path}/watts').read()\n"
        "except DeviceError as error:\n"
        "    assert error.trouble is DeviceErrorKind.GARBAGE\n"
        "else:\n"
        "    raise AssertionError('a word was read as watts')\n"
    )
    run(sources, "-c", code, cwd=tmp_path)


def test_a_route_has_its_rule_its_shape_and_its_answer(sources: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    example = json.loads(run(sources, "-c", ROUTE, cwd=tmp_path).splitlines()[-1])
    assert example == {"schema": "wattherd.uptime/1", "jobs": 3}


def test_a_table_that_is_gone_is_found() -> None:
    with pytest.raises(AssertionError, match="has no table GENERAL"):
        insert("from __future__ import annotations\n", "GENERAL = {\n    1,\n}\n", "some.py")
