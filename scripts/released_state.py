"""What this version leaves behind, kept for the tests of later ones.

    python scripts/released_state.py                       a store and runs of the simulator
    python scripts/released_state.py --kubeconfig FILE     and the objects of that cluster

Writes `vX-store.tar.xz`, `vX-runs.tar.xz` and `vX-cluster.tar.xz` into tests/service/old_states,
where X is the version of the package; with them what this version itself says of them. A release
makes them anew (scripts/release.py), and tests/service/test_released_states.py has every later
version read them all. Without a cluster at hand, tests/kube/test_released_state.py makes one:

    WATTHERD_LEAVE_STATE=tests/service/old_states pytest tests/kube/test_released_state.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wattherd import __version__
from wattherd.local.orphans import end_stray

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "service" / "old_states"
WATTHERD = (sys.executable, "-m", "wattherd.cli.main")
MOST_S = 120.0
CONFIG = """\
policy: capacity
budget: 60W
slots: 4
allow_root_jobs: true
queues:
  name: root
  children:
    - {name: default, guaranteed_pct: 50, maximum_pct: 100}
    - {name: night, guaranteed_pct: 50, maximum_pct: 100}
"""
SLEEP = "sleep 3600"
TREE = """\
name: hall
level: site
children:
- {name: row-a, level: row, budget: 6kW, nodes: [node-00000, node-00001]}
- {name: row-b, level: row, budget: 5kW, nodes: [node-00002, node-00003]}
"""
SIMULATED = {
    "flat": ("--policy", "fifo-backfill,srtf,tiresias", "--budget", "0:9kW,2h:6kW"),
    "tree": ("--policy", "capacity,gandiva", "--tree", "tree.yaml"),
}
CLUSTER_KINDS = ("nodes", "pods", "powerdomains", "powerbudgets", "queues")


def name_of(part: str, version: str = __version__) -> str:
    """Of the file that keeps a part."""
    return f"v{version}-{part}.tar.xz"


PARTS = ("store", "runs", "cluster")
"""What every release leaves; the last one needs a cluster."""


class Service:
    """One at work, as `wattherd serve` starts it, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Begin it, and wait until it is ready."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.state, self._url = folder / "state", f"http://127.0.0.1:{port}/api/v1"
        (folder / "serve.yaml").write_text(CONFIG)
        command = [*WATTHERD, "serve", "--config", str(folder / "serve.yaml"),
                   "--state", str(self.state), "--port", str(port)]  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.until(self._is_there)

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """The answer's document."""
        data = None if body is None else json.dumps(body).encode()
        about = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", data, about, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def submit(self, run: str, **more: Any) -> str:
        """The id of a new job."""
        return str(self.ask("jobs", {"run": run, **more})["id"])

    def wait_for(self, job_id: str, state: str) -> None:
        """Until a job is in that state."""
        self.until(lambda: self.ask(f"jobs/{job_id}")["state"] == state)

    def until(self, true: Callable[[], object]) -> None:
        """Look again and again.

        Raises:
            SystemExit: it took too long.
        """
        end_s = time.monotonic() + MOST_S
        while not true():
            if time.monotonic() > end_s or self.process.poll() is not None:
                raise SystemExit("the service does not do what it is asked for")
            time.sleep(0.1)

    def end(self) -> None:
        """Stop it with its jobs at work; these end, as they would with the machine."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        for folder in self.state.glob("jobs/*/run-*"):
            end_stray(folder)

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("health")["ok"])
        return False


def leave_store(folder: Path) -> None:
    """A store with jobs of every state, and what its service said of them."""
    service = Service(folder)
    try:
        done = service.submit("echo done", name="done", labels={"team": "vision"})
        failed = service.submit("exit 3", name="failed")
        for job_id, state in ((done, "Succeeded"), (failed, "Failed")):
            service.wait_for(job_id, state)
        running = service.submit(SLEEP, name="running", gpus=2, envs={"EPOCHS": 3})
        service.wait_for(running, "Running")
        gone = service.submit(SLEEP, name="cancelled")
        service.ask(f"jobs/{gone}/cancel", method="POST")
        service.wait_for(gone, "Cancelled")
        service.submit("true", name="chained", after=[running])
        service.submit(SLEEP, name="wide", gpus=3, queue="night", priority="high")
        held = service.submit(SLEEP, name="held")
        service.ask(f"jobs/{held}/pause", method="POST")
        service.wait_for(held, "Paused")
        service.submit(SLEEP, name="later", begin="2035-01-01T00:00:00Z")
        service.ask("arrays", {"run": "sleep 3600", "name": "shards", "array": "0-3%1"})
        service.submit(SLEEP, name="trial", group="search")
        service.ask("power", {"budget": "50W"}, "PUT")
        service.ask("power", {"budget": "30W", "in": "5000h"}, "PUT")
        service.ask("gpus/3/drain", {"reason": "fan"})
        service.ask("queues/night/stop", method="POST")
        for path in ("jobs?over=true&limit=1000", "power", "queues", "nodes", "groups"):
            told = service.ask(path)
            name = path.partition("?")[0]
            (folder / f"{name}.json").write_text(json.dumps(told, indent=1, sort_keys=True))
    finally:
        service.end()
    for sockets in folder.rglob("*"):
        if sockets.is_socket():
            sockets.unlink()


def told(*arguments: str, at: Path) -> str:
    """What a command prints.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(
        [*WATTHERD, *arguments], cwd=at, capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    return done.stdout


def leave_runs(folder: Path) -> None:
    """Runs of `sim run`, of `sim pack`, and what `sim replay` and `sim explain` say of them."""
    told("traces", "generate-jobs", "--jobs", "40", "--gpus", "16", "--load", "1.4",
         "--longest", "2h", "--seed", "1", "--out", "jobs.csv", at=folder)  # fmt: skip
    (folder / "tree.yaml").write_text(TREE)
    for name, options in SIMULATED.items():
        told("sim", "run", "--jobs", "jobs.csv", "--format", "native", "--preset", "none",
             "--cluster", "4x4:V100M16", *options, "--out", name, at=folder)  # fmt: skip
        (folder / name / "replayed.txt").write_text(told("sim", "replay", name, at=folder))
    told("traces", "generate", "--nodes", "8", "--seed", "1", "--out", "input", at=folder)
    told("sim", "pack", "--nodes", "input/nodes.csv", "--pods", "input/pods.csv",
         "--policy", "best-fit,wattherd", "--out", "pack", at=folder)  # fmt: skip


def leave_cluster(folder: Path, kubeconfig: Path) -> None:
    """The objects of a cluster on which this version works, and its snapshot."""
    snapshot = told("kube", "snapshot", "--kubeconfig", str(kubeconfig), at=folder)
    (folder / "snapshot.json").write_text(snapshot)
    for kind in CLUSTER_KINDS:
        command = ["kubectl", "--kubeconfig", str(kubeconfig), "get", kind, "-A", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (folder / f"{kind}.json").write_text(done.stdout)


@contextlib.contextmanager
def packed(part: str, into: Path) -> Iterator[Path]:
    """A folder, which is packed when it is left; paths of this machine are `@FOLDER@` in it."""
    with tempfile.TemporaryDirectory(prefix="wattherd-state-") as made:
        folder = Path(made)
        yield folder
        for file in sorted(folder.rglob("sim.json")):
            file.write_text(file.read_text().replace(made, "@FOLDER@"))
        with tarfile.open(into / name_of(part), "w:xz") as kept:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.is_symlink():
                    about = tarfile.TarInfo(str(file.relative_to(folder)))
                    content = file.read_bytes()
                    about.size, about.mode = len(content), 0o600
                    kept.addfile(about, io.BytesIO(content))
        print(into / name_of(part), (into / name_of(part)).stat().st_size, "bytes")


def missing(version: str, kept: Path = KEPT) -> list[str]:
    """Parts that a release of this version would have to leave and that are not there."""
    return [
        name_of(part, version) for part in PARTS if not (kept / name_of(part, version)).exists()
    ]


def main() -> int:
    """Make all of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=KEPT)
    options.add_argument("--kubeconfig", type=Path)
    given = options.parse_args()
    with packed("store", given.out) as folder:
        leave_store(folder)
    with packed("runs", given.out) as folder:
        leave_runs(folder)
    if given.kubeconfig:
        with packed("cluster", given.out) as folder:
            leave_cluster(folder, given.kubeconfig.resolve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
