"""The page and the plots as files: complete, self-contained, well-formed and escaped."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from report_runs import (
    POLICIES,
    a_cluster,
    a_pack,
    a_run,
    all_runs,
    write_final,
    write_pack,
)

from wattherd.errors import UserError
from wattherd.report import load_runs, write_report
from wattherd.report.page import all_charts, render_page
from wattherd.report.report_files import FORMATS

SVG = "http://www.w3.org/2000/svg"
HOSTILE = "<script>alert('x')</script>&\"%"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Tags(HTMLParser):
    """Checks that tags nest, and keeps attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"style", "script"}:
            self.text.append(data)


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


def pictures(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def check(page: str) -> Tags:
    """What holds for every page."""
    tags = parsed(page)
    ids = Counter(attributes["id"] for _, attributes in tags.found if "id" in attributes)
    assert [name for name, count in ids.items() if count > 1] == []
    assert set(re.findall(r"https?://[^\s\"'<)]*", page)) == {SVG}
    assert not re.search(r"@import|url\(|javascript:", page)
    for tag, attributes in tags.found:
        assert tag not in {"link", "img", "iframe", "object", "embed"}
        assert not {"src", "srcset", "xlink:href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    for picture in pictures(page):
        first, second = picture[0], picture[1]
        assert (first.tag, second.tag) == (f"{{{SVG}}}title", f"{{{SVG}}}desc")
        assert first.text
        assert picture.get("aria-labelledby") == f"{first.get('id')} {second.get('id')}"
        assert picture.get("role") == "img"
        for node in picture.iter():
            assert not any("nan" in value for value in node.attrib.values() if value[:5] != "data-")
    return tags


def page_of(folder: Path, runs: list[dict[str, Any]], **changes: Any) -> str:
    return render_page(load_runs(write_pack(folder, a_pack(runs, **changes))))


def titles(page: str) -> list[str]:
    return re.findall(r"<h3>(.*?)</h3>", page)


def test_a_full_report_holds_every_plot(tmp_path: Path) -> None:
    write_final(tmp_path, "fgd-42", a_cluster(60))
    write_final(tmp_path, "pwr_fgd_0.1-43", a_cluster(60, busy=0.5))
    page = page_of(tmp_path, all_runs(), command="wattherd sim pack --seed 42..51")
    tags = check(page)
    assert titles(page) == [
        "GPUs allocated",
        "GPUs allocated as the cluster fills up",
        "GPUs left unallocated",
        "Fragmentation ratio",
        "Fragmented GPUs",
        "Power of the whole cluster",
        "Power saved against fgd",
        "Power saved against GPUs allocated",
    ]
    text = " ".join(tags.text)
    for words in (*POLICIES, "42..51", "wattherd sim pack --seed 42..51", "nodes.csv", "1.3"):
        assert words in text
    assert "the lowest to the highest of 10 seeds" in text
    assert page.count('<details class="map card"') == 2
    assert "seed 43" in text


def test_the_page_is_written_where_asked(tmp_path: Path) -> None:
    runs = write_pack(tmp_path / "run", a_pack(all_runs([1])))
    assert write_report(runs) == [runs / "report.html"]
    elsewhere = tmp_path / "new" / "mine.html"
    assert write_report(runs, out=elsewhere) == [elsewhere]
    assert write_report(runs, out=tmp_path) == [tmp_path / "report.html"]
    assert elsewhere.read_bytes() == (runs / "report.html").read_bytes()


@pytest.mark.long
def test_the_same_input_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    runs = write_pack(tmp_path, a_pack(all_runs([1, 2])))
    here = write_report(runs)[0].read_bytes()
    code = "import sys, pathlib; from wattherd.report import write_report; "
    code += "write_report(pathlib.Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", code, str(runs)],
        check=True,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (runs / "report.html").read_bytes() == here


def test_markup_in_names_is_escaped_everywhere(tmp_path: Path) -> None:
    runs = [a_run(HOSTILE, seed) for seed in (1, 2)] + [a_run("fgd", seed) for seed in (1, 2)]
    for run in runs:
        run["trace"] = HOSTILE
    requests = [{"cpu_milli": 1, HOSTILE: HOSTILE, "reason": HOSTILE}]
    page = page_of(
        tmp_path,
        runs,
        trace=HOSTILE,
        nodes_file=HOSTILE,
        command=HOSTILE,
        impossible={"pods": 1, "requests": requests},
    )
    check(page)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert" in page


def test_every_file_survives_markup_in_names(tmp_path: Path) -> None:
    runs = write_pack(tmp_path, a_pack([a_run(HOSTILE), a_run("fgd")]))
    for file in write_report(runs, formats=("svg",)):
        ET.fromstring(file.read_text("utf-8"))


def test_a_single_run_is_shown_without_comparison(tmp_path: Path) -> None:
    page = page_of(tmp_path, [a_run("pwr", 7)])
    check(page)
    assert "nothing to compare it with" in page
    assert "One seed was run" in page
    assert "polygon" not in page
    assert not any("saved" in title for title in titles(page))
    assert 'class="best"' not in page


def test_without_fgd_savings_name_the_first_policy(tmp_path: Path) -> None:
    page = page_of(tmp_path, [a_run("best-fit"), a_run("pwr")])
    check(page)
    assert "Power saved against best-fit" in titles(page)


def test_empty_bins_leave_a_well_formed_page(tmp_path: Path) -> None:
    runs = [a_run(policy, gaps=(0, 1, 40, 41, 42, 130)) for policy in POLICIES]
    check(page_of(tmp_path, runs))


def test_a_curve_without_any_value_leaves_its_plot_out(tmp_path: Path) -> None:
    runs = [a_run(policy) for policy in ("fgd", "pwr")]
    for run in runs:
        run["curve"]["power_w"] = [None] * 131
        run["power_w"] = None
    page = page_of(tmp_path, runs)
    check(page)
    assert not any("ower" in title for title in titles(page))


def test_a_curve_with_one_bin_is_drawn(tmp_path: Path) -> None:
    check(page_of(tmp_path, [a_run(p, bins=range(1)) for p in ("fgd", "pwr")], load=0.01))


def test_a_light_load_is_not_enlarged(tmp_path: Path) -> None:
    page = page_of(tmp_path, [a_run(p, bins=range(51)) for p in POLICIES], load=0.5)
    check(page)
    assert "GPUs allocated as the cluster fills up" not in titles(page)


@pytest.mark.long
def test_twenty_policies_are_drawn_without_names_at_the_lines(tmp_path: Path) -> None:
    runs = [a_run(f"policy-{at}", full=80 + at / 2, saved=at) for at in range(20)]
    check(page_of(tmp_path, runs))


def test_several_traces_add_bars_by_family_and_a_section_each(tmp_path: Path) -> None:
    for name in ("default", "cpu050", "cpu200", "gpuspec10", "mine"):
        trace = f"openb_pod_list_{name}"
        runs = [a_run(policy, trace=trace) for policy in ("fgd", "pwr")]
        write_pack(tmp_path / name, a_pack(runs, trace=trace))
    page = render_page(load_runs(tmp_path))
    check(page)
    found = titles(page)
    assert found.count("CPU-only requests") == 2  # once for GPUs, once for power
    assert found.count("Requests for certain GPU models") == 2
    assert found.count("Other traces") == 2
    assert page.count('<details class="trace other">') == 4


def test_impossible_pods_are_listed_with_their_reason(tmp_path: Path) -> None:
    requests = [
        {"cpu_milli": 200_000, "models": ["V100M32", "A10"], "pods": 2, "reason": "too many CPUs"},
        {"cpu_milli": 1, "gpu_count": 9, "pods": 1, "reason": "9 GPUs"},
    ]
    page = page_of(tmp_path, all_runs([1]), impossible={"pods": 3, "requests": requests})
    text = " ".join(check(page).text)
    for words in ("3", "200,000", "V100M32, A10", "too many CPUs", "9 GPUs", "gpu count"):
        assert words in text
    assert "None: every pod" not in text


def test_only_the_first_of_many_impossible_requests_are_listed(tmp_path: Path) -> None:
    requests = [{"cpu_milli": at, "reason": f"reason {at}"} for at in range(60)]
    page = page_of(tmp_path, all_runs([1]), impossible={"pods": 60, "requests": requests})
    assert "reason 39" in page
    assert "reason 40" not in page
    assert "and 20 more kinds of request" in page


def test_lone_surrogates_do_not_break_the_page(tmp_path: Path) -> None:
    runs = write_pack(tmp_path, a_pack([a_run()], nodes_file="\ud800.csv"))
    check(write_report(runs)[0].read_text("utf-8"))


def test_a_broken_final_cluster_is_refused(tmp_path: Path) -> None:
    write_pack(tmp_path, a_pack([a_run()]))
    (tmp_path / "final-fgd-42.csv.gz").write_bytes(b"no")
    with pytest.raises(UserError, match="not a readable gzip file"):
        write_report(tmp_path)


@pytest.mark.parametrize("formats", [("gif",), ()])
def test_an_unknown_format_is_refused(tmp_path: Path, formats: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        write_report(tmp_path, formats=formats)
    assert "html" in caught.value.hint


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    runs = write_pack(tmp_path / "run", a_pack([a_run()]))
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(runs, out=tmp_path / "file" / "report.html")


def test_plots_are_written_as_svg_beside_the_page(tmp_path: Path) -> None:
    runs = write_pack(tmp_path, a_pack(all_runs([1, 2])))
    write_final(tmp_path, "fgd-1", a_cluster(30))
    page, *files = write_report(runs, formats=("html", "svg"))
    assert page == tmp_path / "report.html"
    assert {file.parent for file in files} == {tmp_path / "report-plots"}
    assert {file.stem for file in files} == set(all_charts(load_runs(tmp_path)))
    assert "1-default-cluster-fgd" in {file.stem for file in files}
    for file in files:
        text = file.read_text("utf-8")
        ET.fromstring(text)
        assert "var(--" not in text
        assert "prefers-color-scheme" not in text


def test_png_and_pdf_need_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = write_pack(tmp_path, a_pack([a_run()]))
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(UserError) as caught:
        write_report(runs, formats=("png",))
    assert "wattherd[plot]" in caught.value.hint
    assert not list(tmp_path.glob("report-plots/*"))


@pytest.mark.long
def test_png_and_pdf_are_written_by_the_extra(tmp_path: Path) -> None:
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError) as missing:  # the package, or the library cairo behind it
        pytest.skip(f"no CairoSVG: {missing}")
    runs = write_pack(tmp_path, a_pack([a_run()]))
    files = write_report(runs, formats=FORMATS[2:])
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert {file.suffix for file in files} == set(starts)
    for file in files:
        assert file.read_bytes().startswith(starts[file.suffix])


def test_bars_that_stand_alone_name_their_policies(tmp_path: Path) -> None:
    for name in ("cpu050", "cpu100"):
        runs = [a_run(policy, trace=name) for policy in ("fgd", "pwr")]
        write_pack(tmp_path / name, a_pack(runs, trace=name))
    files = {file.stem: file for file in write_report(tmp_path, formats=("svg",))}
    picture = ET.fromstring(files["family-unallocated-cpu-only-requests"].read_text("utf-8"))
    texts = ["".join(node.itertext()) for node in picture.iter(f"{{{SVG}}}text")]
    assert {"fgd", "pwr", "cpu050", "cpu100"} <= set(texts)
    assert texts.count("fgd 5.0") == 2  # the better of the two, below each trace
