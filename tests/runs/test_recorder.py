"""Wherever a rank 0 is killed or frozen between two lines, each update has one row, in order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import distrlcc
from distrlcc.errors import OutputError
from distrlcc.policy.policy_file import PolicyFile, load_policy
from distrlcc.runs.checkpoint import load_checkpoint
from distrlcc.runs.leadership import FencedError
from distrlcc.runs.metrics_log import read_metrics
from distrlcc.runs.progress import Display
from distrlcc.runs.recorder import Leader, Recorder
from distrlcc.runs.run_directory import RunDirectory
from tests.policy.random_policies import make_policy
from tests.runs.test_run_directory import Config, create

PACKAGE = Path(distrlcc.__file__).parent
PARTS = ["recorder", "metrics_log", "run_directory", "leadership"]
SOURCES = {str(PACKAGE / "files.py"), *(str(PACKAGE / "runs" / f"{part}.py") for part in PARTS)}
STOPPED = 4
"""The update in which rank 0 stops: it is scored and saved."""


@dataclass
class Group:
    """What the ranks have agreed on."""

    leader: Rank | None = None
    epoch: int = 0

    def agree(self, leader: Rank) -> None:
        if self.leader is not leader:
            self.leader, self.epoch = leader, self.epoch + 1
            leader.epoch = self.epoch


class State:
    """As much of a `RunState` as is recorded: the weights are the update's number."""

    def __init__(self) -> None:
        self.counters = SimpleNamespace(update=0, seconds=0.0, best_update=0)
        self.config = SimpleNamespace(scores_at=lambda update: update % 2 == 0, checkpoint_every=2)
        self.rang = self.restored = self.alarm = None
        self.scored_update = -1
        self.over, self.time_is_up = "all its updates", False

    def score(self) -> dict[str, float]:
        self.scored_update = self.counters.best_update = self.counters.update
        return {"held_out": float(self.counters.update)}

    def shared_state(self) -> dict[str, Any]:
        update = self.counters.update
        return {"update": update, "weights": np.full(9, update), "counters": {"update": update}}

    def policy(self) -> PolicyFile:
        return replace(make_policy(), notes={"update": self.counters.update})


class Rank(Leader):
    """A rank with its recorder; the group says whether it leads."""

    def __init__(self, group: Group, out: Path) -> None:
        self._group, self._out, self.size = group, out, 2
        self.epoch, self.leads = 0, False
        self.state: Any = State()
        self.recorder = Recorder(self.state, self, self._open, shared_only=True)  # type: ignore[arg-type]

    def _open(self, stack: ExitStack) -> tuple[RunDirectory, Display]:
        run = stack.enter_context(RunDirectory.resume(self._out, Config(), tensorboard=False))
        run.belong_to("run", new=False)
        run.lead(self.epoch, self.still_leads)
        shown: Any = SimpleNamespace(note=lambda _: None, update=lambda *_, **__: None)
        return run, shown

    @property
    def key(self) -> str:  # type: ignore[override]
        return f"group {self._group.epoch}"

    def still_leads(self) -> bool:
        return self._group.leader is self


