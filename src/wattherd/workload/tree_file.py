"""Power trees from YAML: nested domains with a name, an optional budget, and a loss.

```yaml
name: site
budget: 40kW
loss: 0.05
children:
  - {name: row-a, budget: 25kW}
  - {name: row-b, budget: 20kW}
```
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from wattherd.errors import UserError
from wattherd.model.power_tree import PowerDomain, PowerTree
from wattherd.units import watts
from wattherd.workload.scenario import load


class _Domain(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    budget: str | float | None = None
    loss: float = 0.0
    children: list[_Domain] = []


def read_tree(path: Path) -> PowerTree:
    """The tree of a file.

    Raises:
        UserError: unreadable, an unknown or wrong field, or a tree that makes no sense.
    """
    document: dict[str, Any] = load(path)
    try:
        root = _Domain.model_validate(document)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        hint = "fields: name, budget, loss, children"
        raise UserError(str(first["msg"]).lower(), where=str(path), field=name, hint=hint) from None
    return PowerTree(tuple(_walk(root, None)))


def _walk(domain: _Domain, parent: str | None) -> Iterator[PowerDomain]:
    budget_w = None
    if domain.budget is not None:
        budget_w = watts(str(domain.budget), field=f"{domain.name}.budget")
    yield PowerDomain(name=domain.name, parent=parent, budget_w=budget_w, loss=domain.loss)
    for child in domain.children:
        yield from _walk(child, domain.name)
