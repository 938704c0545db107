"""Take the pictures of docs/guides/dashboard.md: a service, real jobs, a budget that is cut.

    .venv/bin/python scripts/dashboard_pictures.py [docs/img]

Needs the extra `server`, playwright and chromium (scripts/test-servers.sh). Takes about a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

WATTHERD = (sys.executable, "-m", "wattherd.cli.main")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
JOB = """
import json, os, time
steps, begun = 4000, time.time()
for step in range(1, steps + 1):
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        sum(range(500))
    if step % 10 == 0:
        rate = step / (time.time() - begun)
        report = {"step": step, "total": steps, "rate_per_s": rate, "loss": 2.0 / step ** 0.3}
        with open(os.environ["WATTHERD_PROGRESS"], "a") as out:
            print(json.dumps(report), file=out)
        print(f"step {step}: loss {report['loss']:.4f}, {rate:.1f} steps/s", flush=True)
"""
PAGES = {
    "now": ("/?span=2m", 1200, 860, "light"),
    "now-phone": ("/?span=2m", 360, 900, "dark"),
    "cluster": ("/cluster", 1200, 420, "light"),
    "timeline": ("/timeline?span=2m", 1200, 420, "light"),
    "queue": ("/queue", 1200, 800, "light"),
    "job": ("/jobs/j-2", 1200, 1700, "light"),
    "submit": ("/submit", 1200, 1120, "light"),
    "decisions": ("/decisions", 1200, 600, "light"),
    "compare": ("/compare", 1200, 420, "light"),
}


def main(folder: Path) -> None:
    """Start everything, take the pictures, end everything."""
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="pictures-"))
    _simulated(root)
    options = ("--state", str(root / "state"), "--port", "0", "--slots", "4", "--budget", "14W")
    service = subprocess.Popen(
        [*WATTHERD, "serve", *options], stderr=subprocess.PIPE, text=True, cwd=root
    )
    try:
        assert service.stderr is not None
        found = re.search(r"http://\S+", service.stderr.readline())
        assert found is not None
        _work(found[0], root)
        with sync_playwright() as player:
            browser = player.chromium.launch(
                executable_path=shutil.which("chromium"), args=list(FLAGS)
            )
            for name in PAGES:
                _take(browser, found[0], name, folder)
            browser.close()
        for job in ("j-2", "j-3", "j-4", "j-5", "j-6"):
            _wattherd(found[0], "cancel", job)
        time.sleep(3)
    finally:
        service.terminate()
        service.wait(30)
        shutil.rmtree(root, ignore_errors=True)


def _simulated(root: Path) -> None:
    generate = "traces generate-jobs --jobs 80 --gpus 16 --load 1.4 --longest 4h --out jobs.csv"
    run = (
        "sim run --jobs jobs.csv --format native --preset none --cluster 2x8:V100M16"
        " --policy fifo-backfill,srtf,tiresias --budget 3kW --out runs/three-policies"
    )
    for command in (generate, run):
        quiet = subprocess.DEVNULL
        subprocess.run([*WATTHERD, *command.split()], cwd=root, check=True, stdout=quiet)


def _work(url: str, root: Path) -> None:
    """Jobs of several sizes; the budget is cut and rises again."""
    (root / "train.py").write_text(JOB)
    program = (sys.executable, str(root / "train.py"))
    _wattherd(url, "submit", "--", "true")
    for gpus, name in (("1", "cnn"), ("1", "transformer"), ("2", "mlp")):
        _wattherd(url, "submit", "-g", gpus, "-n", name, "--", *program)
    time.sleep(25)
    _wattherd(url, "power", "set", "8W")
    for name in ("sweep-a", "sweep-b"):
        _wattherd(url, "submit", "-g", "4", "-n", name, "--", *program)
    time.sleep(25)
    _wattherd(url, "power", "set", "12W")
    time.sleep(12)


def _wattherd(url: str, *arguments: str) -> None:
    environment = {**os.environ, "WATTHERD_SERVER": url}
    subprocess.run([*WATTHERD, *arguments], check=True, env=environment)


def _take(browser: Browser, url: str, name: str, folder: Path) -> None:
    path, width, height, scheme = PAGES[name]
    size = {"width": width, "height": height}
    page = browser.new_page(viewport=size, color_scheme="dark" if scheme == "dark" else "light")
    page.goto(url + path)
    page.wait_for_timeout(1500)
    page.screenshot(path=folder / f"dashboard-{name}.png")
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img"))
