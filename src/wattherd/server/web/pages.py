"""Addresses of the dashboard. Every page is also served as the part of it that changes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any, cast
from urllib.parse import parse_qs, quote

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from wattherd.errors import ClusterError, UserError
from wattherd.model.event import ArrayLimited, BudgetChanged
from wattherd.server.api.http import done
from wattherd.server.api.routes.jobs import ACTIONS, all_handed_in, checked
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.auth.gate import COOKIE, AccessDesk, Denied
from wattherd.server.auth.rules import is_app
from wattherd.server.documents.arrays import array_of
from wattherd.server.journal.job_history import PastJob
from wattherd.server.site.site import LiveSite
from wattherd.server.web import now, queue, submission, timeline
from wattherd.server.web.array import array_view
from wattherd.server.web.cluster import cluster_view
from wattherd.server.web.compare import compare_report, compare_view
from wattherd.server.web.decisions import decisions_view
from wattherd.server.web.filters import wanted
from wattherd.server.web.forms import SESSION, Forms, keep, session_of
from wattherd.server.web.job import job_view
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.power import power_view
from wattherd.server.web.render import render, static, style_sheet
from wattherd.units import watts
from wattherd.workload.job_array import at_a_time

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
"""A report is one file, its script within it; it has nothing of other origins."""
Page = Annotated[int, Query(alias="page", ge=1, le=1_000_000)]
Text = Annotated[str, Query(max_length=200)]
MOST_FORM_BYTES = 10_000
KINDS = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}


class PageProblem(Exception):
    """Something that a caller is told on a page of its own."""

    def __init__(self, status: int, title: str, text: str) -> None:
        """`status` is the HTTP code."""
        super().__init__(title)
        self.status, self.title, self.text = status, title, text


def add_pages(app: FastAPI, scene: PageSource) -> None:
    """Serve the dashboard of a scene; who asks stands at `request.state.caller`."""
    app.state.scene = scene
    app.state.forms = Forms()
    app.add_exception_handler(PageProblem, _told)
    _routes(app)
    desk: AccessDesk | None = getattr(app.state, "desk", None)
    if desk is not None:
        desk.told = lambda denied, scope: _denied(denied, Request({**scope, "app": app}))


def _routes(app: FastAPI) -> None:
    """Each has its rule in `access.rules`."""
    for method, path, answer in (
        ("GET", "/", _now),
        ("GET", "/cluster", _cluster),
        ("GET", "/power", _power),
        ("GET", "/timeline", _timeline),
        ("GET", "/queue", _queue),
        ("GET", "/decisions", _decisions),
        ("GET", "/compare", _compare),
        ("GET", "/compare/{name}", _compared),
        ("GET", "/jobs/{job_id}", _job),
        ("POST", "/jobs/{job_id}/{action}", _act),
        ("GET", "/arrays/{array_id}", _array),
        ("POST", "/arrays/{array_id}/{action}", _act_on_array),
        ("POST", "/budget", _set_budget),
        ("GET", "/submit", _submission_page),
        ("POST", "/submit", _submit),
        ("GET", "/login", _login_page),
        ("POST", "/login", _log_in),
        ("POST", "/logout", _log_out),
        ("GET", "/static/{name}", _static),
    ):
        app.add_api_route(path, answer, methods=[method], include_in_schema=False)


# Who asks ---------------------------------------------------------------------------------------


def viewer(request: Request) -> Caller:
    """Who looks at a page."""
    caller: Caller = request.state.caller
    return caller


def _denied(denied: Denied, request: Request) -> Response:
    """Who shows no token is led to the login, anybody else told why not."""
    if request.headers.get("host") and _is_app_host(request):
        body = f"{denied.error}: {denied.hint}" if denied.hint else denied.error
        return Response(body, denied.status, media_type="text/plain")
    if denied.status == 401 and _comes_from_elsewhere(request):
        # The cookie stayed at home: a page of ours asks again, and then it comes along.
        there = quote(request.url.path, safe="/") + (
            f"?{request.url.query}" if request.url.query else ""
        )
        return html(request, render("logged_in.html.j2", **frame(request, None), there=there))
    if denied.status == 401:
        there = "/login?next=" + quote(request.url.path)
        if "hx-request" in request.headers:
            return Response(status_code=200, headers={"HX-Redirect": there})
        return RedirectResponse(there, status_code=303)
    title = "Permission denied" if denied.status == 403 else "Not possible"
    text = ". ".join(part[:1].upper() + part[1:] for part in (denied.error, denied.hint) if part)
    return _problem(request, PageProblem(denied.status, title, f"{text}."))


def _is_app_host(request: Request) -> bool:
    desk: AccessDesk | None = getattr(request.app.state, "desk", None)
    return desk is not None and desk.origins.of(request.headers["host"]) is not None


def _comes_from_elsewhere(request: Request) -> bool:
    """Whether a link of another site was followed to a job's pages."""
    asked_by = request.headers.get("sec-fetch-site")
    return is_app(request.url.path) and asked_by in ("cross-site", "same-site")


