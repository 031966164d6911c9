"""What becomes of a packet after the bottleneck: random loss, and ACKs that a link shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrlcc.control.compiled import njit
from distrlcc.sim import layout as col

JITTER_FLOW = 1 << 20
"""Added to a flow's number where a hash is an ACK's jitter and not a packet's loss."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_U1, _U27, _U30, _U31, _U40 = (np.uint64(n) for n in (1, 27, 30, 31, 40))


@njit
def loss_hash(seed: int, flow: int, seq: int) -> Any:
    """Hash a packet's name to 63 bits; it is lost when the result is below the loss threshold."""
    z = np.uint64(seed) + (np.uint64(flow) << _U40) + np.uint64(seq)
    z = (z + _GOLDEN) * _MIX2
    z = (z ^ (z >> _U30)) * _MIX1
    z = (z ^ (z >> _U27)) * _MIX2
    return np.int64((z ^ (z >> _U31)) >> _U1)


@njit
def acknowledge(
    link: Any, flow: Any, ring: Any, tail: int, number: int, seq: int, back: int, last_ack: int
) -> Any:
    """Return when a packet is acknowledged on a link that shapes ACKs, and the newest such time.

    ``back`` is when its ACK would come without any wait, ``tail`` its record in the ring. The time
    of a packet that the receiver holds may change when the next one comes: then a third value is
    the row of the log that has it, else 0.
    """
    back = max(back, flow[col.NEWEST])
    whole = seq == flow[col.EXPECTED]
    flow[col.NEWEST] = back
    flow[col.EXPECTED] = seq + 1
    share = loss_hash(link[col.LOSS_SEED], number + JITTER_FLOW, seq) >> 33  # 30 bits
    wait = (link[col.ACK_JITTER] * share) >> 30
    tick = link[col.ACK_TICK]
    ack_at = max((back + wait + tick - 1) // tick * tick, last_ack)
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
    ack_at = max((until + wait + tick - 1) // tick * tick, last_ack)
    flow[col.HELD] = tail + 1
    flow[col.HELD_UNTIL] = until
    flow[col.HELD_ACK] = ack_at
    return ack_at, last_ack, 0
