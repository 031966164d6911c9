"""Families of links by a few numbers, and the ranges that such numbers are searched in.

A family is one point of the ranges: its links have the same round trip, queue and loss, and differ
in where between two bounds their rate stands and moves to. This is how Genet's curriculum describes
links (Xia et al., SIGCOMM 2022, section 4.2, with the ranges of its code).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from distrlcc.errors import ConfigError
from distrlcc.seeding import stream_key, uniform
from distrlcc.sim.families import bdp_packets, between
from distrlcc.sim.scenario import (
    MAX_DELAY_MS,
    MAX_RATE_MBPS,
    MIN_RATE_MBPS,
    Change,
    Link,
    Scenario,
)

LEAST_LOSS = 1e-4
"""Where a drawn loss is less, there is none."""
_ZERO_LOSS = 1e-5
MIN_CHANGE_S = 0.05
MOST_CHANGES = 1000


@dataclass(frozen=True)
class LinkFamily:
    """Links that differ in their rates alone."""

    lowest_mbps: float
    highest_mbps: float
    """Bounds of the rates, log-uniform."""
    rtt_ms: float
    queue_bdp: float
    """Queue's limit, bandwidth-delay products at the highest rate."""
    loss: float
    change_s: float
    """Time between two changes of the rate, s; longer than an episode: it stays."""

    def __str__(self) -> str:
        """Say what links these are."""
        loss = f", loss {self.loss:.2%}" if self.loss else ""
        return (
            f"{self.lowest_mbps:.3g}-{self.highest_mbps:.3g} Mbit/s every {self.change_s:.2g} s, "
            f"RTT {self.rtt_ms:.3g} ms, queue {self.queue_bdp:.2g} BDP{loss}"
        )

    def scenario(self, name: str, index: int, seed: int, seconds: float) -> Scenario:
        """Return a link of the family.

        Args:
            name: The scenario's.
            index: Which link; with the seed it names the draws.
            seed: Of the draws.
            seconds: How long it lasts, s.
        """
        key = stream_key(seed, "link-family")
        count = min(math.ceil(seconds / self.change_s), MOST_CHANGES)
        rates = [
            round(between(float(u), self.lowest_mbps, self.highest_mbps), 6)
            for u in uniform(key, index, np.arange(count))
        ]
        bdp = bdp_packets(self.highest_mbps, self.rtt_ms)
        link = Link(
            rate_mbps=rates[0],
            delay_ms=round(self.rtt_ms / 2, 6),
            loss=round(self.loss, 6),
            queue_packets=max(2, round(self.queue_bdp * bdp)),
            changes=tuple(
                Change(round(k * self.change_s, 6), rate_mbps=rate)
                for k, rate in enumerate(rates[1:], start=1)
            ),
        )
        return Scenario(name, link, duration_s=seconds, seed=index % 2**48)


@dataclass(frozen=True)
class LinkRanges:
    """Least and greatest value of each number of a family; equal ones hold it fast."""

    rate_mbps: tuple[float, float] = (0.1, 100.0)
    """The highest rate, Mbit/s, on a logarithmic scale."""
    lowest_share: tuple[float, float] = (0.1, 1.0)
    """The lowest rate as a share of the highest, but at least the least rate_mbps."""
    rtt_ms: tuple[float, float] = (4.0, 400.0)
    """Round trip of the empty link, ms."""
    queue_bdp: tuple[float, float] = (0.2, 3.0)
    """Queue's limit, bandwidth-delay products."""
    loss: tuple[float, float] = (0.0, 0.05)
    """Random loss, on a logarithmic scale whose end below 1e-4 means none."""
    change_s: tuple[float, float] = (1.0, 30.0)
    """Time between two changes of the rate, s."""

    def __post_init__(self) -> None:
        bounds = {
            "rate_mbps": (MIN_RATE_MBPS, MAX_RATE_MBPS),
            "lowest_share": (1e-3, 1.0),
            "rtt_ms": (0.1, 2 * MAX_DELAY_MS),
            "queue_bdp": (0.0, 1000.0),
            "loss": (0.0, 0.9),
            "change_s": (MIN_CHANGE_S, 1e5),
        }
        for name, (least, greatest) in bounds.items():
            low, high = getattr(self, name)
            if not least <= low <= high <= greatest:
                raise ConfigError(
                    f"{name} is {[low, high]}; expected two numbers in order, of {least:g} to "
                    f"{greatest:g}"
                )

    def at(self, place: Mapping[str, float]) -> LinkFamily:
        """Return the family at a place, which has a number of 0 to 1 for each of `NAMES`."""
        highest = between(place["rate_mbps"], *self.rate_mbps)
        lowest = max(self._linear("lowest_share", place) * highest, self.rate_mbps[0])
        loss = between(place["loss"], *(value + _ZERO_LOSS for value in self.loss))
        return LinkFamily(
            lowest_mbps=min(lowest, highest),
            highest_mbps=highest,
            rtt_ms=self._linear("rtt_ms", place),
            queue_bdp=self._linear("queue_bdp", place),
            loss=0.0 if loss < LEAST_LOSS else min(loss, self.loss[1]),
            change_s=self._linear("change_s", place),
        )

    def _linear(self, name: str, place: Mapping[str, float]) -> float:
        low, high = getattr(self, name)
        return float(low + (high - low) * place[name])


NAMES = tuple(field.name for field in fields(LinkRanges))
"""What a family is searched by."""
