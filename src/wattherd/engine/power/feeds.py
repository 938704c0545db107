"""Which domains of a power tree feed each node, and what a watt there is worth above.

A watt at a node is 1 / ((1 - loss) (1 - loss) ...) watts at the input of a domain above it. Factors
are rounded up to millionths, so that loads are integers: milliwatts times millionths, nanowatts.
"""

from __future__ import annotations

import math

from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec
from wattherd.model.power_tree import PowerTree, TreeDomain

ONE_DOMAIN = ""
"""The name of the only domain where there is a single budget: users never hear of it."""
PPM = 1_000_000
"""Millionths in a factor of one; also nanowatts in a milliwatt."""
NW = 1_000_000_000
"""Nanowatts in a watt."""


# Everything about the tree that never changes while a core lives, worked out once: paths upwards
# from each node with the factor of all losses on the way. Domains are numbered in the tree's order;
# numbers index every list of the account.
class Feeds:
    """`paths[node]` are (domain, millionths) of all domains above a node, the nearest first.

    Raises:
        UserError: a node of the cluster hangs on no domain, or the tree names one that is not.
    """

    def __init__(self, tree: PowerTree, cluster: ClusterSpec) -> None:
        """Number the domains in the order of the tree."""
        self.tree = tree
        self.names = tuple(one.name for one in tree.domains)
        self.number = {name: at for at, name in enumerate(self.names)}
        self.root = self.number[tree.root.name]
        feeder = {node: one.name for one in tree.domains for node in one.nodes}
        paths = {name: self._path(name) for name in self.names}
        known = {node.name for node in cluster.nodes}
        for node, name in feeder.items():
            if node not in known:
                hint = f"the cluster has {cluster.nodes[0].name} to {cluster.nodes[-1].name}"
                raise UserError(f"feeds {node!r}, which is no node", where=name, hint=hint)
        for spec in cluster.nodes:
            if spec.name not in feeder:
                hint = "name it under `nodes` of a domain"
                raise UserError(f"no domain feeds node {spec.name!r}", field="nodes", hint=hint)
        self.paths = tuple(paths[feeder[spec.name]] for spec in cluster.nodes)
        self._above = tuple(dict(paths[name]) for name in self.names)
        self.depth = tuple(len(above) - 1 for above in self._above)
        """Domains above each."""
        # Below a plain budget it does not matter on which node a device is, and much is never
        # asked. A single domain with a loss is not plain: a watt at a node is more than one there.
        self.plain = len(self.names) == 1 and tree.root.loss == 0
        """Whether it is one budget for all nodes, without losses."""
        self.parent = tuple(
            None if one.parent is None else self.number[one.parent] for one in tree.domains
        )
        """Number of the domain above each; None: the root."""
        # Deepest first: who walks this list has seen all that is below a domain before the domain.
        self.upwards = tuple(sorted(range(len(self.names)), key=lambda at: -len(self._above[at])))
        """All domains, each before the one above it."""

    def number_of(self, name: str) -> int | None:
        """The number of a domain, None where there is none; the empty name is the site's."""
        return self.number.get(name) if name else self.root

    def ppm(self, below: int, above: int) -> int:
        """What a watt at a node that `below` feeds is at the input of `above`, in millionths."""
        return self._above[below][above]

    def _path(self, name: str) -> tuple[tuple[int, int], ...]:
        found, factor = [], 1.0
        for domain in self.tree.path_to_root(name):
            factor /= 1.0 - domain.loss
            # Rounded up: a factor that is rounded down would count a little less than is drawn, in
            # millions of additions. The 1e-3 forgives the float: a factor of whole millionths that
            # comes out a hair above must not become one more.
            found.append((self.number[domain.name], math.ceil(factor * PPM - 1e-3)))
        return tuple(found)


def one_domain(cluster: ClusterSpec) -> PowerTree:
    """The tree of a cluster with a single budget: one nameless domain that feeds every node."""
    nodes = tuple(node.name for node in cluster.nodes)
    return PowerTree((TreeDomain(name=ONE_DOMAIN, nodes=nodes),))
