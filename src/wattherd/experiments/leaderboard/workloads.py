"""The fixed workloads of the leaderboard: public ones where their files are, else generated ones.

Generated workloads are drawn from published statistics by a fixed seed and need no files. Nothing
here is tuned to a policy; a workload that is added or changed has a new name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.generate import generate_cluster, generate_pods, write_openb
from wattherd.workload.generate_jobs import JobMix, generate_jobs, jobs_csv

PROFILES = ("resnet50", "bert-squad", "bert-sentiment", "deepspeech2", "shufflenet")
"""Measured power of training programs on V100 that is built in."""
UNLIMITED = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardJobs:
    """Training jobs on a cluster, as fields of a scenario."""

    name: str
    about: str
    source: str
    cluster: str
    jobs: dict[str, str]
    preset: str = "none"
    seed: int = 1
    least_part: float = 0.5
    """The smallest budget that is asked for, as a part; below it some job could never run."""

    def fields(self) -> dict[str, Any]:
        """Of a scenario, but for policies and budgets."""
        return {
            "cluster": self.cluster, "jobs": self.jobs, "preset": self.preset, "seed": self.seed,
        }  # fmt: skip

    def budget(self, part: float) -> str | None:
        """Watts for all GPUs: a part of the most that they draw, in whole hundreds.

        Parts from 1 down to a half are spread from 1 down to the workload's least.
        """
        if part >= UNLIMITED:
            return None
        nodes = parse_cluster(self.cluster, known=GPUS).nodes
        reached = 1 - (1 - part) * (1 - self.least_part) / 0.5
        most_w = sum(node.gpu_count * GPUS[node.gpu_model].max_w for node in nodes)
        return f"{round(reached * most_w / 100) * 100}W"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPods:
    """Pods for a cluster of nodes, as two files."""

    name: str
    about: str
    source: str
    nodes: str
    pods: str


_DRAWN = "drawn from statistics of Microsoft's Philly trace (workload/generate_jobs.py)"
_MIXES: dict[str, tuple[str, JobMix, int]] = {
    "busy": ("more work than 64 GPUs can do", JobMix(jobs=240, gpus=64, load=1.4), 1),
    "calm": ("GPUs are free most of the time", JobMix(jobs=240, gpus=64, load=0.7), 2),
    "wide": (
        "jobs of up to 32 GPUs",
        JobMix(jobs=200, gpus=64, load=1.1, widest=32, longest_s=21_600), 3,
    ),
    "short": ("no job longer than 30 min", JobMix(jobs=400, gpus=64, load=1.1, longest_s=1800), 4),
    "measured": (
        "jobs draw and slow down as five measured programs do",
        JobMix(jobs=240, gpus=64, load=1.2, power_profiles=PROFILES), 5,
    ),
}  # fmt: skip


def generated_jobs(folder: Path) -> list[BoardJobs]:
    """Five workloads for 64 GPUs; their files are written to the folder.

    Raises:
        UserError: they cannot be written.
    """
    found = []
    for name, (about, mix, seed) in _MIXES.items():
        path = _written(folder / f"{name}.csv", jobs_csv(generate_jobs(mix, seed)))
        found.append(
            BoardJobs(
                name=name, about=about, source=f"{_DRAWN}, seed {seed}", cluster="8x8:V100M16",
                jobs={"file": str(path), "format": "native"}, seed=seed,
            )
        )  # fmt: skip
    return found


def _written(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return path


_PUBLIC_JOBS = (
    ("tiresias-60", "60 jobs on 16 GPUs", "Tiresias' simulator (NSDI'19), 60_job.csv",
     "4x4:V100M16", "none", "tiresias", "tiresias/60_job.csv"),
    ("muri-400", "400 jobs on 64 GPUs", "Muri's artifact (SIGCOMM'22), cluster_trace.csv",
     "8x8:V100M16", "none", "muri", "muri/cluster_trace.csv"),
    ("elasticflow-195", "195 jobs with deadlines on 128 GPUs",
     "ElasticFlow's artifact (ASPLOS'23), elasticVpollux_e.csv",
     "16x8:V100M16", "none", "elasticflow", "elasticflow/elasticVpollux_e.csv"),
    ("philly-876", "876 jobs of one virtual cluster of Philly, with deadlines, on 32 GPUs",
     "ElasticFlow's artifact (ASPLOS'23), philly_103959.csv",
     "4x8:V100M16", "none", "elasticflow", "elasticflow/philly_103959.csv"),
    ("pollux-160", "160 jobs of measured applications on 64 GPUs",
     "Pollux' artifact (OSDI'21), workload-6.csv",
     "16x4:T4", "pollux-osdi21", "pollux", "pollux/workloads/workload-6.csv"),
)  # fmt: skip
_PROFILES_OF = {"pollux": "pollux/profiles"}
_LEAST_PARTS = {"pollux-160": 0.7}
"""T4 take no cap below 60 of their 70 W: with less, two jobs of that workload never fit."""


def public_jobs(data: Path) -> tuple[list[BoardJobs], list[str]]:
    """Five published workloads, and the names of those whose files are not there."""
    found, absent = [], []
    for name, about, source, cluster, preset, kind, file in _PUBLIC_JOBS:
        jobs = {"file": str(data / "traces" / file), "format": kind}
        if kind in _PROFILES_OF:
            jobs["profiles"] = str(data / "traces" / _PROFILES_OF[kind])
        if all(Path(path).exists() for key, path in jobs.items() if key != "format"):
            found.append(
                BoardJobs(
                    name=name,
                    about=about,
                    source=source,
                    cluster=cluster,
                    preset=preset,
                    jobs=jobs,
                    least_part=_LEAST_PARTS.get(name, 0.5),
                )
            )
        else:
            absent.append(name)
    return found, absent


_FAMILIES = ("default", "multigpu40", "gpushare80", "cpu200", "gpuspec25")
_NODES = 300


def generated_pods(folder: Path) -> list[BoardPods]:
    """Five pod lists for 300 nodes, drawn as openb's families were published.

    Raises:
        UserError: they cannot be written.
    """
    found = []
    for seed, family in enumerate(_FAMILIES, start=1):
        cluster = generate_cluster(nodes=_NODES, seed=seed)
        pods = generate_pods(
            family=family, seed=seed, gpu_capacity_milli=cluster.gpu_milli, load=1.0
        )  # fmt: skip
        nodes_file, pods_file = write_openb(cluster, pods, folder / family)
        found.append(
            BoardPods(
                name=f"drawn-{family}", about=f"family {family} on {_NODES} nodes",
                source=f"drawn from openb's published statistics, seed {seed}",
                nodes=str(nodes_file), pods=str(pods_file),
            )
        )  # fmt: skip
    return found


def public_pods(data: Path) -> tuple[list[BoardPods], list[str]]:
    """Five pod lists of openb, and the names of those whose files are not there."""
    folder = data / "openb"
    nodes = folder / "openb_node_list_gpu_node.csv"
    found, absent = [], []
    for family in _FAMILIES:
        pods = folder / f"openb_pod_list_{family}.csv"
        if nodes.exists() and pods.exists():
            found.append(
                BoardPods(
                    name=f"openb-{family}", about=f"family {family} on 1,213 nodes",
                    source="Alibaba's openb trace (FGD, ATC'23)", nodes=str(nodes), pods=str(pods),
                )
            )  # fmt: skip
        else:
            absent.append(f"openb-{family}")
    return found, absent
