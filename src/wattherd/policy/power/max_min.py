"""Max-min fairness on measured points: the least rate as high as can be, then the next least.

Progressive filling: whoever has the least rate is raised by one choice, until nothing above it
fits; then it stays, and the next least is raised. Whoever is served stands at its cheapest choice
that is no worse than the job served now; so a job that cannot be raised now cannot be raised in any
allocation that serves all others as well, and the result is the leximin optimum (Bertsekas and
Gallager, Data Networks, 1992, section 6.5.2, for choices instead of flows). Only where several
jobs' points have exactly the same rate is that not proven; then the cheaper step goes first.
"""

from __future__ import annotations

import heapq

import numpy as np

from wattherd.policy.power.choices import Ints, PowerChoices
from wattherd.policy.power.limits import DomainRoom


def leximin_rows(menu: PowerChoices, limits: DomainRoom) -> Ints:
    """The row of each job (J,); `menu.value` are relative rates.

    Raises:
        UserError: the least choices do not fit.
    """
    row = menu.least.tolist()
    last, watts, rate = menu.most.tolist(), menu.watts.tolist(), menu.value.tolist()
    rooms = [*limits.left_w(menu.watts[menu.least]).tolist(), float("inf")]
    above = [
        list(zip(domains, scales, strict=True))
        for domains, scales in zip(limits.path.tolist(), limits.scale.tolist(), strict=True)
    ]

    def waiting(job: int) -> tuple[float, float, int]:
        return rate[row[job]], watts[row[job] + 1] - watts[row[job]], job

    queue = [waiting(job) for job in range(menu.jobs) if row[job] < last[job]]
    heapq.heapify(queue)
    while queue:
        _, more_w, job = heapq.heappop(queue)
        if any(more_w * scale > rooms[domain] for domain, scale in above[job]):
            continue
        for domain, scale in above[job]:
            rooms[domain] -= more_w * scale
        row[job] += 1
        if row[job] < last[job]:
            heapq.heappush(queue, waiting(job))
    return np.array(row, dtype=np.int64)
