"""Measure a GPU's power as wattherd sees it: one command, some six minutes, nothing is set.

    python benchmarks/gpu_power.py --out measured              # all of it
    python benchmarks/gpu_power.py --out measured --quick      # a minute, to try it
    python benchmarks/gpu_power.py --out measured --parts card,meters,steps

Parts, each by itself (one that fails is named in `errors.json`):

* `card`: what NVML answers for: limits, modes, power smoothing, workload profiles.
* `meters`: how often each of NVML's counters is renewed, and what a question costs.
* `steps`: load that begins and ends, and squares of 1 to 5 Hz: when and how much of it shows.
* `service`: `wattherd serve --measure-only` runs a training; its word beside an independent one.
* `plain`: a training with long steps that lets nothing be chosen, under two budgets.
* `spectrum`: micro-batch x accumulation of a transformer, images of a convolutional network, duty.
* `checkpoints`: a training that writes one every few seconds.

All the while a process of its own reads the counters every 5 ms and writes what has changed
(`counters.csv.gz`); NVML's own buffer of samples goes to `samples.csv.gz`. `gpu_judge.py` makes
tables of all this. It needs a GPU of NVIDIA, nvidia-ml-py, PyTorch and numpy; no limit, clock or
mode of the GPU is touched. `--model sleep` tries it where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from gpu_training import Sleep, Training, training_of  # noqa: E402

EVERY_S = 0.005
AVERAGE, INSTANT, ENERGY = 185, 186, 83
"""Fields of NVML: mean power, power now (mW), energy since the driver was loaded (mJ)."""
Work = Training | Sleep
WATTHERD = [sys.executable, "-m", "wattherd"]


# The recorder, a process of its own ------------------------------------------------------------


def record(out: Path) -> None:
    """Write what changes of the counters until SIGTERM; nobody else's time is taken for it."""
    import pynvml as nvml

    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    with (
        gzip.open(out / "counters.csv.gz", "wt", newline="") as one,
        gzip.open(out / "state.csv.gz", "wt", newline="") as two,
        gzip.open(out / "samples.csv.gz", "wt", newline="") as three,
    ):
        counters, state, samples = csv.writer(one), csv.writer(two), csv.writer(three)
        counters.writerow(["unix_s", "instant_w", "average_w", "energy_j"])
        state.writerow(["unix_s", "gpu_pct", "memory_pct", "memory_mib", "sm_mhz", "celsius"])
        samples.writerow(["unix_s", "watts"])
        before: Any = None
        last_us, next_state_s, next_samples_s = 0, 0.0, 0.0
        while not ended:
            now_s = time.time()
            found = nvml.nvmlDeviceGetFieldValues(gpu, [INSTANT, AVERAGE, ENERGY])
            values = _value(found[0]), _value(found[1]), _value(found[2])
            if values != before:
                before = values
                counters.writerow([f"{now_s:.4f}", *(_milli(value) for value in values)])
            if now_s >= next_state_s:
                next_state_s = now_s + 0.2
                state.writerow([f"{now_s:.3f}", *_state(nvml, gpu)])
            if now_s >= next_samples_s:
                next_samples_s = now_s + 0.5
                with contextlib.suppress(nvml.NVMLError):
                    _, fresh = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES,
                                                         last_us)  # fmt: skip
                    for sample in fresh:
                        last_us = max(last_us, sample.timeStamp)
                        watts = sample.sampleValue.uiVal * 1e-3
                        samples.writerow([f"{sample.timeStamp * 1e-6:.6f}", watts])
            time.sleep(max(now_s + EVERY_S - time.time(), 0.0))


def _state(nvml: Any, gpu: Any) -> list[Any]:
    row: list[Any] = []
    for ask in (
        lambda: [*_pair(nvml.nvmlDeviceGetUtilizationRates(gpu))],
        lambda: [nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20],
        lambda: [nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)],
        lambda: [nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)],
    ):
        try:
            row += ask()
        except Exception:  # noqa: BLE001 - what it does not tell stays empty
            row += [""] * (2 if not row else 1)
    return row


def _pair(rates: Any) -> tuple[int, int]:
    return rates.gpu, rates.memory


def _value(field: Any) -> int | None:
    """As the field's own type says; None where the GPU does not tell."""
    if field.nvmlReturn != 0:
        return None
    kind = field.valueType
    name = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}.get(kind)
    return int(getattr(field.value, name or "ullVal"))


def _milli(value: int | None) -> str:
    return "" if value is None else f"{value * 1e-3:.3f}"


# The parts -------------------------------------------------------------------------------------


