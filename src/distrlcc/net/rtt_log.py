"""A controller that notes every RTT sample on its way to another one."""

from __future__ import annotations

from array import array

import numpy as np

from distrlcc.control.base import Controller
from distrlcc.types import Ack, IntervalStats


class RttLog:
    """Passes everything on; see `distrlcc.control.base.Controller`."""

    def __init__(self, controller: Controller) -> None:
        """Stand before a controller."""
        self.controller = controller
        self._samples = array("q")  # ns

    @property
    def cwnd(self) -> float:
        """The controller's window, packets."""
        return self.controller.cwnd

    @property
    def pacing_rate(self) -> float:
        """The controller's pacing rate, packets/s."""
        return self.controller.pacing_rate

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Note the sample."""
        self._samples.append(ack.rtt_ns)
        self.controller.on_ack(ack, now=now)

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Pass it on."""
        self.controller.on_timeout(now=now, sent=sent)

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Pass it on."""
        self.controller.on_interval(stats, now=now)

    def mean_ms(self) -> float:
        """Return the mean RTT, ms; not a number without samples."""
        return float(np.mean(self._samples)) * 1e-6 if self._samples else float("nan")

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the RTTs, ms; not a number without samples."""
        if not self._samples:
            return float("nan")
        return float(np.percentile(self._samples, percent)) * 1e-6
