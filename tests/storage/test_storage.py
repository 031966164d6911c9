"""A run's durable copy: on a real S3 server and in a folder, damaged, killed and contended for."""

import json
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

from distrlcc.errors import CheckpointError, OutputError
from distrlcc.runs.checkpoint import load_checkpoint, save_checkpoint
from distrlcc.runs.leadership import FencedError
from distrlcc.runs.storage_session import restore, stored
from distrlcc.storage import (
    LATEST,
    MANIFEST,
    OWNER,
    Manifest,
    Owner,
    Storage,
    StorageKeeper,
    StorageLostError,
    stored_runs,
)
from tests.hosts import wait_until


@pytest.fixture(params=["folder", "s3", "fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Give an empty place."""
    name = f"run{random.randrange(10**9)}"
    if request.param == "s3":
        return Storage(request.getfixturevalue("server").url, name, "me")
    url = str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path}"
    return Storage(url, name, "me")


def write(folder: Path, update: int) -> None:
    """Write what a run writes by an update."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text("seed = 1\n")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"update": {update}}}\n')
    state = {"update": update, "x": np.full(20_000, update)}
    save_checkpoint(folder / LATEST, state)


def update_of(folder: Path) -> int:
    state = load_checkpoint(folder / LATEST)
    assert np.all(state["x"] == state["update"])
    return int(state["update"])


def begin(storage: Storage, run: Path, *updates: int) -> Manifest:
    """Store a run of some updates; return the newest one's manifest."""
    with stored(storage, run, resume=False):
        for update in updates:
            write(run, update)
            manifest = storage.push(run)
            assert manifest.generation == update
    return manifest


@contextmanager
def gone(store: Path) -> Iterator[None]:
    """Let a folder be away, and a file in its place."""
    away = store.rename(store.with_name("away"))
    store.write_text("in the way")
    yield
    store.unlink()
    away.rename(store)


def other(storage: Storage, run: str = "other") -> Storage:
    return Storage(storage.url, storage.name, run)


def test_the_newest_two_generations_stand(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(storage, run, 1, 2, 3)
    names = storage.names()
    assert len({name.split("/")[0] for name in names}) == 2  # the claim is gone, too
    assert storage.name in stored_runs(storage.url)
    assert storage.read_config() == "seed = 1\n"
    again = pickle.loads(pickle.dumps(other(storage)))
    assert again.pull(tmp_path / "copy")[1] == []
    assert update_of(tmp_path / "copy") == 3
    files = {p.relative_to(run) for p in run.rglob("*") if p.is_file() and p.name != ".storage"}
    for name in files:
        assert (tmp_path / "copy" / name).read_bytes() == (run / name).read_bytes()


def test_what_a_link_leads_to_is_not_stored(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("a secret")
    (tmp_path / "run" / "notes").mkdir(parents=True)
    (tmp_path / "run" / "notes" / "link").symlink_to(tmp_path / "private")
    begin(storage, tmp_path / "run", 1)
    assert not [name for name in storage.names() if "link" in name]


@pytest.mark.parametrize("cut_off", [False, True])
def test_who_is_replaced_at_any_line_of_a_store_hides_nothing(
    cut_off: bool, tmp_path: Path
) -> None:
    former, following = tmp_path / "former", tmp_path / "next"
    write(former, 3)
    write(following, 9)
    for line in range(100):
        storage = Storage(str(tmp_path / "store"), f"run{line}", "me")
        with storage.claim():
            storage.push(former)
            if not _push_replaced(storage, former, following, line, cut_off=cut_off):
                break
        newest, *older = storage._manifests([])
        assert all(each.generation < newest.generation for each in older), f"line {line}"
        storage.pull(tmp_path / f"copy{line}")
        assert update_of(tmp_path / f"copy{line}") == 9, f"line {line}"
    assert 15 < line < 99


def _push_replaced(
    storage: Storage, former: Path, following: Path, line: int, *, cut_off: bool
) -> bool:
    """Push a run until a line of it; there another rank pushes. Say whether that line came.

    Who is replaced hears of it, unless it is cut off from where it could.
    """
    seen, replaced = 0, False

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen, replaced
        if frame.f_code is not Storage.push.__code__:
            return None
        seen += event == "line"
        if seen > line:
            replaced = True
            sys.settrace(None)
            Storage(storage.url, storage.name, "me").push(following, leader=("run", 2))
        return None if replaced else step

    def check() -> None:
        if replaced and not cut_off:
            raise FencedError("replaced")

    sys.settrace(step)
    try:
        with suppress(FencedError, StorageLostError):
            storage.push(former, check, leader=("run", 1))
    finally:
        sys.settrace(None)
    return replaced


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "manifest"])
def test_a_damaged_generation_gives_way_to_the_one_before(
    storage: Storage, damage: str, tmp_path: Path
) -> None:
    manifest = begin(storage, tmp_path / "run", 1, 2)
    name = f"{manifest.place}/{LATEST}"
    data = storage.read(name)
    assert data is not None
    if damage == "delete":
        storage.delete(name)
    elif damage == "manifest":
        storage.write(f"{manifest.place}/{MANIFEST}", b'{"generation": 2')
    else:
        storage.write(name, data[:-9] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    _, damaged = storage.pull(tmp_path / "copy")
    assert len(damaged) == 1
    assert manifest.place in damaged[0]
    assert update_of(tmp_path / "copy") == 1
    with stored(storage, tmp_path / "copy", resume=True):
        write(tmp_path / "copy", 5)
    storage.pull(tmp_path / "third")
    assert update_of(tmp_path / "third") == 5


def test_a_run_without_a_whole_generation_is_refused(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds no run"):
        storage.pull(tmp_path / "copy")
    place = begin(storage, tmp_path / "run", 1).place
    storage.write(f"{place}/config.toml", b"seed = 2\n")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint: .*config\.toml is damaged"):
        storage.pull(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(CheckpointError, match=r"no whole checkpoint: .*config\.toml is damaged"):
        storage.read_config()


def test_a_first_store_that_was_cut_off_is_told(storage: Storage, tmp_path: Path) -> None:
    write(tmp_path / "run", 1)
    left, put = [1], storage.write

    def cut(name: str, data: bytes) -> None:
        if not left.pop():
            raise OutputError("the cable is pulled")
        left.append(0)
        put(name, data)

    with storage.claim():
        storage.write = cut  # type: ignore[method-assign]
        with pytest.raises(OutputError, match="cable"):
            storage.push(tmp_path / "run")
        del storage.write
    with pytest.raises(OutputError, match=r"no whole checkpoint: its first was cut off"):
        storage.pull(tmp_path / "pulled")


def test_a_name_is_not_given_away(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    begin(storage, run, 1)
    with (
        pytest.raises(OutputError, match="already holds a run: add --resume"),
        stored(other(storage), tmp_path / "new", resume=False),
    ):
        pass
    with stored(other(storage), tmp_path / "copy", resume=True):
        write(tmp_path / "copy", 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("mine")
    with pytest.raises(StorageLostError, match="has gone on without"):
        storage.push_if_new(run)
    with stored(storage, run, resume=True):  # fetched, and nothing is lost
        assert update_of(run) == 2
    assert (tmp_path / "run-kept-1" / "metrics.jsonl").read_text().endswith("mine")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(OutputError, match="into the folder that you are in"):
        restore(storage, Path())


def test_an_older_copy_of_a_run_does_not_take_the_place_of_what_is_newer(
    storage: Storage, tmp_path: Path
) -> None:
    run, old = tmp_path / "run", tmp_path / "backup" / "run"
    begin(storage, run, 1)
    shutil.copytree(run, old)
    with stored(storage, run, resume=True):
        write(run, 2)
    write(old, 1)  # it went on by itself
    with stored(other(storage), old, resume=True):
        assert update_of(old) == 2
    assert update_of(tmp_path / "backup" / "run-kept-1") == 1
    # A run whose process died while it stored goes on, whether its manifest is there or not.
    put = storage.write
    for lost in (MANIFEST, OWNER):
        write(run, update := update_of(run) + 1)

        def cut(name: str, data: bytes, lost: str = lost) -> None:
            if name.endswith(f"/{lost}"):
                raise OutputError("the cable is pulled")
            put(name, data)

        with storage.claim():
            storage.write = cut  # type: ignore[method-assign]
            with suppress(OutputError):
                storage.push(run)
            del storage.write
        with stored(other(storage), run, resume=True):
            assert update_of(run) == update
    # A note of before the place was in it speaks for its run alone.
    note = json.loads((run / ".storage").read_text())
    (run / ".storage").write_text(json.dumps({"folder": note["folder"], "seen": 0}))
    write(run, update + 1)
    with stored(other(storage), run, resume=True):
        assert update_of(run) == update + 1


def test_a_living_owner_keeps_its_name_and_a_dead_one_loses_it(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=3,retry=0.2")
    run = tmp_path / "run"
    with storage.claim():
        write(run, 1)
        storage.push(run)
        with pytest.raises(OutputError, match=r"is being stored by process \d+ on"):
            other(storage).claim().__enter__()
        own = storage.owner()
        assert own is not None
        whole = storage.read(OWNER)
        assert whole is not None
        storage.write(OWNER, whole[:9])  # another is in the middle of it
        with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patch:
            patch.setenv("DISTRLCC_LIMITS", "stall=3,retry=2")
            found = thread.submit(storage.owner)
            time.sleep(0.1)
            storage.write(OWNER, whole)
            heard = found.result(10.0)
            assert heard is not None
            assert replace(heard, beat=own.beat) == own
        far = Owner("far", "elsewhere", 1, "another/machine/1")
        storage.write(OWNER, b"{}")
        before = storage.names()
        with pytest.raises(StorageLostError, match=r"has taken .* over"):
            storage.push(run)
        assert storage.names() == before
    # One that ended without a word, on another machine and on this one.
    here = replace(far, process=own.process.rpartition("/")[0] + "/1000000000000")
    damaged = replace(far, watch=1e300)
    owners = [(far, 3.0, 2.8, 30.0), (here, 100.0, 0.0, 30.0)]
    if "://" not in storage.url:  # a server answers later than that
        owners.append((damaged, 0.1, 1.8, 30.0))
    for owner, watch, least, most in owners:
        monkeypatch.setenv("DISTRLCC_LIMITS", f"stall={watch},retry=0.2")
        storage.write(OWNER, msgspec.json.encode(owner))
        begin = time.monotonic()
        with other(storage).claim():
            assert least <= time.monotonic() - begin < most
            heir = storage.owner()
            assert heir is not None
            assert heir.run == "other"


def test_what_fails_is_said_once_and_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    storage = Storage(str(store), "run", "me")
    news: list[str] = []

    def heard(word: str) -> bool:
        keeper.wake()
        news.extend(keeper.news())
        return any(word in line for line in news)

    with ExitStack() as stack:
        stack.enter_context(stored(storage, run, resume=False))
        write(run, 1)
        keeper = StorageKeeper(storage, run, lambda: None, ("", 0))
        stack.callback(keeper.close)
        with gone(store):
            wait_until(lambda: heard("not stored"), 30, "a failure")
        wait_until(lambda: heard("stored again"), 30, "its end")
        # A push while the folder comes back may fail for another reason, which is said, too.
        assert len(set(news)) == len(news) <= 3
        assert all("not stored" in line for line in news[:-1])
    assert storage.holds_run()
    monkeypatch.setenv("DISTRLCC_LIMITS", "stop=0.5,retry=0.1")
    ending = stored(storage, run, resume=True)
    ending.__enter__()
    write(run, 2)
    not_stored = pytest.raises(OutputError, match=r"saved here, but its end is not .*--storage")
    with gone(store), not_stored:
        ending.__exit__(None, None, None)
    with stored(storage, run, resume=True):  # stores what was not
        storage.pull(tmp_path / "copy")
    assert update_of(tmp_path / "copy") == 2


@pytest.mark.parametrize("harm", ["cut", "delete"])
def test_a_directory_without_a_whole_checkpoint_is_fetched(harm: str, tmp_path: Path) -> None:
    storage, run = Storage(str(tmp_path / "store"), "run", "me"), tmp_path / "run"
    begin(storage, run, 1)
    if harm == "cut":
        (run / LATEST).write_bytes((run / LATEST).read_bytes()[:-9])
    else:
        (run / LATEST).unlink()
    with stored(other(storage), run, resume=True):
        assert update_of(run) == 1
    assert (tmp_path / "run-kept-1" / "config.toml").exists()


def test_a_run_that_is_fetched_elsewhere_is_no_copy_to_its_trackers(tmp_path: Path) -> None:
    storage, run = Storage(str(tmp_path / "store"), "run", "me"), tmp_path / "run"
    begin(storage, run, 1)
    kept = {"run": "id", "place": "links", "folder": str(run)}
    (run / "tracker-wandb.json").write_text(json.dumps(kept))
    with stored(storage, run, resume=True):  # stores it
        pass
    new = tmp_path / "new"
    with stored(other(storage), new, resume=True):
        found = json.loads((new / "tracker-wandb.json").read_text())
    assert found == kept | {"folder": str(new)}


PUSHER = """
import sys, pathlib
from tests.storage import test_storage
run = pathlib.Path(sys.argv[3])
storage = test_storage.Storage(sys.argv[1], sys.argv[2], "pusher")
with storage.claim():
    for update in range(int(sys.argv[4]), 10**6):
        test_storage.write(run, update)
        storage.push(run)
        print(update, flush=True)
"""


@pytest.mark.parametrize("kind", [pytest.param("folder", marks=pytest.mark.long), "s3"])
def test_kills_at_any_moment_leave_the_newest_stored(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "store") if kind == "folder" else request.getfixturevalue("server").url
    chance, last = random.Random(11), 0
    for round_ in range(4):
        run = tmp_path / f"run{round_}"
        process = subprocess.Popen(
            [sys.executable, "-c", PUSHER, url, "killed", str(run), str(last + 1)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(3)]
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        said += [int(line) for line in process.stdout.read().split()]
        process.stdout.close()
        storage = Storage(url, "killed", "next")
        assert storage.pull(tmp_path / f"copy{round_}")[1] == []
        last = update_of(tmp_path / f"copy{round_}")
        assert said[-1] <= last <= said[-1] + 1
        complete = [name for name in storage.names() if name.endswith(MANIFEST)]
        assert len(complete) >= 2
