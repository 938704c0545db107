"""The image's recipe, read: what it starts from, what goes in, as whom it runs."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "deploy" / "kubernetes" / "Containerfile"
TEXT = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
STEPS = [tuple(line.split(None, 1)) for line in TEXT.splitlines() if line.strip()]
LAST = STEPS[max(at for at, (word, _) in enumerate(STEPS) if word == "FROM") :]


def said(word: str, steps: list[tuple[str, ...]] = STEPS) -> list[str]:
    return [rest for first, rest in steps if first == word]


def test_every_stage_starts_from_a_digest_that_the_builder_must_give() -> None:
    starts = [each.split()[0] for each in said("FROM")]
    assert starts == ["${DEBIAN}@${DEBIAN_DIGEST}", "${DISTROLESS}@${DISTROLESS_DIGEST}"]
    assert {"DEBIAN_DIGEST", "DISTROLESS_DIGEST"} <= set(said("ARG"))  # without a default


def test_both_stages_have_one_python_and_the_last_no_shell() -> None:
    named = dict(each.split("=") for each in said("ARG") if "=" in each)
    assert named["DISTROLESS"].endswith("/distroless/python3-debian12")
    assert named["DEBIAN"].endswith("/library/debian")
    assert ["/usr/bin/python3", "-m", "venv", "/opt/wattherd"] in map(json.loads, said("RUN"))


def test_it_runs_as_somebody_by_number_who_is_not_root() -> None:
    [user] = said("USER", LAST)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_nothing_is_installed_or_fetched_in_what_is_shipped() -> None:
    assert not said("RUN", LAST)
    assert not said("ADD")
    assert [each.split()[0] for each in said("COPY", LAST)] == ["--from=build"]


def test_what_it_copies_exists_and_is_let_in() -> None:
    let_in = (REPOSITORY / ".containerignore").read_text().split()
    for copy in said("COPY", STEPS[: len(STEPS) - len(LAST)]):
        for source in shlex.split(copy)[:-1]:
            assert (REPOSITORY / source).exists(), source
            assert f"!{source.removeprefix('./')}" in let_in


def test_what_it_installs_are_extras_that_exist() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    [installed] = re.findall(r'"\.\[([\w,-]+)\]"', TEXT)
    assert set(installed.split(",")) <= set(extras["optional-dependencies"])


def test_commands_are_lists_which_need_no_shell() -> None:
    for word in ("RUN", "ENTRYPOINT", "CMD"):
        assert all(isinstance(json.loads(each), list) for each in said(word))
    [entry] = said("ENTRYPOINT", LAST)
    assert json.loads(entry)[0].startswith("/")
