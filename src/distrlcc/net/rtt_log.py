"""A controller that counts every RTT sample on its way to another one."""

from __future__ import annotations

import math

import numpy as np

from distrlcc.control.base import Controller
from distrlcc.types import Ack, IntervalStats

_BINS = 2500
_PER_E_FOLD = 100.0
"""Bins are 1% wide, from 1 us to 20 hours: a long flow takes no more memory than a short one."""


class RttLog:
    """Passes everything on; see `distrlcc.control.base.Controller`."""

    def __init__(self, controller: Controller) -> None:
        """Stand before a controller."""
        self.controller = controller
        self._counts = [0] * _BINS
        self._count, self._sum = 0, 0

    @property
    def cwnd(self) -> float:
        """The controller's window, packets."""
        return self.controller.cwnd

    @property
    def pacing_rate(self) -> float:
        """The controller's pacing rate, packets/s."""
        return self.controller.pacing_rate

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Count the sample."""
        rtt = ack.rtt_ns
        self._counts[int(_PER_E_FOLD * math.log(max(rtt * 1e-3, 1.0)))] += 1
        self._count += 1
        self._sum += rtt
        self.controller.on_ack(ack, now=now)

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Pass it on."""
        self.controller.on_timeout(now=now, sent=sent)

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Pass it on."""
        self.controller.on_interval(stats, now=now)

    def mean_ms(self) -> float:
        """Return the mean RTT, ms; not a number without samples."""
        return self._sum / self._count * 1e-6 if self._count else math.nan

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the RTTs, ms, to 1%; not a number without samples."""
        if not self._count:
            return math.nan
        place = np.searchsorted(np.cumsum(self._counts), percent / 100.0 * self._count)
        return math.exp((int(place) + 0.5) / _PER_E_FOLD) * 1e-3
