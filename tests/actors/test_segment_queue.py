"""The count of segments: whatever comes, each is used once, refused for a reason, or waits."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from distrlcc.actors.actor import Segment
from distrlcc.actors.segment_queue import ENDED, GONE, STALE, SegmentQueue
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

SPEC = PolicySpec("toy", 3, "toy", "discrete", 2, kind="lstm", hidden=(4,))
ROLLOUT = Rollout.allocate(SPEC, 4, 2, 2)


def _segment(number: int, version: int = 0) -> Segment:
    return Segment(0, number, replace(ROLLOUT, version=version), CollectStats())


def _adds_up(queue: SegmentQueue, waiting: int) -> None:
    assert len(queue) == waiting
    assert queue.received == queue.used + queue.refused.total() + waiting


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "take", "refuse")),
        st.integers(0, 3),  # how many
        st.integers(0, 6),  # version
    ),
    max_size=60,
)


@given(OPERATIONS, st.integers(0, 3))
def test_it_adds_up_whatever_comes(operations: list[tuple[str, int, int]], lag: int) -> None:
    """Judged by a plain account: what waits, and what became of the others."""
    queue, waiting = SegmentQueue(lag), deque[Segment]()
    counts: Counter[str] = Counter()
    for what, count, version in operations:
        if what == "add":
            segments = [_segment(number, version) for number in range(count)]
            waiting.extend(segments)
            queue.add(segments)
        elif what == "take":
            fresh = [segment for segment in waiting if version - segment.rollout.version <= lag]
            counts[STALE] += len(waiting) - len(fresh)
            chosen = fresh[:count] if len(fresh) >= count else []
            waiting = deque(fresh[len(chosen) :])
            counts["used"] += len(chosen)
            assert queue.take(count, version) == chosen
        else:
            queue.refuse(count, GONE)
            counts[GONE] += count
        _adds_up(queue, len(waiting))
        _adds_up(again := _reloaded(queue), 0)
        assert again.received == queue.received
    assert queue.used == counts.pop("used", 0)
    assert queue.refused == counts
    queue.end()
    _adds_up(queue, 0)
    assert queue.refused[ENDED] == len(waiting)


def _reloaded(queue: SegmentQueue) -> SegmentQueue:
    again = SegmentQueue(0)
    again.load_state_dict(queue.state_dict())
    return again


def test_the_end_leaves_nothing_waiting() -> None:
    queue = SegmentQueue(5)
    assert str(queue) == "segments: 0 used, 0 refused"
    queue.add([_segment(number) for number in range(4)])
    assert len(queue.take(2, 0)) == 2
    queue.refuse(2, GONE)
    queue.undo(1)
    assert str(queue) == f"segments: 1 used, 3 refused (1 {ENDED}, 2 {GONE})"
    state = queue.state_dict()
    assert state == {"used": 1, "refused": {GONE: 2, ENDED: 3}}
    _adds_up(queue, 2)  # saving changes nothing
    for _ in range(2):
        queue.end()
        assert (queue.received, queue.used, queue.refused) == (6, 1, Counter({GONE: 2, ENDED: 3}))
    _adds_up(queue, 0)
