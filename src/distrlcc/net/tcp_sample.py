"""What the kernel says of a TCP flow at a moment: the fields of Linux's struct tcp_info we read."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_INFO_BYTES = 192
# Offsets in struct tcp_info (include/uapi/linux/tcp.h), which only ever grows at its end.
_RTT, _CWND, _RETRANSMITTED, _ACKED, _SENT = 68, 80, 100, 120, 156


class TcpSample(NamedTuple):
    """A flow at a moment; counts are since its beginning, packets are the kernel's segments."""

    time_s: float
    """Since the flow began."""
    smoothed_rtt_ms: float
    """The kernel's (RFC 6298), which takes in each acknowledgement."""
    cwnd_packets: int
    sent_packets: int
    """With data, those that were sent again among them."""
    retransmitted_packets: int
    acked_bytes: int


def read_sample(flow: socket.socket, *, time_s: float) -> TcpSample:
    """Ask the kernel.

    Args:
        flow: A TCP socket that is connected.
        time_s: The moment, as the sample is to have it.
    """
    info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)

    def number(offset: int) -> int:
        return int(struct.unpack_from("I", info, offset)[0])

    return TcpSample(
        time_s=time_s,
        smoothed_rtt_ms=number(_RTT) / 1e3,
        cwnd_packets=number(_CWND),
        sent_packets=number(_SENT),
        retransmitted_packets=number(_RETRANSMITTED),
        acked_bytes=int(struct.unpack_from("Q", info, _ACKED)[0]),
    )
