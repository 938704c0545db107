"""Where a service may be reached, and under which certificate."""

from __future__ import annotations

import ssl
from typing import Any

from wattherd.errors import UserError
from wattherd.server.auth.gate import is_loopback
from wattherd.server.settings.config import ServeConfig


def check_listening(config: ServeConfig, *, asks: bool) -> None:
    """Other machines are let in only with tokens (`asks`) and encryption.

    Raises:
        UserError: the address is not this machine's own, and one of them is missing.
    """
    if is_loopback(config.host):
        return
    where, field = config.host, "host"
    if not asks:
        hint = f"make one first: `wattherd token create --state {config.state} --role admin`"
        raise UserError(
            "other machines are not let in without tokens", where=where, field=field, hint=hint
        )
    if config.tls_cert is None:
        hint = "give --tls-cert and --tls-key"
        raise UserError("tokens must not travel in the clear", where=where, field=field, hint=hint)


def tls_of(config: ServeConfig) -> dict[str, Any]:
    """The server's options for encryption; none without a certificate.

    Raises:
        UserError: one of certificate and key is missing, unreadable, or they do not fit.
    """
    cert, key = config.tls_cert, config.tls_key
    if cert is None and key is None:
        return {}
    if cert is None or key is None:
        missing = "tls_cert" if cert is None else "tls_key"
        raise UserError("certificate and key go together", field=missing)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot be used: {error.strerror or error}", where=str(cert)) from None
    return {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}
