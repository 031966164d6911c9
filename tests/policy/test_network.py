"""Networks and distributions in torch by hand, and NumPy's against torch's."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.policy import numpy_policy
from distrlcc.policy.min_gru import scan, scan_by_steps
from distrlcc.policy.network import ActorCritic, kl_estimate
from distrlcc.policy.spec import expected_shapes
from tests.policy.random_policies import make_spec


@pytest.mark.parametrize("kind", ["mlp", "lstm", "mingru"])
@pytest.mark.parametrize("action_kind", ["discrete", "continuous"])
def test_names_and_shapes(kind: str, action_kind: str) -> None:
    spec = make_spec(kind=kind, action_kind=action_kind, post_hidden=0 if kind == "mlp" else 7)
    network = ActorCritic(spec)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    expected = expected_shapes(spec)
    del expected["normalizer.mean"], expected["normalizer.std"]
    assert shapes == expected
    starts = torch.zeros(4, 6, dtype=torch.bool)
    head, values, state = network(torch.randn(4, 6, 5), starts, network.initial_state(6))
    assert (head.shape, values.shape) == ((4, 6, 3), (4, 6))
    assert state.shape == spec.state_shape(6)
    entropy = network.distribution(head).entropy()
    assert entropy.shape == (4, 6)
    if action_kind == "discrete":  # the first policy is nearly uniform
        assert entropy.min() > 1.09  # ln 3 = 1.0986


def test_the_same_seed_gives_the_same_weights() -> None:
    a, b, c = (ActorCritic(make_spec(), seed) for seed in (7, 7, 8))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.policy_head.weight, c.policy_head.weight)


def test_trunk_by_hand() -> None:
    network = ActorCritic(make_spec(observation_size=2, hidden=(2,), action_size=2))
    with torch.no_grad():
        network.get_parameter("trunk.0.weight").copy_(torch.tensor([[1.0, -1.0], [2.0, 0.0]]))
        network.get_parameter("trunk.0.bias").copy_(torch.tensor([0.5, -9.0]))
        network.policy_head.weight.copy_(torch.tensor([[2.0, 1.0], [-1.0, 1.0]]))
        network.value_head.weight.copy_(torch.tensor([[3.0, 0.0]]))
        network.value_head.bias.fill_(1.0)
    head, values, _ = network(
        torch.tensor([[[3.0, 1.0]]]), torch.zeros(1, 1, dtype=torch.bool), torch.zeros(2, 1, 0)
    )
    assert head.tolist() == [[[5.0, -2.5]]]  # relu(3 - 1 + 0.5) = 2.5, relu(6 - 9) = 0
    assert values.tolist() == [[8.5]]


def test_a_layer_behind_the_recurrent_one_by_hand() -> None:
    network = ActorCritic(
        make_spec(kind="mingru", observation_size=1, hidden=(1,), post_hidden=2, action_size=2)
    )
    assert network.mingru is not None
    assert network.post is not None
    with torch.no_grad():
        network.mingru.weight.copy_(torch.tensor([[0.0], [1.0]]))
        network.mingru.bias.zero_()
        network.post.weight.copy_(torch.tensor([[1 / 64, 2.0], [1 / 32, -2.0]]))
        network.policy_head.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 3.0]]))
        network.value_head.weight.copy_(torch.tensor([[5.0, 0.0]]))
    seen, starts = torch.full((1, 1, 1), 64.0), torch.zeros(1, 1, dtype=torch.bool)
    head, values, state = network(seen, starts, torch.full((1, 1, 1), 0.5))
    # z = 1/2, and the candidate tanh(64) = 1: h = 0.5 + (1 - 0.5) / 2. What is seen counts, too:
    # relu(1 + 2 h) and relu(2 - 2 h).
    assert state.tolist() == [[[0.75]]]
    assert head.tolist() == [[[3.0, 1.5]]]
    assert values.tolist() == [[12.5]]


@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_a_start_cuts_memory_and_gradient(kind: str) -> None:
    network = ActorCritic(make_spec(kind=kind, hidden=(8,)))
    obs = torch.randn(6, 2, 5, requires_grad=True)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    state = torch.randn(network.spec.state_shape(2))
    head, values, after = network(obs, starts, state)

    zero = torch.zeros_like(state)
    alone, alone_values, alone_after = network(obs[3:], torch.zeros_like(starts[3:]), zero)
    torch.testing.assert_close(head[3:, 0], alone[:, 0])
    torch.testing.assert_close(values[3:, 0], alone_values[:, 0])
    torch.testing.assert_close(after[:, 0], alone_after[:, 0])
    assert not torch.allclose(head[3:, 1], alone[:, 1])

    head[5].sum().backward()
    assert obs.grad is not None
    assert obs.grad[:3, 0].abs().sum() == 0
    assert obs.grad[:3, 1].abs().sum() > 0


def test_a_min_gru_by_hand() -> None:
    gates = torch.tensor([0.0, math.log(3.0), 0.0, math.atanh(0.5), 0.0, math.atanh(-0.8)])
    starts = torch.tensor([[False], [False], [True]])
    states = scan(gates.view(2, 3, 1), starts, torch.tensor([[0.6]]))
    # Half of 0.6 and of 0.5; a quarter of 0.55 and three of 0; half of 0, for a start, and -0.8.
    assert states.flatten().tolist() == pytest.approx([0.55, 0.1375, -0.4])


def test_the_compiled_scan_is_the_one_by_steps_and_so_is_its_gradient() -> None:
    generator = torch.Generator().manual_seed(3)
    gates = torch.randn(10, 7, 6, generator=generator)
    starts = torch.rand(7, 6, generator=generator) < 0.3
    first, weight = torch.randn(5, 6, generator=generator), torch.randn(5, 7, 6)
    results: list[list[Any]] = []
    for compute in (scan, scan_by_steps):
        inputs = [each.clone().requires_grad_() for each in (gates, first)]
        states = compute(inputs[0], starts, inputs[1])
        (states * weight).sum().backward()
        results.append([states, *(each.grad for each in inputs)])
    for compiled, by_steps in zip(*results, strict=True):
        torch.testing.assert_close(compiled, by_steps)
    # Features as they lie after a transposed product are taken, too.
    torch.testing.assert_close(
        scan(gates, starts, first.t().contiguous().t()), results[0][0].detach()
    )


def test_kl_estimate_is_unbiased_and_never_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.log_softmax(torch.randn(4, generator=generator), 0)
    new = torch.log_softmax(torch.randn(4, generator=generator), 0)
    estimates = kl_estimate(new - old)
    assert (estimates >= 0).all()
    exact = (old.exp() * (old - new)).sum().item()
    assert (old.exp() * estimates).sum().item() == pytest.approx(exact, rel=1e-5)


def _distribution(head: Any, log_std: Any = None) -> Any:
    network = ActorCritic(make_spec(action_kind="discrete" if log_std is None else "continuous"))
    if log_std is not None:
        network.log_std = torch.nn.Parameter(torch.as_tensor(log_std), requires_grad=False)
    return network.distribution(torch.as_tensor(head))


def test_numpy_agrees_with_torch() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 3, (50, 4)).astype(np.float32)
    torch_side = _distribution(logits)
    log_probs = numpy_policy.log_softmax(logits)
    np.testing.assert_allclose(log_probs, torch_side.log_probs.numpy(), atol=1e-6)
    np.testing.assert_allclose(
        numpy_policy.categorical_entropy(log_probs), torch_side.entropy().numpy(), atol=1e-6
    )
    log_std = np.array([-9.0, 0.3, 5.0, 0.0], np.float32)
    actions = generator.normal(size=(50, 4)).astype(np.float32)
    gaussian = _distribution(logits, log_std)
    np.testing.assert_allclose(
        numpy_policy.gaussian_log_prob(logits, log_std, actions),
        gaussian.log_prob(torch.from_numpy(actions)).numpy(),
        rtol=1e-5,
    )
    assert numpy_policy.gaussian_entropy(log_std) == pytest.approx(gaussian.entropy()[0].item())


def test_distributions_by_hand() -> None:
    distribution = _distribution(torch.log(torch.tensor([[1.0, 1.0, 2.0]])))
    assert distribution.log_prob(torch.tensor([2])).item() == pytest.approx(math.log(0.5))
    assert distribution.entropy().item() == pytest.approx(1.5 * math.log(2.0))
    gaussian = _distribution([[1.0]], [math.log(2.0)])
    expected = -0.5 - math.log(2.0) - 0.5 * math.log(2.0 * math.pi)
    assert gaussian.log_prob(torch.tensor([[3.0]])).item() == pytest.approx(expected)
    entropy = 0.5 * math.log(2.0 * math.pi * math.e * 4.0)
    assert gaussian.entropy().tolist() == pytest.approx([entropy])
    assert _distribution([[0.0]], [-99.0]).log_std.item() == -5.0


def test_draws_are_by_the_inverse_cdf_and_never_impossible() -> None:
    log_probs = np.log(np.tile(np.array([[0.25, 0.5, 0.25]], np.float32), (6, 1)))
    uniforms = np.array([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1.0 - 2.0**-53])
    assert numpy_policy.sample_categorical(log_probs, uniforms).tolist() == [0, 0, 1, 1, 2, 2]
    log_probs = numpy_policy.log_softmax(np.array([[-200.0, 0.0, -200.0]] * 2, np.float32))
    assert numpy_policy.sample_categorical(log_probs, np.array([0.0, 1 - 1e-16])).tolist() == [1, 1]
    mean, log_std = np.array([[1.0], [2.0]], np.float32), np.array([math.log(3.0)], np.float32)
    actions = numpy_policy.sample_gaussian(mean, log_std, np.array([[0.0], [-1.0]]))
    np.testing.assert_allclose(actions, [[1.0], [-1.0]], rtol=1e-6)
