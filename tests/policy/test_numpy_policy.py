"""Policies and normalisation in NumPy."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc import seeding
from distrlcc.errors import ConfigError
from distrlcc.policy.network import ActorCritic
from distrlcc.policy.normalizer import Normalizer, normalize
from distrlcc.policy.numpy_policy import ActingPolicy, NumpyPolicy, log_softmax, sample_categorical
from distrlcc.policy.policy_file import PolicyFile, save_policy
from tests.policy.random_policies import make_policy

STEPS, COUNT = 20, 30


def _torch_network(policy: PolicyFile) -> ActorCritic:
    network = ActorCritic(policy.spec)
    weights = {k: torch.from_numpy(v) for k, v in policy.arrays.items() if "normal" not in k}
    network.load_state_dict(weights)
    return network


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "tanh"},
        {"kind": "lstm", "hidden": (32,)},
        {"kind": "lstm", "hidden": (16, 8)},
        {"kind": "mingru", "hidden": (16, 8)},
        {"kind": "mingru", "hidden": (7,)},
        {"kind": "mingru", "hidden": (16, 8), "post_hidden": 12},
        {"kind": "lstm", "hidden": (8,), "post_hidden": 3, "activation": "tanh"},
        {"action_kind": "continuous", "action_size": 1},
    ],
)
def test_agrees_with_torch_on_recorded_states(changes: dict[str, Any]) -> None:
    policy = make_policy(**changes)
    network, numpy_policy = _torch_network(policy), NumpyPolicy(policy)
    recorded = np.random.default_rng(0).normal(0, 2, (STEPS, COUNT, 5)).astype(np.float32)
    normal = normalize(recorded, policy.arrays["normalizer.mean"], policy.arrays["normalizer.std"])
    starts = torch.zeros(STEPS, COUNT, dtype=torch.bool)
    with torch.no_grad():
        heads, values, _ = network(torch.from_numpy(normal), starts, network.initial_state(COUNT))
    state = numpy_policy.initial_state(COUNT)
    for t in range(STEPS):
        head, value, after = numpy_policy.step(recorded[t], state)
        np.testing.assert_allclose(head, heads[t].numpy(), atol=1e-5)
        np.testing.assert_allclose(value, values[t].numpy(), atol=1e-5)
        actions, state = numpy_policy.act(recorded[t], state)
        np.testing.assert_array_equal(state, after)
        if policy.spec.action_kind == "continuous":
            np.testing.assert_allclose(actions, heads[t].numpy(), atol=1e-5)
        else:
            np.testing.assert_array_equal(actions, heads[t].argmax(-1).numpy())
            uniform = seeding.uniform(seeding.stream_key(0, "act"), np.arange(COUNT), t)
            np.testing.assert_array_equal(
                sample_categorical(log_softmax(head), uniform),
                sample_categorical(log_softmax(heads[t].numpy()), uniform),
            )


def test_an_observation_that_is_not_finite_gets_no_action() -> None:
    policy = NumpyPolicy(make_policy())
    actor = ActingPolicy(policy, 2, np.uint64(0))
    observation = np.zeros((2, policy.spec.observation_size), np.float32)
    actor.act(observation)
    observation[1, 0] = np.nan
    with pytest.raises(ConfigError, match="observation features or network mlp gave values that"):
        actor.act(observation)


def test_sampling_needs_draws() -> None:
    policy = NumpyPolicy(replace(make_policy(), acting="sample"))
    obs, state = np.zeros((2, 5), np.float32), policy.initial_state(2)
    with pytest.raises(ValueError, match="pass draws"):
        policy.act(obs, state)
    actions, _ = policy.act(obs, state, np.array([0.0, 1.0 - 1e-12]))
    assert actions.tolist() == [0, 2]
    file = replace(make_policy(action_kind="continuous", action_size=1), acting="sample")
    policy = NumpyPolicy(file)
    actions, _ = policy.act(obs, state, np.array([[0.0], [1.0]]))
    std = np.exp(file.arrays["log_std"][0])
    np.testing.assert_allclose(actions - policy.step(obs, state)[0], [[0.0], [std]], atol=1e-6)


def test_loads_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    save_policy(path, make_policy())
    program = (
        "import sys; from distrlcc.policy.numpy_policy import NumpyPolicy; "
        f"NumpyPolicy.load({str(path)!r}); "
        "print(sorted({'torch', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_merge_equals_one_that_saw_all_and_a_state_keeps_it() -> None:
    rows = np.random.default_rng(0).normal([5.0, -1e4, 0.0], [2.0, 0.1, 30.0], (1000, 3))
    whole = Normalizer(3)
    for part in np.split(rows, [1, 10, 400, 1000]):  # the last one has no rows
        whole.update(part)
    parts = [Normalizer(3) for _ in range(3)]
    for normalizer, chunk in zip(parts, np.split(rows, [100, 700]), strict=True):
        normalizer.update(chunk.reshape(-1, 2, 3) if len(chunk) % 2 == 0 else chunk)
    for other in (parts[0], parts[1], Normalizer(3)):
        parts[2].merge(other.count, other.mean, other.m2)
    again = Normalizer(3)
    again.load_state_dict(parts[2].state_dict())
    for each in (whole, parts[2], again):
        np.testing.assert_allclose(each.mean, rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(each.std, rows.std(0), rtol=1e-9)
        assert each.count == 1000


def test_normalize_by_hand_and_clip() -> None:
    obs = np.array([[3.0, 1e6, -1e6]], np.float32)
    mean, std = np.array([1, 0, 0], np.float32), np.array([4, 1, 1], np.float32)
    assert normalize(obs, mean, std).tolist() == [[0.5, 10.0, -10.0]]
    assert obs[0, 1] == 1e6
    normalizer = Normalizer(2)  # without data or variance it divides by one
    assert normalizer.std.tolist() == [1.0, 1.0]
    normalizer.update(np.full((7, 2), 3.0))
    assert normalizer.std.tolist() == [1.0, 1.0]
