"""`wattherd power promise` and `power delivery`: files in, answers and exit codes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattherd.cli.main import main
from wattherd.errors import UserError
from wattherd.library.client import Client

LOADS = "name,draw,floor,preemptible,works\na,10kW,6kW,no,100%\nb,5000,3000,yes,1\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["power", *words])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_request_is_answered_with_watts_time_length_and_certainty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("loads.csv").write_text(LOADS)
    assert ran("promise", "loads.csv", "--other", "1kW", "--limit", "11kW", "--for", "2h",
               "-o", "json") == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "wattherd.promise/1"
    assert (found["draw_w"], found["asked_w"], found["met"]) == (16_000.0, 5_000.0, True)
    offer = found["offer"]
    assert offer["reduction_w"] == pytest.approx(6000, abs=1)
    assert (offer["from_s"], offer["for_s"], offer["sure"]) == (600.0, 7200.0, 0.95)
    assert (offer["capped"], offer["stopped"]) == (["a", "b"], [])


def test_what_cannot_be_promised_in_full_is_said_and_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("loads.csv").write_text(LOADS)
    assert ran("promise", "loads.csv", "--reduce", "20kW") == 1
    out = capsys.readouterr().out
    assert "promised  9,000 W from 10.0 min after the order, for 60.0 min" in out
    assert "which is all that can be" in out
    assert "stopped   b" in out


def test_without_a_file_the_service_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, object]]] = []
    offer = {"reduction_w": 900.0, "from_s": 60.0, "for_s": 3600.0, "sure": 0.95,
             "capped": ["j-1"], "stopped": []}  # fmt: skip

    def get(_: Client, path: str, **query: object) -> dict[str, object]:
        asked.append((path, query))
        return {"asked_w": 1e3, "draw_w": 5e3, "met": False, "offer": offer, "steps": [offer]}

    monkeypatch.setattr(Client, "get", get)
    assert ran("promise", "--limit", "4kW", "--in", "1min") == 1
    assert asked == [("power/promise", {"limit": "4kW", "in": "1min", "for": "1h", "sure": "95%"})]
    assert "promised  900 W from " in capsys.readouterr().out
    assert ran("promise", "--limit", "4kW", "--tree", "tree.yaml") == 2


def test_losses_of_a_tree_count(capsys: pytest.CaptureFixture[str]) -> None:
    Path("loads.csv").write_text("name,domain,draw,floor,works\na,n1,10kW,6kW,1\n")
    Path("tree.yaml").write_text("name: site\nloss: 0.2\nchildren: [{name: r, nodes: [n1]}]\n")
    assert ran("promise", "loads.csv", "--reduce", "1kW", "--tree", "tree.yaml", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["draw_w"] == pytest.approx(12_500)
    assert found["offer"]["reduction_w"] == pytest.approx(5_000, abs=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,draw\na,1kW\n", "loads.csv:2: floor: is missing"),
        ("name,draw,floor,colour\n", "loads.csv:1: colour: unknown column"),
        ("name,draw,floor\na,1kW\n", "has not as many fields"),
        ("name,draw,floor\na,x,1\n", "loads.csv:2: draw: 'x' is no power"),
        ("name,draw,floor,works\na,1,1,150%\n", "loads.csv:2: works: 1.5 is no share"),
        ("name,draw,floor,preemptible\na,1,1,maybe\n", "preemptible: 'maybe' is neither"),
        ("name,draw,floor\na,1,1\na,1,1\n", "name: 'a' is there twice"),
        ("name,draw,floor\n", "has no loads"),
    ],
)
def test_loads_that_cannot_be_used_name_their_line(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("loads.csv").write_text(text)
    assert ran("promise", "loads.csv", "--reduce", "1kW") == 2
    assert said in capsys.readouterr().err


def test_a_delivery_is_proved_from_a_meters_record(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"2030-06-05T{16 + n // 60}:{n % 60:02}:00Z,{9000 if n < 123 else 6000}"
            for n in range(180)]  # fmt: skip
    Path("meter.csv").write_text("time,power_w\n" + "\n".join(rows) + "\n")
    window = ["--start", "2030-06-05T18:00:00Z", "--end", "2030-06-05T19:00:00Z"]
    assert ran("delivery", "meter.csv", *window, "--limit", "7kW", "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "wattherd.delivery/1"
    assert found["method"] == "hour-before"
    assert found["reduction_w"] == pytest.approx((57 * 3000) / 60)
    assert (found["late_s"], found["above_s"], found["worst_w"]) == (180.0, 180.0, 2000.0)
    assert len(found["slots"]) == 4
    assert ran("delivery", "meter.csv", *window, "--limit", "7kW") == 1
    out = capsys.readouterr().out
    assert "late      3.0 min" in out
    assert "baseline  hour-before: mean of the hour that ended at 2030-06-05T17:45:00+00:00" in out
    later = ["--start", "2030-06-05T18:03:00Z", "--end", "2030-06-05T18:30:00Z"]
    assert ran("delivery", "meter.csv", *later, "--reduce", "2kW") == 0


def test_without_a_file_the_service_proves_what_it_drew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, object]]] = []
    slot = {"start_s": 1.9e9, "end_s": 1.9e9 + 900, "baseline_w": 9e3, "target_w": 7e3,
            "draw_w": None, "reduction_w": None, "seen": 0.1}  # fmt: skip
    answer = {"method": "hour-before", "basis": "mean of an hour", "reduction_w": 1900.0,
              "asked_w": 2000.0, "performance": 0.95, "energy_j": 6.84e6, "late_s": None,
              "above_s": 12.0, "unseen_s": 0.0, "worst_w": 100.0, "slots": [slot]}  # fmt: skip

    def get(_: Client, path: str, **query: object) -> dict[str, object]:
        asked.append((path, query))
        return answer

    monkeypatch.setattr(Client, "get", get)
    window = ["--start", "2030-06-05T18:00:00Z", "--end", "2030-06-05T19:00:00Z"]
    assert ran("delivery", *window, "--limit", "7kW", "--event-day", "2030-06-04") == 1
    assert asked == [("power/delivery", {
        "start": window[1], "end": window[3], "limit": "7kW", "baseline": "hour-before",
        "zone": "UTC", "event_day": ["2030-06-04"],
    })]  # fmt: skip
    out = capsys.readouterr().out
    assert "delivered 1,900 W on average, 95% of the 2,000 W asked for" in out
    assert "never kept" in out
    answer |= {"above_s": 0.0}
    answer["event"] = {
        "id": "evt-7", "source": "openadr3+https://vtn", "limit_w": 7e3, "start_s": 1.9e9,
        "end_s": 1.9e9 + 900, "announced_s": 1.9e9 - 60, "cancelled": True,
    }  # fmt: skip
    assert ran("delivery", "--event", "evt-7") == 0
    assert asked[-1][1] == {"event": "evt-7", "baseline": "hour-before", "zone": "UTC"}
    said = "event     evt-7 of openadr3+https://vtn: at most 7,000 W from 2030-03-17 17:46"
    assert said in capsys.readouterr().out
    assert ran("delivery") == 0
    assert asked[-1][1] == {"baseline": "hour-before", "zone": "UTC"}
    assert ran("delivery", *window, "--reduce", "2kW") == 0
    assert ran("delivery", *window, "--reduce", "2kW", "--column", "w") == 2


def test_a_services_hint_names_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def get(*_: object, **__: object) -> None:
        raise UserError("too few readings in the hour before", hint="take baseline=ten-in-ten")

    monkeypatch.setattr(Client, "get", get)
    assert ran("delivery") == 2
    assert "hint: take --baseline ten-in-ten" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--event", "evt-7", "--limit", "7kW"),
        ("--limit", "7kW"),
        ("--start", "2030-06-05T18:00:00Z", "--limit", "7kW"),
    ],
)
def test_a_meters_record_knows_no_events(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("meter.csv").write_text("time,watts\n1,2\n2,2\n")
    assert ran("delivery", "meter.csv", *arguments) == 2
    assert "hint: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when,watts\n1,2\n", "no such column"),
        ("time,watts\nnoon,2\n", "meter.csv:2: 'noon' is no time"),
        ("time,watts\n1,x\n", "meter.csv:2: watts: 'x' is no power"),
        ("time,watts\n2,1\n1,1\n", "meter.csv: time: times do not ascend"),
        ("time,watts\n1,1\n2,1\n", "too few readings in the hour before"),
    ],
)
def test_records_that_cannot_be_used_are_refused(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("meter.csv").write_text(text)
    window = ["--start", "2030-06-05T18:00:00Z", "--end", "2030-06-05T19:00:00Z"]
    assert ran("delivery", "meter.csv", *window, "--limit", "7kW") == 2
    assert said in capsys.readouterr().err
