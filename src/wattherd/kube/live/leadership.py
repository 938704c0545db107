"""The seat of one who decides: whether this copy holds it, and what it binds in its term.

Several copies may run; where they agree by a lease, only the one that leads decides and binds. A
term begins with a look at the cluster as it is then: what the leader before bound last may be on
its way in our watches still. What was decided in one term is not bound in another: it is not sent,
and where the policy that we ship is in force, the API server refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from wattherd.kube.api.binder import Bind, Binder, BindingOutcome
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.lease import Elector, Term, Times
from wattherd.kube.api.names import EPOCH, LEASE
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.facts.orders import ReleasePod
from wattherd.kube.live.releaser import Released, Releaser


class Leadership:
    """Binds while this copy leads; without a lease it always does."""

    def __init__(
        self,
        feed: ApiFeed,
        draws: np.random.Generator,
        knows_node: Callable[[str], bool],
        *,
        lease: ObjectMeta | None = None,
        identity: str = "",
    ) -> None:
        """`lease` names the record by which copies agree on who leads, as `identity`.

        Nothing is bound to a node that `knows_node` does not know at that time.
        """
        terms, binds, releases = draws.spawn(3)
        self._feed = feed
        self.term = 0
        """The one in which `ready` was asked last."""
        self._elector: Elector | None = None
        if lease is not None:
            self._elector = Elector(feed.transport, Term(lease, identity, Times()), terms)
        self._binder = Binder(feed.transport, binds, may_bind=self.leads, knows_node=knows_node)
        self._releaser = Releaser(feed.transport, releases, may_act=self.leads)

    def beside(self) -> list[Coroutine[Any, Any, Any]]:
        """What must run for the lease to be held."""
        return [] if self._elector is None else [self._elector.run()]

    def leads(self) -> bool:
        """Whether this copy may decide and bind."""
        return self._elector is None or self._elector.may_act()

    def ready(self) -> bool:
        """Whether to decide now: we lead, and have seen all that was when our term began."""
        if self._elector is not None:
            self._feed.note("the lease", self._elector.trouble or "")
        if not self.leads():
            return False
        self.term = 0 if self._elector is None else self._elector.epoch
        self._feed.look_again(self.term)
        return self._feed.sees(self.term)

    def binds(self) -> bool:
        """Whether any binding is under way."""
        return self._binder.under_way > 0

    def bind(
        self, key: str, uid: str, node: str, decision: str, annotations: Mapping[str, str]
    ) -> Coroutine[Any, Any, BindingOutcome]:
        """Bind the pod `key` (namespace/name), as decided since `ready` was asked last.

        With the term we lead in, so that what a leader of an earlier one still sends is known.
        """
        term = self.term
        namespace, _, name = key.partition("/")
        order = Bind(
            namespace=namespace,
            pod=name,
            uid=uid,
            node=node,
            decision=decision,
            annotations={**annotations, **self._signed(term)},
        )
        return self._binder.bind(order, lambda: self._is_current(term))

    def release(self, order: ReleasePod) -> Coroutine[Any, Any, Released]:
        """Take our gate off a pod, signed like a binding."""
        return self._releaser.release(order, self._signed(self.term))

    def _is_current(self, term: int) -> bool:
        return self._elector is None or self._elector.epoch == term

    def _signed(self, term: int) -> dict[str, str]:
        """By it the API server refuses what comes when the lease's term is a later one."""
        if self._elector is None:
            return {}
        return {EPOCH: str(term), LEASE: self._elector.lease_uid}
