"""Clusters written in one line."""

from __future__ import annotations

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.workload.cluster_text import parse_cluster


def test_nodes_of_several_gpus() -> None:
    cluster = parse_cluster("16x4:T4", known=GPUS)
    assert (len(cluster.nodes), cluster.gpu_milli) == (16, 64_000)


def test_groups_are_joined_and_families_stand_for_a_card() -> None:
    cluster = parse_cluster("v100=2,p100=1,k80=3", known=GPUS)
    assert [node.gpu_model for node in cluster.nodes] == ["V100M16"] * 2 + ["P100"] + ["K80"] * 3
    assert len({node.name for node in cluster.nodes}) == 6


@pytest.mark.parametrize("text", ["", "4", "4x:T4", "0x4:T4", "4x0:T4", "-1x4:T4", "4x4:T5"])
def test_other_forms_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UserError, match="hint:"):
        parse_cluster(text, known=GPUS)
