"""Which headers are passed on between a browser and a job's app, and which are not.

The app is its user's program: it must not learn the token by which somebody opened it. What it
answers is shown under the address of this service, where other pages act for whoever looks: so its
scripts are kept to its own addresses (content security policy), and pages of the two never hold on
to each other (`Cross-Origin-Opener-Policy` of all other answers, see `access.gate`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from wattherd.local.apps import App
from wattherd.server.auth.caller import Caller

Pairs = list[tuple[bytes, bytes]]
OURS = ("wattherd_", "__Host-wattherd_")
"""How names of the service's own cookies begin."""
HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
"""Of one connection only (RFC 9110, section 7.6.1)."""
NOT_ASKED = frozenset({b"authorization", b"cookie", b"forwarded", b"expect"})
HANDSHAKE = b"sec-websocket-"
NOT_ANSWERED = frozenset(
    {
        *(b"date", b"server", b"set-cookie", b"location", b"www-authenticate"),
        *(b"clear-site-data", b"cross-origin-opener-policy", b"service-worker-allowed"),
        *(b"strict-transport-security", b"alt-svc", b"nel", b"report-to", b"reporting-endpoints"),
    }
)
"""What speaks for the whole site, or is ours to say."""
SESSION_OF_CODE_SERVER = "code-server-session"
_HOST = re.compile(r"[\w.:\[\]-]{1,255}", re.ASCII)


def _hops(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    named = (value for name, value in headers if name == b"connection")
    return HOP_BY_HOP | {one.strip().lower() for value in named for one in value.split(b",")}


def asked(headers: Pairs, app: App, caller: Caller, *, scheme: str, address: str) -> Pairs:
    """What the app is asked with: the caller's words without his token, and ours."""
    hops = _hops(headers)
    host = next((value for name, value in headers if name == b"host"), b"")
    passed = [
        (name, value)
        for name, value in headers
        if name not in hops | NOT_ASKED
        and not name.startswith((HANDSHAKE, b"x-forwarded-", b"x-wattherd-"))
    ]
    cookies = "; ".join(value.decode("latin-1") for name, value in headers if name == b"cookie")
    return [
        *passed,
        *_proof(app, cookies),
        (b"x-forwarded-for", address.encode("latin-1", "replace")),
        (b"x-forwarded-proto", scheme.encode()),
        (b"x-forwarded-host", host),
        (b"x-forwarded-prefix", app.base.rstrip("/").encode()),
        (b"x-wattherd-user", caller.by.encode("utf-8")),
    ]


def _proof(app: App, cookies: str) -> Pairs:
    """That it is the service who asks, in the way that the app understands."""
    kept = [one for one in others_cookies(cookies) if not one.startswith(SESSION_OF_CODE_SERVER)]
    if app.kind == "vscode":
        kept.append(f"{SESSION_OF_CODE_SERVER}={app.secret}")
    proof: Pairs = [(b"cookie", "; ".join(kept).encode("latin-1"))] if kept else []
    if app.kind == "jupyter":
        proof.append((b"authorization", b"token " + app.secret.encode()))
    elif app.kind == "web":
        proof.append((b"x-wattherd-app-secret", app.secret.encode()))
    return proof


def others_cookies(cookies: str) -> list[str]:
    """Cookies that are not the service's own, each as `NAME=VALUE`."""
    pairs = [one.strip() for one in cookies.split(";")]
    return [one for one in pairs if one and not one.startswith(OURS)]


def answered(headers: Pairs, app: App, *, scheme: str, host: str, apart: bool = True) -> Pairs:
    """What is given of the app's answer; `apart` is whether it is shown at the apps' origin."""
    hops = _hops(headers)
    passed = [(name, value) for name, value in headers if name not in hops | NOT_ANSWERED]
    for name, value in headers:
        text = value.decode("latin-1")
        if name == b"location":
            passed.append((name, location(text, app).encode("latin-1")))
        elif name == b"set-cookie":
            passed += [(name, one.encode("latin-1")) for one in _own_cookies(text, app)]
    kept = "" if apart else "; sandbox"
    return [*passed, (b"content-security-policy", (policy(app, scheme, host) + kept).encode())]


def location(text: str, app: App) -> str:
    """Where a redirect leads, seen from outside: what the app calls `/` is its address here."""
    there = urlsplit(text)
    if there.netloc == f"127.0.0.1:{app.port}":
        text = there._replace(scheme="", netloc="").geturl() or "/"
    outside = app.keep_prefix or text.startswith(app.base)
    rooted = text.startswith("/") and not text.startswith("//")
    return app.base + text[1:] if rooted and not outside else text


def _own_cookies(text: str, app: App) -> Iterator[str]:
    """A cookie for the app's addresses alone, whatever it says; none under a name of ours."""
    jar = SimpleCookie()
    try:
        jar.load(text)
    except CookieError:
        return
    for name, morsel in jar.items():
        if not name.startswith(OURS):
            if not str(morsel["path"]).startswith(app.base):
                morsel["path"] = app.base
            morsel["domain"] = ""
            yield morsel.OutputString()


def policy(app: App, scheme: str, host: str) -> str:
    """Scripts of the app ask, send and frame nothing but the app (CSP level 3, with paths)."""
    named = host if _HOST.fullmatch(host) else "invalid"
    secure = "s" if scheme in ("https", "wss") else ""
    own = f"http{secure}://{named}{app.base}"
    wire = f"ws{secure}://{named}{app.base}"
    return (
        f"connect-src {own} {wire} blob: data:; form-action {own}; frame-src {own} blob: data:;"
        f" object-src 'none'; base-uri {own}; frame-ancestors 'self'"
    )


def is_foreign(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a page of another site makes the browser ask: no app is to hear of that."""
    known = dict(headers)
    origin = known.get(b"origin", b"").decode("latin-1")
    if origin and origin.partition("://")[2] != known.get(b"host", b"").decode("latin-1"):
        return True
    return known.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none")
