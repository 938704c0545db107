"""The screen of `wattherd top`; asks the service in a thread, so that keys are never waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from textual import work
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Static

from wattherd.cli.live_tables import where_or_why
from wattherd.errors import UserError

SHOWN = 120
"""Samples of the draw in the line: two minutes."""
BAR = 40
LINES = 4
_BLOCKS = " ▁▂▃▄▅▆▇█"
JOBS = ("ID", "NAME", "USER", "STATE", "GPUS", "WATTS", "CAP W", "DONE", "WHERE/WHY")
DEVICES = ("NODE", "GPU", "MODEL", "STATE", "JOBS")


class TopSource(Protocol):
    """What the screen asks for; `library.client.Client` is one."""

    def get(self, path: str, **query: object) -> Any:
        """A document."""
        ...


@dataclass(frozen=True, slots=True)
class TopScreen:
    """All that is shown at one time, as the service tells it."""

    power: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]]
    nodes: Sequence[Mapping[str, Any]]


class Top(App[None]):
    """Draw against budget on top, jobs below, devices at the bottom."""

    CSS = """
    #watts { height: 2; padding: 0 1; }
    #line { height: 4; padding: 0 1; color: $success; }
    #jobs { height: 2fr; }
    #below { height: 1fr; }
    #devices { width: 1fr; }
    #why { width: 1fr; padding: 0 1; border-left: solid $primary; }
    """
    BINDINGS: ClassVar = [("q", "quit", "Leave")]
    TITLE = "wattherd"

    def __init__(self, service: TopSource, every_s: float = 1.0) -> None:
        """Look at `service` every so many seconds."""
        super().__init__()
        self._service, self._every_s = service, every_s

    def compose(self) -> ComposeResult:
        """Empty, until the service has answered."""
        yield Static("asking the service …", id="watts", markup=False)
        yield Static("", id="line", markup=False)
        yield DataTable(id="jobs", cursor_type="row", zebra_stripes=True)
        with Horizontal(id="below"):
            yield DataTable(id="devices", cursor_type="none")
            yield Static("Enter: why a job waits", id="why", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._table("jobs").add_columns(*JOBS)
        self._table("devices").add_columns(*DEVICES)
        self._table("jobs").focus()
        self.look()
        self.set_interval(self._every_s, self.look)

    def _table(self, name: str) -> DataTable[str]:
        found: DataTable[str] = self.query_one(f"#{name}", DataTable)
        return found

    @work(thread=True, exclusive=True, group="look")
    def look(self) -> None:
        """Ask, then show; what goes wrong is shown, too, and asked again."""
        try:
            get = self._service.get
            picture = TopScreen(
                get("power", last=SHOWN), get("jobs")["jobs"], get("nodes")["nodes"]
            )
        except UserError as error:
            self.call_from_thread(self._told, f"! {error.line()}")
        else:
            self.call_from_thread(self._show, picture)

    def _told(self, text: str) -> None:
        self.query_one("#watts", Static).update(text)

    def _show(self, picture: TopScreen) -> None:
        self._told(watts_text(picture.power))
        self.query_one("#line", Static).update(line_text(picture.power))
        _fill(self._table("jobs"), [job_cells(row) for row in picture.jobs])
        _fill(self._table("devices"), device_rows(picture.nodes))

    def on_data_table_row_selected(self, chosen: DataTable.RowSelected) -> None:
        """Enter in the table of jobs."""
        if chosen.data_table.id == "jobs" and chosen.row_key.value is not None:
            self.explain(chosen.row_key.value)

    @work(thread=True, exclusive=True, group="why")
    def explain(self, job_id: str) -> None:
        """Ask why a job waits, or what became of it."""
        try:
            document = self._service.get(f"jobs/{job_id}")
            text = why_text(document)
        except UserError as error:
            text = f"! {error.line()}"
        self.call_from_thread(self.query_one("#why", Static).update, text)


def _fill(table: DataTable[str], rows: Sequence[Sequence[str]]) -> None:
    """Other rows in place of those there were; the cursor stays with its job."""
    at, first = table.cursor_coordinate, table.scroll_y
    chosen = None
    if table.row_count and table.is_valid_coordinate(at):
        chosen = table.coordinate_to_cell_key(at).row_key.value
    table.clear()
    for number, row in enumerate(rows):
        key = row[0] if table.id == "jobs" else str(number)
        table.add_row(*row, key=key)
    keys = [key.value for key in table.rows]
    if chosen in keys:
        table.move_cursor(row=keys.index(chosen), animate=False)
    table.scroll_y = first


def watts_text(power: Mapping[str, Any]) -> str:
    """Draw, budget and headroom, and a bar of both."""
    draw_w, budget_w = power["draw_w"], power["budget_w"]
    if draw_w is None:
        return "no sample of the draw yet"
    said = "" if power["stated"] == "measured" else f"  ({power['stated']})"
    if budget_w is None:
        return f"draws {draw_w:,.1f} W, no budget{said}"
    part = draw_w / budget_w if budget_w else 0.0
    filled = min(BAR, round(BAR * part))
    bar = "█" * filled + "░" * (BAR - filled)
    over = "  OVER THE BUDGET" if draw_w > budget_w else ""
    return (
        f"draws {draw_w:,.1f} W of {budget_w:,.1f} W, {power['headroom_w']:,.1f} W left{said}{over}"
        f"\n{bar} {part:.0%}"
    )


def line_text(power: Mapping[str, Any]) -> str:
    """The draw of the last samples in four lines of text; the top is the budget, or the most."""
    draws_w = [one["draw_w"] for one in power["samples"]]
    top_w = max(power["budget_w"] or 0.0, *draws_w, 1e-9)
    eighths = [round(8 * LINES * draw_w / top_w) for draw_w in draws_w]
    levels = range(8 * (LINES - 1), -1, -8)
    return "\n".join("".join(_BLOCKS[min(8, max(0, n - low))] for n in eighths) for low in levels)


def job_cells(row: Mapping[str, Any]) -> list[str]:
    """A job's line."""
    return [
        row["id"],
        row["name"] or "-",
        row["user"] or "-",
        row["state"],
        str(row["gpus"]),
        _number(row["watts"]),
        _number(row["cap_w"]),
        _done(row),
        where_or_why(row),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _done(row: Mapping[str, Any]) -> str:
    if row["total"]:
        return f"{row['progress'] / row['total']:.0%}"
    return f"{row['progress']:g}" if row["progress"] else "-"


def device_rows(nodes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for every device."""
    return [
        [
            node["name"],
            str(gpu["number"]),
            gpu["model"],
            node["state"],
            " ".join(gpu["jobs"]) or "-",
        ]
        for node in nodes
        for gpu in node["gpus"]
    ]


def why_text(job: Mapping[str, Any]) -> str:
    """Where it stands and why, and what happened to it last."""
    reason = (job["reason"] or {}).get("text", "")
    head = [f"{job['id']}  {job['state']}", reason]
    story = [f"{one['at'][11:19]}  {one['what']}  {one['cause']}" for one in job["story"][-6:]]
    return "\n".join(line for line in (*head, *story) if line)
