"""A server's controller by IPMI over the network: `ipmi://BMC/dcmi`, `ipmi://BMC/SENSOR`.

Runs ipmitool, a session for each reading, which takes controllers long: give a control loop other
meters where there are any. `dcmi` is the power reading of DCMI 1.5 (section 6.6.1); many have a
sensor in watts instead, whose steps may be coarse: eight bits for its whole range.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.meters.clock import Clock
from wattherd.meters.contract import MeterError, Sample, Trouble
from wattherd.meters.credentials import read_credentials
from wattherd.meters.meter import timeout_s
from wattherd.meters.uri import MeterUri

OPTIONS = frozenset({"cipher", "credentials"})
PORT = 623
DCMI = "dcmi"
CIPHERS = "3", "17"
READING = re.compile(r"Instantaneous power reading:\s+(\d+(?:\.\d+)?) Watts")
TROUBLES = (
    ("not found", Trouble.ABSENT),
    ("Unable to find", Trouble.ABSENT),
    ("(c1)", Trouble.ABSENT),  # invalid command: no DCMI
    ("(cb)", Trouble.ABSENT),  # no such sensor or record
    ("(d4)", Trouble.REFUSED),  # insufficient privilege
    # It does not tell a wrong password from a machine that is off.
    ("Unable to establish", Trouble.UNREACHABLE),
)
"""What ipmitool says, and what it means; completion codes are of IPMI 2.0, table 5-2."""


@dataclass(frozen=True, slots=True)
class Ipmi:
    """Asks ipmitool for DCMI's reading or for a sensor in watts."""

    host: str
    port: int
    name: str
    cipher: str
    secrets: Path | None
    timeout_s: float

    def sample(self) -> Sample:
        """Watts.

        Raises:
            MeterError: no session in time, no such sensor, or none in watts.
        """
        asked = ("dcmi", "power", "reading") if self.name == DCMI else ("sdr", "get", self.name)
        said = self._run(asked)
        return Sample(dcmi_watts(said) if self.name == DCMI else sensor_watts(said))

    def close(self) -> None:
        """Nothing is kept open."""

    def _run(self, asked: Sequence[str]) -> str:
        known = read_credentials(self.secrets)
        # The password in the environment, which others cannot see as they do arguments.
        environment = {**os.environ, "IPMI_PASSWORD": known.password.get_secret_value()}
        command = ["ipmitool", "-I", "lanplus", "-H", self.host, "-p", str(self.port), "-L", "USER",
                   "-C", self.cipher, "-U", known.username, "-E", "-c", *asked]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - arguments of an address, no shell
                command, env=environment, capture_output=True, text=True, errors="replace",
                timeout=self.timeout_s, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MeterError(Trouble.TIMEOUT, f"no answer within {self.timeout_s:g} s") from None
        except OSError as error:
            raise MeterError(Trouble.UNREACHABLE, f"ipmitool: {error.strerror}") from None
        if done.returncode or not done.stdout.strip():
            raise _refusal(f"{done.stderr}\n{done.stdout}")
        return done.stdout


def driver(uri: MeterUri, clock: Clock) -> Ipmi:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or the name of a sensor that would be read as an option.
    """
    del clock  # the protocol tells no time
    name = uri.path.strip("/") or DCMI
    if name.startswith("-"):
        raise uri.error(f"{name!r} names no sensor")
    port = PORT if uri.port is None else uri.port
    cipher = uri.choice("cipher", CIPHERS, "17")
    return Ipmi(uri.needs_host(), port, name, cipher, uri.file("credentials"), timeout_s(uri))


def dcmi_watts(said: str) -> float:
    """The reading in what `dcmi power reading` prints.

    Raises:
        MeterError: there is none, or power measurement is switched off.
    """
    found = READING.search(said)
    if found is None:
        raise MeterError(Trouble.GARBAGE, f"ipmitool says {said.strip()[:60]!r}")
    if re.search(r"Power reading state is:\s+deactivated", said):
        raise MeterError(Trouble.ABSENT, "power measurement is switched off in the controller")
    return float(found[1])


def sensor_watts(said: str) -> float:
    """The reading in what `-c sdr get` prints: name, value, unit, state.

    Raises:
        MeterError: there is none, or it is not in watts.
    """
    try:
        _, value, unit, state = next(csv.reader(said.strip().splitlines()))[:4]
        watts = float(value) if unit == "Watts" else None
    except (ValueError, StopIteration):
        raise MeterError(Trouble.ABSENT, f"no reading in {said.strip()[:60]!r}") from None
    if watts is None or state == "ns":
        raise MeterError(Trouble.ABSENT, f"the sensor reads {value} {unit} (state {state})")
    return watts


def _refusal(said: str) -> MeterError:
    line = next(iter(filter(None, map(str.strip, said.splitlines()))), "nothing")
    trouble = next((meant for sign, meant in TROUBLES if sign in said), Trouble.GARBAGE)
    return MeterError(trouble, f"ipmitool says: {line[:120]}")
