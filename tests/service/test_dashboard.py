"""The dashboard in a real browser, on a real service."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dashboard_site import MOST_S, Dashboard, a_browser, a_dashboard, until

from wattherd.model.event import BudgetChanged

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from sim_runs import write_sim

STEPS = (
    'i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo "step $i";'
    ' echo "{\\"step\\": $i, \\"total\\": 2000, \\"rate_per_s\\": 10, \\"loss\\": 0.5}"'
    " >> $WATTHERD_PROGRESS; sleep 0.1; done"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Two jobs that run, one that waits for both devices."""
    root = tmp_path_factory.mktemp("site")
    write_sim(root / "runs" / "three-policies")
    with a_dashboard(root / "state", runs=root / "runs") as dashboard:
        over = dashboard.submit("true", name="over")
        until(lambda: dashboard.state(over) == "Succeeded")
        first, second = (dashboard.submit(STEPS, name=name) for name in ("cnn", "mlp"))
        dashboard.submit("true", gpus=2, name="wide")
        until(lambda: dashboard.state(first) == dashboard.state(second) == "Running")
        until(lambda: dashboard.site.meter.book.samples)
        yield dashboard


@pytest.fixture
def page(browser: Any, dashboard: Dashboard) -> Iterator[Any]:
    """A tab, in which nothing may go wrong unseen."""
    context = browser.new_context(base_url=dashboard.url)
    context.set_default_timeout(MOST_S * 1000)
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield tab
    context.close()
    assert problems == []


@pytest.fixture
def closed(tmp_path: Path, browser: Any) -> Iterator[tuple[Dashboard, Any]]:
    """A site that asks for tokens, and a tab."""
    with a_dashboard(tmp_path / "state") as dashboard:
        dashboard.token("admin")
        context = browser.new_context(base_url=dashboard.url)
        context.set_default_timeout(MOST_S * 1000)
        yield dashboard, context.new_page()
        context.close()


def test_the_first_page_shows_draw_under_budget_by_job(page: Any) -> None:
    page.goto("/")
    assert page.locator("#headroom").inner_text().endswith("W")
    assert "estimated" in page.locator(".tiles").inner_text()
    stack = page.locator(".wide svg .stack")
    assert {one.text_content() for one in stack.all()} >= {"j-2", "j-3"}
    assert page.locator(".wide svg .ceiling").count() >= 1


def test_what_changes_is_seen_within_two_seconds(page: Any, dashboard: Dashboard) -> None:
    page.goto("/")
    page.wait_for_function("document.querySelector('#live .tiles')")
    for budget_w in (250.0, 300.0):
        event = BudgetChanged(at_s=0.0, budget_w=budget_w)
        dashboard.site.keeper.post(event, by="ann").result(MOST_S)
        shown = page.locator(f"text=headroom below {budget_w:.1f} W")
        shown.wait_for(timeout=2000)


def test_the_budget_is_changed_from_the_page(page: Any, dashboard: Dashboard) -> None:
    page.goto("/")
    page.get_by_label("Budget of the site").fill("280W")
    page.keyboard.press("Enter")
    page.locator("text=headroom below 280.0 W").wait_for()
    assert dashboard.site.look(lambda look: look.core.watts.budget_w) == 280.0
    page.get_by_label("Budget of the site").fill("none")
    page.get_by_role("button", name="Change").click()
    page.locator("text=no budget").wait_for()
    page.get_by_label("Budget of the site").fill("300W")
    page.keyboard.press("Enter")
    page.locator("text=headroom below 300.0 W").wait_for()


def test_a_change_of_the_budget_is_marked_with_who_and_why(page: Any, dashboard: Dashboard) -> None:
    for budget_w in (290.0, 300.0):
        event = BudgetChanged(at_s=0.0, budget_w=budget_w)
        dashboard.site.keeper.post(event, by="ann").result(MOST_S)
    page.goto("/")
    row = page.locator("tr[id^='b-']", has_text="290 W").first
    row.wait_for()
    assert "ann" in row.inner_text()
    assert "set at work" in row.inner_text()
    mark = page.locator(f".wide a[href='#{row.get_attribute('id')}']")
    words = f"to {row.locator('td').nth(1).inner_text()} by ann: set at work."
    assert str(mark.get_attribute("aria-label")).endswith(words)
    tip = mark.locator("text.tip").first
    assert not tip.is_visible()
    mark.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")  # by keyboard, as focus that scripts set may show nothing
    tip.wait_for(state="visible")


