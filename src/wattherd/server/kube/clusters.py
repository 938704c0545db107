"""Several clusters in one view: every context is asked at once, and what it last said is kept.

A cluster that does not answer is shown as it was when it last did, with the age of that. What was
said is kept in one JSON file of the user's cache folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wattherd.errors import ClusterError, UserError
from wattherd.experiments.placement.policies import place_policy
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.gpu_claims import with_claims
from wattherd.kube.account.overview import Overview, overview
from wattherd.kube.api.access import find_access, known_contexts
from wattherd.kube.api.api_objects import list_decoder
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.api.transport import RefusedByApi, Transport
from wattherd.kube.facts.claim_objects import API as CLAIMS
from wattherd.kube.facts.claim_objects import ResourceClaim, ResourceSlice
from wattherd.kube.facts.power_kinds import API, PowerDomain
from wattherd.server.kube.run import PlacerMaker

PAGE = 500
NOT_SERVED, FORBIDDEN = 404, 403
T = TypeVar("T")
_Seen = tuple[list[Node], list[Pod], list[PowerDomain], list[ResourceSlice], list[ResourceClaim]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """One context: what it says, or said `age_s` ago, and why it says nothing now."""

    context: str
    overview: Overview | None
    age_s: float | None
    problem: str = ""


def clusters(
    kubeconfig: Path | None, chosen: Sequence[str], *, timeout_s: float, kept: Path | None = None
) -> list[ClusterRow]:
    """A row for each context, in the order of the kubeconfig; all of them without `chosen`.

    Raises:
        UserError: the kubeconfig cannot be read, or has no such context.
    """
    known = known_contexts(kubeconfig)
    strange = next((name for name in chosen if name not in known), None)
    if strange is not None:
        hint = f"there are: {', '.join(known) or 'none'}"
        raise UserError(f"no {strange!r}", field="--context", hint=hint)
    memory = _Memory(kept or _cache())
    wanted = [name for name in known if name in chosen] if chosen else known
    rows = asyncio.run(_rows(kubeconfig, wanted, timeout_s, memory))
    memory.keep()
    return rows


async def _rows(
    kubeconfig: Path | None, names: Sequence[str], timeout_s: float, memory: _Memory
) -> list[ClusterRow]:
    asked = (_row(kubeconfig, name, timeout_s, memory) for name in names)
    return list(await asyncio.gather(*asked))


async def _row(kubeconfig: Path | None, name: str, timeout_s: float, memory: _Memory) -> ClusterRow:
    try:
        async with asyncio.timeout(timeout_s):
            seen = await _asked(kubeconfig, name)
    except TimeoutError:
        return memory.row(name, f"no answer within {timeout_s:g} s")
    except (UserError, ClusterError, msgspec.MsgspecError) as error:
        return memory.row(name, str(error))
    found = await asyncio.to_thread(_counted, *seen)
    memory.note(name, found)
    return ClusterRow(context=name, overview=found, age_s=0.0)


async def _asked(kubeconfig: Path | None, name: str) -> _Seen:
    access = await asyncio.to_thread(find_access, kubeconfig, name)
    async with Transport(access) as transport:
        return await asyncio.gather(
            _listed(transport, "/api/v1/nodes", Node),
            _listed(transport, "/api/v1/pods", Pod),
            _served(transport, f"{API}/powerdomains", PowerDomain),
            _served(transport, f"{CLAIMS}/resourceslices", ResourceSlice, FORBIDDEN),
            _served(transport, f"{CLAIMS}/resourceclaims", ResourceClaim, FORBIDDEN),
        )


def _counted(
    nodes: list[Node],
    pods: list[Pod],
    domains: list[PowerDomain],
    slices: list[ResourceSlice],
    claims: list[ResourceClaim],
) -> Overview:
    nodes, pods = with_claims(nodes, pods, slices, claims)
    fleet = NodeFleet(PlacerMaker(place_policy("first-fit"), ()))
    return overview(nodes, pods, domains, fleet, time.time())


async def _listed(transport: Transport, path: str, kind: type[T]) -> list[T]:
    decoder, found, begin = list_decoder(kind), list[T](), ""
    while True:
        query = {"limit": str(PAGE), **({"continue": begin} if begin else {})}
        page = decoder.decode((await transport.request("GET", path, query=query)).body)
        found += page.items or ()
        begin = page.metadata.continue_
        if not begin:
            return found


async def _served(transport: Transport, path: str, kind: type[T], *spared: int) -> list[T]:
    """What there is, where the API server knows the kind, and gives no answer that is `spared`."""
    try:
        return await _listed(transport, path, kind)
    except RefusedByApi as refused:
        if refused.status in (NOT_SERVED, *spared):
            return []
        raise


class _Memory:
    """What clusters said last, by context, with the time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: dict[str, Any] = {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            self._said = found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            pass  # nothing was kept, or nothing that can be used

    def note(self, name: str, said: Overview) -> None:
        """A cluster says this now."""
        self._said[name] = {"at_s": time.time(), "overview": asdict(said)}

    def row(self, name: str, problem: str) -> ClusterRow:
        """What a cluster that does not answer said last."""
        try:
            last = self._said[name]
            before, age_s = Overview(**last["overview"]), max(0.0, time.time() - last["at_s"])
        except (KeyError, TypeError):
            return ClusterRow(context=name, overview=None, age_s=None, problem=problem)
        return ClusterRow(context=name, overview=before, age_s=age_s, problem=problem)

    def keep(self) -> None:
        """Write it down; a view that cannot be kept is a view all the same."""
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(self._said, indent=1), encoding="utf-8")
            fresh.replace(self._path)
        except OSError:
            return


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "wattherd" / "clusters.json"
