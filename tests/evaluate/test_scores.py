"""Scores: the metrics are fields; time in buckets, by hand."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from distrlcc.evaluate.scores import (
    MAX_BUCKETS,
    METRICS,
    SENDER_METRICS,
    SchemeScores,
    bucket_edges,
    bucket_sums,
    metric,
)


def test_every_metric_is_a_field_and_every_array_but_the_base_rtt_a_metric() -> None:
    names = {f.name for f in fields(SchemeScores)}
    keys = [m.key for m in METRICS + SENDER_METRICS]
    assert names - set(keys) == {"scheme", "links", "base_rtt_ms", "learned"}
    assert len(set(keys)) == len(keys)
    assert metric("loss").title == "loss (%)"
    assert metric("power").title == "power"
    assert metric("mean_cwnd_packets").title == "mean cwnd (packets)"


def test_values_stand_in_the_order_of_the_metrics(
    make_scores: Callable[..., SchemeScores],
) -> None:
    scores = make_scores("cubic", links=3, seeds=2)
    values = scores.values()
    assert values.shape == (len(METRICS), 3, 2)
    assert np.array_equal(values[0], scores.power)
    assert np.array_equal(values[-1], scores.excess_loss)
    assert scores.seeds == 2


def test_what_a_sender_did_not_say_is_nan(make_scores: Callable[..., SchemeScores]) -> None:
    scores = make_scores("cubic", links=3, seeds=2)
    assert not scores.has_sender_metrics
    assert np.isnan(scores.values(SENDER_METRICS)).all()
    windows = np.arange(6.0).reshape(3, 2)
    scores = replace(scores, mean_cwnd_packets=windows)
    assert scores.has_sender_metrics
    values = scores.values(METRICS + SENDER_METRICS)
    assert np.array_equal(values[len(METRICS)], windows)
    assert np.isnan(values[len(METRICS) + 1 :]).all()


def test_buckets_are_a_tenth_of_a_second_and_longer_where_there_would_be_many() -> None:
    assert bucket_edges(0.25) == pytest.approx([0.0, 0.1, 0.2, 0.25])
    edges = bucket_edges(300.0)
    assert len(edges) == MAX_BUCKETS + 1
    assert edges[1] == 2.0


def test_a_step_is_spread_over_the_buckets_in_which_it_lies() -> None:
    edges, ends = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.0])
    # 4 lies in two buckets by halves; after the last step there is nothing.
    assert bucket_sums(edges, ends, np.array([1.0, 4.0, 2.0])) == pytest.approx([3.0, 4.0, 0.0])
