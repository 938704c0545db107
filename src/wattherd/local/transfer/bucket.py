"""The way to an object store that speaks S3: its client, patience, and errors in plain words.

Credentials are found as everywhere with AWS: variables (`AWS_ACCESS_KEY_ID`, ... as `secrets` of
the job), files and profiles, single sign-on, the machine's role. They appear in no message.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from wattherd.errors import ClusterError, UserError

T = TypeVar("T")
TRIES = 6
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 20.0
CONNECT_S, READ_S = 10, 60
CONNECTIONS = 16
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which another try may do better (S3 error responses, SlowDown among them)."""
DENIED = (401, 403)
NOT_FOUND = 404
CHANGED = 412
"""Where `If-Match` does not hold."""


class BucketClient:
    """A client, and how often it tries."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Nobody is spoken to yet; `options` are those of the job file's `s3`.

        Raises:
            UserError: botocore is missing, or the options make no sense to it.
        """
        try:
            import botocore.exceptions
            import botocore.session
        except ImportError:
            hint = 'pip install "wattherd[s3]", where the job\'s user may read it'
            raise UserError("s3:// needs botocore", hint=hint) from None
        self.tries = int(options.get("tries") or TRIES)
        self._endpoint = options.get("endpoint") or ""
        try:
            session = botocore.session.Session(profile=options.get("profile"))
            if options.get("credentials"):
                session.set_config_variable("credentials_file", options["credentials"])
            self.client: Any = session.create_client("s3", **_settings(options, session))
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
            raise UserError(str(error), field="s3") from None

    def ask(self, where: object, work: Callable[[], T]) -> T:
        """Do `work`, again after growing pauses where that may help.

        Raises:
            UserError: the store refuses: there is no such object, or these credentials may not.
            ClusterError: the store cannot be reached or used, try after try.
        """
        for n in range(self.tries):
            try:
                return work()
            except self._errors() as error:
                if n + 1 == self.tries or not _may_pass(error):
                    raise self._explained(error, where) from None
            # Full jitter: many jobs that were refused together do not come again together.
            time.sleep(random.uniform(0.5, 1) * min(MOST_PAUSE_S, FIRST_PAUSE_S * 2**n))  # noqa: S311
        raise AssertionError("the last try ends above")

    def _errors(self) -> tuple[type[Exception], ...]:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        return BotoCoreError, ClientError, HTTPError

    def _explained(self, error: Exception, where: object) -> UserError | ClusterError:
        from botocore import exceptions as known
        from botocore.parsers import ResponseParserError

        at = f"{where} at {self._endpoint}" if self._endpoint else str(where)
        if isinstance(error, known.ClientError):
            return _refusal(error.response, at)
        if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError)):
            hint = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY as secrets; s3.profile; s3.anonymous"
            return UserError("no credentials", where=at, hint=hint)
        if isinstance(error, known.SSLError):
            hint = "s3.ca names the file of the authority that signed its certificate"
            return UserError(f"its certificate is not trusted: {error}", where=at, hint=hint)
        if isinstance(error, ResponseParserError):
            return UserError(
                "what answers there is no object store", where=at, hint="see s3.endpoint"
            )
        if isinstance(error, known.ParamValidationError):
            return UserError(str(error), where=at)
        return ClusterError(f"{at}: {error}")


def _settings(options: Mapping[str, Any], session: Any) -> dict[str, Any]:
    """Of the client. Retries are ours: the library's do not cover a body that breaks off."""
    from botocore import UNSIGNED
    from botocore.config import Config

    region = options.get("region") or session.get_config_variable("region")
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        tcp_keepalive=True,
        max_pool_connections=CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": 1},
        s3={"addressing_style": options.get("addressing") or "auto"},
        # Checksums are stated in headers that every store knows, and looked at by `checks`.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": UNSIGNED} if options.get("anonymous") else {}),
    )
    return {
        "endpoint_url": options.get("endpoint"),
        "region_name": region or "us-east-1",
        "verify": options.get("ca"),
        "config": config,
    }


def _may_pass(error: Exception) -> bool:
    """Whether it may be otherwise in a moment."""
    from botocore import exceptions as known
    from urllib3.exceptions import HTTPError

    if isinstance(error, known.ClientError):
        return _status(error.response) in BUSY
    if isinstance(error, (known.SSLError, known.ProxyConnectionError)):
        return False
    network = (known.HTTPClientError, known.IncompleteReadError, HTTPError)
    return isinstance(error, network)


def _status(response: Mapping[str, Any]) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _refusal(response: Mapping[str, Any], at: str) -> UserError | ClusterError:
    found, status = response.get("Error", {}), _status(response)
    code, message = str(found.get("Code", "")), str(found.get("Message", ""))
    if code == "NoSuchBucket":
        return UserError("no such bucket", where=at)
    if status == NOT_FOUND:
        return UserError("no such object or folder", where=at)
    if status in DENIED:
        hint = "see the credentials (s3.profile, AWS_* secrets) and what they may do there"
        return UserError(f"access denied ({status} {code})", where=at, hint=hint)
    if status == CHANGED:
        return ClusterError(f"{at}: was changed while it was read")
    if status in BUSY:
        return ClusterError(f"{at}: {status} {code}, try after try")
    region = found.get("Region") or response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(
        "x-amz-bucket-region"
    )
    hint = f"s3.region: {region}" if region else ""
    return UserError(f"refused ({status} {code}): {message}".rstrip(": "), where=at, hint=hint)
