"""Data classes that cross floors: what a sender saw, and in which order its fields stand."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

NANOSECONDS = 1_000_000_000  # nanoseconds in a second

PACKET_BYTES = 1504  # on the wire, and a mahimahi opportunity: 1500 bytes and 4 of the TUN header

TRUTH = (
    *("rate", "rtt", "capacity", "flows", "schemes", "bdp"),
    *("queue", "loss", "jitter", "aqm", "policer", "kernel"),
)
"""Values of a link that a critic may know in training, in order; see `distrlcc.env.truth`."""

FloatArray = NDArray[np.float64]


@dataclass(slots=True)  # frozen ones take five times as long to make, one for each packet
class Ack:
    """One acknowledgement as a congestion controller sees it; counts are packets."""

    rtt_ns: int  # round-trip time of the acknowledged packet
    seq: int  # its sequence number, from 0
    sent: int  # packets sent so far: the next sequence number
    lost: int  # packets newly found lost: the gap below `seq`
    inflight: int  # packets in flight after this acknowledgement and its losses are taken off
    delivered: int  # packets delivered so far, this one counted
    prior_delivered: int  # packets delivered when that one was sent (BBR's round count)
    delivery_rate: float  # packets/s over the packet's flight (delivery-rate draft)
    marked: int = 0  # packets newly found to carry a mark (ECN); 0 where none can be seen
    undone: bool = False  # whether it shows that the newest recovery or timeout was spurious
    begins_recovery: bool = False  # whether `lost` has a packet sent since the last recovery began


@dataclass(slots=True)
class IntervalStats:
    """The senders' statistics of one step: the only thing that crosses between worlds.

    Every field is a float64 array ``[N]``, one element per sender. Times are in seconds unless a
    field says otherwise, counts are packets. A sender without an ACK in the step has ``acked`` 0
    and keeps its last ``rtt_last``; its interval RTT fields are 0.
    """

    duration: FloatArray  # length of the step, s
    sent: FloatArray  # packets sent in the step
    acked: FloatArray  # packets acknowledged in the step
    lost: FloatArray  # packets found lost in the step
    timeouts: FloatArray  # times the timer fired in the step: no ACK for RFC 6298's timeout
    rtt_sum: FloatArray  # sum of the RTT samples of the step, s
    rtt_min: FloatArray  # least RTT sample of the step, s; 0 without samples
    rtt_max: FloatArray  # greatest RTT sample of the step, s; 0 without samples
    rtt_last: FloatArray  # newest RTT sample of the episode, s; 0 before the first
    min_rtt: FloatArray  # least RTT sample of the episode, s; 0 before the first
    cwnd: FloatArray  # congestion window at the end of the step, packets
    pacing_rate: FloatArray
    """Pacing rate at the end of the step, packets/s; 0 means window-limited alone."""
    inflight: FloatArray  # packets in flight at the end of the step
    delay_ewma: FloatArray  # Indigo: EWMA (1/8, reset each step) of RTT - min RTT, ms
    delivery_rate_ewma: FloatArray  # Indigo: EWMA of BBR's delivery rate, Mbit/s
    send_rate_ewma: FloatArray  # Indigo: EWMA of Vegas' sending rate, Mbit/s
    spurious: FloatArray  # packets acknowledged in the step that had been found lost before

    @property
    def net_lost(self) -> FloatArray:
        """Packets found lost in the step, less ``spurious``; below 0 where those are of before."""
        return self.lost - self.spurious

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the fields' names in order."""
        return tuple(f.name for f in fields(cls))


def copy_state(owner: object, names: str) -> dict[str, Any]:
    """Return attributes, named without their underscore, as a part of a state; arrays as copies."""
    held = {name: getattr(owner, _attribute(owner, name)) for name in names.split()}
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in held.items()}


def restore_state(owner: object, names: str, state: Mapping[str, Any]) -> None:
    """Give an object's attributes what `copy_state` took; their types stay."""
    for name in names.split():
        attribute = _attribute(owner, name)
        now, value = getattr(owner, attribute), state[name]
        array = isinstance(now, np.ndarray)
        setattr(owner, attribute, np.array(value, now.dtype) if array else type(now)(value))


def _attribute(owner: object, name: str) -> str:
    return f"_{name}" if hasattr(owner, f"_{name}") else name
