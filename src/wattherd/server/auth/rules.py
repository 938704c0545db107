"""The least role for every address of the service. What has no rule here is not there at all.

Within these rules tenants see their own jobs only (`access.caller`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from starlette.datastructures import QueryParams
from starlette.routing import compile_path

from wattherd.server.auth.caller import Role


class OpenAddresses(Enum):
    """Addresses without a role."""

    ANYONE = "anyone"
    """Whoever reaches the port."""
    OWN = "own"
    """The address asks for a secret of its own, such as that of a run."""


Rule: TypeAlias = Role | OpenAddresses
V1 = "/api/v1"
APP_PATH = "/jobs/{job_id}/app/{path:path}"
APP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Pages that a job serves, and their WebSockets, which are asked for by GET. Whose they are is
looked at where they are passed on (`apps.route`)."""
RULES: dict[tuple[str, str], Rule] = {
    ("GET", f"{V1}/health"): OpenAddresses.ANYONE,
    ("GET", f"{V1}/alive"): OpenAddresses.ANYONE,
    ("POST", f"{V1}/jobs/{{job_id}}/trainer-status"): OpenAddresses.OWN,
    ("GET", "/static/{name}"): OpenAddresses.ANYONE,
    ("GET", "/login"): OpenAddresses.ANYONE,
    ("POST", "/login"): OpenAddresses.ANYONE,
    ("POST", "/logout"): OpenAddresses.ANYONE,
    ("GET", "/login/oidc"): OpenAddresses.ANYONE,
    ("GET", "/login/oidc/callback"): OpenAddresses.ANYONE,
    ("GET", "/"): Role.VIEWER,
    ("GET", "/cluster"): Role.VIEWER,
    ("GET", "/power"): Role.VIEWER,
    ("GET", "/timeline"): Role.VIEWER,
    ("GET", "/queue"): Role.VIEWER,
    ("GET", "/decisions"): Role.VIEWER,
    ("GET", "/compare"): Role.VIEWER,
    ("GET", "/compare/{name}"): Role.VIEWER,
    ("GET", "/submit"): Role.USER,
    ("POST", "/submit"): Role.USER,
    ("GET", "/jobs/{job_id}"): Role.VIEWER,
    ("POST", "/jobs/{job_id}/{action}"): Role.USER,
    ("GET", "/arrays/{array_id}"): Role.VIEWER,
    ("POST", "/arrays/{array_id}/{action}"): Role.USER,
    ("GET", "/jobs/{job_id}/app"): Role.VIEWER,
    **{(method, APP_PATH): Role.VIEWER for method in APP_METHODS},
    ("POST", "/budget"): Role.OPERATOR,
    ("GET", f"{V1}/openapi.json"): Role.VIEWER,
    ("GET", "/metrics"): Role.VIEWER,
    ("GET", f"{V1}/whoami"): Role.VIEWER,
    ("GET", f"{V1}/jobs"): Role.VIEWER,
    ("POST", f"{V1}/jobs"): Role.USER,
    ("POST", f"{V1}/arrays"): Role.USER,
    ("GET", f"{V1}/arrays/{{array_id}}"): Role.VIEWER,
    ("PATCH", f"{V1}/arrays/{{array_id}}"): Role.USER,
    ("GET", f"{V1}/arrays/{{array_id}}/explain"): Role.VIEWER,
    ("POST", f"{V1}/arrays/{{array_id}}/rerun"): Role.USER,
    ("POST", f"{V1}/arrays/{{array_id}}/{{action}}"): Role.USER,
    ("POST", f"{V1}/dry-run"): Role.USER,
    ("GET", f"{V1}/jobs/{{job_id}}"): Role.VIEWER,
    ("PATCH", f"{V1}/jobs/{{job_id}}"): Role.USER,
    ("GET", f"{V1}/jobs/{{job_id}}/explain"): Role.VIEWER,
    ("GET", f"{V1}/jobs/{{job_id}}/swings"): Role.VIEWER,
    ("GET", f"{V1}/jobs/{{job_id}}/logs"): Role.VIEWER,
    ("GET", f"{V1}/jobs/{{job_id}}/sessions"): Role.USER,
    ("POST", f"{V1}/jobs/{{job_id}}/rerun"): Role.USER,
    ("POST", f"{V1}/jobs/{{job_id}}/{{action}}"): Role.USER,
    ("GET", f"{V1}/nodes"): Role.VIEWER,
    ("POST", f"{V1}/nodes/{{node}}/{{action}}"): Role.OPERATOR,
    ("POST", f"{V1}/gpus/{{gpu}}/{{action}}"): Role.OPERATOR,
    ("GET", f"{V1}/power"): Role.VIEWER,
    ("GET", f"{V1}/power/tree"): Role.VIEWER,
    ("GET", f"{V1}/power/promise"): Role.OPERATOR,
    ("GET", f"{V1}/power/delivery"): Role.VIEWER,
    ("PUT", f"{V1}/power"): Role.OPERATOR,
    ("PUT", f"{V1}/power/schedule"): Role.OPERATOR,
    ("PUT", f"{V1}/power/signals"): Role.ADMIN,
    ("GET", f"{V1}/queues"): Role.VIEWER,
    ("PUT", f"{V1}/queues"): Role.OPERATOR,
    ("PUT", f"{V1}/queues/{{queue}}"): Role.OPERATOR,
    ("DELETE", f"{V1}/queues/{{queue}}"): Role.OPERATOR,
    ("POST", f"{V1}/queues/{{queue}}/{{action}}"): Role.OPERATOR,
    ("GET", f"{V1}/tenants"): Role.VIEWER,
    ("PUT", f"{V1}/tenants/{{tenant}}"): Role.OPERATOR,
    ("DELETE", f"{V1}/tenants/{{tenant}}"): Role.OPERATOR,
    ("GET", f"{V1}/groups"): Role.VIEWER,
    ("GET", f"{V1}/groups/{{name}}"): Role.VIEWER,
    ("POST", f"{V1}/groups/{{name}}/{{action}}"): Role.USER,
    ("GET", f"{V1}/decisions"): Role.VIEWER,
    ("GET", f"{V1}/events"): Role.VIEWER,
    ("GET", f"{V1}/tokens"): Role.ADMIN,
    ("POST", f"{V1}/tokens"): Role.ADMIN,
    ("DELETE", f"{V1}/tokens/{{token_id}}"): Role.ADMIN,
    ("GET", f"{V1}/audit"): Role.ADMIN,
    ("GET", f"{V1}/audit/requests"): Role.ADMIN,
}


