"""From two wheels to the first jobs, command by command as README has them, with a stopwatch.

    python scripts/first_minutes.py               # a new environment in an empty folder
    python scripts/first_minutes.py --bare-root   # in an empty Debian 12 (as root)

It builds both wheels from this checkout, carries them into an empty folder, types there what stands
in README after the words `<!-- first minutes -->`, waits for the jobs, and prints how many seconds
every command took. Exit code 1 if a command or a job fails. Packages are downloaded by pip as for
anybody; nothing else of this machine is used.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"<!-- first minutes -->\n```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates"
"""All that a Debian needs beyond its smallest variant."""
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
FIRST_JOB = "wattherd run "
JOBS_OVER = "every job above is over"
ANSWERS_S, JOBS_S = 60, 120


@dataclass(frozen=True, slots=True)
class Taken:
    """One command: seconds from the first command on, and its exit code."""

    text: str
    began_s: float
    ended_s: float
    code: int


def commands() -> list[str]:
    """What README says to type."""
    blocks = MARKED.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    lines = (line.split("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def build(to: Path) -> None:
    """Both wheels; what builds them is pip of this interpreter."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(to), "./sdk", "."], cwd=REPOSITORY, check=True)


def script(typed: Sequence[str], port: int) -> str:
    """The same for bash, which tells the number, times and exit code of every command."""
    lines = [f"export WATTHERD_SERVER=http://127.0.0.1:{port}", "trap 'kill $(jobs -p)' EXIT"]
    for number, text in enumerate([*typed, JOBS_OVER]):
        line = text
        if text.startswith("wattherd serve"):
            answers = f"(: </dev/tcp/127.0.0.1/{port}) 2>/dev/null"
            line = f"{text} --port {port} >serve.log 2>&1 &\n{_within(ANSWERS_S, answers)}"
        elif text == JOBS_OVER:
            line = _within(JOBS_S, "wattherd queue -o json | grep -q '\"jobs\": *\\[\\]'")
        lines.append(f"began=$EPOCHREALTIME\n{line}\ncode=$?")
        lines.append(f'echo {number} $began $EPOCHREALTIME $code >&3; [ "$code" = 0 ] || exit 1')
    lines.append('wattherd history -o json | grep -oE \'"state": *"[A-Za-z]+"\' >states.txt')
    return "\n".join(lines) + "\n"


def _within(most_s: int, test: str) -> str:
    return f"for tries in $(seq {most_s * 5}); do {test} && break; sleep 0.2; done; {test}"


def walk(folder: Path, typed: Sequence[str], enter: Sequence[str], inside: str) -> list[Taken]:
    """Type it in `folder`, which after the command `enter` is found at `inside`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    (folder / "walk.sh").write_text(script(typed, port), encoding="utf-8")
    told, tell = os.pipe()
    shell = subprocess.Popen(
        [*enter, "/bin/bash", "-c", f"exec 3>&{tell}; cd {inside} && . ./walk.sh"],
        env=_environment(inside), stdin=subprocess.DEVNULL, stdout=sys.stderr,
        pass_fds=[tell], start_new_session=True,
    )  # fmt: skip
    os.close(tell)
    try:
        with os.fdopen(told) as lines:
            taken = list(_taken(lines, [*typed, JOBS_OVER]))
        shell.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(30)
    return taken


def _taken(lines: Iterator[str], typed: Sequence[str]) -> Iterator[Taken]:
    start_s = 0.0
    for line in lines:
        number, began_s, ended_s, code = line.split()
        start_s = start_s or float(began_s)
        yield Taken(
            typed[int(number)], float(began_s) - start_s, float(ended_s) - start_s, int(code)
        )


def _environment(home: str) -> dict[str, str]:
    """That of a user who has just logged in."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "HOME": home, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}


@contextlib.contextmanager
def bare_root(given: Path | None) -> Iterator[Path]:
    """An empty Debian 12: the one given, or a new one that is removed in the end."""
    if given is not None:
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="wattherd-root-") as name:
        make = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm"]
        subprocess.run([*make, name, MIRROR], check=True, stdout=sys.stderr)
        yield Path(name)


def within(root: Path) -> list[str]:
    """The command that enters `root`: its mounts and processes are gone when it ends."""
    setup = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return [*apart, "/bin/sh", "-c", setup, str(root)]


def show(taken: Sequence[Taken]) -> None:
    """The table, as Markdown."""
    print("| command | seconds | since the first |\n|---|---|---|")
    for one in taken:
        print(f"| `{one.text}` | {one.ended_s - one.began_s:.1f} | {one.ended_s:.0f} |")


def main() -> int:
    """Build, walk, tell."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--bare-root", action="store_true", help="in an empty Debian 12 (as root)")
    options.add_argument("--root", type=Path, help="in this root, which debootstrap made")
    options.add_argument("--wheels", type=Path, help="folder of both wheels, if they are built")
    options.add_argument("--also", default=[], nargs="*", help="commands to be typed after those")
    asked = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattherd-first-")))
        enter, inside = [], str(folder)
        if asked.bare_root or asked.root:
            root = stack.enter_context(bare_root(asked.root))
            if BUNDLE.exists():  # whoever vouches for the network here
                shutil.copy(BUNDLE, root / BUNDLE.relative_to("/"))
            folder = Path(tempfile.mkdtemp(prefix="wattherd-", dir=root / "root"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            enter, inside = within(root), f"/{folder.relative_to(root)}"
        wheels = folder / "wheels"
        if asked.wheels:
            shutil.copytree(asked.wheels, wheels)
        else:
            build(wheels)
        typed = [*commands(), *asked.also]
        taken = walk(folder, typed, enter, inside)
        show(taken)
        states = folder / "states.txt"
        ended = re.findall(r": *\"(\w+)\"", states.read_text()) if states.exists() else []
        good = len(taken) == len(typed) + 1 and not any(one.code for one in taken)
        if not good or not ended or set(ended) != {"Succeeded"}:
            print(f"it did not go well: jobs are {ended or 'none'}", file=sys.stderr)
            return 1
    first_s = next(one.ended_s for one in taken if one.text.startswith(FIRST_JOB))
    print(f"\n{first_s:.0f} s from two wheels to the first job")
    return 0


if __name__ == "__main__":
    sys.exit(main())
