"""`power fit` and `power predict` on files: formats, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattherd.cli.main import main
from wattherd.errors import UserError
from wattherd.workload.power_rows import read_power_rows

ZEUS = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
TRAIN = "dataset,network,batch_size,optimizer,learning_rate,run\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def a_summary(folder: Path, gpu: str = "v100") -> Path:
    lines = [
        f"squad,{network},{batch},adamw,{cap},10,{min(cap, 100 + batch) * 0.9}"
        for network in ("bert", "ncf")
        for batch in (8, 16, 32, 64, 96, 128)
        for cap in (100, 150, 200)
    ]
    return write(folder / f"summary_power_{gpu}.csv", ZEUS + "\n".join(lines) + "\n")


def test_zeus_rows_know_cap_tdp_and_learning_rate(tmp_path: Path) -> None:
    train = write(
        tmp_path / "t.csv", TRAIN + "squad,bert,8,adamw,1e-5,1\nsquad,bert,8,adamw,1e-7,1\n"
    )
    rows = read_power_rows([str(a_summary(tmp_path))], "zeus", train)
    assert rows[0].gpu == "V100"
    assert rows[0].job == "squad/bert/8/adamw"
    assert rows[0].tdp_w == 200
    assert rows[0].values["cap_share"] == 0.5
    assert rows[0].values["learning_rate"] == pytest.approx(1e-6)
    assert "learning_rate" not in rows[-1].values


def test_native_rows_take_what_is_there(tmp_path: Path) -> None:
    text = "gpu,model,tdp_w,power_w,cap_w,utilisation,flops\nH100,gpt,700,500,600,0.9,\n"
    (row,) = read_power_rows([str(write(tmp_path / "a.csv", text))])
    assert row.values == {"cap_share": 600 / 700, "utilisation": 0.9, "gpu:H100": 1.0}
    assert row.utilisation == 0.9


def test_a_bad_number_names_file_line_and_field(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "gpu,model,tdp_w,power_w\nH100,gpt,700,0\n")
    with pytest.raises(UserError, match="above zero") as caught:
        read_power_rows([str(path)])
    assert "a.csv:2" in caught.value.line()
    with pytest.raises(UserError, match="unknown format"):
        read_power_rows([str(path)], "zeuss")


@pytest.mark.long
def test_fit_then_predict_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    models = tmp_path / "models"
    with pytest.raises(SystemExit) as done:
        main(["power", "fit", str(a_summary(tmp_path)), "--format", "zeus", "--learner", "linear",
              "--models", str(models), "-o", "json"])  # fmt: skip
    assert done.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "wattherd.power-fit/1"
    assert {one["split"] for one in document["errors"]} == {"job", "model"}
    assert document["model"]["version"] == 1
    asked = ["power", "predict", "--models", str(models), "--gpu", "V100", "--model", "bert",
             "--tdp", "200W", "--cap", "150W", "-o", "json"]  # fmt: skip
    with pytest.raises(SystemExit) as done:
        main([*asked, "--dataset", "squad", "--set", "batch_size=64"])
    assert done.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "wattherd.power-predict/1"
    assert (found["source"], found["power_w"]) == ("measured", pytest.approx(135))
    with pytest.raises(SystemExit) as done:
        main([*asked, "--set", "batch_size=many"])
    assert done.value.code == 2


def test_learn_says_no_with_exit_code_1(tmp_path: Path) -> None:
    asked = ["power", "learn", str(a_summary(tmp_path)), "--format", "zeus", "--seed", "1",
             "--shares", "0.8", "--samples", "3"]  # fmt: skip
    with pytest.raises(SystemExit) as done:
        main([*asked, "--at-least", "1.5"])
    assert done.value.code == 1
    with pytest.raises(SystemExit) as done:
        main([*asked, "--at-least", "0.1", "-o", "json"])
    assert done.value.code == 0
