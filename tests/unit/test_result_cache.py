"""Results by name: whatever is wrong with a file of the cache, its result is computed anew."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from wattherd.store.result_cache import ResultCache, cache_folder, key_of

KEY = key_of({"of": "a"})
VALUE = {"row": {"avg_jct_s": 0.1 + 0.2, "jobs": 3, "why": "wörter"}, "unfinished": []}


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / key[:2] / f"{key}.json"


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "not" / "there", "today")
    assert cache.get(KEY) is None
    assert cache.put(KEY, VALUE)
    assert ResultCache(tmp_path / "not" / "there", "tomorrow").get(KEY) == VALUE
    assert cache.get(key_of({"of": "b"})) is None


def test_names_are_by_content() -> None:
    assert key_of({"a": 1, "b": [1, 2]}) == key_of({"b": [1, 2], "a": 1})
    ways: list[dict[str, object]] = [
        {"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": None}, {"b": 1}, {"a": [1]}, {"a": True}, {},
    ]  # fmt: skip
    assert len({key_of(one) for one in ways}) == len(ways)


def renamed(path: Path) -> None:
    other = entry(path.parents[1], key_of({"of": "another"}))
    other.parent.mkdir(exist_ok=True)
    path.rename(other)
    path.write_bytes(other.read_bytes().replace(KEY.encode(), b"0" * 64))


def changed(path: Path) -> None:
    text = json.loads(path.read_text())
    text["value"] = text["value"].replace('"jobs":3', '"jobs":4')
    path.write_text(json.dumps(text))


def of_another_version(path: Path) -> None:
    text = json.loads(path.read_text())
    path.write_text(json.dumps(text | {"schema": "wattherd.cached/0"}))


def a_list(path: Path) -> None:
    path.write_text("[" * 100_000)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "cut off in the middle": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "of zeros": lambda path: path.write_bytes(bytes(4096)),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\x01" * 9),
    "null": lambda path: path.write_text("null"),
    "fields of other kinds": lambda path: path.write_text('{"schema": 1, "value": {}}'),
    "nested without end": a_list,
    "of another name": renamed,
    "changed by hand": changed,
    "of another version": of_another_version,
    "a folder": a_folder,
    "a pipe": a_pipe,
    "a link to itself": a_loop,
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_entry_is_none(how: str, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, "today")
    cache.put(KEY, VALUE)
    BROKEN[how](entry(tmp_path))
    assert cache.get(KEY) is None
    assert cache.use().entries <= 2  # whatever it is, it can be counted and looked at
    if how == "a folder":
        assert not cache.put(KEY, VALUE)
        assert cache.problem
    else:
        assert cache.put(KEY, VALUE)
        assert cache.get(KEY) == VALUE


def test_it_keeps_nothing_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = ResultCache(tmp_path / "file" / "results", "today")
    assert not cache.put(KEY, VALUE)
    assert str(tmp_path) in cache.problem
    assert cache.get(KEY) is None
    assert cache.use().entries == 0
    assert cache.clear() == 0


def test_no_folder_is_no_cache() -> None:
    cache = ResultCache(None)
    assert not cache.put(KEY, VALUE)
    assert cache.get(KEY) is None
    assert cache.use().entries == cache.clear() == 0


def test_many_writers_and_readers_see_whole_results(tmp_path: Path) -> None:
    wide = [{"row": {"n": n, "text": "x" * 50_000}} for n in range(4)]
    seen: list[object] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.append(ResultCache(tmp_path).get(KEY))

    def write(value: dict[str, object]) -> None:
        for _ in range(10):
            assert ResultCache(tmp_path).put(KEY, value)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(value,)) for value in wide]
    ResultCache(tmp_path).put(KEY, wide[0])
    reader.start()
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    over.set()
    reader.join()
    assert seen
    assert all(one in wide for one in seen)
    assert [path.name for path in tmp_path.rglob("*.*")] == [entry(tmp_path).name]


def test_clear_deletes_entries_and_drafts_and_nothing_else(tmp_path: Path) -> None:
    old, new = ResultCache(tmp_path, "yesterday"), ResultCache(tmp_path, "today")
    other = key_of({"of": "b"})
    old.put(KEY, VALUE)
    new.put(other, VALUE)
    mine = [tmp_path / "thesis.tex", entry(tmp_path).parent / "thesis.tex"]
    for path in mine:
        path.write_text("years of work")
    draft = entry(tmp_path).parent / ".draft-killed"
    draft.write_text("half")
    assert (new.use().entries, new.use().of_others) == (2, 1)
    assert new.clear(only_others=True) == 1
    assert new.get(KEY) is None
    assert new.get(other) == VALUE
    assert not draft.exists()
    assert new.clear() == 1
    assert new.use().entries == 0
    assert all(path.exists() for path in mine)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"WATTHERD_CACHE": "off"}, None),
        ({"WATTHERD_CACHE": "OFF"}, None),
        ({"WATTHERD_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/wattherd/results")),
        ({}, Path("~/.cache/wattherd/results").expanduser()),
        ({"WATTHERD_CACHE": " "}, Path("~/.cache/wattherd/results").expanduser()),
    ],
)
def test_where_it_is(environ: dict[str, str], folder: Path | None) -> None:
    assert cache_folder(environ) == folder
