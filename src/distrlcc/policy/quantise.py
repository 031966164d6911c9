"""A policy file as the numbers that the kernel's program computes with."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import MAX_CWND, MIN_CWND
from distrlcc.control.windows import GROWTH
from distrlcc.errors import PolicyFileError
from distrlcc.plugins import is_reference, short
from distrlcc.policy import kernel_layout as layout
from distrlcc.policy.kernel_layout import fixed
from distrlcc.policy.numpy_policy import LOG_STD_RANGE
from distrlcc.policy.policy_file import PolicyFile

Struct = NDArray[np.void]
_INVERSE_BITS, _STD_LEAST, _FACTOR_GREATEST = 20, 2.0**-12, 4.0
_WEIGHT_GREATEST, _INPUT_GREATEST = 2.0 ** (31 - layout.WEIGHT_SHIFT), 10.0
_SUM_GREATEST = 2.0**19  # with 44 bits after a product's point, 64 bits have room for less

PACING, GUARD_LOSS = 1.25, 0.05  # for policies that were trained without
GUARD_ROUNDS, FLOOR, CROWD = 2, 4, 128
"""Round trips in a row above the guard's bound; the least window, packets; and busy connections
from which on steps get longer, in proportion. Fewer packets would wait for the receiver's timer."""


def quantise(
    policy: PolicyFile, actions: Any, *, preference: float | None = None, name: str = "policy"
) -> Struct:
    """Return a policy as one `POLICY`; raises PolicyFileError, with its name, if it does not fit.

    ``actions`` are its action space. A preference goes from 0 (throughput) to 1 (delay); None: the
    policy's own, if it has any.
    """
    spec, arrays = policy.spec, policy.arrays
    _check(policy, actions, name)
    # What the policy sees, and when.
    to = np.zeros((), layout.POLICY)
    to["observation"] = list(layout.SPACES).index(spec.observation)
    to["observed"] = layout.SPACES[spec.observation]
    told = spec.preference if preference is None else preference
    to["has_preference"], to["preference"] = spec.preference is not None, fixed(told or 0.0)
    to["mean"][: spec.observation_size] = fixed(arrays["normalizer.mean"])
    inverse = fixed(1 / arrays["normalizer.std"].astype(float), 1 << _INVERSE_BITS)
    to["inverse"][: spec.observation_size] = inverse
    to["step_us"] = round(spec.step_ms * 1000)
    to["interval_q16"] = round((spec.interval_rtts or 0.0) * 65536)
    # What it does.
    to["sample"] = policy.acting == "sample"
    to["first_window"] = fixed(actions.initial[0])
    to["least_window"], to["greatest_window"] = fixed((MIN_CWND, MAX_CWND))
    to["least_rate"] = fixed(actions.least_rate, layout.RATE_ONE)
    if spec.action_kind == "discrete":
        to["actions"] = spec.action_size
        to["factor"][: spec.action_size] = fixed(actions.factors)
        to["offset"][: spec.action_size] = fixed(actions.offsets)
    else:
        to["first_rate"] = fixed(actions.initial[1], layout.RATE_ONE)
        to["greatest_rate"] = fixed(actions.MAX_RATE, layout.RATE_ONE)
        to["scale"] = fixed(actions.scale)
        to["deviation"] = fixed(np.exp(np.clip(arrays["log_std"][0], *LOG_STD_RANGE)))
    to["growth"] = GROWTH if spec.guard else 0
    _put_options(to, spec.pacing or PACING, spec.guard or GUARD_LOSS)
    _put_network(to, policy)
    return to


def follower() -> Struct:
    """Return a `POLICY` that decides nothing: connections do what their `PLACE` says."""
    to = np.zeros((), layout.POLICY)
    to["follows"] = to["actions"] = 1
    to["observation"] = list(layout.SPACES).index("indigo")  # whose averages are counted
    _put_options(to, PACING, 0.0)
    return to


def _put_options(to: Struct, pacing: float, guard_loss: float) -> None:
    to["gain_q8"] = round(pacing * 256)
    to["guard_loss"], to["guard_rounds"] = fixed(guard_loss), GUARD_ROUNDS
    to["floor"], to["crowd"], to["catch_up"] = FLOOR, CROWD, 8


def _put_network(to: Struct, policy: PolicyFile) -> None:
    """Lay the layers' weights out in their order, the recurrent one's as one matrix."""
    for number, (weight, bias, activation) in enumerate(_layers(policy)):
        rows, width = weight.shape
        columns = _padded(width)
        before = to["layers"][number - 1] if number else np.zeros((), layout.LAYER)
        place = int(before["weights"] + before["rows"] * before["columns"])
        first = int(before["bias"] + before["rows"])
        matrix = np.full((rows, columns), 1 << 31)
        matrix[:, :width] += fixed(weight, 1 << layout.WEIGHT_SHIFT)
        to["weights"][place : place + matrix.size] = matrix.ravel()
        to["biases"][first : first + rows] = fixed(bias)
        to["layers"][number] = (rows, columns, place, first, activation)
    spec = policy.spec
    to["dense"], to["state"] = len(spec.dense), spec.state_size
    to["state_input"] = (spec.observation_size, *spec.dense)[-1]
    to["gates"], to["post_hidden"] = 2 if spec.kind == "mingru" else 4, spec.post_hidden