class Measuring:
    """What has been found so far, written after every part."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.out = asked, asked.out
        self.found: dict[str, Any] = {}
        self.errors: dict[str, str] = {}

    def length(self, seconds: float) -> float:
        """A quarter where only the script is tried."""
        return seconds / 4 if self.asked.quick else seconds

    def part(self, name: str, measure: Callable[[Measuring], Any]) -> None:
        if name not in self.asked.parts:
            return
        began_s = time.time()
        try:
            self.found[name] = measure(self)
        except BaseException as error:
            self.errors[name] = f"{error!r}\n{traceback.format_exc(limit=6)}"
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            print(f"{name}: {time.time() - began_s:.1f} s", self.errors.get(name, ""), flush=True)
            (self.out / "found.json").write_text(json.dumps(self.found, indent=1))
            (self.out / "errors.json").write_text(json.dumps(self.errors, indent=1))


def card(measuring: Measuring) -> dict[str, Any]:
    """What NVML answers, by the name of its call or field; what it refuses, in its words."""
    import ctypes

    import pynvml as nvml

    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    calls = {
        "name": lambda: nvml.nvmlDeviceGetName(gpu),
        "driver": nvml.nvmlSystemGetDriverVersion,
        "nvml": nvml.nvmlSystemGetNVMLVersion,
        "vbios": lambda: nvml.nvmlDeviceGetVbiosVersion(gpu),
        "limits_mw": lambda: list(nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)),
        "default_limit_mw": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
        "limit_mw": lambda: nvml.nvmlDeviceGetPowerManagementLimit(gpu),
        "enforced_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
        "power_usage_mw": lambda: nvml.nvmlDeviceGetPowerUsage(gpu),
        "energy_mj": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        "memory_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
        "ecc": lambda: list(nvml.nvmlDeviceGetEccMode(gpu)),
        "mig": lambda: list(nvml.nvmlDeviceGetMigMode(gpu)),
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(gpu),
        "compute_mode": lambda: nvml.nvmlDeviceGetComputeMode(gpu),
        "max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "power_state": lambda: nvml.nvmlDeviceGetPerformanceState(gpu),
        "process_utilisation": lambda: [
            one.smUtil for one in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)
        ],
        "module_power_samples": lambda: len(
            nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_MODULE_POWER_SAMPLES, 0)[1]
        ),
        "total_power_samples": lambda: len(
            nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)[1]
        ),
        "utilisation_samples": lambda: len(
            nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]
        ),
    }  # fmt: skip
    found = {name: _answer(ask) for name, ask in calls.items()}

    def profiles(make: str, ask: str) -> Any:
        document = getattr(nvml, make)()  # it states its version
        getattr(nvml, ask)(gpu, ctypes.byref(document))
        masks = [name for name, _ in document._fields_ if hasattr(getattr(document, name), "mask")]
        return {name: [hex(word) for word in getattr(document, name).mask] for name in masks}

    found["workload_profiles"] = _answer(lambda: profiles(
        "c_nvmlWorkloadPowerProfileProfilesInfo_v1_t",
        "nvmlDeviceWorkloadPowerProfileGetProfilesInfo"))  # fmt: skip
    found["workload_profiles_now"] = _answer(lambda: profiles(
        "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t",
        "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"))  # fmt: skip
    names = [
        name for name in dir(nvml)
        if name.startswith(("NVML_FI_PWR_SMOOTHING", "NVML_FI_DEV_POWER",
                            "NVML_FI_DEV_TOTAL_ENERGY", "NVML_FI_DEV_MODULE"))
    ]  # fmt: skip
    for scope in (0, 1):  # of the GPU, of the module
        for name in names:

            def ask(name: str = name, scope: int = scope) -> Any:
                (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [(getattr(nvml, name), scope)])
                if field.nvmlReturn != nvml.NVML_SUCCESS:
                    raise nvml.NVMLError(field.nvmlReturn)
                return {"value": _value(field), "timestamp": field.timestamp}

            found[f"{name}{'' if scope == 0 else ' (module)'}"] = _answer(ask)
    return found


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - a refusal is an answer
        return f"{type(error).__name__.removeprefix('NVMLError_')}: {error}"


def meters(measuring: Measuring) -> dict[str, Any]:
    """Under a steady load: when each counter is another (s from the start), what a call costs."""
    import pynvml as nvml

    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)

    def field(number: int) -> Callable[[], Any]:
        def ask() -> Any:
            (found,) = nvml.nvmlDeviceGetFieldValues(gpu, [number])
            return _value(found), found.timestamp, found.latencyUsec

        return ask

    questions: dict[str, Callable[[], Any]] = {
        "instant": field(INSTANT),
        "average": field(AVERAGE),
        "energy": field(ENERGY),
        "usage": lambda: (nvml.nvmlDeviceGetPowerUsage(gpu), 0, 0),
        "energy_call": lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu), 0, 0),
        "utilisation": lambda: (nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, 0, 0),
    }
    with load(measuring.asked.model):
        return {name: _answer(lambda ask=ask: _changes(ask, measuring.length(2.0)))
                for name, ask in questions.items()}  # fmt: skip


def _changes(ask: Callable[[], Any], seconds: float) -> dict[str, Any]:
    changed: list[list[float]] = []
    calls, before = 0, None
    began_s = time.time()
    while (now_s := time.time()) < began_s + seconds:
        value, stamp, latency = ask()
        calls += 1
        if value != before:
            before = value
            changed.append([round(now_s - began_s, 5), value, stamp, latency])
    return {"began_unix_s": began_s, "calls": calls, "call_s": seconds / calls, "changed": changed}


@contextlib.contextmanager
def load(model: str) -> Iterator[None]:
    """Products of matrices all the time, in a process of its own; it has begun when this yields."""
    program = "import time\nprint('on', flush=True)\ntime.sleep(600)"
    if model != "sleep":
        program = (
            "import torch\na = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
            "a @ a; torch.cuda.synchronize(); print('on', flush=True)\n"
            "while True:\n    for _ in range(8): a @ a\n    torch.cuda.synchronize()\n"
        )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(1.5)  # and shows in all means
            yield
        finally:
            process.kill()


def steps(measuring: Measuring) -> list[dict[str, Any]]:
    """Times (Unix s) at which load began and ended; the recorder tells the rest."""
    burst = _burst(measuring.asked.model)
    rows: list[dict[str, Any]] = []

    def wave(kind: str, on_s: float, off_s: float, times: int) -> None:
        for _ in range(times):
            from_s = time.time()
            burst(on_s)
            until_s = time.time()
            time.sleep(off_s)
            rows.append({"kind": kind, "on_s": from_s, "off_s": until_s})

    wave("step", 1.5, 1.5, 3 if measuring.asked.quick else 6)
    for hz in (1.0, 2.0, 5.0, 10.0):
        time.sleep(1.0)
        wave(f"{hz:g} Hz", 0.5 / hz, 0.5 / hz, max(round(measuring.length(4.0) * hz), 2))
    return rows


def _burst(model: str) -> Callable[[float], None]:
    """Computes for so many seconds and is over when it returns."""
    if model == "sleep":
        return time.sleep
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)

    def burst(seconds: float) -> None:
        until_s = time.time() + seconds
        while time.time() < until_s:
            torch.mm(a, a, out=b)
            torch.cuda.synchronize()

    burst(0.2)
    return burst


def spectrum(measuring: Measuring) -> dict[str, Any]:
    """Points in random order, twice: begin, end (Unix s) and steps; watts follow from counters."""
    names = ("sleep",) * 2 if measuring.asked.model == "sleep" else ("gpt2-small", "resnet18")
    order = random.Random(0)
    points: list[dict[str, Any]] = []
    found = {"points": points}
    text, images = training_of(names[0]), None
    grid = [(micro, parts) for micro in (1, 2, 4, 8, 16, 32, 64) for parts in (1, 4, 16)]
    for turn in range(1 if measuring.asked.quick else 2):
        for micro, parts in order.sample(grid, len(grid)):
            seconds = 0.5 if measuring.asked.quick else 2.4
            points.append({"turn": turn, **_point(text, micro, parts, seconds)})
        for duty in (0.25, 0.5, 0.75, 1.0):
            seconds = 0.5 if measuring.asked.quick else 2.4
            points.append({"turn": turn, **_point(text, 16, 1, seconds, duty)})
        if images is None:
            images = training_of(names[1])
        for micro in order.sample((8, 32, 128, 512), 4):
            seconds = 0.5 if measuring.asked.quick else 2.0
            points.append({"turn": turn, **_point(images, micro, 1, seconds)})
        _keep(measuring, "spectrum", found)
    return found


def _keep(measuring: Measuring, part: str, found: Any) -> None:
    (measuring.out / f"{part}.partial.json").write_text(json.dumps(found))


def _point(
    work: Work, micro: int, accumulation: int, seconds: float, duty: float = 1.0
) -> dict[str, Any]:
    for _ in range(2):  # chooses kernels, fills memory
        work.step(micro, 1)
    durations: list[float] = []
    from_s = time.time()
    while (now_s := time.time()) < from_s + seconds or not durations:
        work.step(micro, accumulation)
        durations.append(time.time() - now_s)
        if duty < 1.0:
            time.sleep(durations[-1] * (1.0 / duty - 1.0))
    until_s = time.time()
    memory_mib = None
    if isinstance(work, Training):
        memory_mib = work.torch.cuda.max_memory_allocated() >> 20
        work.torch.cuda.reset_peak_memory_stats()
    return {
        "model": work.name, "micro": micro, "accumulation": accumulation, "duty": duty,
        "from_s": from_s, "until_s": until_s, "steps": len(durations),
        "step_s": sorted(durations)[len(durations) // 2], "memory_mib": memory_mib,
    }  # fmt: skip


def checkpoints(measuring: Measuring) -> dict[str, Any]:
    """A training that writes a checkpoint every 5 s; when each began and ended (Unix s)."""
    work = training_of("sleep" if measuring.asked.model == "sleep" else "gpt2-small")
    rows: list[dict[str, Any]] = []
    length = f"{measuring.length(24.0):g}s"
    capture = subprocess.Popen(
        [*WATTHERD, "power", "swings", "--meter", "nvml://0", "--for", length,
         "--every", "0.02s", "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        work.step(32, 1)
        began_s = next_s = time.time()
        steps_done = 0
        while time.time() < began_s + measuring.length(32.0):
            if time.time() >= next_s:
                from_s = time.time()
                work.save(Path(folder) / "checkpoint.pt")
                rows.append({"from_s": from_s, "until_s": time.time(), "steps": steps_done})
                next_s += 5.0
            work.step(32, 1)
            steps_done += 1
    until_s = time.time()
    said, _ = capture.communicate(timeout=60)
    return {"from_s": began_s, "until_s": until_s, "steps": steps_done, "written": rows,
            "capture": _document(said)}  # fmt: skip


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# The service -----------------------------------------------------------------------------------


class Service:
    """`wattherd serve --measure-only` in a folder, and its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.errors = (folder / "serve.log").open("w+")
        self.process = subprocess.Popen(
            [*WATTHERD, "serve", "--measure-only", "--state", str(folder / "state"), "--port", "0",
             "--log", "text", *options],
            stderr=self.errors, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.url = self._url(folder / "serve.log")

    def _url(self, log: Path) -> str:
        until_s = time.time() + 60
        while time.time() < until_s:
            if found := re.search(r"serves (http://\S+)", log.read_text()):
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(log.read_text())

    def ask(self, *arguments: str) -> Any:
        """A command's document."""
        done = subprocess.run(
            [*WATTHERD, *arguments, "-o", "json"], env={**os.environ, "WATTHERD_SERVER": self.url},
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"exit": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    def get(self, path: str) -> Any:
        """A document of the REST API."""
        import urllib.request

        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str) -> None:
        """Order something by the REST API."""
        import urllib.request

        order = urllib.request.Request(
            f"{self.url}/api/v1/{path}", b"{}", {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(order, timeout=30).close()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()


def service(measuring: Measuring) -> dict[str, Any]:
    """A training under the service: its learned speeds and watts, and the job's own."""
    found: dict[str, Any] = {"at": {}}
    each_s = measuring.length(13.0)
    sizes = (64, 16, 4, 1)
    tail_s = 0.0 if measuring.asked.quick else 46.0
    folder = Path(tempfile.mkdtemp(prefix="wattherd-gpu-"))
    running = Service(folder, *measuring.asked.serve)
    try:
        own = folder / "own.json"
        program = [
            sys.executable, str(HERE / "gpu_training.py"), "--model",
            "sleep" if measuring.asked.model == "sleep" else "gpt2-small", "--micro",
            ",".join(map(str, sizes)), "--seconds", str(each_s), "--tail", str(tail_s), "--log",
            str(own),
        ]  # fmt: skip
        job_file = folder / "job.json"
        job_file.write_text(json.dumps({
            "name": "gpt2-small", "run": " ".join(program), "gpus": 1,
            "batch": {"global": 64, "micro": list(sizes)},
        }))  # fmt: skip
        found["nodes"] = running.get("nodes")
        found["at"]["submitted"] = time.time()
        submitted = running.ask("submit", "--file", str(job_file))
        found["submitted"] = submitted
        job = str(submitted["id"])
        _until(lambda: own.exists() or _over(running, job), 90 + each_s)
        # In the second phase: what the service's own captures see of the draw.
        every = "0.02s"
        length = f"{measuring.length(6.0):g}s"
        found["swings_of_job"] = running.ask("power", "swings", "--job", job, "--for", length,
                                             "--every", every)  # fmt: skip
        _until(lambda: _rows(own) >= len(sizes) or _over(running, job), 5 * each_s + 30)
        found["show_after_phases"] = running.ask("show", job)
        found["explain"] = running.ask("explain", job)
        found["budgets"] = []
        limit_w = measuring.found.get("card", {}).get("default_limit_mw", 700_000) * 1e-3
        for part in () if measuring.asked.quick else (0.64, 0.43):  # 450 W, 300 W of 700 W
            budget = f"{limit_w * part:.0f}W"
            found["budgets"].append({"budget": budget, "at_s": time.time(),
                                     "answer": running.ask("power", "set", budget)})  # fmt: skip
            time.sleep(18.0)
            found["budgets"][-1]["show"] = running.ask("show", job)
        if found["budgets"]:
            found["lifted"] = {"at_s": time.time(), "answer": running.ask("power", "set", "none")}
        _until(lambda: _over(running, job), 90)
        time.sleep(1.5)
        found["show"] = running.ask("show", job)
        found["power"] = running.get("power?last=400")
        found["own"] = json.loads(own.read_text()) if own.exists() else None
        found["logs"] = subprocess.run(
            [*WATTHERD, "logs", job], env={**os.environ, "WATTHERD_SERVER": running.url},
            capture_output=True, text=True, timeout=30, check=False,
        ).stdout[-3000:]  # fmt: skip
    except BaseException:
        found["failed"] = traceback.format_exc()
        measuring.found["service"] = found
        raise
    finally:
        running.end()
        found["log"] = (folder / "serve.log").read_text()[-8000:]
    return found


def plain(measuring: Measuring) -> dict[str, Any]:
    """A training that lets nothing be chosen, with steps of 1.7 s, under two budgets."""
    found: dict[str, Any] = {"budgets": []}
    folder = Path(tempfile.mkdtemp(prefix="wattherd-gpu-"))
    running = Service(folder, *measuring.asked.serve)
    try:
        own = folder / "own.json"
        program = [
            sys.executable, str(HERE / "gpu_training.py"), "--model",
            "sleep" if measuring.asked.model == "sleep" else "gpt2-small", "--global-batch", "1024",
            "--micro", "64", "--seconds", "9", "--tail", "36", "--log", str(own),
        ]  # fmt: skip
        job_file = folder / "job.json"
        job_file.write_text(json.dumps({"name": "plain", "run": " ".join(program), "gpus": 1}))
        job = str(running.ask("submit", "--file", str(job_file))["id"])
        _until(lambda: own.exists() or _over(running, job), 90)
        limit_w = measuring.found.get("card", {}).get("default_limit_mw", 700_000) * 1e-3
        for part in (0.64, 0.43):
            budget = f"{limit_w * part:.0f}W"
            found["budgets"].append({"budget": budget, "at_s": time.time(),
                                     "answer": running.ask("power", "set", budget)})  # fmt: skip
            time.sleep(18.0)
            found["budgets"][-1]["show"] = running.ask("show", job)
        found["until_s"] = time.time()
        running.post(f"jobs/{job}/cancel")
        found["power"] = running.get("power?last=400")
        found["own"] = json.loads(own.read_text())
    finally:
        running.end()
        found["log"] = (folder / "serve.log").read_text()[-8000:]
    return found


def _rows(path: Path) -> int:
    try:
        return len(json.loads(path.read_text()))
    except (OSError, ValueError):
        return 0


def _over(running: Service, job: str) -> bool:
    return running.get(f"jobs/{job}")["state"] not in ("Queued", "Starting", "Running", "Stopping")


def _until(true: Callable[[], bool], seconds: float) -> None:
    until_s = time.time() + seconds
    while not true() and time.time() < until_s:
        time.sleep(0.3)


PARTS: dict[str, Callable[[Measuring], Any]] = {
    "card": card, "meters": meters, "steps": steps, "service": service, "plain": plain,
    "checkpoints": checkpoints, "spectrum": spectrum,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, to try it")
    parser.add_argument("--model", choices=["gpu", "sleep"], default="gpu")
    parser.add_argument("--serve", action="append", default=[], help="further options of `serve`")
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.record:
        record(asked.out)
        return 0
    asked.parts = asked.parts.split(",")
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    measuring = Measuring(asked)
    recorder = subprocess.Popen([sys.executable, __file__, "--record", "--out", str(asked.out)])
    time.sleep(1.0)
    try:
        measuring.found["idle"] = {"from_s": time.time(), "until_s": time.time() + 3.0}
        time.sleep(3.0)
        for name, measure in PARTS.items():
            measuring.part(name, measure)
    finally:
        recorder.terminate()
        recorder.wait(20)
    return int(bool(measuring.errors))


if __name__ == "__main__":
    sys.exit(main())
