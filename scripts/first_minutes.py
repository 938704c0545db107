"""From two wheels to the first jobs, command by command as README has them, with a stopwatch.

    python scripts/first_minutes.py               # a new environment in an empty folder
    python scripts/first_minutes.py --bare-root   # in an empty Debian 12 (as root)
    python scripts/first_minutes.py --comparison  # a simulated comparison, and a notebook

It builds both wheels from this checkout, carries them into an empty folder, types there what stands
in README after the words `<!-- first minutes -->` (`<!-- first comparison -->`), waits for the jobs
if there are any, and prints how many seconds every command took. Exit code 1 if a command or a job
fails. Packages are downloaded by pip as for anybody; nothing else of this machine is used.
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
MINUTES, COMPARISON = "first minutes", "first comparison"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates"
"""All that a Debian needs beyond its smallest variant."""
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
FIRST_JOB, COMPARE = "wattherd run ", "wattherd sim compare "
JOBS_OVER = "every job above is over"
ANSWERS_S, JOBS_S = 60, 120


@dataclass(frozen=True, slots=True)
class Taken:
    """One command: seconds from the first command on, and its exit code.

    `cpu_s` is what it and those before it took of processors; services that still run aside.
    """

    text: str
    began_s: float
    ended_s: float
    code: int
    cpu_s: float


def commands(words: str) -> list[str]:
    """What README says to type after these words."""
    marked = re.compile(rf"<!-- {words} -->\n```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
    blocks = marked.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    lines = (line.split("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def build(to: Path) -> None:
    """Both wheels; what builds them is pip of this interpreter."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(to), "./sdk", "."], cwd=REPOSITORY, check=True)


def script(typed: Sequence[str], port: int) -> str:
    """The same for bash, which tells the number, times and exit code of every command."""
    lines = [
        f"export WATTHERD_SERVER=http://127.0.0.1:{port}",
        "trap 'kill $(jobs -p) 2>/dev/null' EXIT",
    ]
    for number, text in enumerate(typed):
        line = text
        if text.startswith("wattherd serve"):
            answers = f"(: </dev/tcp/127.0.0.1/{port}) 2>/dev/null"
            line = f"{text} --port {port} >serve.log 2>&1 &\n{_within(ANSWERS_S, answers)}"
        elif text == JOBS_OVER:
            line = _within(JOBS_S, "wattherd queue -o json | grep -q '\"jobs\": *\\[\\]'")
        lines.append(f"began=$EPOCHREALTIME\n{line}\ncode=$? ended=$EPOCHREALTIME")
        lines.append("times >times.txt")  # in a pipe they would be another shell's
        lines.append(f"echo {number} $began $ended $code $(tail -n 1 times.txt) >&3")
        lines.append('[ "$code" = 0 ] || exit 1')
    if JOBS_OVER in typed:
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
            taken = list(_taken(lines, typed))
        shell.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(30)
    return taken


def _taken(lines: Iterator[str], typed: Sequence[str]) -> Iterator[Taken]:
    start_s = 0.0
    for line in lines:
        number, began_s, ended_s, code, *times = line.split()
        start_s = start_s or float(began_s)
        yield Taken(
            typed[int(number)], float(began_s) - start_s, float(ended_s) - start_s, int(code),
            sum(_seconds(one) for one in times),
        )  # fmt: skip


def _seconds(text: str) -> float:
    """Of `1m2.345s`, as bash has it."""
    minutes, _, seconds = text.removesuffix("s").partition("m")
    return 60 * int(minutes) + float(seconds)


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
    options.add_argument("--comparison", action="store_true", help="simulate, and run a notebook")
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
        words = COMPARISON if asked.comparison else MINUTES
        over = [] if asked.comparison else [JOBS_OVER]
        typed = [*commands(words), *asked.also, *over]
        taken = walk(folder, typed, enter, inside)
        show(taken)
        good = len(taken) == len(typed) and not any(one.code for one in taken)
        found = pictures(folder) if asked.comparison else states(folder)
        if not good or not found or set(found) - {"Succeeded", "picture"}:
            print(f"it did not go well: there are {found or 'none'}", file=sys.stderr)
            return 1
        first, what = (COMPARE, "comparison") if asked.comparison else (FIRST_JOB, "job")
        at = next(one for one in taken if one.text.startswith(first))
        print(f"\n{at.ended_s:.0f} s from two wheels to the first {what}")
        print(
            f"{at.cpu_s:.0f} s of processors to there, {taken[-1].cpu_s:.0f} s in all", flush=True
        )  # to remove it all may take long
    return 0


def states(folder: Path) -> list[str]:
    """Of all jobs, as the history has them."""
    said = folder / "states.txt"
    return re.findall(r": *\"(\w+)\"", said.read_text()) if said.exists() else []


def pictures(folder: Path) -> list[str]:
    """One word for each plot that was drawn."""
    return ["picture" for one in folder.glob("first/*.svg") if one.stat().st_size]


if __name__ == "__main__":
    sys.exit(main())
