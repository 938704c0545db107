"""What is done where a budget is cut below use: pods are capped, then stopped by priority; pure.

First the pods on nodes with an agent are asked to draw less, all by the same share of what they are
above their lowest caps. If even that is too much, or an agent does not answer in time, works are
stopped, the newest of the least important first, gangs and jobs whole: a job by suspending it, any
other pod by eviction. Before all others go those that draw what they were never granted. When there
are watts again, caps rise, then suspended jobs run again.

Nothing is spent before it is there: a lower cap counts once it was read back, a higher one from the
moment it is asked for, a stopped pod until it is gone. A higher cap may be in force although nobody
has read it back: where it is lowered again, what was read back before is taken off the pod.
But nobody is stopped for watts that are on their way back: a pod that is being deleted, whoever
deleted it, is taken for gone, as is one that was told to go a moment ago. This is the only place
that stops for watts, and it looks at one picture, the account as last heard: who is stopped never
follows from news that are half told.

What is asked and applied is written on the pods, who was suspended and for how many watts on the
jobs: a restart changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import is_not

from wattherd.kube.account.capping import WATT_MW, CappablePod, lowered, subject_of
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.enforcement_tally import (
    EnforcementTally,
    StopUnit,
    Suspended,
    ids_of,
    job_ids,
    owner_of,
    units_of,
)
from wattherd.kube.account.fleet import Holding
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import OwnerReference, Pod
from wattherd.kube.facts.orders import CapPod, ResumeOwner, StopPods
from wattherd.kube.facts.pod_groups import GroupId
from wattherd.kube.facts.stopping import WAIT_S, Stopping, Turn
from wattherd.units import show_watts

BUDGET_CUT = "BudgetCut"
"""The first word of why a pod is stopped here."""
CAP_WAIT_S = WAIT_S
"""For an agent to set a cap and say so; a pod that it does not cap counts as one without agent."""
BACKSTOP_S = CAP_WAIT_S + 5.0
"""Where the core leads, so long may a domain draw too much before pods are stopped here."""
AGAIN_S = 5.0
"""After this long without a trace an order is given again."""
SETTLE_S = 2.0
"""For pods that are on their way to a node to be seen there, before anybody is stopped instead."""
PLEDGE_S = 60.0
"""For the pods of a job that runs again to come; meanwhile its watts are promised to no other."""
STEP = 0.05
"""A cap is raised by at least this share of the maximum, or to it: no trickle of orders."""

CurbOrder = CapPod | StopPods | ResumeOwner


@dataclass(slots=True)
class _Sent:
    """An order under way: since when, to which cap, and the highest that may be in force by then.

    `stale_mw` was read back before a higher cap was asked for, and says nothing any more.
    """

    at_s: float
    cap_mw: int
    high_mw: int
    stale_mw: int | None = None


@dataclass(slots=True)
class BudgetEnforcer:
    """Keeps what runs within the budgets of `chooser`; of `pods` (by uid) it `owns` some."""

    chooser: Chooser
    pods: Mapping[str, Pod]
    owns: Callable[[Pod], bool]
    groups: Mapping[GroupId, PodGroup]
    is_ending: Callable[[Pod], bool] = lambda _: False
    """Whether somebody else stops this pod already, for whatever reason."""
    is_undeclared: Callable[[Pod], bool] = lambda _: False
    """Whether a pod draws what nobody granted it: such ones go before all others."""
    is_silent: Callable[[str], bool] = lambda _: False
    """Whether nobody knows what the machine of this node does: who is stopped there may draw on."""
    stopping: Stopping = field(default_factory=Stopping)
    """Who was told to go, and is not being deleted yet."""
    suspended: dict[str, Suspended] = field(default_factory=dict)
    """Jobs by uid, as the API shows them."""
    changed: bool = False
    """Whether other watts are counted than before; whoever plans by them takes note of it."""
    doing: dict[str, str] = field(default_factory=dict)
    """By domain that draws too much, what is being done about it."""
    _sent: dict[str, _Sent] = field(default_factory=dict)
    _deaf: set[str] = field(default_factory=set)
    _ending_s: dict[str, float] = field(default_factory=dict)
    """Since when others are ending a pod that is not being deleted yet."""
    _pledged: dict[str, tuple[float, Mapping[str, int]]] = field(default_factory=dict)
    _over_s: float | None = None
    """Since when caps of somebody else do not keep a budget."""
    _over: bool = False
    """Whether a domain drew too much when this was last looked at."""
    _looked_at: dict[str, tuple[tuple[object, ...], CappablePod | None]] = field(
        default_factory=dict
    )
    """By pod what its subject was made from, and that."""
    _agents: tuple[str, ...] = ()
    """Nodes with an agent, as of a version of the account."""
    _agents_of: int = -1

    def orders(self, at_s: float) -> list[CurbOrder]:
        """What follows from what was seen up to now."""
        placer = self.chooser.fleet.placer
        if placer is None:
            return []
        subjects = self._subjects(at_s)
        self._note_saved(subjects.values())
        if not self.chooser.domains.budgets_mw and not subjects and not self.suspended:
            return []
        over_mw = self._over_mw()
        self._over = any(mw > 0 for mw in over_mw.values())
        if not self.at_work and not any(one.is_capped for one in subjects.values()):
            self.doing = {}
            return []
        leaving = self._leaving(at_s)
        able = {uid: self._as_far_as_it_hears(one) for uid, one in subjects.items()}
        tally = EnforcementTally(self.chooser, able)
        for uid in leaving:
            tally.take(uid)
        stops = self._stop(tally, over_mw, leaving, at_s)
        gone = leaving | {uid for order in stops for uid in order.uids}
        left = {name: mw - tally.gone_mw[name] for name, mw in over_mw.items()}
        stay = [one for one in able.values() if one.uid not in gone]
        wanted = lowered(stay, left, self.chooser.domains.tree)
        caps = self._cap([one for one in stay if one.uid not in self._deaf], wanted, at_s)
        self._tell(over_mw)
        return [*caps, *stops, *self._resume(at_s)]

    def backstop(self, at_s: float) -> list[CurbOrder]:
        """Stops, where caps that somebody else orders have not kept a budget for too long.

        Watts that are on their way back are waited for. Nothing is suspended here; what was before
        runs again.
        """
        if self.chooser.fleet.placer is None:
            return []
        subjects = self._subjects(at_s)
        self._note_saved(subjects.values())
        if not self.chooser.domains.budgets_mw:
            self._over_s = None
            return []
        leaving = self._leaving(at_s)
        if all(mw >= 0 for mw in self._left_mw().values()):
            # What caps in force leave is enough for everybody: most looks end here.
            self._over_s = None
            return list(self._resume(at_s))
        over_mw = self._over_mw()
        held = {uid: replace(one, floor_mw=self._counts_mw(one)) for uid, one in subjects.items()}
        tally = EnforcementTally(self.chooser, held)
        for uid in leaving:
            tally.take(uid)
        if not tally.short_mw(over_mw):
            self._over_s = None
            return list(self._resume(at_s))
        self._over_s = at_s if self._over_s is None else self._over_s
        if at_s - self._over_s <= BACKSTOP_S:
            return []
        return [replace(one, owner=None) for one in self._stop(tally, over_mw, leaving, at_s)]

    @property
    def at_work(self) -> bool:
        """Whether anything is over, under way or to be undone: then the next look may find more."""
        waits = self._sent or self.stopping or self._pledged or self._deaf or self.suspended
        return self._over or bool(waits)

    # What is --------------------------------------------------------------------------------------

    def _may_be_capped(self) -> Iterator[tuple[str, Holding]]:
        """Everybody on a node with an agent; nobody else is looked at."""
        fleet = self.chooser.fleet
        if self._agents_of != fleet.version:
            self._agents_of = fleet.version
            self._agents = tuple(
                name for name, facts in fleet.nodes.items() if names.AGENT in facts.labels
            )
        for name in self._agents:
            for holding in fleet.held_on(name):
                yield holding.uid, holding

    def _subjects(self, at_s: float) -> dict[str, CappablePod]:
        """Pods of ours that may be capped; orders that were carried out are no more under way."""
        fleet, found = self.chooser.fleet, {}
        for uid, holding in self._may_be_capped():
            pod = self.pods.get(uid)
            if pod is None or not holding.confirmed or not self.owns(pod):
                continue
            one = self._subject(holding, pod)
            if one is not None:
                found[uid] = one
        for uid in [uid for uid in self._sent if uid not in found]:
            del self._sent[uid]
        for one in found.values():
            self._hear(one, at_s)
        self._deaf &= found.keys()
        for uid in [uid for uid in self._looked_at if uid not in fleet.holdings]:
            del self._looked_at[uid]
        return found

    def _subject(self, holding: Holding, pod: Pod) -> CappablePod | None:
        """As `subject_of` has it; looked at anew only where something is another."""
        fleet = self.chooser.fleet
        seen = (pod, holding, fleet.seats(holding.uid), fleet.nodes.get(holding.node))
        known = self._looked_at.get(holding.uid)
        if known is None or any(map(is_not, known[0], seen)):
            known = self._looked_at[holding.uid] = seen, subject_of(fleet, holding, pod)
        return known[1]

    def _hear(self, one: CappablePod, at_s: float) -> None:
        """Whether the agent has done what it was asked for, or had long enough to."""
        sent = self._sent.get(one.uid)
        asked = one.most_mw if one.asked_mw is None else one.asked_mw
        if one.applied_mw is not None and one.applied_mw <= asked:
            self._deaf.discard(one.uid)
        if sent is None:
            if one.asked_mw is not None and (one.applied_mw is None or one.applied_mw > asked):
                # Asked for before we were started: an agent has as long as for any order.
                self._sent[one.uid] = _Sent(at_s, asked, asked)
            return
        if one.applied_mw != sent.stale_mw:
            sent.stale_mw = None
        if (
            sent.stale_mw is None
            and asked == sent.cap_mw
            and (one.asked_mw is None or one.applied_mw == one.asked_mw)
        ):
            del self._sent[one.uid]
        elif at_s - sent.at_s > CAP_WAIT_S and sent.cap_mw < self._counts_mw(one):
            self._deaf.add(one.uid)

    def _counts_mw(self, one: CappablePod) -> int:
        """What it may draw at most, by what it shows and by what is under way."""
        sent = self._sent.get(one.uid)
        return one.counts_mw(None if sent is None else sent.high_mw)

    def _as_far_as_it_hears(self, one: CappablePod) -> CappablePod:
        """One whose agent does not answer stays where it is."""
        return replace(one, floor_mw=self._counts_mw(one)) if one.uid in self._deaf else one

    def _note_saved(self, subjects: Iterable[CappablePod]) -> None:
        """Count what caps in force take off."""
        saved: dict[str, int] = {}
        for one in subjects:
            less = one.most_mw - self._counts_mw(one)
            if less:
                saved[one.node] = saved.get(one.node, 0) + less
        self.changed |= saved != self.chooser.domains.saved_mw
        self.chooser.domains.saved_mw = saved

    def _over_mw(self) -> dict[str, int]:
        """What each domain with a budget draws beyond it, with nobody capped."""
        domains, fleet = self.chooser.domains, self.chooser.fleet
        if fleet.placer is None:
            return {}
        carried = self.chooser.carried_mw(fleet.placer.state)
        saved = domains.saved_in(self.chooser.columns())
        return {
            name: carried[name] + saved.get(name, 0) - most
            for name, most in domains.budgets_mw.items()
        }

    def _leaving(self, at_s: float) -> set[str]:
        """Pods whose watts come back without anything more: deleted, or told to go by anybody.

        One on a silent node is none of them: its machine may draw on, whatever the API says.
        """
        holdings, pods, deleted = self.chooser.fleet.holdings, self.pods, set[str]()
        ending, suspended = dict[str, float](), list[str]()
        jobs = ids_of({uid: job for uid, job in self.suspended.items() if uid not in self._pledged})
        for uid, holding in holdings.items():
            pod = pods.get(uid)
            if pod is None or self.is_silent(holding.node):
                continue
            if pod.metadata.deletion_timestamp is not None:
                deleted.add(uid)
            elif jobs and not jobs.isdisjoint(job_ids(pod)):
                suspended.append(uid)
            elif self.is_ending(pod):
                ending[uid] = self._ending_s.get(uid, at_s)
        self._ending_s = ending
        there = {uid for uid in holdings if uid not in deleted}
        self.stopping.find(suspended, at_s)
        self.stopping.look(there, at_s)
        silent = {uid for uid in self.stopping.on_the_way if self.is_silent(holdings[uid].node)}
        others = {uid for uid, since_s in ending.items() if at_s - since_s < WAIT_S}
        return deleted | others | (self.stopping.on_the_way - silent)

    # Caps -----------------------------------------------------------------------------------------

    def _cap(
        self, subjects: Iterable[CappablePod], wanted: Mapping[str, int], at_s: float
    ) -> list[CapPod]:
        orders, raises = list[CapPod](), list[tuple[CappablePod, int]]()
        for one in subjects:
            target = wanted[one.uid]
            sent = self._sent.get(one.uid)
            asked = one.most_mw if one.asked_mw is None else one.asked_mw
            now = asked if sent is None else sent.cap_mw
            unseen = sent is not None and (asked != now or sent.stale_mw is not None)
            again = sent is not None and unseen and at_s - sent.at_s > AGAIN_S
            if target < now or (again and target <= now):
                orders.append(self._ask(one, target, at_s))
            elif target > now and (target == one.most_mw or target - now >= STEP * one.most_mw):
                raises.append((one, target))
        return orders + self._raise(raises, at_s)

    def _raise(self, raises: Iterable[tuple[CappablePod, int]], at_s: float) -> list[CapPod]:
        """As far as there are watts for it now."""
        left, orders = self._left_mw(), []
        tree = self.chooser.domains.tree
        for one, target in raises:
            more = target - self._counts_mw(one)
            above = [name for name in tree.path(one.domain) if name in left]
            if any(left[name] < more for name in above):
                continue
            for name in above:
                left[name] -= max(more, 0)
            orders.append(self._ask(one, target, at_s))
        return orders

    def _ask(self, one: CappablePod, target_mw: int, at_s: float) -> CapPod:
        sent, before_mw = self._sent.get(one.uid), self._counts_mw(one)
        same = sent is not None and sent.cap_mw == target_mw
        self._note_raise(one, target_mw)
        read_mw = one.applied_mw
        forgets = target_mw < before_mw and read_mw is not None and read_mw < before_mw
        self._sent[one.uid] = _Sent(
            sent.at_s if sent is not None and same else at_s,
            target_mw,
            high_mw=before_mw if forgets else target_mw,
            stale_mw=read_mw if forgets else None,
        )
        lifted = target_mw == one.most_mw
        return CapPod(one.uid, one.key, None if lifted else target_mw / WATT_MW, forgets=forgets)

    def _note_raise(self, one: CappablePod, target_mw: int) -> None:
        """A higher cap counts from now on."""
        more = target_mw - self._counts_mw(one)
        if more > 0:
            saved = self.chooser.domains.saved_mw
            saved[one.node] = max(0, saved.get(one.node, 0) - more)
            self.changed = True

    def _left_mw(self) -> dict[str, int]:
        """What each domain with a budget may draw beside what it does."""
        domains, fleet = self.chooser.domains, self.chooser.fleet
        if fleet.placer is None:
            return {}
        carried = self.chooser.carried_mw(fleet.placer.state)
        return {name: most - carried[name] for name, most in domains.budgets_mw.items()}

    # Who is stopped -------------------------------------------------------------------------------

    def _stop(
        self, tally: EnforcementTally, over_mw: Mapping[str, int], leaving: set[str], at_s: float
    ) -> list[StopPods]:
        """The fewest of the least important works without which lowest caps are enough.

        Where nothing is enough, all that make it less.
        """
        short = tally.short_mw(over_mw)
        for uid in self.stopping.refused:
            domain = self._domain(self.chooser.fleet.holdings[uid])
            if short.keys().isdisjoint(self.chooser.domains.tree.path(domain)):
                self.stopping.forget(uid)  # it may stay after all
        if not short or self._are_arriving(short, at_s):
            return []
        # What was reserved and is not there draws nothing yet: nobody who runs goes for it. Should
        # it still come, it is there to be stopped by its rank.
        absent = [one.uid for one in self.chooser.fleet.reserved]
        for uid in absent:
            tally.take(uid)
        taken = self._fewest(tally, units_of(self._stoppable(leaving), self.groups), at_s, over_mw)
        for uid in absent:
            tally.take(uid, -1)
        return [order for unit in taken for order in self._stop_one(unit, over_mw, at_s)]

    def _fewest(
        self,
        tally: EnforcementTally,
        units: list[StopUnit],
        at_s: float,
        over_mw: Mapping[str, int],
    ) -> list[StopUnit]:
        """Units without which lowest caps are enough; they are taken from `tally`."""
        taken: list[StopUnit] = []
        for unit in sorted(units, key=lambda unit: self._rank(unit, at_s), reverse=True):
            short = tally.short_mw(over_mw)
            if not short:
                break
            if self._helps(unit, short):
                self._take(tally, unit)
                taken.append(unit)
        least = tally.short_mw(over_mw)
        for unit in sorted(taken, key=lambda unit: self._rank(unit, at_s)):
            # The most important first: who need not go, stays.
            self._take(tally, unit, -1)
            if tally.short_mw(over_mw) != least:
                self._take(tally, unit)
            else:
                taken.remove(unit)
        return taken

    def _rank(self, unit: StopUnit, at_s: float) -> tuple[Turn, bool, tuple[int, bool, str, str]]:
        """Who is stopped last comes first."""
        turns = {self.stopping.turn(one.uid, at_s) for one in unit.holdings} - {Turn.BY_RANK}
        undeclared = any(map(self.is_undeclared, unit.pods))
        return max(turns, default=Turn.BY_RANK), undeclared, unit.rank

    def _are_arriving(self, short: Iterable[str], at_s: float) -> bool:
        """Whether pods are about to be seen on nodes of these domains.

        They may be capped then, or be those to stop; for a moment nobody is stopped in their place.
        """
        tree = self.chooser.domains.tree
        return any(
            at_s - one.since_s < SETTLE_S
            and any(tree.below(name, self._domain(one)) for name in short)
            for one in self.chooser.fleet.holdings.values()
            if not one.confirmed or self._is_released(one)
        )

    def _is_released(self, holding: Holding) -> bool:
        """Whether a pod counts on a node that it is not bound to yet."""
        pod = self.pods.get(holding.uid)
        return pod is not None and not pod.spec.node_name

    def _take(self, tally: EnforcementTally, unit: StopUnit, sign: int = 1) -> None:
        for holding in unit.holdings:
            tally.take(holding.uid, sign)

    def _stoppable(self, leaving: Collection[str]) -> Iterator[tuple[Holding, Pod]]:
        """Pods of ours that are on their nodes, and not on their way out."""
        for uid, holding in self.chooser.fleet.holdings.items():
            pod = self.pods.get(uid)
            if pod is None or not holding.confirmed or uid in leaving or not self.owns(pod):
                continue
            if pod.metadata.deletion_timestamp is None and not self.is_silent(holding.node):
                yield holding, pod

    def _helps(self, unit: StopUnit, short: Iterable[str]) -> bool:
        domains = {self._domain(holding) for holding in unit.holdings if holding.ask.uses_gpus}
        tree = self.chooser.domains.tree
        return any(tree.below(name, domain) for name in short for domain in domains)

    def _domain(self, holding: Holding) -> str:
        facts = self.chooser.fleet.nodes.get(holding.node)
        return "" if facts is None else facts.domain

    def _stop_one(self, unit: StopUnit, over_mw: Mapping[str, int], at_s: float) -> list[StopPods]:
        """An order for each job of theirs, and one for those that are to be evicted."""
        paths = self._above(self._domain(holding) for holding in unit.holdings)
        worst = max((name for name in over_mw if name in paths), key=lambda name: over_mw[name])
        most = show_watts(self.chooser.domains.budgets_mw[worst] / WATT_MW)
        who = f"power domain {worst}" if worst else "the site"
        why = f"{BUDGET_CUT}: {who} may draw {most}"
        parts: dict[str, tuple[OwnerReference | None, list[Holding]]] = {}
        for holding, pod in zip(unit.holdings, unit.pods, strict=True):
            owner = None if self.stopping.is_forced(holding.uid) else owner_of(pod)
            parts.setdefault("" if owner is None else owner.uid, (owner, []))[1].append(holding)
        orders = []
        for owner, held in parts.values():
            uids = tuple(holding.uid for holding in held)
            self.stopping.tell(uids, at_s, suspended=owner is not None)
            needs = self._needs_mw(held)
            orders.append(
                StopPods(
                    uids=uids,
                    namespace=unit.pods[0].metadata.namespace,
                    owner=owner,
                    needs_w={name: mw / WATT_MW for name, mw in sorted(needs.items())},
                    priority=unit.priority,
                    why=f"{why}; {_what_then(unit.pods)}",
                )
            )
        return orders

    def _needs_mw(self, held: Iterable[Holding]) -> Mapping[str, int]:
        """By domain, what these draw uncapped."""
        needs: Counter[str] = Counter()
        columns = self.chooser.columns()
        for holding in held:
            for seat in self.chooser.fleet.seats(holding.uid):
                needs[self._domain(holding)] += int(columns.rise_mw[seat.node]) * len(seat.gpus)
        return needs

    def not_stopped(self, uids: Iterable[str]) -> None:
        """They could not be told to go, or were refused: whether they must is decided anew."""
        self.stopping.refuse(uids)

    # Who runs again -------------------------------------------------------------------------------

    def _resume(self, at_s: float) -> list[ResumeOwner]:
        """Suspended jobs for which there are watts, the most important first."""
        self._pledged = {
            uid: pledge for uid, pledge in self._pledged.items() if at_s - pledge[0] < PLEDGE_S
        }
        left, orders = self._left_mw(), []
        for _, needs in self._pledged.values():
            self._spend(left, needs)
        ranked = sorted(
            self.suspended.items(), key=lambda item: (-item[1].priority, item[1].since, item[0])
        )
        for uid, job in ranked:
            if uid in self._pledged:
                continue
            # Also where there are too few: less important ones shall not take them.
            self._spend(left, job.needs_mw)
            if all(left[name] >= 0 for name in self._above(job.needs_mw) if name in left):
                self._pledged[uid] = at_s, job.needs_mw
                orders.append(ResumeOwner(uid, job.path))
        return orders

    def _above(self, domains: Iterable[str]) -> set[str]:
        return {name for domain in domains for name in self.chooser.domains.tree.path(domain)}

    def _spend(self, left: dict[str, int], needs_mw: Mapping[str, int]) -> None:
        for domain, mw in needs_mw.items():
            for name in self.chooser.domains.tree.path(domain):
                if name in left:
                    left[name] -= mw

    def not_resumed(self, uid: str) -> None:
        """It could not be asked for: it is asked for again."""
        self._pledged.pop(uid, None)

    def _tell(self, over_mw: Mapping[str, int]) -> None:
        """For statuses: of domains that draw too much, what is under way."""
        fleet, tree = self.chooser.fleet, self.chooser.domains.tree
        going = self.stopping.on_the_way
        where = {uid: self._domain(fleet.holdings[uid]) for uid in (*self._sent, *going)
                 if uid in fleet.holdings}  # fmt: skip
        self.doing = {}
        for name in over_mw:
            capped = sum(1 for uid in self._sent if tree.below(name, where.get(uid, "")))
            stopped = sum(1 for uid in going if tree.below(name, where.get(uid, "")))
            parts = [f"{capped} pods are being capped"] if capped else []
            parts += [f"{stopped} pods are being stopped"] if stopped else []
            if parts:
                self.doing[name] = ", ".join(parts)


def _what_then(pods: Iterable[Pod]) -> str:
    """Of pods that are stopped, whether anybody will run them again."""
    owned = [owner_of(pod) is not None for pod in pods]
    if all(owned):
        return "runs again when there are watts"
    if any(owned):
        return "what a controller makes anew runs again when there are watts"
    return "nothing makes it anew: create it again when there are watts"
