"""What only moved or has another name: snapshots of before name it as it was.

A snapshot says which attributes its classes had (`snapshot_codec`); with equal attributes a class
is the same wherever it stands. So a move costs no service its snapshots, and a journal that was
compacted needs no way around an archive. A class whose attributes changed has no place here: its
snapshots are of another version (decision 007).
"""

from __future__ import annotations

_MOVES = {
    ("engine.core.least_power", "engine.core.feasibility"): {
        "LeastPower": "LeastPower",
        "PowerShortage": "PowerShortage",
        "_Kind": "_Kind",
    },
    ("engine.jobs.roster", "engine.core.view"): {"Roster": "Roster"},
    ("engine.jobs.waits", "engine.core.job_table"): {"Unmet": "UnmetDependency"},
    ("engine.power.budgets", "engine.power.budgets"): {"Fall": "BudgetFall"},
    ("engine.power.energy_budget", "engine.power.energy_budget"): {"Joules": "EnergyBudgets"},
    ("engine.power.energy_price", "engine.power.demand"): {"Prices": "EnergyPrices"},
    ("engine.power.measured_demand", "engine.power.demand"): {"Demands": "MeasuredDemands"},
    ("estimate.deferral", "estimate.deferral"): {"Piece": "DeferredRun"},
    ("estimate.dvfs", "estimate.dvfs"): {"Operation": "OperatingPoint"},
    ("estimate.expected_packing", "estimate.expected_packing"): {"Outlook": "PackingOutlook"},
    ("estimate.fleet_curves", "estimate.fleet_curves"): {
        "Alarms": "SurpriseSums",
        "Beliefs": "CurveBeliefs",
        "Population": "CurvePopulation",
    },
    ("estimate.goodput", "estimate.goodput"): {"Best": "BestBatch"},
    ("estimate.goodput_agent", "estimate.goodput_agent"): {"Agent": "GoodputAgent"},
    ("estimate.locality", "estimate.locality"): {"Reach": "GangReach"},
    ("estimate.measured_curve", "estimate.measured_curve"): {
        "Count": "CountedWatts",
        "Point": "MeasuredPoint",
    },
    ("estimate.speed", "estimate.speed"): {"Sampled": "FittedRanges"},
    ("estimate.surface", "estimate.surface"): {"Value": "SurfaceGoal"},
    ("estimate.swing", "estimate.swing"): {"Band": "SpectrumBand", "Component": "SwingComponent"},
    ("estimate.target", "estimate.target_workload"): {"Target": "TargetWorkload"},
    ("estimate.work", "estimate.job_work"): {"as_submitted": "as_submitted"},
    ("policy.power.bidder", "policy.power.bidder"): {"Knowledge": "BidderInputs"},
    ("policy.power.learning", "policy.power.learning"): {
        "Manners": "ExplorationTerms",
        "Planned": "PlannedCaps",
    },
    ("policy.power.rules", "policy.power.rules"): {"Question": "ChoiceProblem"},
    ("policy.power.tree_filling", "policy.power.tree_filling"): {
        "Generation": "DomainGeneration",
        "Pieces": "HullSegments",
    },
    ("policy.queue.reclaim", "policy.queue.reclaim"): {
        "Claim": "ReclaimingGang",
        "Stops": "ReclaimStops",
    },
    ("policy.schedule.aiturbo_swaps", "policy.schedule.aiturbo_swaps"): {
        "Atlas": "ShapeTable",
        "Known": "ShapeBelief",
        "Sized": "JobInSizing",
    },
    ("policy.schedule.gandiva", "policy.schedule.gandiva"): {"Idle": "IdleGpus"},
    ("policy.schedule.gandiva_nodes", "policy.schedule.gandiva_nodes"): {
        "Homes": "GandivaNodes",
        "Resident": "GandivaJob",
    },
    ("policy.schedule.gang", "policy.schedule.gang"): {"ByRule": "RuleSeats"},
    ("policy.schedule.gavel", "policy.schedule.gavel"): {"Shuffle": "WorkerTypeShuffle"},
    ("policy.schedule.pollux_problem", "policy.schedule.pollux_problem"): {
        "Problem": "PolluxProblem"
    },
    ("policy.schedule.resize", "policy.schedule.resize"): {"Cost": "ShapeDevices"},
}
"""By module, as it was and as it is (below `wattherd`): names as they were, and as they are."""
MOVED = {
    f"wattherd.{was}:{old}": f"wattherd.{now}:{new}"
    for (was, now), names in _MOVES.items()
    for old, new in names.items()
}
"""Module and name of a class as it was, and as it is."""
RENAMED = {old: new for names in _MOVES.values() for old, new in names.items()}
"""The bare names: what a class's making names is part of what a snapshot says of the class."""
JOINED = {
    f"wattherd.{was}": f"wattherd.{now}"
    for was, now in {
        "engine.cluster.capacity": "engine.core.capacity",
        "engine.cluster.drained": "engine.core.capacity",
        "engine.cluster.node_sleep": "engine.core.capacity",
        "engine.core.cycle": "engine.core.plan",
        "engine.core.job_speeds": "engine.core.view",
        "engine.core.never_fits": "engine.core.feasibility",
        "engine.jobs.questions": "engine.core.view",
        "engine.jobs.tenants": "engine.core.draft",
        "engine.jobs.waits": "engine.core.job_table",
        "engine.power.caps": "engine.core.power_control",
        "engine.power.device_watts": "engine.power.demand",
        "engine.power.ramp": "engine.power.budgets",
        "engine.power.reasons": "engine.power.budgets",
        "engine.power.sharing": "engine.power.domain_loads",
        "engine.power.usable_curve": "engine.power.demand",
        "engine.power.limit_events": "engine.power.limit_timeline",
        "estimate.general_judge": "estimate.curve_judge",
        "estimate.restart_cost": "estimate.job_work",
        "estimate.step_time_fit": "estimate.goodput_agent",
        "model.cap_rules": "engine.power.budgets",
        "model.request": "model.job",
        "policy.power.knapsack": "policy.power.allocation",
        "policy.power.proposal": "policy.power.bidder",
        "policy.power.rounding": "policy.power.tree_filling",
    }.items()
}
"""Modules that were joined with another, which has all their names now."""


def name_now(name: str) -> str:
    """Module and name of a class as they are (`module:Class`), of what they were."""
    module, _, kind = MOVED.get(name, name).partition(":")
    return f"{JOINED.get(module, module)}:{kind}"
