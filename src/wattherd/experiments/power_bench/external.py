"""A controller of somebody else's in `wattherd power bench`: a process that speaks lines of JSON.

It is asked one line at a time and answers one (docs/reference/bench-json.md). It is no part of the
trusted code: what it answers is checked here, and one that stops answering ends the benchmark.
"""

from __future__ import annotations

import json
import select
import shlex
import subprocess
import weakref
from typing import Any

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Orders, Readings
from wattherd.errors import UserError

ANSWER_S = 5.0
FIELD = "--controller-command"
SPEAKS = "what is said by whom: docs/reference/bench-json.md"


class External:
    """One life of the process; it ends with this object, as a killed controller does.

    Raises:
        UserError: the command does not start, or (from `cycle` and `leave`) answers late or badly.
    """

    def __init__(self, command: str, fleet: Fleet) -> None:
        """Start it and describe the fleet."""
        self._fleet = fleet
        try:
            self._process = subprocess.Popen(  # noqa: S603  # the user's own command
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except (OSError, ValueError, IndexError) as problem:
            raise UserError(f"cannot start {command!r}: {problem}", field=FIELD) from None
        self._end = weakref.finalize(self, _stop, self._process)
        breaker = fleet.breaker
        self._tell(
            {
                "kind": "fleet",
                "feed": fleet.feed.tolist(),
                "above": fleet.tree.above.tolist(),
                "floor_w": fleet.floor_w.tolist(),
                "max_w": fleet.max_w.tolist(),
                "rated_w": breaker.rated_w.tolist(),
                "breaker_constant_s": breaker.constant_s,
            }
        )

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:
        """Ask for one decision."""
        return self._asked("cycle", readings, limit_w)

    def leave(self, readings: Readings) -> Orders:
        """Ask it to put back what it found."""
        return self._asked("leave", readings, None)

    def _asked(self, kind: str, readings: Readings, limit_w: Floats | None) -> Orders:
        self._tell(
            {
                "kind": kind,
                "now_s": readings.now_s,
                "limit_w": None if limit_w is None else limit_w.tolist(),
                "off": np.flatnonzero(readings.off).tolist(),
                **{
                    name: _or_null(getattr(readings, name))
                    for name in ("draw_w", "draw_at_s", "cap_w", "feed_w", "feed_at_s")
                },
            }
        )
        return self._orders(self._answer())

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101  # opened as a pipe
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise UserError("the controller has ended", field=FIELD) from None

    def _answer(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None  # noqa: S101  # opened as a pipe
        asked = select.poll()  # `select` knows no descriptor above 1,023
        asked.register(out, select.POLLIN)
        ready = asked.poll(ANSWER_S * 1e3)
        line = out.readline() if ready else ""
        if ready and not line:
            raise UserError("the controller has ended without an answer", field=FIELD, hint=SPEAKS)
        if not line:
            problem = f"the controller gave no answer within {ANSWER_S:g} s"
            raise UserError(problem, field=FIELD, hint=SPEAKS)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            problem = f"{line.strip()[:80]!r} is no JSON object"
            raise UserError(problem, field=FIELD, hint=SPEAKS)
        return answer

    def _orders(self, answer: dict[str, Any]) -> Orders:
        if "cap_w" not in answer:
            raise UserError("the answer has no cap_w", field=FIELD, hint=SPEAKS)
        try:
            cap_w = np.asarray(answer["cap_w"], dtype=np.float64)
            lease_s = answer.get("lease_s")
            lease_s = float("inf") if lease_s is None else float(lease_s)
            keys = ("switch_off", "switch_on", "stop_job")
            off, on, stop = (self._rows(answer.get(key, ())) for key in keys)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            problem = f"the answer holds no usable orders: {error}"
            raise UserError(problem, field=FIELD, hint=SPEAKS) from None
        if cap_w.shape != (self._fleet.size,) or not np.isfinite(cap_w).all():
            raise UserError(f"cap_w needs {self._fleet.size} finite numbers", field=FIELD)
        return Orders(cap_w=cap_w, lease_s=lease_s, switch_off=off, switch_on=on, stop_job=stop)

    def _rows(self, numbers: Any) -> Bools:
        rows = np.zeros(self._fleet.size, dtype=np.bool_)
        rows[np.asarray(numbers, dtype=np.int64)] = True
        return rows


def _or_null(values: Floats) -> list[float | None]:
    return [float(one) if np.isfinite(one) else None for one in values]


def _stop(process: subprocess.Popen[str]) -> None:
    """No warning: that is what the fault `controller-killed` is about."""
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:
                continue
    process.wait()
