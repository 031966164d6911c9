"""Sequences of what may befall a storage and a run directory, drawn at random and compared.

A model says what must come back: the newest whole one, with a line for each newer one that is not.
"""

import shutil
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from distrlcc.errors import CheckpointError, DistrlccError, OutputError
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.storage import LATEST, MANIFEST, Storage, StorageLostError

DAMAGES = st.sampled_from(["bit", "cut", "gone"])


def _harm(path: Path, how: str, place: float) -> None:
    """Flip a bit of a file, cut it, or remove it.

    Bits are of the last bytes, which are weights: test_damage.py flips those that say nothing, too.
    """
    data = bytearray(path.read_bytes())
    if how == "gone" or not data:
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: int(place * len(data))])
    else:
        data[-1 - int(place * min(len(data), 32))] ^= 1
        path.write_bytes(data)


class _Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # syncs take no time there
        self.root = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))

    def teardown(self) -> None:
        self.stack.close()


@dataclass
class Generation:
    """What a push stored, as the model has it."""

    number: int
    content: bytes
    whole: bool = True


class StorageMachine(_Machine):
    """Pushes, some of them cut off, owners, leaders, damage and pulls."""

    storage: Storage

    @initialize()
    def begin(self) -> None:
        self.run, self.there = self.root / "run", self.root / "store"
        (self.run / "checkpoints").mkdir(parents=True)
        self.content, self.epoch, self.attempt = b"0", 1, 0
        self.generations = list[Generation]()
        self.claims = ExitStack()
        self.stack.callback(self.claims.close)
        self.earlier = list[Storage]()
        self.take_over()
        self.train(b"begun")

    @rule(content=st.binary(min_size=1, max_size=40))
    def train(self, content: bytes) -> None:
        self.content = content
        (self.run / LATEST).write_bytes(content)
        (self.run / "metrics.jsonl").write_bytes(content[::-1])

    @rule()
    def take_over(self) -> None:
        """A later attempt of the same run takes the name at once."""
        if self.attempt:
            self.earlier.append(self.storage)
        self.attempt += 1
        self.storage = Storage(str(self.there), "one", f"id#{self.attempt}")
        self.claims.enter_context(self.storage.claim())

    @precondition(lambda self: self.earlier)
    @rule()
    def earlier_owner_pushes(self) -> None:
        with pytest.raises(StorageLostError):
            self.earlier[-1].push(self.run)

    @rule(later=st.booleans())
    def push(self, later: bool) -> None:
        self.epoch += later
        found = self.storage.push(self.run, leader=("run", self.epoch))
        assert all(found.generation > old.number for old in self.generations)
        self.generations = [*self.generations[-1:], Generation(found.generation, self.content)]

    @precondition(lambda self: self.epoch > 1 and any(g.whole for g in self.generations[-1:]))
    @rule()
    def earlier_leader_pushes(self) -> None:
        self.push(later=True)
        with pytest.raises(StorageLostError):
            self.storage.push(self.run, leader=("run", self.epoch - 1))

    @rule(after=st.integers(0, 2))
    def push_is_cut_off(self, after: int) -> None:
        left, write = [after], self.storage.write

        def failing(name: str, data: bytes) -> None:
            if not left[0]:
                raise OutputError("the cable is pulled")
            left[0] -= 1
            write(name, data)

        self.storage.write = failing  # type: ignore[method-assign]
        try:
            with pytest.raises(OutputError, match="cable"):
                self.storage.push(self.run, leader=("run", self.epoch))
        finally:
            del self.storage.write

    @precondition(lambda self: any(old.whole for old in self.generations))
    @rule(
        which=st.integers(0, 1),
        name=st.sampled_from([LATEST, "metrics.jsonl", MANIFEST]),
        how=DAMAGES,
        place=st.floats(0, 0.9),
    )
    def harm(self, which: int, name: str, how: str, place: float) -> None:
        whole = [old for old in self.generations if old.whole]  # twice the same bit is no harm
        old = whole[which % len(whole)]
        (folder,) = (self.there / "one").glob(f"{old.number:06d}-*/{MANIFEST}")
        path = folder.parent / name
        if not path.exists():
            return
        before = path.read_bytes()
        # A generation without a manifest is none; what a manifest tells people may change.
        _harm(path, "cut" if name == MANIFEST else how, place)
        changed = not path.exists() or path.read_bytes() != before
        old.whole = old.whole and not changed

    @rule()
    def pull(self) -> None:
        out = self.root / "pulled"
        shutil.rmtree(out, ignore_errors=True)
        whole = [old for old in self.generations if old.whole]
        if not whole:
            with pytest.raises(CheckpointError if self.generations else OutputError):
                self.storage.pull(out)
            assert not out.exists()
            return
        found, damage = self.storage.pull(out)
        newest = whole[-1]
        assert found.generation == newest.number
        assert (out / LATEST).read_bytes() == newest.content
        assert (out / "metrics.jsonl").read_bytes() == newest.content[::-1]
        assert len(damage) == sum(old.number > newest.number for old in self.generations)


