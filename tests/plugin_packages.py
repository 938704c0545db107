"""Packages of somebody else's, installed for a test: the example, and one with everything wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "plugin"
BROKEN = '''
"""What can be wrong."""


class Raises:
    def plan(self, view, draft):
        raise KeyError("a\\nb")


class Midway(Raises):
    def plan(self, view, draft):
        from wattherd.policy.contract import Share

        for job in view.live():
            draft.start(job, [Share(0, job.spec.roles[0].count)])
        raise ValueError("halfway")


class TooMuch:
    """More than there is."""

    def share(self, asks, watts):
        return [ask.curve.max_w for ask in asks]


class Never:
    """Plans two jobs, and does not come back from the third until somebody mends it."""

    def __init__(self):
        from wattherd.policy.schedule.fifo_gang import FifoGang

        self.inner = FifoGang()

    def plan(self, view, draft):
        if len(list(view.live())) > 2:
            self.search()
        self.inner.plan(view, draft)

    def search(self):
        import os

        while not os.path.exists(os.environ.get("BROKEN_IS_MENDED", "never")):
            pass


def never(given):
    return Never()


def no_section(run):
    """Nothing that a page could show."""
    return "a word"


def section_that_raises(run):
    raise KeyError("a\\nb")


def no_keys(world, shape, rows, options):
    raise KeyError("a\\nb")


def wait_for_ever(*given):
    """Never returns."""
    import time

    while True:
        time.sleep(0.05)


def scorer(rows):
    from wattherd.policy.place.contract import Scorer

    return Scorer(name="another", doc="Raises", rows=rows)


SCORER = scorer(no_keys)
SLOW_SCORER = scorer(wait_for_ever)


class NoPlanner:
    pass


def raises(given):
    return Raises()


def midway(given):
    return Midway()


def nothing(given):
    return NoPlanner()
'''
FAULTY_METER = '''
"""A meter that does not keep to the contract."""

import time

OPTIONS = frozenset()


class Signal:
    def told(self):
        while True:
            time.sleep(0.05)

    def close(self):
        self.told()


def signal(uri, site, clock):
    return Signal()


class Meter:
    def __init__(self, answer):
        self.answer = answer

    def sample(self):
        if self.answer == "raises":
            raise KeyError("no such register")
        while self.answer == "never":
            time.sleep(0.05)
        return "a word"

    def close(self):
        raise OSError("closed already")


def driver(uri, clock):
    return Meter(uri.host)
'''
ENTRIES = """
[wattherd.place]
no-scorer = broken:NoPlanner
no-keys = broken:SCORER
slow-keys = broken:SLOW_SCORER
[wattherd.schedule]
raises = broken:raises
midway = broken:midway
never = broken:never
nothing = broken:nothing
absent = broken:absent
fifo = broken:raises
[wattherd.power]
too-much = broken:TooMuch
[wattherd.meters]
empty = broken
faulty = faulty
[wattherd.signals]
faulty = faulty
[wattherd.workloads]
slow = broken:wait_for_ever
[wattherd.reports]
slow = broken:wait_for_ever
no-section = broken:no_section
raises = broken:section_that_raises
svg = broken:no_section
"""


def install(source: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    how = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *how, str(source)], check=True, timeout=120)


def install_both(target: Path) -> Path:
    """The folder `target` with both packages; PYTHONPATH is to name it."""
    install(EXAMPLE, target)
    (target / "broken.py").write_text(BROKEN)
    (target / "faulty.py").write_text(FAULTY_METER)
    about = target / "broken-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    return target


def python_path(packages: Path) -> str:
    """PYTHONPATH with these packages before what it names already."""
    return os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH", "")]))
