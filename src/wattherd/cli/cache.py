"""`wattherd cache`: where results of simulations are kept, how many, and away with them."""

from __future__ import annotations

import click

from wattherd.cli.output import printed, prints
from wattherd.store.result_cache import ResultCache, cache_folder

SCHEMA = "wattherd.cache/1"


@click.group()
def cache() -> None:
    """See and clear the kept results of simulations."""


def _cache() -> ResultCache:
    from wattherd.experiments.sweep.fingerprint import made_by

    return ResultCache(cache_folder(), made_by())


@cache.command("show")
@prints
def show(*, output: str) -> None:
    """Tell the folder, and how many results are in it."""
    from wattherd.cli.tables import print_table
    from wattherd.units import show_bytes

    kept = _cache()
    use = kept.use()
    folder = None if kept.folder is None else str(kept.folder)
    found = {
        "schema": SCHEMA, "folder": folder, "entries": use.entries, "bytes": use.held_bytes,
        "of_other_versions": use.of_others,
    }  # fmt: skip
    if printed(found, output):
        return
    if folder is None:
        click.echo("off (WATTHERD_CACHE)")
        return
    row = [folder, f"{use.entries:,}", show_bytes(use.held_bytes), f"{use.of_others:,}"]
    print_table(["FOLDER", "RESULTS", "SIZE", "OF OTHER VERSIONS"], [row], right_from=1)


@cache.command("clear")
@click.option("--others", is_flag=True, help="Only those that another version computed.")
def clear(*, others: bool) -> None:
    """Delete kept results; they are computed anew when they are asked for."""
    kept = _cache()
    if kept.folder is None:
        click.echo("off (WATTHERD_CACHE): there is nothing to delete")
        return
    click.echo(f"deleted {kept.clear(only_others=others):,} results from {kept.folder}")
