"""An emulated link's configuration: two directions with a bottleneck, a delay and random loss."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction

from distrlcc.errors import ConfigError
from distrlcc.sim.queues import QueueSpec
from distrlcc.sim.trace import constant_times, load_trace

_UNITS = {"": Fraction(1), "kbit": Fraction(1, 1000), "mbit": Fraction(1), "gbit": Fraction(1000)}
_RATE = re.compile(r"(-?\d+(?:\.\d+)?)(kbit|mbit|gbit|)")
_LOW_MBPS, _HIGH_MBPS = Fraction(1, 1000), Fraction(100_000)
MAX_DELAY_MS = 60_000.0


@dataclass(frozen=True)
class LinkChange:
    """What changes at a time; what is None stays."""

    at_ms: int
    times: tuple[int, ...] | None = None
    """Opportunities of a new rate over one period, ms; empty is an outage."""
    delay_ms: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class DirectionConfig:
    """One direction, as packets meet it: queue and bottleneck, then loss, then delay."""

    source: str = "unlimited"
    """The rate or trace as it was asked for."""
    times: tuple[int, ...] | None = None
    """Opportunities over one period, ms; None is no bottleneck."""
    start_ms: int = 0
    """Where in the trace it starts."""
    queue: QueueSpec = QueueSpec()  # noqa: RUF009 - frozen
    delay_ms: float = 0.0
    loss: float = 0.0
    """Probability that a packet is lost after the bottleneck."""
    changes: tuple[LinkChange, ...] = ()
    """In order of time."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delay_ms) and 0 <= self.delay_ms <= MAX_DELAY_MS):
            raise ConfigError(f"delay is {self.delay_ms:g} ms; expected 0 to {MAX_DELAY_MS:g}")
        if not (math.isfinite(self.loss) and 0 <= self.loss <= 1):
            raise ConfigError(f"loss is {self.loss:g}; expected a probability, 0 to 1")

    @property
    def phase_ms(self) -> int:
        """Return where within the trace's period it starts, ms."""
        return self.start_ms % self.times[-1] if self.times else 0


@dataclass(frozen=True)
class LinkConfig:
    """Both directions, and the seed of what is random."""

    up: DirectionConfig
    """From COMMAND outwards."""
    down: DirectionConfig
    """Towards COMMAND."""
    seed: int = 0
    waits: bool = False
    """Whether the link's time begins with the first full packet upwards, not at once."""


def opportunities(source: str) -> tuple[int, ...]:
    """Return the opportunities of a rate or trace over one period, ms.

    A number is a rate in Mbit/s of 1500-byte packets, as mahimahi's users write traces: 12 is one
    packet per ms. Any other name is a trace's (see `distrlcc.sim.trace`).

    Raises:
        ConfigError: The rate is out of range.
        TraceError: There is no such trace.
    """
    match = _RATE.fullmatch(source)
    if match is None:
        return tuple((load_trace(source).times_ns // 1_000_000).tolist())
    mbps = Fraction(match[1]) * _UNITS[match[2]]
    if not _LOW_MBPS <= mbps <= _HIGH_MBPS:
        raise ConfigError(
            f"rate {source} is out of range; expected {float(_LOW_MBPS):g} to "
            f"{float(_HIGH_MBPS):g} Mbit/s, as 12, 12mbit or 500kbit, or a trace's name"
        )
    return tuple(constant_times(mbps / 12).tolist())


def direction(
    source: str, *, queue: QueueSpec, delay_ms: float, loss: float = 0.0
) -> DirectionConfig:
    """Build a direction of a rate or trace.

    Raises:
        ConfigError: A value is out of range.
        TraceError: There is no such trace.
    """
    built = DirectionConfig(source, queue=queue, delay_ms=delay_ms, loss=loss)
    return replace(built, times=opportunities(source))
