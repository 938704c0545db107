"""The report of the second demonstration, from documents of jobs as the API tells them."""

from __future__ import annotations

from typing import Any

from wattherd.server.adaptive_demo import JOBS, Lived, job_documents, report
from wattherd.workload.job_file import validated_job


def job(name: str, end_s: int, *story: str, state: str = "Succeeded") -> dict[str, Any]:
    at = "2026-11-26T10:00:{:02}.000+00:00".format
    lines = [{"at": at(7 + n), "what": what} for n, what in enumerate(story)]
    ended = at(end_s) if state == "Succeeded" else None
    return {"name": name, "state": state, "submitted": at(0), "finished": ended, "story": lines}


def test_ten_job_files_of_mixed_length_and_predictability() -> None:
    made = [validated_job(one, "demo") for one in job_documents("/p", "python", {})]
    assert len(made) == len(JOBS) == 10
    assert all((one.spec().least_width, one.spec().most_width) == (1, 2) for one in made)
    open_ended = [one for one in made if one.run is not None and "--open-ended" in one.run]
    assert len(open_ended) == 4
    assert len({one.name for one in made}) == 10


def test_the_report_has_means_and_every_change_with_its_reason() -> None:
    before = Lived("fifo")
    before.note([job("a", 40), job("b", 20)])
    after = Lived("aiturbo")
    after.note([job("a", 20, "It was started.", "resized from 2 to 1 GPUs: why"), job("b", 10)])
    after.note([job("a", 20), job("b", 10)])  # stories end with their jobs
    text = report([before, after])
    assert "| fifo | 30.0 s | 1.00 | 2 of 2 | 0 |" in text
    assert "| aiturbo | 15.0 s | 2.00 | 2 of 2 | 1 |" in text
    assert "- 8 s, a: resized from 2 to 1 GPUs: why" in text
    assert "fifo: who was resized, when and why\n\nNobody." in text


def test_a_job_that_did_not_end_is_not_counted_as_one_that_did() -> None:
    run = Lived("fifo")
    run.note([job("a", 40), job("b", 0, state="Running")])
    assert "| fifo | 40.0 s | 1.00 | 1 of 2 | 0 |" in report([run])
