"""The account in numbers, as Prometheus reads it: who is held, who is only promised, what counts.

Whoever compares it with what the API shows finds what leaked: a promise that nobody takes up, watts
that nobody draws, a pod that is counted and is no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattherd.kube.account.chooser import Chooser

_PODS = "wattherd_kube_pods"
_COUNTED, _BUDGET = "wattherd_kube_counted_watts", "wattherd_kube_budget_watts"


def ledger_text(chooser: Chooser) -> str:
    """The exposition format, version 0.0.4; the whole site is the domain without a name.

    `state="seen"` are pods on nodes, as the API shows them or as a silent node may still run them,
    `state="promised"` those that are being bound.
    """
    fleet, domains = chooser.fleet, chooser.domains
    promised = len(fleet.reserved)
    lines = [
        f"# HELP {_PODS} Pods that count: seen on their nodes, or promised and not seen there yet.",
        f"# TYPE {_PODS} gauge",
        f'{_PODS}{{state="seen"}} {len(fleet.holdings) - promised}',
        f'{_PODS}{{state="promised"}} {promised}',
        f"# HELP {_COUNTED} What a power domain may draw at most with the pods that count.",
        f"# TYPE {_COUNTED} gauge",
    ]
    placer = fleet.placer
    counted_mw = {} if placer is None else chooser.carried_mw(placer.state)
    lines += _by_domain(_COUNTED, counted_mw)
    lines += [f"# HELP {_BUDGET} What a power domain may draw now.", f"# TYPE {_BUDGET} gauge"]
    lines += _by_domain(_BUDGET, domains.budgets_mw)
    return "\n".join(lines) + "\n"


def _by_domain(metric: str, mw: Mapping[str, int]) -> list[str]:
    """Names are those of API objects or label values: nothing in them needs to be escaped."""
    return [f'{metric}{{domain="{name}"}} {watts / 1000}' for name, watts in sorted(mw.items())]