def test_a_training_is_shown_as_curves_with_its_restarts(page: Any, dashboard: Dashboard) -> None:
    program = (
        'for s in 1 2 3; do echo "{\\"step\\": $s, \\"loss\\": $WATTHERD_ATTEMPT.$s,'
        ' \\"rate_per_s\\": 2}" >> $WATTHERD_PROGRESS; done; test $WATTHERD_ATTEMPT = 2'
    )
    dashboard.site.keeper.post(BudgetChanged(at_s=0.0, budget_w=300.0), by="ann").result(MOST_S)
    job = dashboard.submit(program, gpus=0, restarts=1, name="curves")
    until(lambda: dashboard.state(job) == "Succeeded")
    page.goto(f"/jobs/{job}")
    shown = page.locator("main").inner_text()
    assert "Loss 1.1 at first, 2.3 at step 3; dashed lines are where a later run begins." in shown
    assert "Throughput" in shown
    runs = page.get_by_role("region", name="Training by run").locator("tbody tr")
    assert [one.inner_text().split("\t")[0] for one in runs.all()] == ["run 1", "run 2"]


def test_a_job_that_reports_nothing_says_how_to(page: Any, dashboard: Dashboard) -> None:
    page.goto("/jobs/j-1")
    assert "$WATTHERD_PROGRESS" in page.locator("main").inner_text()


def test_lists_are_filtered_and_the_address_keeps_it(page: Any, dashboard: Dashboard) -> None:
    page.goto("/queue?shown=running")
    page.get_by_label("label").fill("name=cnn")
    page.get_by_label("user").fill("ann")
    page.get_by_label("state").select_option("Running")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**label=name%3Dcnn*")
    rows = page.get_by_role("region", name="Jobs", exact=True).locator("tbody tr")
    page.wait_for_timeout(2500)  # refreshed at least once
    assert [one.locator("th a").inner_text() for one in rows.all()] == ["j-2"]
    page.get_by_role("link", name="ended").click()  # the same jobs, in another state
    page.locator("text=No such job.").wait_for()
    assert "label=name%3Dcnn" in page.url
    page.get_by_role("link", name="Show all").click()
    page.locator("th", has_text="j-1").wait_for()


@pytest.mark.parametrize(
    ("asked", "there"),
    [("user=ann", True), ("user=ben", False), ("name=OVE", True), ("label=name", True),
     ("label=name%3Dov", False), ("queue=default", True), ("state=Failed", False)],
)  # fmt: skip
def test_jobs_that_are_over_are_filtered_alike(
    dashboard: Dashboard, asked: str, there: bool
) -> None:
    dashboard.site.catch_up()
    for path in (f"/queue?shown=ended&{asked}", f"/timeline?{asked}"):
        with urllib.request.urlopen(dashboard.url + path) as answer:
            assert ("/jobs/j-1" in answer.read().decode()) == there, path


def test_a_job_is_submitted_and_cloned_by_forms(
    browser: Any, page: Any, dashboard: Dashboard
) -> None:
    """Also without scripts."""
    context = browser.new_context(base_url=dashboard.url, java_script_enabled=False)
    context.set_default_timeout(MOST_S * 1000)
    tab = context.new_page()
    tab.goto("/queue")
    tab.get_by_role("link", name="New job").click()
    tab.get_by_label("Command").fill("echo by-form\necho $EPOCHS")
    tab.get_by_label("GPUs").fill("many")
    tab.get_by_label("All other fields").fill("envs: {EPOCHS: 90}")
    tab.get_by_role("button", name="Submit").click()
    assert "gpus" in tab.get_by_role("alert").inner_text()
    assert tab.get_by_label("GPUs").get_attribute("aria-invalid") == "true"
    tab.get_by_label("GPUs").fill("0")
    tab.get_by_role("button", name="Check and show").click()
    assert "EPOCHS: 90" in tab.locator("pre.log").inner_text()
    tab.get_by_role("button", name="Submit").click()
    job = tab.url.rpartition("/")[2]
    until(lambda: dashboard.state(job) == "Succeeded")
    tab.reload()
    assert tab.locator("pre.log").inner_text().split() == ["by-form", "90"]
    tab.get_by_role("link", name="Submit it once more").click()
    assert tab.get_by_label("Command").input_value() == "echo by-form\necho $EPOCHS"
    assert "EPOCHS" in tab.get_by_label("All other fields").input_value()
    tab.get_by_role("button", name="Submit").click()
    again = tab.url.rpartition("/")[2]
    assert re.fullmatch(r"j-\d+", again)
    assert again != job
    context.close()


