"""What operators did at work outlives a restart, until the configuration is edited; both is told.

And a configuration that cannot work leaves nothing behind that keeps a good one from working.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.cli.serve import listener_of
from wattherd.errors import UserError
from wattherd.model.event import BudgetChanged, DeviceDrained, QueueStopped, TenantLimited
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.api.listening import check_listening, tls_of
from wattherd.server.app import desk_of
from wattherd.server.settings.config import ServeConfig, read_config
from wattherd.server.site.site import LiveSite, open_site

pytestmark = pytest.mark.long

MOST_S = 30.0
OLD = Path(__file__).parent / "old_states" / "schema-0003.tar.gz"


@contextlib.contextmanager
def serving(state: Path, **config: Any) -> Iterator[LiveSite]:
    site = open_site(ServeConfig.model_validate({"state": state, "slots": 2, **config}))
    try:
        yield site
    finally:
        site.close()


def budget(site: LiveSite) -> float | None:
    return site.look(lambda look: look.core.budgets.by_source.get("", {}).get(""))


def set_budget(site: LiveSite, budget_w: float | None) -> None:
    site.keeper.post(BudgetChanged(at_s=0.0, budget_w=budget_w), by="ann").result(MOST_S)


def notes(site: LiveSite, about: str) -> list[str]:
    return [note for note in site.notes if note.startswith(f"{about}:")]


def test_a_budget_set_at_work_outlives_restarts_with_the_same_configuration(tmp_path: Path) -> None:
    with serving(tmp_path, budget="9W") as site:
        assert (budget(site), notes(site, "budget")) == (9.0, [])
        set_budget(site, 6.0)
    for _ in range(2):
        with serving(tmp_path, budget="9W") as site:
            assert budget(site) == 6.0
            (note,) = notes(site, "budget")
            assert note.startswith("budget: 6 W holds, as ann set it on 2")
            assert "configuration still says 9 W" in note


def test_an_edited_configuration_holds_and_says_what_it_takes_the_place_of(tmp_path: Path) -> None:
    with serving(tmp_path, budget="9W") as site:
        set_budget(site, 6.0)
    with serving(tmp_path, budget="8W") as site:
        assert budget(site) == 8.0
        (note,) = notes(site, "budget")
        assert note.startswith("budget: 8 W from the configuration takes the place of 6 W: it was")
        set_budget(site, 7.0)
    with serving(tmp_path, budget="8.0 W") as site:
        assert budget(site) == 7.0


def test_an_edit_to_what_was_set_at_work_is_an_edit_too(tmp_path: Path) -> None:
    with serving(tmp_path, budget="9W") as site:
        set_budget(site, 6.0)
    with serving(tmp_path, budget="6W") as site:
        assert (budget(site), notes(site, "budget")) == (6.0, [])
        set_budget(site, 5.0)
    with serving(tmp_path, budget="6W") as site:
        assert budget(site) == 5.0


def test_a_limit_that_was_lifted_at_work_stays_lifted(tmp_path: Path) -> None:
    with serving(tmp_path, budget="9W") as site:
        set_budget(site, None)
    with serving(tmp_path, budget="9W") as site:
        assert budget(site) is None
        assert "no limit holds" in notes(site, "budget")[0]


def test_a_budget_that_is_configured_no_longer_stays_and_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, budget="9W"):
        pass
    with serving(tmp_path) as site:
        assert budget(site) == 9.0
        assert "configured no longer" in notes(site, "budget")[0]


def test_a_store_of_an_earlier_version_tells_an_edit_from_its_journal(tmp_path: Path) -> None:
    """There `power set 6W` came after a configured 9 W."""
    for config, holds in (("9W", 6.0), ("8W", 8.0)):
        state = tmp_path / config
        state.mkdir()
        with tarfile.open(OLD) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
            packed.extractall(state)
        with serving(state, policy="capacity", queues=QUEUES, budget=config) as site:
            assert budget(site) == holds
            assert len(notes(site, "budget")) == 1


def test_signals_set_at_work_follow_the_same_rule(tmp_path: Path) -> None:
    def plan(name: str, limit: str) -> Path:
        path = tmp_path / name
        path.write_text(f"at,limit\n00:00,{limit}\n")
        return path

    state, first = tmp_path / "state", plan("first.csv", "9W")
    with serving(state, schedule=first) as site:
        assert notes(site, "signals") == []
        site.signals.set_signals([f"schedule:{plan('second.csv', '6W')}"])
    with serving(state, schedule=first) as site:
        assert "second.csv" in notes(site, "signals")[0]
        assert "first.csv" in notes(site, "signals")[0]
        assert "second.csv" in str(site.signals.told()["signals"])
    plan("first.csv", "8W")
    with serving(state, schedule=first) as site:
        assert "take the place of those set at work" in notes(site, "signals")[0]
        assert "first.csv" in str(site.signals.told()["signals"])
    with serving(state, schedule=first) as site:
        assert notes(site, "signals") == []
        assert "first.csv" in str(site.signals.told()["signals"])


QUEUES: dict[str, Any] = {
    "name": "root",
    "children": [
        {"name": "default", "guaranteed_pct": 50, "maximum_pct": 100},
        {"name": "night", "guaranteed_pct": 50, "maximum_pct": 100},
    ],
}


def queues(default: float) -> dict[str, Any]:
    one, other = QUEUES["children"]
    night = {**other, "guaranteed_pct": 100 - default}
    return {**QUEUES, "children": [{**one, "guaranteed_pct": default}, night]}


def share(site: LiveSite) -> float:
    found = site.look(lambda look: look.core.queues)
    return float(
        dict(found or {"children": [{"guaranteed_pct": -1}]})["children"][0]["guaranteed_pct"]
    )


def test_queues_changed_at_work_follow_the_same_rule(tmp_path: Path) -> None:
    from wattherd.model.event import QueuesChanged
    from wattherd.workload.scenario import QueueField

    changed = QueueField.model_validate(queues(30)).model_dump(mode="json")
    with serving(tmp_path, policy="capacity", queues=queues(50)) as site:
        site.keeper.post(QueuesChanged(at_s=0.0, queues=changed), by="ann").result(MOST_S)
        assert share(site) == 30.0
    with serving(tmp_path, policy="capacity", queues=queues(50)) as site:
        assert share(site) == 30.0
        assert "has not been edited since" in notes(site, "queues")[0]
    with serving(tmp_path, policy="capacity", queues=queues(60)) as site:
        assert share(site) in (60.0, -1.0)
        assert "was edited" in notes(site, "queues")[0]


def test_what_no_configuration_names_outlives_a_restart_with_another_policy(tmp_path: Path) -> None:
    with serving(tmp_path, policy="drf") as site:
        node = site.machine.node.name
        for event in (
            TenantLimited(at_s=0.0, tenant="vision", most_gpus=1),
            DeviceDrained(at_s=0.0, node=node, gpu=0, cause="fan"),
            QueueStopped(at_s=0.0, queue="night"),
        ):
            site.keeper.post(event, by="ann").result(MOST_S)
    for policy in ("drf", "fifo-backfill"):
        with serving(tmp_path, policy=policy) as site:
            found = site.look(
                lambda look: (look.core.limits, set(look.core.drained.out), set(look.core.stopped))
            )
            assert found == ({"vision": 1}, {(0, 0)}, {"night"})


# A configuration that cannot work ----------------------------------------------------------------

NONSENSE: tuple[Any, ...] = (
    "", "capcity", "-1", "-5W", "0", "1e999W", "nan", "\0", "nosuch://x", "/dev/null/x", "/proc/x",
    "99999999999", "9 parsecs", "drf:", ":", "..", "[]", "tiresias@yarn", "ipmi:", "schedule:/x",
)  # fmt: skip
HARMLESS = {"state"}
"""Another state folder is none of this one's."""


