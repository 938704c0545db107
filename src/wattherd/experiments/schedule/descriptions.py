"""What each scheduler and each way of sharing power does, in a line, for those who choose one."""

from __future__ import annotations

from collections.abc import Mapping

SCHEDULER_NOTES: Mapping[str, str] = {
    "aiturbo": "predictable jobs by remaining service, others by attained; pair swaps (HPDC'21)",
    "aiturbo-told": "the same, resizing predictable jobs only, as published",
    "capacity": "hierarchical queues with borrowing, user limits and reclaim (YARN)",
    "deadline": "earliest deadline first",
    "drf": "dominant resource fairness between users, gangs whole (NSDI'11)",
    "fifo": "first come, first served; nothing passes the first that waits",
    "fifo-backfill": "the same with a reservation for the first; what fits before it may pass",
    "fifo-first-fit": "in order of submission, whoever fits",
    "fifo@fastest": "fifo, each job on the GPU model on which it is fastest of those with room",
    "fifo-first-fit@fastest": "fifo-first-fit by speed of GPU models, as fifo@fastest",
    "sjf@fastest": "sjf by speed of GPU models, as fifo@fastest",
    "fifo@yarn": "fifo as packed anew by YARN's rule at every event",
    "gandiva": "affinity, time slices, measured packing, migration, grow and shrink (OSDI'18)",
    "gang": "gangs whole, by priority; whoever fits may pass, but a gang's patience has an end",
    "gavel-fifo": "each job to its fastest free GPU type, in order of submission (OSDI'20)",
    "gavel-ftf": "least worst finish-time ratio, by linear program (Themis in Gavel)",
    "gavel-makespan": "least makespan, by linear program",
    "gavel-max-min": "greatest least share of throughput, GPU types weighed (OSDI'20)",
    "gavel-max-min-agnostic": "the same as if all GPU types were alike",
    "hived": "virtual clusters of buddy cells, opportunistic jobs in between (OSDI'20)",
    "optimus": "one more worker to whom it saves most time (EuroSys'18)",
    "pollux": "goodput: batch sizes and widths together, by genetic search (OSDI'21)",
    "pollux-climb": "the same goodput by a local search of our own",
    "priority": "higher priority first, preempting",
    "priority-backfill": "higher priority first, then as fifo-backfill; who runs goes on",
    "sjf": "shortest job first; who runs goes on",
    "srsf": "least remaining time x GPUs first, preempting",
    "srtf": "least remaining time first, preempting",
    "tiresias": "least attained GPU time first, in discrete queues (2D-LAS, NSDI'19)",
    "tiresias-gittins": "the same by Gittins index of past jobs (2D-Gittins)",
    "wattherd": "ours: order, width and GPU model by progress for each watt, short jobs first",
    "tiresias@yarn": "tiresias as packed anew by YARN's rule at every event",
}
POWER_NOTES: Mapping[str, str] = {
    "max-min": "the least relative rate as high as can be, then the next least",
    "nash": "the greatest product of rates: each watt as on a market with equal purses",
    "pause": "no caps: jobs run at full power or wait",
    "priority": "full power to the most important jobs first",
    "proportional": "every job the same part of what it would draw",
    "tiers": "water-filling for the highest priority first, floors to all others, then the next",
    "uniform": "every GPU the same cap",
    "water-filling": "each watt to the job that gains most from it",
}
