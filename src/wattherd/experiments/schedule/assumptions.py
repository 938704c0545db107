"""What a simulation takes for granted, in words that stand beside its figures."""

from __future__ import annotations

from collections import Counter

from wattherd.estimate.job_rate import RateSource
from wattherd.experiments.schedule.run import ComparisonSetup
from wattherd.units import show_seconds


def assumptions(setting: ComparisonSetup) -> list[str]:
    """Delays, priors of speed and watts, floors: a sentence each."""
    return [*_delays(setting), *_watts(setting), *_speed(setting)]


def watts_source(setting: ComparisonSetup) -> dict[str, int]:
    """How many jobs have GPUs, and of how many of them watts are a prior on some GPU model."""
    profiles = setting.given.power_profiles
    models = {node.gpu_model for node in setting.given.cluster.nodes if node.gpu_count}
    specs = [spec for spec in setting.given.jobs.specs if spec.gpus]
    known = sum(models <= profiles.get(spec.power_profile, {}).keys() for spec in specs)
    return {"jobs": len(specs), "prior": len(specs) - known}


def _delays(setting: ComparisonSetup) -> list[str]:
    cap_s, restart_s = setting.cap_delay_s, setting.preset.restart_s
    caps = f"{show_seconds(cap_s)} after its order" if cap_s else "at once, with its order"
    told = [f"A cap is in force {caps} (caps.delay)."]
    if cap_s:
        told.append(
            f"Draw above a budget within {show_seconds(cap_s)} of a change that nobody announced "
            "is exempt: it is exempt_s, not over_budget_s."
        )
    pause = f"{show_seconds(restart_s)} on its devices" if restart_s else "no time"
    told.append(f"A restart takes {pause} (restart).")
    if setting.preset.any_restart:
        told.append("A stop takes no time, and loses nothing but what a job's checkpoints lose.")
    return told


def _watts(setting: ComparisonSetup) -> list[str]:
    given, told = setting.given, list[str]()
    models = sorted({node.gpu_model for node in given.cluster.nodes if node.gpu_count})
    specs = [spec for spec in given.jobs.specs if spec.gpus]
    for model in models:
        known = sum(model in given.power_profiles.get(spec.power_profile, {}) for spec in specs)
        gpu = setting.gpus[model]
        least = gpu.max_w / 2 if gpu.min_cap_w is None else gpu.min_cap_w
        if known < len(specs):
            told.append(
                f"Watts of {len(specs) - known} of {len(specs)} jobs on {model} are a prior: "
                f"{gpu.max_w:g} W at full speed, slower below by the prior curve, "
                f"{least:g} W at the least."
            )
        told.append(f"A free {model} draws {gpu.idle_w:g} W, also on a lost node.")
    if len(models) > 1:
        told.append("A device draws its job's cap, but never more than its own model can.")
    told.append("A job draws its cap whenever it holds devices, during a restart as well.")
    return told


def _speed(setting: ComparisonSetup) -> list[str]:
    """Which speeds were measured, and which are a prior of the catalogue."""
    given, rates = setting.given, setting.given.job_rates
    models = sorted({node.gpu_model for node in given.cluster.nodes if node.gpu_count})
    specs = [spec for spec in given.jobs.specs if spec.gpus]
    if rates.equal:
        timed = sum(spec.duration_s is not None and not spec.profile for spec in specs)
        if timed and len(models) > 1:
            return [f"{timed} jobs run equally fast on {', '.join(models)}, as was stated."]
        return []
    told = []
    bases = Counter(base for spec in specs if (base := rates.holds_on(spec)) is not None)
    for base, count in sorted(bases.items()):
        told.append(f"What is known of {count} of {len(specs)} jobs holds on {base}.")
    for model in models if bases else []:
        found = [
            (spec, rates.rate(spec, model))
            for spec in specs
            if not spec.gpu_models or model in spec.gpu_models
        ]
        prior = [rate.per_s for _, rate in found if rate.source is RateSource.PRIOR]
        if prior:
            span = _span(min(prior), max(prior))
            told.append(
                f"Speeds of {len(prior)} of {len(found)} jobs on {model} are a prior by the "
                f"catalogue's peak rates: {span} the pace that they state."
            )
        measured = [rate.per_s for _, rate in found if rate.source is RateSource.MEASURED]
        if measured:
            span = _span(min(measured), max(measured))
            told.append(
                f"Speeds of {len(measured)} of {len(found)} jobs on {model} were measured: {span} "
                "the pace that they state."
            )
    return told


def _span(low: float, high: float) -> str:
    return f"{low:.3g} x" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g} x"
