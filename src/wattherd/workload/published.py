"""What was published about the openb trace: counts and totals, no row of it.

Sources: `README.md` of cluster-trace-gpu-v2023 (alibaba/clusterdata); Weng et al., "Beware of
Fragmentation", USENIX ATC'23, and its artifact (node and pod lists, counted). Units: CPU in
milli-vCPU, memory in MiB, GPU in milli-GPU, time in seconds. Everything that had to be assumed
stands in `workload.generate`, never here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wattherd.errors import UserError
from wattherd.model.cluster import WHOLE_GPU_MILLI, NodeSpec
from wattherd.spelling import hint_for

NODES = 1213
NODE_SHAPES: tuple[tuple[NodeSpec, int], ...] = tuple(
    (
        NodeSpec(name="", gpu_model=model, gpu_count=gpus, cpu_milli=vcpus * 1000, memory_mib=mib),
        count,
    )
    for model, gpus, vcpus, mib, count in (
        ("G2", 8, 96, 393_216, 549),
        ("T4", 2, 104, 524_288, 387),
        ("T4", 4, 96, 393_216, 17),
        ("G3", 8, 128, 786_432, 39),
        ("P100", 2, 16, 122_880, 107),
        ("P100", 2, 64, 262_144, 22),
        ("P100", 1, 8, 61_440, 3),
        ("P100", 2, 8, 61_440, 2),
        ("V100M32", 8, 96, 786_432, 21),
        ("V100M32", 4, 48, 376_832, 9),
        ("V100M16", 4, 32, 131_072, 28),
        ("V100M16", 1, 8, 32_768, 19),
        ("V100M16", 8, 64, 262_144, 7),
        ("V100M16", 8, 82, 344_064, 1),
        ("A10", 1, 128, 1_048_576, 2),
    )
)
"""The nodes that have GPUs, by shape, with how many there are of each (names left empty)."""

CLASSES = ("cpu-only", "sharing", "1-gpu", "2-gpu", "4-gpu", "8-gpu")
PODS = 8152
CLASS_PODS = (1088, 3078, 3911, 16, 15, 44)
"""Pods of the `default` list in each of `CLASSES`."""
CLASS_GPUS = (0, 1, 1, 2, 4, 8)
GPU_MILLI = 6_086_800
SHAPES = 91
HEAD_SHAPES, HEAD_SHARE = 35, 0.9526
"""The most frequent 35 of the 91 shapes make up 95.26 % of the pods."""
CPU_MILLI_RANGE = (1000, 120_200)
MEMORY_MIB_RANGE = (0, 737_280)

LIFETIME_QUANTILES = ((0.5, 540.0), (0.9, 6_574.0), (0.99, 99_719.0), (1.0, 12_537_496.0))
LIFETIME_MEAN_S = 25_839.0
SPAN_S = 42 * 86_400.0
"""99.7 % of the pods were submitted within the last six weeks."""

SHARING_MILLI = GPU_MILLI - WHOLE_GPU_MILLI * sum(
    pods * gpus for pods, gpus in zip(CLASS_PODS[2:], CLASS_GPUS[2:], strict=True)
)
"""GPU demand of the sharing pods: the total less what the whole-GPU pods take."""

_CPU_ONLY = (0.0, 0.037, 0.05, 0.072, 0.1, 0.2, 0.235, 0.25, 0.3)
_SHARING = (0.2, 0.4, 0.6, 0.8, 1.0)
_MULTI = {20: (54, 52, 141), 30: (112, 83, 236), 40: (156, 154, 359), 50: (222, 206, 556)}
_CONSTRAINED = {"05": 0.052, "10": 0.104, "20": 0.204, "25": 0.249, "33": 0.338}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFamily:
    """One of the published pod lists: pods in each of `CLASSES`, and what it emphasises.

    `constrained` is the share (0 to 1) of the GPU pods that accept only some GPU models.
    """

    name: str
    class_pods: tuple[int, ...]
    constrained: float = 0.0

    @property
    def pods(self) -> int:
        """Pods in the published list."""
        return sum(self.class_pods)

    @property
    def gpu_milli(self) -> float:
        """GPU demand of the whole list, in milli-GPU."""
        return sum(pods * milli for pods, milli in zip(self.class_pods, _CLASS_MILLI, strict=True))


_CLASS_MILLI = (
    0.0,
    SHARING_MILLI / CLASS_PODS[1],
    *(float(gpus * WHOLE_GPU_MILLI) for gpus in CLASS_GPUS[2:]),
)


def _default() -> PodFamily:
    return PodFamily(name="default", class_pods=CLASS_PODS)


def _cpu_only(share: float) -> PodFamily:
    """CPU-only pods are `share` of all pods; the pods with GPUs stay as they are."""
    with_gpu = PODS - CLASS_PODS[0]
    cpu_only = round(with_gpu * share / (1 - share))
    name = f"cpu{share * 1000:03.0f}" if share else "cpu0"
    return PodFamily(name=name, class_pods=(cpu_only, *CLASS_PODS[1:]))


def _sharing(share: float) -> PodFamily:
    """Sharing pods request `share` of the GPUs; as many pods with GPUs as in `default`.

    The published demands (6531, 5641, 4908, 4408, 3953 GPUs) follow within 1 % if pods are only
    re-drawn within the two groups, so that the mean demand of either stays what it was.
    """
    with_gpu, whole = PODS - CLASS_PODS[0], CLASS_PODS[2:]
    milli_whole = (GPU_MILLI - SHARING_MILLI) / sum(whole)
    milli = with_gpu / (share / _CLASS_MILLI[1] + (1 - share) / milli_whole)
    sharing = round(share * milli / _CLASS_MILLI[1])
    scale = (with_gpu - sharing) / sum(whole)
    two, four, eight = (round(pods * scale) for pods in whole[1:])
    one = with_gpu - sharing - two - four - eight
    class_pods = (CLASS_PODS[0], sharing, one, two, four, eight)
    return PodFamily(name=f"gpushare{share * 100:.0f}", class_pods=class_pods)


def _multi(percent: int) -> PodFamily:
    """Pods with several GPUs request `percent` of the GPUs; only such pods were added."""
    return PodFamily(name=f"multigpu{percent}", class_pods=(*CLASS_PODS[:3], *_MULTI[percent]))


def _constrained(label: str) -> PodFamily:
    share = _CONSTRAINED[label]
    return PodFamily(name=f"gpuspec{label}", class_pods=CLASS_PODS, constrained=share)


FAMILIES: Mapping[str, PodFamily] = MappingProxyType(
    {
        family.name: family
        for family in (
            _default(),
            *map(_cpu_only, _CPU_ONLY),
            *map(_sharing, _SHARING),
            *map(_multi, _MULTI),
            *map(_constrained, _CONSTRAINED),
        )
    }
)
"""The 24 published pod lists by name."""


def family_of(name: str) -> PodFamily:
    """The family called `name`.

    Raises:
        UserError: no published pod list has that name.
    """
    if name not in FAMILIES:
        raise UserError(f"unknown trace family {name!r}", hint=hint_for(name, FAMILIES))
    return FAMILIES[name]
