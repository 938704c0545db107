"""YAML whose keys are names of fields: each as it is written, and there once."""

from __future__ import annotations

from typing import Any

import yaml

_BOOLEAN = "tag:yaml.org,2002:bool"
_MERGE = "tag:yaml.org,2002:merge"


class _Fields(yaml.SafeLoader):
    """Keys are names as written: YAML 1.1 would take the key `on` for true, and `off` for false.

    Of a key that is there twice PyYAML silently takes the last, although YAML says that keys are
    unique (1.2.2, section 3.2.1.1): of two budgets in one file, the higher one may be that.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            before = first.get((key.tag, key.value))
            if before is not None:
                problem = f"{key.value!r} is there twice, first in line {before}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            first[key.tag, key.value] = int(key.start_mark.line) + 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag == _BOOLEAN:
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def fields_of(text: str) -> Any:
    """What a YAML text says, its keys as they are written.

    Raises:
        yaml.YAMLError: it is no YAML, or has a key twice.
    """
    return yaml.load(text, Loader=_Fields)  # noqa: S506 - a safe loader