def test_a_visitor_logs_in_and_out(closed: tuple[Dashboard, Any]) -> None:
    dashboard, page = closed
    page.goto("/")
    assert page.url.endswith("/login?next=/")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    page.locator("text=No such token").wait_for()
    page.get_by_label("Token").fill(dashboard.token("viewer"))
    page.get_by_role("button", name="Log in").click()
    page.locator("h1", has_text="Now").wait_for()
    assert page.get_by_label("Budget of the site").count() == 0
    cookies = page.context.cookies()
    assert {one["name"] for one in cookies} == {"wattherd_session", "wattherd_token"}
    assert {(one["httpOnly"], one["sameSite"]) for one in cookies} == {(True, "Strict")}
    page.get_by_role("button", name="Log out").click()
    page.locator("h1", has_text="Log in").wait_for()
    page.goto("/")
    assert "/login" in page.url


def test_who_may_not_is_told_so_and_nothing_happens(closed: tuple[Dashboard, Any]) -> None:
    dashboard, page = closed
    _log_in(page, dashboard.token("viewer"))
    secret = page.locator("form.who input[name=form_secret]").get_attribute("value")
    page.evaluate(
        """secret => { const form = document.createElement("form");
        form.method = "post"; form.action = "/budget";
        form.innerHTML = `<input name=budget value=1W><input name=form_secret value=${secret}>`;
        document.body.append(form); form.submit(); }""",
        secret,
    )
    page.locator("h1", has_text="Permission denied").wait_for()
    assert "Needs an operator; this token is a viewer's" in page.locator("main").inner_text()
    assert dashboard.site.look(lambda look: look.core.watts.budget_w) == 300.0


def _log_in(page: Any, token: str) -> None:
    page.goto("/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.locator("h1", has_text="Now").wait_for()


def test_a_form_of_another_site_is_not_accepted(dashboard: Dashboard) -> None:
    with urllib.request.urlopen(f"{dashboard.url}/") as answer:
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        found = re.search(r'name="form_secret" value="(\w+)"', answer.read().decode())
    assert found is not None
    ours, theirs = dashboard.url, "http://elsewhere.example"
    for origin, secret in ((theirs, found[1]), (ours, "guessed"), (ours, "")):
        body = urllib.parse.urlencode({"budget": "1W", "form_secret": secret}).encode()
        headers = {"Cookie": cookie, "Origin": origin}
        request = urllib.request.Request(f"{dashboard.url}/budget", body, headers)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request)
    assert dashboard.site.look(lambda look: look.core.watts.budget_w) == 300.0


def test_the_way_after_the_login_stays_on_this_site(closed: tuple[Dashboard, Any]) -> None:
    dashboard, page = closed
    page.goto("/login?next=//elsewhere.example/")
    page.get_by_label("Token").fill(dashboard.token("viewer"))
    page.get_by_role("button", name="Log in").click()
    page.locator("h1", has_text="Now").wait_for()
    assert page.url == f"{dashboard.url}/"


PAGES = {
    "/": "Draw against budget",
    "/cluster": "GPUs busy of 2",
    "/timeline": "Who held which GPU when",
    "/queue": "WaitingForGpus",
    "/queue?shown=running": "mlp",
    "/queue?shown=ended": "Succeeded",
    "/jobs/j-3": "Throughput by power",
    "/decisions": "Run 1 of j-2 starts on",
    "/compare": "fifo",
    "/submit?from=j-2": "once more",
}
AXE = Path(__file__).parents[1] / "vendor" / "axe" / "axe.min.js"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_what_it_is_for_and_is_accessible(
    browser: Any, dashboard: Dashboard, path: str, scheme: str
) -> None:
    """On a phone's width, in both colour schemes; axe-core finds nothing serious."""
    context = browser.new_context(
        base_url=dashboard.url,
        viewport={"width": 360, "height": 740},
        color_scheme=scheme,
        bypass_csp=True,  # axe is injected; the policy itself is tested by the tabs of the others
    )
    page = context.new_page()
    page.set_default_timeout(MOST_S * 1000)
    page.goto(path)
    page.locator("main", has_text=PAGES[path]).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    told = [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in grave]
    context.close()
    assert told == []


def test_the_pages_are_walked_by_keyboard(page: Any) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    for _ in range(20):  # past the name of the site and the pages before it
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Queue":
            break
    page.wait_for_timeout(1500)  # a refresh leaves the focus where it is
    assert page.evaluate("document.activeElement.textContent") == "Queue"
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Queue").wait_for()


def test_a_log_grows_while_it_is_read(page: Any) -> None:
    page.goto("/jobs/j-2")
    shown = page.locator("pre.log").inner_text().splitlines()[-1]
    page.wait_for_function("seen => !document.querySelector('pre.log').innerText.endsWith(seen)",
                           arg=shown, timeout=3000)  # fmt: skip


