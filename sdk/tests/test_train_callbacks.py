"""The callbacks against minimal fakes of their frameworks (test_train_frameworks: real ones)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from train_runs import RunDir
from wattherd_train import current


@pytest.fixture
def faked(monkeypatch):
    """The glue module of a framework, over stand-ins for the classes that it derives from."""

    def make(glue: str, **modules: dict[str, object]) -> ModuleType:
        for name, content in modules.items():
            module = ModuleType(name.replace("__", "."))
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name.replace("__", "."), module)
        monkeypatch.delitem(sys.modules, f"wattherd_train.{glue}", raising=False)
        module = importlib.import_module(f"wattherd_train.{glue}")
        monkeypatch.setitem(sys.modules, f"wattherd_train.{glue}", module)
        return module

    yield make
    for glue in ("lightning", "huggingface"):
        sys.modules.pop(f"wattherd_train.{glue}", None)


class Strategy:
    """Of a trainer with another rank that is asked to stop after some steps."""

    def __init__(self, other_stops_at: int) -> None:
        self.calls, self.other_stops_at = 0, other_stops_at

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002
        assert all is False
        self.calls += 1
        return decision or self.calls >= self.other_stops_at


def test_lightning_saves_and_ends_when_any_rank_is_asked(faked, run: RunDir) -> None:
    glue = faked(
        "lightning",
        lightning={},
        lightning__pytorch={},
        lightning__pytorch__callbacks={"Callback": type("Callback", (), {})},
    )
    callback = glue.LightningCallback(current(run.environ(rank=0, size=2)))
    assert callback.ckpt_path is None
    trainer = SimpleNamespace(
        strategy=Strategy(4),
        global_step=0,
        estimated_stepping_batches=9,
        save_checkpoint=lambda path: Path(path).write_text("saved"),
    )
    callback.setup(trainer, None, "fit")

    def train() -> None:
        for batch in range(100):
            trainer.global_step = (batch + 1) // 2  # two batches are accumulated
            callback.on_train_batch_end(trainer, None, {"loss": 0.5}, None, batch)

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == 143
    assert trainer.strategy.calls == 4
    assert trainer.global_step == 3
    assert Path(callback.ckpt_path).read_text() == "saved"
    assert [(line["step"], line["loss"], line["total"]) for line in run.lines()] == [
        (0, 0.5, 9),
        (3, 0.5, 9),
    ]


def test_transformers_saves_by_itself_and_then_ends(faked, run: RunDir) -> None:
    glue = faked("huggingface", transformers={"TrainerCallback": type("TrainerCallback", (), {})})
    callback = glue.HFCallback(current(run.environ()))
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    state = SimpleNamespace(global_step=1, max_steps=20)
    callback.on_log(None, state, control, logs={"loss": 0.25})
    callback.on_step_end(None, state, control)
    callback.on_save(None, state, control)  # a save of the trainer's own
    run.stop()
    state.global_step = 2
    callback.on_step_end(None, state, control)
    assert (control.should_save, control.should_training_stop) == (True, True)
    with pytest.raises(SystemExit):
        callback.on_save(None, state, control)
    assert run.lines()[-1]["step"] == 2
    assert run.lines()[0]["loss"] == 0.25


def test_only_a_complete_checkpoint_is_gone_on_from(faked, tmp_path: Path) -> None:
    glue = faked("huggingface", transformers={"TrainerCallback": type("TrainerCallback", (), {})})
    last = glue.HFCallback.last_checkpoint
    assert last(tmp_path / "none") is None
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if step < 11:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    (tmp_path / "checkpoint-best").mkdir()
    assert last(tmp_path) == str(tmp_path / "checkpoint-10")
