"""What a release hands out: whole, testable on its own, and of use without a checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
assert _spec is not None
assert _spec.loader is not None
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)

NOT_HANDED_OUT = (".ci/", ".gitignore", ".pre-commit-config.yaml")


def run(*command: str, folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        env["PYTHONPATH"] = str(path)
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole release, signed by a key of this run."""
    folder = tmp_path_factory.mktemp("release")
    key = folder / "key"
    made = run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key), folder=folder)
    assert made.returncode == 0, made.stderr
    out = folder / "dist"
    script = str(ROOT / "scripts" / "release.py")
    done = run(sys.executable, script, "--out", str(out), "--sign", str(key), folder=folder)
    assert done.returncode == 0, done.stderr
    return out


def unpacked(dist: Path, name: str, into: Path) -> Path:
    [source] = dist.glob(f"{name}-*.tar.gz")
    with tarfile.open(source) as inside:
        inside.extractall(into, filter="data")
    return into / source.name.removesuffix(".tar.gz")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
class TestRelease:
    def test_the_source_has_every_file_of_the_checkout(self, dist: Path, tmp_path: Path) -> None:
        listed = run("git", "ls-files", folder=ROOT).stdout.split("\n")[:-1]
        if not listed:
            pytest.skip("no repository to compare with")
        source = unpacked(dist, "wattherd", tmp_path)
        there = {str(one.relative_to(source)) for one in source.rglob("*") if one.is_file()}
        wanted = {one for one in listed if not one.startswith(NOT_HANDED_OUT)}
        wanted = {one for one in wanted if (ROOT / one).is_file()}
        assert sorted(wanted - there) == []

    def test_the_source_passes_tests_on_its_own(self, dist: Path, tmp_path: Path) -> None:
        source = unpacked(dist, "wattherd", tmp_path)
        tests = ("tests/unit/test_units.py", "tests/unit/test_architecture.py")
        pytest_of_it = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        done = run(*pytest_of_it, folder=source, path=source / "src")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_sdk_passes_tests_on_its_own(self, dist: Path, tmp_path: Path) -> None:
        source = unpacked(dist, "wattherd_train", tmp_path)
        pytest_of_it = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
        done = run(*pytest_of_it, folder=source, path=source / "src")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_metadata_is_what_an_index_takes(self, dist: Path) -> None:
        wheels = sorted(dist.glob("*.whl"))
        assert len(wheels) == 2
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as inside:
                [name] = [one for one in inside.namelist() if one.endswith(".dist-info/METADATA")]
                told = Metadata.from_email(inside.read(name), validate=True)
            assert told.description
            assert told.description_content_type == "text/markdown"
            assert str(told.license_expression) == "Apache-2.0"

    def test_a_user_of_the_wheel_has_what_clusters_need(self, dist: Path, tmp_path: Path) -> None:
        [wheel] = dist.glob("wattherd-*.whl")
        with zipfile.ZipFile(wheel) as inside:
            inside.extractall(tmp_path / "installed")

        def printed(*words: str) -> str:
            command = (sys.executable, "-m", "wattherd", "kube", *words)
            done = run(*command, folder=tmp_path, path=tmp_path / "installed")
            assert done.returncode == 0, done.stderr
            return done.stdout

        kinds = [one["kind"] for one in yaml.safe_load_all(printed("crds"))]
        assert kinds == ["CustomResourceDefinition"] * 3
        assert "scheduler" in printed("manifests").split()
        objects = list(yaml.safe_load_all(printed("manifests", "scheduler")))
        assert "Deployment" in {one["kind"] for one in objects}
        for name in printed("dashboards").split():
            assert json.loads(printed("dashboards", name))["panels"]
        assert printed("chart", "--out", "mine").strip() == "mine"
        assert (tmp_path / "mine" / "templates" / "deployment.yaml").is_file()

    def test_digests_and_signature_hold_and_a_changed_file_is_told(
        self, dist: Path, tmp_path: Path
    ) -> None:
        there = tmp_path / "dist"
        shutil.copytree(dist, there)
        assert run("sha256sum", "--check", "--quiet", "SHA256SUMS", folder=there).returncode == 0
        key = (dist.parent / "key.pub").read_text()
        (there / "signers").write_text(f"releases@wattherd.dev {key}")
        verify = (
            "ssh-keygen -Y verify -f signers -I releases@wattherd.dev -n wattherd-release "
            "-s SHA256SUMS.sig < SHA256SUMS"
        )
        assert run("sh", "-c", verify, folder=there).returncode == 0
        digests = there / "SHA256SUMS"
        digests.write_text(digests.read_text().replace("a", "b", 1))
        assert run("sh", "-c", verify, folder=there).returncode != 0
        assert run("sha256sum", "--check", "--quiet", "SHA256SUMS", folder=there).returncode != 0


def test_the_bill_of_materials_names_every_pinned_package_with_its_hashes() -> None:
    bill: dict[str, Any] = release.materials((ROOT / "requirements.lock").read_text(), "1.2.3")
    names = {one["name"] for one in bill["components"]}
    assert {"numpy", "click", "uvicorn"} <= names
    pins = [one for one in (ROOT / "requirements.lock").read_text().splitlines() if "==" in one]
    assert len(bill["components"]) == len([one for one in pins if one[0].isalnum()])
    assert all(one["hashes"] for one in bill["components"])
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/wattherd@1.2.3"


def test_a_tag_that_is_not_the_version_is_refused() -> None:
    here = release.version(None)
    assert release.version(f"v{here}") == here
    with pytest.raises(SystemExit, match=f"tag v9.9.9 9.9.9.*|versions differ: .*{here}"):
        release.version("v9.9.9")


def test_no_release_is_made_of_a_version_whose_states_are_not_kept(tmp_path: Path) -> None:
    assert release.states_lacking(release.version(None)) == []
    parts = ("store", "runs", "cluster")
    assert release.states_lacking("9.9.9") == [f"v9.9.9-{part}.tar.xz" for part in parts]
    for part in ("runs", "cluster"):
        (tmp_path / f"v9.9.9-{part}.tar.xz").touch()
    assert release.states_lacking("9.9.9", tmp_path) == ["v9.9.9-store.tar.xz"]


def test_the_citation_and_the_chart_are_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == release.version(None)
    chart = yaml.safe_load((ROOT / "deploy/kubernetes/chart/Chart.yaml").read_text())
    assert chart["version"] == release.version(None)
    assert (ROOT / "docs/img" / chart["icon"].rpartition("/")[2]).is_file()
