"""The crew with workers that are threads: who comes, goes, freezes, hangs and is late."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from distrlcc.actors import crew as crews
from distrlcc.actors.actor import AHEAD, ActorJob
from distrlcc.actors.crew import Crew
from distrlcc.actors.engine import Worker
from distrlcc.actors.in_process import InProcessEngine
from distrlcc.actors.ledger import GONE, STALE, Ledger
from distrlcc.actors.segment import Segment
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.learn.learner import Weights
from distrlcc.learn.rollout import Rollout
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_state import build_learner
from distrlcc.runs.source import policy_spec

CONFIG = override(
    recipe("indigo"),
    [
        "dagger.rollout_length=6", "dagger.sequence_length=3", "network.hidden=[8]",
        "env.episode_s=0.2", "seed=3",
    ],
)  # fmt: skip
SPEC = policy_spec(CONFIG, LinkVectorEnv(1, CONFIG.env))
WEIGHTS = build_learner(CONFIG, SPEC).weights()
WORKERS = 3
LONG = 60.0
"""Far longer than anything here takes, s."""
GIVE_UP_SECONDS = 5.0
"""Stands for the crew's own limits where one is to be reached; long enough for a busy machine."""


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Have the simulator compiled before anyone waits for a step."""
    env = LinkVectorEnv(1, CONFIG.env)
    env.reset()
    env.step(env.action_space.sample())


def _jobs(count: int = WORKERS) -> list[ActorJob]:
    return [ActorJob(CONFIG, index, f"indigo/{index}") for index in range(count)]


def _dealt(jobs: list[ActorJob]) -> Callable[[int], ActorJob]:
    return lambda index: jobs[index % len(jobs)]


def _crew(
    engine: InProcessEngine,
    *,
    jobs: list[ActorJob] | None = None,
    lag: int = 1000,
    capacity: int = 2 * WORKERS,
    version: int = 0,
) -> Crew:
    ledger = Ledger(lag, Rollout.allocate(SPEC, 6, 1, 3))
    crew = Crew(engine, _dealt(jobs or _jobs()), ledger, capacity=capacity)
    crew.publish(_weights(version))
    return crew


def _weights(version: int) -> Weights:
    return Weights(version, WEIGHTS.arrays)


def _never() -> bool:
    return False


class Taker:
    """Takes segments as a trainer does, and keeps the account that the ledger is judged by."""

    def __init__(self, crew: Crew) -> None:
        self.crew, self.version = crew, 0
        self.taken: list[Segment] = []
        self.events: list[str] = []

    def take(self, count: int = 1) -> list[Segment]:
        segments = self.crew.gather(count, self.version, _never)
        assert len(segments) == count
        self.taken += segments
        self.events += self.crew.take_events()
        self.check()
        return segments

    def until(self, condition: Callable[[], bool], conftest: ModuleType, what: str) -> None:
        """Take segments until a condition holds."""

        def holds() -> bool:
            self.take()
            return condition()

        conftest.wait_until(holds, LONG, what)

    def until_gone(self, worker: Worker, conftest: ModuleType) -> str:
        """Take segments until a worker is gone; return what was said of it."""
        said = f"gone: {worker}: "
        self.until(lambda: any(e.startswith(said) for e in self.events), conftest, said)
        return next(e for e in self.events if e.startswith(said)).removeprefix(said)

    def left(self, worker: Worker) -> int:
        """Return how many were left when a worker was gone, as a busy machine may lose others."""
        gone = [event for event in self.events if event.startswith("gone: ")]
        before = next(k for k, event in enumerate(gone) if event.startswith(f"gone: {worker}: "))
        return len(self.crew._engine.workers) - 1 - before  # type: ignore[attr-defined]

    def check(self) -> None:
        """Every worker's segments came once, in order and without a gap."""
        for index in {s.worker for s in self.taken}:
            numbers = [s.number for s in self.taken if s.worker == index]
            assert numbers == list(range(len(numbers)))
        ledger = self.crew._ledger
        with self.crew._state:
            assert ledger.received == ledger.used + ledger.refused.total() + ledger.waiting
            assert ledger.waiting == len(self.crew._segments)
            assert (ledger.used, ledger.lost) == (len(self.taken), 0)


def test_segments_of_all_workers_come_once_and_in_order(conftest: ModuleType) -> None:
    engine = InProcessEngine(WORKERS)
    with _crew(engine) as crew:
        taker = Taker(crew)
        for _ in range(10):
            taker.take(5)
        taker.until(lambda: {s.worker for s in taker.taken} == {0, 1, 2}, conftest, "of all")
        taker.until(lambda: len(taker.events) == WORKERS, conftest, "words of all")
        rows = crew.rows()
        assert [(row.worker, row.link) for row in rows] == [
            (worker, f"indigo/{worker.index}") for worker in engine.workers
        ]
        taker.until(lambda: all(r.steps_per_second > 0 for r in crew.rows()), conftest, "speeds")
        assert crew.empty_seconds == 0.0
    assert set(taker.events) == {f"joined: {w}, on indigo/{w.index}" for w in engine.workers}
    assert not crew._thread.is_alive()
    assert engine.dropped == []


