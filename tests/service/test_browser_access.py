"""In a real browser: a login by way of another site, and what pages of a job cannot reach."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.dashboard_site import a_browser
from service.guarded import Guarded
from service.serving import free_port
from wattherd.server.auth.caller import Role

PROGRAM = Path(__file__).with_name("web_app.py")
MOST_MS = 60_000


@pytest.fixture
def browser() -> Iterator[Any]:
    """One for each test: what a hostile page leaves behind ends with it."""
    with a_browser() as browser:
        yield browser


def test_a_login_at_another_site_leads_to_the_page_that_was_asked_for(
    browser: Any, tmp_path: Path
) -> None:
    pytest.importorskip("jwt", reason="the extra `oidc` is not installed")
    from service.oidc_issuer import OidcIssuer
    from service.test_oidc import settings_of

    issuer = OidcIssuer("localhost")  # another site than 127.0.0.1, as browsers count
    guarded = Guarded(tmp_path / "state", oidc=settings_of(issuer, tmp_path, name="Example"))
    context = browser.new_context(base_url=guarded.url)
    try:
        page = context.new_page()
        page.set_default_timeout(MOST_MS)
        page.goto("/queue?shown=running")
        page.get_by_role("link", name="Log in by Example").click()
        page.wait_for_url("**/queue*")
        assert "ann" in page.locator("header").inner_text()
        page.goto("/")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login*")
        page.goto("/queue")
        assert page.url.startswith(f"{guarded.url}/login")
    finally:
        context.close()
        guarded.close()
        issuer.end()


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", ["a name", "a port"])
def test_a_page_of_a_job_does_nothing_in_the_name_of_who_opens_it(
    browser: Any, tmp_path: Path, by: str
) -> None:
    """An admin opens the pages of a user, who reaches for tokens and the budget."""
    port = free_port()
    url = {"app_url": f"http://127.0.0.1:{port}"} if by == "a port" else {}
    guarded = Guarded(tmp_path / "state", **url)
    guarded.let_in("user", Role.USER, "a")
    guarded.let_in("admin", Role.ADMIN)
    run: Any = [sys.executable, str(PROGRAM)]
    job = guarded.submit("user", run, app="web")
    context = browser.new_context(base_url=guarded.url)
    try:
        cookie = {"name": "wattherd_token", "value": guarded.tokens["admin"], "httpOnly": True}
        context.add_cookies([{**cookie, "url": guarded.url, "sameSite": "Strict"}])
        page = context.new_page()
        page.set_default_timeout(MOST_MS)
        guarded.until(lambda: guarded.ask("GET", f"/jobs/{job}/app/", "user").status == 200)
        page.goto(f"/jobs/{job}/app/hostile?ours={guarded.url}")
        assert not page.url.startswith(guarded.url)
        page.wait_for_function("document.title.startsWith('{')")
        told = json.loads(page.title())
        assert (told.pop("own"), told.pop("own socket")) == ("200", "spoken")
        assert told.pop("own cookies") == "none of ours"
        told.pop(
            "beacon"
        )  # nobody is told what became of one: what it asked for is looked at below
        assert set(told.values()) == {"blocked"}, told
        with context.expect_page() as opened:
            page.get_by_role("button").click()
        opened.value.wait_for_load_state()
        page.wait_for_function("document.title.startsWith('opened')")
        assert page.title() in ("opened: closed", "opened: blocked")
        opened.value.close()  # a context with a page that another has opened may never close
        tokens = guarded.ask("GET", "/api/v1/tokens", "admin").json["tokens"]
        assert [one["user"] for one in tokens] == ["user", "admin"]
        assert guarded.ask("GET", "/api/v1/power", "admin").json["budget_w"] is None
        page.goto("/")  # the person's own pages work as before
        page.get_by_label("Budget").first.fill("6kW")
        page.keyboard.press("Enter")
        guarded.until(
            lambda: guarded.ask("GET", "/api/v1/power", "admin").json["budget_w"] == 6000.0
        )
    finally:
        # The context ends with its browser: where a page has opened another, to close it may hang.
        guarded.close()
