"""Single sign-on against a real issuer on loopback: whom it vouches for, and whom it does not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("jwt", reason="the extra `oidc` is not installed")
pytest.importorskip("cryptography", reason="the extra `oidc` is not installed")

import jwt
from cryptography.hazmat.primitives import serialization

from service.guarded import Guarded, Reply
from service.oidc_issuer import CLIENT, SECRET, Key, OidcIssuer
from service.serving import free_port, until
from service.test_oidc_settings import RULES
from wattherd.errors import UserError
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.auth.oidc import NotLoggedIn
from wattherd.server.auth.oidc import issuer as issuer_module
from wattherd.server.auth.oidc.issuer import IssuerDown
from wattherd.server.auth.oidc.settings import OidcSettings
from wattherd.server.auth.oidc.sign_in import SignIn

V1 = "/api/v1"
HTML = "text/html,*/*"


def settings_of(issuer: OidcIssuer, folder: Path, **more: Any) -> OidcSettings:
    secret = folder / "secret"
    secret.write_text(SECRET + "\n")
    known = {"issuer": issuer.url, "client_id": CLIENT, "client_secret": f"file:{secret}"}
    return OidcSettings.model_validate({**known, "rules": RULES, **more})


@pytest.fixture(scope="module")
def served() -> Iterator[OidcIssuer]:
    issuer = OidcIssuer()
    yield issuer
    issuer.end()


@pytest.fixture
def issuer(served: OidcIssuer) -> OidcIssuer:
    """As it began: one key, no lies."""
    served.keys, served.changes, served.userinfo = served.keys[:1], {}, None
    served.asked.clear()
    return served


@pytest.fixture
def sign_in(issuer: OidcIssuer, tmp_path: Path) -> SignIn:
    return SignIn(settings_of(issuer, tmp_path))


# Tokens -----------------------------------------------------------------------------------------


def test_a_token_of_the_issuer_opens_what_its_claims_allow(
    issuer: OidcIssuer, sign_in: SignIn
) -> None:
    ann = sign_in.caller(issuer.token())
    assert ann == Caller(user="ann", role=Role.USER, tenant="vision", token="oidc:1234")
    boss = sign_in.caller(issuer.token(groups=["vision", "admins"], preferred_username="boss"))
    assert boss is not None
    assert (boss.role, boss.tenant) == (Role.ADMIN, "")
    eve = sign_in.caller(issuer.token(groups=None, realm={"roles": ["watch"]}, team="nlp"))
    assert eve is not None
    assert (eve.role, eve.tenant) == (Role.VIEWER, "nlp")


def forged(issuer: OidcIssuer, algorithm: str, secret: bytes = b"") -> str:
    """A token that was not signed by the issuer's key, but says that it was."""
    head = _part({"alg": algorithm, "kid": "first"})
    said = f"{head}.{issuer.token().split('.')[1]}"
    mac = hmac.new(secret, said.encode(), hashlib.sha256).digest() if secret else b""
    return f"{said}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _part(document: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def wrong(issuer: OidcIssuer) -> dict[str, str]:
    now = int(time.time())
    pem = (
        issuer.keys[0]
        .private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    stranger = Key("first")
    head, body, signature = issuer.token().split(".")
    other = json.loads(base64.urlsafe_b64decode(body + "=="))
    other["groups"] = ["admins"]
    changed = _part(other)
    return {
        "another issuer": issuer.token(iss=issuer.url + "x"),
        "no issuer": issuer.token(iss=None),
        "another audience": issuer.token(aud="somebody"),
        "no audience": issuer.token(aud=None),
        "expired": issuer.token(exp=now - 60),
        "without an end": issuer.token(exp=None),
        "not yet": issuer.token(nbf=now + 120),
        "of the future": issuer.token(iat=now + 120),
        "nobody's": issuer.token(sub=None),
        "unsigned": forged(issuer, "none"),
        "signed by the public key": forged(issuer, "HS256", pem),
        "of another key": issuer.token(stranger),
        "of an unknown key": issuer.token(Key("unknown")),
        "changed": f"{head}.{changed}.{signature}",
        "of a logout": issuer.token(headers={"typ": "logout+jwt"}),
        "without a role": issuer.token(groups=["others"]),
        "without a user": issuer.token(preferred_username=None),
        "with an odd user": issuer.token(preferred_username="a b\n"),
        "no token": "a.b.c",
        "too long": issuer.token(pad="x" * 20_000),
    }


def test_tokens_that_do_not_hold_open_nothing(issuer: OidcIssuer, sign_in: SignIn) -> None:
    assert sign_in.caller(issuer.token()) is not None
    for what, token in wrong(issuer).items():
        assert sign_in.caller(token) is None, what


def test_only_algorithms_that_are_allowed_are_tried(issuer: OidcIssuer, tmp_path: Path) -> None:
    curve = Key("curve", "ES256")
    issuer.keys = [*issuer.keys, curve]
    assert SignIn(settings_of(issuer, tmp_path)).caller(issuer.token(curve)) is not None
    narrow = SignIn(settings_of(issuer, tmp_path, algorithms=["RS256"]))
    assert narrow.caller(issuer.token(curve)) is None
    assert issuer.asked.count("/realm/keys") == 1  # the narrow one did not even ask
    confused = jwt.encode({"sub": "1"}, issuer.keys[0].private, "RS256", {"kid": "curve"})
    assert SignIn(settings_of(issuer, tmp_path)).caller(confused) is None


def test_a_new_key_is_found_and_an_old_one_forgotten(
    issuer: OidcIssuer, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = issuer.keys[0], Key("second")
    try:
        assert sign_in.caller(issuer.token()) is not None
        issuer.keys = [second]
        monkeypatch.setattr(issuer_module, "RETRY_S", 0.0)
        assert sign_in.caller(issuer.token()) is not None
        assert sign_in.caller(issuer.token(first)) is None
    finally:
        issuer.keys = [first]


def test_made_up_keys_do_not_make_us_ask_again_and_again(
    issuer: OidcIssuer, sign_in: SignIn
) -> None:
    strangers = Key("stranger")
    for number in range(20):
        assert sign_in.caller(issuer.token(strangers, {"kid": str(number)})) is None
    assert issuer.asked.count("/realm/keys") == 1


def test_while_the_issuer_is_down_what_is_known_goes_on(
    issuer: OidcIssuer, sign_in: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, fresh = issuer.token(), SignIn(settings_of(issuer, tmp_path))
    session = sign_in.sessions.begin(Caller(user="ann", role=Role.USER))
    assert sign_in.caller(token) is not None
    issuer.end()
    try:
        monkeypatch.setattr(issuer_module, "FRESH_S", 0.0)
        monkeypatch.setattr(issuer_module, "RETRY_S", 0.0)
        assert sign_in.caller(token) is not None  # its keys are old, but known
        assert sign_in.caller(session) is not None
        with pytest.raises(IssuerDown, match=r"cannot be asked: .*refused"):
            fresh.caller(token)
        with pytest.raises(IssuerDown):
            fresh.begin("http://here", "/")
        assert fresh.caller("wh_1_2") is None  # what is not the issuer's is not its matter
        monkeypatch.setattr(issuer_module, "STALE_S", 0.0)
        with pytest.raises(IssuerDown):
            sign_in.caller(token)
    finally:
        issuer.begin()
    monkeypatch.setattr(issuer_module, "DOWN_S", 0.0)
    monkeypatch.setattr(issuer_module, "STALE_S", 60.0)
    assert fresh.caller(token) is not None


@pytest.mark.parametrize("change", ["issuer", "jwks_uri", "token_endpoint"])
def test_an_issuer_that_is_not_what_it_says_is_not_believed(
    issuer: OidcIssuer, sign_in: SignIn, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {**issuer.document(), change: "http://elsewhere.example/"}
    monkeypatch.setattr(issuer, "document", lambda: document)
    with pytest.raises(IssuerDown, match=r"calls itself|no safe address"):
        sign_in.caller(issuer.token())


# Logging in, without a browser ------------------------------------------------------------------


def test_whoever_logs_in_there_is_logged_in_here(issuer: OidcIssuer, sign_in: SignIn) -> None:
    begun = sign_in.begin("http://here", "/queue")
    back = issuer.log_in(begun.url, preferred_username="bob", groups=["admins"])
    caller, shown, there = sign_in.finish(begun.cookie, back)
    assert (caller.user, caller.role, there) == ("bob", Role.ADMIN, "/queue")
    assert sign_in.caller(shown) == caller
    sign_in.end(shown)
    assert sign_in.caller(shown) is None


def test_claims_that_only_the_userinfo_has_count_too(issuer: OidcIssuer, sign_in: SignIn) -> None:
    for subject, may in (("1234", True), ("4321", False)):
        begun = sign_in.begin("http://here", "/")
        back = issuer.log_in(begun.url, groups=None)
        issuer.userinfo = {"sub": subject, "groups": ["admins"]}
        if may:
            assert sign_in.finish(begun.cookie, back)[0].role is Role.ADMIN
        else:
            with pytest.raises(NotLoggedIn, match="no role here"):
                sign_in.finish(begun.cookie, back)


def test_logins_that_are_not_what_was_begun_fail(
    issuer: OidcIssuer, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = sign_in.begin("http://here", "/")
    other = sign_in.begin("http://here", "/")
    good = issuer.log_in(begun.url)
    for cookie, query, why in (
        ("", good, "has begun no login"),
        (begun.cookie[:-1] + "x", good, "has begun no login"),
        (other.cookie, good, "not the login that was begun"),
        (begun.cookie, {**good, "state": ""}, "not the login that was begun"),
        (begun.cookie, {**good, "iss": "https://other.example"}, "another issuer"),
        (begun.cookie, {"state": good["state"], "error": "access_denied"}, "access_denied"),
    ):
        with pytest.raises(NotLoggedIn, match=why):
            sign_in.finish(cookie, query)
    for changes, why in (
        ({"nonce": "another"}, "of another login"),
        ({"azp": "somebody"}, "for another client"),
        ({"aud": "somebody"}, "does not hold"),
        ({"exp": 1}, "expired"),
        ({"groups": []}, "no role here"),
    ):
        issuer.changes = changes
        with pytest.raises(NotLoggedIn, match=why):
            sign_in.finish(begun.cookie, issuer.log_in(begun.url))
    issuer.changes = {}
    with pytest.raises(IssuerDown, match="invalid_grant"):  # the code is of another challenge
        sign_in.finish(begun.cookie, {**issuer.log_in(other.url), "state": good["state"]})
    sign_in.finish(begun.cookie, good)
    with pytest.raises(IssuerDown, match="invalid_grant"):  # and is good once
        sign_in.finish(begun.cookie, good)
    late = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: late)
    with pytest.raises(NotLoggedIn, match="too long"):
        sign_in.finish(begun.cookie, good)


def test_a_secret_that_cannot_be_read_is_told_at_once(issuer: OidcIssuer, tmp_path: Path) -> None:
    for place in ("file:/none", "env:NO_SUCH_VARIABLE", "plain"):
        with pytest.raises(UserError, match=r"oidc\.client_secret"):
            SignIn(settings_of(issuer, tmp_path, client_secret=place))


# The whole service ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(served: OidcIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("site")
    oidc = settings_of(served, folder, name="Example login")
    guarded = Guarded(folder / "state", oidc=oidc)
    guarded.let_in("operator", Role.OPERATOR)
    yield guarded
    guarded.close()


def cookies(reply: Reply) -> str:
    return "; ".join(re.findall(r"(wattherd_\w+=[^;,]+)", reply.headers.get("set-cookie", "")))


def logged_in(guarded: Guarded, issuer: OidcIssuer, **person: Any) -> tuple[Reply, str]:
    """What the browser gets in the end, and the cookies that it then has."""
    first = guarded.ask("GET", "/login/oidc?next=/queue", accept=HTML)
    assert first.status == 303
    query = urllib.parse.urlencode(issuer.log_in(first.headers["location"], **person))
    path = f"/login/oidc/callback?{query}"
    last = guarded.ask("GET", path, accept=HTML, cookie=cookies(first))
    return last, cookies(last)


def test_the_api_takes_tokens_of_the_issuer(guarded: Guarded, issuer: OidcIssuer) -> None:
    def ask(token: str, method: str = "GET", path: str = "/whoami", body: Any = None) -> Reply:
        return guarded.ask(method, V1 + path, body=body, authorization=f"Bearer {token}")

    who = ask(issuer.token()).json
    assert (who["user"], who["role"], who["tenant"]) == ("ann", "user", "vision")
    assert ask(issuer.token(), "POST", "/jobs", {"run": "true"}).json["tenant"] == "vision"
    assert ask(issuer.token(), "PUT", "/power", {"budget": None}).status == 403
    assert ask(issuer.token(groups=["admins"]), path="/tokens").status == 200
    for what in ("expired", "unsigned", "another issuer", "without a role"):
        guarded.desk.failures._buckets.clear()
        assert ask(wrong(issuer)[what]).status == 401, what
    guarded.desk.failures._buckets.clear()
    assert guarded.ask("GET", f"{V1}/whoami", "operator").status == 200  # our own go on
    assert guarded.ask("GET", f"{V1}/whoami").status == 401


def test_a_browser_logs_in_and_out(guarded: Guarded, issuer: OidcIssuer) -> None:
    login = guarded.ask("GET", "/login?next=/queue", accept=HTML)
    assert 'href="/login/oidc?next=/queue"' in login.text
    assert "Example login" in login.text
    last, own = logged_in(guarded, issuer)
    assert last.status == 200
    assert 'content="0;url=/queue"' in last.text
    assert "SameSite=strict" in last.headers["set-cookie"]
    page = guarded.ask("GET", "/queue", accept=HTML, cookie=own)
    assert page.status == 200
    secret = re.search(r'name="form_secret" value="(\w+)"', page.text)
    assert secret is not None
    body = f"form_secret={secret[1]}".encode()
    out = guarded.ask("POST", "/logout", body=body, accept=HTML, cookie=own)
    assert out.status == 303
    again = guarded.ask("GET", "/queue", accept=HTML, cookie=own)
    assert (again.status, again.headers["location"]) == (303, "/login?next=/queue")
    lines = guarded.desk.audit.lines(50, by="vision/ann")
    assert any(one["path"] == "/login/oidc/callback" for one in lines)


def test_people_without_a_role_are_told_so_and_get_nothing(
    guarded: Guarded, issuer: OidcIssuer
) -> None:
    last, own = logged_in(guarded, issuer, groups=["others"])
    assert (last.status, "no role here" in last.text) == (403, True)
    assert "wattherd_token" not in own
    odd = guarded.ask("GET", "/login/oidc/callback?error=%3Cscript%3E&state=x", accept=HTML)
    assert odd.status == 403
    assert "<script>" not in odd.text


def test_next_leads_nowhere_else(guarded: Guarded, issuer: OidcIssuer) -> None:
    for there in ("//evil.example", "https://evil.example", "/\\evil.example"):
        first = guarded.ask("GET", f"/login/oidc?next={urllib.parse.quote(there)}", accept=HTML)
        query = urllib.parse.urlencode(issuer.log_in(first.headers["location"]))
        path = f"/login/oidc/callback?{query}"
        last = guarded.ask("GET", path, accept=HTML, cookie=cookies(first))
        assert 'content="0;url=/"' in last.text


def test_a_service_goes_on_while_its_issuer_is_down(served: OidcIssuer, tmp_path: Path) -> None:
    served.end()
    guarded = Guarded(tmp_path / "state", oidc=settings_of(served, tmp_path))
    try:
        guarded.let_in("operator", Role.OPERATOR)
        token = served.token()
        reply = guarded.ask("GET", f"{V1}/whoami", authorization=f"Bearer {token}")
        assert (reply.status, "cannot be asked" in reply.json["error"]) == (503, True)
        page = guarded.ask("GET", "/login/oidc", accept=HTML)
        assert (page.status, "log in by a token" in page.text) == (503, True)
        assert guarded.ask("GET", f"{V1}/whoami", "operator").status == 200
    finally:
        served.begin()
        guarded.close()


# Somebody else's issuer -------------------------------------------------------------------------


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of an issuer of another project, in a process of its own."""
    if importlib.util.find_spec("oidc_provider_mock") is None:
        pytest.skip("oidc-provider-mock is not installed")
    port = free_port()
    ann = json.dumps({"sub": "ann", "email": "ann@example.org"})
    program = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    program += ["--user-claims", ann]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(program, **quiet) as process:  # type: ignore[call-overload]
        try:
            until(lambda: _answers(port))
            yield f"http://localhost:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.long
def test_a_login_at_an_issuer_that_is_not_ours(elsewhere: str, tmp_path: Path) -> None:
    settings = OidcSettings.model_validate(
        {"issuer": elsewhere, "client_id": CLIENT, "client_secret": _secret(tmp_path),
         "user_claim": "email", "rules": [{"claim": "sub", "value": "ann", "role": "admin"}]}
    )  # fmt: skip
    sign_in = SignIn(settings)
    begun = sign_in.begin("http://127.0.0.1:1", "/power")
    back = _approved(begun.url, "ann")
    caller, shown, there = sign_in.finish(begun.cookie, back)
    assert (caller.user, caller.role, there) == ("ann@example.org", Role.ADMIN, "/power")
    assert sign_in.caller(shown) == caller


def _secret(folder: Path) -> str:
    (folder / "client-secret").write_text(SECRET)
    return f"file:{folder / 'client-secret'}"


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _approved(url: str, subject: str) -> dict[str, str]:
    """The form of the login page, sent; what the browser would bring back."""
    body = urllib.parse.urlencode({"sub": subject}).encode()
    try:
        with urllib.request.build_opener(_Stay()).open(url, body, timeout=30) as answer:
            location = answer.headers["location"]
    except urllib.error.HTTPError as redirect:
        with redirect:
            location = redirect.headers["location"]
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(location).query))
