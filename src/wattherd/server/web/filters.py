"""Which jobs a page shows: by user, label, state, queue and name, as its address says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from wattherd.model.job import JobSpec
from wattherd.store.projection import JobFilter

MOST = 200
"""Characters of a field."""
ENDED = ("Succeeded", "Failed", "Cancelled")
STATES = {
    "waiting": ("Queued", "Paused"),
    "running": ("Starting", "Running", "Stopping"),
    "ended": ENDED,
}
"""Those that jobs of a list may be in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFilter:
    """Fields as they were typed; an empty one lets every job pass.

    `user`, `state` and `queue` are whole words, `name` is a part of the name, `label` is
    `KEY=VALUE`, or `KEY` for any value.
    """

    user: str = ""
    label: str = ""
    state: str = ""
    queue: str = ""
    name: str = ""

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.fields())

    def fields(self) -> dict[str, str]:
        """Those that are set, for the address."""
        every = {
            "user": self.user, "label": self.label, "state": self.state,
            "queue": self.queue, "name": self.name,
        }  # fmt: skip
        return {name: value for name, value in every.items() if value}

    @property
    def query(self) -> str:
        """The same as the end of an address, beginning with `&`; empty if nothing is set."""
        return f"&{urlencode(self.fields())}" if self else ""

    @property
    def without_state(self) -> QueueFilter:
        """The same for jobs in any state."""
        return replace(self, state="")

    @property
    def labels(self) -> tuple[tuple[str, str | None], ...]:
        """The label that is asked for, its value None for any."""
        key, equals, value = self.label.partition("=")
        return ((key.strip(), value.strip() if equals else None),) if key.strip() else ()

    def fits(self, spec: JobSpec, state: str, called: str) -> bool:
        """Whether a job, which is in that state and has that name, is shown."""
        return (
            self.user in ("", spec.user)
            and self.state in ("", state)
            and self.queue in ("", spec.queue)
            and self.name.casefold() in called.casefold()
            and all(_has(spec.labels, *one) for one in self.labels)
        )

    def ended(self, tenant: str | None, text: str, limit: int) -> JobFilter:
        """The same for jobs that are over."""
        states = (self.state,) if self.state in ENDED else () if self.state else ENDED
        return JobFilter(
            states=states or ("",),
            owner=self.user or None,
            tenant=tenant,
            queue=self.queue or None,
            name=self.name,
            labels=self.labels,
            text=text,
            limit=limit,
        )


def _has(labels: Sequence[tuple[str, str]], key: str, value: str | None) -> bool:
    return any(key == known and value in (None, has) for known, has in labels)


def wanted(parameters: dict[str, str]) -> QueueFilter:
    """What the parameters of an address ask for."""
    names = ("user", "label", "state", "queue", "name")
    return QueueFilter(**{name: parameters.get(name, "").strip()[:MOST] for name in names})
