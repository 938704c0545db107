"""What `wattherd power` and `meter` cannot use: one line that names file, line and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wattherd.cli.main import main

FILES = {
    "curves.csv": "job,cap_w,power_w,rate\na,100,90,1\na,200,180,2\n",
    "underscore.csv": "job,cap_w,power_w,rate\na,100,90,1\na,200,1_80,2\n",
    "devices.csv": "job,cap_w,power_w,rate,devices\na,100,90,1,0\n",
    "floor.csv": "job,cap_w,power_w,rate,floor_w\na,100,90,1,500\n",
    "domain.csv": "job,cap_w,power_w,rate,domain\na,100,90,1,rack-9\n",
    "joules.csv": "job,work,energy_budget_j\na,1,1000\na,1,900\n",
    "twice.yaml": "name: site\nbudget: 4kW\nchildren:\n- {name: row}\n- {name: row}\n",
    "tree.yaml": "name: site\nbudget: 4kW\nchildren:\n- {name: rack-1}\n",
    "open.yaml": "name: [site\n",
    "deep.yaml": "[" * 100_000,
    "surface.csv": (
        "job,cap_w,power_w,batch_size,epoch_s,epochs_to_target\na,100,90,32,4,9\na,100,91,32,4,9\n"
    ),
    "same.csv": "gpu,model,tdp_w,power_w,utilisation\nV,a,250,100,95\nV,b,250,100,95\n",
    "batch.csv": "gpu,model,tdp_w,power_w,batch_size\nV,a,250,100,-8\nV,b,250,100,16\n",
    "ends.csv": "at,limit,until\n2030-01-01T08:00Z,5kW,2030-01-01T07:00Z\n",
    "columns.csv": "at,limitt\n2030-01-01T08:00Z,5kW\n",
    "limits.yaml": "limits: [\n",
}
SIGNAL = "--base 40kW --wait 1s"
ALLOCATE = "power allocate --curves curves.csv --budget 1kW"
PREDICT = "power predict --gpu V --model a --tdp 250W --models"
TREES = "power allocate --curves curves.csv --tree"
BENCH = "power bench --quick --scenario nominal --controller wattherd"
REFUSED = {
    "power allocate --curves underscore.csv --budget 1kW": r"underscore.csv:3: power_w: '1_80'",
    "power allocate --curves devices.csv --budget 1kW": r"devices.csv:2: devices: is zero \(hint",
    "power allocate --curves floor.csv --budget 1kW": r"job a: floor_w: 500 W .*\(hint",
    "power allocate --curves curves.csv --budget 50W": r"error: budget: 50 W are less .*\(hint",
    f"{ALLOCATE} --joules joules.csv": r"joules.csv:3: job: 'a' appears twice \(hint",
    "power allocate --curves domain.csv --tree tree.yaml": r"job a: domain: .*'rack-9' .*'rack-1'",
    f"{TREES} twice.yaml": r"twice.yaml: name: two power domains are called 'row' \(hint",
    f"{TREES} open.yaml": r"open.yaml:2: no YAML: .*\(hint: see docs/guides/power-tree.md",
    f"{TREES} deep.yaml": r"deep.yaml: nested too deeply",
    f"{TREES} none.yaml": r"none.yaml: cannot be read: No such file .*\(hint",
    "power surface surface.csv": r"surface.csv:3: cap_w: 100 W of 'a' appears twice",
    f"{PREDICT} none": r"none: cannot be read: No such file .*\(hint",
    f"{PREDICT} same.csv": r"same.csv: is no model \(hint",
    "power train-rl --out none/policy.json": r"none/policy.json: --out: no folder none \(hint",
    f"{BENCH} --fault meter-lost+meter-lost": r"--fault: 'meter-lost\+meter-lost' joins",
    f"{BENCH} --fault none+meter-lost": r"--fault: 'none\+meter-lost' joins",
    "power bench --scenario ,": r"--scenario: names nothing \(hint: known",
    f"{BENCH} --fault none --out curves.csv": r"curves.csv: --out: curves.csv is a file",
    f"{BENCH} --fault none --controller-command cat": r"the answer has no cap_w \(hint",
    f"{BENCH} --fault none --controller-command false": r"the controller has ended",
    f"power signal schedule:ends.csv {SIGNAL}": r"ends.csv: row 1: until: ends before it begins",
    f"power signal schedule:columns.csv {SIGNAL}": r"columns.csv:1: .* found at, limitt \(hint",
    f"power signal schedule:limits.yaml {SIGNAL}": r"limits.yaml:2: no YAML: .*\(hint",
    "meter read nvml://0?scale=0": r"nvml://0\?scale=0: scale: must not be zero \(hint",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_in_a_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert re.search(REFUSED[words], lines[0]), lines[0]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "said"),
    [("same.csv", "no feature differs"), ("batch.csv", "batch.csv:2: batch_size: '-8'")],
)
def test_measurements_that_teach_nothing_are_refused(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="the extra `learn` is not installed")
    with pytest.raises(SystemExit):
        main(["power", "fit", name])
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_two_measurements_are_few_but_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each held-out fold leaves a row, of which no feature can vary."""
    pytest.importorskip("sklearn", reason="the extra `learn` is not installed")
    path = tmp_path / "two.csv"
    path.write_text("gpu,model,tdp_w,power_w,utilisation\nV,a,250,100,95\nV,b,250,120,55\n")
    with pytest.raises(SystemExit) as end:
        main(["power", "fit", str(path)])
    assert not end.value.code
    assert "too few to tell an interval from, none can be promised" in capsys.readouterr().out


def test_a_process_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["meter", "counters", "--pid", "999999999"])
    assert end.value.code == 1
    assert "pid 999999999: absent: no such process" in capsys.readouterr().err
