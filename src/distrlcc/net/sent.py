"""What a flow showed: step by step, and as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from distrlcc.net.ticker import MOST_LATE


class Step(NamedTuple):
    """What a step showed, for plots and live lines."""

    time: float
    """Its end, s since the start."""
    duration: float
    acked: float
    lost: float
    rtt: float
    """Mean of its samples, s; 0 without."""
    cwnd: float
    inflight: float
    smoothed_rtt: float
    """RFC 6298's at the end of the step, s; 0 before the first sample."""


@dataclass
class Sent:
    """How it went."""

    seconds: float = 0.0
    packets: int = 0
    acked: int = 0
    lost: int = 0
    timeouts: int = 0
    bytes: int = 0
    """On the wire, acknowledged, with the headers of each packet."""
    file_bytes: int = 0
    min_rtt_ms: float = float("nan")
    mean_rtt_ms: float = float("nan")
    p95_rtt_ms: float = float("nan")
    steps: int = 0
    late_share: float = 0.0
    """Share of steps that began more than 1 ms late."""
    lateness_p50_ms: float = 0.0
    lateness_p99_ms: float = 0.0
    ignored: int = 0
    """Datagrams that were malformed, stray or forged."""
    unsent: int = 0
    """Datagrams that this machine had no room for."""
    failure: str = ""
    """Why it ended before its end, one line; empty if all went well."""
    series: list[Step] = field(default_factory=list)

    @property
    def mbps(self) -> float:
        """Throughput, Mbit/s."""
        return self.bytes * 8e-6 / self.seconds if self.seconds else 0.0

    @property
    def loss(self) -> float:
        """Share of packets found lost."""
        return self.lost / max(self.lost + self.acked, 1)

    @property
    def late(self) -> bool:
        """Whether too many steps were late for the figures to count."""
        return self.late_share > MOST_LATE
