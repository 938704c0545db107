"""GPU products as vendors label them on nodes, and the catalog's names for them.

Labels are those of NVIDIA's GPU feature discovery (`nvidia.com/gpu.product`, the driver's name with
dashes) and AMD's node labeller (`amd.com/gpu.product-name`). A product that is not listed has no
watts we could trust: such a node takes no GPU pods unless its label `wattherd.dev/gpu-model` names
a model of the catalog.
"""

from __future__ import annotations

import re
from functools import lru_cache

from wattherd.catalog.gpus import GPUS

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
