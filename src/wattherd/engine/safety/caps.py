"""What each device may draw at worst: caps ordered, read back, ignored, reset or unanswered.

A lower cap counts once it has been read back and nothing contradicts it, a higher one from its
order on (POLCA's and Emerald's caps take up to 40 s). A device that does not answer counts at its
maximum. Orders of one device arrive in their order, so reading the newest one back means that no
earlier one is still under way; therefore no order carries the number of one of the last few.

A knob rounds to its step, and may end at a number of its own (asked for 103 W, it always says 105):
such a read-back is as good as the number ordered. One that rounds and does not say so is found out
by its answers, and asked for whole steps from then on.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import (
    Bools,
    Fleet,
    Floats,
    Ints,
    Readings,
    Reckoned,
    SafetyConfig,
    no_streak,
)
from wattherd.engine.safety.response import NEAR_FLOOR, DrawResponse

# Drivers take whole watts or whole steps; half of one apart is the same number told differently.
SAME_W = 0.5
"""Read-backs this close are the ordered cap (drivers round to whole watts)."""
REMEMBERED = 8
"""Orders of a device that may still be under way together."""
AT_REST = 1.1
"""A device without a job counts at this multiple of its draw."""
# Regulators overshoot their caps by some percent; only draw beyond that says the cap is not in
# force.
OVER_CAP = 1.08
"""Draw above this multiple of what is expected under a cap shows that the cap is not in force."""
FOLLOWS = 0.5
"""Draw that has fallen by half of what its cap has, in proportion, follows: it is not ignored, even
if it stays above, as that of a node does whose processors no cap acts on."""
MEANS = 2.5
"""A slow meter shows a fall in full after that many of its periods."""
FLAT = 0.03
FLAT_S = 30.0
"""Draw that stands still for so long, whatever is ordered, is all there is to expect."""
STEPS_W = np.array([5.0, 10.0, 20.0, 25.0, 50.0, 2.0, 4.0, 8.0, 12.0, 15.0, 16.0, 30.0, 40.0])
"""What knobs may round to, in the order of preference: round numbers first, and small ones."""
GIVE_UP_S = 45.0
"""No knob on record takes longer: then the order has been answered, if by another number."""


# The state of one device, in the order of how much is known of it:
#
# silent: it does not answer. Counts at its maximum, or above if it held more.
#
# waking: its outlet was switched on. As silent: boots reset caps.
#
# late: an order has been unanswered for long. Counts at the old cap, and the others' shares are
# made without its help.
#
# defiant: it says that the lower cap is in force and draws as before. Its word counts for nothing
# until it has been obedient for a while.
#
# off: no power, no watts, whatever its last answer was.
#
# settled: everything else. Only these are raised.
class CapBook:
    """Caps by device, all arrays (N,)."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Nothing is known: every device counts at its maximum."""
        self._fleet, self._config = fleet, config
        # Invariant: held_w is at least the cap that is really in force on each device. It falls
        # only in `read_back`, by proof; everything else may only raise it.
        self.held_w: Floats = fleet.max_w.copy()
        """The highest cap that may be in force."""
        self.ordered_w: Floats = np.full(fleet.size, np.nan)
        self.response = DrawResponse(fleet, config.unproven)
        self._read_w: Floats = np.full(fleet.size, np.nan)
        self._sent_w: Floats = np.full((REMEMBERED, fleet.size), np.nan)
        self.step_w: Floats = np.ones(fleet.size)
        self.tolerance_w: Floats = np.full(fleet.size, SAME_W)
        if fleet.step_w is not None:
            self.step_w = np.maximum(np.nan_to_num(fleet.step_w), 1.0)
            self.tolerance_w = np.where(self.step_w > 1, 1.001 * self.step_w, SAME_W)
        self.coarse: Bools = self.step_w > 1
        self._own_number_w: Floats = np.full(fleet.size, np.nan)
        """What a knob says instead of all lower orders."""
        self._ends_w: Floats = np.array([np.full(fleet.size, np.inf), np.full(fleet.size, -np.inf)])
        """The lowest and the highest cap that was ever read back."""
        self._doubt_w: Floats = np.full(fleet.size, np.nan)
        """The highest cap that was in force since a draw last proved one."""
        # Silent until a first answer: of whoever was never heard anything is possible.
        self.silent: Bools = np.ones(fleet.size, dtype=np.bool_)
        self.late: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.defiant: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.off: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.waking: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.jobless: Bools = np.zeros(fleet.size, dtype=np.bool_)
        """Devices whose jobs have been stopped; the backstop says which."""
        self.pending_s: Floats = np.zeros(fleet.size)
        """For how long an order has been waiting to be read back."""
        self.answer_s = 2.0
        """How long knobs take, half of them."""
        self._draw_w: Floats = np.full(fleet.size, np.nan)
        self._before_w: Floats = np.full(fleet.size, np.nan)
        """What was drawn before the cap was lowered."""
        self._patience_s: Floats = np.full(fleet.size, config.defiant_after_s)
        self._since_w: Floats = np.full((2, fleet.size), np.nan)
        self._running, self._counted, self._by_level = Reckoned(), Reckoned(), Reckoned()
        self._lowest = Reckoned()
        self._unanswered = no_streak(fleet.size)
        self._pending = no_streak(fleet.size)
        self._unmoved = no_streak(fleet.size)
        self._above = no_streak(fleet.size)
        self._below = no_streak(fleet.size)

    def read_back(
        self,
        readings: Readings,
        watched: Bools,
        draw_w: Floats,
        *,
        resolution_w: Floats,
        news_s: Floats,
    ) -> None:
        """Take in the caps in force as the knobs report them.

        A knob's word for a lower cap counts on `watched` devices (N,), whose own meter or feed's
        would tell if it were not kept, and not while the device's own `draw_w` (N,) says otherwise;
        which has news every `news_s` (N,) in steps of `resolution_w` (N,).
        """
        read_w, config = readings.cap_w, self._config
        answered = np.isfinite(read_w)
        first = answered & np.isnan(self.ordered_w)
        # A read-back that equals the newest order. Numbers of the last orders are never reused
        # (`_unlike`), so that it cannot be the echo of an older one.
        done = answered & self._is_ordered(read_w)
        # A meter in steps may show up to a step too much, which is not the device's doing.
        self._draw_w, allowed_w = draw_w, OVER_CAP * self.response.at(read_w) + resolution_w
        with np.errstate(invalid="ignore"):
            lower = self.held_w > np.maximum(read_w, self.ordered_w) + self.tolerance_w
            # Draw that fell by half of what the cap did is on its way, or has parts that no cap
            # acts on. To call that defiance would take a node's job for its processors' share.
            fallen_w = self._before_w * (1.0 - FOLLOWS * (1.0 - read_w / self.held_w))
            shown = (draw_w > allowed_w) & ~(draw_w <= fallen_w)
        # The asymmetry of the whole loop in one line: no lower cap on trust alone, any higher one
        # at once.
        believed = done & (~lower | (watched & ~shown))
        self._patience_s = np.maximum(config.defiant_after_s, MEANS * news_s)
        self._note_defiance(done & lower & watched & shown, readings.now_s)
        # A first answer is taken as it is: there was no order before it that it could be the echo
        # of.
        in_force_w = np.where(first, read_w, np.fmax(read_w, self.ordered_w))
        self.held_w = np.where(first | believed, in_force_w, np.fmax(self.held_w, read_w))
        self.ordered_w = np.where(first, read_w, self.ordered_w)
        with np.errstate(invalid="ignore"):
            arrived = first | (done & (np.abs(read_w - self.ordered_w) <= SAME_W))
        # Orders of one device arrive in their order, so that with the newest all earlier ones have
        # arrived, or never will.
        if arrived.any():  # and with it all that were sent before
            for row in range(REMEMBERED):
                last_w = read_w if row == REMEMBERED - 1 else np.nan
                self._sent_w[row] = np.where(arrived, last_w, self._sent_w[row])
        with np.errstate(invalid="ignore"):
            unmoved = np.abs(read_w - self._read_w) <= SAME_W
        unmoved_s = self._unmoved.note(answered & unmoved, readings.now_s)
        self._read_w = np.where(answered, read_w, self._read_w)
        unanswered_s = self._unanswered.note(~answered, readings.now_s)
        never = np.isnan(self.ordered_w)
        # One missed answer is a lost packet; `silent_s` of them is a device that may do anything.
        self.silent = ~answered & ((unanswered_s >= config.silent_s) | never)
        self._note_answers(believed)
        self.pending_s = self._pending.note(answered & ~believed & ~first, readings.now_s)
        self.late = self.pending_s >= np.maximum(
            config.settle_s, np.where(done, self._patience_s, 0)
        )
        with np.errstate(invalid="ignore"):
            # Who was seen below its own number can be brought there.
            below = read_w < self._own_number_w - self.tolerance_w
        if below.any():
            self._own_number_w = np.where(below, np.nan, self._own_number_w)
        stuck = self.late & ~done & (unmoved_s >= config.settle_s)
        self._learn_own_numbers(stuck & ~self._learn_steps(stuck))
        self._ends_w[0] = np.fmin(self._ends_w[0], read_w)
        self._ends_w[1] = np.fmax(self._ends_w[1], read_w)
        self.waking = self.waking & readings.off
        self.off = readings.off & ~self.waking
        self._before_w = np.where(lower & ~believed, self._before_w, draw_w)
        self._doubt(first | (believed & self._presses(read_w)))

    def _is_ordered(self, read_w: Floats) -> Bools:
        """Read-backs that are the newest order, as far as the knob can say it."""
        with np.errstate(invalid="ignore"):
            exact = np.abs(read_w - self.ordered_w) <= self.tolerance_w
            own = np.abs(read_w - self._own_number_w) <= self.tolerance_w
            return exact | (own & (self.ordered_w < self._own_number_w))

    def _note_answers(self, believed: Bools) -> None:
        """Learn how long knobs take, half of them, of late."""
        ended = believed & (self.pending_s > 0)
        if ended.any():
            took_s = float(np.median(self.pending_s[ended])) + 1.0
            # A tenth of the way with each answer: one slow controller does not change what is
            # expected of the others, a firmware that makes all of them slow is noticed within some
            # orders.
            self.answer_s += 0.1 * (min(took_s, GIVE_UP_S) - self.answer_s)

    # Only what is ordered from now on changes: whole steps, which are read back to the watt. What
    # counts as an answer stays as it was: a step learned by mistake costs a part of it in watts,
    # and no echo of an older order passes for the newest.
    def _learn_steps(self, stuck: Bools) -> Bools:
        """Who of those `stuck` (N,) answers in steps that nobody told.

        A knob that clamps is no such one: it was never seen beyond the number that it says.
        """
        found = np.zeros(len(stuck), dtype=np.bool_)
        rows = np.flatnonzero(stuck)
        if not len(rows):
            return found
        read_w, ordered_w = self._read_w[rows], self.ordered_w[rows]
        low_w, high_w = self._ends_w[:, rows]
        with np.errstate(invalid="ignore"):
            old = (np.abs(read_w - self._sent_w[:, rows]) <= SAME_W).any(axis=0)
            # Who was sent more than is remembered may repeat what is forgotten.
            old |= np.isfinite(self._sent_w[0, rows])
            beyond = np.where(read_w > ordered_w, low_w < read_w - SAME_W, high_w > read_w + SAME_W)
        steps_w = STEPS_W[:, None]
        whole = np.abs(read_w - np.rint(read_w / steps_w) * steps_w) <= SAME_W / 5
        explains = whole & (np.abs(read_w - ordered_w) < steps_w) & (steps_w > self.step_w[rows])
        explains &= ~old & beyond
        some = explains.any(axis=0)
        self.step_w[rows[some]] = STEPS_W[explains.argmax(axis=0)[some]]
        self.coarse[rows[some]] = True
        # It was the answer, so that this was the order.
        self.ordered_w[rows[some]] = read_w[some]
        self._sent_w[:, rows[some]] = np.nan
        self._sent_w[-1, rows[some]] = read_w[some]
        found[rows[some]] = True
        return found

    def _learn_own_numbers(self, stuck: Bools) -> None:
        """A knob that answers with a number nobody ordered means that number.

        One that repeats an older order, or what was found, has simply not followed yet.
        """
        rows = np.flatnonzero(stuck)
        if not len(rows):
            return
        read_w = self._read_w[rows]
        tolerance_w = self.tolerance_w[rows]
        # Whoever repeats an old order, or what was found, is late. Whoever says a number that
        # nobody ever said has an idea of its own, and will not get closer.
        known_w = np.vstack((self._sent_w[:, rows], self.held_w[rows]))
        with np.errstate(invalid="ignore"):
            old = (np.abs(read_w - known_w[:-1]) <= tolerance_w).any(axis=0)
            own = ~old & (read_w > self.ordered_w[rows]) & (read_w < known_w[-1] - tolerance_w)
            low = read_w <= NEAR_FLOOR * self._fleet.floor_w[rows]
            waited = self.pending_s[rows] >= GIVE_UP_S
        chosen = rows[own | (low & waited & (read_w > self.ordered_w[rows]))]
        number_w = self._own_number_w.copy()
        number_w[chosen] = self._read_w[chosen]
        self._own_number_w = number_w

    def _presses(self, cap_w: Floats) -> Bools:
        """Devices whose draw shows that a cap holds them back: it is in force."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self._draw_w >= 0.9 * cap_w)

    def _doubt(self, proven: Bools) -> None:
        self._doubt_w = np.where(proven, self.held_w, np.fmax(self._doubt_w, self.held_w))

    def _note_defiance(self, shown: Bools, now_s: float) -> None:
        """Devices whose draw stays where it was though they claim a lower cap.

        Where that is near their floor they may be unable to get lower. Elsewhere, too, draw that
        stands still for long is all there is: it counts, and the claimed cap beside it.
        """
        draw_w = self._draw_w
        shown_s = self._above.note(shown, now_s)
        begun = shown & (shown_s <= 0)
        self._since_w = np.where(begun | ~shown, draw_w, self._since_w)
        self._since_w[0] = np.where(shown, np.fmin(self._since_w[0], draw_w), self._since_w[0])
        self._since_w[1] = np.where(shown, np.fmax(self._since_w[1], draw_w), self._since_w[1])
        with np.errstate(invalid="ignore"):
            flat = self._since_w[1] - self._since_w[0] <= FLAT * draw_w
            near = draw_w <= NEAR_FLOOR * self._fleet.floor_w
        lasts = shown & (shown_s >= self._patience_s)
        unable = lasts & flat & (near | (shown_s >= FLAT_S))
        self.response.reach_w = np.where(unable, draw_w, self.response.reach_w)
        mends = self._below.note(~shown, now_s) >= self._config.obedient_after_s
        # Two ways out: obedient for long enough, or at its reach, where it is no defiance to draw
        # what it cannot help.
        self.defiant = (self.defiant | (lasts & ~near)) & ~mends & ~(unable & near)

    def compare(
        self, draw_w: Floats, trusted: Bools, now_s: float, step_s: float, *,
        late: Bools, telling: Bools,
    ) -> Floats:  # fmt: skip
        """Learn what devices draw beyond their caps; how much (N,) that newly explains, or less.

        One that draws more than its cap allows, and was not seen to keep that cap, may still be
        under one that it had before. Of devices whose meters are `late` (N,) only those learn that
        are `telling` of a cap like that of now.
        """
        with np.errstate(invalid="ignore"):
            over = draw_w > OVER_CAP * self.response.at(self.held_w)
            before = over & (self._doubt_w > self.held_w + self.tolerance_w) & trusted
        # Raised on suspicion: draw above the cap that was read back, of a device that had a higher
        # cap since draw last proved one, means that the higher one is still in force.
        self.held_w = np.where(before, self._doubt_w, self.held_w)
        settle_s = np.where(late, 0.0, self._patience_s)
        settle_s = np.maximum(self._config.settle_s, settle_s)
        trusted = trusted & (~late | telling)
        # Only under a cap that is known to be in force does draw tell how a device keeps it.
        may = trusted & ~self.fixed & (np.abs(self.held_w - self.ordered_w) <= self.tolerance_w)
        told = trusted & ~(self.silent | self.defiant | self.waking)
        return self.response.learn(
            self.held_w, draw_w, may=may, told=told,
            now_s=now_s, settle_s=settle_s, step_s=step_s,
        )  # fmt: skip

    @property
    def drawn_w(self) -> Floats:
        """What each device's own meter showed last; NaN where it is not believed."""
        return self._draw_w

    @property
    def counted_w(self) -> Floats:
        """What each device may draw at worst; without a job no more than it was seen to."""
        running_w = self.running_w
        if not self.jobless.any():
            return running_w

        def count() -> Floats:
            seen_w = np.where(self.jobless, AT_REST * self._draw_w, np.nan)
            return np.asarray(np.fmin(running_w, seen_w))

        return self._counted.of((running_w, self.jobless, self._draw_w), count)

    @property
    def counted_by_level_w(self) -> Floats:
        """The same together, by level (F + 1,)."""
        counted_w = self.counted_w
        return self._by_level.of((counted_w,), lambda: self._fleet.levels(counted_w))

    @property
    def running_w(self) -> Floats:
        """The same if no job had been stopped."""
        response = self.response
        known = (self.held_w, self.silent, self.waking, self.off, *response.point, response.reach_w)
        return self._running.of(known, self._count_running)

    def _count_running(self) -> Floats:
        unknown = self.silent | self.waking
        # Whoever is silent may be booting, and a boot resets its cap.
        most_w = np.where(unknown, np.maximum(self._fleet.max_w, self.held_w), self.held_w)
        return np.asarray(np.where(self.off, 0.0, self.response.at(most_w)))

    @property
    def fixed(self) -> Bools:
        """Devices whose draw no order can be relied on to change soon."""
        return self.silent | self.defiant | self.waking | self.late | self.off

    @property
    def settled(self) -> Bools:
        """Devices whose last order was read back."""
        near = np.abs(self.held_w - self.ordered_w) <= self.tolerance_w
        with np.errstate(invalid="ignore"):
            own = np.abs(self.held_w - self._own_number_w) <= self.tolerance_w
        return np.asarray(~self.fixed & (near | (own & (self.ordered_w < self._own_number_w))))

    @property
    def lowest_w(self) -> Floats:
        """The lowest caps that knobs accept."""
        low_w, high_w, own_w = self._fleet.floor_w, self._fleet.max_w, self._own_number_w
        return self._lowest.of((own_w,), lambda: np.fmin(np.fmax(low_w, own_w), high_w))

    # Downwards: a knob that is handed a number between its steps may round up, and up is over the
    # limit.
    def on_grid(self, cap_w: Floats) -> Floats:
        """The nearest caps (N,) below, in steps of coarse knobs: rounding up breaks a limit."""
        grid_w = np.floor(cap_w / self.step_w + 1e-6) * self.step_w
        return np.where(self.coarse & (grid_w >= self._fleet.floor_w), grid_w, cap_w)

    def order(self, cap_w: Floats) -> Floats:
        """Note new caps and return them as they are to be sent."""
        known = np.where(np.isnan(self.ordered_w), self._fleet.floor_w, self.ordered_w)
        cap_w = self.on_grid(cap_w)
        changed = np.abs(cap_w - known) > np.where(self.coarse, 0.5 * self.step_w, SAME_W)
        sent_w = np.where(changed, cap_w, known)
        rows = np.flatnonzero(changed)
        sent_w[rows] = self._unlike(cap_w[rows], known[rows], rows)
        news = sent_w != known
        for row in range(REMEMBERED):
            newer_w = self._sent_w[row + 1] if row + 1 < REMEMBERED else sent_w
            self._sent_w[row] = np.where(news, newer_w, self._sent_w[row])
        # A raise counts from its order on: it may take effect at any moment, read back or not.
        self.held_w = np.maximum(self.held_w, sent_w)
        self.ordered_w = sent_w
        return sent_w.copy()

    def _unlike(self, cap_w: Floats, known: Floats, rows: Ints) -> Floats:
        """Caps near `cap_w` (n,), unlike what was ordered or read lately; else those `known`.

        Alike, their read-back could not tell "done" from "not yet". Lower ones come first; higher
        ones, for devices at their floor, end at what was ordered before.
        """
        floor_w, step_w = self._fleet.floor_w[rows], self.step_w[rows]
        near_w = np.where(step_w > 1, 0.999 * step_w, 2 * SAME_W)
        unlike_w, open_ = known.copy(), np.arange(len(rows))
        for step in _STEPS:
            tried_w = cap_w[open_] + step * step_w[open_]
            good = (tried_w >= floor_w[open_]) & ((step <= 0) | (tried_w <= known[open_]))
            for taken_w in (*self._sent_w, self._read_w):
                good &= ~(np.abs(tried_w - taken_w[rows[open_]]) <= near_w[open_])
            unlike_w[open_[good]] = tried_w[good]
            open_ = open_[~good]
            if not len(open_):
                break
        return unlike_w


_FAR = 2 * (REMEMBERED + 2)
_STEPS = (*range(0, -_FAR, -1), *range(1, _FAR))
"""Each number taken rules out two steps around it, so that one of these is free."""