@dataclass
class Ranks:
    """Two ranks that make the same updates in one run directory."""

    out: Path
    group: Group = field(default_factory=Group)

    def __post_init__(self) -> None:
        with create(self.out) as run:
            run.belong_to("run")
        self.first, self.second = (Rank(self.group, self.out) for _ in range(2))

    def close(self) -> None:
        for rank in self.first, self.second:
            rank.recorder.close()

    def agree(self, leader: Rank, *others: Rank) -> None:
        """Let the others and their leader agree, which writes what its predecessor has not."""
        self.group.agree(leader)
        for rank in (leader, *others):
            rank.leads = rank is leader
            rank.recorder.lead()

    def update(self, *ranks: Rank) -> None:
        """Make an update: confirm rows, and let each rank record, rank 0 last."""
        (leader,) = (rank for rank in ranks if rank.leads)
        saved = leader.recorder.saved[0]
        for rank in sorted(ranks, key=lambda rank: rank.leads):
            rank.recorder.confirm(saved)
            rank.state.counters.update += 1
            rank.recorder.record({"loss": float(rank.state.counters.update)})

    def begin(self) -> None:
        """Make the updates before the one in which rank 0 stops; the other one has made it."""
        self.agree(self.first, self.second)
        for _ in range(STOPPED - 1):
            self.update(self.first, self.second)
        self.second.recorder.confirm(self.first.recorder.saved[0])
        for rank in (self.first, self.second):
            rank.state.counters.update += 1
        self.second.recorder.record({"loss": float(STOPPED)})

    def go_on_without_the_first(self) -> None:
        self.agree(self.second)
        self.update(self.second)
        self.update(self.second)

    def first_stops(self) -> None:
        self.first.recorder.record({"loss": float(STOPPED)})

    def check(self, count: int) -> None:
        lines = [json.loads(text) for text in (self.out / "metrics.jsonl").read_text().splitlines()]
        with_loss = [line["update"] for line in lines if "loss" in line]
        assert with_loss == list(range(1, count + 1))
        assert [line["update"] for line in lines] == sorted(line["update"] for line in lines)
        rows = read_metrics(self.out / "metrics.jsonl")
        assert [row["loss"] for row in rows] == with_loss
        scored = [row["update"] for row in rows if "held_out" in row]
        assert [u for u in scored if u != STOPPED] == [
            u for u in range(1, count + 1) if u % 2 == 0 and u != STOPPED
        ]
        for name, lost in (("latest", 0), ("previous", 4), ("best", 0)):
            saved = load_checkpoint(self.out / "checkpoints" / f"{name}.safetensors")
            assert count - lost <= saved["update"] == saved["weights"][0]
        assert load_policy(self.out / "policy.safetensors").notes["update"] == count
        assert not list(self.out.rglob("*.tmp"))


