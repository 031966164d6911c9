"""The network under training: flat views, one step by hand, ranks that act as one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import DaggerConfig, PPOConfig
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.learner import NotFiniteError, Spread
from distrlcc.learn.model import Learner
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.types import TRUTH
from tests.learn.toys import ToyEnv, collected, make_spec, same_weights
from tests.trees import same


def _model(**changes: Any) -> Learner:
    return PPO(PPOConfig(), make_spec(**changes))


def test_parameters_and_clipped_gradients_are_views() -> None:
    model = _model()
    before = [p.detach().clone() for p in model.network.parameters()]
    norm = model.optimizer.step(
        model.optimizer.flat.new_zeros(()) + _loss(model), 1, lr=0.1, grad_clip=0.0
    )
    gradients = [p.grad for p in model.network.parameters()]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)
    assert norm.item() == pytest.approx(_gradient(model).norm().item())
    # Adam's first step is lr times the gradient's sign.
    for old, new, gradient in zip(before, model.network.parameters(), gradients, strict=True):
        assert gradient is not None
        moved = gradient.abs() > 1e-4
        step = (old - new)[moved]
        torch.testing.assert_close(step, 0.1 * gradient.sign()[moved], rtol=1e-3, atol=1e-5)

    model = _model()
    assert model.optimizer.step(100.0 * _loss(model), 1, lr=0.1, grad_clip=0.5) > 100
    assert _gradient(model).norm().item() == pytest.approx(0.5, rel=1e-4)


def _gradient(model: Learner) -> torch.Tensor:
    gradients = [p.grad for p in model.network.parameters()]
    return torch.cat([g.flatten() for g in gradients if g is not None])


def _loss(model: Learner) -> torch.Tensor:
    return sum((p.square().sum() + p.sum() for p in model.network.parameters()), torch.zeros(()))


def test_weights_are_copies_and_fit() -> None:
    model = _model()
    seen = np.random.default_rng(0).normal(3, 2, (100, 4)).astype(np.float32)
    model.absorb(model.moments(seen))
    weights = model.weights()
    again = PPO(PPOConfig(normalize_observations=False), make_spec(), 99)
    again.load_weights(weights)
    same_weights(again.weights(), weights, rtol=1e-6)
    again.moments(seen)
    with pytest.warns(match="observations beyond 10 count as 10, as normalize_observations is"):
        again.moments(100 * seen)
    weights.arrays["policy_head.bias"][:] = 7.0
    assert model.network.get_parameter("policy_head.bias").abs().max() == 0
    # Moments that nobody took, as those of a model of SB3, stay.
    weights.arrays["normalizer.mean"][:], weights.arrays["normalizer.std"][:] = 0.0, 128.0
    with pytest.warns(match="observations are not normalised: the policy to start from takes them"):
        model.load_weights(weights)
    for _ in range(10_000):
        model.absorb(np.repeat([100.0, 300.0, 1100.0], 4))
    assert model.weights().arrays["normalizer.mean"].tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    assert model.weights().arrays["normalizer.std"].tolist() == [128.0] * 4
    other = _model(hidden=(16,)).weights()
    with pytest.raises(ConfigError, match=r"belong to another policy .*trunk.0.weight"):
        model.load_weights(other)


class ThreadReducer:
    """Ranks as threads: the judge of what a process group must do."""

    def __init__(self, rank: int, barrier: Barrier, parts: dict[int, Any]) -> None:
        self.rank, self.barrier, self.parts = rank, barrier, parts
        self.size, self.sync_every, self.exchanges = barrier.parties, 1, 0

    def _all(self, value: Any) -> list[Any]:
        self.parts[self.rank] = value
        self.barrier.wait(20)
        parts = [self.parts[rank] for rank in sorted(self.parts)]
        self.barrier.wait(20)
        return parts

    def mean_gradient(self, gradient: torch.Tensor, weight: float) -> Spread:
        self.exchanges += 1
        parts = self._all((gradient.clone(), weight))
        total = max(sum(w for _, w in parts), 1e-9)
        gradient.copy_(sum((g * (w / total) for g, w in parts), torch.zeros(())))
        return Spread(0.0, 0.0, total)  # none: the noise scale is no concern here

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sum(self._all(values.copy()), axis=0))


def two_reducers() -> list[ThreadReducer]:
    """Return those of two ranks."""
    barrier, parts = Barrier(2), dict[int, Any]()
    return [ThreadReducer(rank, barrier, parts) for rank in range(2)]


def in_threads(call: Callable[[int], Any]) -> list[Any]:
    """Call with both ranks' numbers at once; return what comes of it."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, range(2), timeout=30))


