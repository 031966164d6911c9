"""Whole runs with workers that are threads: what is learned, written, refused and gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distrlcc.actors import segment_queue, worker_table
from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.engine import Changes
from distrlcc.actors.segment_queue import ENDED, GONE, STALE
from distrlcc.actors.start import actor_state, train_on_engine
from distrlcc.config import override
from distrlcc.errors import CheckpointError, GroupError
from distrlcc.parallel.start import TrainJob
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.runs.leadership import mark_run
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState
from tests.actors.shared import CONFIGS, DAGGER, ENVS, LENGTH, PPO, WORKERS
from tests.parallel.commands import rows, saved
from tests.support.thread_engine import InProcessEngine

UPDATE = WORKERS * ENVS * LENGTH
"""Environment steps of an update."""
ENDLESS = 10**12
FULL = f"total_steps={ENDLESS} actors.segments_per_update=1 ppo.num_epochs=20".split()
"""Learning is the slow part here, so that the next segments have always come already."""
LONG = 60.0
"""Far longer than anything here takes, s."""


def _begin(out: Path, config: RunConfig) -> TrainJob:
    RunDirectory.create(out, config, tensorboard=False).close()
    mark_run(out, "")
    return TrainJob(config, out, tensorboard=False)


def _train(job: TrainJob, engine: InProcessEngine | None = None) -> tuple[int, RunState]:
    training = actor_state(job)
    engine = engine or InProcessEngine(WORKERS)
    return train_on_engine(job, training, lambda: engine, patience=0.0), training


class EventfulEngine(InProcessEngine):
    """Does something as soon as a run has done some updates; its pool asks it all the time."""

    def __init__(self, out: Path, updates: int, act: Callable[[InProcessEngine], None]) -> None:
        super().__init__(WORKERS)
        self._metrics, self._updates = out / "metrics.jsonl", updates
        self._act: Callable[[InProcessEngine], None] | None = act

    def changes(self) -> Changes:
        act, metrics = self._act, self._metrics
        if act and metrics.exists() and metrics.read_bytes().count(b"\n") >= self._updates:
            self._act = None
            act(self)
        return super().changes()


@CONFIGS
def test_a_run_learns_and_writes_what_it_did(
    config: RunConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_table, "WRITE_SECONDS", 0.0)
    updates, out = 9, tmp_path / "run"
    config = override(config, [f"total_steps={updates * UPDATE}", "actors.max_lag=1000"])
    job = _begin(out, config)
    before = actor_state(job).learner.weights().arrays
    stopped, training = _train(job)
    assert stopped == 0
    counters = training.counters
    assert (counters.update, counters.steps) == (updates, updates * UPDATE)
    after = training.learner.weights().arrays
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    assert all(np.isfinite(array).all() for array in after.values())

    lines = rows(out)
    assert [line["update"] for line in lines] == list(range(1, updates + 1))
    for line in lines:
        update = line["update"]
        known = {"steps": update * UPDATE, "segments_used": update * WORKERS}
        known |= {"segments_refused": 0.0, "staleness": line["lag_max"]}
        assert line | known == line
        assert 0.0 <= line["lag"] <= line["lag_max"] < line["update"]
        assert 1.0 <= line["workers"] <= WORKERS
        assert 0.0 <= line["share_wait"] + line["share_update"] <= 1.0 + 1e-9
    assert any(line.get("publish_ms", -1.0) >= 0.0 for line in lines)
    assert (
        sum("held_out_reward_sample" in line for line in lines) == updates // 4 + 1
    )  # and its end
    if config.ppo is not None:
        assert all(0.0 < line["vtrace_rho"] <= 1.0 for line in lines)
    joined = [e for line in lines for e in line.get("events", ()) if e.startswith("joined")]
    assert 1 <= len(joined) <= WORKERS

    shown = rows(out, "workers.jsonl")
    links = {(0, "indigo/0"), (1, "indigo/5"), (2, "indigo/12")}
    assert {(row["worker"], row["link"]) for row in shown} == links
    for row in shown:
        assert row["lag"] >= 0
        assert row["version"] <= row["update"]
        assert row["heard_seconds"] < LONG

    state = saved(out)
    assert state["counters"]["update"] == updates
    assert state["ledger"]["used"] == updates * WORKERS
    source = training.source
    assert isinstance(source, ActorSource)
    assert len(source.queue) == 0
    assert json.loads((out / "versions.json").read_text())["resumed"] == []
    policy = NumpyPolicy.load(out / "policy.safetensors")
    assert policy.notes["update"] == counters.best_update
    printed = capsys.readouterr()
    assert f"an update learns from {WORKERS * ENVS} environments of workers, as " in printed.err
    first, *said = printed.out.splitlines()
    assert first.startswith("held-out links: ")
    assert said == [str(source.queue), f"policy: {out / 'policy.safetensors'}"]
    assert said[0].startswith(f"segments: {updates * WORKERS} used")


@CONFIGS
def test_with_no_lag_allowed_what_is_older_is_refused(config: RunConfig, tmp_path: Path) -> None:
    updates = 8
    settings = f"total_steps={updates * ENVS * LENGTH} actors.max_lag=0"
    config = override(config, [*settings.split(), "actors.segments_per_update=1"])
    stopped, training = _train(_begin(tmp_path / "run", config))
    assert (stopped, training.counters.update) == (0, updates)
    lines = rows(tmp_path / "run")
    assert {line["lag_max"] for line in lines} == {0.0}
    if config.ppo is not None:
        # All was acted by the very policy that learned.
        assert [line["vtrace_rho"] for line in lines] == pytest.approx([1.0] * updates, abs=1e-3)
    assert lines[-1]["segments_refused"] > 0.0
    ledger = saved(tmp_path / "run")["ledger"]
    assert ledger["used"] == updates
    assert ledger["refused"][STALE] > 0


def test_without_a_worker_it_waits_saves_and_fails_and_can_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = _begin(out, override(DAGGER, [f"total_steps={ENDLESS}", "actors.wait_workers=0.5"]))

    def leave(engine: InProcessEngine) -> None:
        for worker in engine.workers:
            engine.leave(worker, "went home")

    with pytest.raises(GroupError, match=r"no worker .* 0\.5 s") as told:
        _train(job, EventfulEngine(out, 2, leave))
    assert told.value.exit_code == 3
    state = saved(out)
    updates = state["counters"]["update"]
    assert f"saved after update {updates}" in str(told.value)
    assert updates >= 2
    assert state["ledger"]["used"] == updates * WORKERS
    assert NumpyPolicy.load(out / "policy.safetensors").spec.kind == "lstm"

    # It goes on with two workers instead of three, on other links.
    steps = updates * UPDATE + 3 * 2 * ENVS * LENGTH
    further = override(DAGGER, [f"total_steps={steps}", 'actors.nodes=[["3"], ["0"]]'])
    job = TrainJob(further, out, resume=True, tensorboard=False)
    with pytest.warns(UserWarning, match="the data set fills anew"):
        stopped, training = _train(job, InProcessEngine(2))
    assert (stopped, training.counters.update) == (0, updates + 3)
    assert training.counters.steps == steps
    assert len(json.loads((out / "versions.json").read_text())["resumed"]) == 1
    lines = rows(out)
    assert [line["update"] for line in lines] == list(range(1, updates + 4))
    gone = [e for line in lines for e in line.get("events", ()) if "went home" in e]
    assert len(gone) <= WORKERS
    assert saved(out)["ledger"]["used"] == updates * WORKERS + 3 * 2


def test_workers_go_on_with_the_links_that_they_began_with(tmp_path: Path) -> None:
    links, out = tmp_path / "links.toml", tmp_path / "run"
    links.write_text('name = "x"\n[link]\nrate_mbps = 12.0\n')
    nodes = f'actors.nodes=[["0"], ["{links}"], ["1"]]'
    job = _begin(out, override(DAGGER, [f"total_steps={UPDATE}", nodes]))
    assert _train(job)[0] == 0
    assert list(saved(out)["links"]) == [f"links of {links}"]
    job = TrainJob(override(DAGGER, [f"total_steps={ENDLESS}", nodes]), out, True, False)
    links.write_text('name = "x"\n[link]\nrate_mbps = 3.0\n')
    with pytest.raises(CheckpointError, match=f"links of {links} have changed since"):
        _train(job)


def test_without_any_worker_it_fails_after_a_while(tmp_path: Path) -> None:
    job = _begin(tmp_path / "run", override(PPO, ["actors.wait_workers=0.2"]))
    with pytest.raises(GroupError, match="saved after update 0"):
        _train(job, InProcessEngine(0))
    assert saved(tmp_path / "run")["counters"]["update"] == 0


def test_where_all_segments_are_late_it_fails_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "patience=0.5")
    monkeypatch.setattr(segment_queue, "MOST_LATE_LEARNED", -1.0)
    with pytest.raises(GroupError, match=r"no segment of the last 0\.5 s could be learned"):
        _train(_begin(tmp_path / "run", override(PPO, [f"total_steps={ENDLESS}"])))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_whose_segments_always_wait(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    job = _begin(out, override(PPO, [*FULL, "actors.max_lag=1000"]))
    engine = EventfulEngine(out, 3, lambda _: os.kill(os.getpid(), number))
    stopped, training = _train(job, engine)
    assert stopped == number
    state = saved(out)
    assert state["counters"]["update"] == training.counters.update >= 3
    assert state["ledger"]["used"] == training.counters.update
    assert state["ledger"]["refused"].keys() <= {ENDED, GONE}  # or it stood still
    assert "policy: " not in capsys.readouterr().out


def test_time_ends_a_run_whose_segments_always_wait(tmp_path: Path) -> None:
    config = override(PPO, [*FULL, "max_seconds=1"])
    stopped, training = _train(_begin(tmp_path / "run", config))
    assert stopped == 0
    assert training.counters.update > 0
    assert training.counters.seconds < LONG


def test_time_ends_a_run_that_waits_for_segments(tmp_path: Path) -> None:
    few = [f"total_steps={ENDLESS}", "actors.segments_per_update=100000", "max_seconds=1"]
    out = tmp_path / "run"
    assert _train(_begin(out, override(PPO, few)))[0] == 0
    assert 1.0 <= saved(out)["counters"]["seconds"] < LONG
    assert rows(out)[-1]["scored"] == "at its end"
