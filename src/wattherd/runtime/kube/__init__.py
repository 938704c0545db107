"""Kubernetes: the core's decisions on a real control plane, as thin shells (extra `kube`).

`objects` and `api_objects` are what we read and write of the API's objects, `quantity` its numbers.
The modules that decide do no input or output and read no clock.

Raises:
    UserError: on import, where the extra is not installed.
"""

from importlib.util import find_spec

from wattherd.errors import UserError

for _library in ("msgspec", "aiohttp"):
    if find_spec(_library) is None:
        raise UserError(f"needs {_library}", hint='pip install "wattherd[kube]"')
