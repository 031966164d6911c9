"""Distributions by hand, and NumPy's against torch's."""

import math

import numpy as np
import pytest
import torch

from distrlcc.policy import numpy_policy
from distrlcc.policy.network import Categorical, Gaussian, kl_estimate


def test_categorical_by_hand() -> None:
    distribution = Categorical.of(torch.log(torch.tensor([[1.0, 1.0, 2.0]])))
    assert distribution.log_prob(torch.tensor([2])).item() == pytest.approx(math.log(0.5))
    assert distribution.entropy().item() == pytest.approx(1.5 * math.log(2.0))


def test_gaussian_by_hand() -> None:
    distribution = Gaussian.of(torch.tensor([[1.0]]), torch.tensor([math.log(2.0)]))
    expected = -0.5 - math.log(2.0) - 0.5 * math.log(2.0 * math.pi)
    assert distribution.log_prob(torch.tensor([[3.0]])).item() == pytest.approx(expected)
    entropy = 0.5 * math.log(2.0 * math.pi * math.e * 4.0)
    assert distribution.entropy().tolist() == pytest.approx([entropy])
    assert Gaussian.of(torch.zeros(1, 1), torch.tensor([-99.0])).log_std.item() == -5.0


def test_kl_estimate_is_unbiased_and_never_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.log_softmax(torch.randn(4, generator=generator), 0)
    new = torch.log_softmax(torch.randn(4, generator=generator), 0)
    estimates = kl_estimate(new - old)
    assert (estimates >= 0).all()
    exact = (old.exp() * (old - new)).sum().item()
    assert (old.exp() * estimates).sum().item() == pytest.approx(exact, rel=1e-5)


def test_numpy_agrees_with_torch() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 3, (50, 4)).astype(np.float32)
    torch_side = Categorical.of(torch.from_numpy(logits))
    log_probs = numpy_policy.log_softmax(logits)
    np.testing.assert_allclose(log_probs, torch_side.log_probs.numpy(), atol=1e-6)
    np.testing.assert_allclose(
        numpy_policy.categorical_entropy(log_probs), torch_side.entropy().numpy(), atol=1e-6
    )
    log_std = np.array([-9.0, 0.3, 5.0, 0.0], np.float32)
    actions = generator.normal(size=(50, 4)).astype(np.float32)
    gaussian = Gaussian.of(torch.from_numpy(logits), torch.from_numpy(log_std))
    np.testing.assert_allclose(
        numpy_policy.gaussian_log_prob(logits, log_std, actions),
        gaussian.log_prob(torch.from_numpy(actions)).numpy(),
        rtol=1e-5,
    )
    assert numpy_policy.gaussian_entropy(log_std) == pytest.approx(gaussian.entropy()[0].item())


def test_inverse_cdf() -> None:
    log_probs = np.log(np.tile(np.array([[0.25, 0.5, 0.25]], np.float32), (6, 1)))
    uniforms = np.array([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1.0 - 2.0**-53])
    assert numpy_policy.sample_categorical(log_probs, uniforms).tolist() == [0, 0, 1, 1, 2, 2]


def test_impossible_actions_are_not_drawn() -> None:
    log_probs = numpy_policy.log_softmax(np.array([[-200.0, 0.0, -200.0]] * 2, np.float32))
    assert numpy_policy.sample_categorical(log_probs, np.array([0.0, 1 - 1e-16])).tolist() == [1, 1]


def test_gaussian_draws() -> None:
    mean = np.array([[1.0], [2.0]], np.float32)
    log_std = np.array([math.log(3.0)], np.float32)
    actions = numpy_policy.sample_gaussian(mean, log_std, np.array([[0.0], [-1.0]]))
    np.testing.assert_allclose(actions, [[1.0], [-1.0]], rtol=1e-6)
