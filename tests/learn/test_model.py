"""The network under training: flat views, one step by hand, ranks that act as one."""

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import DaggerConfig, PPOConfig
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.learner import Learner, LocalReducer, Reducer, Weights
from distrlcc.learn.model import Model
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.learn.threads import limit_threads
from distrlcc.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]


def _model(spec: PolicySpec, **options: Any) -> Model:
    return Model(spec, 0, LocalReducer(), normalize_observations=True, **options)


def test_parameters_and_gradients_are_views(make_spec: MakeSpec) -> None:
    model = _model(make_spec())
    before = [p.detach().clone() for p in model.network.parameters()]
    norm = model.optimizer.step(
        model.optimizer.flat.new_zeros(()) + _loss(model), 1, lr=0.1, grad_clip=0.0
    )
    gradients = [p.grad for p in model.network.parameters()]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)
    together = torch.cat([g.flatten() for g in gradients if g is not None])
    assert norm.item() == pytest.approx(together.norm().item())
    # Adam's first step is lr times the gradient's sign.
    for old, new, gradient in zip(before, model.network.parameters(), gradients, strict=True):
        assert gradient is not None
        moved = gradient.abs() > 1e-4
        step = (old - new)[moved]
        torch.testing.assert_close(step, 0.1 * gradient.sign()[moved], rtol=1e-3, atol=1e-5)


def _loss(model: Model) -> torch.Tensor:
    return sum((p.square().sum() + p.sum() for p in model.network.parameters()), torch.zeros(()))


def test_gradient_is_clipped(make_spec: MakeSpec) -> None:
    model = _model(make_spec())
    norm = model.optimizer.step(100.0 * _loss(model), 1, lr=0.1, grad_clip=0.5)
    assert norm > 100
    clipped = torch.cat(
        [p.grad.flatten() for p in model.network.parameters() if p.grad is not None]
    )
    assert clipped.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_weights_are_copies_and_fit(make_spec: MakeSpec) -> None:
    model = _model(make_spec())
    model.learn_normalization(np.random.default_rng(0).normal(3, 2, (100, 4)).astype(np.float32))
    weights = model.weights()
    again = Model(make_spec(), 99, LocalReducer(), normalize_observations=False)
    again.load_weights(weights)
    for name, array in again.weights().arrays.items():
        np.testing.assert_allclose(array, weights.arrays[name], rtol=1e-6)
    weights.arrays["policy_head.bias"][:] = 7.0
    assert model.network.policy_head.bias.abs().max() == 0
    other = _model(make_spec(hidden=(16,))).weights()
    with pytest.raises(ConfigError, match=r"belong to another policy .*trunk.0.weight"):
        model.load_weights(other)


def test_prepare_process() -> None:
    limit_threads()
    assert torch.get_num_threads() == 1


class ThreadReducer:
    """Ranks as threads: the judge of what a process group must do."""

    def __init__(self, ranks: int) -> None:
        self.barrier = Barrier(ranks)
        self.parts: dict[int, Any] = {}

    def rank(self, rank: int) -> Reducer:
        shared = self

        class Rank:
            def _all(self, value: Any) -> list[Any]:
                shared.parts[rank] = value
                shared.barrier.wait(20)
                parts = [shared.parts[r] for r in sorted(shared.parts)]
                shared.barrier.wait(20)
                return parts

            def mean_gradient(self, gradient: torch.Tensor, weight: float) -> None:
                parts = self._all((gradient.clone(), weight))
                total = max(sum(w for _, w in parts), 1e-9)
                gradient.copy_(sum((g * (w / total) for g, w in parts), torch.zeros(())))

            def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
                return np.sum(self._all(values.copy()), axis=0)

        return Rank()


def _ppo(spec: PolicySpec, reducer: Reducer | None, minibatch: int) -> Learner:
    config = PPOConfig(minibatch_size=minibatch, num_epochs=2, sequence_length=4, use_kl_loss=True)
    return PPO(config, spec, 0, reducer)


def _dagger(spec: PolicySpec, reducer: Reducer | None, minibatch: int) -> Learner:
    config = DaggerConfig(minibatch_size=minibatch, num_epochs=2, sequence_length=4)
    return Dagger(config, spec, 0, reducer)


@pytest.mark.parametrize("make", [_ppo, _dagger])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_two_ranks_learn_as_one(make_env: Any, make_spec: MakeSpec, make: Any, kind: str) -> None:
    spec = make_spec("memory", kind=kind, hidden=(8,))
    alone = make(spec, None, 32)
    metrics = _run(alone, make_env(6, "memory"), spec)
    reducer = ThreadReducer(2)
    ranks = [make(spec, reducer.rank(r), 32) for r in range(2)]
    results: dict[int, Any] = {}
    _join(
        [
            Thread(
                target=lambda r=r: results.update(
                    {r: _run(ranks[r], make_env(3, "memory", 3 * r), spec)}
                )
            )
            for r in range(2)
        ]
    )
    for name, value in metrics.items():
        if name not in ("explained_variance", "kl"):
            assert results[0][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
            assert results[0][name] == pytest.approx(results[1][name]), name
    _equal(ranks[0].weights(), ranks[1].weights(), 0)
    _equal(ranks[0].weights(), alone.weights(), 2e-4)


@pytest.mark.parametrize("make", [_ppo, _dagger])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_a_rank_cut_short_stays_in_step(
    make_env: Any, make_spec: MakeSpec, make: Any, kind: str
) -> None:
    spec = make_spec("memory", kind=kind, hidden=(8,))
    reducer = ThreadReducer(2)
    ranks = [make(spec, reducer.rank(r), 8) for r in range(2)]
    cut = [None, lambda done: done == 1]
    threads = [
        Thread(target=_run, args=(ranks[r], make_env(3, "memory", 3 * r), spec, cut[r]))
        for r in range(2)
    ]
    _join(threads)
    _equal(ranks[0].weights(), ranks[1].weights(), 0)


def _run(learner: Learner, env: Any, spec: PolicySpec, stop: Any = None) -> dict[str, float]:
    collector = Collector(env, spec, seed=0)
    rollout = Rollout.allocate(spec, 16, env.num_envs, 4)
    for _ in range(2):
        collector.set_weights(learner.weights())
        collector.collect(rollout, stop)
        metrics = learner.update(rollout)
    return metrics


def _join(threads: list[Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def _equal(a: Weights, b: Weights, tolerance: float) -> None:
    for name, array in a.arrays.items():
        np.testing.assert_allclose(array, b.arrays[name], atol=tolerance, rtol=tolerance)
