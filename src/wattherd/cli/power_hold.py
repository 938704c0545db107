"""`wattherd power hold`: keep a site within its limits, on real meters and knobs."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from wattherd.cli.signals import set_on


@click.command("hold")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--duration", metavar="10m", help="Stop after this time.")
@click.option("--dry-run", is_flag=True, help="Read and decide, but set nothing.")
@click.option("--release", is_flag=True, help="At the end, put every cap back as it was found.")
@click.option("--reload", is_flag=True, help="Only have whoever holds the site read CONFIG again.")
@click.option("--restore", is_flag=True, help="Only put back what an earlier loop left changed.")
def hold(
    *,
    config: Path,
    duration: str | None,
    dry_run: bool,
    release: bool,
    reload: bool,
    restore: bool,
) -> int:
    """Keep a site within its limits until SIGTERM or SIGINT.

    CONFIG is a YAML file of feeds, devices, meters and knobs; decisions are JSON lines on stdout.
    At the end caps stay for a lease, in which the next start goes on from them; then, or should
    the loop die, a watchdog lowers every device to its floor. With --release, or by --restore
    later, everything is put back as the first start found it. Exits with 1 if a device could not
    be put back. SIGHUP, or --reload elsewhere, has the file read again; a bad one changes nothing.
    """
    import math

    from wattherd.hold.changes import ask_to_reload
    from wattherd.hold.daemon import HoldLoop, to_stream
    from wattherd.hold.site_file import read_site
    from wattherd.units import seconds

    if reload:
        pid = ask_to_reload(read_site(config))
        click.echo(f"process {pid} reads {config} again")
        return 0
    ended, again = threading.Event(), threading.Event()
    set_on({signal.SIGTERM: ended, signal.SIGINT: ended, signal.SIGHUP: again})
    life = HoldLoop(
        site=read_site(config),
        emit=to_stream(_write),
        ended=ended,
        duration_s=seconds(duration, field="--duration") if duration else math.inf,
        dry_run=dry_run,
        release=release,
        reload=again,
    )
    return int(not (life.restore() if restore else life.run()))


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
