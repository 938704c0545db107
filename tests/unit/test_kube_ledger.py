"""The account in numbers, in all its states."""

from __future__ import annotations

from test_kube_scheduler import IDLE_MW, RISE_MW, World

from wattherd.kube.account.power_metrics import ledger
from wattherd.server.kube.shell_metrics import ShellMetrics


def rows(world: World) -> dict[str, float]:
    lines = ShellMetrics().text(ledger(world.scheduler.chooser)).splitlines()
    told = (
        *(f"wattherd_kube_{name}_watts" for name in ("counted", "budget")),
        "wattherd_kube_pods",
    )
    found = (line.rpartition(" ") for line in lines if line.startswith(told))
    return {name.removeprefix("wattherd_kube_"): float(value) for name, _, value in found}


def test_promises_are_told_from_what_is_seen_and_watts_are_of_both() -> None:
    world = World(budgets_mw={"": 1_234_567_800, "rack": 500_000})
    assert rows(world)['pods{state="seen"}'] == 0, "before there is a node"
    world.add_nodes(2, **{"wattherd.dev/power-domain": "rack"})
    world.create("one")
    world.settle()
    world.create("two")
    world.scheduler.plan(world.now_s + 1.0)
    watts = (4 * IDLE_MW + 2 * RISE_MW) / 1000
    assert rows(world) == {
        'pods{state="seen"}': 1,
        'pods{state="promised"}': 1,
        'counted_watts{domain=""}': watts,
        'counted_watts{domain="rack"}': watts,
        'budget_watts{domain=""}': 1_234_567.8,
        'budget_watts{domain="rack"}': 500,
    }
    world.scheduler.not_bound("uid-two")
    world.delete("two")
    world.delete("one")
    world.settle()
    assert rows(world)['counted_watts{domain="rack"}'] == 4 * IDLE_MW / 1000
    assert rows(world)['pods{state="promised"}'] == 0
