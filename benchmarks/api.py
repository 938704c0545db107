"""How fast a service takes submissions while ten thousand jobs wait, over HTTP, on this machine.

Submissions are sent at fixed times whether or not earlier ones have been answered, and each is
timed from the moment at which it should have been sent, so that a stall counts for all who would
have come meanwhile. Beside them a list of jobs is asked for every second.

    python benchmarks/api.py --jobs 10000 --rate 200 --seconds 30
    python benchmarks/api.py --policy drf

With `--policy drf`, `capacity` or `gandiva` every plan goes through all jobs that wait, which takes
tens of milliseconds; submissions must not wait for it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WAITING = {"run": "sleep 1000", "gpus": 2}
BULK_CLIENTS, CLIENTS = 8, 24


class Connections:
    """Kept connections to a service, one caller each at a time."""

    def __init__(self, port: int, count: int) -> None:
        self.free: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()
        for _ in range(count):
            self.free.put(http.client.HTTPConnection("127.0.0.1", port, timeout=120))

    def ask(self, method: str, path: str, body: object = None) -> object:
        connection = self.free.get()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(
                method, f"/api/v1/{path}", data, {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise SystemExit(f"{answer.status}: {text.decode()}")
            return json.loads(text)
        finally:
            self.free.put(connection)


def begin(state: Path, policy: str) -> tuple[subprocess.Popen[str], int]:
    command = (sys.executable, "-m", "wattherd.cli.main", "serve", "--state", str(state))
    process = subprocess.Popen(
        [*command, "--port", "0", "--slots", "2", "--policy", policy],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    found = re.search(r"http://\S+:(\d+)", process.stderr.readline())
    assert found
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process, int(found[1])


def fill(port: int, jobs: int) -> float:
    """Jobs a second while as many as asked for are handed in as fast as they are taken."""
    connections, begun_s = Connections(port, BULK_CLIENTS), time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(BULK_CLIENTS) as pool:
        list(pool.map(lambda _: connections.ask("POST", "jobs", WAITING), range(jobs)))
    return jobs / (time.perf_counter() - begun_s)


def paced(port: int, rate_per_s: float, span_s: float) -> list[float]:
    """Seconds from when each submission was due to its answer."""
    connections, begun_s = Connections(port, CLIENTS), time.perf_counter() + 0.5

    def one(number: int) -> float:
        due_s = begun_s + number / rate_per_s
        time.sleep(max(0.0, due_s - time.perf_counter()))
        connections.ask("POST", "jobs", WAITING)
        return time.perf_counter() - due_s

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, range(round(rate_per_s * span_s))))


def lists(port: int, path: str, over: threading.Event) -> list[float]:
    """Seconds that each of many lists of jobs took, one a second."""
    connections, took_s = Connections(port, 1), []
    while not over.wait(1.0):
        begun_s = time.perf_counter()
        connections.ask("GET", path)
        took_s.append(time.perf_counter() - begun_s)
    return took_s


def processor_s(process: subprocess.Popen[str]) -> float:
    """Seconds of processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantiles(took_s: list[float]) -> dict[str, float]:
    ordered = sorted(took_s)
    at = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 4)
        for name, part in at.items()
    }


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        process, port = begin(Path(folder) / "state", arguments.policy)
        try:
            Connections(port, 1).ask("POST", "jobs", WAITING)  # holds all devices
            fill_per_s = fill(port, arguments.jobs)
            over, before_s = threading.Event(), processor_s(process)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                listed = pool.submit(lists, port, arguments.list, over)
                submissions = paced(port, arguments.rate, arguments.seconds)
                used_s = processor_s(process) - before_s
                over.set()
                list_s = listed.result()
            begun_s = time.perf_counter()
            whole = Connections(port, 1).ask("GET", "jobs?limit=100000")
            whole_s = time.perf_counter() - begun_s
            assert isinstance(whole, dict)
            Connections(port, 1).ask("POST", "jobs/j-1/cancel")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return {
        "jobs": len(whole["jobs"]),
        "filled_per_s": round(fill_per_s, 1),
        "policy": arguments.policy,
        "rate_per_s": arguments.rate,
        "processor_s_per_submission": round(used_s / len(submissions), 5),
        "submissions": {"count": len(submissions), **quantiles(submissions)},
        "page": {"path": arguments.list, "count": len(list_s), **quantiles(list_s)},
        "whole_list_s": round(whole_s, 3),
        "load": [round(one, 2) for one in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--policy", default="fifo-backfill")
    parser.add_argument("--list", default="jobs?limit=100")
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
