"""A packet's fate after the bottleneck: random loss, jitter, and ACKs that are shaped."""

from typing import Any

import numpy as np

from distrlcc.control.compiled import njit
from distrlcc.sim import layout as col

JITTER_FLOW = 1 << 20  # added to a flow's number where a hash is an ACK's jitter, not its loss
NO_FLOW = 1 << 8  # added where a hash is a time's, alike for all flows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_U1, _U27, _U30, _U31, _U40 = (np.uint64(n) for n in (1, 27, 30, 31, 40))
_HALF = 1 << 29  # of 30 bits


@njit
def loss_hash(seed: int, flow: int, seq: int) -> Any:
    """Hash a packet's name to 63 bits; it is lost when the result is below the loss threshold."""
    z = np.uint64(seed) + (np.uint64(flow) << _U40) + np.uint64(seq)
    z = (z + _GOLDEN) * _MIX2
    z = (z ^ (z >> _U30)) * _MIX1
    z = (z ^ (z >> _U27)) * _MIX2
    return np.int64((z ^ (z >> _U31)) >> _U1)


@njit
def wait(kind: int, scale: int, seed: int, flow: int, seq: int, time: int) -> Any:
    """Return how long jitter holds a packet that comes at a time, ns; see `scenario.JITTERS`."""
    if kind == col.CORRELATED or kind == col.BURSTS:
        # By the time alone: a period of four times the scale.
        period = max(4 * scale, 1)
        place = time // period
        elapsed = time - place * period
        number = flow // JITTER_FLOW * JITTER_FLOW + NO_FLOW
        bits = loss_hash(seed, number, place)
        share = bits >> 33  # 30 bits
        if kind == col.CORRELATED:
            following = loss_hash(seed, number, place + 1) >> 33
            return (scale * (share + (following - share) * elapsed // period)) >> 30
        length = (scale * share) >> 30
        begin = ((period - length) * (bits & (2 * _HALF - 1))) >> 30
        return begin + length - elapsed if begin <= elapsed < begin + length else 0
    bits = loss_hash(seed, flow, seq)
    if kind == col.NORMAL:
        parts = (bits & 0x7FFF) + (bits >> 15 & 0x7FFF) + (bits >> 30 & 0x7FFF)
        return (scale * (parts + (bits >> 45 & 0x7FFF))) >> 17
    share = bits >> 33
    if kind == col.EXPONENTIAL:
        # How often a half must be halved to come below the share: its logarithm, with straight
        # lines between whole ones.
        share |= 1
        halvings = 1
        while share < _HALF:
            share <<= 1
            halvings += 1
        return (scale * ((halvings * _HALF - (share - _HALF)) >> 9)) >> 23
    return (scale * share) >> 30


@njit
def acknowledge(
    link: Any, flow: Any, ring: Any, tail: int, number: int, seq: int, back: int, last_ack: int
) -> Any:
    """Return when a packet is acknowledged on a link that shapes ACKs, and the newest such time.

    ``back`` is when its ACK would come unshaped, ``tail`` its record. The third value is the log's
    row of a packet that the receiver holds, whose time the next packet may change, or 0.
    """
    back = max(back, flow[col.NEWEST])
    whole = seq == flow[col.EXPECTED]
    flow[col.NEWEST] = back
    flow[col.EXPECTED] = seq + 1
    kind, scale, seed = link[col.ACK_JITTER_KIND], link[col.ACK_JITTER], link[col.LOSS_SEED]
    tick = link[col.ACK_TICK]
    late = back + wait(kind, scale, seed, number + JITTER_FLOW, seq, back)
    ack_at = max((late + tick - 1) // tick * tick, last_ack)
    if link[col.DELAYED_ACKS] == 0:
        return ack_at, ack_at, 0
    # The second of two: both are acknowledged.
    if flow[col.HELD] > 0 and back <= flow[col.HELD_UNTIL]:
        slot = flow[col.RING_START] + ((flow[col.HELD] - 1) & flow[col.RING_MASK])
        ring[slot, col.R_ACK_TIME] = ack_at
        flow[col.HELD] = 0
        return ack_at, ack_at, flow[col.HELD_LOG]
    # The one before was acknowledged alone; this one is held, if nothing is missing before it.
    if flow[col.HELD] > 0:
        last_ack = flow[col.HELD_ACK]
        flow[col.HELD] = 0
    ack_at = max(ack_at, last_ack)
    if not whole:
        return ack_at, ack_at, 0
    until = back + col.DELAYED_ACK_NS
    late = until + wait(kind, scale, seed, number + JITTER_FLOW, seq, until)
    ack_at = max((late + tick - 1) // tick * tick, last_ack)
    flow[col.HELD] = tail + 1
    flow[col.HELD_UNTIL] = until
    flow[col.HELD_ACK] = ack_at
    return ack_at, last_ack, 0
