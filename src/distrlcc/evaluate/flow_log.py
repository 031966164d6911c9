"""An emulated link's log as a flow's: its packets, and what the link could have carried.

The log says when each packet came, waited, left or was dropped; the RTT is that wait and the path's
delay both ways. What the sender's and the receiver's machine add is not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distrlcc.errors import OutputError
from distrlcc.sim.link import Log, read_log
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.types import PACKET_BYTES, FloatArray

MBIT_PER_BYTE_MS = 8e-3
"""Mbit/s of a byte per ms."""
_FULL_BYTES = 1000
_WARMUP_MS = 1e3


@dataclass(frozen=True)
class Departures:
    """Packets of a flow that left the bottleneck; every array is float64 ``[P]``."""

    time_ms: FloatArray
    """When, on the log's clock."""
    bytes: FloatArray
    path_ms: FloatArray
    """The delay both ways that was in force."""
    service_ms: FloatArray
    """The time in service at the rate that was in force; 0 on a trace."""
    queueing_ms: FloatArray
    lost: FloatArray
    """Probability that it was lost at random after the bottleneck, which the log does not show."""

    @property
    def base_ms(self) -> FloatArray:
        """RTT without a queue."""
        return self.path_ms + self.service_ms


@dataclass(frozen=True)
class FlowLog:
    """The first flow's log; all times are the log's, ms."""

    scenario: Scenario
    whole: Log
    """Of all flows."""
    own: Log
    """Of the flow; the same where it is alone."""
    zero_ms: float
    """When the scenario began, which lies before the link's time if no flow starts at once."""

    @property
    def begin_ms(self) -> float:
        """When the flow starts."""
        start, end = 1e3 * self.scenario.flows[0].start_s, 1e3 * self.scenario.duration_s
        return self.zero_ms + min(start, end / 2)

    @property
    def warm_ms(self) -> float:
        """When its first second is over, or half of it if it runs less than two."""
        return self.begin_ms + min(_WARMUP_MS, (self.end_ms - self.begin_ms) / 2)

    @property
    def end_ms(self) -> float:
        """When the scenario ends."""
        return self.zero_ms + 1e3 * self.scenario.duration_s

    def departures(self, begin_ms: float, end_ms: float) -> Departures:
        """Return the flow's packets that left from one time on and before another."""
        gone = [e for e in self.own.events if e[1] == "-" and begin_ms <= e[0] < end_ms]
        times, sizes, waits = (np.array([e[k] for e in gone], float) for k in (0, 2, 3))
        link, since = self.scenario.link, times - self.zero_ms
        path, service = _without_queue(link, since)
        # A packet that arrives in a ms leaves in a later one: half of one is the log's grain.
        queueing = np.maximum(waits - np.maximum(service, 1.0), 0.0)
        return Departures(times, sizes, path, service, queueing, _loss(link, since))


def read_flow_log(path: Path, scenario: Scenario, *, own: Path | None = None) -> FlowLog:
    """Read an uplink's log as the first flow's.

    Args:
        path: The log. Its first full packet is the first of the flow that starts first.
        scenario: What was emulated.
        own: The log of the first flow's packets, where the link has other flows.

    Raises:
        OutputError: No full packet crossed the link, or none of the flow.
        TraceError: A log cannot be read.
    """
    whole = read_log(path)
    zero = _first_full(whole, path) - 1e3 * min(flow.start_s for flow in scenario.flows)
    log = whole
    if own is not None:
        log = read_log(own)
        _first_full(log, own)
    return FlowLog(scenario, whole, log, zero)


def _first_full(log: Log, path: Path) -> int:
    """Return when the first full packet came, ms; what shakes hands is smaller."""
    for time, kind, size, _ in log.events:
        if kind == "+" and size >= _FULL_BYTES:
            return time
    whose = "" if log.port is None else f" to port {log.port}"
    raise OutputError(f"{path}: no full packet{whose} crossed the link; did the sender start?")


def _without_queue(link: Link, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the delay both ways and the time in service of packets that left then, ms."""
    delay, service = 2.0 * link.delay_ms, 0.0
    if link.rate_mbps:  # as in the simulator: on a trace there is none
        service = PACKET_BYTES * MBIT_PER_BYTE_MS / link.rate_mbps
    begins, delays, services = [-math.inf], [delay], [service]
    for change in link.changes:
        if change.delay_ms is not None:
            delay = 2.0 * change.delay_ms
        if change.rate_mbps:  # nothing leaves in an outage
            service = PACKET_BYTES * MBIT_PER_BYTE_MS / change.rate_mbps
        begins.append(1e3 * change.at_s)
        delays.append(delay)
        services.append(service)
    places = np.searchsorted(begins, times, side="right") - 1
    return np.array(delays)[places], np.array(services)[places]


def _loss(link: Link, times: FloatArray) -> FloatArray:
    """Return the probability that packets which left then were lost at random."""
    begins, losses = [-math.inf], [link.loss]
    for change in link.changes:
        if change.loss is not None:
            begins.append(1e3 * change.at_s)
            losses.append(change.loss)
    return np.array(losses)[np.searchsorted(begins, times, side="right") - 1]
