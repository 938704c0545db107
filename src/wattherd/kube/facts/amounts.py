"""Amounts of resources as Kubernetes counts them: integers by name, of pods and of nodes alike."""

from __future__ import annotations

from wattherd.kube.api import quantity
from wattherd.kube.api.objects import Resources

Amounts = dict[str, int]
"""By resource: `cpu` in milli-vCPU, all others whole (bytes, devices)."""

CPU, MEMORY, STORAGE = "cpu", "memory", "ephemeral-storage"


def amounts_of(resources: Resources | None) -> Amounts:
    """Quantities as integers.

    Raises:
        UserError: one of them is no quantity.
    """
    return {
        name: quantity.milli(text) if name == CPU else quantity.whole(text)
        for name, text in (resources or {}).items()
    }
