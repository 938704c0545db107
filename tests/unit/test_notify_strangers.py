"""What strangers answer to notifications, and which addresses users may send them to."""

from __future__ import annotations

import pytest

from wattherd.devices.wire.http_client import MayNotConnect
from wattherd.server.notify.channels import NotSent, guard


@pytest.mark.parametrize(
    "reason",
    [
        "\x1b]0;owned\x07\x1b[2J\r\nadmin: all is well",
        "a\x9b31mb",
        "\u202eevil\u2028\x00",
        "A" * 60_000,
    ],
)
def test_words_of_a_receiver_are_short_and_nothing_a_terminal_obeys(reason: str) -> None:
    told = str(NotSent(f"answers 500 {reason}"))
    assert told.startswith("answers 500 ")
    assert all(" " <= one <= "~" for one in told)
    assert len(told) <= 200


def test_what_is_said_otherwise_is_kept() -> None:
    assert str(NotSent("mail server: 550 no such box")) == "mail server: 550 no such box"


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b:1::a01:203",
        "64:ff9b:1:a01:2:300::",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::a83f:8110",
        "::127.0.0.1",
        "::8.8.8.8",
        "fec0::1",
        "feff::1",
        "2002:a9fe:a9fe::1",
        "2002:a83f:8110::1",
        "2001:0:7f00:1::8.8.8.8",
        "2001:0:808:808::f5fe:fdfc",
        "2606:4700::5efe:10.1.2.3",
        "192.0.0.9",
        "192.0.0.192",
        "168.63.129.16",
        "::ffff:168.63.129.16",
        "100::1",
        "3fff::1",
        "192.88.99.1",
    ],
)
def test_no_disguise_of_an_address_is_public_unless_listed(address: str) -> None:
    with pytest.raises(MayNotConnect):
        guard("hooks.example", 443, (), ())(address)
    guard("hooks.example", 443, ["hooks.example"], ())(address)


def test_a_disguise_of_an_address_of_ours_is_never_reached_at_our_port() -> None:
    for address in ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1"):
        with pytest.raises(MayNotConnect, match="itself"):
            guard("hooks.example", 8700, ["hooks.example"], (8700,))(address)


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "2606:2800:21f:cb07:6820:80da:af6b:8b2c",
        "64:ff9b::5db8:d70e",
        "2a00:1450::5",
    ],
)
def test_public_addresses_are_reached_also_through_a_translator(address: str) -> None:
    guard("hooks.example", 443, (), ())(address)


def test_what_the_operator_lists_is_reached() -> None:
    guard("hooks.example", 443, ["168.63.129.16"], ())("168.63.129.16")
    guard("hooks.example", 443, ["10.0.0.0/8"], ())("64:ff9b::a01:203")