def begun(state: Path, **config: Any) -> LiveSite:
    """All that `wattherd serve` does before it answers."""
    found = read_config(None, {"state": state, "slots": 2, "port": 0, **config})
    check_listening(found, asks=not desk_of(found).open)
    tls_of(found)
    with listener_of(found):
        return open_site(found)


@pytest.mark.parametrize("field", sorted(set(ServeConfig.model_fields) - HARMLESS))
def test_nonsense_at_the_first_start_does_not_spoil_the_next(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state, refused = tmp_path / "state", 0
    for value in NONSENSE:
        for given in (value, [value], {"name": value}):
            try:
                begun(state, **{field: given}).close()
            except UserError:
                refused += 1
    assert refused or field == "kernel_log"
    site = begun(state)
    try:
        role = TaskRole(count=1, command=("/bin/true",))
        spec = JobSpec(id="new", submit_s=0.0, roles=(role,))
        job = site.keeper.submit(spec, {}, by="ann").result(MOST_S)
        assert site.look(lambda look: look.history.get(job)) is not None
    finally:
        site.close()


def test_a_state_folder_that_an_earlier_version_spoiled_is_of_use_again(tmp_path: Path) -> None:
    """It kept a policy that does not exist, and never got beyond that."""
    with serving(tmp_path) as site:
        spoiled = site.store.snapshots.settings()[0][1].replace("priority-backfill", "capcity")
        assert "capcity" in spoiled
        site.store.snapshots.begin_with(spoiled)
        assert site.store.journal.last_seq == 0
    with serving(tmp_path) as site:
        assert "capcity" not in site.store.snapshots.settings()[0][1]