async def _told(request: Request, error: Exception) -> Response:
    """A problem as a page."""
    assert isinstance(error, PageProblem)  # noqa: S101 - registered for nothing else
    return _problem(request, error)


def _problem(request: Request, problem: PageProblem) -> Response:
    text = render(
        "problem.html.j2",
        **frame(request, getattr(request.state, "caller", None)),
        title=problem.title,
        text=problem.text,
    )
    return html(request, text, problem.status)


def frame(request: Request, caller: Caller | None) -> dict[str, Any]:
    """What every page needs; a session is begun where there is none yet."""
    forms: Forms = request.app.state.forms
    session = session_of(request) or secrets.token_urlsafe(32)
    request.state.session = session
    scene: PageSource = request.app.state.scene
    steers = caller is not None and caller.role.covers(Role.OPERATOR)
    return {
        "caller": caller,
        "may_steer": scene.keeper is not None and steers,
        "may_submit": (
            scene.keeper is not None and caller is not None and caller.role.covers(Role.USER)
        ),
        "form_secret": forms.signature(session),
        "path": request.url.path,
        "part": "hx-request" in request.headers,
        "live": scene.live,
        "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
    }


def html(request: Request, text: str, status: int = 200) -> HTMLResponse:
    """A page of ours, which runs no script but ours."""
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    answer = HTMLResponse(text, status_code=status, headers=headers)
    if not session_of(request):
        keep(request, answer, SESSION, request.state.session)
    return answer


async def page(
    request: Request, template: str, view: Callable[[PageSource, Caller], dict[str, Any]]
) -> Response:
    """A template filled by `view`."""
    caller = viewer(request)
    scene: PageSource = request.app.state.scene

    def work() -> str:
        return render(template, **frame(request, caller), **view(scene, caller))

    return html(request, await asyncio.to_thread(work))


async def form(request: Request, most_bytes: int = MOST_FORM_BYTES) -> dict[str, str]:
    """The fields of a form of ours.

    Raises:
        PageProblem: it comes from elsewhere, or is too long.
    """
    body = await request.body()
    if len(body) > most_bytes:
        raise PageProblem(413, "Too long", "No form here is that long.")
    fields = {
        name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()
    }
    forms: Forms = request.app.state.forms
    if not forms.is_ours(request, fields.get("form_secret", "")):
        text = "The form was sent from elsewhere, or is too old. Go back, reload, and try again."
        raise PageProblem(403, "Not accepted", text)
    return fields


# Pages ------------------------------------------------------------------------------------------


async def _now(request: Request, span: str = "5m") -> Response:
    chosen = span if span in now.SPANS_S else "5m"
    problem = request.query_params.get("problem", "")

    def view(scene: PageSource, caller: Caller) -> dict[str, Any]:
        return {**now.now_view(scene, caller, chosen), "problem": problem}

    return await page(request, "now.html.j2", view)


async def _cluster(request: Request, page_: Page = 1) -> Response:
    return await page(
        request, "cluster.html.j2", lambda scene, caller: cluster_view(scene, caller, page_)
    )


async def _power(request: Request, page_: Page = 1) -> Response:
    return await page(request, "power.html.j2", lambda scene, _: power_view(scene, page_))


async def _timeline(request: Request, span: str = "10m", page_: Page = 1) -> Response:
    chosen = span if span in timeline.SPANS_S else "10m"
    return await page(
        request,
        "timeline.html.j2",
        lambda scene, caller: timeline.timeline_view(
            scene, caller, chosen, wanted(dict(request.query_params)), page_
        ),
    )


async def _queue(
    request: Request, shown: str = "waiting", q: Text = "", page_: Page = 1
) -> Response:
    chosen = shown if shown in queue.SHOWN else "waiting"
    return await page(
        request,
        "queue.html.j2",
        lambda scene, caller: queue.queue_view(
            scene, caller, chosen, q, wanted(dict(request.query_params)), page_
        ),
    )


async def _decisions(
    request: Request, q: Text = "", page_: Page = 1, seq: int | None = None
) -> Response:
    return await page(
        request,
        "decisions.html.j2",
        lambda scene, caller: decisions_view(scene, caller, q, page_, seq),
    )


async def _compare(request: Request, run: Text = "") -> Response:
    return await page(request, "compare.html.j2", lambda scene, _: compare_view(scene, run))


