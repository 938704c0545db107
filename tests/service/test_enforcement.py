"""Limits without root: kept in a control group that was handed over, else said not to be kept."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.serving import WATTHERD, Serving, until
from wattherd.local import cgroups
from wattherd.local.cgroups import CgroupLimits, Support
from wattherd.local.enforcement import SWAPPED, refused, unenforced

ACCOUNT = "nobody"
AS_ACCOUNT = (
    *("setpriv", "--reuid", ACCOUNT, "--regid", str(pwd.getpwnam(ACCOUNT).pw_gid)),
    *("--clear-groups", "--inh-caps", "-all,+dac_read_search"),
    *("--ambient-caps", "-all,+dac_read_search", "--bounding-set", "-all,+dac_read_search"),
)
"""May read everything, as this Python may lie below root's home, and write nothing of others'."""
EATS = ["python3", "-c", "x = bytearray(200 << 20); print(len(x))"]
BOMB = """
import os, time
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    print("stopped at", made, flush=True)
"""


def why_not() -> str:
    """What a service without root needs here, with groups that root handed over."""
    if os.geteuid() != 0:
        return "only root can hand a control group over to another account"
    if shutil.which("setpriv") is None:
        return "needs setpriv"
    line = [*AS_ACCOUNT, sys.executable, "-c", "import wattherd"]
    if subprocess.run(line, cwd="/", capture_output=True, check=False).returncode != 0:
        return f"{ACCOUNT} cannot run {sys.executable}"
    return "" if cgroups.find().complete else f"cgroups: {cgroups.find().why_not}"


needs_groups = pytest.mark.skipif(bool(why_not()), reason=why_not())
needs_root = pytest.mark.skipif(
    why_not() != "" and not why_not().startswith("cgroups"), reason=why_not()
)


class Unprivileged(Serving):
    """A service of an account without rights, begun in these control groups."""

    groups: tuple[Path, ...] = ()

    def begin(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*AS_ACCOUNT, *WATTHERD, "serve", "--state", str(self.state),
                 "--port", str(self.port), "--slots", "2", *self.options],
                stderr=errors,
                cwd="/",
                env={**os.environ, "HOME": str(self.state.parent)},
                preexec_fn=self._enter,
            )  # fmt: skip

    def _enter(self) -> None:
        for folder in self.groups:
            (folder / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the account's that it can get to."""
    made = Path(tempfile.mkdtemp())
    shutil.chown(made, ACCOUNT)
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def handed_over(name: str) -> Iterator[list[Path]]:
    """A group of every hierarchy that counts, made by root and given to the account."""
    support = cgroups.find()
    found = (support.cpu, support.memory, support.pids, support.kill, support.account)
    folders = [one.parent / name for one in dict.fromkeys(found) if one is not None]
    try:
        for folder in folders:
            folder.mkdir()
            for path in (folder, *folder.iterdir()):
                handed = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks")
                if path == folder or path.name in handed:
                    shutil.chown(path, ACCOUNT)
        yield folders
    finally:
        for folder in folders:
            _remove(folder)


def _remove(folder: Path) -> None:
    """A group and all below it, once nothing is in them."""

    def gone() -> bool:
        below = [Path(at) for at, _, _ in os.walk(folder, topdown=False)]
        for one in below:
            with contextlib.suppress(OSError):
                one.rmdir()
        return not folder.exists()

    until(gone)


@pytest.fixture
def service(home: Path) -> Iterator[Unprivileged]:
    serving = Unprivileged(home / "state")
    yield serving
    serving.end()


@pytest.mark.long
@needs_groups
def test_without_root_a_handed_over_group_keeps_memory_and_processes(
    service: Unprivileged,
) -> None:
    with handed_over("wattherd-test") as service.groups:  # type: ignore[assignment]
        service.begin()
        service.ready()
        told = service.errors.read_text()
        assert "limits of memory, CPU and processes hold" in told, told
        assert "NOT enforced" not in told
        eats = service.submit(EATS, memory_per_gpu="64MiB")
        service.wait_for(eats, "Failed")
        found = service.ask(f"jobs/{eats}")
        assert found["unenforced"] == []
        assert "out of memory" in found["reason"]["text"]
        forks = service.submit(["python3", "-c", BOMB], processes=10)
        service.wait_for(forks, "Succeeded")
        assert "stopped at 9" in service.call("logs", forks).stdout
        inside = [path for one in service.groups for path in one.glob("wattherd/j-*")]
        assert inside == []  # taken away with their runs
        # A service that was killed finds its runs and their groups again.
        lives = service.submit("sleep 600", memory_per_gpu="64MiB")
        service.wait_for(lives, "Running")
        service.kill()
        service.begin()
        service.ready()
        service.ask(f"jobs/{lives}/cancel", {})
        service.wait_for(lives, "Cancelled")
        service.end()


