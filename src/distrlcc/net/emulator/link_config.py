"""An emulated link: two directions with a bottleneck, a delay and random loss, or a scenario's."""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat
from typing import Any

import numpy as np

from distrlcc.errors import ConfigError
from distrlcc.sim.queues import QueueSpec
from distrlcc.sim.scenario import JitterKind, Link, Scenario
from distrlcc.sim.suites import is_suite, load_suite
from distrlcc.sim.trace import constant_times, load_trace
from distrlcc.types import PACKET_BYTES

_UNITS = {"": Fraction(1), "kbit": Fraction(1, 1000), "mbit": Fraction(1), "gbit": Fraction(1000)}
_RATE = re.compile(r"(-?\d{1,18}(?:\.\d{1,18})?)(kbit|mbit|gbit|)")
_LOW_MBPS, _HIGH_MBPS = Fraction(1, 1000), Fraction(100_000)


@dataclass(frozen=True)
class LinkChange:
    """Changes at a time; what is None stays."""

    at_ms: int
    times: tuple[int, ...] | None = None  # of a new rate over one period, ms; empty is an outage
    delay_ms: float | None = None
    loss: float | None = None
    phase_ms: int = 0  # how far into its period the new rate begins


@dataclass(frozen=True)
class DirectionConfig:
    """One direction, as packets meet it: queue and bottleneck, then loss, then delay."""

    source: str = "unlimited"  # the rate or trace as it was asked for
    times: tuple[int, ...] | None = None  # opportunities over one period, ms; None is no bottleneck
    start_ms: int = 0  # where in the trace it starts
    queue: QueueSpec = QueueSpec()  # noqa: RUF009 - frozen
    delay_ms: float = 0.0
    loss: float = 0.0  # probability that a packet is lost after the bottleneck
    jitter_ms: float = 0.0  # scale of the time that a packet waits beside the delay
    jitter_kind: JitterKind = "uniform"
    tick_ms: float = 0.0  # packets arrive at multiples of this time; 0: at any time
    late_share: float = 0.0  # probability that a packet is late, and later ones overtake it
    late_ms: float = 0.0  # by how much
    changes: tuple[LinkChange, ...] = ()  # in order of time

    @property
    def phase_ms(self) -> int:
        """Where within the trace's period it starts, ms."""
        return self.start_ms % self.times[-1] if self.times else 0


@dataclass(frozen=True)
class LinkConfig:
    """Both directions, and the seed of what is random."""

    up: DirectionConfig  # from COMMAND outwards
    down: DirectionConfig  # towards COMMAND
    seed: int = 0
    waits: bool = False  # whether the link's time begins with the first full packet upwards


def opportunities(source: str) -> tuple[int, ...]:
    """Return the opportunities of a rate or trace over one period, ms.

    A number is a rate in Mbit/s of 1500-byte packets, as mahimahi's users write traces: 12 is one
    packet per ms. Any other is a trace's name. Raises ConfigError and TraceError.
    """
    match = _RATE.fullmatch(source)
    if match is None:
        return _trace_times(source)
    mbps = Fraction(match[1]) * _UNITS[match[2]]
    if not _LOW_MBPS <= mbps <= _HIGH_MBPS:
        raise ConfigError(
            f"rate {source} is out of range; expected {float(_LOW_MBPS):g} to "
            f"{float(_HIGH_MBPS):g} Mbit/s, as 12, 12mbit or 500kbit, or a trace's name"
        )
    return tuple(constant_times(mbps / 12).tolist())


def direction(source: str, **more: Any) -> DirectionConfig:
    """Build a direction of a rate or trace, as `opportunities` takes it; ``more``: other fields."""
    return DirectionConfig(source, opportunities(source), **more)


def load_scenario(name: str) -> Scenario:
    """Return the one scenario of an id or TOML file; raises ConfigError and TraceError."""
    scenarios = load_suite(name).scenarios("test")
    if len(scenarios) != 1:
        suite = name if is_suite(name) else "random"
        raise ConfigError(
            f"{name} has {len(scenarios)} links; expected one, such as {suite}/test/0 or a TOML "
            "file with one scenario"
        )
    return scenarios[0]


def require_plain_link(link: Link) -> None:
    """Raise ConfigError if an emulated link cannot do what a link does to packets and ACKs."""
    if link.delayed_acks:
        raise ConfigError(
            "an emulated link's receiver is a program of its own, which acknowledges as it likes: "
            "take a link without delayed_acks, or the simulator"
        )
    if link.jitter_ms > 0 or link.policer_mbps is not None:
        raise ConfigError(
            "an emulated link has its queue at its beginning: take a link without jitter_ms, "
            "policer_mbps and policer_packets, or the simulator"
        )


def uplink(link: Link) -> DirectionConfig:
    """Return the data's direction, at 1504 bytes a packet; raises as `require_plain_link` does."""
    require_plain_link(link)
    rate, since, earned = _per_ms(link.rate_mbps or 0.0), 0, Fraction(0)
    times = _rate_times(rate) if link.trace is None else _trace_times(link.trace)
    changes = []
    for change in link.changes:
        at, rates, phase = round(change.at_s * 1000), None, 0
        if change.rate_mbps is not None:
            # What a packet has got of its time at the rates before counts at the new one.
            earned = (earned + rate * (at - since)) % 1
            rate, since = _per_ms(change.rate_mbps), at
            phase = earned // rate if rate else 0
            rates = _rate_times(rate, earned - phase * rate)
        changes.append(LinkChange(at, rates, change.delay_ms, change.loss, phase))
    source, start = link.trace or f"{link.rate_mbps:g}mbit", round(link.trace_start_s * 1000)
    path = source, times, start, link.queue, link.delay_ms, link.loss
    late = link.late_share, link.late_ms
    return DirectionConfig(*path, late_share=late[0], late_ms=late[1], changes=tuple(changes))


def downlink(link: Link) -> DirectionConfig:
    """Return the direction that ACKs take: no bottleneck, the same delay, and what shapes them."""
    changes = tuple(
        LinkChange(round(change.at_s * 1000), delay_ms=change.delay_ms)
        for change in link.changes
        if change.delay_ms is not None
    )
    more: dict[str, Any] = {"jitter_kind": link.ack_jitter_kind, "tick_ms": link.ack_tick_ms}
    more |= {"jitter_ms": link.ack_jitter_ms, "changes": changes}
    return DirectionConfig(delay_ms=link.delay_ms, **more)


def _trace_times(name: str) -> tuple[int, ...]:
    times, counts = np.unique(load_trace(name).times_ns, return_counts=True)
    shared = map(repeat, (times // 1_000_000).tolist(), counts.tolist())  # an object for each ms
    return tuple(chain.from_iterable(shared))


def _per_ms(mbps: float) -> Fraction:
    return Fraction(mbps) * 1000 / (PACKET_BYTES * 8)


def _rate_times(packets_per_ms: Fraction, earned: Fraction = Fraction(0)) -> tuple[int, ...]:
    return tuple(constant_times(packets_per_ms, earned).tolist()) if packets_per_ms else ()
