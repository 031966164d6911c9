"""Ranges against a plain set."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from distrlcc.transport.ranges import Ranges

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=40)


def build(spans: list[tuple[int, int]]) -> tuple[Ranges, set[int]]:
    ranges: Ranges = Ranges()
    numbers: set[int] = set()
    for start, length in spans:
        new = set(range(start, start + length)) - numbers
        assert ranges.add(start, start + length) == len(new)
        numbers |= new
    return ranges, numbers


def check(ranges: Ranges, numbers: set[int]) -> None:
    spans = list(ranges)
    assert len(ranges) == len(spans)
    assert {n for start, stop in spans for n in range(start, stop)} == numbers
    assert all(start < stop for start, stop in spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))


@given(SPANS)
def test_adding(spans: list[tuple[int, int]]) -> None:
    ranges, numbers = build(spans)
    check(ranges, numbers)
    assert [n for n in range(80) if n in ranges] == sorted(numbers)


@given(SPANS, st.integers(0, 70), st.integers(0, 70))
def test_what_is_missing(spans: list[tuple[int, int]], start: int, stop: int) -> None:
    ranges, numbers = build(spans)
    gaps = ranges.missing(start, stop)
    assert {n for a, b in gaps for n in range(a, b)} == set(range(start, stop)) - numbers
    assert all(a < b for a, b in gaps)
    assert gaps == sorted(gaps)
    first = ranges.first_missing(start)
    assert first not in numbers
    assert set(range(start, first)) <= numbers


@given(SPANS, st.integers(0, 80))
def test_dropping_below(spans: list[tuple[int, int]], number: int) -> None:
    ranges, numbers = build(spans)
    ranges.drop_below(number)
    check(ranges, {n for n in numbers if n >= number})


@given(SPANS, st.integers(1, 10))
def test_newest_first(spans: list[tuple[int, int]], limit: int) -> None:
    ranges, _ = build(spans)
    assert ranges.newest(limit) == tuple(reversed(list(ranges)))[:limit]


def test_the_lowest_range_goes() -> None:
    ranges, _ = build([(0, 2), (5, 1), (9, 3)])
    assert ranges.drop_lowest() == 2
    assert list(ranges) == [(5, 6), (9, 12)]
