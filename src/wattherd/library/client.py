"""Talks to a service: JSON over HTTP, by the rules of `devices.wire.http_client`."""

from __future__ import annotations

import getpass
import json
import re
import shlex
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from wattherd import __version__
from wattherd.devices.wire.http_client import (
    HttpAnswer,
    HttpClient,
    HttpRequest,
    HttpRules,
    NoAnswer,
    origin_of,
)
from wattherd.errors import MOST_WORDS, UserError, harmless, words
from wattherd.library.contexts import DEFAULT_SERVER, ChosenService, chosen
from wattherd.library.table import Table

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

TIMEOUT_S = 60.0
"""For a whole answer. The service itself waits 30 s for a plan under way."""
MOST_BYTES = 256 << 20
POLL_S = 0.5
"""Between looks at a job that is waited for."""
ENERGY_BY = ("job", "user", "tenant", "queue", "state")
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Before a job is handed in again that the service could not keep, or does not know whether."""
_LATER = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


class NotThere(UserError):
    """What was asked for does not exist."""

    exit_code = 3


class ServiceUnreachable(UserError):
    """Nobody answers."""

    exit_code = 4


class RefusedByService(UserError):
    """The service does not let this user do this."""

    exit_code = 5


class Client:
    """One service, as one user."""

    def __init__(self, server: str | None = None, *, found: ChosenService | None = None) -> None:
        """`server` is an address or a context's name; what is not said is as `chosen` finds it.

        Raises:
            UserError: the address is none, or a file cannot be used.
        """
        found = found or chosen(server)
        self.server = found.server
        try:
            origin = origin_of(self.server)
        except ValueError:
            hint = f"write {DEFAULT_SERVER}"
            raise UserError(f"{self.server!r} is no address", field="--server", hint=hint) from None
        self._base = urllib.parse.urlsplit(self.server).path
        self._token = found.token
        self._headers = {"content-type": "application/json", **_credentials(found.token)}
        rules = HttpRules(
            timeout_s=TIMEOUT_S,
            most_bytes=MOST_BYTES,
            tls=_authority(found.ca) if origin.scheme == "https" else None,
            proxies=True,
            redirects=True,
            again=True,
        )
        self._http = HttpClient(origin, rules)

    def get(self, path: str, **query: object) -> Any:
        """A document.

        Raises:
            UserError: refused, not there, or nobody answers.
        """
        return self._json("GET", path, query)

    def post(self, path: str, body: Any = None, **query: object) -> Any:
        """Ask for something to be done; as `get`."""
        return self._json("POST", path, query, body)

    def put(self, path: str, body: Any) -> Any:
        """Set something; as `get`."""
        return self._json("PUT", path, {}, body)

    def patch(self, path: str, body: Any, **query: object) -> Any:
        """Change parts of something; as `get`."""
        return self._json("PATCH", path, query, body)

    def delete(self, path: str, **query: object) -> Any:
        """Do away with something; as `get`."""
        return self._json("DELETE", path, query)

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        """A text as it comes; as `get`."""
        try:
            with self._http.stream(self._request("GET", path, query)) as incoming:
                if incoming.status >= HTTPStatus.BAD_REQUEST:
                    body = incoming.whole(MOST_BYTES)
                    raise _refusal(HttpAnswer(incoming.status, incoming.reason, {}, body))
                yield from incoming.chunks()
        except NoAnswer as failure:
            raise self._unreachable(failure) from None

    def socket(self, path: str) -> ClientConnection:
        """A WebSocket, by the same rules.

        Raises:
            UserError: as `get`.
        """
        try:
            from websockets.exceptions import InvalidHandshake, InvalidStatus
            from websockets.sync.client import connect
        except ImportError as missing:
            hint = 'pip install "wattherd[server]"'
            raise UserError(f"needs {missing.name}", hint=hint) from None
        request = self._request("GET", path, {"user": getpass.getuser()})
        tls = self._http.origin.scheme == "https"
        try:
            raw = self._http.connect(request)
            return connect(
                f"{'wss' if tls else 'ws'}://{self._http.origin.authority}{request.target}",
                sock=raw,
                ssl=self._http.rules.tls if tls else None,
                server_hostname=self._http.origin.host if tls else None,
                proxy=None,
                additional_headers=_credentials(self._token),
                user_agent_header=f"wattherd/{__version__}",
                compression=None,
                open_timeout=TIMEOUT_S,
                max_queue=None,  # who sends waits until we have taken what came
            )
        except NoAnswer as failure:
            raise self._unreachable(failure) from None
        except InvalidStatus as refused:
            answer = refused.response
            body = bytes(answer.body or b"")
            raise _refusal(HttpAnswer(answer.status_code, answer.reason_phrase, {}, body)) from None
        except (OSError, InvalidHandshake) as error:
            raise ServiceUnreachable(f"no answer: {words(error)}", where=self.server) from None

    # What people ask for most, by its name; everything else is `get` and `post` with a path of the
    # API (docs/reference/api.md).

    def submit(self, run: str | Sequence[str], **fields: Any) -> dict[str, Any]:
        """Hand in a job and say what became of it: its id, state and reason.

        Args:
            run: a command line for the shell, or a program and its arguments.
            fields: of a job file (docs/reference/job-files.md), such as `gpus`, `name`, `queue`.

        Raises:
            UserError: refused, with the field; or nobody answers. Handing in is never done twice.
        """
        command = run if isinstance(run, str) else shlex.join(run)
        return dict(self.post("jobs", {"run": command, **fields}))

    def job(self, job_id: str) -> dict[str, Any]:
        """A job's document; as `get`."""
        return dict(self.get(f"jobs/{_part(job_id)}"))

    def explain(self, job_id: str) -> dict[str, Any]:
        """Why a job waits, and what would help; as `get`."""
        return dict(self.get(f"jobs/{_part(job_id)}/explain"))

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Stop a job, or take it from its queue; as `get`."""
        return dict(self.post(f"jobs/{_part(job_id)}/cancel"))

    def queue(self, **asked: Any) -> Table:
        """Live jobs, in order of submission; `user`, `queue`, `state`, `label` narrow them."""
        return _job_table(self._live(asked))

    def history(self, limit: int = 1000, **asked: Any) -> Table:
        """Jobs that ended and those that live, the newest first, at most `limit`."""
        return _job_table(self.get("jobs", over=True, limit=limit, **asked)["jobs"])

    def power(self) -> dict[str, Any]:
        """What the site draws of its budget; as `get`."""
        return dict(self.get("power"))

    def set_budget(self, budget: str | None) -> dict[str, Any]:
        """Set the site's budget, as `12kW`; None lifts it. Of operators only; as `get`."""
        return dict(self.put("power", {"budget": budget}))

    def wait(self, job_id: str, timeout_s: float | None = None) -> dict[str, Any]:
        """The job's document once it is over, or when `timeout_s` have passed."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.job(job_id)
            if found["finished"] or (end_s is not None and time.monotonic() >= end_s):
                return found
            time.sleep(POLL_S)

    def watch(self, **asked: Any) -> Iterator[dict[str, Any]]:
        """What happens, as it happens: state changes, watts, budgets (docs/reference/api.md).

        Ends when the service does, or with `follow=False` once the past is told.
        """
        yield from parsed(self.stream("events", **asked))

    def energy(self, by: str = "tenant", limit: int = 100_000) -> Table:
        """Joules of jobs, live and ended, by `job`, `user`, `tenant`, `queue` or `state`.

        Raises:
            UserError: there is no such way to sum; or as `get`.
        """
        if by not in ENERGY_BY:
            raise UserError(f"cannot sum energy by {by!r}", field="by", hint=", ".join(ENERGY_BY))
        key = "id" if by == "job" else by
        sums: dict[str, list[float]] = {}
        for one in self.get("jobs", over=True, limit=limit)["jobs"]:
            jobs, energy_j = sums.get(str(one[key]), [0, 0.0])
            sums[str(one[key])] = [jobs + 1, energy_j + one["energy_j"]]
        return Table.of_rows(
            {by: name, "jobs": int(jobs), "energy_j": energy_j}
            for name, (jobs, energy_j) in sorted(sums.items(), key=lambda item: -item[1][1])
        )

    def _live(self, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        after: int | None = None
        while True:
            page = self.get("jobs", **{**asked, "after": after})
            yield from page["jobs"]
            after = page.get("after")
            if after is None:
                return

    def _json(self, method: str, path: str, query: dict[str, object], body: Any = None) -> Any:
        if method != "GET":  # where no token says who it is, the name of the account does
            query = {"user": getpass.getuser(), **query}
        request = self._request(method, path, query, body)
        try:
            answer = self._http.ask(request)
            for pause_s in PAUSES_S if "idempotency-key" in request.headers else ():
                if answer.status not in _LATER:
                    break
                time.sleep(pause_s)
                answer = self._http.ask(request)  # the same key: it is never done twice
        except NoAnswer as failure:
            raise self._unreachable(failure) from None
        if not 200 <= answer.status < 300:
            raise _refusal(answer)
        try:
            return document_of(answer.body)
        except ValueError:
            raise UserError("what answers there is no wattherd", where=self.server) from None

    def _request(
        self, method: str, path: str, query: dict[str, object], body: Any = None
    ) -> HttpRequest:
        given = {name: _text(value) for name, value in query.items() if value is not None}
        target = f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(given, doseq=True)}"
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers
        if method == "POST" and (path in ("jobs", "arrays") or path.endswith("/rerun")):
            # Where the answer is lost, asking again gives the job that was made, not another.
            headers = {**headers, "idempotency-key": str(uuid.uuid4())}
        return HttpRequest(method, target, headers, data)

    def _unreachable(self, failure: NoAnswer) -> ServiceUnreachable:
        hint = "start one with `wattherd serve`, or `wattherd login ADDRESS`, or --server"
        return ServiceUnreachable(
            f"no answer: {failure.problem}", where=self.server, hint=failure.hint or hint
        )


def parsed(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Events of a stream as it comes, each with its kind as `event` and its `event_id`."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for block in whole:
            fields = dict(one.split(": ", 1) for one in block.decode().split("\n") if ": " in one)
            if "data" in fields:
                named = {"event": fields.get("event", ""), "event_id": fields.get("id", "")}
                yield {**named, **document_of(fields["data"].encode())}


def _job_table(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """What jobs' documents say in one word or number, and their reason."""
    rows = []
    for one in jobs:
        row = {k: v for k, v in one.items() if v is None or isinstance(v, str | int | float)}
        reason = one.get("reason")
        rows.append({**row, "reason": reason["text"] if reason else None})
    return Table.of_rows(rows)


