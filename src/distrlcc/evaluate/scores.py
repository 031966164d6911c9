"""What was measured: a scheme's scores on links and seeds, time series, the metrics' names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

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
    better: Literal["higher", "lower"]
    """Which way is better."""
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
"""All metrics, in the order in which they are shown."""


def metric(key: str) -> Metric:
    """Return the metric of a key of :data:`METRICS`."""
    return next(m for m in METRICS if m.key == key)


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

    def values(self) -> FloatArray:
        """Return all metrics as ``[M, L, S]``, in the order of :data:`METRICS`."""
        return np.stack([getattr(self, m.key) for m in METRICS])


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
