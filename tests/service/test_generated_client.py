"""A client that openapi-python-client makes of our document: whole, and of use.

The generator drops what it does not understand of a document and goes on, with a warning.
"""

from __future__ import annotations

import compileall
import contextlib
import copy
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("openapi_python_client", reason="openapi-python-client is not installed")

from service.guarded import Guarded
from wattherd.server.api.openapi import operations
from wattherd.server.app import api
from wattherd.server.auth.caller import Role

pytestmark = pytest.mark.long
PACKAGE = "made_client"
RUN = ("-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning")


class Made(Protocol):
    """The generated package, by dotted names."""

    def __call__(self, name: str) -> Any: ...


Clients = Callable[[str], Any]


def generated(document: str, folder: Path) -> str:
    """What the generator says of a document."""
    (folder / "openapi.json").write_text(document)
    (folder / "config.yml").write_text("post_hooks: []\n")  # it would format what it has made
    done = subprocess.run(
        [sys.executable, *RUN, "--config", "config.yml", "--path", "openapi.json",
         "--output-path", PACKAGE],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state")
    guarded.let_in("admin", Role.ADMIN)
    guarded.let_in("user", Role.USER, "a")
    guarded.tokens["nobody"] = guarded.tokens["user"][:-1] + "?"
    yield guarded
    guarded.close()


@pytest.fixture(scope="module")
def folder(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    document = guarded.ask("GET", "/api/v1/openapi.json", "admin").text
    said = generated(document, folder)
    assert "WARNING" not in said
    assert "Unable" not in said
    return folder


@pytest.fixture
def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.syspath_prepend(folder)

    def find(name: str) -> ModuleType:
        return importlib.import_module(f"{PACKAGE}.{name}")

    yield find
    for name in [one for one in sys.modules if one.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def clients(guarded: Guarded, made: Made) -> Iterator[Clients]:
    """One by the name of who asks; all are closed afterwards."""
    with contextlib.ExitStack() as opened:

        def client(who: str) -> Any:
            token = guarded.tokens[who]
            made_client = made("client").AuthenticatedClient(base_url=guarded.url, token=token)
            return opened.enter_context(made_client)

        yield client


def test_every_operation_is_a_function_with_all_its_answers(folder: Path, made: Made) -> None:
    assert compileall.compile_dir(str(folder / PACKAGE), quiet=1)
    for one in pkgutil.walk_packages([str(folder / PACKAGE)]):
        made(one.name)
    for method, path, operation in operations(api().openapi()):
        name, tag = operation["operationId"], operation["tags"][0]
        text = (folder / PACKAGE / "api" / tag.replace("-", "_") / f"{name}.py").read_text()
        assert f'"method": "{method.lower()}"' in text, path
        for status, answer in operation["responses"].items():
            assert f"response.status_code == {status}" in text, (path, status)
            for content in answer["content"].values():
                shape = content["schema"].get("$ref", "").rpartition("/")[2]
                assert f"{shape}.from_dict" in text or not shape, (path, status)


def test_it_talks_to_a_running_service(guarded: Guarded, made: Made, clients: Clients) -> None:
    models = made("models")
    client = clients("user")
    caller = made("api.whoami.get_caller").sync(client=client)
    assert (caller.role, caller.tenant) == ("user", "a")

    job = models.JobFile(run="echo hello", name="by-hand")
    answer = made("api.jobs.submit_job").sync_detailed(client=client, body=job)
    assert int(answer.status_code) == 201
    assert isinstance(answer.parsed, models.JobDocument)
    found = answer.parsed.id

    def state() -> str:
        return str(made("api.jobs.get_job").sync(found, client=client).state)

    guarded.until(lambda: state() == "Succeeded")
    listed = made("api.jobs.list_jobs").sync(client=client, over=True)
    assert [one.name for one in listed.jobs] == ["by-hand"]
    assert made("api.jobs.get_job_logs").sync(found, client=client) == "hello\n"
    for name, kind in (
        ("nodes.list_nodes", models.NodesDocument),
        ("power.get_power", models.PowerDocument),
        ("queues.list_queues", models.QueuesDocument),
        ("health.get_health", models.HealthDocument),
    ):
        assert isinstance(made(f"api.{name}").sync(client=client), kind), name


def test_its_errors_are_objects_with_a_hint(made: Made, clients: Clients) -> None:
    models = made("models")
    client = clients("user")
    missing = made("api.jobs.get_job").sync_detailed("j-99", client=client)
    assert int(missing.status_code) == 404
    assert isinstance(missing.parsed, models.ProblemDetails)
    assert missing.parsed.detail == "no job 'j-99'"
    assert missing.parsed.hint == "`wattherd history` lists all"
    wrong = made("api.jobs.submit_job").sync(client=client, body=models.JobFile(run="x", gpus=-1))
    assert isinstance(wrong, models.ProblemDetails)
    assert (wrong.status, wrong.field) == (422, "gpus")
    assert made("api.jobs.list_jobs").sync(client=clients("nobody")).status == 401


def test_two_shapes_of_one_name_fail_here(tmp_path: Path) -> None:
    """So it was of queues: five operations had lost their answer."""
    document = copy.deepcopy(api().openapi())
    shapes = document["components"]["schemas"]
    shapes["QueueField-Output"] = shapes["QueueField"]
    shapes["QueuesDocument"]["properties"]["tree"] = {
        "anyOf": [{"$ref": "#/components/schemas/QueueField-Output"}, {"type": "null"}]
    }
    with pytest.raises(AssertionError, match="duplicate models"):
        generated(json.dumps(document), tmp_path)