def learned(ranks: Sequence[Learner], cut: bool = False) -> list[dict[str, float]]:
    """Let two ranks `run` at once, of which the second may be cut short; return their metrics."""
    stops = None, (lambda done: done == 1) if cut else None
    return in_threads(lambda r: run(ranks[r], ToyEnv(3, "memory", 3 * r), stops[r]))


RANKED: dict[str, tuple[Any, Any]] = {
    "ppo": (PPO, PPOConfig(num_epochs=2, sequence_length=4, use_kl_loss=True)),
    "vtrace": (PPO, PPOConfig(num_epochs=2, sequence_length=4, use_vtrace=True)),
    "privileged": (PPO, PPOConfig(num_epochs=2, sequence_length=4, privileged_critic=True)),
    "stopped": (PPO, PPOConfig(num_epochs=4, sequence_length=4, target_kl=2e-5)),
    "adaptive": (PPO, PPOConfig(num_epochs=4, sequence_length=4, desired_kl=1e-4)),
    "dagger": (Dagger, DaggerConfig(num_epochs=2, sequence_length=4)),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("kind", ["mlp", "lstm", "mingru"])
def test_two_ranks_learn_as_one_and_stay_in_step_where_one_is_cut_short(
    name: str, kind: str, cut: bool
) -> None:
    spec, (learner, config) = make_spec("memory", kind=kind, hidden=(8,)), RANKED[name]
    config = replace(config, minibatch_size=8 if cut else 32)
    ranks = [learner(config, spec, 0, reducer) for reducer in two_reducers()]
    results = learned(ranks, cut)
    same_weights(ranks[0].weights(), ranks[1].weights())
    if cut:
        return
    alone = learner(config, spec, 0)
    for key, value in run(alone, ToyEnv(6, "memory")).items():
        if key != "kl":
            assert results[0][key] == pytest.approx(value, rel=1e-3, abs=1e-5), key
            assert results[0][key] == pytest.approx(results[1][key]), key
    same_weights(ranks[0].weights(), alone.weights(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("spoiled", ["obs", "weights"])
@pytest.mark.parametrize("name", RANKED)
def test_what_is_not_finite_is_refused_and_leaves_no_trace(name: str, spoiled: str) -> None:
    learner, config = RANKED[name]
    trained = learner(config, make_spec("memory", hidden=(8,)), 0)
    collector, rollout = _started(trained)
    collected(trained, collector, rollout)
    before, whole = trained.shared_state(), trained.state_dict()
    if spoiled == "obs":
        rollout.obs[3, 1, 0] = np.inf
    else:  # gradients overflow, in the second minibatch at the latest
        with torch.no_grad():
            trained.optimizer.flat.mul_(1e30)
    refused = pytest.raises(NotFiniteError, match=r"a sum of|the mean gradient")
    with refused, np.errstate(all="ignore"):
        trained.update(rollout)
    trained.undo_update(before)
    same(trained.state_dict(), whole)
    # It counts, and the next one is learned from.
    trained.pass_over(rollout.samples)
    assert trained.weights().version == 2
    collected(trained, collector, rollout)
    trained.update(rollout)
    assert trained.weights().version == 3


def _started(learner: Learner) -> tuple[Collector, Rollout]:
    """Return what has collected the first update, and is to collect the next."""
    collector = Collector(ToyEnv(3, "memory"), learner.spec, seed=0)
    rollout = Rollout.allocate(learner.spec, 16, 3, 4, truth=len(TRUTH))
    collected(learner, collector, rollout)
    learner.update(rollout)
    return collector, rollout


def run(learner: Learner, env: Any, stop: Any = None) -> dict[str, float]:
    """Let a learner learn twice; return the second time's metrics."""
    collector = Collector(env, learner.spec, seed=0)
    rollout = Rollout.allocate(learner.spec, 16, env.num_envs, 4, truth=len(TRUTH))
    for _ in range(2):
        collected(learner, collector, rollout, stop)
        metrics = learner.update(rollout)
    return metrics
