"""Everything that a release consists of, in dist/: `python scripts/release.py [--sign KEY]`.

Both distributions (wheel and sdist), a software bill of materials (CycloneDX), SHA256SUMS of all
files, and with --sign its signature by `ssh-keygen -Y sign`. A tag `vX` on the commit must name the
version of both packages, and what that version leaves behind must be kept for the tests of later
ones (`python scripts/released_state.py` makes it). Check what was downloaded: SECURITY.md says how.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = {
    "wattherd": ROOT / "src" / "wattherd" / "__init__.py",
    "wattherd-train": ROOT / "sdk" / "src" / "wattherd_train" / "__init__.py",
}
STATES = ROOT / "tests" / "service" / "old_states"
PROJECTS = (ROOT, ROOT / "sdk")
NAMESPACE = "wattherd-release"


def version(tag: str | None) -> str:
    """The version of both packages.

    Raises:
        SystemExit: they differ from each other, from the chart or from the tag.
    """
    found = {
        name: re.findall(r'^__version__ = "(.+)"', file.read_text(), re.MULTILINE)[0]
        for name, file in VERSIONS.items()
    }
    chart = (ROOT / "deploy" / "kubernetes" / "chart" / "Chart.yaml").read_text()
    found["chart"] = re.findall(r'^appVersion: "(.+)"', chart, re.MULTILINE)[0]
    if tag is not None:
        found[f"tag {tag}"] = tag.removeprefix("v")
    if len(set(found.values())) > 1:
        raise SystemExit(f"versions differ: {', '.join(f'{k} {v}' for k, v in found.items())}")
    return found["wattherd"]


def tag_here() -> str | None:
    """The tag of the commit; None where it has none, or where there is no repository."""
    command = ["git", "describe", "--tags", "--exact-match", "--match", "v*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def states_lacking(of: str, kept: Path = STATES) -> list[str]:
    """Files that `scripts/released_state.py` makes of a version and that are not there."""
    names = [f"v{of}-{part}.tar.xz" for part in ("store", "runs", "cluster")]
    return [name for name in names if not (kept / name).exists()]


def build(into: Path) -> None:
    """Wheel and sdist of both; the wheel is made of what the checkout has."""
    for project in PROJECTS:
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
        subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)


def materials(lock: str, of: str) -> dict[str, Any]:
    """CycloneDX 1.6: each pinned package with its hashes, as requirements.lock has them."""
    pins = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    found = [re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", pin) for pin in pins]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "wattherd",
                "version": of,
                "purl": f"pkg:pypi/wattherd@{of}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            {
                "type": "library",
                "name": pin[1],
                "version": pin[2],
                "purl": f"pkg:pypi/{pin[1].lower()}@{pin[2]}",
                "hashes": [
                    {"alg": "SHA-256", "content": content}
                    for content in re.findall(r"sha256:([0-9a-f]{64})", text)
                ],
            }
            for pin, text in zip(found, pins, strict=True)
            if pin
        ],
    }


def sums(folder: Path) -> str:
    """Lines that `sha256sum --check` reads."""
    files = sorted(one for one in folder.iterdir() if not one.name.startswith("SHA256SUMS"))
    return "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)


def sign(file: Path, key: Path) -> None:
    """Leave FILE.sig beside it."""
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(file)]
    subprocess.run(command, check=True)


def main() -> int:
    """Make all of it; 1 where the folder is not empty, or states of this version are lacking."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "dist")
    options.add_argument("--sign", type=Path, metavar="KEY", help="a private key of OpenSSH")
    given = options.parse_args()
    made = version(tag_here())
    if lacking := states_lacking(made):
        print(f"{', '.join(lacking)}: make them by scripts/released_state.py", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    if any(given.out.iterdir()):
        print(f"{given.out} is not empty", file=sys.stderr)
        return 1
    build(given.out)
    lock = (ROOT / "requirements.lock").read_text()
    bill = json.dumps(materials(lock, made), indent=1) + "\n"
    (given.out / f"wattherd-{made}.cdx.json").write_text(bill)
    digests = given.out / "SHA256SUMS"
    digests.write_text(sums(given.out))
    if given.sign:
        sign(digests, given.sign)
    print(*sorted(one.name for one in given.out.iterdir()), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
