"""Policies as the kernel's program takes them, and those that it does not take."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.env.actions import ACTIONS
from distrlcc.errors import PolicyFileError
from distrlcc.policy.policy_file import PolicyFile, find_policy, load_policy
from distrlcc.policy.quantise import _greatest_sum, quantise
from tests.policy.random_policies import make_spec, random_arrays


def changed(name: str, **changes: Any) -> PolicyFile:
    spec = replace(load_policy(find_policy(name)).spec, **changes)
    return PolicyFile(spec, random_arrays(spec, 0.3))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (changed("dagger", observation="mine"), "no observation 'mine'; it has scale-free,"),
        (changed("one", hidden=(64, 129)), "129 recurrent cells do not fit .* room for 128"),
        (changed("indigo", hidden=(250, 64)), "314 inputs of a layer do not fit .* room for 256"),
        (changed("one", hidden=(193, 64)), "257 inputs of a layer do not fit .* room for 256"),
        (changed("dagger", hidden=(300,)), "300 inputs of a layer do not fit"),
        (changed("dagger", hidden=(64,) * 5), "5 dense layers do not fit .* room for 4"),
        (changed("one", hidden=(64,) * 5, post_hidden=9), "7 layers do not fit .* room for 6"),
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