_APP = compile_path(APP_PATH)[0]
_LOGS = compile_path(f"{V1}/jobs/{{job_id}}/logs")[0]
NO = ("0", "f", "false", "n", "no", "off")


def is_app(path: str) -> bool:
    """Whether a path is one of a job's own pages."""
    return _APP.match(path) is not None


def is_stream(scope: Mapping[str, Any]) -> bool:
    """Whether a request's answer has no end of its own."""
    if scope["type"] == "websocket":
        return True
    follow = QueryParams(scope.get("query_string", b"")).get("follow", "").lower()
    if scope["path"] == f"{V1}/events":
        return follow not in NO
    return _LOGS.match(scope["path"]) is not None and follow not in ("", *NO)


def app_of(path: str) -> str | None:
    """The job whose own page a path is; None if it is of none."""
    found = _APP.match(path)
    return None if found is None else found["job_id"]


class RuleBook:
    """Finds the rule of a request; of several the first in the table counts."""

    def __init__(self, rules: Mapping[tuple[str, str], Rule] = RULES) -> None:
        """Compile the addresses."""
        self._plain = {key: rule for key, rule in rules.items() if "{" not in key[1]}
        self._patterns: list[tuple[str, re.Pattern[str], Rule]] = [
            (method, compile_path(path)[0], rule)
            for (method, path), rule in rules.items()
            if "{" in path
        ]

    def rule(self, method: str, path: str) -> Rule | None:
        """The rule, or None where there is no such address; HEAD is as GET."""
        asked = "GET" if method == "HEAD" else method
        plain = self._plain.get((asked, path))
        if plain is not None:
            return plain
        fits = (rule for m, pattern, rule in self._patterns if m == asked and pattern.match(path))
        return next(fits, None)

    def methods(self, path: str) -> list[str]:
        """Those that the address knows."""
        plain = {method for method, known in self._plain if known == path}
        return sorted(plain | {m for m, pattern, _ in self._patterns if pattern.match(path)})
