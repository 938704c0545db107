"""Which jobs are of one kind: what is declared, else the command in a normal form."""

from __future__ import annotations

import pytest

from wattherd.estimate.job_kind import LONGEST, job_kind, kind_name
from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.job_file import validated_job


def of(*commands: str, **fields: object) -> str:
    roles = tuple(
        TaskRole(name=f"r{at}", command=("/bin/sh", "-c", one)) for at, one in enumerate(commands)
    )
    return job_kind(JobSpec(id="j", submit_s=0.0, roles=roles, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        "python train.py --model bert --seed 7",
        "python   train.py --seed=7 --model bert",
        "python 'train.py' --model bert --lr -0.5 --epochs 3",
        "python train.py --learning_rate 1e-3 --model bert seed=3 --output-dir /tmp/x",
        "python train.py --resume --model bert",
    ],
)
def test_what_leaves_the_speed_as_it_is_is_left_out(other: str) -> None:
    assert of(other) == of("python train.py --model bert") == "python train.py --model bert"


@pytest.mark.parametrize(
    "other",
    [
        "python train.py --model bert-large",
        "python train.py --model bert --batch-size 8",
        "python train.py --model bert -b 8",
        "python other.py --model bert",
        "python train.py --model bert 'never closed",
    ],
)
def test_anything_else_makes_another_kind(other: str) -> None:
    assert of(other) != of("python train.py --model bert")


def test_a_list_and_the_same_line_are_one_kind() -> None:
    listed = TaskRole(command=("python", "train.py", "--model", "bert"))
    assert job_kind(JobSpec(id="j", submit_s=0.0, roles=(listed,))) == of(
        "python train.py --model bert"
    )


def test_what_is_declared_comes_before_the_command() -> None:
    declared = of("python a.py", profile="resnet50")
    assert declared == of("python b.py", labels=(("kind", "resnet50"),)) == "resnet50"
    found = validated_job({"run": "python c.py", "kind": "resnet50"}, "x").spec()
    assert job_kind(found) == "resnet50"


def test_kinds_of_two_tenants_are_two_and_of_none_a_third() -> None:
    names = [of("python a.py", tenant=tenant) for tenant in ("", "a", "b")]
    assert len(set(names)) == 3
    assert {kind_name(one) for one in names} == {"python a.py"}
    assert of("x", profile="a\nk") == "a k", "nobody's kind begins with another's tenant"


def test_a_job_of_which_nothing_is_known_is_of_no_kind() -> None:
    assert job_kind(JobSpec(id="j", submit_s=0.0)) == ""
    assert job_kind(JobSpec(id="j", submit_s=0.0, tenant="a")) == ""


def test_long_commands_are_told_apart_by_their_ends() -> None:
    one, two = (of(f"python a.py {'x' * 500} --depth {depth}") for depth in (1, 2))
    assert one != two
    assert len(one) < LONGEST + 30
