"""A native group's own priority, as the API server fills it in from its class."""

from __future__ import annotations

from control_plane import ControlPlane
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from test_power_budgets import priorities
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

__all__ = ["priorities"]

NAME = "wattherd-group-priority"
API = "scheduling.k8s.io/v1alpha2"
GPUS = 4


def a_group(name: str, least: int, priority_class: str) -> Object:
    policy = {"gang": {"minCount": least}}
    spec = {"schedulingPolicy": policy, "priorityClassName": priority_class}
    return {"apiVersion": API, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def test_groups_make_room_for_each_other_by_their_own_priority(
    plane: ControlPlane, namespace: str, priorities: dict[str, str]
) -> None:
    """Their pods say the contrary."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    contrary = {"low": "high", "high": "low"}

    def create(group: str, number: int) -> None:
        spec = {
            "schedulingGroup": {"podGroupName": group},
            "priorityClassName": priorities[contrary[group]],
        }
        api.create(pods, a_pod(f"{group}-{number}", gpus=GPUS // 2, scheduler=NAME, spec=spec))

    def run_alone(group: str) -> bool:
        return bound(api, namespace).keys() == {f"{group}-0", f"{group}-1"}

    node = a_node("group-priority", gpus=GPUS, labels=T4)
    with nodes_of(plane.api, [node]), a_scheduler(plane, NAME):
        for group in ("low", "high"):
            path = f"/apis/{API}/namespaces/{namespace}/podgroups"
            made = api.create(path, a_group(group, 2, priorities[group]))
            assert made["spec"]["priority"] > 0
            for number in range(2):
                create(group, number)
            wait_until(lambda group=group: run_alone(group), f"{group} runs, and nobody else")
        create("low", 0)
        create("low", 1)
        said = lambda: why(api, namespace, "low-0")  # noqa: E731
        wait_until(lambda: "WaitingForGpus" in said(), said)
        assert run_alone("high")
