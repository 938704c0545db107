"""What jobs needed in the end, and the Gittins index that is made of it."""

from __future__ import annotations

import math

import pytest

from wattherd.estimate.gittins import gittins_index
from wattherd.estimate.learned_services import (
    LEAST_JOBS,
    MOST_JOBS,
    MOST_TENANTS,
    NONE_ENDED,
    LearnedServices,
    PastServices,
)


def taught(*services: float, tenant: str = "") -> LearnedServices:
    learned = LearnedServices()
    for one in services:
        learned.ended(tenant, one)
    return learned


def test_there_is_no_index_of_a_few() -> None:
    assert LearnedServices().known() == NONE_ENDED
    few = taught(*[10.0] * (LEAST_JOBS - 1))
    assert few.known() == PastServices(LEAST_JOBS - 1)
    few.ended("", 10.0)
    assert few.known().index == gittins_index([10.0] * LEAST_JOBS)
    assert few.known().of_jobs == LEAST_JOBS


def test_what_is_no_service_teaches_nothing() -> None:
    learned = taught(*[10.0] * LEAST_JOBS)
    before = learned.known()
    for bad in (math.nan, math.inf, -math.inf, -3.0, 0.0):
        for _ in range(100):
            learned.ended("", bad)
    assert learned.known() == before


def test_the_index_is_the_same_object_until_it_is_renewed() -> None:
    """Planners compare it at every plan; and who is ranked anew pays restarts."""
    learned = taught(*[float(n) for n in range(1, 161)])
    learned.ended("", 5.0)
    index, renewed = learned.known().index, 0
    for _ in range(160):
        learned.ended("", 5.0)
        renewed += learned.known().index is not index
        index = learned.known().index
    assert 8 <= renewed <= 20
    assert learned.known().jobs == 321


def test_a_flood_of_short_jobs_does_not_push_out_what_others_needed() -> None:
    learned = taught(*[1000.0 + n for n in range(100)], tenant="honest")
    for _ in range(2 * MOST_JOBS):
        learned.ended("flood", 0.01)
    index = learned.known().index
    assert learned.known().jobs == 100 + MOST_JOBS
    assert index is not None
    assert index.of(500.0) > 0, "jobs that have received more than 0.01 still have a chance"
    assert index.services[-1] == pytest.approx(1099.0)


def test_memory_is_bounded_by_tenants() -> None:
    learned = LearnedServices()
    for n in range(MOST_TENANTS + 50):
        learned.ended(f"t{n}", 1.0)
    assert learned.known().jobs == MOST_TENANTS
