"""A process that stands for election and writes down every moment at which it holds that it leads.

Run by tests: `python candidate.py KUBECONFIG NAMESPACE IDENTITY FILE AHEAD_S`; its clock is
wrong by so many seconds.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np

from wattherd.kube.api.access import find_access
from wattherd.kube.api.lease import Elector, Term, Times, boot_s, wall
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.api.transport import Transport

TIMES = Times(lease_s=4, renew_s=2.5, retry_s=0.4)
EVERY_S = 0.02


async def stand(
    kubeconfig: Path, namespace: str, identity: str, file: Path, ahead: timedelta
) -> None:
    """For ever; a line is `BOOT_S IDENTITY EPOCH`."""
    about = ObjectMeta(name="leader", namespace=namespace)
    async with Transport(find_access(kubeconfig)) as transport:
        term = Term(about=about, identity=identity, times=TIMES)
        draws = np.random.default_rng(len(identity))
        elector = Elector(transport, term, draws, calendar=lambda: wall() + ahead)
        work = asyncio.create_task(elector.run())
        with file.open("a", buffering=1) as lines:
            while not work.done():
                now_s = boot_s()
                if term.holds(now_s):
                    lines.write(f"{now_s:.6f} {identity} {elector.epoch}\n")
                await asyncio.sleep(EVERY_S)
        await work


if __name__ == "__main__":
    kubeconfig, namespace, identity, file, ahead_s = sys.argv[1:]
    ahead = timedelta(seconds=float(ahead_s))
    asyncio.run(stand(Path(kubeconfig), namespace, identity, Path(file), ahead))