def test_leaving_the_context_stops_the_actors(conftest: ModuleType) -> None:
    engine = InProcessEngine(WORKERS)
    with _crew(engine) as crew:
        Taker(crew).take(8)
        conftest.wait_until(lambda: len(engine._objects) == WORKERS, LONG, "all actors")
        actors = list(engine._objects.values())
    for actor in actors:
        assert actor.stopped
        actor._thread.join(LONG)
        assert not actor._thread.is_alive()
    assert engine._objects == {}


def test_none_come_when_stop_says_so_and_none_is_used() -> None:
    with _crew(InProcessEngine(WORKERS)) as crew:
        ledger, asked = crew._ledger, 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return ledger.received > WORKERS

        assert crew.gather(10**6, 0, stop) == []
        assert asked > 0
        assert ledger.used == 0
        assert ledger.waiting == len(crew._segments) > WORKERS
        order = [(s.worker, s.number) for s in crew._segments]
        taker = Taker(crew)
        first = taker.take(len(order))
        assert [(s.worker, s.number) for s in first] == order  # the oldest still come first
        taker.take(10)
        assert crew.gather(10**6, 0, lambda: True) == []
        taker.take(10)


def test_no_worker_is_asked_before_there_are_weights() -> None:
    engine = InProcessEngine(1)
    crew = Crew(engine, _dealt(_jobs()), Ledger(9, Rollout.allocate(SPEC, 6, 1, 3)), capacity=4)
    ticks = 0

    def stop() -> bool:
        nonlocal ticks
        ticks += 1
        return ticks > 5

    with crew:
        assert crew.gather(1, 0, stop) == []
        assert crew._ledger.received == 0
        crew.publish(_weights(0))
        Taker(crew).take(3)


def test_who_leaves_is_named_and_the_rest_go_on(conftest: ModuleType) -> None:
    engine = InProcessEngine(WORKERS)
    with _crew(engine) as crew:
        taker = Taker(crew)
        taker.until(lambda: len(taker.events) == WORKERS, conftest, "all")
        engine.leave(engine.workers[1], "pulled its plug")
        assert taker.until_gone(engine.workers[1], conftest) == "pulled its plug; 2 left"
        assert [row.worker.index for row in crew.rows()] == [0, 2]
        taker.take(4 * WORKERS)  # what it had sent before is used
        after = taker.take(10)
        assert {s.worker for s in after} <= {0, 2}
        taker.until(lambda: {0, 2} <= {s.worker for s in taker.taken[-8:]}, conftest, "both")
        assert len(taker.events) == WORKERS + 1


def test_a_frozen_worker_is_given_up(conftest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "SILENT_SECONDS", GIVE_UP_SECONDS)
    engine = InProcessEngine(WORKERS)
    with _crew(engine) as crew:
        taker = Taker(crew)
        taker.until(lambda: len(taker.events) == WORKERS, conftest, "all")
        engine.freeze(engine.workers[2])
        said = taker.until_gone(engine.workers[2], conftest)
        left = taker.left(engine.workers[2])
        assert said == f"has not answered for {GIVE_UP_SECONDS:.0f} s; {left} left"
        assert engine.workers[2] in engine.dropped
        taker.take(4 * WORKERS)
        assert {s.worker for s in taker.take(10)} <= {0, 1}


def test_a_worker_that_does_not_begin_is_given_up(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "START_SECONDS", GIVE_UP_SECONDS)
    engine = InProcessEngine(2)
    engine.freeze(engine.workers[0])
    with _crew(engine) as crew:
        taker = Taker(crew)
        said = taker.until_gone(engine.workers[0], conftest)
        left = taker.left(engine.workers[0])
        assert said == f"has not answered for {GIVE_UP_SECONDS:.0f} s; {left} left"
        assert {s.worker for s in taker.taken} == {1}


