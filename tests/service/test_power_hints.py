"""Whatever a power command refuses, it says what to do next; hints name pages that there are."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from wattherd.cli.main import main
from wattherd.cli.power import GUIDES, power

REPOSITORY = Path(__file__).resolve().parents[2]
BAD = {
    "missing.csv": None,
    "empty.csv": "",
    "binary.csv": "\udcff\udcfe\x00",
    "nonsense.csv": "a,b\n1\n2,3,4\n",
    "nonsense.yaml": "a: [1\n",
    "list.yaml": "- 1\n",
    "fields.yaml": "colour: red\n",
    "brackets.json": "[" * 3000,
}
GOOD_RATES = "at,price\n0s,0.3\n1h,0.2\n2h,0.3\n"
CALLS = [
    "power tree {}",
    "power tree {} --draw {}",
    "power tree good-tree.yaml --draw {}",
    "power tree good-tree.yaml --meters {}",
    "power tree good-tree.yaml --at soon",
    "power tree import csv {}",
    "power tree import netbox {}",
    "power tree import nautobot {}",
    "power tree import netbox nosuch://x",
    "power tree import csv x.csv --nodes a",
    "power tree import",
    "power cost {} --rates good-rates.csv",
    "power cost good-meter.csv --rates {}",
    "power cost good-meter.csv --rates good-rates.csv --zone Nowhere/None",
    "power cost --rates good-rates.csv",
    "power cost good-meter.csv --rates good-rates.csv --by job",
    "power cost --state {} --rates good-rates.csv",
    "power defer {} --rates good-rates.csv",
    "power defer good-jobs.csv --rates {}",
    "power defer good-jobs.csv --rates good-rates.csv --rule none",
    "power defer good-jobs.csv --rates good-rates.csv --by carbon",
    "power defer good-jobs.csv --rates good-rates.csv --scaling 2,1",
    "power promise {} --reduce 1kW",
    "power promise good-loads.csv",
    "power promise",
    "power promise good-loads.csv --reduce 1kW --limit 2kW",
    "power promise good-loads.csv --reduce 1kW --event x",
    "power promise good-loads.csv --reduce much",
    "power promise good-loads.csv --reduce 1kW --sure 200%",
    "power promise good-loads.csv --reduce 1kW --in -1h",
    "power promise good-loads.csv --reduce 1kW --tree {}",
    "power promise good-loads.csv --reduce 1kW --tree good-tree.yaml --at ghost",
    "power delivery {} --start 2030-01-01T00:00 --end 2030-01-01T01:00 --limit 1kW",
    "power delivery good-meter.csv --start noon --end later --limit 1kW",
    "power delivery good-meter.csv --start 2030-01-01T01:00 --end 2030-01-01T00:00 --limit 1kW",
    "power delivery good-meter.csv --start 2030-01-01T00:00 --end 2030-01-01T01:00",
    "power hold {}",
    "power hold {} --reload",
    "power hold good-hold.yaml --duration soon",
    "power swings {}",
    "power signal nosuch://x",
    "power set much",
    "power set",
    "power set 40kW --from 18:00",
    "power set --schedule {}",
    "power allocate --no-such-option",
    "power nosuchcommand",
]
"""`{}` stands for each bad file in turn."""
FINE = [("power tree good-tree.yaml --draw {}", "empty.csv")]
"""No reading is no fault."""
EVERY = [
    (call, name)
    for call in CALLS
    for name in (BAD if "{}" in call else [""])
    if (call, name) not in FINE
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATTHERD_SERVER", "http://127.0.0.1:9")
    for name, text in BAD.items():
        if text is not None:
            Path(name).write_text(text, encoding="utf-8", errors="surrogateescape")
    Path("good-rates.csv").write_text(GOOD_RATES)
    Path("good-tree.yaml").write_text("name: site\nchildren: [{name: a, nodes: [n1]}]\n")
    Path("good-meter.csv").write_text("time,watts\n1893456000,10\n1893456900,10\n1893457800,10\n")
    Path("good-jobs.csv").write_text("submit_s,duration_s,gpus,deadline_s\n0,60,1,3600\n")
    Path("good-loads.csv").write_text("name,draw,floor\na,2kW,1kW\n")
    Path("good-hold.yaml").write_text("limit: 1kW\nfeeds: {a: {}}\ndevices: {}\n")


@pytest.mark.parametrize(("call", "name"), EVERY, ids=[f"{call} {name}" for call, name in EVERY])
def test_a_refusal_says_what_to_do_next(
    call: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(call.replace("{}", name).split())
    err = capsys.readouterr().err
    assert left.value.code in (2, 4), err
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert "hint: " in last, last
    for page in re.findall(r"docs/[\w/-]+\.md", err):
        assert (REPOSITORY / page).is_file(), page
    if call.startswith("power hold"):
        assert "scenarios" not in err


def test_guides_are_of_commands_that_there_are() -> None:
    assert isinstance(power, click.Group)
    assert GUIDES.keys() <= power.commands.keys()
    assert all((REPOSITORY / page).is_file() for page in GUIDES.values())
