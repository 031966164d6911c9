"""Time in buckets, by hand."""

import numpy as np
import pytest

from distrlcc.evaluate.buckets import MAX_BUCKETS, bucket_edges, totals


def test_buckets_are_a_tenth_of_a_second_and_longer_where_there_would_be_many() -> None:
    assert bucket_edges(0.25) == pytest.approx([0.0, 0.1, 0.2, 0.25])
    edges = bucket_edges(300.0)
    assert len(edges) == MAX_BUCKETS + 1
    assert edges[1] == 2.0


def test_a_step_is_spread_over_the_buckets_in_which_it_lies() -> None:
    edges, ends = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.0])
    # 4 lies in two buckets by halves; after the last step there is nothing.
    assert totals(edges, ends, np.array([1.0, 4.0, 2.0])) == pytest.approx([3.0, 4.0, 0.0])
