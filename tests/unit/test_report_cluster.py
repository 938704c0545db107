"""The final cluster: reading it, and the heat map drawn from it."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from report_runs import a_cluster, a_node, write_final

from wattherd.errors import UserError
from wattherd.report.cluster import read_final
from wattherd.report.heatmap import draw_map, draw_panel, heat_step, panels, pitch_for
from wattherd.report.svg import Frame

HEAD = "node,gpu_model,cpu_milli,cpu_free_milli,memory_free_mib,gpu_free_milli\n"


def test_nodes_are_grouped_by_model_and_sorted_by_use(tmp_path: Path) -> None:
    nodes = [
        a_node("t", [1000, 0], model="T4"),
        a_node("half", [0, 1000, 500, 500]),
        a_node("full", [0, 0, 0, 0], cpu_free=24_000),
        a_node("small", [0, 0]),
    ]
    g2, t4 = read_final(write_final(tmp_path, "fgd-1", nodes))
    assert [node.name for node in g2.nodes] == ["full", "half", "small"]
    assert g2.nodes[1].gpus == (1.0, 0.5, 0.5, 0.0)
    assert g2.nodes[0].cpu == 0.75
    assert (g2.model, g2.gpus, g2.used) == ("G2", 10, 0.8)
    assert (t4.model, t4.used) == ("T4", 0.5)


def test_nodes_without_gpus_are_left_out(tmp_path: Path) -> None:
    file = write_final(tmp_path, "fgd-1", [["cpu-only", "", "96000", "0", "0", ""]])
    assert read_final(file) == []


WRONG = {
    "more free than there is": (HEAD + "a,G2,1000,0,0,1001\n", 2, "gpu_free_milli"),
    "negative": (HEAD + "a,G2,1000,0,0,-5\n", 2, "gpu_free_milli"),
    "no number": (HEAD + "a,G2,1000,x,0,5\n", 2, "cpu_free_milli"),
    "a short row": (HEAD + "a,G2,1000,0,0,5\nb,G2\n", 3, "gpu_free_milli"),
    "another file": ("x,y\n1,2\n", 1, "node"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    text, line, field = WRONG[name]
    file = tmp_path / "final-fgd-1.csv.gz"
    file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(UserError) as caught:
        read_final(file)
    assert (caught.value.where, caught.value.field) == (f"{file}:{line}", field)


@pytest.mark.parametrize("cut", [5, -20], ids=["header", "end"])
def test_a_file_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    file = write_final(tmp_path, "fgd-1", a_cluster(200))
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(UserError, match="not a readable gzip file"):
        read_final(file)


def test_a_file_that_is_not_gzip_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "final-fgd-1.csv.gz"
    file.write_text("node\n", encoding="utf-8")
    with pytest.raises(UserError, match="not a readable gzip file"):
        read_final(file)


@pytest.mark.parametrize(
    ("share", "step"), [(0.0, 0), (0.001, 1), (0.5, 5), (0.999, 9), (1.0, 10), (1e-12, 1)]
)
def test_only_free_is_free_and_only_full_is_full(share: float, step: int) -> None:
    assert heat_step(share) == step


def area(picture: str, step: int) -> float:
    """Area of all rectangles of one colour."""
    paths = re.findall(rf'd="([^"]+)" class="cells h{step}"', picture)
    sizes = re.findall(r"h([\d.]+)v([\d.]+)h-", "".join(paths))
    return sum(float(width) * float(height) for width, height in sizes)


def test_merged_cells_cover_as_much_as_there_are_gpus(tmp_path: Path) -> None:
    nodes = a_cluster(300, busy=0.5)
    (g2, *_) = panels(read_final(write_final(tmp_path, "fgd-1", nodes)))
    picture = draw_panel(g2, 10.0, "k").render()
    free = sum(row[5].split("-").count("1000") for row in nodes if row[1] == "G2")
    full = sum(row[5].split("-").count("0") for row in nodes if row[1] == "G2")
    assert area(picture, 0) == pytest.approx(100 * free)
    assert area(picture, 10) == pytest.approx(100 * full)
    assert sum(area(picture, step) for step in range(11)) == pytest.approx(100 * g2.gpus)


def test_every_node_can_be_read_off(tmp_path: Path) -> None:
    nodes = [a_node("one", [0, 250], cpu_free=24_000), a_node("two|x", [1000, 1000])]
    (panel,) = panels(read_final(write_final(tmp_path, "fgd-1", nodes)))
    root = ET.fromstring(draw_panel(panel, 10.0, "k").render())
    assert root.get("data-nodes") == (
        "one: GPUs 100 75 % used, CPU 75 %|two x: GPUs 0 0 % used, CPU 100 %"
    )


def test_a_cluster_of_the_published_size_fits_a_screen(tmp_path: Path) -> None:
    found = panels(read_final(write_final(tmp_path, "fgd-1", a_cluster(1213))))
    assert sum(len(panel.columns) for panel in found) == 1213
    root = ET.fromstring(draw_map(found, "Map", Frame(width=1, height=1), "k").render())
    assert float(root.get("width", "0")) <= 1200
    assert float(root.get("height", "0")) <= 800


def test_a_large_cluster_is_averaged_over_neighbours(tmp_path: Path) -> None:
    found = panels(read_final(write_final(tmp_path, "fgd-1", a_cluster(20_000))))
    columns = [column for panel in found for column in panel.columns]
    assert 1000 < len(columns) < 1700
    assert sum(column.count for column in columns) == 20_000
    for panel in found:
        used = sum(sum(column.gpus) * column.count for column in panel.columns)
        assert used / panel.gpus == pytest.approx(panel.used)
    assert pitch_for(found) >= 5
    assert len(draw_map(found, "Map", Frame(width=1, height=1), "k").render()) < 200_000
