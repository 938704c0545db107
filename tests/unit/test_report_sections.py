"""Sections and formats that others add to reports: a failure is a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markupsafe import Markup
from report_runs import a_pack, all_runs, write_pack
from sim_runs import write_sim
from test_report_page import HOSTILE, check, pictures

from wattherd import plugins
from wattherd.errors import UserError
from wattherd.report import write_report
from wattherd.report.charts import Chart, DataTable
from wattherd.report.plugin_reports import (
    ReportedRun,
    ReportFile,
    ReportSection,
    shown_sections,
)
from wattherd.report.report_files import asked_sections, write_content
from wattherd.report.schedule_runs import SimRun
from wattherd.report.site_past import SiteJob, SitePast, StateSample
from wattherd.report.state_page import state_content
from wattherd.report.svg import Element, Frame, document, dot

Make = Callable[[ReportedRun], Any]


def chart(*, tip: str = "", series: int = 0) -> Chart:
    def draw(frame: Frame, key: str) -> Element:
        mark = dot((50.0, 50.0), 5, f"dot k{series}", tip)
        return document(frame, mark, title="Mine", about="A dot.", key=key)

    table = DataTable(heads=("job", "s"), rows=(("a", "1"),))
    return Chart(key="mine", title="Mine", caption="A dot.", draw=draw, table=table)


def page_with(folder: Path, *sections: Make) -> str:
    (page,) = write_report(write_sim(folder), sections=sections)
    return page.read_text("utf-8")


def test_a_section_has_its_text_its_table_and_its_picture(tmp_path: Path) -> None:
    def of_jobs(run: ReportedRun) -> ReportSection:
        assert isinstance(run, SimRun)
        table = DataTable(heads=("policy", "jobs"), rows=tuple((p, "6") for p in run.policies))
        return ReportSection(
            title="Mine", sentences=("One.", "Two."), tables=(table,), charts=(chart(),)
        )

    plain = write_report(write_sim(tmp_path))[0].read_text("utf-8")
    page = page_with(tmp_path, of_jobs)
    text = " ".join(check(page).text)
    for word in ("Mine", "One.", "Two.", "A dot."):
        assert word in text
    assert len(pictures(page)) == len(pictures(plain)) + 2
    assert "h-added-1" not in plain


def test_a_page_of_placed_pods_takes_sections_too(tmp_path: Path) -> None:
    def silent(run: ReportedRun) -> None:
        assert not isinstance(run, SimRun)

    folder = write_pack(tmp_path, a_pack(all_runs(range(1))))
    plain = write_report(folder)[0].read_text("utf-8")
    assert write_report(folder, sections=[silent])[0].read_text("utf-8") == plain
    page = write_report(folder, sections=[of_pods])[0].read_text("utf-8")
    assert "Of pods" in page
    check(page)


def of_pods(run: ReportedRun) -> ReportSection:
    return ReportSection(title="Of pods", charts=(chart(),))


def test_the_past_of_a_service_takes_sections_too() -> None:
    def of_service(run: ReportedRun) -> ReportSection:
        assert isinstance(run, SitePast)
        energy = tuple((job.label, f"{job.energy_j:g}") for job in run.jobs)
        table = DataTable(heads=("job", "J"), rows=energy)
        return ReportSection(title="Mine", tables=(table,), charts=(chart(series=17),))

    plain = state_content(a_past()).html(())
    added = shown_sections({"mine": of_service, "raises": lambda run: 1 / 0}, a_past())  # type: ignore[dict-item]
    page = state_content(a_past()).html(added)
    text = " ".join(check(page).text)
    for word in ("Mine", "first", "4000", "could not be made: ZeroDivisionError"):
        assert word in text
    assert len(pictures(page)) == len(pictures(plain)) + 2
    assert ".k17.dot" in page
    assert "h-added-1" not in plain


def test_the_past_of_a_service_is_written_as_pictures_and_as_a_format(
    tmp_path: Path, announces: Callable[..., None]
) -> None:
    def names(run: ReportedRun) -> ReportFile:
        assert isinstance(run, SitePast)
        return ReportFile(ending="txt", content=" ".join(job.label for job in run.jobs))

    announces(names=names)
    formats, page = ("html", "svg", "names"), tmp_path / "report.html"
    sections = asked_sections(formats, ())
    written = write_content(state_content(a_past()), page, formats=formats, sections=sections)
    assert sorted(one.name for one in written) == [
        "draw.svg", "report.html", "report.txt", "runs.svg",
    ]  # fmt: skip
    assert (tmp_path / "report.txt").read_text() == "first j-2"


def a_past() -> SitePast:
    """A job that ended and one that runs."""
    ended = SiteJob(
        id="j-1", name="first", user="ann", state="Succeeded", submit_s=0.0, finish_s=50.0,
        runs=((1.0, 50.0),), progress=100.0, loss=None, energy_j=4_000.0,
    )  # fmt: skip
    runs = replace(ended, id="j-2", name="", state="Running", finish_s=None)
    samples = [
        StateSample(at_s=at_s, draw_w=90.0, budget_w=100.0, by_job={"j-2": 60.0})
        for at_s in (20.0, 40.0)
    ]
    return SitePast(
        jobs=[ended, runs], samples=samples, began="2026-01-01 00:00:00 UTC", estimated=False,
        over_s=0.0, over_j=0.0, source="state",
    )  # fmt: skip


@pytest.mark.parametrize(
    "section",
    [
        ReportSection(title=HOSTILE, sentences=(HOSTILE,)),
        ReportSection(title=Markup(HOSTILE), sentences=(Markup(HOSTILE),)),
        ReportSection(
            title="t",
            tables=(DataTable(heads=(Markup(HOSTILE),), rows=((HOSTILE,),)),),
        ),
        ReportSection(title="t", charts=(chart(tip=HOSTILE),)),
    ],
)
def test_its_text_is_escaped_even_where_it_says_that_it_is_markup(
    tmp_path: Path, section: ReportSection
) -> None:
    page = page_with(tmp_path, giving(section))
    check(page)
    assert "<script>alert" not in page


def giving(answer: Any) -> Make:
    def mine(run: ReportedRun) -> Any:
        return answer

    return mine


def test_a_series_beyond_the_page_has_a_colour(tmp_path: Path) -> None:
    page = page_with(tmp_path, giving(ReportSection(title="t", charts=(chart(series=7),))))
    assert ".k7.dot" in page


def raising(run: ReportedRun) -> None:
    raise KeyError("a\nb")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (raising, "KeyError"),
        (giving(3), "a int is no ReportSection"),
        (giving(ReportFile(ending="txt", content="")), "ask for it by --format"),
        (giving(ReportSection(title=" ")), "needs a title"),
        (giving(ReportSection(title="t", sentences=(3,))), "3 is no text"),  # type: ignore[arg-type]
        (
            giving(ReportSection(title="t", tables=(DataTable(heads=("a", "b"), rows=(("1",),)),))),
            "1 cells under 2 heads",
        ),
        (
            giving(
                ReportSection(
                    title="t",
                    charts=(Chart(key="k", title="t", caption="c", draw=lambda *_: 1 / 0),),  # type: ignore[arg-type, return-value]
                )
            ),
            "ZeroDivisionError",
        ),
    ],
)
def test_a_section_that_fails_says_so_in_its_place(
    tmp_path: Path, make: Make, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = page_with(tmp_path, make, after_it)
    text = " ".join(check(page).text)
    assert "This section could not be made" in text
    assert said in text
    assert "After it" in text
    assert said in caplog.text


def after_it(run: ReportedRun) -> ReportSection:
    return ReportSection(title="After it")


def test_of_two_functions_of_one_name_none_is_lost(tmp_path: Path) -> None:
    one, two = giving(ReportSection(title="One")), giving(ReportSection(title="Two"))
    with pytest.raises(UserError, match="two sections are called 'mine'"):
        page_with(tmp_path, one, two)


@pytest.fixture
def announces(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Packages that announce these reports."""

    def announce(**reports: Any) -> None:
        entries = {
            name: SimpleNamespace(value=f"mine:{name}", load=lambda found=found: found)
            for name, found in reports.items()
        }
        monkeypatch.setattr("wattherd.report.plugin_reports.announced", lambda seam: entries)
        monkeypatch.setattr(plugins, "announced", lambda seam: entries)

    return announce


