"""The minGRU's recurrence in torch (https://arxiv.org/abs/2410.01201, section 3.1).

    z_t = sigmoid(W_z x_t + b_z),  c_t = tanh(W_c x_t + b_c),  h_t = (1 - z_t) h_{t-1} + z_t c_t.

Gates depend on the input alone: one product computes those of a whole sequence, and only
elementwise steps are left in time. Candidates go through tanh, so that the state stays within ±1.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrlcc.control.compiled import njit


def scan(gates: Tensor, starts: Tensor, first: Tensor) -> Tensor:
    """Return the states ``[H, L, B]`` after each step, of the one before the first, ``[H, B]``.

    Gates are before sigmoid and tanh, ``[2 H, L, B]``: of z, then of candidates; each unit's steps
    lie together in memory. Starts, ``[L, B]``, are True where the state before is zero.
    """
    if gates.device.type == "cpu":
        states: Tensor = _CompiledScan.apply(gates, starts, first)  # type: ignore[no-untyped-call]
        return states
    return scan_by_steps(gates, starts, first)


def scan_by_steps(gates: Tensor, starts: Tensor, first: Tensor) -> Tensor:
    """Return the same as `scan`, on any device."""
    update, candidate = gates.chunk(2)
    update, candidate = update.sigmoid(), candidate.tanh()
    rows, state = [], first
    for t, start in enumerate(starts):
        state = torch.lerp(state.masked_fill(start, 0.0), candidate[:, t], update[:, t])
        rows.append(state)
    return torch.stack(rows, 1)


class _CompiledScan(torch.autograd.Function):
    """One pass over memory forward and one back, where autograd makes several a step."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, starts: Tensor, first: Tensor) -> Tensor:
        half = len(gates) // 2
        active = torch.empty_like(gates)
        torch.sigmoid(gates[:half], out=active[:half])
        torch.tanh(gates[half:], out=active[half:])
        states = torch.empty_like(active[:half])
        first = first.contiguous()
        # A row of its own, or the loop over it is not vectorised.
        row = torch.empty(first.shape[1])
        _forward(*(each.numpy() for each in (active, starts, first, states, row)))
        ctx.save_for_backward(active, starts, first, states)
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        active, starts, first, states = ctx.saved_tensors
        before, carried = torch.empty_like(active), torch.zeros_like(first)
        inputs = (active, starts, first, states, gradient.contiguous(), before, carried)
        _backward(*(each.numpy() for each in inputs))
        return before, None, carried


@njit
def _forward(gates: Any, starts: Any, first: Any, states: Any, state: Any) -> None:
    """Fill ``states``; gates are after sigmoid and tanh, ``state`` is for one row."""
    units, length, count = states.shape
    for k in range(units):
        for b in range(count):
            state[b] = first[k, b]
        for t in range(length):
            for b in range(count):
                h = np.float32(0.0) if starts[t, b] else state[b]
                state[b] = h + gates[k, t, b] * (gates[units + k, t, b] - h)
                states[k, t, b] = state[b]


@njit
def _backward(
    gates: Any, starts: Any, first: Any, states: Any, gradient: Any, inputs: Any, carried: Any
) -> None:
    """Fill the gradient ``inputs`` of gates before sigmoid and tanh; ``carried`` is first's."""
    units, length, count = states.shape
    one = np.float32(1.0)
    for k in range(units):
        carry = carried[k]
        for t in range(length - 1, -1, -1):
            before = states[k, t - 1] if t else first[k]
            for b in range(count):
                h = np.float32(0.0) if starts[t, b] else before[b]
                z, c, g = gates[k, t, b], gates[units + k, t, b], carry[b] + gradient[k, t, b]
                inputs[k, t, b] = g * (c - h) * z * (one - z)
                inputs[units + k, t, b] = g * z * (one - c * c)
                carry[b] = np.float32(0.0) if starts[t, b] else g * (one - z)
