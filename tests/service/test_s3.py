"""Data and results in an object store: a server that checks signatures, and bad wires to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_site import Site, passable_site, until
from object_store import BadWire, ObjectStore

from wattherd.devices.wire.file_places import BucketPlace
from wattherd.errors import ClusterError, UserError, WattherdError
from wattherd.local import run_dir
from wattherd.local.transfer import bucket_read, bucket_write
from wattherd.local.transfer.bucket import BucketClient
from wattherd.workload.job_file import validated_job

MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("store"))
    yield store
    store.close()


@pytest.fixture
def reach(store: ObjectStore, tmp_path: Path) -> Callable[..., BucketClient]:
    """A way to the store, as a job's courier has it."""

    def reach(**options: Any) -> BucketClient:
        usual = {"endpoint": store.url, "tries": 3}
        file = store.credentials(tmp_path / "credentials")
        return BucketClient({**usual, "credentials": str(file), **options})

    return reach


def random_bytes(size: int) -> bytes:
    return os.urandom(MIB) * (size // MIB) + os.urandom(size % MIB)


def at(key: str, bucket: str = "open") -> BucketPlace:
    return BucketPlace(bucket, key)


def said(error: WattherdError) -> str:
    return error.line() if isinstance(error, UserError) else str(error)


# --- reading ---------------------------------------------------------------------------------


def test_an_object_comes_in_pieces_and_whole(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_read, "PIECE", MIB)
    data = random_bytes(5 * MIB + 7)
    store.put("pieces/x", data)
    came = bucket_read.bring(reach(), at("pieces/x"), tmp_path / "in" / "x")
    assert (tmp_path / "in" / "x").read_bytes() == data
    assert came == (1, len(data), 0)
    assert [one.name for one in (tmp_path / "in").iterdir()] == ["x"]


def test_a_folder_comes_with_its_folders_and_empty_files(
    store: ObjectStore, reach: Callable[..., BucketClient], tmp_path: Path
) -> None:
    files = {"a": b"1", "deep/er/b": b"22", "empty": b"", "sp ace/ü?#%.txt": b"3"}
    for name, data in files.items():
        store.put(f"set/{name}", data)
    store.put("set/", b"")
    store.put("set/void/", b"")
    store.put("settle", b"not of the folder")
    came = bucket_read.bring(reach(), at("set"), tmp_path / "set")
    found = {str(one.relative_to(tmp_path / "set")): one.read_bytes()
             for one in (tmp_path / "set").rglob("*") if one.is_file()}  # fmt: skip
    assert found == files
    assert (tmp_path / "set" / "void").is_dir()
    assert came == (4, 4, 0)


def test_long_lists_are_read_to_their_end(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(7):
        store.put(f"many/{number}", b"x")
    way = reach()
    plain = way.client.list_objects_v2
    monkeypatch.setattr(way.client, "list_objects_v2", lambda **q: plain(**q, MaxKeys=2))
    assert bucket_read.bring(way, at("many/"), tmp_path / "many").objects == 7


@pytest.mark.long
def test_answers_that_break_off_are_asked_for_again(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_read, "PIECE", MIB)
    data = random_bytes(4 * MIB)
    store.put("cut", data)
    wire = BadWire(store.port, cuts=2, after_bytes=MIB // 2)
    bucket_read.bring(reach(endpoint=wire.url), at("cut"), tmp_path / "cut")
    wire.close()
    assert wire.cuts_left <= 0
    assert (tmp_path / "cut").read_bytes() == data


def test_who_comes_later_fetches_what_is_missing_only(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_read, "PIECE", MIB)
    monkeypatch.setattr(bucket_read, "AT_ONCE", 1)
    data = random_bytes(8 * MIB)
    store.put("later", data)
    bad = BadWire(store.port, cuts=10**9, after_bytes=5 * MIB)
    with pytest.raises(ClusterError):
        bucket_read.bring(reach(endpoint=bad.url, tries=1), at("later"), tmp_path / "later")
    bad.close()
    assert not (tmp_path / "later").exists()
    good = BadWire(store.port, cuts=0, after_bytes=0)
    bucket_read.bring(reach(endpoint=good.url), at("later"), tmp_path / "later")
    good.close()
    assert (tmp_path / "later").read_bytes() == data
    assert good.served < 6 * MIB


@pytest.mark.long
def test_another_version_is_not_mixed_with_what_came(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_read, "PIECE", MIB)
    monkeypatch.setattr(bucket_read, "AT_ONCE", 1)
    store.put("moving", random_bytes(4 * MIB))
    bad = BadWire(store.port, cuts=10**9, after_bytes=2 * MIB)
    with pytest.raises(ClusterError):
        bucket_read.bring(reach(endpoint=bad.url, tries=1), at("moving"), tmp_path / "moving")
    bad.close()
    data = random_bytes(4 * MIB)
    store.put("moving", data)
    bucket_read.bring(reach(), at("moving"), tmp_path / "moving")
    assert (tmp_path / "moving").read_bytes() == data


def test_a_change_under_way_is_noticed(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second piece is of another version, which the store says by `If-Match`."""
    monkeypatch.setattr(bucket_read, "PIECE", MIB)
    monkeypatch.setattr(bucket_read, "AT_ONCE", 1)
    store.put("under-way", random_bytes(2 * MIB))
    way, seen = reach(), []
    plain = way.client.get_object

    def get(**query: Any) -> Any:
        if seen:
            store.put("under-way", random_bytes(2 * MIB))
        seen.append(query["Range"])
        return plain(**query)

    monkeypatch.setattr(way.client, "get_object", get)
    with pytest.raises(ClusterError, match="was changed while it was read"):
        bucket_read.bring(way, at("under-way"), tmp_path / "x")


@pytest.mark.long
@pytest.mark.parametrize("stated", ["md5", "SHA256", "SHA1", "CRC32", "parts"])
def test_bytes_that_went_wrong_are_noticed(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stated: str,
) -> None:
    data = random_bytes(6 * MIB)
    if stated == "parts":
        monkeypatch.setattr(bucket_write, "PART", 5 * MIB)
        (tmp_path / "whole").write_bytes(data)
        bucket_write.take(reach(), tmp_path / "whole", at("wrong"))
    else:
        store.put("wrong", data, **({} if stated == "md5" else {"ChecksumAlgorithm": stated}))
    assert bucket_read.bring(reach(), at("wrong"), tmp_path / "right").unchecked == 0
    way = reach()
    plain = bucket_read._Growing._get
    monkeypatch.setattr(
        bucket_read._Growing, "_get", lambda *a: plain(*a)[:-1] + bytes([plain(*a)[-1] ^ 1])
    )
    with pytest.raises(ClusterError, match="does not match its"):
        bucket_read.bring(way, at("wrong"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


# --- what can be wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "options", "words"),
    [
        (at("none"), {}, "no such object or folder"),
        (at("x", "none"), {}, "access denied"),
        (at("x", "shut"), {}, "access denied (403"),
        (at("x"), {"credentials": "wrong"}, "access denied (403"),
        (at("x"), {"profile": "nobody"}, "The config profile (nobody) could not be found"),
        (at("x"), {"credentials": "/no/such/file"}, "no credentials"),
        (at("x"), {"endpoint": "http://127.0.0.1:9", "tries": 2}, "127.0.0.1:9"),
        (at("x"), {"endpoint": "127.0.0.1"}, "Invalid endpoint"),
    ],
    ids=["missing", "no bucket", "no right", "wrong key", "no profile",
         "no credentials", "nobody there", "no address"],
)  # fmt: skip
def test_each_trouble_is_told_in_a_line(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: BucketPlace,
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if options.get("credentials") == "wrong":
        wrong = tmp_path / "wrong"
        wrong.write_text(f"[default]\naws_access_key_id={store.id}\naws_secret_access_key=no\n")
        options = {"credentials": str(wrong)}
    with pytest.raises(WattherdError) as caught:
        bucket_read.bring(reach(**options), place, tmp_path / "x")
    assert words in said(caught.value)
    assert store.key not in said(caught.value)
    assert "\n" not in said(caught.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("anonymous", [True, False])
def test_who_is_anonymous_signs_nothing(
    store: ObjectStore, reach: Callable[..., BucketClient], tmp_path: Path, *, anonymous: bool
) -> None:
    """What a store does with such a request is its own affair (this one stumbles)."""
    way, signed = reach(anonymous=anonymous, tries=1), []

    def look(request: Any, **_: Any) -> None:
        signed.append("Authorization" in request.headers)

    way.client.meta.events.register("before-send.s3", look)
    with contextlib.suppress(WattherdError):
        bucket_read.bring(way, at("none"), tmp_path / "x")
    assert set(signed) == {not anonymous}


@pytest.mark.long
def test_keys_that_would_leave_the_folder_are_refused(
    store: ObjectStore, reach: Callable[..., BucketClient], tmp_path: Path
) -> None:
    store.put("evil/../../x", b"x")
    with pytest.raises(UserError, match="cannot be a file"):
        bucket_read.bring(reach(), at("evil"), tmp_path / "x")


@pytest.mark.long
def test_what_does_not_fit_the_disk_is_said_at_once(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.put("large", bytes(MIB))
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(UserError, match=r"out of disk: needs 1\.0 MB, 1\.0 kB are free"):
        bucket_read.bring(reach(), at("large"), tmp_path / "x")


# --- writing ---------------------------------------------------------------------------------


def test_a_large_file_goes_in_parts_and_goes_on_where_it_ended(
    store: ObjectStore,
    reach: Callable[..., BucketClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_write, "PART", 5 * MIB)
    monkeypatch.setattr(bucket_write, "AT_ONCE", 1)
    data = random_bytes(17 * MIB)
    (tmp_path / "model").write_bytes(data)
    way, sent = reach(tries=1), []
    plain = way.client.upload_part

    def upload(**query: Any) -> Any:
        sent.append(query["PartNumber"])
        if sent.count(3) == 1 and query["PartNumber"] == 3:
            raise ConnectionResetError("as the wire may")
        return plain(**query)

    monkeypatch.setattr(way.client, "upload_part", upload)
    with pytest.raises(OSError, match="as the wire may"):
        bucket_write.take(way, tmp_path / "model", at("models/m"))
    assert store.keys("models/") == []
    bucket_write.take(way, tmp_path / "model", at("models/m"))
    assert sorted(sent) == [1, 2, 3, 3, 4]
    assert store.get("models/m") == data
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_a_folder_is_marked_when_it_is_whole(
    store: ObjectStore, reach: Callable[..., BucketClient], tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_text("1")
    (folder / "b").symlink_to("deep/a")
    taken = bucket_write.take(reach(), folder, at("results"))
    assert taken == (2, 2)
    assert store.keys("results") == ["results/_SUCCESS", "results/b", "results/deep/a"]


def test_a_folder_that_fails_is_not_marked(
    store: ObjectStore, reach: Callable[..., BucketClient], tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "a").write_text("1")
    bucket_write.take(reach(), folder, at("again"))
    (folder / "z").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="leads out"):
        bucket_write.take(reach(), folder, at("again"))
    (folder / "z").unlink()
    way = reach(tries=1)
    way.client.put_object = lambda **query: (_ for _ in ()).throw(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        bucket_write.take(way, folder, at("again"))
    assert store.keys("again") == ["again/a"]


# --- jobs ------------------------------------------------------------------------------------


@pytest.fixture
def site() -> Iterator[Site]:
    with passable_site() as site:
        yield site


def paper_of(store: ObjectStore, **fields: Any) -> dict[str, Any]:
    s3 = {"endpoint": store.url, "tries": 2, **fields.pop("s3", {})}
    return validated_job({"run": "true", "s3": s3, **fields}, "test").paper()


@pytest.mark.long
def test_a_job_reads_and_writes_buckets_with_keys_that_nobody_sees(
    site: Site, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("train/x", b"41")
    monkeypatch.setenv("KEY_ID", store.id)
    monkeypatch.setenv("KEY", store.key)
    paper = paper_of(
        store,
        inputs={"set": "s3://open/train/"},
        outputs={"y": "s3://open/trained/"},
        secrets={"AWS_ACCESS_KEY_ID": "env:KEY_ID", "AWS_SECRET_ACCESS_KEY": "env:KEY"},
    )
    run = "echo $(($(cat $WATTHERD_INPUTS/set/x) + 1)) > $WATTHERD_OUTPUTS/y"
    job = site.submit(run, paper=paper)
    site.wait(job, "Succeeded")
    assert store.get("trained/y") == b"42\n"
    assert "brought set: 1 file, 2 B from s3://open/train/" in site.log(job)
    assert "took y: 1 file, 3 B to s3://open/trained/" in site.log(job)
    for path in site.root.rglob("*"):
        assert not path.is_file() or store.key.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_a_job_uses_a_profile_of_a_file(site: Site, store: ObjectStore, tmp_path: Path) -> None:
    store.put("of-profile", b"words")
    file = store.credentials(tmp_path / "keys", "research")
    s3 = {"profile": "research", "credentials": str(file)}
    paper = paper_of(store, inputs={"x": "s3://open/of-profile"}, s3=s3)
    job = site.submit("cat $WATTHERD_INPUTS/x", paper=paper)
    site.wait(job, "Succeeded")
    assert site.log(job).endswith("words")


@pytest.mark.long
def test_a_job_whose_data_is_not_there_fails_and_says_so(
    site: Site, store: ObjectStore, tmp_path: Path
) -> None:
    s3 = {"credentials": str(store.credentials(tmp_path / "keys"))}
    job = site.submit("echo never", paper=paper_of(store, inputs={"x": "s3://open/no"}, s3=s3))
    site.wait(job, "Failed")
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert (end["exit_code"], end["why"]) == (125, "could not be brought its data")
    assert "s3://open/no" in site.log(job)
    assert "no such object" in site.log(job)
    assert "never" not in site.log(job)


SAVES = """
echo $WATTHERD_ATTEMPT > $WATTHERD_OUTPUTS/so-far; echo $WATTHERD_ATTEMPT > $WATTHERD_OUTPUTS/final
trap 'exit 143' TERM; echo ready
[ $WATTHERD_ATTEMPT = 2 ] || while :; do sleep 0.05; done
"""


@pytest.mark.long
def test_results_that_are_wanted_early_are_taken_at_every_stop(
    site: Site, store: ObjectStore, tmp_path: Path
) -> None:
    s3 = {"credentials": str(store.credentials(tmp_path / "keys"))}
    outputs = {
        "so-far": {"to": "s3://open/early/so-far", "when": "checkpoint"},
        "final": "s3://open/early/final",
    }
    paper = paper_of(store, outputs=outputs, s3=s3)
    job = site.submit(SAVES, paper=paper, grace_s=30.0)
    until(lambda: "ready" in site.log(job))
    site.hold(job)
    assert store.keys("early/") == ["early/so-far"]
    assert store.get("early/so-far") == b"1\n"
    site.release(job)
    site.wait(job, "Succeeded")
    assert store.keys("early/") == ["early/final", "early/so-far"]
    assert store.get("early/so-far") == b"2\n"


@pytest.mark.long
def test_a_stop_while_data_comes_is_heeded(site: Site, store: ObjectStore, tmp_path: Path) -> None:
    """Whoever would answer says nothing; the job is stopped, not failed, and can go on."""
    silent = socket.create_server(("127.0.0.1", 0))
    s3 = {
        "credentials": str(store.credentials(tmp_path / "keys")),
        "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
    }
    paper = paper_of(store, inputs={"x": "s3://open/x"}, s3=s3)
    job = site.submit("true", paper=paper, grace_s=5.0)
    until(lambda: (site.root / job / "run-1" / run_dir.BEGUN).exists())
    waiting, _ = silent.accept()
    site.hold(job)
    waiting.close()
    silent.close()
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert end["stopped"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")
def test_who_may_not_read_our_installation_is_told_what_is_missing(
    site: Site, store: ObjectStore
) -> None:
    from wattherd.local.staging import interpreter

    if interpreter((65534, 65534)) == interpreter(None):
        pytest.skip("this installation may be read by everybody")
    paper = paper_of(store, inputs={"x": "s3://open/x"}, user="nobody")
    job = site.submit("true", paper=paper)
    site.wait(job, "Failed")
    assert 'needs botocore (hint: pip install "wattherd[s3]"' in site.log(job)
