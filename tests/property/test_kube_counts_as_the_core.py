"""What Kubernetes counts in power domains is what the core's account does, to the milliwatt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.feeds import PPM
from wattherd.estimate.power_curve import prior
from wattherd.kube.account.domains import Domains, columns_of
from wattherd.kube.facts.domain_tree import SITE, DomainBranch, DomainTree
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, Request
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.testing.builders import a_state

BRANCHES = {"row": DomainBranch(), "rack": DomainBranch("row"), "hall": DomainBranch()}
NODES = st.lists(
    st.tuples(
        st.sampled_from(["T4", "V100M16", "A100"]),
        st.integers(0, 4),
        st.sampled_from([SITE, *BRANCHES]),
        st.sampled_from([0.0, 85.5, 200.1239]),
    ),
    min_size=1,
    max_size=6,
)
TAKEN = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1000, 400, 250]), st.integers(1, 3)))


@given(machines=NODES, taken=TAKEN)
def test_both_count_alike(
    machines: list[tuple[str, int, str, float]], taken: list[tuple[int, int, int]]
) -> None:
    specs = tuple(
        NodeSpec(
            name=f"n{at}", cpu_milli=64_000, memory_mib=64_000, gpu_count=gpus,
            gpu_model=model if gpus else "", idle_w=idle_w,
        )
        for at, (model, gpus, _, idle_w) in enumerate(machines)
    )  # fmt: skip
    fed: dict[str, list[str]] = {}
    for spec, (_, _, domain, _) in zip(specs, machines, strict=True):
        fed.setdefault(domain, []).append(spec.name)
    tree = PowerTree(
        (
            TreeDomain(name="site", nodes=tuple(fed.get(SITE, ()))),
            *(
                TreeDomain(name=name, parent=one.parent or "site", nodes=tuple(fed.get(name, ())))
                for name, one in BRANCHES.items()
            ),
        )
    )
    cluster = ClusterSpec(specs)
    account, state = PowerAccount(cluster, WaterFilling(), prior, tree), a_state(cluster)
    for number, (node, milli, count) in enumerate(taken):
        free = state.world.nodes.gpu_free[node] if node < len(specs) else ()
        gpus = tuple(at for at, left in enumerate(free) if left >= milli)
        gpus = gpus[: count if milli == 1000 else 1]
        if not gpus:
            continue
        request = Request(cpu_milli=0, gpu_count=len(gpus), gpu_milli=milli)
        allocation = Allocation(request, node, gpus)
        state.place(allocation)
        job = JobRecord(spec=JobSpec(id=f"j{number}", submit_s=0.0), number=number)
        job.allocations = (allocation,)
        account.note(job)
    columns = columns_of(
        [NodeFacts(spec=spec, domain=one[2]) for spec, one in zip(specs, machines, strict=True)]
    )
    carried_mw = Domains({}, DomainTree(BRANCHES)).carried_mw(columns, state)
    core_mw = [nw // PPM for nw in account.carried_nw()]
    assert carried_mw == dict(zip((SITE, *BRANCHES), core_mw, strict=True))
