"""The count of segments: whatever comes, each is used once, refused for a reason, or waits."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrlcc.actors.actor import Segment
from distrlcc.actors.segment_queue import DUPLICATE, ENDED, GONE, STALE, SegmentQueue
from distrlcc.learn.collect_stats import CollectStats
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

SPEC = PolicySpec("toy", 3, "toy", "discrete", 2, kind="lstm", hidden=(4,))
ROLLOUT = Rollout.allocate(SPEC, 4, 2, 2)


def _segment(worker: int, number: int, version: int = 0) -> Segment:
    return Segment(worker, number, replace(ROLLOUT, version=version), CollectStats())


def _adds_up(queue: SegmentQueue, waiting: int) -> None:
    assert len(queue) == waiting
    assert queue.received == queue.used + queue.refused.total() + waiting


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "add", "take", "take", "refuse")),
        st.integers(0, 2),  # worker; segments to take
        st.integers(0, 1),  # its life
        st.integers(-2, 2),  # number, less the next one
        st.integers(0, 6),  # version; segments that a dropped worker had
    ),
    max_size=60,
)


@given(OPERATIONS, st.integers(0, 3))
def test_it_adds_up_whatever_comes(
    operations: list[tuple[str, int, int, int, int]], lag: int
) -> None:
    """Judged by a plain account: what was seen of each life, what waits, and what became of it."""
    queue = SegmentQueue(lag)
    following: Counter[tuple[int, int]] = Counter()
    seen: Counter[tuple[int, int]] = Counter()
    waiting: deque[Segment] = deque()
    counts: Counter[str] = Counter()
    for what, worker, life, ahead, amount in operations:
        if what == "add":
            key = (worker, life)
            number = max(following[key] + ahead, 0)
            segment = _segment(worker, number, amount)
            if number >= following[key]:
                waiting.append(segment)
                following[key] = number + 1
                seen[key] += 1
            else:
                counts[DUPLICATE] += 1
            queue.add(segment, key)
        elif what == "take":
            fresh = [segment for segment in waiting if amount - segment.version <= lag]
            counts[STALE] += len(waiting) - len(fresh)
            chosen = fresh[:worker] if len(fresh) >= worker else []
            waiting = deque(fresh[len(chosen) :])
            counts["used"] += len(chosen)
            assert queue.take(worker, amount) == chosen
        else:
            queue.refuse(amount, GONE)
            counts[GONE] += amount
        _adds_up(queue, len(waiting))
        assert len(again := _reloaded(queue)) == 0
        assert again.received == queue.received
    assert queue.used == counts.pop("used", 0)
    assert queue.refused == counts
    assert queue.lost == following.total() - seen.total()
    queue.end()
    _adds_up(queue, 0)
    assert queue.refused[ENDED] == len(waiting)


def _reloaded(queue: SegmentQueue) -> SegmentQueue:
    again = SegmentQueue(0)
    again.load_state_dict(queue.state_dict())
    return again


@pytest.mark.parametrize("lag", [0, 2])
def test_a_segment_may_be_so_old_and_no_older(lag: int) -> None:
    queue = SegmentQueue(lag)
    for number in range(2):
        queue.add(_segment(0, number, version=7), 0)
    assert [segment.number for segment in queue.take(1, 7 + lag)] == [0]
    assert queue.take(1, 8 + lag) == []
    assert (queue.used, queue.refused) == (1, {STALE: 1})
    _adds_up(queue, 0)


def test_numbers_that_were_passed_over_are_lost_and_too_late_then() -> None:
    queue = SegmentQueue(5)
    for number in (3, 1, 5):
        queue.add(_segment(0, number), 0)
    assert (queue.lost, queue.received, queue.refused) == (4, 3, {DUPLICATE: 1})
    _adds_up(queue, 2)


def test_a_worker_that_was_started_again_counts_from_the_beginning() -> None:
    queue = SegmentQueue(5)
    for life, number in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 2)):
        queue.add(_segment(0, number), life)
    assert (queue.lost, queue.refused) == (0, {DUPLICATE: 1})
    _adds_up(queue, 5)


def test_the_end_leaves_nothing_waiting() -> None:
    queue = SegmentQueue(5)
    assert str(queue) == "segments: 0 used, 0 refused"
    for number in range(4):
        queue.add(_segment(0, number), 0)
    assert len(queue.take(2, 0)) == 2
    queue.refuse(2, GONE)
    queue.undo(1)
    assert str(queue) == f"segments: 1 used, 3 refused (1 {ENDED}, 2 {GONE})"
    state = queue.state_dict()
    assert state == {"used": 1, "lost": 0, "refused": {GONE: 2, ENDED: 3}}
    _adds_up(queue, 2)  # saving changes nothing
    for _ in range(2):
        queue.end()
        assert (queue.received, queue.used, queue.refused) == (6, 1, Counter({GONE: 2, ENDED: 3}))
    _adds_up(queue, 0)


def test_after_a_reload_workers_count_from_the_beginning() -> None:
    queue = SegmentQueue(0)
    for number in (0, 2, 3):
        queue.add(_segment(0, number), 0)
    again = _reloaded(queue)
    again.add(_segment(0, 0), 0)
    _adds_up(again, 1)
    assert (again.lost, again.refused) == (1, {ENDED: 3})
