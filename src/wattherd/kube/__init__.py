"""Kubernetes as a shell of the core (extra `kube`), in five floors that import downwards only.

`api` speaks with the API server, `facts` reads what its objects say, `account` knows who holds
which GPUs and watts, `decide` decides without I/O and clock, `live` keeps running.

Raises:
    UserError: on import, where the extra is not installed.
"""

from importlib.util import find_spec

from wattherd.errors import UserError

for _library in ("msgspec", "aiohttp"):
    if find_spec(_library) is None:
        raise UserError(f"needs {_library}", hint='pip install "wattherd[kube]"')