def test_a_bar_leads_to_its_job_and_a_marker_to_its_decision(page: Any) -> None:
    page.goto("/timeline")
    page.locator(".wide a[href='/jobs/j-2#story']").first.click()
    page.locator("h1", has_text="j-2").wait_for()
    page.go_back()
    # Markers may lie on one another: the keyboard reaches each of them.
    page.locator(".wide a[href^='/decisions?seq=']").first.press("Enter")
    found = page.locator("details.found[open]")
    found.wait_for()
    assert "StartJob j-1" in found.inner_text()


def test_what_is_unfolded_stays_so(page: Any) -> None:
    page.goto("/decisions?q=starts")
    page.locator("summary").first.click()
    page.wait_for_timeout(2500)  # refreshed at least once
    assert page.locator("details[open]").count() == 1


def test_a_job_is_paused_resumed_and_cancelled_from_its_page(
    page: Any, dashboard: Dashboard
) -> None:
    job = dashboard.submit("sleep 60", gpus=2, name="acted-on")
    page.goto(f"/jobs/{job}")
    page.get_by_role("button", name="Pause").click()
    page.locator(".state", has_text="Paused").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.locator(".state", has_text="Queued").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.locator(".state", has_text="Cancelled").wait_for()
    assert dashboard.state(job) == "Cancelled"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a service that is gone; one job is over, one was running."""
    state = tmp_path_factory.mktemp("left") / "state"
    with a_dashboard(state) as dashboard:
        over = dashboard.submit("sleep 3; echo all-done", name="over")
        until(lambda: dashboard.state(over) == "Succeeded")
        running = dashboard.submit("sleep 600", name="running")
        until(lambda: dashboard.state(running) == "Running")
        book = dashboard.site.meter.book
        until(lambda: any(running in one.by_job for one in list(book.samples)))
    return state


@contextmanager
def viewed(folder: Path) -> Iterator[str]:
    """The address of `wattherd view`."""
    command = [sys.executable, "-m", "wattherd.cli.main", "view", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield found[0]
        process.terminate()


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/", "budget of 300.0 W"),
        ("/cluster", "GPUs busy of 2"),
        ("/timeline", "Who held which GPU when"),
        ("/queue?shown=ended", "j-1"),
        ("/jobs/j-1", "all-done"),
        ("/decisions?q=FinishJob", "FinishJob j-1: Succeeded"),
        ("/compare", "No simulated runs"),
    ],
)
def test_the_same_pages_are_there_without_a_service(
    left: Path, path: str, part: str, still: str
) -> None:
    with urllib.request.urlopen(still + path) as answer:
        text = answer.read().decode()
    assert part in text
    assert "nothing changes here" in text
    assert 'action="/budget"' not in text


@pytest.mark.long
def test_joules_of_a_job_are_known_without_a_service_and_to_the_next_one(
    left: Path, still: str
) -> None:
    with urllib.request.urlopen(still + "/jobs/j-1") as answer:
        page = re.sub(r"<[^>]*>|\s+", " ", answer.read().decode())
    told = re.search(r"energy so far +estimated +(\S+) J", page)
    assert told is not None, page
    assert float(told[1]) > 0


@pytest.fixture(scope="module")
def still(left: Path) -> Iterator[str]:
    with viewed(left) as url:
        yield url


def test_nothing_can_be_changed_without_a_service(browser: Any, still: str) -> None:
    context = browser.new_context(base_url=still)
    page = context.new_page()
    page.goto("/login")
    secret = page.locator("input[name=form_secret]").get_attribute("value")
    form = {"form_secret": secret, "budget": "1W"}
    assert context.request.post("/budget", form=form).status == 409
    context.close()


def test_a_simulated_run_is_shown_as_its_report(tmp_path: Path) -> None:
    with viewed(write_sim(tmp_path / "run")) as url, urllib.request.urlopen(url) as answer:
        assert "Schedulers compared" in answer.read().decode()


@pytest.mark.long
def test_an_empty_folder_shows_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wattherd.cli.main", "view", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
    assert done.returncode == 2
    assert "there is nothing to show" in done.stderr


def test_who_sees_old_numbers_is_told_so(browser: Any, dashboard: Dashboard) -> None:
    context = browser.new_context(base_url=dashboard.url)
    page = context.new_page()
    page.goto("/")
    notice = page.get_by_text("what you see is old")
    assert notice.is_hidden()
    context.set_offline(True)
    notice.wait_for(state="visible", timeout=MOST_S * 1000)
    context.set_offline(False)
    notice.wait_for(state="hidden", timeout=MOST_S * 1000)
    context.close()