def at_line(number: int, act: Callable[[], None], call: Callable[..., None]) -> bool:
    """Call something, and act before its n-th line of what records; say whether it has so many."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in SOURCES:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                act()
        return trace if left > 0 else None

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return left <= 0


"""Every line, or every so many."""


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.long
def test_rank_0_is_frozen_before_each_line_in_turn(tmp_path: Path) -> None:
    number, froze = 0, True
    while froze:
        number += 1
        with closing(Ranks(tmp_path / str(number))) as ranks:
            ranks.begin()
            froze = at_line(number, ranks.go_on_without_the_first, ranks.first_stops)
            if not froze:
                ranks.go_on_without_the_first()
            # It is thawed, receives the newest state, and is rank 0 again.
            first, second = ranks.first, ranks.second
            first.state.counters.update = second.state.counters.update
            first.recorder.rows = dict(second.recorder.rows)
            first.recorder.saved = second.recorder.saved
            ranks.agree(first, second)
            ranks.update(first, second)
            ranks.update(first, second)
            ranks.check(STOPPED + 4)
            assert first.recorder.finish()
    assert number > 100, "the lines were not seen"


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 5])
def test_rank_0_is_killed_before_each_line_in_turn(tmp_path: Path, step: int) -> None:
    number, killed = 0, True
    while killed:
        number += step
        with closing(Ranks(tmp_path / str(number))) as ranks:
            ranks.begin()
            pid = os.fork()
            if pid == 0:
                at_line(number, lambda: os._exit(9), ranks.first_stops)
                os._exit(0)
            killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
            ranks.go_on_without_the_first()
            ranks.check(STOPPED + 2)
    assert number > 100, "the lines were not seen"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with closing(Ranks(tmp_path / "run")) as made:
        yield made


@pytest.mark.long
def test_a_successor_is_frozen_before_each_line_of_taking_over(tmp_path: Path) -> None:
    number, froze = 0, True
    while froze:
        number += 1
        with closing(Ranks(tmp_path / str(number))) as ranks:
            ranks.begin()
            second, third = ranks.second, Rank(ranks.group, ranks.out)
            third.state.counters.update = second.state.counters.update
            third.recorder.rows = dict(second.recorder.rows)
            third.recorder.saved = second.recorder.saved

            def go_on(third: Rank = third, ranks: Ranks = ranks) -> None:
                ranks.agree(third)
                ranks.update(third)
                ranks.update(third)

            with closing(third.recorder):
                froze = at_line(number, go_on, lambda r=ranks, s=second: r.agree(s))
                if not froze:
                    go_on()
                # It is thawed and believes that it leads, but it writes nothing.
                second.state.counters.update += 1
                second.recorder.record({"loss": 0.0})
                assert not second.recorder.finish()
                ranks.update(third)
                ranks.update(third)
                ranks.check(STOPPED + 4)
                latest, previous = (
                    (ranks.out / "checkpoints" / f"{name}.safetensors").stat().st_ino
                    for name in ("latest", "previous")
                )
                assert latest != previous
    assert number > 60, "the lines were not seen"


def test_eight_leaders_in_a_row_are_lost_with_their_rows(ranks: Ranks) -> None:
    ranks.begin()
    lost = [ranks.first]
    for _ in range(8):
        successor = Rank(ranks.group, ranks.out)
        successor.state.counters.update = ranks.second.state.counters.update
        successor.recorder.rows = dict(ranks.second.recorder.rows)
        successor.recorder.saved = ranks.second.recorder.saved
        ranks.agree(successor, ranks.second)
        # The update is made, and the leader is lost before it writes.
        for rank in (successor, ranks.second):
            rank.state.counters.update += 1
        ranks.second.recorder.record({"loss": float(ranks.second.state.counters.update)})
        lost.append(successor)
    ranks.agree(ranks.second)
    ranks.update(ranks.second)
    for rank in lost:  # thawed, each one writes nothing
        rank.recorder.record({"loss": 0.0})
        assert not rank.recorder.finish()
    rows = read_metrics(ranks.out / "metrics.jsonl")
    assert [row["loss"] for row in rows] == list(range(1, STOPPED + 10))


def test_a_former_leader_of_the_same_folder_is_refused(tmp_path: Path) -> None:
    with create(tmp_path / "run") as old, create(tmp_path / "other"):
        old.belong_to("run")
        old.lead(3)
        old.save({"update": 1})
        with RunDirectory.resume(old.path, Config(), tensorboard=False) as new:
            new.belong_to("run", new=False)
            with pytest.raises(FencedError):
                new.lead(2)
            new.lead(4)
            for write in (lambda: old.save({"update": 2}), old.check, lambda: old.lead(3)):
                with pytest.raises(FencedError, match="has taken"):
                    write()
            killed = old.path / "checkpoints" / ".latest.safetensors.7-1-0a.tmp"
            killed.touch()
            new.belong_to("another")  # it is begun again
            assert not killed.exists()
            with pytest.raises(FencedError):
                RunDirectory.check(old)
        assert load_checkpoint(old.checkpoint_path("latest"))["update"] == 1


def test_a_run_with_a_policy_can_be_resumed(ranks: Ranks) -> None:
    config = SimpleNamespace(scores_at=lambda update: update % 2 == 0, checkpoint_every=50)
    ranks.first.state.config = config
    ranks.agree(ranks.first, ranks.second)
    for _ in range(3):
        ranks.update(ranks.first, ranks.second)
    run = RunDirectory.resume(ranks.out, Config(), tensorboard=False)
    assert run.policy_path.exists()
    assert run.load() is not None
    run.close()


def test_an_alarm_is_shown_until_it_has_passed_or_the_state_is_restored(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.agree(ranks.first, ranks.second)
    state, shown, recorder = ranks.first.state, list[Any](), ranks.first.recorder
    assert recorder._opened is not None
    monkeypatch.setattr(recorder._opened[1], "update", lambda _, alarm=None: shown.append(alarm))
    state.alarm = SimpleNamespace(on=False)
    rings = (None, False), ("silent", True), (None, True), (None, False), ("diverged", False)
    for rang, stands in rings:  # with the last the state was restored
        state.rang, state.alarm.on = rang, stands
        ranks.update(ranks.first, ranks.second)
    assert shown == [None, "silent", "silent", None, None]


def test_a_folder_that_was_removed_is_said(ranks: Ranks) -> None:
    ranks.agree(ranks.first, ranks.second)
    ranks.update(ranks.first, ranks.second)
    for path in sorted(ranks.out.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    ranks.out.rmdir()
    with pytest.raises(OutputError, match="removed"):
        ranks.update(ranks.first, ranks.second)
    assert not ranks.out.exists()