@dataclass(frozen=True)
class Settings:
    """A run's configuration."""

    width: int = 3


class RunDirectoryMachine(_Machine):
    """Updates, checkpoints, ends without a word, damage and resumes."""

    @initialize()
    def begin(self) -> None:
        self.path, self.said = self.root / "run", list[str]()
        self.update, self.saved = 0, dict[str, int]()
        self.harmed = set[str]()
        self.directory = RunDirectory.create(self.path, Settings(), tensorboard=False)
        self.stack.callback(lambda: self.directory.close())

    def _state(self) -> dict[str, Any]:
        return {"update": self.update, "weights": np.full(8, self.update, np.float32)}

    @rule(rows=st.integers(1, 3))
    def train(self, rows: int) -> None:
        for _ in range(rows):
            self.update += 1
            self.directory.metrics.log(self.update, {"steps": float(self.update)})

    @rule()
    def save(self) -> None:
        self.directory.save(self._state())
        if "latest" in self.saved and "latest" not in self.harmed:
            self.saved["previous"] = self.saved["latest"]
            self.harmed.discard("previous")
        self.saved["latest"] = self.update
        self.harmed.discard("latest")

    @precondition(lambda self: self.saved)
    @rule(name=st.sampled_from(["latest", "previous"]), how=DAMAGES, place=st.floats(0, 0.9))
    def harm_and_resume(self, name: str, how: str, place: float) -> None:
        path = self.directory.checkpoint_path(name)
        if path.exists():
            _harm(path, how, place)
            self.harmed.add(name)
        self.resume()

    @rule()
    def resume(self) -> None:
        """The process ends without a word, and another goes on."""
        self.directory.close()
        self.directory = RunDirectory.resume(self.path, Settings(), tensorboard=False)
        self.said.clear()
        whole = [name for name in ("latest", "previous") if name in self.saved]
        whole = [name for name in whole if name not in self.harmed]
        if self.saved and not whole:
            with suppress(DistrlccError):
                assert self.directory.load(self.said.append) is None
                assert self.said
            self.begin_anew()
            return
        state = self.directory.load(self.said.append)
        if not self.saved:
            assert state is None
            assert "begins anew" in self.said[0]
            kept = 0
        else:
            assert state is not None
            kept = self.saved[whole[0]]
            assert state["update"] == kept
            assert (state["weights"] == kept).all()
            assert bool(self.said) == (whole[0] != "latest"), self.said
        self.update = kept
        self.directory.rewind(kept)
        rows = self.directory.metrics.path.read_text().splitlines()
        assert len(rows) == kept

    def begin_anew(self) -> None:
        self.directory.close()
        shutil.rmtree(self.path)
        self.update, self.saved, self.harmed = 0, {}, set()
        self.directory = RunDirectory.create(self.path, Settings(), tensorboard=False)


@pytest.mark.parametrize("machine", [StorageMachine, RunDirectoryMachine])
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.long)])
def test_what_comes_back_is_what_the_model_says(
    machine: type[RuleBasedStateMachine], count: int
) -> None:
    few = settings(
        max_examples=count,
        stateful_step_count=25,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=few)
