"""A run's one state: saved, loaded and gone on with, bit for bit, also with other workers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.actors.actor import AHEAD, Segment, link_of
from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.segment_queue import GONE, STALE
from distrlcc.actors.start import actor_state
from distrlcc.config import override
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.rollout import concatenate
from distrlcc.parallel.start import TrainJob
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import EnvSource, Share
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Alone
from tests import trees
from tests.actors.shared import CONFIGS, DAGGER, ENVS, LENGTH, PPO, WORKERS


def same(a: Any, b: Any) -> None:
    """Compare two states; a new life begins behind all that went before."""
    trees.same(a, b, {"first_step"})


def _training(config: RunConfig) -> RunState:
    return actor_state(TrainJob(config, Path()))


def _source(state: RunState) -> ActorSource:
    assert isinstance(state.source, ActorSource)
    return state.source


@pytest.mark.parametrize("own", [False, True])
def test_another_number_of_environments_is_said(own: bool) -> None:
    batch = "per-process" if own else "shared"
    settings = ["actors.learners=2", "actors.segments_per_update=4", f"distributed.batch={batch}"]
    config = override(PPO, settings)
    for count in (4 * ENVS, 8 * ENVS):
        said = ActorSource(replace(config, num_envs=count), 1).warning
        assert bool(said) == (count != 4 * ENVS), said


class Workers:
    """Act in turn, each on a link of its own, always with the newest weights."""

    def __init__(self, config: RunConfig, training: RunState, first_step: int = 0) -> None:
        self._training, self._envs = training, list[EnvSource]()
        self._per_update = sum(config.actors.parts(own=False))
        envs = config.actors.envs_per_worker
        for index, link in enumerate(config.actors.links):
            env = replace(config.env, suites=(link,), suite_weights=())
            self._envs.append(EnvSource(replace(config, env=env), Share(index * envs, envs)))
            if first_step:
                self._envs[-1].collector.begin_at(first_step)
        self._numbers = [0] * len(self._envs)
        self._turn = 0

    def update(self) -> dict[str, float]:
        """Learn from as many segments as an update takes, as the training loop does."""
        training, stats = self._training, CollectStats()
        segments = [self.segment() for _ in range(self._per_update)]
        _source(training).queue.add(segments)
        for segment in segments:
            stats.merge(segment.stats)
        assert _source(training).queue.take(len(segments), training.counters.update) == segments
        metrics = training.learner.update(concatenate([s.rollout for s in segments]))
        training.commit(stats)
        if training.alarm is not None:
            training.alarm.check(stats)
        return metrics

    def segment(self) -> Segment:
        worker = self._turn % len(self._envs)
        self._turn += 1
        rollout, stats = self._envs[worker].next(self._training.learner.weights())
        self._numbers[worker] += 1
        return Segment(worker, self._numbers[worker] - 1, rollout.copy(), stats)


def _trained(config: RunConfig, updates: int = 5) -> RunState:
    """Return what some updates trained, scored once; segments were refused, lost and wait."""
    training = _training(config)
    workers = Workers(config, training)
    for update in range(updates):
        workers.update()
        if update == 2:
            training.score()
    training.counters.seconds = 12.5
    queue = _source(training).queue
    queue.refuse(2, GONE)
    queue.refuse(1, STALE)
    queue.add([workers.segment()])  # waits
    assert len(queue) == 1
    return training


def _reloaded(training: RunState, out: Path, config: RunConfig | None = None) -> RunState:
    """Return what goes on from a state that was saved, perhaps with another configuration."""
    with RunDirectory.create(out, training.config, tensorboard=False) as run:
        run.save(training.state_dict())
    again = _training(config or training.config)  # type: ignore[arg-type]
    again.load(RunDirectory.resume(out, again.config, tensorboard=False))
    return again


@CONFIGS
def test_everything_comes_back_bit_for_bit_and_goes_on_alike(
    config: RunConfig, tmp_path: Path
) -> None:
    """Weights, optimizer, counters, scores, data set and ledger; before all updates, too."""
    fresh = _training(config)
    unchanged = _reloaded(fresh, tmp_path / "fresh").state_dict()
    same(unchanged, fresh.state_dict())
    assert unchanged["best"] is None
    training = _trained(config)
    state = training.state_dict()
    assert state["counters"]["update"] == 5
    assert state["best"]["version"] == state["counters"]["best_update"] == 3
    assert (state["learner"].get("dataset") is not None) == (config.dagger is not None)
    again = _reloaded(training, tmp_path / "run")
    same(again.state_dict(), state)
    assert len(_source(again).queue) == 0  # what waited is refused: its worker is gone

    # Both learn the same from here on; a wrong optimizer or data set would show.
    rollouts = concatenate([Workers(config, training, 10_000).segment().rollout] * WORKERS)
    for learner in (training.learner, again.learner):
        learner.update(rollouts)
    same(again.learner.state_dict(), training.learner.state_dict())


@pytest.mark.parametrize(
    "changes",
    [
        ["actors.segments_per_update=2"],
        ["actors.envs_per_worker=1"],
        ['actors.nodes=[["1"]]'],
        ['actors.nodes=[["0", "5", "7", "3"], ["12"]]'],
    ],
    ids=["segments", "environments", "one worker", "more workers"],
)
@CONFIGS
def test_with_other_workers_all_but_the_data_set_goes_on(
    config: RunConfig, changes: list[str], tmp_path: Path
) -> None:
    training = _trained(config)
    state = training.state_dict()
    other = override(config, changes)
    expected = pytest.warns(UserWarning, match="the data set fills anew")
    with expected if config.dagger is not None else nullcontext():
        again = _reloaded(training, tmp_path / "run", other)
    kept = again.state_dict()
    if config.dagger is not None:
        assert kept["learner"].pop("dataset") is None
        state["learner"].pop("dataset")
    same(kept, state)

    workers = Workers(other, again, _source(again).first_step)
    for update in range(3):
        metrics = workers.update()
        assert all(np.isfinite(value) for value in metrics.values())
        assert again.counters.update == 6 + update
    segments, environments = sum(other.actors.parts(own=False)), other.actors.envs_per_worker
    samples = segments * environments * LENGTH
    assert again.counters.steps == state["counters"]["steps"] + 3 * samples
    assert _source(again).queue.used == state["ledger"]["used"] + 3 * segments
    if config.dagger is not None:
        data = again.state_dict()["learner"]["dataset"]
        assert data["count"] == segments * environments
        assert data["written"] == 3 * (LENGTH // 4)
    same(_reloaded(again, tmp_path / "other").state_dict(), again.state_dict())


@CONFIGS
@pytest.mark.parametrize("minibatches", [0, 1, 3])
def test_an_update_that_is_interrupted_is_undone(config: RunConfig, minibatches: int) -> None:
    training, other = _trained(config), _trained(config)
    rollout = concatenate([Workers(config, training, 10_000).segment().rollout] * WORKERS)
    before, asked = training.state_dict(), 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > minibatches

    group, stats = Alone(Stopper()), CollectStats(steps=float(rollout.samples))
    _source(training).reducer.interrupted = interrupted
    assert group.update(training, rollout, stats) is None
    assert asked == minibatches + 1
    training.counters.seconds = before["counters"]["seconds"]
    same(training.state_dict(), before)
    # Done again, it is as if it had not been interrupted.
    _source(training).reducer.interrupted = lambda: False
    again, at_once = (each.learner.update(rollout) for each in (training, other))
    same(again, at_once)
    same(training.state_dict(), other.state_dict())


def test_with_as_many_segments_the_data_set_stays(tmp_path: Path) -> None:
    """One worker with three times the environments fills it as three do."""
    training = _trained(DAGGER)
    other = override(DAGGER, ['actors.nodes=[["1"]]', f"actors.envs_per_worker={WORKERS * ENVS}"])
    again = _reloaded(training, tmp_path / "run", other)
    same(again.state_dict(), training.state_dict())
    Workers(other, again, _source(again).first_step).update()
    assert again.state_dict()["learner"]["dataset"]["written"] == 6 * (LENGTH // 4)


def test_workers_that_join_later_repeat_no_steps(tmp_path: Path) -> None:
    """They begin where none can have been, had one worker acted all segments and more."""

    def furthest(state: RunState) -> int:
        return (_source(state).queue.received + AHEAD + 1) * LENGTH

    training = _training(PPO)
    source, workers = _source(training), Workers(PPO, training)
    assert source.fresh_step() == source.first_step == 0
    for _ in range(5):
        workers.update()
        assert source.fresh_step() >= furthest(training)
    assert source.first_step == 0
    again = _reloaded(training, tmp_path / "run")
    assert _source(again).first_step >= furthest(again)
    links = [link_of(PPO, index) for index in range(4)]
    assert links == ["indigo/0", "indigo/5", "indigo/12", "indigo/0"]


def test_a_state_of_another_topology_has_no_ledger_and_goes_on(tmp_path: Path) -> None:
    training = _trained(PPO)
    state = training.state_dict()
    del state["ledger"]
    again = _training(PPO)
    again.load_state_dict(state)
    assert _source(again).queue.received == 0
    assert _source(again).first_step >= training.counters.update * LENGTH
    same(again.learner.state_dict(), training.learner.state_dict())
