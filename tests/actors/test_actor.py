"""An actor alone: what it hands out, when it waits, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from distrlcc.actors.actor import AHEAD, Actor, Segment
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.learn.learner import Weights
from distrlcc.learn.rollout import Rollout
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import build_learner
from distrlcc.runs.source import EnvSource, Share
from tests.actors.shared import before_step
from tests.hosts import wait_until
from tests.trees import same

LENGTH, SEQUENCE = 12, 4
OF_DAGGER = f"""dagger.rollout_length={LENGTH} dagger.sequence_length={SEQUENCE}
    network.hidden=[8] env.episode_s=0.2 seed=3"""
CONFIG = override(recipe("indigo"), OF_DAGGER.split())
PPO = override(
    recipe("quickstart"), ["ppo.rollout_length=12", "network.hidden=[8]", "env.episode_s=0.2"]
)
LONG = 60.0
"""Far longer than anything here takes, s."""


def _source(config: RunConfig = CONFIG) -> EnvSource:
    """Return environments that are those of an actor."""
    env = replace(config.env, suites=("indigo/3",), suite_weights=())
    return EnvSource(replace(config, env=env), Share(2, 2))


def _weights(version: int = 0, config: RunConfig = CONFIG, *, expert: bool = False) -> Weights:
    weights = build_learner(config, _source(config).spec).weights()
    generator = np.random.default_rng(version)
    for name in ("policy_head.weight", "value_head.weight"):  # so that actions differ
        weights.arrays[name] = generator.normal(0, 0.5, weights.arrays[name].shape).astype("f4")
    return Weights(version, weights.arrays, expert)


_made: list[Actor] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """Stop all actors after a test."""
    yield
    while _made:
        _made.pop().stop()


def _begin(config: RunConfig = CONFIG, link: str = "3", *which: int) -> Actor:
    """Make an actor; ``which`` is its number and the step from which it begins."""
    actors = replace(config.actors, nodes=((link,),), envs_per_worker=2)
    _made.append(Actor(replace(config, actors=actors), *(which or (1,))))
    return _made[-1]


def _acting(link: str = "3", *which: int) -> Actor:
    actor = _begin(CONFIG, link, *which)
    actor.set_weights(_weights())
    return actor


def _take(actor: Actor, count: int, most: int = 1) -> list[Segment]:
    """Return the next segments, and some more if they came together."""
    segments: list[Segment] = []
    deadline = time.monotonic() + LONG
    while len(segments) < count:
        assert time.monotonic() < deadline, f"{len(segments)} of {count} segments came"
        segments += actor.report(most, 1.0).segments
    return segments


def _waits(actor: Actor) -> bool:
    """Say whether it has acted so far ahead that it acts no more."""
    report = actor.report(0, 0.0)
    return report.steps > 0 and report.still_seconds == 0.0


def _living() -> int:
    """Return how many actors' threads live."""
    return sum(thread.name == "actor" for thread in threading.enumerate())


