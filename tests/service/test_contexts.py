"""Contexts and login: which service is meant, as whom, and what is kept of it."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.guarded import Guarded
from wattherd.cli.main import main
from wattherd.errors import UserError
from wattherd.library.contexts import chosen
from wattherd.server.auth.caller import Role

Say = Callable[..., tuple[int, str, str]]
SECRET = "s3cr3t-of-somebody"
ENVIRONMENT = ("WATTHERD_SERVER", "WATTHERD_TOKEN", "WATTHERD_TOKEN_FILE", "WATTHERD_CA")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    site = Guarded(tmp_path_factory.mktemp("site") / "state")
    site.let_in("ann", Role.USER, "a")
    site.let_in("boss", Role.ADMIN)
    yield site
    site.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "wattherd"


@pytest.fixture
def say(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    def typed(*words: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(left.value.code or 0), said.out, said.err

    return typed


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_whoever_logs_in_is_known_from_then_on(say: Say, site: Guarded, home: Path) -> None:
    token = site.tokens["ann"]
    code, said, _ = say("login", site.url, "--context", "lab", stdin=f"{token}\n")
    assert (code, said) == (0, f"context lab: {site.url} as ann, user\n")
    assert say("queue", "-o", "json")[0] == 0
    told = json.loads(say("context", "-o", "json")[1])
    assert (told["server"], told["server_from"]) == (site.url, "context lab")
    assert (told["name"], told["token_from"]) == ("lab", "context lab")
    for file in (home / "config.yaml", home / "tokens" / "lab"):
        assert mode(file) == 0o600
    assert (mode(home), mode(home / "tokens")) == (0o700, 0o700)
    everything = say("context")[1] + say("context", "list")[1] + (home / "config.yaml").read_text()
    assert token not in everything
    assert sorted(one.name for one in home.rglob("*")) == ["config.yaml", "lab", "tokens"]


def test_a_wrong_token_is_not_kept(say: Say, site: Guarded, home: Path) -> None:
    code, _, err = say("login", site.url, stdin="wrong\n")
    assert (code, SECRET in err) == (5, False)
    assert say("login", site.url)[0] == 2  # none was given
    assert say("login", site.url, stdin="a b")[0] == 2
    assert say("login", "http://127.0.0.1:1")[0] == 4
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["gpus.example.org"], "ADDRESS"),
        ([f"http://ann:{SECRET}@127.0.0.1:1"], "ADDRESS"),
        ([f"http://127.0.0.1:1/?token={SECRET}"], "ADDRESS"),
        ([], "ADDRESS"),
        (["http://127.0.0.1:1", "--context", "a/b"], "--context"),
        (["http://127.0.0.1:1", "--context", "../b"], "--context"),
    ],
)
def test_what_is_no_address_or_name_is_refused(say: Say, words: list[str], field: str) -> None:
    code, _, err = say("login", *words)
    assert (code, f"{field}: " in err, "hint:" in err) == (2, True, True)


def test_no_token_is_taken_from_the_command_line(say: Say, site: Guarded) -> None:
    assert say("login", site.url, site.tokens["ann"])[0] == 2
    assert say("login", site.url, "--token", site.tokens["ann"])[0] == 2


def two(home: Path) -> None:
    (home / "tokens").mkdir(parents=True, exist_ok=True)
    for name in ("one", "two"):
        (home / "tokens" / name).write_text(f"token-{name}\n")
        (home / "tokens" / name).chmod(0o600)
    contexts = {
        name: {"server": f"http://{name}.example:1", "token_file": f"tokens/{name}"}
        for name in ("one", "two")
    }
    (home / "config.yaml").write_text(yaml.safe_dump({"use": "one", "contexts": contexts}))


ONE, TWO, THREE = (f"http://{name}.example:1" for name in ("one", "two", "three"))


@pytest.mark.parametrize(
    ("option", "server", "token", "wanted"),
    [
        ("", "", "", (ONE, "token-one", "context one")),
        ("", "", "env", (ONE, "token-one", "context one")),  # it may be another service's
        ("", "two", "", (TWO, "token-two", "WATTHERD_SERVER")),
        ("", TWO, "", (TWO, "token-two", "WATTHERD_SERVER")),
        ("", TWO, "env", (TWO, "env", "WATTHERD_SERVER")),
        ("", THREE, "", (THREE, "", "WATTHERD_SERVER")),
        ("one", "two", "", (ONE, "token-one", "--server")),
        ("two", "", "env", (TWO, "token-two", "--server")),
        (TWO, "one", "", (TWO, "token-two", "--server")),
        (f"{TWO}/", "", "", (TWO, "token-two", "--server")),
        (THREE, "", "", (THREE, "", "--server")),
        (THREE, "one", "env", (THREE, "", "--server")),  # it is of the service called one
        (THREE, "nobody", "env", (THREE, "", "--server")),
        (THREE, "", "env", (THREE, "env", "--server")),
        (f"{ONE}/", "one", "env", (ONE, "env", "--server")),
        ("one", "one", "env", (ONE, "token-one", "--server")),
        ("two", "one", "env", (TWO, "token-two", "--server")),
        ("http://one.example:2", "", "", ("http://one.example:2", "", "--server")),
        ("http://one.example:1.evil", "", "", ("http://one.example:1.evil", "", "--server")),
        ("https://one.example:1", "", "", ("https://one.example:1", "", "--server")),
    ],
)
def test_option_before_environment_before_context_and_no_token_strays(
    home: Path, monkeypatch: pytest.MonkeyPatch, option: str, server: str, token: str,
    wanted: tuple[str, str, str],
) -> None:  # fmt: skip
    two(home)
    for name, value in (("WATTHERD_SERVER", server), ("WATTHERD_TOKEN", token)):
        if value:
            monkeypatch.setenv(name, value)
    found = chosen(option or None)
    assert (found.server, found.token, found.server_from) == wanted


def test_without_anything_it_is_this_machine(home: Path) -> None:
    found = chosen(None)
    assert (found.server, found.token, found.server_from) == (
        "http://127.0.0.1:8700", "", "this machine",
    )  # fmt: skip


@pytest.mark.parametrize("permission", [0o640, 0o604, 0o644, 0o620])
def test_a_token_that_others_may_read_is_not_used(home: Path, permission: int) -> None:
    two(home)
    (home / "tokens" / "one").chmod(permission)
    with pytest.raises(UserError, match="others may read it") as told:
        chosen(None)
    assert "chmod 600" in told.value.hint
    assert "token-one" not in told.value.line()


@pytest.mark.parametrize(
    ("what", "permission"),
    [("config.yaml", 0o602), ("config.yaml", 0o666), (".", 0o777)],
)
def test_where_others_may_write_no_token_is_sent(home: Path, what: str, permission: int) -> None:
    """They could name a service of their own, to which the token would go next."""
    two(home)
    assert chosen(None).token == "token-one"
    (home / what).chmod(permission)
    with pytest.raises(UserError, match="others may write there") as told:
        chosen(None)
    assert "chmod go-w" in told.value.hint
    (home / what).chmod(permission & ~0o022)
    assert chosen(None).token == "token-one"


def test_the_group_that_may_write_is_ones_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(home)
    (home / "config.yaml").chmod(0o660)
    assert chosen(None).token == "token-one"  # as a umask of 002 leaves it
    own = os.getegid()
    monkeypatch.setattr(os, "getegid", lambda: own + 1)
    with pytest.raises(UserError, match="others may write there"):
        chosen(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_a_configuration_of_somebody_else_is_not_followed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(home)
    os.chown(home / "config.yaml", 65534, 65534)
    assert chosen(None).token == "token-one"  # root, in a container: all of it is that user's
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(UserError, match="is another user's"):
        chosen(None)


def test_contexts_are_listed_chosen_and_removed(say: Say, home: Path) -> None:
    two(home)
    assert say("context", "list", "-o", "name")[1] == "one\ntwo\n"
    assert say("context", "use", "two")[:2] == (0, f"context two: {TWO}\n")
    rows = json.loads(say("context", "list", "-o", "json")[1])["contexts"]
    assert [row["used"] for row in rows] == [False, True]
    code, _, err = say("context", "use", "tow")
    assert (code, "did you mean 'two'?" in err) == (2, True)
    assert say("context", "remove", "two")[0] == 0
    assert not (home / "tokens" / "two").exists()
    assert json.loads(say("context", "-o", "json")[1])["server_from"] == "this machine"
    assert say("queue", "--server", "two")[0] == 2


def test_a_token_file_of_the_users_own_is_never_removed(say: Say, home: Path) -> None:
    two(home)
    own = home / "mine"
    own.write_text("token\n")
    own.chmod(0o600)
    text = (home / "config.yaml").read_text().replace("tokens/two", str(own))
    (home / "config.yaml").write_text(text)
    assert say("context", "remove", "two")[0] == 0
    assert own.exists()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("use: lab\ncontexts:\n  lab:\n    sever: http://x\n", 4, "did you mean 'server'?"),
        ("use: lab\ncontexts:\n  lab:\n    server: gpus\n", 4, "is no address"),
        ("use: lab\ncontexts:\n  lab:\n    server: 8700\n", 4, "is no text"),
        ("use: lab\n", 1, "there is no context 'lab'"),
        ("contexts:\n  lab: http://x\n", 2, "holds no fields"),
        ("contexts: [lab]\n", 1, "is no table"),
        ("\ncontext: {}\n", 2, "did you mean 'contexts'?"),
        ("contexts:\n  la b:\n    server: http://x\n", 2, "is no name"),
        ("use: [\n", 2, "no YAML"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(
    say: Say, home: Path, text: str, line: int, says: str
) -> None:
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(text)
    for command in (["queue"], ["context"], ["context", "list"], ["submit", "--", "true"]):
        code, _, err = say(*command)
        assert (code, says in err, "hint:" in err) == (2, True, True), err
        assert f"config.yaml:{line}: " in err


def test_what_is_no_text_or_cannot_be_read_is_said(say: Say, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.yaml").write_bytes(b"\xff\xfe")
    assert say("queue")[0] == 2
    (home / "config.yaml").unlink()
    (home / "config.yaml").mkdir()
    code, _, err = say("queue")
    assert (code, "cannot be read" in err) == (2, True)
    (home / "config.yaml").rmdir()
    two(home)
    (home / "tokens" / "one").unlink()
    code, _, err = say("queue")
    assert (code, "wattherd login --context one" in err) == (2, True)
