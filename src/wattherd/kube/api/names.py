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

DURATION = OURS + "duration"
"""Annotation: how long its job runs at full speed, as in `2h`; for schedulers that go by that."""
DEADLINE = OURS + "deadline"
"""Annotation: within how long of its first being seen its job is to be through, as in `6h`."""
POWER_PROFILE = OURS + "power-profile"
"""Annotation or label: what kind of job it is, for its power curve, as in `resnet50`."""

PROGRESS = OURS + "progress"
"""Annotation, by the job itself: how far it is, as in `{"step": 120, "total": 1000}`."""

# On Jobs and their pods, by users.
ELASTIC = OURS + "elastic"
"""Label: with how many pods a Job runs, as in `1-4`; it asks for the first."""

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
LEASE = OURS + "lease"
"""Annotation: uid of the lease whose term that is."""

PLANNED_NODE = OURS + "planned-node"
"""Annotation: the node on which a pod counts that was released and is not bound yet."""

WORKLOAD = OURS + "workload"
"""Annotation: uid of the Kueue workload whose watts a pod draws."""
CHECK = OURS + "power"
"""Controller: what AdmissionChecks of Kueue call the one that answers for us."""

# On pods or namespaces, by users, and what is put on pods for it at admission.
ADMISSION = OURS + "admission"
"""Label: `gate` holds pods until there are watts, `claim` has them claim watts."""
GATE = OURS + "power"
"""Scheduling gate: holds pods that wait for watts."""

ASKED_AGAIN = OURS + "asked-again"
"""Annotation: when kube-scheduler was last told, by this, to look at a pod again."""

CHECKPOINT_NOTICE = OURS + "checkpoint-notice"
"""Annotation, by users: how long before its stop a pod is told of it, as in `2min`."""
STOP_AT = OURS + "stop-at"
"""Annotation: when the pod will be stopped and why, as in `2026-01-31T12:00:00Z Reclaimed`."""

# On pods, between who decides and the agent on the node.
CAP_ASKED_W = OURS + "cap-w"
"""Annotation: what all of its GPUs together are to be held to, in watts."""
CAP_APPLIED_W = OURS + "cap-applied-w"
"""Annotation, by the agent alone: what they are held to, as it was read back."""

# On nodes, by the agent.
AGENT = OURS + "agent"
"""Label: an agent meters and caps this node."""
GPU_CAP_MIN_W = OURS + "gpu-cap-min-w"
"""Label: the lowest cap that every GPU of the node takes, in watts."""
GPU_CAP_MAX_W = OURS + "gpu-cap-max-w"
"""Label: the highest cap that every GPU of the node takes, in watts."""
DRAW_W = OURS + "draw-w"
"""Annotation: what the node draws, as far as it is metered."""
DRAW_AT = OURS + "draw-at"
"""Annotation: when that was read."""
AT_REST = OURS + "gpus-at-rest"
"""Annotation: in which boot all GPUs are at their lowest cap but those of these pods, by uid."""
NODE_LIMIT = OURS + "node-limit"
"""Annotation, by operators or whoever leads: what the node may draw as a whole, as in `6kW`."""
AGENT_SINCE = OURS + "agent-since"
"""Annotation: when its agent, which has held caps since, began."""
AGENT_PROBLEM = OURS + "agent-problem"
"""Annotation: what keeps the agent from metering or capping."""

# On nodes, by whoever switches them.
SWITCHED = OURS + "switched"
"""Annotation: `off` once its controller board was seen to have switched it off."""
OFF = "off"
POOL = OURS + "pool-phase"
"""Annotation: `leaving`, `off` or `waking`; a node that is on has none."""
UNFENCED = OURS + "unfenced"
"""Annotation: who was there when the node fell silent, as JSON; gone once that is settled."""
BOOT = OURS + "pool-boot"
"""Annotation: the boot at which it was switched off."""

# On nodes, by operators.
WAKE_W = OURS + "wake"
"""Annotation: what the machine draws at most until it can work, as in `900W`."""
GPU_MODEL = OURS + "gpu-model"
"""Label: the catalog's name, where the product label is none we know."""
CPU_MODEL = OURS + "cpu-model"
"""Label: the catalog's name of the processor, in the spelling of a label (`Xeon-8163`)."""
GPU_SHARES = OURS + "gpu-shares"
"""Label: `annotation` where what hands out GPUs obeys our annotation `gpus`."""
IDLE_W = OURS + "idle"
"""Annotation: what the machine draws beside its GPUs while it is on, as in `180W`."""

# On NodePools of Karpenter.
GPU_W = OURS + "gpu-power"
"""Annotation, by operators: what a GPU more may draw, its part of the machine included (`900W`)."""
STATED_GPUS = OURS + "stated-gpus"
"""Annotation, by us: the limit of GPUs that its owner wrote; empty for none."""

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
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_POD_SET = "kueue.x-k8s.io/podset"
KUEUE_GROUP_COUNT = "kueue.x-k8s.io/pod-group-total-count"
APPWRAPPER_NAME = "workload.codeflare.dev/appwrapper"
MPIJOB_NAME = "training.kubeflow.org/job-name"
RAY_CLUSTER = "ray.io/cluster"
REQUIRED_TOPOLOGY = (
    "kueue.x-k8s.io/podset-required-topology",
    "kai.scheduler/topology-required-placement",
)
"""Annotations: the label of whose level all pods of a set must share a place."""
PREFERRED_TOPOLOGY = (
    "kueue.x-k8s.io/podset-preferred-topology",
    "kai.scheduler/topology-preferred-placement",
)
"""Annotations: the same, as far as there is room."""
REPLICA_TYPE = "training.kubeflow.org/replica-type"
JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-key"
LWS_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"

# On jobs that were suspended by us.
SUSPENDED = OURS + "suspended"
"""Label: suspended by us until there are watts (`power`), or until its pods are gone (`turn`)."""
SUSPENDED_W = OURS + "suspended-w"
"""Annotation: what it needs by power domain, as JSON, in watts."""
SUSPENDED_WHY = OURS + "suspended-why"
"""Annotation: for which budget."""
