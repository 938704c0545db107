"""One leader at a time, by a Lease; who cannot renew stops before anybody else may begin.

A holder counts its right from the moment *before* it asked, on its own clock, and for `renew_s`
only, while others wait until the record has stood still for `lease_s` on *theirs*: between the two
lies a margin, and no clock is ever compared with another machine's. Each term has an epoch, one
higher than the last, which goes into every binding: what a leader of an earlier term still sends
is recognised.

The record is that of coordination.k8s.io/v1, as every Kubernetes component keeps it.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import numpy as np

from wattherd.errors import UserError
from wattherd.kube.api.api_objects import Lease, LeaseSpec, decoder, encode
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi, Transport

_LEASE = decoder(Lease)


def boot_s() -> float:
    """Seconds since the machine started, those asleep included: a laptop's lid ends a term too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> datetime:
    """Now, by the calendar: written for people to read, never compared."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds: how long a record is respected, how long a holder trusts it, and between tries.

    Raises:
        UserError: a holder would trust it as long as others respect it, or longer.
    """

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        """There must be a margin for whoever is in the middle of a request."""
        if not 0 < self.retry_s < self.renew_s < self.lease_s:
            problem = f"{self.retry_s:g} < {self.renew_s:g} < {self.lease_s} does not hold"
            raise UserError(problem, field="lease", hint="retry < renew < lease, as in 2 < 10 < 15")


@dataclass(slots=True)
class Term:
    """What one candidate knows: the record as it was seen, and the right it has itself. No I/O.

    `about` is name and namespace of the record, `identity` is unique to this process.
    """

    about: ObjectMeta
    identity: str
    times: Times
    epoch: int = 0
    lease_uid: str = ""
    _seen: Lease | None = None
    _stands_since_s: float = 0.0
    _until_s: float = float("-inf")

    def holds(self, now_s: float) -> bool:
        """Whether we may act as the leader at this moment."""
        return now_s < self._until_s

    def observe(self, lease: Lease | None, now_s: float) -> None:
        """The record as it is now; None where there is none."""
        if lease is None or self._seen is None or _version(lease) != _version(self._seen):
            self._stands_since_s = now_s
        self._seen = lease
        if lease is None or lease.spec.holder_identity != self.identity:
            self._until_s = float("-inf")

    def wish(self, now_s: float, wall: str) -> Lease | None:
        """The record that would make or keep us the leader; None while another one's stands."""
        seen = self._seen.spec if self._seen else LeaseSpec()
        ours = seen.holder_identity == self.identity
        if ours and self.holds(now_s):
            return self._record(msgspec.structs.replace(seen, renew_time=wall))
        respected_s = seen.lease_duration_seconds or self.times.lease_s
        stands = now_s - self._stands_since_s < respected_s
        if seen.holder_identity and not ours and stands:
            return None
        # Our own record of an earlier life is no right: others may have acted since. A new term.
        begun = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self.times.lease_s,
            acquire_time=wall,
            renew_time=wall,
            lease_transitions=(seen.lease_transitions or 0) + 1,
        )
        return self._record(begun)

    def granted(self, lease: Lease, asked_s: float) -> None:
        """The server took our record; `asked_s` is when we asked."""
        self.observe(lease, asked_s)
        self.epoch, self.lease_uid = lease.spec.lease_transitions or 0, lease.metadata.uid
        self._until_s = asked_s + self.times.renew_s

    def resign(self) -> Lease | None:
        """The record that lets others begin at once, if it is ours to write."""
        self._until_s = float("-inf")
        if self._seen is None or self._seen.spec.holder_identity != self.identity:
            return None
        return self._record(
            msgspec.structs.replace(self._seen.spec, holder_identity="", lease_duration_seconds=1)
        )

    def _record(self, spec: LeaseSpec) -> Lease:
        about = self._seen.metadata if self._seen else self.about
        return Lease(api_version="coordination.k8s.io/v1", kind="Lease", metadata=about, spec=spec)


def _version(lease: Lease) -> str:
    return lease.metadata.resource_version


@dataclass(slots=True)
class Elector:
    """Stands for election, and keeps the term once it has one; `draws` spreads the tries.

    `clock` counts steady seconds, `calendar` is what is written for people. `trouble` says why the
    last try came to nothing, None if it did not.
    """

    transport: Transport
    term: Term
    draws: np.random.Generator
    clock: Callable[[], float] = boot_s
    calendar: Callable[[], datetime] = wall
    trouble: str | None = None

    def may_act(self) -> bool:
        """Whether we lead at this very moment; may be asked from any thread."""
        return self.term.holds(self.clock())

    @property
    def epoch(self) -> int:
        """The number of our last term."""
        return self.term.epoch

    @property
    def lease_uid(self) -> str:
        """Of the record that our last term is in: one that is made anew counts from one again."""
        return self.term.lease_uid

    async def run(self) -> None:
        """Until it is cancelled; then the term is given back, if the server still answers."""
        try:
            while True:
                await self._try_once()
                await asyncio.sleep(self.term.times.retry_s * float(self.draws.uniform(1.0, 1.2)))
        finally:
            await self._resign()

    async def _try_once(self) -> None:
        try:
            if not self.may_act():
                await self._observe()
            await self._write()
            self.trouble = None
        except RefusedByApi as refused:
            self.trouble = str(refused)
            if refused.status == http.HTTPStatus.CONFLICT:  # the record is not as we thought
                await self._observe_quietly()
        except ApiUnreachable as error:
            self.trouble = str(error)

    async def _observe(self) -> None:
        try:
            answer = await self.transport.request("GET", self._path, timeout_s=self._timeout_s)
            lease = _LEASE.decode(answer.body)
        except RefusedByApi as refused:
            if refused.status != http.HTTPStatus.NOT_FOUND:
                raise
            lease = None
        self.term.observe(lease, self.clock())

    async def _observe_quietly(self) -> None:
        try:
            await self._observe()
        except (RefusedByApi, ApiUnreachable) as error:
            self.trouble = str(error)

    async def _write(self) -> None:
        asked_s = self.clock()
        # As the API writes microseconds.
        stamp = self.calendar().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        wish = self.term.wish(asked_s, stamp)
        if wish is not None:
            self.term.granted(await self._put(wish), asked_s)

    async def _put(self, lease: Lease) -> Lease:
        new = not lease.metadata.resource_version
        method, path = ("POST", self._path.rpartition("/")[0]) if new else ("PUT", self._path)
        body = encode(lease)
        answer = await self.transport.request(method, path, body=body, timeout_s=self._timeout_s)
        return _LEASE.decode(answer.body)

    async def _resign(self) -> None:
        lease = self.term.resign()
        if lease is None:
            return
        try:
            await self._put(lease)
        except (RefusedByApi, ApiUnreachable) as error:
            self.trouble = str(error)  # others wait until our record has stood still long enough

    @property
    def _path(self) -> str:
        about = self.term.about
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{about.namespace}/leases"
        return f"{leases}/{about.name}"

    @property
    def _timeout_s(self) -> float:
        """Of one request: there must be time for another before the term ends."""
        return self.term.times.renew_s / 2
