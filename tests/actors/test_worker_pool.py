"""The pool with workers that are threads: which join, leave, freeze, hang and are late."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.actors.actor import AHEAD, Segment
from distrlcc.actors.engine import Worker
from distrlcc.actors.segment_queue import GONE, LATE, NOT_FINITE, SegmentQueue
from distrlcc.actors.worker_pool import WorkerPool
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.learn.learner import Weights
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_state import build_learner
from distrlcc.runs.source import policy_spec
from tests.actors.shared import before_step
from tests.hosts import wait_until
from tests.support.thread_engine import InProcessEngine

SMALL = "dagger.rollout_length=6 dagger.sequence_length=3 network.hidden=[8] env.episode_s=0.2"
CONFIG = override(recipe("indigo"), [*SMALL.split(), "seed=3"])
WEIGHTS = build_learner(CONFIG, policy_spec(CONFIG, LinkVectorEnv(1, CONFIG.env))).weights()
WORKERS, CAPACITY = 3, 12
LONG = 60.0
"""Far longer than anything here takes, s."""
DROP_SECONDS = 4
"""Stands for a limit that is to be reached; long enough for a busy machine."""


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Have the simulator compiled before anything waits for a step."""
    env = LinkVectorEnv(1, CONFIG.env)
    env.reset()
    env.step(env.action_space.sample())


@contextmanager
def _pool(
    engine: InProcessEngine, links: tuple[str, ...] = ("0", "1", "2"), capacity: int = CAPACITY
) -> Iterator[tuple[WorkerPool, Taker]]:
    """Yield a pool that has weights, and what takes its segments."""
    config = replace(CONFIG, actors=replace(CONFIG.actors, nodes=(links,)))
    with WorkerPool(engine, config, SegmentQueue(1000), {}, capacity=capacity) as pool:
        pool.publish(_weights(0))
        yield pool, Taker(pool)


def _weights(version: int) -> Weights:
    return Weights(version, WEIGHTS.arrays)


def _steps(pool: WorkerPool) -> int:
    return sum(state.report.steps for state in pool.workers())


class Taker:
    """Takes segments as a trainer does, and keeps the account that the queue is judged by."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool, self.version = pool, 0
        self.taken: list[Segment] = []
        self.events: list[str] = []

    def take(self, count: int = 1) -> list[Segment]:
        segments: list[Segment] = []
        while len(segments) < count:
            some = min(count - len(segments), 2)
            taken = self.pool.collect(some, self.version, lambda: False)
            assert len(taken) == some
            segments += taken
        self.taken += segments
        self.events += self.pool.take_events()
        self.check()
        return segments

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Take segments until a condition holds."""

        def holds() -> bool:
            self.take()
            return condition()

        wait_until(holds, LONG, what)

    def until_all_joined(self) -> None:
        self.until(lambda: len(self.events) == WORKERS, "all workers")

    def until_gone(self, worker: Worker) -> str:
        """Take segments until a worker is gone; return what was said of it."""
        said = f"gone: {worker}: "
        self.until(lambda: any(e.startswith(said) for e in self.events), said)
        return next(e for e in self.events if e.startswith(said)).removeprefix(said)

    def check(self) -> None:
        """Every worker's segments came once, in order and without a gap."""
        for index in {s.worker for s in self.taken}:
            numbers = [s.number for s in self.taken if s.worker == index]
            assert numbers == list(range(len(numbers)))
        queue = self.pool.queue
        with queue.lock:
            assert queue.received == queue.used + queue.refused.total() + len(queue)
            assert queue.used == len(self.taken)


def test_segments_of_all_workers_come_once_and_in_order() -> None:
    engine, before = InProcessEngine(WORKERS), set(threading.enumerate())
    with _pool(engine) as (pool, taker):
        taker.take(50)
        taker.until(lambda: {s.worker for s in taker.taken} == {0, 1, 2}, "segments of all")
        taker.until_all_joined()
        assert [(state.worker, state.report.link) for state in pool.workers()] == [
            (worker, f"indigo/{worker.index}") for worker in engine.workers
        ]
        taker.until(lambda: all(w.steps_per_second > 0 for w in pool.workers()), "speeds")
        assert pool.empty_seconds == 0.0
        actors = list(engine.objects.values())
    # Leaving the context stops the actors.
    assert [actor.stopped for actor in actors] == [True] * WORKERS
    wait_until(lambda: set(threading.enumerate()) <= before, LONG, "the threads' end")
    assert (engine.objects, engine.dropped) == ({}, [])
    assert set(taker.events) == {f"joined: {w}, on indigo/{w.index}" for w in engine.workers}


