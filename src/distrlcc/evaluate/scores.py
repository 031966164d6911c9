"""What was measured: a scheme's scores on links and seeds, time series, the metrics' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distrlcc.types import FloatArray


@dataclass(frozen=True, slots=True)
class Metric:
    """How a metric is named, written and judged."""

    key: str
    """Field of :class:`SchemeScores`, and key in JSON."""
    label: str
    """Short name for a table's head."""
    unit: str
    """Unit as shown; empty for plain numbers."""
    digits: int
    """Digits after the point as shown."""
    better: Literal["higher", "lower"] | None
    """Which way is better; None: neither."""
    definition: str
    """One sentence for people."""
    scale: float = 1.0
    """Factor from the stored value to the shown one: 100 for percentages."""

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


METRICS: tuple[Metric, ...] = (
    Metric(
        "power", "power", "", 3, "higher",
        "Utilisation divided by (mean RTT / base RTT): Kleinrock's power, scaled so that a full "
        "link without a queue has 1; beside other flows, of the flow's own share of the link.",
    ),
    Metric(
        "throughput_mbps", "throughput", "Mbit/s", 2, "higher",
        "Acknowledged packets, with their headers, per time.",
    ),
    Metric(
        "utilisation", "utilisation", "%", 1, "higher",
        "Share of the link's capacity that left the bottleneck used.", 100.0,
    ),
    Metric(
        "first_second_utilisation", "first-second utilisation", "%", 1, "higher",
        "The same in the flow's first second: how fast it finds the rate.", 100.0,
    ),
    Metric(
        "mean_queueing_delay_ms", "mean queueing delay", "ms", 1, "lower",
        "Time that a packet waits in the bottleneck's queue, mean over acknowledged packets.",
    ),
    Metric(
        "p95_queueing_delay_ms", "p95 queueing delay", "ms", 1, "lower",
        "The same, 95th percentile over acknowledged packets.",
    ),
    Metric(
        "queueing_delay_rtt", "queueing delay", "RTT", 3, "lower",
        "Mean queueing delay divided by the link's RTT without a queue (base RTT).",
    ),
    Metric(
        "mean_rtt_ms", "mean RTT", "ms", 1, "lower",
        "Round-trip time, mean over acknowledged packets.",
    ),
    Metric(
        "p95_rtt_ms", "p95 RTT", "ms", 1, "lower",
        "The same, 95th percentile over acknowledged packets.",
    ),
    Metric(
        "loss", "loss", "%", 2, "lower",
        "Share of the sent packets that were lost, in the queue or at random.", 100.0,
    ),
    Metric(
        "excess_loss", "excess loss", "%", 2, "lower",
        "Loss without the link's own random loss: what the sender causes by filling the queue.",
        100.0,
    ),
)  # fmt: skip
"""What every world measures, in the order in which it is shown."""

SENDER_METRICS: tuple[Metric, ...] = (
    Metric(
        "mean_cwnd_packets", "mean cwnd", "packets", 1, None,
        "Congestion window, mean over time, as the sender itself says.",
    ),
    Metric(
        "mean_smoothed_rtt_ms", "mean smoothed RTT", "ms", 1, "lower",
        "The sender's own smoothed RTT (RFC 6298), mean over time; unlike the RTT it has in it "
        "what the two ends' machines add.",
    ),
    Metric(
        "retransmitted_share", "retransmitted", "%", 2, "lower",
        "Share of the packets sent that the kernel's TCP had sent before; our senders, which "
        "send nothing again here, have none.", 100.0,
    ),
)  # fmt: skip
"""What senders of real packets say of themselves, shown after :data:`METRICS`."""


def metric(key: str) -> Metric:
    """Return the metric of a key of :data:`METRICS` or :data:`SENDER_METRICS`."""
    return next(m for m in METRICS + SENDER_METRICS if m.key == key)


@dataclass(frozen=True)
class SchemeScores:
    """One scheme's scores on L links with S seeds each; every array is float64 ``[L, S]``.

    A delay or RTT is NaN where nothing was delivered; everything is where a run failed.
    """

    scheme: str
    """Name of the scheme or policy."""
    links: tuple[str, ...]
    """Names of the L links."""
    throughput_mbps: FloatArray
    utilisation: FloatArray
    """Share of the capacity that left the bottleneck, 0 to 1."""
    first_second_utilisation: FloatArray
    mean_queueing_delay_ms: FloatArray
    p95_queueing_delay_ms: FloatArray
    mean_rtt_ms: FloatArray
    p95_rtt_ms: FloatArray
    base_rtt_ms: FloatArray
    """RTT without a queue."""
    queueing_delay_rtt: FloatArray
    """Mean queueing delay / base RTT."""
    loss: FloatArray
    """Share of sent packets lost, 0 to 1."""
    excess_loss: FloatArray
    """Loss without the link's random loss."""
    power: FloatArray
    """Utilisation / (mean RTT / base RTT)."""
    learned: bool = False
    """Whether it is a policy from a file: drawn with emphasis."""
    mean_cwnd_packets: FloatArray | None = None
    """As its sender says, as are the next two; None in the simulator."""
    mean_smoothed_rtt_ms: FloatArray | None = None
    retransmitted_share: FloatArray | None = None
    """NaN where nothing is ever sent again."""

    def __post_init__(self) -> None:
        shape = self.power.shape
        if len(shape) != 2 or shape[0] != len(self.links) or not all(shape):
            raise ValueError(f"{self.scheme}: scores of shape {shape} for {len(self.links)} links")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray) and value.shape != shape:
                raise ValueError(f"{self.scheme}: {field.name} is {value.shape}, power is {shape}")

    @property
    def seeds(self) -> int:
        """Seeds of each link, S."""
        return int(self.power.shape[1])

    @property
    def failed(self) -> int:
        """Runs that failed, of all links and seeds."""
        return int(np.isnan(self.throughput_mbps).sum())

    @property
    def has_run(self) -> NDArray[np.bool_]:
        """Whether a run of each link did not fail, ``[L]``."""
        return np.asarray(np.isfinite(self.throughput_mbps).any(axis=1))

    @property
    def has_sender_metrics(self) -> bool:
        """Whether its senders said something of themselves."""
        return self.mean_cwnd_packets is not None

    def values(self, metrics: Sequence[Metric] = METRICS) -> FloatArray:
        """Return metrics as ``[M, L, S]``; NaN where there is none."""
        nothing = np.full(self.power.shape, np.nan)
        found = [getattr(self, m.key) for m in metrics]
        return np.stack([nothing if values is None else values for values in found])


@dataclass(frozen=True)
class SenderSeries:
    """What a sender says of itself in B buckets; every array is float64 ``[B]``, NaN where none."""

    cwnd_packets: FloatArray
    smoothed_rtt_ms: FloatArray
    """RFC 6298's."""
    retransmitted_share: FloatArray
    """Of the packets sent; NaN where nothing is ever sent again."""


@dataclass(frozen=True)
class Series:
    """One scheme on one link over time, in B buckets; every array is float64 ``[B]``."""

    scheme: str
    link: str
    time_s: FloatArray
    """Middle of each bucket."""
    capacity_mbps: FloatArray
    rate_mbps: FloatArray
    queueing_delay_ms: FloatArray
    """Mean of the bucket's packets; NaN where nothing was delivered."""
    queue_packets: FloatArray
    """Queue length."""
    learned: bool = False
    """Whether it is a policy from a file: drawn with emphasis."""
    sender: SenderSeries | None = None
    """In the same buckets; None in the simulator."""
