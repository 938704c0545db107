"""What we need to know of a node: its machine in our terms, how it gives GPUs, what it repels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from wattherd.catalog.cpus import CPUS
from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.state import MAX_GPUS_PER_NODE
from wattherd.errors import UserError
from wattherd.kube.api import names, quantity
from wattherd.kube.api.objects import GpusPublished, Node, Taint
from wattherd.kube.facts.amounts import CPU, MEMORY, Amounts, amounts_of
from wattherd.model.cluster import WHOLE_GPU_MILLI, NodeSpec
from wattherd.units import plain, watts

# --- GPU products as vendors label them on nodes, and the catalog's names for them.
#
# Labels are those of NVIDIA's GPU feature discovery (`nvidia.com/gpu.product`, the driver's name
# with dashes) and AMD's node labeller (`amd.com/gpu.product-name`). A product that is not listed
# has no watts we could trust: such a node takes no GPU pods unless its label
# `wattherd.dev/gpu-model` names a model of the catalog.

_SHARED = "-SHARED"
_MIG = re.compile(r"-MIG-\d")
# First match wins; matched against the label without vendor words and without regard to case.
_PRODUCTS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"t4", "T4"),
        (r"p4", "P4"),
        (r"m40.*", "M40"),
        (r"k80", "K80"),
        (r"p100-.*", "P100"),
        (r"v100-.*16gb.*", "V100M16"),
        (r"v100-.*32gb.*", "V100M32"),
        (r"gtx-1080.*", "1080"),
        (r"rtx-2080.*", "2080"),
        (r"rtx-3090", "3090"),
        (r"a10", "A10"),
        (r"a30", "A30"),
        (r"a40", "A40"),
        (r"a100-pcie-40gb", "A100-40GB-PCIe"),
        (r"a100-sxm4?-40gb", "A100-40GB"),
        (r"a100-80gb-pcie", "A100-80GB-PCIe"),
        (r"a100-sxm4?-80gb", "A100-80GB"),
        (r"l4", "L4"),
        (r"l40s", "L40S"),
        (r"h100-pcie", "H100-PCIe"),
        (r"h100-80gb-hbm3", "H100-SXM"),
        (r"h200", "H200"),
        (r"gh200-.*", "GH200"),
        (r"b200", "B200"),
        (r"b300.*", "B300"),
        (r"gb200", "GB200"),
        (r"gb300", "GB300"),
        (r".*mi210.*", "MI210"),
        (r".*mi250x?.*", "MI250X"),
        (r".*mi300x.*", "MI300X"),
        (r".*mi325x.*", "MI325X"),
        (r".*mi350x.*", "MI350X"),
        (r".*mi355x.*", "MI355X"),
    )
)
_VENDOR = re.compile(r"^(nvidia-|tesla-|geforce-|amd[-_]|instinct[-_])+")


@lru_cache(maxsize=1024)
def catalog_model(product: str) -> str | None:
    """The catalog's name of a product label, or None; the catalog's own names stand for themselves.

    Parts of a GPU (MIG) are no GPU: None.
    """
    plain = product.removesuffix(_SHARED)
    if plain in GPUS:
        return plain
    if _MIG.search(plain):
        return None
    bare = _VENDOR.sub("", plain.lower())
    return next((name for pattern, name in _PRODUCTS if pattern.fullmatch(bare)), None)


PODS = "pods"
_CPU_BY_LABEL = {name.replace(" ", "-"): name for name in CPUS}


class Giving(StrEnum):
    """How the device plugin of a node gives its GPUs."""

    WHOLE = "whole"
    SLOTS = "slots"
    """Each GPU in equal parts (time slices, MPS); the plugin chooses which."""
    ANNOTATED = "annotated"
    """Any share of the GPUs that our annotation names."""
    CLAIMS = "claims"
    """To resource claims, which kube-scheduler allocates: not to the pods that we place."""


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """How GPUs are given; a slot is `slot_milli` of one."""

    giving: Giving = Giving.WHOLE
    slot_milli: int = WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node as far as decisions need it; equal facts mean that nothing of interest changed.

    `amounts` are all allocatable resources; `unknown_gpu` is a product without watts we could
    trust, whose devices are then left out of `spec`.
    """

    spec: NodeSpec
    offer: GpuOffer = GpuOffer()
    domain: str = ""
    amounts: Amounts = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    unknown_gpu: str = ""
    problem: str = ""
    """What is wrong with what is written on the node; it then takes no pods."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.spec.name

    @property
    def most_pods(self) -> int:
        """How many pods it takes."""
        return self.amounts.get(PODS, 0)


def node_facts(node: Node) -> NodeFacts:
    """Translate a node.

    What cannot be read is no error of ours: the node is told of as one that takes nothing.
    """
    try:
        return _facts(node)
    except UserError as error:
        spec = NodeSpec(name=node.metadata.name, cpu_milli=0, memory_mib=0)
        return NodeFacts(spec=spec, labels=_labels(node), problem=error.line())


def _facts(node: Node) -> NodeFacts:
    labels = _labels(node)
    amounts = amounts_of(node.status.allocatable or node.status.capacity)
    offer = _offer(labels)
    published = node.published or GpusPublished()
    count = _gpu_count(amounts, labels, offer)
    if published.gpus > count:
        count, offer = published.gpus, GpuOffer(Giving.CLAIMS)
    product = _product(labels, published.products or ())
    model = catalog_model(product) if count else ""
    if count > MAX_GPUS_PER_NODE:
        raise UserError(f"{count} GPUs are more than the {MAX_GPUS_PER_NODE} a node may have here")
    spec = NodeSpec(
        name=node.metadata.name,
        cpu_milli=amounts.get(CPU, 0),
        memory_mib=quantity.mib_offered(amounts.get(MEMORY, 0)),
        gpu_count=count if model else 0,
        gpu_model=model or "",
        cpu_model=_cpu_model(labels),
        idle_w=watts(plain(node.metadata.annotation(names.IDLE_W) or "0"), field=names.IDLE_W),
    )
    facts = NodeFacts(
        spec=spec,
        offer=offer,
        domain=labels.get(names.DOMAIN, ""),
        amounts=amounts,
        labels=labels,
        taints=tuple(node.spec.taints or ()),
        unschedulable=bool(node.spec.unschedulable),
    )
    return facts if model is not None else replace(facts, unknown_gpu=product or "no label")


def _product(labels: Mapping[str, str], published: Sequence[str]) -> str:
    """What the operator says, else the hungriest that the catalog knows; else what there is."""
    stated = labels.get(names.GPU_MODEL)
    if stated is not None:
        return stated
    told = [labels[key] for key in reversed(names.PRODUCT_LABELS) if key in labels][:1]
    told += published
    known = [one for one in told if catalog_model(one) is not None]
    if not known:
        return next(iter(told), "")
    return max(known, key=lambda one: GPUS[catalog_model(one) or ""].max_w)


def _labels(node: Node) -> Mapping[str, str]:
    return node.metadata.labels or {}


def _offer(labels: Mapping[str, str]) -> GpuOffer:
    """By the labels of GPU feature discovery, or by ours."""
    if labels.get(names.GPU_SHARES) == "annotation":
        return GpuOffer(Giving.ANNOTATED)
    replicas = _number(labels, names.NVIDIA_REPLICAS, 1)
    if replicas > 1 and labels.get(names.NVIDIA_SHARING, "none") != "none":
        if replicas > WHOLE_GPU_MILLI:
            raise UserError(f"{replicas} parts of a GPU are too many", field=names.NVIDIA_REPLICAS)
        return GpuOffer(Giving.SLOTS, WHOLE_GPU_MILLI // replicas)
    return GpuOffer()


def _gpu_count(amounts: Amounts, labels: Mapping[str, str], offer: GpuOffer) -> int:
    """Physical GPUs: a plugin that shares them offers more."""
    offered = sum(amounts.get(name, 0) for name in names.GPU_RESOURCES)
    if offer.giving is not Giving.SLOTS:
        return offered
    slots = offered + amounts.get(names.NVIDIA_SHARED, 0)
    return min(slots, _number(labels, names.NVIDIA_COUNT, slots * offer.slot_milli // 1000))


def _number(labels: Mapping[str, str], key: str, default: int) -> int:
    text = labels.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(f"{text!r} is no number", field=key)
    return int(text)


def _cpu_model(labels: Mapping[str, str]) -> str:
    """The catalog's processor; one it does not know is taken for the reference."""
    return _CPU_BY_LABEL.get(labels.get(names.CPU_MODEL, ""), "")
