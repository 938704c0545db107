"""How a run is kept to its duty: by quota on the processor, by freezing on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from wattherd.local import throttle as module
from wattherd.local.supervisor import _on_gpus
from wattherd.local.throttle import Throttle


@dataclass
class FakeGroup:
    """Keeps quotas if it is `able`, and says when it was frozen and for how long."""

    able: bool = True
    frozen: bool = False
    quotas: list[float] = field(default_factory=list)
    spans: list[tuple[bool, float]] = field(default_factory=list)

    def share_cpu(self, duty: float) -> bool:
        self.quotas.append(duty)
        return self.able

    def freeze(self, *, frozen: bool) -> None:
        self.frozen = frozen


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    made = FakeGroup()
    monkeypatch.setattr(
        module.time, "sleep", lambda seconds: made.spans.append((made.frozen, seconds))
    )
    return made


def throttle_of(group: FakeGroup, *, on_gpus: bool) -> Throttle:
    return Throttle(group, on_gpus=on_gpus)  # type: ignore[arg-type]


def test_a_quota_does_on_the_processor(group: FakeGroup) -> None:
    throttle = throttle_of(group, on_gpus=False)
    throttle.set(0.4)
    throttle.sleep(0.05)
    assert group.quotas == [0.4]
    assert group.spans == [(False, 0.05)]


def test_a_run_on_gpus_is_frozen_for_the_rest_whatever_quotas_the_kernel_keeps(
    group: FakeGroup,
) -> None:
    """On an H100 a quota of 0.43 of 16 processors left a training at all of its 655 W."""
    throttle = throttle_of(group, on_gpus=True)
    throttle.set(0.4)
    throttle.sleep(0.05)
    assert group.quotas == []
    assert group.spans == [(False, pytest.approx(0.4)), (True, pytest.approx(0.6))]
    assert not group.frozen


def test_a_full_duty_freezes_nobody_and_none_freezes_all_the_time(group: FakeGroup) -> None:
    throttle = throttle_of(group, on_gpus=True)
    throttle.set(1.0)
    throttle.sleep(0.05)
    throttle.set(0.0)
    throttle.sleep(0.05)
    assert group.spans == [(False, 0.05), (True, 0.05)]
    throttle.set(1.0)
    assert not group.frozen


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, True),
        ({"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0"}, True),
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}, False),
    ],
)
def test_runs_with_gpus_are_told_from_those_on_slots(env: dict[str, str], expected: bool) -> None:
    assert _on_gpus({"tasks": [{"env": {}}, {"env": env}]}) is expected
