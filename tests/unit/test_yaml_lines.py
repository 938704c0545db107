"""Errors of files name the line: of the field at fault, or of what it is missing in."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from wattherd.cli.main import main
from wattherd.devices.signals.contract import SignalSite
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.credentials import read_credentials
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.errors import UserError
from wattherd.library.simulation import compare
from wattherd.server.settings.config import read_config
from wattherd.workload.job_file import read_job
from wattherd.workload.rates_file import read_rates
from wattherd.workload.scenario import read_scenario
from wattherd.workload.yaml_lines import line_of
from wattherd.yaml_fields import fields_of

JOB = "name: a\nrun: echo hi\n# a comment\ntime:\n  limit: 3h\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB + "gpu: 2\n", ":6: gpu: unknown field (hint: did you mean 'gpus'?)"),
        (JOB + "  limt: 3h\n", ":6: time.limt: unknown field (hint: did you mean 'limit'?)"),
        (JOB + "gpus: -3\n", ":6: gpus: is -3, where 0 or more is expected (hint: "),
        (JOB + "gpus:\n  min: 1\n  max: 0\n", ":8: gpus.max: is 0, where 1 or more is expected"),
        (JOB.replace("3h", "0s"), ":5: time.limit: 0s leaves no time: leave it out for no limit"),
        (JOB + "gpus: {min: 4, max: 2}\n", ":6: gpus: min 4 is above max 2"),
        (JOB + "power: {cap: 300parsecs}\n", ":6: power.cap: '300parsecs' is no power"),
        (JOB + "after:\n- j-1\n- {j: 2}\n", ":8: after.1: "),
        ("name: a\n", ": needs either `run` or `taskRoles`"),
        ("run: [echo\nname: x", ":2: no YAML: "),
    ],
)
def test_job_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read_job(path)
    assert refused.value.line().startswith(f"{path}{said}")


def test_scenarios_and_configurations(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("seed: 1\npolicys: [fifo]\n")
    with pytest.raises(UserError, match=r"a\.yaml:2: policys: unknown field"):
        read_scenario(path)
    path.write_text("slots: 2\nport: many\n")
    with pytest.raises(UserError, match=r"a\.yaml:2: port: "):
        read_config(path, {})
    with pytest.raises(UserError, match=r"a\.yaml: port: "):  # an option is on no line
        read_config(path, {"port": "most"})


SCENARIO = """\
cluster: 1x4:T4
jobs:
  file: jobs.csv
  format: native
preset: none
restart: 1s
policies: [fifo]
power: [water-filling]
budgets:
- 400W
"""


@pytest.mark.parametrize(
    ("right", "wrong", "line", "field"),
    [
        ("1x4:T4", "1x4:T5", 1, "cluster"),
        ("1x4:T4", "1y4", 1, "cluster"),
        ("native", "nativ", 4, "jobs.format"),
        ("preset: none", "preset: nobody", 5, "preset"),
        ("restart: 1s", "restart: -1s", 6, "restart"),
        ("[fifo]", "[fifi]", 7, "policies"),
        ("water-filling", "water-fall", 8, "power"),
        ("400W", "400 parsecs", 9, "budgets"),
        ("400W", "0:400W,1h", 9, "budgets"),
    ],
)
def test_values_that_are_understood_late_are_told_by_file_line_and_field(
    tmp_path: Path, right: str, wrong: str, line: int, field: str
) -> None:
    """Options of the command line take the same values, and are not what was wrong."""
    (tmp_path / "jobs.csv").write_text("id,submit_s,gpus,duration_s\na,0,1,60\n")
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    compare(path)
    path.write_text(SCENARIO.replace(right, wrong))
    with pytest.raises(UserError) as refused:
        compare(path)
    assert refused.value.line().startswith(f"{path}:{line}: {field}: ")


def test_what_an_option_said_instead_of_a_scenario_is_told_by_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.csv").write_text("id,submit_s,gpus,duration_s\na,0,1,60\n")
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    for words in (["--policy", "fifi"], ["--set", "budgets=[3x]"]):
        with pytest.raises(SystemExit) as ended:
            main(["sim", "compare", str(path), *words])
        assert ended.value.code == 2
        assert f"{path}:" not in capsys.readouterr().err


TWICE = "is there twice, first in line"


def test_of_two_lines_for_one_field_none_is_taken(tmp_path: Path) -> None:
    """YAML parsers take the last, so that the line people look at may count for nothing."""
    path = tmp_path / "a.yaml"
    path.write_text("run: echo a\ntime: {limit: 1h}\nrun: echo b\n")
    with pytest.raises(UserError, match=rf"a\.yaml:3: no YAML: 'run' {TWICE} 1"):
        read_job(path)
    path.write_text("run: echo a\ntime:\n  limit: 1h\n  limit: 2h\n")
    with pytest.raises(UserError, match=rf"a\.yaml:4: no YAML: 'limit' {TWICE} 3"):
        read_job(path)
    path.write_text("budget: 2kW\nslots: 2\nbudget: 20kW\n")
    with pytest.raises(UserError, match=rf"a\.yaml:3: no YAML: 'budget' {TWICE} 1"):
        read_config(path, {})
    path.write_text('{"seed": 1, "seed": 2}')
    with pytest.raises(UserError, match=rf"a\.yaml:1: no YAML: 'seed' {TWICE} 1"):
        read_scenario(path)
    path.write_text("limits:\n- {at: 0s, limit: 1kW, limit: 9kW}\n")
    with pytest.raises(UserError, match=f"'limit' {TWICE} 2"):
        open_signal(
            f"schedule:{path}?start=2030-01-01T00:00:00Z", SignalSite(base_w=1e3, least_w=100.0)
        )
    path.write_text("rates:\n- {at: '00:00', price: 1, price: 2}\n")
    with pytest.raises(UserError, match=f"'price' {TWICE} 2"):
        read_rates(str(path), "2030-01-01T00:00:00+00:00")
    path.write_text("devices: {}\ndevices: {}\n")
    path.chmod(0o600)
    with pytest.raises(DeviceError, match="no YAML"):
        read_credentials(path)


def test_what_is_merged_may_be_changed() -> None:
    text = """
a: &a {x: 1, y: 2}
b: &b {<<: *a, y: 3}
c: {<<: *b, x: 4}
d: {<<: [*a, *b], z: 5}
"""
    found = fields_of(text)
    assert found == yaml.safe_load(text)
    assert found["b"] == {"x": 1, "y": 3}


def test_a_file_that_is_gone_or_no_yaml_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "gone.yaml"
    assert line_of(path, "run") is None
    path.write_text("run: [")
    assert line_of(path, "run") is None
    path.write_text("run: x\n")
    assert line_of(path, "time.limit") is None


@pytest.mark.parametrize("key", ["on", "'on'"])
def test_a_key_that_yaml_takes_for_true_is_a_name(tmp_path: Path, key: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"run: 'true'\nnotify:\n  {key}: [failed]\n  webhook: https://h.example/x\n")
    notify = read_job(path).notify
    assert notify is not None
    assert list(notify.on) == ["failed"]


@pytest.mark.parametrize("key", ["off", "Yes", "no", "true"])
def test_such_a_key_that_is_no_field_is_named_as_written(tmp_path: Path, key: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"run: 'true'\ntime:\n  {key}: 3\n")
    with pytest.raises(UserError, match=f"time.{key}: unknown field"):
        read_job(path)
