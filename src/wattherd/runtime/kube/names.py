"""Labels, annotations and resources by name: ours, and those of others that we read."""

from __future__ import annotations

OURS = "wattherd.dev/"

# On pods, by users.
GPU_MILLI = OURS + "gpu-milli"
"""Annotation: a share of one GPU, in thousandths."""
QUEUE = OURS + "queue"
"""Label: the queue whose quota a pod counts against."""
CAP_W = OURS + "gpu-cap"
"""Annotation: what each of its GPUs may draw at most, as in `300W`."""

# On pods, by us, with the binding.
GPUS = OURS + "gpus"
"""Annotation: numbers of the GPUs on its node, as in `0,3`."""
WATTS = OURS + "watts"
"""Annotation: what the pod may add to its domain's draw, in watts."""
DOMAIN = OURS + "power-domain"
"""Annotation on pods, label on nodes: the power domain."""
DECISION = OURS + "decision"
"""Annotation: which decision of which holder this was, as in `HOLDER/EPOCH/NUMBER`."""
EPOCH = OURS + "epoch"
"""Annotation: the term of the leader who decided it."""

PLANNED_NODE = OURS + "planned-node"
"""Annotation: the node on which a pod counts that was released and is not bound yet."""

# On pods or namespaces, by users, and what is put on pods for it at admission.
ADMISSION = OURS + "admission"
"""Label: `gate` holds pods until there are watts, `claim` has them claim watts."""
GATE = OURS + "power"
"""Scheduling gate of pods that wait for watts."""

# On nodes, by operators.
GPU_MODEL = OURS + "gpu-model"
"""Label: the catalog's name, where the product label is none we know."""
CPU_MODEL = OURS + "cpu-model"
"""Label: the catalog's name of the processor, in the spelling of a label (`Xeon-8163`)."""
GPU_SHARES = OURS + "gpu-shares"
"""Label `annotation`: what hands out GPUs here obeys our annotation `gpus`."""
IDLE_W = OURS + "idle"
"""Annotation: what the machine draws beside its GPUs while it is on, as in `180W`."""

# GPUs as device plugins offer them.
NVIDIA_GPU = "nvidia.com/gpu"
NVIDIA_SHARED = "nvidia.com/gpu.shared"
NVIDIA_PRODUCT = "nvidia.com/gpu.product"
NVIDIA_COUNT = "nvidia.com/gpu.count"
NVIDIA_REPLICAS = "nvidia.com/gpu.replicas"
NVIDIA_SHARING = "nvidia.com/gpu.sharing-strategy"
AMD_GPU = "amd.com/gpu"
AMD_PRODUCT = "amd.com/gpu.product-name"
GPU_RESOURCES = (NVIDIA_GPU, AMD_GPU)
PRODUCT_LABELS = (NVIDIA_PRODUCT, AMD_PRODUCT, GPU_MODEL)

# Groups, by other schedulers and controllers.
OLDER_POD_GROUP = "scheduling.x-k8s.io/pod-group"
OLDEST_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"
VOLCANO_GROUP = "scheduling.volcano.sh/group-name"
VOLCANO_GROUP_LEGACY = "scheduling.k8s.io/group-name"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_GROUP_COUNT = "kueue.x-k8s.io/pod-group-total-count"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-key"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
