"""The jobs that took longest: a section of the page, and the same as a text beside it."""

from __future__ import annotations

from wattherd.report import theme
from wattherd.report.charts import Chart, DataTable
from wattherd.report.lines import LinePlot, Series, draw_lines
from wattherd.report.plugin_reports import ReportedRun, ReportFile, ReportSection
from wattherd.report.schedule_runs import JobFigures, PolicyRun, SimRun
from wattherd.report.site_past import SitePast

MOST = 5


def slowest(run: ReportedRun) -> ReportSection | None:
    """The jobs with the longest completion times, and how long the longest are."""
    if isinstance(run, SitePast):
        return _of_service(run)
    if not isinstance(run, SimRun):  # pods were placed: nothing took any time
        return None
    rows = [
        (f"{one.policy}, {rank}", job.job_id, f"{job.jct_s or 0.0:.0f}")
        for one in run.runs
        for rank, job in enumerate(_longest(one)[:MOST], start=1)
    ]
    table = DataTable(heads=("policy, rank", "job", "seconds"), rows=tuple(rows))
    return ReportSection(
        title="Slowest jobs",
        sentences=tuple(_sentence(one) for one in run.runs),
        tables=(table,),
        charts=tuple(_charts(run)),
    )


def words(run: ReportedRun) -> ReportFile | None:
    """A text file with one line for each job that ended: policy, job and seconds."""
    if not isinstance(run, SimRun):
        return None
    lines = [
        f"{one.policy}: {job.job_id} took {job.jct_s or 0.0:.0f} s\n"
        for one in run.runs
        for job in _longest(one)
    ]
    return ReportFile(ending="txt", content="".join(lines))


def _of_service(past: SitePast) -> ReportSection:
    """The jobs that took longest from submission to end, in what a service has seen."""
    took_s = {job.id: job.finish_s - job.submit_s for job in past.jobs if job.finish_s is not None}
    ended = sorted((job for job in past.jobs if job.id in took_s), key=lambda job: -took_s[job.id])
    rows = tuple((job.label, job.user, f"{took_s[job.id]:.0f}") for job in ended[:MOST])
    sentence = f"The slowest job is {ended[0].label}." if ended else "No job has ended."
    table = DataTable(heads=("job", "user", "seconds"), rows=rows)
    return ReportSection(title="Slowest jobs", sentences=(sentence,), tables=(table,))


def _longest(one: PolicyRun) -> list[JobFigures]:
    ended = [job for job in one.jobs if job.jct_s is not None]
    return sorted(ended, key=lambda job: (-(job.jct_s or 0.0), job.job_id))


def _sentence(one: PolicyRun) -> str:
    longest = _longest(one)
    if not longest:
        return f"Under {one.policy} no job ended."
    return f"Under {one.policy} the slowest job is {longest[0].job_id}."


def _charts(run: SimRun) -> list[Chart]:
    """Completion times, the longest first: a line for each policy."""
    numbers = theme.series_numbers(run.policies)
    found = {one.policy: [job.jct_s or 0.0 for job in _longest(one)] for one in run.runs}
    lines = tuple(
        Series(name=name, number=numbers[name], x=tuple(range(1, len(times) + 1)), y=tuple(times))
        for name, times in found.items()
        if times
    )
    if not lines:
        return []
    title, caption = "Completion times, longest first", "A line that falls early has few slow jobs."
    plot = LinePlot(
        title=title,
        about=caption,
        x_title="rank of the job",
        y_title="completion time, s",
        series=lines,
        x_low=1.0,
        x_high=max(2.0, *(len(line.x) for line in lines)),
        y_low=0.0,
        unit="s",
    )
    return [
        Chart(
            key="slowest",
            title=title,
            caption=caption,
            draw=lambda frame, key: draw_lines(plot, frame, key),
        )
    ]