def _arrays(rollout: Rollout) -> dict[str, Any]:
    values = {f.name: getattr(rollout, f.name) for f in fields(rollout)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def test_nothing_is_stepped_before_the_first_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    before_step(monkeypatch, lambda _: pytest.fail("a step"))
    report = _begin().report(1, 0.2)
    assert (report.segments, report.steps, report.version) == ([], 0, -1)
    assert (report.still_seconds, report.link) == (0.0, "indigo/3")


def test_segments_are_numbered_and_steps_counted() -> None:
    actor = _begin()
    assert actor.set_weights(_weights(7)) == 7
    segments = _take(actor, 1)
    kept = segments[0].rollout.copy()
    segments += _take(actor, 9 - len(segments))
    same(_arrays(segments[0].rollout), _arrays(kept))  # it is a copy
    assert [s.number for s in segments] == list(range(9))
    assert {
        (s.worker, s.rollout.version, s.rollout.steps, s.rollout.first_index) for s in segments
    } == {(1, 7, LENGTH, 2)}
    assert {s.stats.steps for s in segments} == {2.0 * LENGTH}
    report = actor.report(1, LONG)
    assert (report.version, report.segments[0].number) == (7, 9)
    assert report.steps >= 2 * LENGTH * 10
    assert report.last_episode.keys() == {"utilisation", "queueing_delay"}


def test_weights_change_between_segments_alone_and_never_back() -> None:
    """Every row of a segment was acted by the very weights whose version it bears."""
    actor, versions = _begin(), [_weights(version) for version in range(40)]
    taken: list[Segment] = []
    done = threading.Event()

    def publish() -> None:
        for weights in versions:
            actor.set_weights(weights)
            actor.set_weights(versions[weights.version // 2])  # an old one that comes late
            time.sleep(0.002)
        done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    deadline = time.monotonic() + LONG
    while not done.is_set() or taken[-1].rollout.version < versions[-1].version:
        assert time.monotonic() < deadline
        taken += actor.report(1, 1.0).segments
    publisher.join()
    seen = [segment.rollout.version for segment in taken]
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    source = _source()
    for segment in taken:
        rollout, _ = source.next(versions[segment.rollout.version])
        same(_arrays(segment.rollout), _arrays(rollout))


@pytest.mark.parametrize(
    ("config", "expert"),
    [(CONFIG, False), (CONFIG, True), (PPO, False)],
    ids=["lstm", "lstm-expert", "mlp"],
)
def test_segments_are_one_long_rollout(config: RunConfig, expert: bool) -> None:
    """Environment, episodes, draws and the recurrent state go on where a segment ends."""
    length, weights = 7, _weights(4, config, expert=expert)
    actor = _begin(config)
    actor.set_weights(weights)
    segments = _take(actor, length)[:length]

    source, rows = _source(config), length * config.rollout_length
    source.collector.set_weights(weights)
    whole = Rollout.allocate(source.spec, rows, 2, config.section.sequence_length)
    source.collector.collect(whole)
    joined = {
        name: np.concatenate([_arrays(s.rollout)[name] for s in segments])
        for name in _arrays(whole)
    }
    joined["last_values"] = segments[-1].rollout.last_values
    rounded = ("final_values", "last_values")  # batched by segment, so that sums round otherwise
    same(joined, _arrays(whole), rounded)
    for name in rounded:
        np.testing.assert_allclose(joined[name], _arrays(whole)[name], 1e-4, 1e-5)
    assert len(np.unique(whole.actions)) > 2 or expert
    if config.network.kind == "lstm":
        assert all(segment.rollout.states[0].any() for segment in segments[1:])
    assert whole.starts[1:].any()


def test_it_is_a_few_segments_ahead_and_goes_on_when_they_are_taken() -> None:
    actor = _acting()
    wait_until(lambda: _waits(actor), LONG, "segments that are not taken")
    for taken in range(0, 4 * AHEAD, AHEAD):
        report = actor.report(0, LONG)
        steps = report.steps
        assert (report.segments, report.still_seconds) == ([], 0.0)
        assert steps == (taken + AHEAD) * 2 * LENGTH
        time.sleep(0.05)
        assert actor.report(0, 0.0).steps == steps  # it acts no more
        numbers = [s.number for s in actor.report(10, LONG).segments]
        assert numbers == list(range(taken, taken + AHEAD))
        wait_until(lambda: _waits(actor), LONG, "acting again")
    waited = actor.report(0, 0.0).waited_seconds
    assert waited > 0.1
    one = actor.report(1, LONG).segments
    assert [s.number for s in one] == [4 * AHEAD]


def test_what_fails_in_the_environment_comes_out_of_report(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()

    def fail(_: LinkVectorEnv) -> None:
        if next(steps) > LENGTH:
            raise ValueError("the link broke")

    before_step(monkeypatch, fail)
    actor = _acting()
    with pytest.raises(RuntimeError, match="ValueError: the link broke"):
        _take(actor, 2)
    assert actor.set_weights(_weights(1)) == 1  # hides nothing
    with pytest.raises(RuntimeError, match="the link broke"):
        actor.report(0, 0.0)
    wait_until(lambda: _living() == 0, LONG, "the thread's end")


@pytest.mark.parametrize("moment", ["before it acts", "acting", "waiting"])
def test_stop_ends_the_thread(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    if moment == "acting":
        before_step(monkeypatch, lambda _: time.sleep(0.2))
    actor = _begin()
    if moment != "before it acts":
        actor.set_weights(_weights())
        wait_until(lambda: actor.report(0, 0.0).steps > 0, LONG, "a step")
    if moment == "waiting":
        wait_until(lambda: _waits(actor), LONG, moment)
    assert not actor.stopped
    actor.stop()
    assert actor.stopped
    wait_until(lambda: _living() == 0, LONG, "the thread's end")
    actor.set_weights(_weights(1))
    assert _living() == 0
    assert actor.report(10, LONG).segments == []  # what was cut short is none
    actor.stop()


def test_an_environment_that_hangs_is_still(monkeypatch: pytest.MonkeyPatch) -> None:
    goes = threading.Event()
    goes.set()
    before_step(monkeypatch, lambda _: goes.wait(LONG))
    actor = _acting()
    _take(actor, 1)
    goes.clear()
    try:
        wait_until(lambda: actor.report(5, 0.0).still_seconds > 0.5, LONG, "a still one")
    finally:
        goes.set()
    _take(actor, 2)
    wait_until(lambda: actor.report(5, 0.0).still_seconds < 0.5, LONG, "steps again")


def test_workers_and_later_lives_see_other_links_and_draws() -> None:
    rollouts = []
    for which in ((1,), (2,), (1, 1000)):
        actor = _acting("random", *which)
        rollouts.append(_take(actor, 1)[0].rollout)
        actor.stop()
    for a, b in ((0, 1), (0, 2)):
        assert not np.array_equal(rollouts[a].obs, rollouts[b].obs)
        assert not np.array_equal(rollouts[a].actions, rollouts[b].actions)
    again = _acting("random")
    same(_arrays(_take(again, 1)[0].rollout), _arrays(rollouts[0]))
