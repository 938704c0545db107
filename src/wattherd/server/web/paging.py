"""A part of a long list: only what is looked at is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Paged(Generic[Item]):
    """Page `page` of `pages`, counted from 1; there are `total` items in all."""

    items: Sequence[Item]
    page: int
    pages: int
    total: int


def paged(items: Sequence[Item], page: int, size: int) -> Paged[Item]:
    """The items of a page; the nearest where there is no such page."""
    pages = max(1, -(-len(items) // size))
    page = min(max(page, 1), pages)
    return Paged(items[(page - 1) * size : page * size], page, pages, len(items))
