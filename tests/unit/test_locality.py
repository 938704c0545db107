"""Where devices meet, what that costs, and what neighbours take."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from wattherd.estimate.interference import PairSpeeds, on_one_link
from wattherd.estimate.locality import (
    SENSITIVITIES,
    GangReach,
    Locality,
    Sensitivity,
    measured,
    reach_of,
    sensitivity_of,
)
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.model.cluster import ClusterSpec
from wattherd.model.topology import Topology, topology_of
from wattherd.testing.timed_world import t4_nodes


def racks() -> Topology:
    """Four nodes of 2 sockets x 2 switches x 2 GPUs in two racks, and one of 4 equal GPUs."""
    return topology_of(t4_nodes(8, 8, 8, 8, 4), within={8: (2, 2, 2)}, per_rack=2)


@pytest.mark.parametrize(
    ("devices", "reach"),
    [
        ([(0, 3)], GangReach.DEVICE),
        ([(0, 2), (0, 3)], GangReach.SWITCH),
        ([(0, 1), (0, 2)], GangReach.SOCKET),
        ([(0, 3), (0, 4)], GangReach.NODE),
        ([(0, 0), (1, 0)], GangReach.RACK),
        ([(1, 0), (2, 0)], GangReach.BEYOND),
        ([(0, 0), (4, 0)], GangReach.BEYOND),
        ([(4, 0), (4, 3)], GangReach.NODE),
    ],
)
def test_devices_meet_in_the_lowest_cell_around_them(
    devices: list[tuple[int, int]], reach: GangReach
) -> None:
    assert reach_of(racks(), devices) is reach
    assert reach_of(racks(), devices[::-1]) is reach


def test_a_node_without_gpus_is_no_place_to_meet() -> None:
    cluster = ClusterSpec(t4_nodes(0, 2).nodes)
    with pytest.raises(KeyError):
        reach_of(topology_of(cluster), [(0, 0), (1, 0)])


def test_a_reach_without_a_figure_counts_like_the_next_nearer() -> None:
    some = Sensitivity({GangReach.SOCKET: 0.9, GangReach.RACK: 0.4})
    assert [some.factor(reach) for reach in GangReach] == [1.0, 1.0, 0.9, 0.9, 0.4, 0.4]


def test_farther_is_never_faster_among_the_named_models() -> None:
    for one in SENSITIVITIES.values():
        factors = [one.factor(reach) for reach in GangReach]
        assert factors == sorted(factors, reverse=True)
        assert one.source


def test_between_best_and_worst_lie_forty_percent_to_five_times() -> None:
    worst = {name: one.factor(GangReach.BEYOND) for name, one in SENSITIVITIES.items()}
    assert worst["vgg16"] == 0.6
    assert 4.5 < 1 / min(worst.values()) < 5.0
    assert worst["resnet50"] == max(worst.values()) == 0.867


def test_names_are_found_however_they_are_spelt() -> None:
    assert sensitivity_of("ResNet-50 (batch size 64)") is SENSITIVITIES["resnet50"]
    assert sensitivity_of("VGG-16") is SENSITIVITIES["vgg16"]
    assert sensitivity_of("") is sensitivity_of("alexnet")


def test_speed_of_a_gang_by_its_devices() -> None:
    locality = Locality(racks())
    assert locality.factor("vgg16", [(0, 0), (0, 1)]) == 1.0
    assert locality.factor("vgg16", [(0, 0), (0, 7)]) == 0.6
    assert locality.factor("lm", [(0, 0), (0, 7)]) == 1.0
    assert locality.factor("lm", [(0, 0), (3, 7)]) == 0.217
    assert locality.factor("lm", []) == 1.0


def test_measured_sensitivity_is_the_ratio_apart_over_together() -> None:
    table = ThroughputTable({"v100": {("a", 2): 10.0}}, {"v100": {("a", 2): 4.0}})
    assert measured(table, "v100", "a", 2).factor(GangReach.BEYOND) == 0.4
    assert measured(table, "v100", "a", 2).factor(GangReach.NODE) == 1.0
    assert measured(table, "v100", "b", 2).factor(GangReach.BEYOND) == 1.0


GAVEL = {
    "resnet18": "ResNet-18 (batch size 16)",
    "resnet50": "ResNet-50 (batch size 64)",
    "transformer": "Transformer (batch size 64)",
    "lm": "LM (batch size 5)",
}


@pytest.mark.data
def test_gavel_figures_are_those_of_the_published_file(traces: Path) -> None:
    from wattherd.workload.gavel import read_throughputs

    table = read_throughputs(traces / "gavel" / "simulation_throughputs.json.gz")
    for name, kind in GAVEL.items():
        found = measured(table, "v100", kind, 2).factor(GangReach.BEYOND)
        assert SENSITIVITIES[name].factor(GangReach.BEYOND) == round(found, 3)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "batch"),
    [("bert", 4), ("cifar10", 32), ("deepspeech2", 10), ("imagenet", 20), ("ncf", 32),
     ("yolov3", 4)],
)  # fmt: skip
def test_pollux_figures_are_those_of_the_published_profiles(
    traces: Path, name: str, batch: int
) -> None:
    with (traces / "pollux" / "profiles" / name / "placements.csv").open() as rows:
        step_s = {
            row["placement"]: float(row["step_time"])
            for row in csv.DictReader(rows)
            if row["local_bsz"] == str(batch)
        }
    kept = step_s["2"] / step_s["11"]
    assert SENSITIVITIES[name].factor(GangReach.BEYOND) == round(kept, 3)


def test_pairs_are_known_in_either_order_and_others_take_turns() -> None:
    pairs = PairSpeeds({("a", "b"): (0.9, 0.7), ("a", "a"): (0.6, 0.6)})
    assert (pairs.speed("a", ("b",)), pairs.speed("b", ("a",))) == (0.9, 0.7)
    assert pairs.speed("a", ("a",)) == 0.6
    assert pairs.speed("a", ()) == 1.0
    assert pairs.speed("b", ("b",)) == 0.5
    assert pairs.speed("a", ("b", "a")) == 1 / 3
    assert pairs.known("b", "a")
    assert not pairs.known("b", "b")


def test_a_link_is_shared_by_distributed_jobs_only() -> None:
    assert [on_one_link(count, 0.25) for count in (1, 2, 5)] == [1.0, 0.75, 0.75]