async def _compared(request: Request, name: str) -> Response:
    scene: PageSource = request.app.state.scene
    text = await asyncio.to_thread(compare_report, scene, name)
    if text is None:
        raise PageProblem(404, "No such run", f"There is no run {name!r} in {scene.runs}.")
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


async def _job(request: Request, job_id: str) -> Response:
    def view(scene: PageSource, caller: Caller) -> dict[str, Any]:
        found = job_view(scene, caller, job_id)
        if found is None:
            raise PageProblem(404, "No such job", f"There is no job {job_id!r}, or not for you.")
        return found

    return await page(request, "job.html.j2", view)


async def _act(request: Request, job_id: str, action: str) -> Response:
    caller = viewer(request)
    await form(request)
    scene: PageSource = request.app.state.scene
    past = await asyncio.to_thread(scene.look, lambda look: look.history.get(job_id))
    if past is None or not caller.sees(past.spec) or action not in ACTIONS:
        raise PageProblem(404, "No such job", f"There is no job {job_id!r}, or not for you.")
    if not caller.touches(past.spec):
        whose = past.spec.user or "somebody else"
        raise PageProblem(403, "Permission denied", f"{job_id} belongs to {whose}.")
    await order(request, ACTIONS[action](at_s=0.0, job_id=job_id), caller=caller)
    return RedirectResponse(f"/jobs/{quote(job_id)}", status_code=303)


async def _array(request: Request, array_id: str, state: Text = "", page_: Page = 1) -> Response:
    problem = request.query_params.get("problem", "")

    def view(scene: PageSource, caller: Caller) -> dict[str, Any]:
        found = array_view(scene, caller, array_id, state, page_)
        if found is None:
            text = f"There is no array {array_id!r}, or not for you."
            raise PageProblem(404, "No such array", text)
        return {**found, "problem": problem}

    return await page(request, "array.html.j2", view)


async def _act_on_array(request: Request, array_id: str, action: str) -> Response:
    """Do something to all its tasks that are not over, or say how many run at a time."""
    caller = viewer(request)
    fields = await form(request)
    scene: PageSource = request.app.state.scene
    array = await asyncio.to_thread(scene.look, lambda look: array_of(look.history, array_id))
    if (
        array is None
        or not caller.sees(array.first.spec)
        or not (action in ACTIONS or action == "limit")
    ):
        text = f"There is no array {array_id!r}, or not for you."
        raise PageProblem(404, "No such array", text)
    if not caller.touches(array.first.spec):
        whose = array.first.spec.user or "somebody else"
        raise PageProblem(403, "Permission denied", f"{array_id} belongs to {whose}.")
    there = f"/arrays/{quote(array_id)}"
    if action == "limit":
        try:
            most = at_a_time(fields.get("most", ""))
        except UserError as error:
            return RedirectResponse(f"{there}?problem={quote(error.line())}", status_code=303)
        await order(request, ArrayLimited(at_s=0.0, array=array_id, most=most), caller=caller)
    else:
        live = await asyncio.to_thread(
            scene.look, lambda look: [one for one in array.jobs() if one in look.core.jobs]
        )
        if live:  # the last first, so that none begins in the place of one that ends before it
            await order(
                request, *(ACTIONS[action](at_s=0.0, job_id=one) for one in reversed(live)),
                caller=caller,
            )  # fmt: skip
    return RedirectResponse(there, status_code=303)


async def _set_budget(request: Request) -> Response:
    caller = viewer(request)
    fields = await form(request)
    asked = fields.get("budget", "").strip()
    try:
        budget_w = None if asked in ("", "none") else watts(asked, field="budget")
    except UserError as error:
        return RedirectResponse(f"/?problem={quote(error.line())}", status_code=303)
    await order(request, BudgetChanged(at_s=0.0, budget_w=budget_w), caller=caller)
    return RedirectResponse("/", status_code=303)


# Submission -------------------------------------------------------------------------------------


async def _submission_page(request: Request) -> Response:
    source = request.query_params.get("from", "")
    if not source:
        return _shown(request, submission.empty())
    past = await _source(request, source)
    if past is None:
        raise PageProblem(404, "No such job", f"There is no job {source!r}, or not for you.")
    scene: PageSource = request.app.state.scene
    first = await asyncio.to_thread(scene.look, lambda look: submission.first_of(look, past))
    return _shown(request, submission.from_job(past, viewer(request), first))


async def _source(request: Request, job_id: str) -> PastJob | None:
    scene: PageSource = request.app.state.scene
    caller = viewer(request)
    return cast(
        "PastJob | None",
        await asyncio.to_thread(
            scene.look, lambda look: submission.source_of(look, caller, job_id)
        ),
    )


