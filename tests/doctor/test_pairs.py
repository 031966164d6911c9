"""Every pair is measured once, and no machine twice at a time."""

from __future__ import annotations

import pytest

from distrlcc.doctor.pairs import rounds


@pytest.mark.parametrize("count", range(9))
def test_up_to_eight_machines_all_meet_once(count: int) -> None:
    plan = rounds(count)
    met = [(pair.first, pair.second) for pairs in plan for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    assert len(plan) <= count


@pytest.mark.parametrize("count", [9, 16, 33, 100])
def test_of_many_each_meets_the_head_and_its_neighbours(count: int) -> None:
    plan = rounds(count)
    for pairs in plan:
        busy = [number for pair in pairs for number in (pair.first, pair.second)]
        assert len(busy) == len(set(busy))
    met = {(pair.first, pair.second) for pairs in plan for pair in pairs}
    assert {(0, other) for other in range(1, count)} <= met
    assert {(number, number + 1) for number in range(count - 1)} <= met
    assert len(met) < 3 * count
