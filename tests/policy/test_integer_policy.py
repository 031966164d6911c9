"""The kernel's arithmetic, and what it sees beside floating point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.errors import PolicyFileError
from distrlcc.policy import fixed_point, kernel_layout
from distrlcc.policy.fixed_point import fixed
from distrlcc.policy.integer_policy import IntegerPolicy, intervals
from distrlcc.policy.kernel_layout import ONE
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import PolicyFile, find_policy, load_policy
from distrlcc.policy.quantise import _greatest_sum, quantise
from distrlcc.types import IntervalStats
from tests.policy.random_policies import make_spec, random_arrays


def test_functions_are_those_of_mathematics_to_six_digits() -> None:
    rng = np.random.default_rng(1)
    whole = np.floor(np.exp(rng.uniform(0, 43, 4000))).astype(np.int64)
    assert fixed_point.ln(whole) / ONE == pytest.approx(np.log(whole.astype(float)), abs=1e-6)
    assert fixed_point.ln(np.array([0, 1, 2**62])) / ONE == pytest.approx([0, 0, 62 * np.log(2)])
    x = rng.uniform(-12, 12, 4000)
    assert fixed_point.tanh(fixed(x)) / ONE == pytest.approx(np.tanh(x), abs=4e-7)
    assert fixed_point.exp(fixed(-abs(x))) / 2**30 == pytest.approx(np.exp(-abs(x)), abs=2e-6)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_what_is_seen_is_what_the_space_sees(name: str) -> None:
    spec = make_spec(
        observation=name, action_size=5, observation_size=kernel_layout.SPACES[name] + 5
    )
    policy = quantise(PolicyFile(spec, random_arrays(spec, 0.3)), ACTIONS["indigo"])
    n, rng = 40, np.random.default_rng(2)
    twin, space = IntegerPolicy(policy, n), OBSERVATIONS[name](n)
    assert space.size == policy["observed"]
    # Whole microseconds, as both see the same; silences, and paths that get longer and shorter,
    # a quarter of them within a LAN.
    lowest = np.where(np.arange(n) < n // 4, 50, 8_000)
    path, shortest, last = rng.integers(lowest, 25 * lowest) / 1e6, np.zeros(n), np.zeros(n)
    for step in range(150):
        path = np.where(rng.random(n) < 0.05, rng.integers(lowest, 25 * lowest) / 1e6, path)
        acked = np.where(rng.random(n) < 0.3, 0, rng.integers(1, 60, n))
        least = np.where(acked > 0, path, 0.0)
        last = np.where(acked > 0, path + rng.integers(0, 4 * lowest) / 1e6, last)
        shorter = (acked > 0) & ((shortest == 0) | (path < shortest))
        shortest = np.where(shorter, path, shortest)
        values = dict.fromkeys(IntervalStats.names(), np.zeros(n)) | {
            "duration": np.full(n, 0.01),
            "acked": acked.astype(float),
            "sent": rng.integers(0, 60, n).astype(float),
            "lost": np.where(rng.random(n) < 0.8, 0.0, rng.integers(0, 9, n)),
            "rtt_sum": np.round(acked * (least + last) / 2, 6),
            "rtt_min": least,
            "rtt_max": np.where(acked > 0, last, 0.0),
            "rtt_last": last,
            "min_rtt": shortest,
            "inflight": rng.integers(0, 300, n).astype(float),
            "cwnd": rng.integers(2, 4000, n).astype(float),
            "delay_ewma": rng.uniform(0, 300, n),
            "delivery_rate_ewma": rng.uniform(0, 900, n),
            "send_rate_ewma": rng.uniform(0, 900, n),
        }
        stats = IntervalStats(**values)
        twin.rows["now"], twin.rows["cwnd"] = intervals(stats), fixed(stats.cwnd)
        twin.step(np.zeros(n, np.int64))
        expected = space.observe(stats)
        # The waiting packets' times are of 1/16 us here, and a fading rate's least is 1/65536.
        seen = twin.rows["observation"][:, : space.size] / ONE
        assert np.abs(seen - expected).max() < 1e-3, (step, np.abs(seen - expected).max(axis=0))


def changed(name: str, **changes: object) -> PolicyFile:
    spec = replace(load_policy(find_policy(name)).spec, **changes)
    return PolicyFile(spec, random_arrays(spec, 0.3))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (changed("dagger", observation="mine"), "no observation 'mine'; it has scale-free,"),
        (changed("one", hidden=(64, 65)), "65 recurrent cells do not fit .* room for 64"),
        (changed("indigo", hidden=(128, 64)), "192 inputs of a layer do not fit .* room for 128"),
        (changed("one", hidden=(65, 64)), "129 inputs of a layer do not fit .* room for 128"),
        (changed("dagger", hidden=(300,)), "300 inputs of a layer do not fit"),
        (changed("dagger", hidden=(64,) * 5), "5 dense layers do not fit .* room for 4"),
        (
            changed("one", hidden=(64,) * 5, post_hidden=9),
            "7 layers do not fit .* room for 6",
        ),
        (changed("dagger", observation_size=30), "30 inputs, but 'scale-free' .* has 20"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(policy: PolicyFile, said: str) -> None:
    with pytest.raises(PolicyFileError, match=f"^mine: .*{said}") as refused:
        quantise(policy, ACTIONS[policy.spec.action], name="mine")
    assert "\n" not in str(refused.value)


def test_weights_and_deviations_out_of_range_are_refused() -> None:
    policy = load_policy(find_policy("dagger"))
    for name, value, said in (
        ("trunk.0.weight", 3000.0, "a weight is 3000, .* room for 2048"),
        ("normalizer.std", 1e-4, "standard deviation is 0.0001"),
    ):
        array = policy.arrays[name].copy()
        array.flat[0] = value
        broken = replace(policy, arrays=policy.arrays | {name: array})
        with pytest.raises(PolicyFileError, match=said):
            quantise(broken, ACTIONS["multiplicative"])
    # Weights that each fit, and sums that 64 bits would not hold.
    policy = load_policy(find_policy("one"))
    broken = replace(policy, arrays={k: v * 60 / abs(v).max() for k, v in policy.arrays.items()})
    with pytest.raises(PolicyFileError, match=r"a sum of .* can reach .* has room for 524288"):
        quantise(broken, ACTIONS["fine"])


@pytest.mark.parametrize(
    ("kind", "hidden", "post", "activation"),
    [
        ("mingru", (60, 64), 50, "relu"),
        ("lstm", (20, 20), 17, "tanh"),
        ("mingru", (33,), 9, "relu"),
    ],
)
def test_a_layer_behind_the_recurrent_one_is_the_networks(
    kind: str, hidden: tuple[int, ...], post: int, activation: str
) -> None:
    size = kernel_layout.SPACES["scale-free"]
    spec = make_spec(
        observation="scale-free",
        observation_size=size + 9,
        action="fine",
        action_size=9,
        kind=kind,
        hidden=hidden,
        post_hidden=post,
        activation=activation,
    )
    policy = PolicyFile(spec, random_arrays(spec, 0.3))
    network, n, rng = NumpyPolicy(policy), 40, np.random.default_rng(3)
    twin = IntegerPolicy(quantise(policy, ACTIONS["fine"]), n)
    state = network.initial_state(n)
    for _ in range(5):
        seen, action = rng.normal(0.0, 1.0, (n, size)), rng.integers(0, 9, n)
        twin.rows["observation"][:, :size], twin.rows["action"] = fixed(seen), action
        obs = np.concatenate([seen, np.eye(9)[action]], axis=1).astype(np.float32)
        head, _, state = network.step(obs, state)
        assert twin.head() / ONE == pytest.approx(head, abs=2e-4, rel=1e-4)


def test_the_most_that_sums_can_reach_is_as_by_hand() -> None:
    """Ten at most come in, a dense layer makes 21 of it, and what is remembered is 1 at most."""

    def array(*values: float, rows: int = 1) -> np.ndarray:
        return np.array(values, np.float32).reshape(rows, -1)

    dense = {"trunk.0.weight": array(-2), "trunk.0.bias": array(1)[0]}
    head = {"policy_head.weight": array(1, -0.5, rows=2), "policy_head.bias": array(3, 0)[0]}
    gates = array(3, -4, rows=2)
    gru = {"mingru.weight": gates, "mingru.bias": array(0, 1)[0]}
    post = {"post.weight": array(5, -7), "post.bias": array(2)[0]}
    spec = make_spec(observation_size=1, action_size=2, kind="mingru", hidden=(1, 1), post_hidden=1)
    assert _greatest_sum(PolicyFile(spec, dense | gru | post | head)) == 5 * 21 + 7 + 2 + 3
    lstm = {
        "lstm.weight_ih": array(0, 0, -3, 0, rows=4),
        "lstm.weight_hh": array(0, 0, 2, 0, rows=4),
        "lstm.bias_ih": array(0, 0, 1, 0)[0],
        "lstm.bias_hh": array(0, 0, 1, 0)[0],
    }
    spec = make_spec(observation_size=1, action_size=2, kind="lstm", hidden=(1, 1))
    assert _greatest_sum(PolicyFile(spec, dense | lstm | head)) == 3 * 21 + 2 + 2
