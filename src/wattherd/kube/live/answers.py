"""Questions of the core, worked out beside it: programs of shares take longer than a plan may.

One at a time, by a thread of its own. A later question of a kind makes an earlier one pointless,
so that of several that wait only the last is worked out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wattherd.errors import ClusterError
from wattherd.kube.decide.core_driver import Question

Computers = Mapping[str, Callable[[Any], Any]]


class Answers:
    """`computers` by kind of question; `tell` hears each answer, None where nobody found one."""

    def __init__(self, computers: Computers, tell: Callable[[Question, Any], None]) -> None:
        """Without computers nobody works."""
        self._computers, self._tell = computers, tell
        self._waiting: dict[str, Question] = {}
        self._asked = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="wattherd-answers", daemon=True)
        if computers:
            self._thread.start()

    def ask(self, questions: Iterable[Question]) -> None:
        """Have these worked out."""
        with self._asked:
            self._waiting.update((one.order.kind, one) for one in questions)
            self._asked.notify()

    def close(self) -> None:
        """What is being worked out is told to nobody."""
        with self._asked:
            self._over = True
            self._asked.notify()

    def _work(self) -> None:
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._waiting or self._over)
                if self._over:
                    return
                question = self._waiting.pop(next(iter(self._waiting)))
            result = self._result(question)
            if not self._over:
                self._tell(question, result)

    def _result(self, question: Question) -> Any:
        try:
            return self._computers[question.order.kind](question.order.payload)
        except (KeyError, ClusterError):
            return None
