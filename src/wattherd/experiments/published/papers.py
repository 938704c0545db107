"""Every publication that can be reproduced, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError
from wattherd.experiments.published import (
    aiturbo_hpdc21,
    emerald_phoenix,
    fgd_atc23,
    gavel_osdi20,
    hkbu_dvfs,
    muri_sigcomm22,
    pollux_osdi21,
    pwr_ccgrid25,
    tiresias_nsdi19,
)
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.published.source import OpenbFiles
from wattherd.workload.public_files import data_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionWish:
    """What the user asked for; `data` is the folder of the paper's files, None for the default."""

    data: Path | None
    traces: tuple[str, ...]
    seeds: Sequence[int]
    processes: int


Compare = Callable[[ReproductionWish], Iterator[FigureCheck]]


def _placement(module: object) -> Compare:
    def compare(wish: ReproductionWish) -> Iterator[FigureCheck]:
        files = OpenbFiles(wish.data or data_directory())
        chosen = files.traces(wish.traces)
        checks: Iterator[FigureCheck] = module.compare(  # type: ignore[attr-defined]
            files, chosen, wish.seeds, processes=wish.processes
        )
        return checks

    return compare


def _traces(name: str, compare: Callable[[Path], Iterator[FigureCheck]]) -> Compare:
    def run(wish: ReproductionWish) -> Iterator[FigureCheck]:
        return compare(wish.data or _traces_directory() / name)

    return run


def _pollux_policy(wish: ReproductionWish) -> Iterator[FigureCheck]:
    return pollux_osdi21.compare_policy(wish.data or _traces_directory() / "pollux", wish.seeds)


def _emerald_phoenix(wish: ReproductionWish) -> Iterator[FigureCheck]:
    return emerald_phoenix.compare(wish.data or _data() / "power" / "emerald_phoenix_2025")


def _traces_directory() -> Path:
    return _data() / "traces"


def _data() -> Path:
    root = os.environ.get("WATTHERD_DATA")
    if not root:
        raise UserError(
            "WATTHERD_DATA is not set", hint="name the folder of the paper's files with --data"
        )
    return Path(root).expanduser()


PAPERS: Mapping[str, Compare] = {
    "fgd-atc23": _placement(fgd_atc23),
    "pwr-ccgrid25": _placement(pwr_ccgrid25),
    "pollux-osdi21": _traces("pollux", pollux_osdi21.compare),
    "pollux-osdi21-policy": _pollux_policy,
    "gavel-osdi20": _traces("gavel", gavel_osdi20.compare),
    "muri-sigcomm22": _traces("muri", muri_sigcomm22.SUITE.compare),
    "tiresias-nsdi19": _traces("tiresias", tiresias_nsdi19.SUITE.compare),
    "hkbu-dvfs": _traces("hkbu_dvfs", hkbu_dvfs.compare),
    "aiturbo-hpdc21": _traces("aiturbo", aiturbo_hpdc21.compare),
    "emerald-phoenix": _emerald_phoenix,
}


def orders_at_hand(wish: ReproductionWish) -> bool:
    """Whether the placement papers' own arrival orders are on disk."""
    directory = wish.data or data_directory()
    return any((directory / "orders").glob("*.json.gz"))
