"""The arithmetic of the kernel's program: whole numbers alone, 24 bits after the point.

Each function equals the C function of the same name in ``net/kernel/fixed.bpf.h`` bit for bit, on
int64 arrays. ``scripts/build_bpf.py`` writes the tables to ``tables.h``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distrlcc.policy.kernel_layout import ONE

Ints = NDArray[np.int64]

SHIFT = 24
LOG2 = np.round(np.log2(1 + np.arange(1026) / 1024) * ONE).astype(np.int64)
"""log2 of 1 to 2 in steps of 1/1024."""
TANH = np.round(np.tanh(np.arange(2050) / 256) * ONE).astype(np.int64)
"""tanh of 0 to 8 in steps of 1/256."""
EXP2 = np.minimum(np.round(2 ** (np.arange(258) / 256 + 30)), 2**32 - 1).astype(np.int64)
"""2^x of 0 to 1 in steps of 1/256, 30 bits after the point."""
LN2 = round(np.log(2) * 2**30)
LOG2_E = round(ONE / np.log(2))


def fixed(value: object, one: int = ONE) -> Ints:
    """Return numbers in fixed point, rounded."""
    return np.round(np.asarray(value, np.float64) * one).astype(np.int64)


def mul(a: Ints, b: Ints) -> Ints:
    """Return a product, rounded down."""
    return np.asarray((a * b) >> SHIFT)


def ln(x: Ints) -> Ints:
    """Return the natural logarithm of whole numbers; that of 0 is 0."""
    x = np.maximum(x, 1)
    top = np.zeros_like(x)
    rest = x
    for bit in (32, 16, 8, 4, 2, 1):
        more = (rest >> bit > 0) * bit
        top, rest = top + more, rest >> more
    m = x.astype(np.uint64) << (63 - top).astype(np.uint64)
    i = (m >> np.uint64(53) & np.uint64(1023)).astype(np.int64)
    f = (m >> np.uint64(29) & np.uint64(ONE - 1)).astype(np.int64)
    log = (top << SHIFT) + LOG2[i] + ((LOG2[i + 1] - LOG2[i]) * f >> SHIFT)
    return np.asarray(log * LN2 >> 30)


def tanh(x: Ints) -> Ints:
    """Return the hyperbolic tangent."""
    v = np.minimum(np.abs(x), 8 * ONE - 1)
    i, f = v >> 16, v & 65535
    y = TANH[i] + ((TANH[i + 1] - TANH[i]) * f >> 16)
    # The curve lies above its chord by t (1 - t^2) f (1 - f) / 256^2.
    y += mul(y, ONE - mul(y, y)) * (f * (65536 - f) >> 16) >> 32
    return np.asarray(np.where(x < 0, -y, y))


def exp(x: Ints) -> Ints:
    """Return e^x of x <= 0, 30 bits after the point."""
    t = np.minimum(-x, 20 * ONE) * LOG2_E >> SHIFT
    g = ONE - (t & (ONE - 1))  # 2^-t is 2^g / 2^(whole + 1), with g of 0 to 1
    i = np.minimum(g >> 16, 255)
    y = EXP2[i] + ((EXP2[i + 1] - EXP2[i]) * (g - (i << 16)) >> 16)
    return np.asarray(y >> (t >> SHIFT) + 1)