@pytest.mark.parametrize("content", ["wörter\n", b"\x00\xff"])
def test_a_format_is_written_beside_the_page(
    tmp_path: Path, announces: Callable[..., None], content: str | bytes
) -> None:
    announces(mine=lambda run: ReportFile(ending="tar.gz", content=content))
    page = tmp_path / "pages" / "night.html"
    written = write_report(write_sim(tmp_path / "run"), out=page, formats=("mine", "html"))
    assert [one.name for one in written] == ["night.html", "night.tar.gz"]
    expected = content.encode() if isinstance(content, str) else content
    assert written[1].read_bytes() == expected


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda run: 1 / 0, "failed: ZeroDivisionError"),
        (lambda run: None, "nothing to tell of this run"),
        (lambda run: ReportSection(title="t"), "is a section of the page"),
        (lambda run: ReportFile(ending="../x", content=""), "no ending of a file name"),
        (lambda run: ReportFile(ending="html", content=""), "would overwrite the page"),
        (lambda run: ReportFile(ending="x", content=3), "no ReportFile with text"),  # type: ignore[arg-type]
        (3, "cannot be called"),
    ],
)
def test_a_format_that_fails_is_an_error_with_its_name(
    tmp_path: Path, announces: Callable[..., None], make: Any, said: str
) -> None:
    announces(mine=make)
    with pytest.raises(UserError, match=said) as error:
        write_report(write_sim(tmp_path), formats=("html", "mine"))
    assert "mine" in error.value.line()
    assert (tmp_path / "report.html").is_file()  # what could be made was made


def test_names_that_nobody_offers_are_refused_with_what_there_is(
    tmp_path: Path, announces: Callable[..., None]
) -> None:
    announces(slowest=lambda run: None)
    folder = write_sim(tmp_path)
    with pytest.raises(UserError, match="no package offers a report 'slowst'") as error:
        write_report(folder, sections=["slowst"])
    assert "slowest" in error.value.hint
    with pytest.raises(UserError, match="unknown format 'slowst'") as error:
        write_report(folder, formats=("slowst",))
    assert "slowest" in error.value.hint
    with pytest.raises(UserError, match="3 is no section"):
        write_report(folder, sections=[3])  # type: ignore[list-item]
    with pytest.raises(UserError, match="no page to add a section to"):
        write_report(folder, formats=("svg",), sections=["slowest"])
