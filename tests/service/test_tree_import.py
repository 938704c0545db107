"""`wattherd power tree`: imports from servers and files, second imports, drawings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dcim_server import Dcim, Rows, first_generation, nautobot, netbox, serving
from wattherd.cli.main import main
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.workload.dcim.fetch import fetch
from wattherd.workload.tree_file import read_tree

ROLE = ["--role", "gpu-server"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["power", "tree", *words])
    assert isinstance(end.value.code, int)
    return end.value.code


def told(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    out, err = capsys.readouterr()
    return out.splitlines(), err


def answers(rows: Rows, name: str = "answers.json") -> str:
    Path(name).write_text(json.dumps(rows))
    return name


# --- from a server ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "rows", "token", "header"),
    [
        ("netbox", netbox(), "nbt_abc.def", "Bearer nbt_abc.def"),
        ("netbox", first_generation(netbox()), "0123abcd", "Token 0123abcd"),
        ("nautobot", nautobot(netbox()), "0123abcd", "Token 0123abcd"),
    ],
    ids=["netbox-4", "netbox-2", "nautobot-2"],
)
def test_a_server_is_read_page_by_page_with_its_kind_of_token(
    system: str, rows: Rows, token: str, header: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("secret.yaml").write_text(f"token: {token}\n")
    server = Dcim(rows, most=3, token=header)
    with serving(server) as address:
        assert ran("import", system, f"{address}/?credentials=secret.yaml", *ROLE) == 0
    out, err = told(capsys)
    assert out == ["tree.yaml: 3 domains, 4 nodes"]
    assert token not in err + Path("tree.yaml").read_text() + Path("tree.import.json").read_text()
    tree = read_tree(Path("tree.yaml"))
    assert [(one.name, one.budget_w) for one in tree.domains] == [
        ("DC 1", None), ("R1", 17736.0), ("R2", 17736.0),
    ]  # fmt: skip
    assert sum("offset=3" in path for path, _ in server.seen) >= 4


def test_a_token_stays_with_the_server_that_was_named() -> None:
    server = Dcim(netbox(), most=2, outside="http://192.0.2.1:1")
    with serving(server) as address:
        found = fetch(address, nautobot=False)
    assert len(found.answers["devices"]) == 8


def test_a_server_that_asks_for_patience_gets_it() -> None:
    slept: list[float] = []
    server = Dcim(netbox(), busy=["7", "Wed, 21 Oct 2026 07:28:00 GMT", "1.5"])
    with serving(server) as address:
        found = fetch(address, nautobot=False, sleep=slept.append)
    assert slept == [1.5, 2.0, 7.0]
    assert len(found.answers["racks"]) == 2


def test_patience_ends(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattherd.workload.dcim.fetch.MOST_PATIENCE_S", 0.2)
    with serving(Dcim(netbox(), busy=["0.1"] * 9)) as address:
        assert ran("import", "netbox", address) == 2
    assert "HTTP 429 for longer than 0.2 s" in told(capsys)[1]


def test_lists_that_move_between_two_pages_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Dcim(netbox(), most=3, moving=True)) as address:
        assert ran("import", "netbox", address, *ROLE, "--strict") == 1
    assert "conflict: devices: changed while it was read" in told(capsys)[1]


def test_pages_that_name_themselves_as_the_next_end(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Dcim(netbox(), most=3, circle=True)) as address:
        assert ran("import", "netbox", address) == 2
    assert "a page names one before it as the next" in told(capsys)[1]


def test_a_refused_token_and_a_wrong_path_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Dcim(netbox(), token="Token right")) as address:
        assert ran("import", "netbox", address) == 1
        assert "refused: /api/dcim/sites/" in told(capsys)[1]
    with serving(Dcim(netbox(), missing=("racks",))) as address, pytest.raises(DeviceError) as e:
        fetch(address, nautobot=False)
    assert "racks" in str(e.value)


def test_what_a_server_answered_can_be_kept_and_read_again() -> None:
    with serving(Dcim(netbox())) as address:
        assert ran("import", "netbox", address, *ROLE, "--save", "kept.json") == 0
    first = Path("tree.yaml").read_text()
    Path("tree.yaml").unlink()
    assert ran("import", "netbox", "kept.json", *ROLE) == 0
    assert Path("tree.yaml").read_text() == first


def test_a_folder_of_pages_is_read_as_well() -> None:
    Path("pages").mkdir()
    for name, rows in netbox().items():
        page = {"count": len(rows), "next": None, "results": rows}
        Path(f"pages/dcim_{name.replace('-', '_')}.json").write_text(json.dumps([page]))
    assert ran("import", "netbox", "pages", *ROLE) == 0
    assert len(read_tree(Path("tree.yaml")).domains) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is no JSON"),
        ("[]", "is no mapping of lists"),
        ('{"things": []}', "has none of the lists"),
        ('{"devices": 3}', "devices: is no list of rows"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_files_that_are_no_answers_are_refused_in_a_line(
    content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_text(content)
    assert ran("import", "netbox", "bad.json") == 2
    assert said in told(capsys)[1]


# --- again -----------------------------------------------------------------------------------


def test_a_second_import_shows_the_difference_and_keeps_edits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = netbox()
    assert ran("import", "netbox", answers(rows), *ROLE) == 0
    assert ran("import", "netbox", answers(rows), *ROLE, "--diff") == 0
    assert told(capsys)[0][-1] == "tree.yaml: as the inventory says"

    tree = yaml.safe_load(Path("tree.yaml").read_text())
    tree["children"][0]["budget"] = "15kW"
    Path("tree.yaml").write_text("# ours\n" + yaml.safe_dump(tree))
    assert ran("import", "netbox", answers(rows), *ROLE, "--diff") == 0  # only we have changed

    for feed in rows["power-feeds"]:
        feed["amperage"] = 16
    rows["devices"] = [one for one in rows["devices"] if one["name"] != "gpu-22"]
    before = Path("tree.yaml").read_text()
    assert ran("import", "netbox", answers(rows), *ROLE, "--diff") == 1
    assert Path("tree.yaml").read_text() == before
    out, _ = told(capsys)
    assert out[1:] == [
        "= R1 budget: 15kW stays, as edited; the inventory says 8868",
        "~ R2 budget: 17736 -> 8868",
        "~ R2 nodes: ['gpu-21', 'gpu-22'] -> ['gpu-21']",
    ]
    assert ran("import", "netbox", answers(rows), *ROLE) == 0
    assert Path("tree.yaml").read_text().startswith("# ours\n")
    found = {one.name: one for one in read_tree(Path("tree.yaml")).domains}
    assert (found["R1"].budget_w, found["R2"].budget_w) == (15000.0, 8868.0)
    assert found["R2"].nodes == ("gpu-21",)


def test_a_tree_that_was_never_imported_is_not_mixed_with_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("tree.yaml").write_text("name: ours\nchildren: [{name: a, nodes: [gpu-11]}]\n")
    before = Path("tree.yaml").read_text()
    assert ran("import", "netbox", answers(netbox()), *ROLE) == 2
    assert "is another tree, of 'ours'; the inventory has 'DC 1'" in told(capsys)[1]
    assert Path("tree.yaml").read_text() == before


def test_the_document_has_tree_changes_findings_and_where_limits_come_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ran("import", "netbox", answers(netbox()), *ROLE, "-o", "json") == 0
    document = json.loads(told(capsys)[0][0])
    assert document["schema"] == "wattherd.tree-import/1"
    rack = next(one for one in document["domains"] if one["name"] == "R1")
    assert rack["limits"] == [
        "R1-A: 17.7362 kW = 400 V x 32 A x 0.8 x sqrt 3",
        "R1-B: 17.7362 kW = 400 V x 32 A x 0.8 x sqrt 3",
    ]
    assert {one["about"] for one in document["findings"]} == {"assumed", "unknown"}


def test_a_tree_that_was_imported_is_one_that_simulations_take() -> None:
    rows = netbox()
    for one in rows["devices"]:
        if one["name"].startswith("gpu-"):
            number = {"gpu-11": 0, "gpu-12": 1, "gpu-21": 2, "gpu-22": 3}[one["name"]]
            one["name"] = f"node-0000{number}"
    assert ran("import", "netbox", answers(rows), *ROLE) == 0
    Path("jobs.csv").write_text("id,submit_s,gpus,duration_s\nj1,0,4,60\nj2,0,8,60\n")
    with pytest.raises(SystemExit) as end:
        main(["sim", "run", "--jobs", "jobs.csv", "--format", "native", "--preset", "none",
              "--cluster", "4x8:V100M16", "--policy", "fifo", "--power", "uniform",
              "--tree", "tree.yaml"])  # fmt: skip
    assert end.value.code == 0


# --- drawing ---------------------------------------------------------------------------------

TREE = """
name: site
budget: "0:10kW,1h:4kW"
loss: 0.05
children:
- {name: a, level: rack, budget: 6kW, nodes: [n1, n2]}
- {name: b, level: rack, budget: 3kW, nodes: [n3]}
"""


def test_every_domain_is_drawn_with_limit_draw_and_headroom(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("t.yaml").write_text(TREE)
    Path("draw.csv").write_text("name,watts\nn1,2000\nn2,1.8kW\nn3,1900\n")
    assert ran("t.yaml", "--draw", "draw.csv") == 0
    out, _ = told(capsys)
    assert [line.split() for line in out[1:]] == [
        ["site", "10.0", "kW", "6,000", "W", "4,000", "W", "4,000", "W", "60%"],
        ["├─", "a", "rack", "6,000", "W", "3,800", "W", "2,200", "W", "2,200", "W", "63%"],
        ["│", "├─", "n1", "node", "-", "2,000", "W", "-", "2,200", "W", "-"],
        ["│", "└─", "n2", "node", "-", "1,800", "W", "-", "2,200", "W", "-"],
        ["└─", "b", "rack", "3,000", "W", "1,900", "W", "1,100", "W", "1,100", "W", "63%"],
        ["└─", "n3", "node", "-", "1,900", "W", "-", "1,100", "W", "-"],
    ]


def test_a_limit_above_takes_from_what_is_free_below_and_one_exceeded_is_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("t.yaml").write_text(TREE)
    Path("draw.json").write_text('{"a": 1000, "b": 2900.5}')
    assert ran("t.yaml", "--draw", "draw.json", "--at", "1h", "-o", "json") == 1
    rows = {one["name"]: one for one in json.loads(told(capsys)[0][0])["rows"]}
    site_w = (1000 + 2900.5) / 0.95
    assert rows["site"]["draw_w"] == pytest.approx(site_w)
    assert rows["site"]["over"]
    assert rows["b"]["headroom_w"] == pytest.approx(99.5)
    assert rows["b"]["free_w"] == pytest.approx((4000 - site_w) * 0.95)


def test_a_reading_that_is_missing_makes_sums_the_least_they_can_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("t.yaml").write_text(TREE)
    Path("draw.csv").write_text("n1,2000\n")
    assert ran("t.yaml", "--draw", "draw.csv", "--levels", "2") == 0
    out, _ = told(capsys)
    assert ">= 2,105 W" in out[1]
    assert ">= 2,000 W" in out[2]
    assert out[3].split() == [
        "└─",
        "b",
        "rack",
        "3,000",
        "W",
        "-",
        "<=",
        "3,000",
        "W",
        "<=",
        "3,000",
        "W",
        "-",
    ]


def test_meters_are_read_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.yaml").write_text(TREE)
    Path("trace.csv").write_text("time_s,power_w\n0,1234\n60,1234\n")
    lost = "prom+http://127.0.0.1:9/?query=x"
    Path("meters.yaml").write_text(f"a: 'replay:trace.csv'\nb: '{lost}'\n")
    assert ran("t.yaml", "--meters", "meters.yaml") == 1
    out, err = told(capsys)
    assert "1,234 W" in out[2]
    assert "b: " in err
    assert "unreachable" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("n1,x\n", "draw.csv:1: watts: 'x' is no power"),
        ("n1,1,2\n", "draw.csv:1: is not `name,watts`"),
        ("n9,1\n", "n9: is neither a domain nor a node"),
        ('{"n1": true}', "n1: watts: True is no power"),
        ("{", "is no JSON"),
    ],
)
def test_readings_that_cannot_be_used_name_their_line(
    content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.yaml").write_text(TREE)
    Path("draw.csv").write_text(content)
    assert ran("t.yaml", "--draw", "draw.csv") == 2
    assert said in told(capsys)[1]
