"""Power cuts: each state that one may leave opens as it was saved, or a line says what is lost."""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from distrlcc.errors import DistrlccError
from distrlcc.runs.metrics_log import read_metrics
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.storage import Storage
from tests.crash import History, Tree, recorded, write_tree

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("strace"), reason="needs strace"),
]
UPDATE_STEPS = 96
KINDS = ("run", "storage", "resume")
TINY = """num_envs=6 checkpoint_every=1 held_out.every=3 held_out.links=2 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[8] ppo.rollout_length=16 ppo.minibatch_size=96"""


@dataclass
class Found:
    """What a reader makes of a state."""

    update: int
    """Of the checkpoint that it goes on from; 0: none, -1: a line says why it cannot."""
    told: list[str]
    rows: dict[int, dict[str, object]]


@dataclass
class Recorded:
    """What a command did, the reader of it, and what the run measured."""

    kind: str
    history: History
    read: Callable[[Path], Found]
    rows: dict[int, dict[str, object]]


def _train(out: Path, updates: int, *words: str) -> list[str]:
    command = [sys.executable, "-P", "-m", "distrlcc", "train", "quickstart", "--out", str(out)]
    settings = [*TINY.split(), f"total_steps={updates * UPDATE_STEPS}"]
    return [*command, "--no-tensorboard", *words, "--set", *settings]


def _read_run(folder: Path) -> Found:
    told = list[str]()
    try:
        config = RunDirectory.read_config(folder, RunConfig, told.append)
        with RunDirectory.resume(folder, config, tensorboard=False) as run:
            state = run.load(told.append)
            update = 0 if state is None else int(state["counters"]["update"])
            run.go_on(update)
        rows = {int(row["update"]): row for row in read_metrics(folder / "metrics.jsonl")}
    except DistrlccError as error:
        return Found(-1, [str(error)], {})
    return Found(update, told, rows)


def _read_storage(folder: Path) -> Found:
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        Storage(str(folder), "run", "me").pull(copy)
        return _read_run(copy)
    except DistrlccError as error:
        return Found(-1, [str(error)], {})
    finally:
        shutil.rmtree(copy, ignore_errors=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crash")


@pytest.fixture(scope="module")
def begun(place: Path) -> list[History]:
    """Record a run from its begin to its end, and what it stores."""
    out, store = place / "run", place / "store"
    return recorded(_train(out, 6, "--storage", str(store)), [out, store], place / "log")


@pytest.fixture(scope="module")
def recording(place: Path, begun: list[History], request: pytest.FixtureRequest) -> Recorded:
    """Return what was recorded of a run, its storage, or how it is gone on with."""
    out, kind = place / "run", request.param
    if kind == "resume":
        begun = recorded(_train(out, 9, "--resume"), [out], place / "log")
    rows = {int(row["update"]): row for row in read_metrics(out / "metrics.jsonl")}
    read = _read_storage if kind == "storage" else _read_run
    return Recorded(kind, begun[kind == "storage"], read, rows)


def _wrong(found: Found, least: int, rows: dict[int, dict[str, object]]) -> str:
    """Say what is wrong with what a reader made of a state that has update ``least`` for sure."""
    if found.update < max(least, 0) and (least or not found.told):
        return f"update {found.update}, and {least} was saved: {found.told}"
    differs = [n for n in range(1, found.update + 1) if not _is_part(found.rows.get(n), rows[n])]
    return f"rows {differs} differ, of {found.update}" if differs and not found.told else ""


def _is_part(row: dict[str, object] | None, whole: dict[str, object]) -> bool:
    return row is not None and all(whole.get(key) == value for key, value in row.items())


@pytest.mark.parametrize(
    ("recording", "drawn"),
    [("run", 0), *(pytest.param(k, 60, marks=pytest.mark.long) for k in KINDS)],
    indirect=["recording"],
)
def test_a_power_cut_takes_nothing_that_was_saved(
    recording: Recorded, drawn: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history, random_ = recording.history, random.Random(3)
    seen, counts, wrong = dict[int, Found](), Counter[str](), list[str]()
    folder = tmp_path / "state"

    def found_in(tree: Tree) -> Found:
        key = hash(frozenset(tree.items()))
        if key not in seen:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_tree(folder, tree)
            seen[key] = recording.read(folder)
            counts["told" if seen[key].told else "as saved"] += 1
        return seen[key]

    least = 0
    for end in range(len(history.ops) + 1):
        least = max(least, found_in(history.floor(end)).update)
        found = map(found_in, history.states(end, drawn, random_))
        faults = filter(None, (_wrong(one, least, recording.rows) for one in found))
        wrong += [f"behind {end} of {len(history.ops)} operations: {fault}" for fault in faults]
    said = f" {recording.kind}: {len(history.ops)} operations, {len(seen)} states, {dict(counts)}"
    with capsys.disabled():
        sys.stdout.write(said)
    assert least == max(recording.rows)
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("what", ["files", "folders"])
def test_what_is_not_synced_is_not_there(begun: list[History], what: str, tmp_path: Path) -> None:
    history = begun[0]
    ops = [op for op in history.ops if op.kind != "sync" or bool(op.path) != (what == "folders")]
    assert len(ops) < len(history.ops)
    write_tree(tmp_path, replace(history, ops=ops).floor(len(ops)))
    assert _read_run(tmp_path).update < 6
