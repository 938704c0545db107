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

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattherd.model.power_tree import PowerTree
from wattherd.validation import misfit
from wattherd.workload.scenario import load
from wattherd.workload.tree_spec import DomainSpec, tree_of

HINT = "see docs/guides/power-tree.md"


def read_tree(path: Path) -> PowerTree:
    """The tree of a file.

    Raises:
        UserError: unreadable, an unknown or wrong field, or a tree that makes no sense.
    """
    document: dict[str, Any] = load(path, hint=HINT)
    try:
        root = DomainSpec.model_validate(document)
    except ValidationError as problem:
        hint = f"fields: {', '.join(DomainSpec.model_fields)}"
        raise misfit(problem, str(path), DomainSpec, hint=hint) from None
    return tree_of(root, str(path))
