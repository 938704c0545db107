"""Kubernetes objects and quantities: exact numbers, and tolerance of what servers send."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.kube.api import quantity
from wattherd.kube.api.api_objects import (
    Binding,
    Lease,
    ObjectReference,
    PodGroup,
    Status,
    Versioned,
    decoder,
    encode,
    list_decoder,
    read_watch,
)
from wattherd.kube.api.objects import Node, ObjectMeta, Pod

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
    "e3": Fraction(1000), "E-2": Fraction(1, 100), "e+6": Fraction(10**6),
}  # fmt: skip


@given(
    number=st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=6),
    suffix=st.sampled_from(sorted(SUFFIXES)),
)
def test_quantities_are_exact_and_rounded_up(number: object, suffix: str) -> None:
    amount = Fraction(str(number)) * SUFFIXES[suffix]
    text = f"{number}{suffix}"
    assert quantity.whole(text) == math.ceil(amount)
    assert quantity.milli(text) == math.ceil(1000 * amount)
    assert quantity.whole(f"-{text}") == -math.ceil(amount)


@pytest.mark.parametrize(
    ("text", "milli"),
    [("500m", 500), (".5", 500), ("5.", 5000), ("1e3", 10**6), ("1E", 10**21), ("0.1m", 1),
     (4, 4000), ("+2", 2000)],
)  # fmt: skip
def test_quantities_as_the_api_writes_them(text: str | int, milli: int) -> None:
    assert quantity.milli(text) == milli


@pytest.mark.parametrize(
    "text", ["", ".", "m", "Ki", "1 Gi", "1kb", "1e", "½", "1e9999", "0" * 65, "٣"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no quantity"):
        quantity.whole(text)


def test_a_pod_needs_whole_mebibytes_and_a_node_offers_them() -> None:
    size = quantity.whole("1500Ki")
    assert quantity.mib_needed(size) == 2
    assert quantity.mib_offered(size) == 1


def test_nearly_empty_objects_decode() -> None:
    pod = decoder(Pod).decode(
        b'{"kind":"Pod","metadata":{"resourceVersion":"7","creationTimestamp":null},'
        b'"spec":{"containers":null},"status":{}}'
    )
    assert pod.metadata.resource_version == "7"
    assert pod.spec.containers is None
    assert decoder(Node).decode(b"{}") == Node()


def test_unknown_fields_and_values_of_later_versions_are_borne() -> None:
    text = (
        b'{"spec":{"novelty":{"a":[1]},"tolerations":[{"operator":"Resembles"}]},"status":{"x":1}}'
    )
    pod = decoder(Pod).decode(text)
    assert pod.spec.tolerations is not None
    assert pod.spec.tolerations[0].operator == "Resembles"


def test_watch_lines_keep_the_object_until_its_type_is_known() -> None:
    gone = read_watch(b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}')
    assert decoder(Status).decode(gone.object).code == 410
    mark = read_watch(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}')
    assert decoder(Versioned).decode(mark.object).metadata.resource_version == "9"


def test_a_line_cut_off_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        read_watch(b'{"type":"ADDED","object":{"meta')


def test_pages_of_lists() -> None:
    page = list_decoder(Node).decode(
        b'{"metadata":{"resourceVersion":"5","continue":"next"},"items":[{"metadata":{"name":"a"}}]}'
    )
    assert page.metadata.continue_ == "next"
    assert [node.metadata.name for node in page.items or ()] == ["a"]


def test_what_is_written_holds_what_was_given_and_nothing_else() -> None:
    binding = Binding(
        api_version="v1",
        kind="Binding",
        metadata=ObjectMeta(name="p", namespace="d", uid="u", annotations={"a": "b"}),
        target=ObjectReference(api_version="v1", kind="Node", name="n"),
    )
    assert msgspec.json.decode(encode(binding)) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": {"a": "b"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
    }


def test_groups_of_either_kind_and_leases() -> None:
    native = decoder(PodGroup).decode(b'{"spec":{"schedulingPolicy":{"gang":{"minCount":4}}}}')
    assert native.spec.scheduling_policy is not None
    assert native.spec.scheduling_policy.gang is not None
    assert native.spec.scheduling_policy.gang.min_count == 4
    older = decoder(PodGroup).decode(b'{"spec":{"minMember":3}}')
    assert older.spec.min_member == 3
    lease = decoder(Lease).decode(b'{"spec":{"holderIdentity":"a","leaseDurationSeconds":15}}')
    assert lease.spec.lease_duration_seconds == 15


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = (
        "import importlib.util as found, sys\n"
        "real = found.find_spec\n"
        "found.find_spec = lambda name, *rest: None if name == 'msgspec' else real(name, *rest)\n"
        "import wattherd\n"
        "from wattherd.errors import UserError\n"
        "try:\n    import wattherd.kube.api.objects\n"
        "except UserError as error:\n    print(error.line())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "wattherd[kube]"' in done.stdout
