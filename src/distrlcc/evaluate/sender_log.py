"""What a sender says of itself: window, smoothed RTT and what it sent again, step by step.

The kernel's TCP is asked each 10 ms (TCP_INFO); ours write down each of their steps. Both smooth
the RTT as RFC 6298 says, over each acknowledgement, so unlike the link's log theirs has in it what
the two ends' machines add.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distrlcc.evaluate.buckets import totals
from distrlcc.evaluate.scores import SenderSeries
from distrlcc.types import FloatArray


@dataclass(frozen=True)
class SenderLog:
    """One flow's, every array float64 ``[T]``, one element for each step or sample."""

    time_s: FloatArray
    """Its end, since the flow began."""
    cwnd_packets: FloatArray
    smoothed_rtt_ms: FloatArray
    """NaN before the first sample."""
    sent_packets: FloatArray | None = None
    """Until then, those sent again among them; None where nothing is ever sent again."""
    retransmitted_packets: FloatArray | None = None
    """Of these, those sent again."""

    def over(self, edges_s: FloatArray) -> SenderSeries:
        """Return means over time in B buckets.

        Args:
            edges_s: Their edges ``[B + 1]``, since the flow began.
        """
        share = np.full(len(edges_s) - 1, np.nan)
        if self.sent_packets is not None and self.retransmitted_packets is not None:
            sent, again = (
                np.diff(np.interp(edges_s, self.time_s, counts))
                for counts in (self.sent_packets, self.retransmitted_packets)
            )
            share = np.where(sent > 0, again / np.where(sent > 0, sent, 1.0), np.nan)
        return SenderSeries(
            cwnd_packets=self._mean(edges_s, self.cwnd_packets),
            smoothed_rtt_ms=self._mean(edges_s, self.smoothed_rtt_ms),
            retransmitted_share=share,
        )

    def _mean(self, edges_s: FloatArray, values: FloatArray) -> FloatArray:
        """Return means over time of what is defined; NaN where nothing is."""
        seconds = np.where(np.isfinite(values), np.diff(self.time_s, prepend=0.0), 0.0)
        lengths = totals(edges_s, self.time_s, seconds)
        sums = totals(edges_s, self.time_s, np.where(seconds > 0, values, 0.0) * seconds)
        return np.where(lengths > 1e-9, sums / np.maximum(lengths, 1e-9), np.nan)


def read_sender_log(path: Path, *, kernel: bool) -> SenderLog:
    """Read what a sender has written.

    Args:
        path: The JSON of `distrlcc.net.tcp_flow`, or of ``distrlcc send --json``.
        kernel: Whether it is the former's.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    steps = found["samples_columns" if kernel else "steps_columns"]
    columns = {name: np.array(values, float) for name, values in steps.items()}
    if kernel:
        return SenderLog(
            columns["time_s"],
            columns["cwnd_packets"],
            _defined(columns["smoothed_rtt_ms"]),
            columns["sent_packets"],
            columns["retransmitted_packets"],
        )
    return SenderLog(columns["time"], columns["cwnd"], _defined(1e3 * columns["smoothed_rtt"]))


def _defined(rtts: FloatArray) -> FloatArray:
    """Return RTTs, of which 0 says that there was no sample yet."""
    return np.where(rtts > 0, rtts, np.nan)