def _padded(width: int) -> int:
    return -(-width // 16) * 16


def _layers(policy: PolicyFile) -> list[tuple[NDArray[Any], NDArray[Any], int]]:
    spec, arrays = policy.spec, policy.arrays
    activation = layout.RELU if spec.activation == "relu" else layout.TANH
    layers = [
        (arrays[f"trunk.{i}.weight"], arrays[f"trunk.{i}.bias"], activation)
        for i in range(len(spec.dense))
    ]
    if spec.kind == "mingru":
        layers.append((arrays["mingru.weight"], arrays["mingru.bias"], layout.LINEAR))
    elif spec.kind == "lstm":
        both = np.concatenate([arrays["lstm.weight_ih"], arrays["lstm.weight_hh"]], axis=1)
        layers.append((both, arrays["lstm.bias_ih"] + arrays["lstm.bias_hh"], layout.LINEAR))
    if spec.post_hidden:
        layers.append((arrays["post.weight"], arrays["post.bias"], activation))
    layers.append((arrays["policy_head.weight"], arrays["policy_head.bias"], layout.LINEAR))
    return layers


def _greatest_sum(policy: PolicyFile) -> float:
    """Return the most that a layer can come to before its activation, whatever is observed."""
    spec, greatest = policy.spec, 0.0
    bound, state = np.full(spec.observation_size, _INPUT_GREATEST), np.ones(spec.state_size)
    for number, (weight, bias, activation) in enumerate(_layers(policy)):
        seen = bound if weight.shape[1] == len(bound) else np.concatenate([bound, state])
        total = np.abs(weight) @ seen + np.abs(bias)
        greatest = max(greatest, float(total.max()))
        if spec.state_size and number == len(spec.dense):
            bound = np.concatenate([bound, state]) if spec.post_hidden else state
        else:
            bound = np.ones(len(total)) if activation == layout.TANH else total
    return greatest


def _check(policy: PolicyFile, actions: Any, name: str) -> None:
    spec = policy.spec
    if spec.observation not in layout.SPACES:
        raise PolicyFileError(
            f"{name}: the kernel's program has no observation {spec.observation!r}; it has "
            f"{', '.join(layout.SPACES)}"
        )
    for what, brought in (("network", spec.kind), ("action", spec.action)):
        if is_reference(brought):
            raise PolicyFileError(
                f"{name}: the kernel's program runs no plug-in {what}, as {short(brought)} is; "
                "send with 'distrlcc send'"
            )
    sizes = [weight.shape for weight, _, _ in _layers(policy)]
    expected = layout.SPACES[spec.observation] + spec.action_size + (spec.preference is not None)
    for what, has, fits in (
        ("inputs", spec.observation_size, layout.MAX_INPUTS),
        ("dense layers", len(spec.dense), layout.MAX_DENSE),
        ("layers", len(sizes), layout.MAX_LAYERS),
        ("recurrent cells", spec.state_size, layout.MAX_STATE),
        ("inputs of a layer", max(columns for _, columns in sizes), layout.MAX_COLUMNS),
        ("outputs of a layer", max(rows for rows, _ in sizes), layout.MAX_ROWS),
        ("weights", sum(rows * _padded(columns) for rows, columns in sizes), layout.MAX_WEIGHTS),
        ("biases", sum(rows for rows, _ in sizes), layout.MAX_BIASES),
        ("actions", spec.action_size, layout.MAX_ACTIONS if spec.action_kind == "discrete" else 1),
    ):
        if has > fits:
            raise PolicyFileError(
                f"{name}: {has} {what} do not fit the kernel's program, which has room for {fits}; "
                "train a smaller network, or send with 'distrlcc send'"
            )
    if spec.observation_size != expected:
        raise PolicyFileError(
            f"{name}: {spec.observation_size} inputs, but {spec.observation!r} with its actions "
            f"has {expected}; it is of another distrlcc, train it again"
        )
    if spec.action_kind == "discrete" and np.max(np.abs(actions.factors)) > _FACTOR_GREATEST:
        raise PolicyFileError(
            f"{name}: an action multiplies the window by {np.max(actions.factors):g}, the kernel's "
            f"program by {_FACTOR_GREATEST:g} at most; take smaller factors"
        )
    greatest = max(float(np.abs(weight).max()) for weight, _, _ in _layers(policy))
    if greatest >= _WEIGHT_GREATEST:
        raise PolicyFileError(
            f"{name}: a weight is {greatest:g}, the kernel's program has room for "
            f"{_WEIGHT_GREATEST:g}; train it again, or send with 'distrlcc send'"
        )
    total = _greatest_sum(policy)
    if total >= _SUM_GREATEST:
        raise PolicyFileError(
            f"{name}: a sum of its network can reach {total:.0f}, the kernel's program has room "
            f"for {_SUM_GREATEST:g}; train it again, or send with 'distrlcc send'"
        )
    if policy.arrays["normalizer.std"].min() < _STD_LEAST:
        raise PolicyFileError(
            f"{name}: an input's standard deviation is {policy.arrays['normalizer.std'].min():g}, "
            f"the kernel's program takes {_STD_LEAST:g} or more; train it again on more links"
        )