@pytest.mark.long
@needs_root
def test_without_groups_the_service_and_each_job_say_that_limits_do_not_hold(
    service: Unprivileged, home: Path
) -> None:
    service.begin()
    service.ready()
    told = service.errors.read_text()
    assert "WARNING: limits are NOT enforced here: CPU, memory, number of processes" in told
    assert "systemd-run --user --scope -p Delegate=yes wattherd serve --state" in told
    file = home / "job.yaml"
    file.write_text("run: sleep 600\nmemory_per_gpu: 4GiB\n")
    done = service.call("submit", str(file))
    assert done.returncode == 0, done.stderr
    assert "warning: memory limit 4 GiB is not enforced here: no writable cgroup" in done.stderr
    job = done.stdout.split()[0]
    assert "warning: memory limit 4 GiB is not enforced here" in service.call("show", job).stdout
    assert service.ask(f"jobs/{service.submit('true')}")["unenforced"] == []
    service.ask(f"jobs/{job}/cancel", {})
    service.wait_for(job, "Cancelled")


@pytest.mark.long
@needs_root
def test_a_service_that_requires_limits_refuses_jobs_whose_limits_do_not_hold(
    service: Unprivileged,
) -> None:
    service.options = ("--require-limits",)
    service.begin()
    service.ready()
    assert "jobs that ask for such limits are refused" in service.errors.read_text()
    told = service.ask("jobs", {"run": "true", "memory_per_gpu": "4GiB"})
    assert told["code"] == 400
    assert "memory limit 4 GiB is not enforced here" in told["error"]
    assert "require_limits" in told["hint"]
    service.wait_for(service.submit("true"), "Succeeded")


HAND_DOWN = """
import os, sys
from pathlib import Path
from wattherd.local import cgroups
cgroups.CONTROLLERS = (sys.argv[2],)
group = Path(sys.argv[1])
assert not cgroups._hand_down(group), "a process is in it"
cgroups._move_into_leaf(group)
assert cgroups._hand_down(group)
(mine,) = [one for one in open("/proc/self/cgroup") if one.startswith("0::")]
assert mine.strip().endswith(f"{group.name}/{cgroups.LEAF}"), mine
assert cgroups._own_groups()[""].endswith(group.name), "found again from the leaf"
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make control groups here")
def test_a_service_in_a_v2_group_moves_out_of_the_way_of_its_controllers(tmp_path: Path) -> None:
    root = next(
        (one for one in (cgroups.ROOT, cgroups.ROOT / "unified")
         if (one / "cgroup.controllers").exists()), None,
    )  # fmt: skip
    if root is None or why_not().startswith(ACCOUNT):
        pytest.skip(f"no cgroup v2 below {cgroups.ROOT}, or {why_not()}")
    names = (root / "cgroup.controllers").read_text().split()
    if not names:
        pytest.skip(f"no controller is left for {root}")
    name = "memory" if "memory" in names else names[0]
    before = (root / "cgroup.subtree_control").read_text().split()
    group = root / "wattherd-test-leaf"
    try:
        (root / "cgroup.subtree_control").write_text(f"+{name}")
        group.mkdir()
        for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
            shutil.chown(path, ACCOUNT)

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        command = [*AS_ACCOUNT, sys.executable, "-c", HAND_DOWN, str(group), name]
        done = subprocess.run(
            command, preexec_fn=enter, cwd="/", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert name in (group / "cgroup.subtree_control").read_text().split()
    finally:
        if group.exists():
            _remove(group)
        if name not in before:
            (root / "cgroup.subtree_control").write_text(f"-{name}")


def test_sentences_name_the_limit_and_why_it_does_not_hold() -> None:
    none = Support(2, why_not="/sys/fs/cgroup is not writable")
    limits = CgroupLimits(cpus=1.5, memory_bytes=3 << 29, processes=4096)
    assert unenforced(none, limits) == [
        "memory limit 1.5 GiB is not enforced here: /sys/fs/cgroup is not writable",
        "CPU limit 1.5 is not enforced here: /sys/fs/cgroup is not writable",
        "limit of 4,096 processes is not enforced here: /sys/fs/cgroup is not writable",
    ]
    assert unenforced(none, CgroupLimits()) == []
    assert refused({"swap", "cpu"}, CgroupLimits(memory_bytes=1 << 30)) == [
        f"memory limit 1 GiB is not enforced here: {SWAPPED}"
    ]


def test_where_a_groups_parent_is_gone_a_run_that_is_over_is_taken_for_ended(
    tmp_path: Path,
) -> None:
    """The scope of a service that was killed goes with the last process in it."""
    gone = Support(2, kill=tmp_path / "scope" / "wattherd")
    group = cgroups.Group(gone, "j-1", CgroupLimits(), None)
    assert group.kill() == cgroups.Present([])
    with pytest.raises(FileNotFoundError):
        cgroups.Group(gone, "j-1", CgroupLimits(), os.getpid())
