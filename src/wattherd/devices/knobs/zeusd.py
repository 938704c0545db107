"""GPU power limits through zeusd, the Zeus daemon: `zeusd+unix:///run/zeusd/zeusd.sock?gpu=0`.

zeusd (0.5.0) runs with the rights that setting takes and offers it to others over HTTP, on a socket
or a port (`zeusd://HOST:4938/0`); it needs its API groups gpu-control and gpu-read, and with
authentication a token of both, as `token` in the file of credentials. It tells no default limit and
knows GPUs by number only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import web
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.devices.wire.web import Server

OPTIONS = frozenset({"gpu", "credentials"})
PORT = 4938
MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class Zeusd:
    """The power limit of one GPU of a machine where zeusd runs."""

    server: Server
    gpu: int
    unit = KnobUnit.WATT
    step = 0.5
    concurrent = True

    def limits(self) -> KnobLimits:
        """The range that the GPU allows."""
        return KnobLimits(
            unit=self.unit,
            lowest=self._ask("get_power_limit_constraints", "min_power_limit_mw") * MILLI,
            highest=self._ask("get_power_limit_constraints", "max_power_limit_mw") * MILLI,
            default=None,
            now=self.read().value,
        )

    def read(self) -> KnobSetting:
        """The limit in force."""
        limit_mw = self._ask("get_power_limit", "power_limit_mw")
        return KnobSetting(limit_mw * MILLI, {"power_limit_mw": limit_mw})

    def write(self, value: float) -> None:
        """Set the limit; without one, the highest."""
        if value == NO_LIMIT:
            self._set(self._ask("get_power_limit_constraints", "max_power_limit_mw"))
        else:
            self._set(round(value / MILLI))

    def put_back(self, state: State) -> None:
        """Set the limit that was found."""
        self._set(state["power_limit_mw"])

    def close(self) -> None:
        """Nothing is kept open."""

    def _set(self, limit_mw: int) -> None:
        # Only a blocking order tells what became of it.
        query = f"gpu_ids={self.gpu}&power_limit_mw={limit_mw}&block=true"
        self.server.request("POST", f"/gpu/set_power_limit?{query}")

    def _ask(self, what: str, field: str) -> int:
        answer: Any = self.server.get(f"/gpu/{what}?gpu_ids={self.gpu}")
        try:
            return int(answer[str(self.gpu)][field])
        except (KeyError, TypeError, ValueError):
            raise DeviceError(
                DeviceErrorKind.GARBAGE, f"{what} answers {str(answer)[:80]}"
            ) from None


def driver(uri: Uri) -> Zeusd:
    """The driver that `uri` names.

    Raises:
        UserError: no GPU or no daemon named.
    """
    unix = uri.scheme.endswith("+unix")
    gpu = uri.text_of("gpu") if unix else uri.path.strip("/")
    if not gpu.isdecimal():
        raise uri.error(f"{gpu!r} is no number of a GPU", hint="write zeusd://HOST:4938/0 or "
                        "zeusd+unix:///run/zeusd/zeusd.sock?gpu=0")  # fmt: skip
    if unix and (uri.authority or not uri.path):
        raise uri.error("names no socket", hint="write zeusd+unix:///run/zeusd/zeusd.sock?gpu=0")
    server = Server(
        host="localhost" if unix else uri.needs_host(),
        port=uri.port or PORT,
        tls=None,
        secrets=uri.file("credentials"),
        login=web.bearer,
        timeout_s=uri.timeout_s,
        unix=uri.path if unix else "",
    )
    return Zeusd(server, int(gpu))
