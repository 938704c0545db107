"""REST API v1 of a live site. The OpenAPI document is at /api/v1/openapi.json."""

from __future__ import annotations

from fastapi import FastAPI

from wattherd.errors import UserError
from wattherd.server.api import metrics_route as metrics
from wattherd.server.api import trainer_status
from wattherd.server.api.connections import ConnectionLimits, limits_here
from wattherd.server.api.http import add_errors
from wattherd.server.api.openapi import DocumentedApi, new_application
from wattherd.server.api.routes import (
    arrays,
    decisions,
    events,
    groups,
    jobs,
    nodes,
    power,
    queues,
    sessions,
    tokens,
)
from wattherd.server.api.routes import site as site_routes
from wattherd.server.apps import route as apps
from wattherd.server.auth.app_origin import AppOrigins
from wattherd.server.auth.audit import Audit
from wattherd.server.auth.gate import PASSED_ON, STREAMS, AccessDesk, Gate, Login
from wattherd.server.auth.oidc.settings import OidcSettings
from wattherd.server.auth.rates import HeldRequests, RequestRates
from wattherd.server.auth.tokens import FILE, TokenFile
from wattherd.server.settings.config import ServeConfig
from wattherd.server.site.site import LiveSite
from wattherd.server.web import single_sign_on
from wattherd.server.web.page_source import scene_of
from wattherd.server.web.pages import add_pages


def desk_of(config: ServeConfig, limits: ConnectionLimits | None = None) -> AccessDesk:
    """Who is let in, how often, and with how many streams at once."""
    limits = limits or limits_here()
    return AccessDesk(
        tokens=TokenFile(config.state / FILE),
        audit=Audit(config.state),
        rates=RequestRates(config.rate_per_s, config.rate_burst),
        streams=HeldRequests(min(STREAMS, max(4, limits.streams // 2)), limits.streams),
        passed_on=HeldRequests(min(PASSED_ON, max(4, limits.passed_on // 2)), limits.passed_on),
        issuer=None if config.oidc is None else _login_of(config.oidc),
    )


def _login_of(settings: OidcSettings) -> Login:
    """Single sign-on.

    Raises:
        UserError: the extra is not installed, or a secret cannot be read.
    """
    try:
        from wattherd.server.auth.oidc.sign_in import SignIn
    except ImportError as missing:
        hint = 'pip install "wattherd[oidc]"'
        raise UserError(f"needs {missing.name}", field="oidc", hint=hint) from None
    return SignIn(settings)


def app_of(site: LiveSite, desk: AccessDesk | None = None) -> FastAPI:
    """The application that serves one site."""
    app = api()
    app.state.site = site
    app.state.desk = desk or desk_of(site.config)
    app.state.desk.origins = AppOrigins(site.config.app_url, repr(site.clock.epoch))
    metrics.routes(app)
    apps.routes(app)
    single_sign_on.routes(app)
    add_pages(app, scene_of(site))
    app.add_middleware(Gate, desk=app.state.desk)
    return app


def api() -> DocumentedApi:
    """All addresses of the REST API, of no site yet."""
    app = new_application()
    add_errors(app)
    trainer_status.routes(app)  # before the actions of jobs, whose address would hold it, too
    jobs.routes(app)  # early: each address that is tried before it costs every submission
    sessions.routes(app)
    site_routes.routes(app)
    power.routes(app)
    nodes.routes(app)
    tokens.routes(app)
    queues.routes(app)
    arrays.routes(app)
    groups.routes(app)
    decisions.routes(app)
    events.routes(app)
    return app