def test_a_worker_whose_environment_hangs_is_given_up(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "STILL_SECONDS", GIVE_UP_SECONDS)
    step, release = LinkVectorEnv.step, threading.Event()

    def block(env: LinkVectorEnv, actions: Any) -> Any:
        if env.first_index == 1:
            release.wait(LONG)
        return step(env, actions)

    monkeypatch.setattr(LinkVectorEnv, "step", block)
    engine = InProcessEngine(WORKERS)
    try:
        with _crew(engine) as crew:
            taker = Taker(crew)
            said = taker.until_gone(engine.workers[1], conftest)
            left = taker.left(engine.workers[1])
            assert re.fullmatch(rf"its environment hangs for \d+ s; {left} left", said)
            assert engine.workers[1] in engine.dropped
            assert {s.worker for s in taker.taken} == {0, 2}
    finally:
        release.set()


def test_what_fails_on_a_worker_is_said(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LinkVectorEnv.step

    def fail(env: LinkVectorEnv, actions: Any) -> Any:
        if env.first_index == 2:
            raise ValueError("the link broke")
        return step(env, actions)

    monkeypatch.setattr(LinkVectorEnv, "step", fail)
    engine = InProcessEngine(WORKERS)
    jobs = _jobs()
    jobs[0] = replace(jobs[0], link="indigo/99")
    with _crew(engine, jobs=jobs) as crew:
        taker = Taker(crew)
        assert "'indigo/99'" in taker.until_gone(engine.workers[0], conftest)
        said = taker.until_gone(engine.workers[2], conftest)
        assert "failed: RuntimeError: ValueError: the link broke" in said
        assert {s.worker for s in taker.take(10)} == {1}


def test_who_joins_in_mid_run_acts_with_the_newest_weights(conftest: ModuleType) -> None:
    engine = InProcessEngine(1)
    with _crew(engine) as crew:
        taker = Taker(crew)
        taker.take(10)
        crew.publish(_weights(1))
        late = engine.join(2)
        taker.until(lambda: 2 in {s.worker for s in taker.taken}, conftest, "a late comer's")
        assert f"joined: {late}, on indigo/2" in taker.events
        assert {s.version for s in taker.taken if s.worker == 2} == {1}
        assert [row.worker for row in crew.rows()] == [*engine.workers, late]
        engine.leave(engine.workers[0])
        taker.until_gone(engine.workers[0], conftest)
        assert {s.worker for s in taker.take(20)[10:]} == {2}


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
            if done.exception() is None and done.result().segments:
                self.kept.append((told, done.result()))
            elif done.exception() is None:
                told.set_result(done.result())
            else:
                told.set_exception(done.exception())

        answer.add_done_callback(tell)
        return told


@pytest.mark.parametrize("why", ["it left", "it was silent"])
def test_late_answers_of_a_lost_worker_are_refused(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it was silent":
        monkeypatch.setattr(crews, "SILENT_SECONDS", GIVE_UP_SECONDS)
    engine = LateEngine(WORKERS)
    with _crew(engine) as crew:
        taker = Taker(crew)
        taker.until(lambda: len(taker.events) == WORKERS, conftest, "all")
        engine.late = 0
        taker.until(lambda: len(engine.kept) == 1, conftest, "a report that is kept back")
        if why == "it left":
            engine.leave(engine.workers[0])
        taker.until_gone(engine.workers[0], conftest)
        told, report = engine.kept[0]
        assert crew._ledger.refused.total() == 0
        told.set_result(report)
        taker.until(lambda: crew._ledger.refused.total() > 0, conftest, "what came late")
        assert crew._ledger.refused == {GONE: len(report.segments)}
        kept = {(s.worker, s.number) for s in report.segments}
        assert kept.isdisjoint((s.worker, s.number) for s in taker.taken)


def test_when_enough_wait_a_worker_is_not_asked_for_more(conftest: ModuleType) -> None:
    capacity, engine = 5, InProcessEngine(1)
    with _crew(engine, capacity=capacity) as crew:
        ledger = crew._ledger
        most = (capacity + AHEAD) * 6
        conftest.wait_until(lambda: _steps(crew) == most, LONG, "as much as may wait")
        assert ledger.waiting == capacity
        taker = Taker(crew)
        taker.take(2)
        conftest.wait_until(lambda: _steps(crew) == most + 2 * 6, LONG, "as much as was taken")
        assert ledger.waiting == capacity
        taker.take(2 * capacity)


def _steps(crew: Crew) -> int:
    return sum(row.steps for row in crew.rows())


def test_who_is_not_asked_for_more_is_asked_seldom(conftest: ModuleType) -> None:
    class Counting(InProcessEngine):
        reports = 0

        def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
            self.reports += method == "report"
            return super().call(worker, method, *args)

    engine = Counting(WORKERS)
    with _crew(engine, capacity=2) as crew:
        conftest.wait_until(lambda: crew._ledger.waiting >= 2, LONG, "as much as may wait")
        engine.reports = 0
        conftest.wait_until(lambda: engine.reports >= WORKERS, LONG, "signs of life")
        before = engine.reports
        time.sleep(1.0)
        assert engine.reports - before < 20 * WORKERS
        assert len(crew.rows()) == WORKERS


def test_of_several_workers_little_more_waits(conftest: ModuleType) -> None:
    """Each may answer with what there was room for when it was asked."""
    capacity, engine = 4, InProcessEngine(WORKERS)
    with _crew(engine, capacity=capacity) as crew:
        ledger, most = crew._ledger, capacity + (WORKERS - 1) * AHEAD
        conftest.wait_until(lambda: ledger.waiting >= capacity, LONG, "as much as may wait")

        def all_wait() -> bool:
            assert ledger.waiting <= most
            return _steps(crew) == (ledger.waiting + WORKERS * AHEAD) * 6

        conftest.wait_until(all_wait, LONG, "actors that wait")
        Taker(crew).take(10)


def test_weights_reach_every_worker_and_each_says_when(conftest: ModuleType) -> None:
    engine = InProcessEngine(WORKERS)
    with _crew(engine) as crew:
        taker, seconds = Taker(crew), list[float]()

        def confirmed(count: int) -> bool:
            seconds.extend(crew.take_publish_seconds())
            return len(seconds) >= count

        taker.until(
            lambda: [row.version for row in crew.rows()] == [0] * WORKERS, conftest, "all act"
        )
        crew.take_publish_seconds()
        for version in range(1, 4):
            crew.publish(_weights(version))
            taker.version = version
            taker.until(
                lambda v=version: all(row.version == v for row in crew.rows()),  # type: ignore[misc]
                conftest,
                "new weights everywhere",
            )
            taker.until(lambda: confirmed(1), conftest, "all have confirmed")
            assert len(seconds) == 1
            assert 0.0 <= seconds[0] < LONG
            seconds.clear()
        for index in range(WORKERS):
            versions = [s.version for s in taker.taken if s.worker == index]
            assert versions == sorted(versions)
        taker.until(lambda: taker.taken[-1].version == 3, conftest, "a segment of the newest")


def test_the_lag_is_shown(conftest: ModuleType) -> None:
    engine = InProcessEngine(1)
    with _crew(engine, capacity=2) as crew:
        conftest.wait_until(lambda: _steps(crew) == (2 + AHEAD) * 6, LONG, "an actor that waits")
        crew.publish(_weights(5))
        taker = Taker(crew)
        taker.take()  # makes room for one more, which was acted by then
        conftest.wait_until(lambda: crew.rows()[0].lag == 5, LONG, "a lag")
        taker.until(lambda: crew.rows()[0].lag == 0, conftest, "none with the new weights")


def test_what_is_too_old_is_refused_until_newer_ones_come() -> None:
    with _crew(InProcessEngine(WORKERS), lag=0) as crew:
        ledger = crew._ledger
        assert len(crew.gather(4, 0, _never)) == 4
        assert crew.gather(1, 1, lambda: ledger.refused[STALE] > 3) == []
        assert ledger.used == 4
        crew.publish(_weights(1))
        fresh = crew.gather(4, 1, _never)
        assert {s.version for s in fresh} == {1}
        assert ledger.used == 8
        assert ledger.received == ledger.used + ledger.refused[STALE] + ledger.waiting


def test_for_how_long_there_is_no_worker(conftest: ModuleType) -> None:
    engine = InProcessEngine(0)
    with _crew(engine) as crew:
        conftest.wait_until(lambda: crew.empty_seconds > 0.3, LONG, "time without a worker")
        first = engine.join(0)
        taker = Taker(crew)
        taker.take()
        assert crew.empty_seconds == 0.0
        engine.leave(first)
        conftest.wait_until(lambda: crew.empty_seconds > 0.3, LONG, "time without it")
        assert crew.rows() == []
        assert crew.empty_seconds < LONG
        engine.join(1)
        taker.until(lambda: taker.taken[-1].worker == 1, conftest, "another's")
        assert crew.empty_seconds == 0.0


def test_workers_that_come_and_cannot_begin_are_none(conftest: ModuleType) -> None:
    engine = InProcessEngine(0)
    with _crew(engine, jobs=[ActorJob(CONFIG, 0, "no such link")]) as crew:
        before = 0.0
        for life in range(1, 4):
            engine.join(0)
            conftest.wait_until(lambda life=life: len(engine.dropped) == life, LONG, "its end")
            assert crew.empty_seconds > before
            before = crew.empty_seconds


def test_what_breaks_the_crew_comes_out_of_gather() -> None:
    class Broken(InProcessEngine):
        def changes(self) -> Any:
            raise OSError("no such engine")

    with _crew(Broken(1)) as crew, pytest.raises(OSError, match="no such engine"):
        crew.gather(1, 0, _never)
