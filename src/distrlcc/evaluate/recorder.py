"""Records one link of a running batch as a time series for the report."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.batch import LinkBatch
from distrlcc.evaluate.buckets import bucket_edges, totals
from distrlcc.evaluate.contender import Contender
from distrlcc.evaluate.scores import Series
from distrlcc.sim import layout as col
from distrlcc.types import PACKET_BYTES

_MBIT = 8e-6 * PACKET_BYTES


class Recorder:
    """Keeps what one link did at each step and sums it up in buckets."""

    def __init__(self, batch: LinkBatch, link: int, contender: Contender, name: str) -> None:
        """Record a link of a batch."""
        self._batch, self._link, self._contender, self._name = batch, link, contender, name
        self._rows: list[tuple[float, ...]] = []

    def record(self, running: NDArray[np.bool_]) -> None:
        """Keep the newest step, unless the link's scenario is over."""
        n = self._link
        if running[n]:
            stats, view = self._batch.stats(), self._batch.view()
            queue = self._batch.simulator.results[n, col.QUEUE]
            delay = max(stats.rtt_sum[n] - stats.acked[n] * view.base_rtt[n], 0.0)
            self._rows.append((stats.duration[n], view.capacity[n], stats.acked[n], delay, queue))

    def series(self) -> Series:
        """Return the link's series, one element per bucket."""
        rows = np.array(self._rows)
        ends = np.cumsum(rows[:, 0])
        edges = bucket_edges(float(ends[-1]))

        def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return totals(edges, ends, values)

        seconds, capacity, acked, delay, queue = rows.T
        length = np.diff(edges)
        packets = total(acked)
        mean_delay = 1e3 * total(delay) / np.maximum(packets, 1e-9)
        return Series(
            scheme=self._contender.name,
            learned=self._contender.policy is not None,
            link=self._name,
            time_s=(edges[1:] + edges[:-1]) / 2,
            capacity_mbps=total(capacity) * _MBIT / length,
            rate_mbps=packets * _MBIT / length,
            queueing_delay_ms=np.where(packets > 0, mean_delay, np.nan),
            queue_packets=total(queue * seconds) / length,
        )