def _part(name: str) -> str:
    """A name as one part of a path."""
    return urllib.parse.quote(name, safe="")


def _text(value: object) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _credentials(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def _authority(path: str) -> ssl.SSLContext:
    """Certificates are always checked; a file adds one to those of the system."""
    context = ssl.create_default_context()
    try:
        if path:
            context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        hint = "a PEM file, named by WATTHERD_CA or the context"
        raise UserError(f"cannot be used: {error}", where=path, hint=hint) from None
    return context


_KINDS: dict[int, type[UserError]] = {
    HTTPStatus.NOT_FOUND: NotThere,
    HTTPStatus.UNAUTHORIZED: RefusedByService,
    HTTPStatus.FORBIDDEN: RefusedByService,
    HTTPStatus.TOO_MANY_REQUESTS: RefusedByService,
    HTTPStatus.SERVICE_UNAVAILABLE: ServiceUnreachable,
    HTTPStatus.GATEWAY_TIMEOUT: ServiceUnreachable,
}


_SUSPECT = re.compile(
    rb"\\u(?:00[0189]|061|20|d[89a-f])|\\[bfr]|[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]"
    rb"|\xd8\x9c|\xe2\x80|\xe2\x81",
    re.IGNORECASE,
)
"""What JSON has where a text may hold a control character: most answers have none of it."""


def document_of(body: bytes) -> Any:
    """The document of a body, with texts that may be printed: names and messages are others' words.

    Raises:
        ValueError: it is no JSON.
    """
    found = json.loads(body)
    return _printable(found) if _SUSPECT.search(body) else found


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {harmless(key): _printable(one) for key, one in value.items()}
    return value


def _refusal(answer: HttpAnswer) -> UserError:
    """The service's own words; fields that it could not read are named.

    Also those of a proxy before it, if it tells problem details (RFC 9457), and of services older
    than ours that said `error` alone.
    """
    kind = _KINDS.get(answer.status, UserError)
    try:
        told = json.loads(answer.body)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        return kind(_words(f"{answer.status} {answer.reason}"))
    named = {name: _words(told.get(name, "")) for name in ("where", "field", "hint")}
    said = (told[name] for name in ("detail", "error", "title") if isinstance(told.get(name), str))
    return kind(_words(next(filter(None, said), answer.reason)), **named)


def _words(said: object) -> str:
    """One line, and not too long."""
    return harmless(" ".join(str(said)[:MOST_WORDS].splitlines()))
