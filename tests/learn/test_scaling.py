"""Batches and rates that follow the number of ranks."""

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from distrlcc.learn.config import LRRule
from distrlcc.learn.flat_adam import FlatAdam
from distrlcc.learn.learner import NotFiniteError, Spread
from distrlcc.learn.scaling import NoiseScale, Scale
from tests.learn.test_model import RANKED, in_threads, learned, run, two_reducers
from tests.learn.toys import ToyEnv, make_spec, same_weights
from tests.trees import same


@pytest.mark.parametrize("rule", get_args(LRRule))
def test_the_rate_rises_with_ranks_over_some_updates_and_falls_at_once(rule: LRRule) -> None:
    ranks: Any = SimpleNamespace(size=5)
    scale, exponent = Scale(ranks, own=True, rule=rule, warm_up=4), {"sqrt": 0.5, "linear": 1.0}
    seen = [scale.begin() for _ in range(6)]
    assert seen == pytest.approx([n ** exponent.get(rule, 0.0) for n in (2, 3, 4, 5, 5, 5)])
    ranks.size = 2  # three are gone
    assert (scale.begin(), scale.batches) == pytest.approx((2 ** exponent.get(rule, 0.0), 2))
    ranks.size = 9  # seven join
    joined = [scale.begin() for _ in range(5)]
    assert joined[-1] == pytest.approx(9 ** exponent.get(rule, 0.0))
    assert joined[0] < joined[-1] or rule == "none"
    assert all(a <= b for a, b in pairwise(joined))
    # A batch that all share changes nothing.
    assert [Scale(ranks).begin(), Scale(ranks).batches] == [1.0, 1]


@pytest.mark.parametrize("name", RANKED)
def test_two_ranks_with_a_batch_each_learn_as_one_with_both_batches(name: str) -> None:
    learner, config = RANKED[name]
    spec, config = make_spec("memory", hidden=(8,)), replace(config, minibatch_size=16)
    ranks = [learner(config, spec, 0, reducer) for reducer in two_reducers()]
    alone = learner(config, spec, 0)
    alone.scale = Scale(SimpleNamespace(size=2), own=True, warm_up=2)
    for rank in ranks:
        rank.scale = Scale(rank.reducer, own=True, warm_up=2)
    found = run(alone, ToyEnv(6, "memory"))
    assert learned(ranks)[0]["lr"] == pytest.approx(found["lr"])
    if name != "adaptive":  # the rule stands back where the KL sets the rate
        assert found["lr"] == pytest.approx(config.lr * alone.scale.factor)
        assert alone.scale.factor > 1
    same_weights(ranks[0].weights(), ranks[1].weights())
    same_weights(ranks[0].weights(), alone.weights(), rtol=2e-4, atol=2e-4)
    # Where the rate stands on its way up is in what a resume and a joiner get.
    again = learner(config, spec, 1)
    again.load_state_dict(ranks[0].shared_state())
    assert again.scale.ranks == ranks[1].scale.ranks == alone.scale.ranks


def test_the_noise_scale_is_that_of_the_samples() -> None:
    # The true gradient has norm 2; one sample's has a standard deviation of 3 in each of 50 values.
    rng, true = np.random.default_rng(0), np.zeros(50)
    true[0] = 2.0
    found = NoiseScale()
    for _ in range(3000):
        sizes = rng.integers(10, 60, size=4)
        means = [true + 3.0 / np.sqrt(n) * rng.normal(size=50) for n in sizes]
        mean = np.average(means, axis=0, weights=sizes)
        squares = [float(np.square(m).sum()) for m in means]
        spread = Spread(float(np.average(squares, weights=sizes)), 4, float(sizes.sum()))
        found.add(spread, float(np.square(mean).sum()))
    assert found.value == pytest.approx(9.0 * 50 / 4.0, rel=0.1)
    assert found.metrics() == {"noise_scale": found.value}
    assert re.search(r"up to 1[2-6] processes with batches of their own", found.advice(8))
    assert found.advice(100).endswith("more samples in each would hardly save steps")
    # Of one rank nothing is known, also where there were several before.
    for told in (Spread(4.0, 1.0, 50.0), None):
        for alone in (NoiseScale(), replace(found)):
            alone.add(told, 4.0)
            assert (alone.metrics(), alone.advice(8)) == ({}, "")


@pytest.mark.parametrize("every", [2, 3, 1000])
@pytest.mark.parametrize("name", RANKED)
def test_local_steps_end_every_update_with_the_same_weights_and_moments(
    name: str, every: int
) -> None:
    learner, config = RANKED[name]
    spec, config = make_spec("memory", hidden=(8,)), replace(config, minibatch_size=8)
    reducers = two_reducers()
    for reducer in reducers:
        reducer.sync_every = every
    ranks = [learner(config, spec, 0, reducer) for reducer in reducers]
    before = ranks[0].weights().arrays
    learned(ranks, cut=True)
    same(ranks[0].shared_state(), ranks[1].shared_state())
    after = ranks[0].weights().arrays
    assert any(not np.array_equal(before[key], after[key]) for key in before)
    # Far fewer exchanges of vectors than minibatches; one more for each pass, at most.
    steps = ranks[0].shared_state()["model"]["adam_step"]
    assert reducers[0].exchanges <= steps / every + ranks[0].version * config.num_epochs
    assert steps > 2 * ranks[0].version


def test_what_is_not_finite_in_one_ranks_local_step_is_refused_by_all() -> None:
    reducers = two_reducers()

    def steps(r: int) -> None:
        reducers[r].sync_every = 3
        adam = FlatAdam(torch.nn.Linear(2, 1), reducers[r])
        factor = torch.inf if r else 1.0
        for _ in range(2):
            adam.step(adam.flat.sum() * factor, 4, 0.1, None)
        with pytest.raises(NotFiniteError):
            adam.step(adam.flat.sum() * factor, 4, 0.1, None)

    in_threads(steps)