def test_none_come_when_stop_says_so_and_none_is_used() -> None:
    with _pool(InProcessEngine(WORKERS)) as (pool, taker):
        queue = pool.queue
        assert pool.collect(10**6, 0, lambda: len(queue) > WORKERS) == []
        assert (queue.used, queue.refused.total()) == (0, 0)
        taker.take(20)  # the oldest still come first
        assert pool.collect(10**6, 0, lambda: True) == []


def test_no_worker_is_asked_before_there_are_weights() -> None:
    pool = WorkerPool(InProcessEngine(1), CONFIG, SegmentQueue(9), {}, capacity=4)
    ticks = iter([False] * 5)
    with pool:
        assert pool.collect(1, 0, lambda: next(ticks, True)) == []
        assert pool.queue.received == 0
        pool.publish(_weights(0))
        Taker(pool).take(3)


def test_a_worker_that_leaves_is_named_and_the_others_go_on() -> None:
    engine = InProcessEngine(WORKERS)
    with _pool(engine) as (pool, taker):
        taker.until_all_joined()
        engine.leave(engine.workers[1], "pulled its plug")
        assert taker.until_gone(engine.workers[1]) == "pulled its plug; 2 left"
        assert [state.worker.index for state in pool.workers()] == [0, 2]
        taker.take(CAPACITY + WORKERS)  # what it had sent before is used
        assert {s.worker for s in taker.take(10)} <= {0, 2}
        taker.until(lambda: {0, 2} <= {s.worker for s in taker.taken[-8:]}, "both")
        assert len(taker.events) == WORKERS + 1


