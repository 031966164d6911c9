"""The account of segments: whatever comes, each is used once, refused for a reason, or waits."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrlcc.actors.ledger import DUPLICATE, ENDED, GONE, STALE, UNFIT, Ledger
from distrlcc.actors.segment import Segment
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

SPEC = PolicySpec(
    observation="toy", observation_size=3, action="toy", action_kind="discrete", action_size=2,
    kind="lstm", hidden=(4,),
)  # fmt: skip
FIT = Rollout.allocate(SPEC, 4, 2, 2)
UNFITS = (
    Rollout.allocate(SPEC, 3, 2, 2),  # fewer steps
    Rollout.allocate(SPEC, 4, 1, 2),  # fewer environments
    Rollout.allocate(SPEC, 4, 2, 4),  # other sequences
    Rollout.allocate(replace(SPEC, observation_size=2), 4, 2, 2),
    Rollout.allocate(replace(SPEC, hidden=(5,)), 4, 2, 2),
)
LIFE = 100


def _segment(worker: int, number: int, version: int = 0, like: Rollout = FIT) -> Segment:
    rollout = replace(like, version=version)
    return Segment(worker, number, np.zeros(2, np.int64), rollout, CollectStats())


def _adds_up(ledger: Ledger, waiting: int) -> None:
    assert ledger.waiting == waiting
    assert ledger.received == ledger.used + ledger.refused.total() + waiting


Operation = tuple[str, int, int, int, int]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("receive", "receive", "receive", "unfit", "use", "use", "give_up")),
        st.integers(0, 2),  # worker
        st.integers(0, 1),  # its life
        st.integers(-2, 2),  # number, less the one that follows
        st.integers(0, 6),  # version; segments that a given-up worker had
    ),
    max_size=60,
)


@settings(deadline=None)
@given(OPERATIONS, st.integers(0, 3), st.integers(0, 60))
def test_it_adds_up_whatever_comes(operations: list[Operation], lag: int, saved_at: int) -> None:
    """Judged by a plain account: what was seen of each life, what waits, and what became of it."""
    ledger = Ledger(lag, FIT)
    following: dict[tuple[int, int], int] = {}
    seen: dict[tuple[int, int], set[int]] = {}
    waiting: deque[Segment] = deque()
    told = dict.fromkeys(("received", "used", DUPLICATE, UNFIT, STALE, GONE), 0)
    for position, (what, worker, life, ahead, amount) in enumerate(operations):
        if position == saved_at:
            state = ledger.state_dict()
            assert state["received"] == state["used"] + sum(state["refused"].values())
        if what in ("receive", "unfit"):
            key = (worker, life)
            number = max(following.get(key, 0) + ahead, 0)
            like = FIT if what == "receive" else UNFITS[amount % len(UNFITS)]
            segment = _segment(worker, number, amount, like)
            new = number >= following.get(key, 0)
            assert ledger.receive(segment, life) == (new and what == "receive")
            told["received"] += 1
            told[DUPLICATE] += not new
            told[UNFIT] += new and what == "unfit"
            if new:
                following[key] = number + 1
                seen.setdefault(key, set()).add(number)
                if what == "receive":
                    waiting.append(segment)
        elif what == "use" and waiting:
            segment = waiting.popleft()
            fresh = amount - segment.version <= lag
            assert ledger.use(segment, amount) == fresh
            told["used" if fresh else STALE] += 1
        elif what == "give_up":
            ledger.refuse(amount, GONE)
            told["received"] += amount
            told[GONE] += amount
        _adds_up(ledger, len(waiting))
    assert (ledger.received, ledger.used) == (told.pop("received"), told.pop("used"))
    assert {reason: ledger.refused[reason] for reason in told} == told
    assert ledger.lost == sum(following[key] - len(numbers) for key, numbers in seen.items())
    ledger.end()
    _adds_up(ledger, 0)
    assert ledger.refused[ENDED] == len(waiting)


def test_each_is_taken_once() -> None:
    ledger = Ledger(5, FIT)
    assert ledger.receive(_segment(0, 0), LIFE)
    assert not ledger.receive(_segment(0, 0), LIFE)
    assert ledger.receive(_segment(0, 1), LIFE)
    assert not ledger.receive(_segment(0, 0), LIFE)
    assert ledger.receive(_segment(1, 0), LIFE)  # another worker's
    assert (ledger.received, ledger.lost, ledger.refused) == (5, 0, {DUPLICATE: 2})
    _adds_up(ledger, 3)


@pytest.mark.parametrize("lag", [0, 2])
def test_a_segment_may_be_so_old_and_no_older(lag: int) -> None:
    ledger = Ledger(lag, FIT)
    for number in range(2):
        ledger.receive(_segment(0, number, version=7), LIFE)
    assert ledger.use(_segment(0, 0, version=7), 7 + lag)
    assert not ledger.use(_segment(0, 1, version=7), 8 + lag)
    assert (ledger.used, ledger.refused) == (1, {STALE: 1})
    _adds_up(ledger, 0)


@pytest.mark.parametrize("like", UNFITS)
def test_another_shape_is_refused_and_is_no_gap(like: Rollout) -> None:
    ledger = Ledger(5, FIT)
    assert not ledger.receive(_segment(0, 0, like=like), LIFE)
    assert ledger.receive(_segment(0, 1), LIFE)
    assert (ledger.lost, ledger.refused) == (0, {UNFIT: 1})
    _adds_up(ledger, 1)


def test_what_was_passed_over_is_lost_and_too_late_then() -> None:
    ledger = Ledger(5, FIT)
    assert ledger.receive(_segment(0, 3), LIFE)
    assert ledger.lost == 3
    assert not ledger.receive(_segment(0, 1), LIFE)
    assert ledger.receive(_segment(0, 5), LIFE)
    assert (ledger.lost, ledger.received, ledger.refused) == (4, 3, {DUPLICATE: 1})
    _adds_up(ledger, 2)


def test_a_worker_that_was_started_again_counts_from_the_beginning() -> None:
    ledger = Ledger(5, FIT)
    for number in range(3):
        assert ledger.receive(_segment(0, number), LIFE)
    assert ledger.receive(_segment(0, 0), LIFE + 1)
    assert ledger.receive(_segment(0, 1), LIFE + 1)
    assert not ledger.receive(_segment(0, 2), LIFE)  # of its former life, again
    assert (ledger.lost, ledger.refused) == (0, {DUPLICATE: 1})
    _adds_up(ledger, 5)


def test_the_end_leaves_nothing_waiting() -> None:
    ledger = Ledger(5, FIT)
    for number in range(4):
        ledger.receive(_segment(0, number), LIFE)
    assert ledger.use(_segment(0, 0), 0)
    ledger.refuse(2, GONE)
    assert str(ledger) == f"segments: 1 used, 2 refused (2 {GONE})"
    ledger.end()
    assert (ledger.received, ledger.used, ledger.refused) == (6, 1, {GONE: 2, ENDED: 3})
    _adds_up(ledger, 0)
    assert str(ledger) == f"segments: 1 used, 5 refused (3 {ENDED}, 2 {GONE})"
    ledger.end()
    _adds_up(ledger, 0)
    assert ledger.refused.total() == 5


def test_nothing_refused_is_said_shortly() -> None:
    assert str(Ledger(5, FIT)) == "segments: 0 used, 0 refused"


def test_it_goes_on_from_its_state_where_nothing_waits_any_more() -> None:
    ledger = Ledger(0, FIT)
    for worker in range(2):
        for number in (0, 2, 3):
            ledger.receive(_segment(worker, number), LIFE)
    ledger.receive(_segment(0, 0), LIFE)
    assert ledger.use(_segment(0, 0), 0)
    assert not ledger.use(_segment(0, 2), 1)
    state = ledger.state_dict()
    assert state == {
        "received": 7, "used": 1, "lost": 2, "refused": {DUPLICATE: 1, STALE: 1, ENDED: 4},
    }  # fmt: skip
    _adds_up(ledger, 4)  # saving changes nothing

    again = Ledger(0, FIT)
    again.load_state_dict(state)
    _adds_up(again, 0)
    assert again.state_dict() == state
    assert again.receive(_segment(0, 0), LIFE)  # workers were started anew
    _adds_up(again, 1)
    assert again.lost == 2