def _shown(request: Request, filled: submission.FilledForm, status: int = 200) -> Response:
    scene: PageSource = request.app.state.scene
    if scene.keeper is None:
        raise PageProblem(409, "Nothing can change", "This is a look at what was left behind.")
    text = render("submit.html.j2", **frame(request, viewer(request)), form=filled)
    return html(request, text, status)


async def _submit(request: Request) -> Response:
    """Show the job file that the form makes, or hand it in as the API does."""
    fields = await form(request, submission.MOST_BYTES)
    scene: PageSource = request.app.state.scene
    site: LiveSite | None = getattr(request.app.state, "site", None)
    if scene.keeper is None or site is None:
        raise PageProblem(409, "Nothing can change", "This is a look at what was left behind.")
    caller, filled = viewer(request), submission.typed(fields)
    past = await _source(request, filled.source) if filled.source else None
    if past is not None and submission.is_own(past, caller):
        filled.variables = len(past.paper.get("environment") or {})
    try:
        document = submission.document_of(filled)
        filled.yaml = submission.yaml_of(document)
        job = submission.job_of(document, past, caller, also=filled.takes_environment)
        if fields.get("do") != "submit":
            await checked(site, caller, job)
            return _shown(request, filled)
        job_id = await done((await all_handed_in(site, caller, job, filled.key)).done)
    except UserError as error:
        filled.error = error
        return _shown(request, filled, 400)
    except ClusterError as error:
        text = f"{error}. It may have been kept: look at the queue before you send it again."
        raise PageProblem(503, "Not known", text) from None
    return RedirectResponse(f"/jobs/{quote(job_id)}", status_code=303)


async def order(request: Request, *events: Any, caller: Caller) -> None:
    """Have the keeper keep events, all of them or none.

    Raises:
        PageProblem: nothing can change here, or the store takes nothing.
    """
    scene: PageSource = request.app.state.scene
    if scene.keeper is None:
        raise PageProblem(409, "Nothing can change", "This is a look at what was left behind.")
    try:
        await done(scene.keeper.post_all(events, by=caller.by))
    except ClusterError as error:
        raise PageProblem(503, "Not done", f"{error}; nothing was changed") from None


# Login ------------------------------------------------------------------------------------------


async def _login_page(request: Request) -> Response:
    return _asked_to_log_in(request)


def _asked_to_log_in(request: Request, problem: str = "") -> Response:
    desk: AccessDesk | None = getattr(request.app.state, "desk", None)
    text = render(
        "login.html.j2",
        **frame(request, None),
        next=own_path(request),
        problem=problem,
        issuer=desk.issuer.name if desk is not None and desk.issuer is not None else "",
    )
    return html(request, text, 403 if problem else 200)


def own_path(request: Request) -> str:
    """Where to go after the login: an address of this site only."""
    there = request.query_params.get("next", "/")
    own = there.startswith("/") and not there.startswith(("//", "/\\"))
    return there if own else "/"


async def _log_in(request: Request) -> Response:
    fields = await form(request)
    token = fields.get("token", "").strip()
    desk: AccessDesk | None = getattr(request.app.state, "desk", None)
    if desk is None or desk.open or await _opens(request, desk, token):
        answer: Response = RedirectResponse(own_path(request), status_code=303)
        keep(request, answer, COOKIE, token)
        return answer
    return _asked_to_log_in(request, "No such token, or it is no longer good.")


async def _opens(request: Request, desk: AccessDesk, token: str) -> bool:
    """Whether a token is good; who shows many wrong ones has to wait.

    Raises:
        PageProblem: too many were wrong.
    """
    address = request.client.host if request.client else ""
    if desk.failures.wait_s(address, time.monotonic(), take=False):
        raise PageProblem(429, "Too many wrong tokens", "Wait a little, then try again.")
    try:
        known = await asyncio.to_thread(desk.tokens.caller, token)
        if known is None and desk.issuer is not None:
            known = await asyncio.to_thread(desk.issuer.caller, token)
    except ClusterError as error:
        raise PageProblem(503, "Not possible now", str(error)) from None
    if known is None:
        desk.failures.wait_s(address, time.monotonic())
    return known is not None


async def _log_out(request: Request) -> Response:
    await form(request)
    desk: AccessDesk | None = getattr(request.app.state, "desk", None)
    if desk is not None:
        desk.origins.end(request.cookies.get(COOKIE, ""))
    if desk is not None and desk.issuer is not None:
        desk.issuer.end(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


async def _static(name: str) -> Response:
    kind = next((kind for end, kind in KINDS.items() if name.endswith(end)), None)
    if name == "style.css":
        body = style_sheet().encode()
    else:
        try:
            body = static(name)
        except (FileNotFoundError, IsADirectoryError):
            kind = None
    if kind is None:
        raise PageProblem(404, "Not there", f"There is no {name!r} here.")
    headers = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type=kind, headers=headers)