@pytest.mark.parametrize("limit", ["worker_silence", "start"])
def test_a_frozen_worker_is_dropped(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", f"{limit}={DROP_SECONDS}")
    engine = InProcessEngine(WORKERS)
    frozen = engine.workers[2]
    if limit == "start":
        engine.freeze(frozen)
    with _pool(engine) as (_, taker):
        if limit == "worker_silence":
            taker.until_all_joined()
            engine.freeze(frozen)
        said = taker.until_gone(frozen)
        assert re.fullmatch(rf"has not answered for {DROP_SECONDS} s; \d left", said)
        assert frozen in engine.dropped
        taker.take(CAPACITY + WORKERS)
        assert {s.worker for s in taker.take(10)} <= {0, 1}


def test_a_worker_whose_environment_hangs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", f"stall={DROP_SECONDS}")
    release = threading.Event()
    before_step(monkeypatch, lambda env: env.first_index == 1 and release.wait(LONG))
    engine = InProcessEngine(WORKERS)
    try:
        with _pool(engine) as (_, taker):
            said = taker.until_gone(engine.workers[1])
            assert re.fullmatch(r"its environment hangs for \d+ s; \d left", said)
            assert engine.workers[1] in engine.dropped
            assert {s.worker for s in taker.taken} == {0, 2}
    finally:
        release.set()


def test_what_fails_on_a_worker_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(env: LinkVectorEnv) -> None:
        if env.first_index == 2:
            raise ValueError("the link broke")

    before_step(monkeypatch, fail)
    engine = InProcessEngine(WORKERS)
    with _pool(engine, links=("99", "1", "2")) as (_, taker):
        assert "'indigo/99'" in taker.until_gone(engine.workers[0])
        said = taker.until_gone(engine.workers[2])
        assert "failed: RuntimeError: ValueError: the link broke" in said
        assert {s.worker for s in taker.take(10)} == {1}


def test_what_is_not_finite_is_refused_and_who_sends_it_twice_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, spoiled = LinkVectorEnv.step, {1: 1, 2: 2}  # segments to spoil, by worker

    def spoil(env: LinkVectorEnv, actions: Any) -> Any:
        obs, rewards, *rest = step(env, actions)
        env.counted = getattr(env, "counted", 0) + 1  # type: ignore[attr-defined]
        number, place = divmod(env.counted, 6)  # type: ignore[attr-defined]
        if 1 < number <= 1 + spoiled.get(env.first_index, 0) and place == 1:
            (obs if env.first_index == 1 else rewards)[0] = np.inf
        return obs, rewards, *rest

    monkeypatch.setattr(LinkVectorEnv, "step", spoil)
    engine = Replacing(WORKERS)
    with _pool(engine, capacity=2) as (pool, taker):
        queue = pool.queue
        monkeypatch.setattr(taker, "check", lambda: None)  # numbers are missing
        said = taker.until_gone(engine.workers[2])
        assert said == "2 times sent numbers that are not finite; 2 left"
        taker.until(lambda: queue.refused[NOT_FINITE] == 3, "what is not finite")
        refused = f"refused: {{}}: a segment {NOT_FINITE}"
        assert [taker.events.count(refused.format(w)) for w in engine.workers] == [0, 1, 2]
        taker.take(4)
        assert {state.worker.index for state in pool.workers()} == {0, 1}
        for segment in taker.taken:
            assert np.isfinite(segment.rollout.obs).all()
            assert np.isfinite(segment.rollout.rewards).all()
        assert queue.received == queue.used + queue.refused.total() + len(queue)


class Replacing(InProcessEngine):
    """Has another worker take the place of one that is dropped, as Ray does, unless told not to."""

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        super().drop(worker)
        if again:
            self.join(worker.index)


def test_late_segments_are_refused_and_named_each_time() -> None:
    engine = LateSegments(WORKERS)
    with _pool(engine) as (pool, taker):
        taker.until(lambda: pool.queue.refused[LATE] >= 3, "late segments")
        late = [event for event in taker.events if "were late" in event]
        assert set(late) == {
            f"refused: 38% of the steps of {engine.workers[1]} were late (more than 30%); the "
            "machine is too slow for so many links"
        }
        assert len(late) >= 2
        assert 1 not in {s.worker for s in taker.taken}
        assert len(pool.workers()) == WORKERS  # a slow machine's worker stays


class LateSegments(InProcessEngine):
    """Worker 1 reports that three eighths of its steps were late."""

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        answer = super().call(worker, method, *args)
        told: Future[Any] = Future()

        def tell(done: Future[Any]) -> None:
            result = done.result()
            for segment in getattr(result, "segments", ()) if worker.index == 1 else ():
                segment.stats.timed_steps, segment.stats.late_steps = 8.0, 3.0
            told.set_result(result)

        answer.add_done_callback(tell)
        return told


def test_a_worker_that_joins_in_mid_run_acts_with_the_newest_weights() -> None:
    engine = InProcessEngine(1)
    with _pool(engine) as (pool, taker):
        taker.take(10)
        pool.publish(_weights(1))
        late = engine.join(2)
        taker.until(lambda: 2 in {s.worker for s in taker.taken}, "a late joiner's")
        assert f"joined: {late}, on indigo/2" in taker.events
        assert {s.rollout.version for s in taker.taken if s.worker == 2} == {1}
        assert [state.worker for state in pool.workers()] == [*engine.workers, late]
        engine.leave(engine.workers[0])
        taker.until_gone(engine.workers[0])
        assert {s.worker for s in taker.take(2 * CAPACITY)[CAPACITY:]} == {2}


class LateEngine(InProcessEngine):
    """Keeps one worker's reports with segments back until they are let go."""

    late = -1

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.kept: list[tuple[Future[Any], Any]] = []

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        answer = super().call(worker, method, *args)
        if worker.index != self.late or method != "report":
            return answer
        told: Future[Any] = Future()

        def tell(done: Future[Any]) -> None:
            if done.result().segments:
                self.kept.append((told, done.result()))
            else:
                told.set_result(done.result())

        answer.add_done_callback(tell)
        return told


def test_late_answers_of_a_dropped_worker_are_refused() -> None:
    engine = LateEngine(WORKERS)
    with _pool(engine) as (pool, taker):
        taker.until_all_joined()
        engine.late = 0
        taker.until(lambda: len(engine.kept) == 1, "a report that is kept back")
        engine.leave(engine.workers[0])
        taker.until_gone(engine.workers[0])
        told, report = engine.kept[0]
        assert pool.queue.refused.total() == 0
        told.set_result(report)
        taker.until(lambda: pool.queue.refused.total() > 0, "what came late")
        assert pool.queue.refused[GONE] == pool.queue.refused.total() == len(report.segments)
        kept = {(s.worker, s.number) for s in report.segments}
        assert kept.isdisjoint((s.worker, s.number) for s in taker.taken)


def test_a_worker_that_is_not_asked_for_more_is_asked_seldom() -> None:
    class Counting(InProcessEngine):
        reports = 0

        def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
            self.reports += method == "report"
            return super().call(worker, method, *args)

    engine = Counting(WORKERS)
    with _pool(engine, capacity=2) as (pool, _):
        wait_until(lambda: len(pool.queue) >= 2, LONG, "as much as may wait")
        engine.reports = 0
        wait_until(lambda: engine.reports >= WORKERS, LONG, "signs of life")
        before = engine.reports
        time.sleep(1.0)
        assert engine.reports - before < 20 * WORKERS
        assert len(pool.workers()) == WORKERS


@pytest.mark.parametrize("count", [1, WORKERS])
def test_when_enough_wait_workers_are_not_asked_for_more(count: int) -> None:
    """Of several, each may answer with what there was room for when it was asked."""
    capacity, engine = 4, InProcessEngine(count)
    with _pool(engine, capacity=capacity) as (pool, taker):
        queue, most = pool.queue, capacity + (count - 1) * AHEAD

        def all_wait() -> bool:
            assert len(queue) <= most
            acted = (len(taker.taken) + len(queue) + count * AHEAD) * 6
            return len(queue) >= capacity and _steps(pool) == acted

        wait_until(all_wait, LONG, "actors that wait")
        taker.take(2)
        wait_until(all_wait, LONG, "as much again as was taken")
        taker.take(2 * capacity)


def test_weights_reach_every_worker_and_each_says_when() -> None:
    with _pool(InProcessEngine(WORKERS)) as (pool, taker):

        def all_act(version: int) -> bool:
            states = pool.workers()
            return [state.report.version for state in states] == [version] * WORKERS

        taker.until(lambda: all_act(0), "all act")
        pool.take_publish_seconds()
        for version in range(1, 4):
            pool.publish(_weights(version))
            taker.version = version
            taker.until(lambda v=version: all_act(v), "new weights everywhere")  # type: ignore[misc]
            assert 0.0 < pool.take_publish_seconds() < LONG
            assert pool.take_publish_seconds() == 0.0
        for index in range(WORKERS):
            versions = [s.rollout.version for s in taker.taken if s.worker == index]
            assert versions == sorted(versions)
        taker.until(lambda: taker.taken[-1].rollout.version == 3, "a segment of the newest")


def test_the_lag_is_shown() -> None:
    with _pool(InProcessEngine(1), capacity=2) as (pool, taker):
        wait_until(lambda: _steps(pool) == (2 + AHEAD) * 6, LONG, "an actor that waits")
        pool.publish(_weights(5))
        taker.take()  # makes room for one more, which was acted by then
        wait_until(lambda: pool.workers()[0].lag == 5, LONG, "a lag")
        taker.until(lambda: pool.workers()[0].lag == 0, "none with the new weights")


def test_for_how_long_there_is_no_worker() -> None:
    engine = InProcessEngine(0)
    with _pool(engine) as (pool, taker):
        wait_until(lambda: pool.empty_seconds > 0.3, LONG, "time without a worker")
        first = engine.join(0)
        taker.take()
        assert pool.empty_seconds == 0.0
        engine.leave(first)
        wait_until(lambda: pool.empty_seconds > 0.3, LONG, "time without it")
        assert pool.workers() == []
        engine.join(1)
        taker.until(lambda: taker.taken[-1].worker == 1, "another's")
        assert pool.empty_seconds == 0.0


def test_workers_that_join_and_cannot_start_are_none() -> None:
    engine = InProcessEngine(0)
    with _pool(engine, links=("no such link",)) as (pool, _):
        before = 0.0
        for life in range(1, 4):
            engine.join(0)
            wait_until(lambda life=life: len(engine.dropped) == life, LONG, "its end")
            assert pool.empty_seconds > before
            before = pool.empty_seconds


def test_what_breaks_the_pool_comes_out_of_collect() -> None:
    class Broken(InProcessEngine):
        def changes(self) -> Any:
            raise OSError("no such engine")

    with _pool(Broken(1)) as (pool, _), pytest.raises(OSError, match="no such engine"):
        pool.collect(1, 0, lambda: False)
