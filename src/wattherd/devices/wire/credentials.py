"""Secrets of devices, read from the file that an address names: never from the address itself.

A YAML file with any of `username`, `password`, `token`, for OAuth 2 `client_id`, `client_secret`
and, if need be, `token_url` and `scope`, and for SNMP `community` or, beside the
password, `privacy_password`; it is read again once it has changed, so that a renewed secret
needs no restart.
"""

from __future__ import annotations

import functools
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.yaml_fields import fields_of


class Credentials(BaseModel):
    """What a server may ask for; nothing of it is ever printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    username: str = ""
    password: SecretStr = SecretStr("")
    token: SecretStr = SecretStr("")
    community: SecretStr = SecretStr("public")
    privacy_password: SecretStr = SecretStr("")
    client_id: str = ""
    client_secret: SecretStr = SecretStr("")
    token_url: str = ""
    scope: str = ""


def read_credentials(path: Path | None) -> Credentials:
    """The secrets in a file; without one, those that everybody knows.

    Raises:
        DeviceError: it cannot be read, or has other fields.
    """
    if path is None:
        return Credentials()
    try:
        now = path.stat()
        return _read(path, (now.st_mtime_ns, now.st_ino, now.st_size))
    except OSError as error:
        problem = f"credentials in {path}: {error.strerror}"
    except ValidationError as error:
        # Of the errors, only the names of the fields: the values are secrets.
        fields = ", ".join(".".join(map(str, one["loc"])) or "file" for one in error.errors())
        problem = f"credentials in {path}: cannot use {fields}"
    except (yaml.YAMLError, UnicodeDecodeError):
        problem = f"credentials in {path}: no YAML"
    raise DeviceError(DeviceErrorKind.REFUSED, problem) from None


@functools.lru_cache(maxsize=256)
def _read(path: Path, version: tuple[int, int, int]) -> Credentials:
    del version  # another one is another file
    content = fields_of(path.read_text(encoding="utf-8"))
    return Credentials.model_validate(content if content is not None else {})
