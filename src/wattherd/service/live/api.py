"""REST API v1 of a live site. The OpenAPI document is at /api/v1/openapi.json."""

from __future__ import annotations

from fastapi import FastAPI

from wattherd.errors import UserError
from wattherd.service.live import trainer_status
from wattherd.service.live.access.audit import Audit
from wattherd.service.live.access.gate import PASSED_ON, STREAMS, Desk, Gate, Login
from wattherd.service.live.access.oidc.settings import OidcSettings
from wattherd.service.live.access.rates import Held, Rates
from wattherd.service.live.access.tokens import FILE, TokenFile
from wattherd.service.live.apps import route as apps
from wattherd.service.live.apps.origin import AppOrigins
from wattherd.service.live.config import ServeConfig
from wattherd.service.live.connections import Limits, limits_here
from wattherd.service.live.http import add_errors
from wattherd.service.live.metrics import route as metrics
from wattherd.service.live.openapi import Application, new_application
from wattherd.service.live.routes import (
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
from wattherd.service.live.routes import site as site_routes
from wattherd.service.live.site import Site
from wattherd.service.live.web import single_sign_on
from wattherd.service.live.web.pages import add_pages
from wattherd.service.live.web.scene import scene_of


def desk_of(config: ServeConfig, limits: Limits | None = None) -> Desk:
    """Who is let in, how often, and with how many streams at once."""
    limits = limits or limits_here()
    return Desk(
        tokens=TokenFile(config.state / FILE),
        audit=Audit(config.state),
        rates=Rates(config.rate_per_s, config.rate_burst),
        streams=Held(min(STREAMS, max(4, limits.streams // 2)), limits.streams),
        passed_on=Held(min(PASSED_ON, max(4, limits.passed_on // 2)), limits.passed_on),
        issuer=None if config.oidc is None else _login_of(config.oidc),
    )


def _login_of(settings: OidcSettings) -> Login:
    """Single sign-on.

    Raises:
        UserError: the extra is not installed, or a secret cannot be read.
    """
    try:
        from wattherd.service.live.access.oidc.sign_in import SignIn
    except ImportError as missing:
        hint = 'pip install "wattherd[oidc]"'
        raise UserError(f"needs {missing.name}", field="oidc", hint=hint) from None
    return SignIn(settings)


def app_of(site: Site, desk: Desk | None = None) -> FastAPI:
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


def api() -> Application:
    """All addresses of the REST API, of no site yet."""
    app = new_application()
    add_errors(app)
    trainer_status.routes(app)  # before the actions of jobs, whose address would hold it, too
    sessions.routes(app)
    jobs.routes(app)
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
