"""Kubeconfig files and service accounts: what kubectl understands, and what is refused by name."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path

import pytest
import trustme
import yaml

from wattherd.errors import UserError
from wattherd.kube.api import identity as identities
from wattherd.kube.api.access import Access, find_access, in_cluster

EXEC = "client.authentication.k8s.io/v1"


def a_file(path: Path, *, user: dict[str, object], **cluster: object) -> Path:
    """A kubeconfig of one cluster and one user, both called `one`."""
    text = {
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "one", "user": user}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    path.write_text(yaml.safe_dump(text))
    return path


def a_program(path: Path, *, says: object, then: str = "") -> Path:
    """A program that notes what it was told and prints an ExecCredential."""
    script = f"""#!/bin/sh
printf '%s\\n' "$KUBERNETES_EXEC_INFO" >> {path}.told
cat <<'END'
{json.dumps(says)}
END
{then}
"""
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def access_of(path: Path) -> Access:
    return find_access(path)


def token_of(access: Access, *, renewed: bool = False) -> str | None:
    return access.identity.token(renewed=renewed)


# --- files ---------------------------------------------------------------------------------------


def test_a_token_an_authority_and_a_namespace_are_read(tmp_path: Path) -> None:
    authority = trustme.CA().cert_pem.bytes()
    data = base64.b64encode(authority).decode()
    path = a_file(tmp_path / "config", user={"token": "t"}, **{"certificate-authority-data": data})
    access = access_of(path)
    assert (access.server, access.namespace) == ("https://10.0.0.1:6443", "default")
    assert token_of(access) == "t"
    assert access.tls is not None
    assert len(access.tls.get_ca_certs()) == 1


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    authority = trustme.CA()
    mine = authority.issue_cert("user.test")
    folder = tmp_path / "deep"
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    mine.cert_chain_pems[0].write_to_path(folder / "me.crt")
    mine.private_key_pem.write_to_path(folder / "me.key")
    user: dict[str, object] = {"client-certificate": "me.crt", "client-key": "me.key"}
    access = access_of(a_file(folder / "config", user=user, **{"certificate-authority": "ca.crt"}))
    assert access.tls is not None
    assert token_of(access) is None


def test_files_of_the_environment_are_merged_and_the_first_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_file(tmp_path / "first", user={"token": "first"})
    second = a_file(tmp_path / "second", user={"token": "second"})
    text = yaml.safe_load(second.read_text())
    text["users"].append({"name": "two", "user": {"token": "two"}})
    context = {"cluster": "one", "user": "two", "namespace": "lab"}
    text["contexts"].append({"name": "two", "context": context})
    second.write_text(yaml.safe_dump(text))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(first), "/nowhere", str(second)]))
    assert token_of(find_access()) == "first"
    other = find_access(context="two")
    assert (token_of(other), other.namespace) == ("two", "lab")


def test_whoever_acts_as_somebody_says_so_in_headers(tmp_path: Path) -> None:
    user: dict[str, object] = {"token": "t", "as": "ada", "as-groups": ["lab", "night"]}
    assert access_of(a_file(tmp_path / "config", user=user)).headers == (
        ("Impersonate-User", "ada"),
        ("Impersonate-Group", "lab"),
        ("Impersonate-Group", "night"),
    )


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider: not supported"),
        ({"username": "ada", "password": "x"}, {}, "username: not supported"),
        ({"exec": {"command": "x", "apiVersion": "v0"}}, {}, "exec.apiVersion: v0 is not spoken"),
        (
            {"exec": {"command": "x", "apiVersion": EXEC, "interactiveMode": "Always"}},
            {},
            "exec.interactiveMode: the program needs a terminal",
        ),
        ({}, {"server": "10.0.0.1"}, "server: '10.0.0.1' is no https://HOST:PORT"),
        ({}, {"certificate-authority": "absent"}, "certificate-authority: cannot read absent"),
        ({}, {"certificate-authority-data": "?"}, "certificate-authority-data: no base64"),
        ({}, {"certificate-authority-data": "eA=="}, "certificate-authority: no certificate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], said: str
) -> None:
    path = a_file(tmp_path / "config", user=user, **cluster)
    with pytest.raises(UserError) as error:
        access_of(path)
    assert str(error.value).startswith(f"{path}: {said}")


def test_secrets_are_in_no_message_and_no_representation(tmp_path: Path) -> None:
    path = a_file(tmp_path / "config", user={"token": "top-secret"})
    assert "top-secret" not in repr(access_of(path))
    path.write_text(path.read_text().replace("token: top-secret", "token: [top-secret]"))
    with pytest.raises(UserError) as error:
        access_of(path)
    assert "top-secret" not in str(error.value)


def test_a_context_that_is_nowhere_is_answered_with_those_there_are(tmp_path: Path) -> None:
    path = a_file(tmp_path / "config", user={})
    with pytest.raises(UserError, match=r"contexts: no 'lab' \(hint: there are: one\)"):
        find_access(path, "lab")


def test_without_any_cluster_the_way_to_name_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match="--kubeconfig FILE"):
        find_access()


# --- inside a pod --------------------------------------------------------------------------------


def an_account(folder: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(folder / "ca.crt")
    (folder / "token").write_text("first\n")
    (folder / "namespace").write_text("wattherd")
    return folder


INSIDE = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


def test_the_token_of_a_pod_is_read_again(tmp_path: Path) -> None:
    access = in_cluster(INSIDE, an_account(tmp_path))
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "wattherd")
    assert token_of(access) == "first"
    (tmp_path / "token").write_text("second")
    assert token_of(access) == "first", "it is good for a while"
    assert token_of(access, renewed=True) == "second"
    (tmp_path / "token").unlink()
    assert token_of(access, renewed=True) == "second", "a file may be away while it is replaced"


def test_a_pod_without_a_token_is_not_anonymous(tmp_path: Path) -> None:
    an_account(tmp_path)
    (tmp_path / "token").write_text("")
    with pytest.raises(UserError, match="no token in it"):
        in_cluster(INSIDE, tmp_path)


# --- programs ------------------------------------------------------------------------------------


def with_program(folder: Path, says: object, then: str = "") -> Access:
    a_program(folder / "login", says=says, then=then)
    login = {
        "command": "./login",
        "apiVersion": EXEC,
        "env": [{"name": "LAB", "value": "7"}],
        "provideClusterInfo": True,
        "installHint": "install the login program",
    }
    return access_of(a_file(folder / "config", user={"exec": login}))


def a_credential(**status: object) -> dict[str, object]:
    return {"apiVersion": EXEC, "kind": "ExecCredential", "status": status}


def test_a_program_is_asked_once_until_its_token_ends(tmp_path: Path) -> None:
    access = with_program(tmp_path, a_credential(token="t"))
    assert [token_of(access), token_of(access)] == ["t", "t"]
    told = (tmp_path / "login.told").read_text().splitlines()
    assert len(told) == 1
    assert json.loads(told[0])["spec"]["cluster"]["server"] == "https://10.0.0.1:6443"
    assert token_of(access, renewed=True) == "t"
    assert len((tmp_path / "login.told").read_text().splitlines()) == 2


def test_a_program_whose_token_has_ended_is_asked_again(tmp_path: Path) -> None:
    over = a_credential(token="t", expirationTimestamp="2020-01-01T00:00:00Z")
    access = with_program(tmp_path, over)
    assert [token_of(access), token_of(access)] == ["t", "t"]
    assert len((tmp_path / "login.told").read_text().splitlines()) == 2


def test_a_program_may_give_a_certificate(tmp_path: Path) -> None:
    mine = trustme.CA().issue_cert("user.test")
    certificate = mine.cert_chain_pems[0].bytes().decode()
    key = mine.private_key_pem.bytes().decode()
    says = a_credential(clientCertificateData=certificate, clientKeyData=key)
    assert token_of(with_program(tmp_path, says)) is None


@pytest.mark.parametrize(
    ("says", "then", "said"),
    [
        ("nonsense", "", "printed no ExecCredential"),
        (a_credential(), "", "gave neither a token nor a certificate"),
        ({**a_credential(token="t"), "apiVersion": "v9"}, "", "answered as v9"),
        (a_credential(token="t"), "echo locked >&2; exit 3", "ended with 3: locked"),
    ],
    ids=["nonsense", "nothing", "another version", "a failure"],
)
def test_a_program_that_is_of_no_use_is_named_with_its_hint(
    tmp_path: Path, says: object, then: str, said: str
) -> None:
    access = with_program(tmp_path, says, then)
    with pytest.raises(UserError) as error:
        token_of(access)
    assert said in str(error.value)
    assert "install the login program" in str(error.value)


def test_a_program_that_is_absent_is_named(tmp_path: Path) -> None:
    access = with_program(tmp_path, a_credential(token="t"))
    (tmp_path / "login").unlink()
    with pytest.raises(UserError, match="cannot be run: No such file"):
        token_of(access)


def test_unknown_exec_versions_are_told_apart() -> None:
    assert identities.known_exec(EXEC)
    assert not identities.known_exec("client.authentication.k8s.io/v1alpha1")
