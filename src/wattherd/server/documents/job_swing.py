"""How unsteady a job's draw is: by the samples that the service takes each second, or by a capture.

Samples of each second tell nothing above half a hertz, and say so. A capture reads the meters of
the job's own devices many times a second for a while; whoever shares them is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from wattherd.devices.meters.recording import fastest, record
from wattherd.errors import UserError
from wattherd.estimate.swing import LEAST_SAMPLES, Samples, Swing, swing
from wattherd.experiments.grid.swings import SCHEMA
from wattherd.server.hardware.draw import LONGEST_S, DrawSample
from wattherd.server.hardware.instruments import MODEL

SHOWN_S = 600.0
"""Of the past, on the job's page."""


def samples_of(samples: Sequence[DrawSample], job_id: str, last_s: float) -> Samples | None:
    """The last seconds of a job's draw; None where they are too few to judge.

    A pause ends them: what was before it is another stretch.
    """
    own = [one for one in samples if job_id in one.by_job]
    if not own:
        return None
    at_s = np.array([one.at_s for one in own])
    gaps = np.flatnonzero(np.diff(at_s) > LONGEST_S)
    begin = int(gaps[-1]) + 1 if len(gaps) else 0
    begin = max(begin, int(np.searchsorted(at_s, at_s[-1] - last_s)))
    if len(own) - begin < LEAST_SAMPLES:
        return None
    watts = np.array([one.by_job[job_id] for one in own[begin:]])
    return Samples(at_s=at_s[begin:] - at_s[begin], watts=watts)


def swing_of(samples: Sequence[DrawSample], job_id: str) -> Swing | None:
    """Of the last ten minutes; None where that is not known, or no more than a model says."""
    own = [one for one in samples if job_id in one.by_job]
    found = None if own and own[-1].stated == MODEL else samples_of(own, job_id, SHOWN_S)
    return None if found is None else swing(found)


def sampled_document(
    samples: Sequence[DrawSample], job_id: str, last_s: float, gpus: int
) -> dict[str, Any]:
    """`wattherd.swings/1` of a job, by samples of each second.

    Raises:
        UserError: there are too few of them.
    """
    found = samples_of(samples, job_id, last_s)
    if found is None:
        raise UserError(f"was seen for less than {LEAST_SAMPLES} s without a pause", where=job_id,
                        hint="ask again later, or capture some seconds")  # fmt: skip
    stated = next(one.stated for one in reversed(samples) if job_id in one.by_job)
    return _document(job_id, gpus, found, stated=stated, by="samples")


def captured_document(
    job_id: str, meters: Sequence[str], length_s: float, every_s: float
) -> dict[str, Any]:
    """`wattherd.swings/1` of a job, by meters of its devices, read for so long. Waits for that.

    Raises:
        UserError: devices without a meter, or readings that failed or are too few.
    """
    if not meters or not all(meters):
        raise UserError("has devices without a meter of their own", where=job_id, field="for",
                        hint="leave it out: samples of each second are judged")  # fmt: skip
    known = [fastest(uri) for uri in meters]
    every_s = max(every_s, *(one.renewed_s for one in known))
    at_s, watts = record([one.uri for one in known], length_s, every_s)
    found = Samples(at_s=at_s, watts=watts, averaged_s=max(one.averaged_s for one in known))
    return _document(job_id, len(meters), found, stated="measured", by="capture")


def _document(job_id: str, gpus: int, samples: Samples, *, stated: str, by: str) -> dict[str, Any]:
    try:
        found = swing(samples)
    except UserError as error:
        raise UserError(error.problem, where=job_id, hint=error.hint) from None
    row = {"name": job_id, "parts": gpus, **asdict(found)}
    return {"schema": SCHEMA, "stated": stated, "by": by, "recordings": [row]}
