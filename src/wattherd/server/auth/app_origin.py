"""An origin of their own for pages that jobs serve, and how a browser gets there.

The pages are programs of users. Browsers keep origins apart: a page can neither read nor do
anything at an address with another host name or port in the name of whoever looks. So a job's pages
are shown at a host name of their own (`j-1-3f9a2c.localhost`, `j-1-3f9a2c.apps.example`) or, where
there is one name only, at another port. Our cookie stays where it is. The browser is handed over
with a ticket that is good for half a minute and for one use, and gets a cookie for that one app.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from wattherd.errors import UserError

ENTER = "/.wattherd/enter"
"""Where tickets are taken, on the apps' origin; no app has this address."""
TICKET_S, SESSION_S = 30.0, 12 * 3600.0
MOST_OF_APP, MOST_OF_CALLER, MOST = 20, 500, 10_000
"""Tickets, and sessions, of one caller: to one app, and to all; beyond that its own oldest ends.

Beyond the last, of all callers, the oldest of the caller ends who has most.
"""
COOKIE = "wattherd_app"
JOB = "{job}"
_LABEL = r"(?P<job>j-\d+)-(?P<mark>[0-9a-f]{6})"


@dataclass(frozen=True, slots=True)
class AppHost:
    """An address at which apps are shown: of one job, or, where `job` is None, of all."""

    job: str | None

    def shows(self, job_id: str) -> bool:
        """Whether pages of that job belong there."""
        return self.job in (None, job_id)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a ticket or a cookie stands for: one job's app, opened by who showed `shown`.

    `caller` stays the same from one login of a user to the next, as `shown` does not.
    """

    job_id: str
    caller: str
    shown: str
    until_s: float


class AppOrigins:
    """Knows the addresses of apps, and who has been handed over to which."""

    def __init__(
        self, url: str | None, mark: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`url` as in `app_url`; `mark` tells this store from others that number jobs alike.

        Raises:
            UserError: it is no such address.
        """
        self._url, self._clock = _checked(url), clock
        self._mark = hashlib.sha256(mark.encode()).hexdigest()[:6]
        named = r"{job}.localhost(:\d+)?" if url is None else re.escape(urlsplit(url).netloc)
        named = named.replace(re.escape(JOB), _LABEL).replace(JOB, _LABEL)
        self._host = re.compile(named, re.ASCII | re.IGNORECASE)
        self._tickets: dict[str, _Pass] = {}
        self._sessions: dict[str, _Pass] = {}
        self._changing = threading.Lock()

    def __len__(self) -> int:
        """How many tickets and sessions are kept."""
        return len(self._tickets) + len(self._sessions)

    @property
    def by_name(self) -> bool:
        """Whether each job has a host name of its own."""
        return self._url is None or JOB in self._url

    @property
    def port(self) -> int | None:
        """The port beside the service's own at which apps are shown; None if there is none."""
        return None if self.by_name or self._url is None else urlsplit(self._url).port

    def of(self, host: str) -> AppHost | None:
        """Whose address a `Host` is; None if it is none of apps."""
        found = self._host.fullmatch(host)
        if found is None:
            return None
        if not self.by_name:
            return AppHost(None)
        # Of another store: a page that a browser kept from there gets nothing here.
        known = found["mark"].lower() == self._mark
        return AppHost(found["job"].lower() if known else "")

    def address(self, job_id: str, scheme: str, host: str, *, here: bool) -> str | None:
        """Where the app of a job is shown to who asks at `host`; None if that is not set up.

        Without `app_url` only browsers that name this machine (`here`) have names for apps.
        """
        label = f"{job_id}-{self._mark}"
        if self._url is not None:
            return self._url.replace(JOB, label).rstrip("/")
        port = host.rpartition(":")[2]
        return (
            f"{scheme}://{label}.localhost{f':{port}' if port.isdigit() else ''}" if here else None
        )

    def cookie(self, job_id: str, *, secure: bool) -> tuple[str, str]:
        """Name and path of an app's cookie; only its own host can set one with `__Host-`."""
        if not self.by_name:
            return f"{COOKIE}_{job_id}", f"/jobs/{job_id}/app/"
        return f"__Host-{COOKIE}" if secure else COOKIE, "/"

    # Handing over -------------------------------------------------------------------------------

    def entry(self, address: str, job_id: str, shown: str, there: str, *, caller: str) -> str:
        """Where to send a browser that may open the app, with a new ticket; `there` is a path."""
        until_s = self._clock() + TICKET_S
        ticket = self._keep(self._tickets, _Pass(job_id, caller, shown, until_s))
        return f"{address}{ENTER}?job={quote(job_id)}&ticket={ticket}&next={quote(there, safe='')}"

    def redeem(self, ticket: str, job_id: str) -> str | None:
        """A session's cookie for a ticket, which is worth nothing from then on."""
        with self._changing:
            found = self._tickets.pop(_hash(ticket), None)
        if found is None or found.job_id != job_id or found.until_s <= self._clock():
            return None
        until_s = self._clock() + SESSION_S
        return self._keep(self._sessions, _Pass(job_id, found.caller, found.shown, until_s))

    def shown(self, cookie: str, job_id: str) -> str | None:
        """What was shown to us by who has this cookie for that app; it may be worthless by now."""
        found = self._sessions.get(_hash(cookie))
        if found is None or found.job_id != job_id or found.until_s <= self._clock():
            return None
        return found.shown

    def end(self, shown: str) -> None:
        """Whoever showed that has logged out."""
        with self._changing:
            for known in (self._tickets, self._sessions):
                for key in [key for key, one in known.items() if one.shown == shown]:
                    del known[key]

    def _keep(self, known: dict[str, _Pass], new: _Pass) -> str:
        secret = secrets.token_urlsafe(32)
        with self._changing:
            self._drop_expired()
            own = [key for key, one in known.items() if one.caller == new.caller]
            of_app = [key for key in own if known[key].job_id == new.job_id]
            if len(of_app) >= MOST_OF_APP:
                del known[of_app[0]]
            elif len(own) >= MOST_OF_CALLER:
                del known[own[0]]
            elif len(known) >= MOST:
                [(most, _)] = Counter(one.caller for one in known.values()).most_common(1)
                del known[next(key for key, one in known.items() if one.caller == most)]
            known[_hash(secret)] = new
        return secret

    def _drop_expired(self) -> None:
        """All of one kind are good for the same time, so the oldest are over first."""
        now_s = self._clock()
        for known in (self._tickets, self._sessions):
            while known and known[first := next(iter(known))].until_s <= now_s:
                del known[first]


def _checked(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url.replace(JOB, "job"))
    sound = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if not sound or parts.query or parts.fragment or "@" in parts.netloc:
        hint = "https://{job}.apps.example, or another port: https://gpu1.example:8701"
        raise UserError(f"{url!r} is no address for apps", field="app_url", hint=hint)
    if JOB in url and not urlsplit(url).netloc.startswith(f"{JOB}."):
        raise UserError("{job} is the first part of the name", field="app_url")
    if JOB not in url and parts.port is None:
        hint = "name another port than the service's, or write {job} into the name"
        raise UserError("has no port", field="app_url", hint=hint)
    return url


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
