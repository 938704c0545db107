"""Errors of files name the line: of the field at fault, or of what it is missing in."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.server.settings.config import read_config
from wattherd.workload.job_file import read_job
from wattherd.workload.scenario import read_scenario
from wattherd.workload.yaml_lines import line_of

JOB = "name: a\nrun: echo hi\n# a comment\ntime:\n  limit: 3h\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB + "gpu: 2\n", ":6: gpu: unknown field (hint: did you mean 'gpus'?)"),
        (JOB + "  limt: 3h\n", ":6: time.limt: unknown field (hint: did you mean 'limit'?)"),
        (JOB + "gpus: -3\n", ":6: gpus: input should be greater than or equal to 0"),
        (JOB + "gpus:\n  min: 1\n  max: 0\n", ":8: gpus.max: input should be greater"),
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
