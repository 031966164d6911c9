"""A simulator's scenario as an emulated link."""

from __future__ import annotations

from fractions import Fraction

from distrlcc.errors import ConfigError
from distrlcc.net.link_config import DirectionConfig, LinkChange
from distrlcc.sim.queues import QueueSpec
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.sim.suites import load_suite
from distrlcc.sim.trace import constant_times, load_trace
from distrlcc.types import PACKET_BYTES


def load_scenario(name: str) -> Scenario:
    """Return the one scenario of an id or TOML file.

    Raises:
        ConfigError: There is none of that name, or several.
        TraceError: Its trace cannot be read.
    """
    scenarios = load_suite(name).scenarios("test")
    if len(scenarios) != 1:
        raise ConfigError(
            f"{name} has {len(scenarios)} links; expected one, such as {scenarios[0].name} "
            "or a TOML file with one scenario"
        )
    return scenarios[0]


def uplink(link: Link) -> DirectionConfig:
    """Return the direction that data take; the simulator's packets count 1504 bytes of the rate."""
    limits = (link.queue_packets, link.queue_bytes)
    kind = "infinite" if limits == (None, None) else "droptail"
    if link.trace is not None:
        times = tuple((load_trace(link.trace).times_ns // 1_000_000).tolist())
    else:
        times = _times(link.rate_mbps or 0.0)
    changes = tuple(
        LinkChange(
            round(change.at_s * 1000),
            None if change.rate_mbps is None else _times(change.rate_mbps),
            change.delay_ms,
            change.loss,
        )
        for change in link.changes
    )
    return DirectionConfig(
        source=link.trace or f"{link.rate_mbps:g}mbit",
        times=times,
        start_ms=round(link.trace_start_s * 1000),
        queue=QueueSpec(kind, *limits),
        delay_ms=link.delay_ms,
        loss=link.loss,
        changes=changes,
    )


def downlink(link: Link) -> DirectionConfig:
    """Return the direction that acknowledgements take: no bottleneck, the same delay."""
    changes = tuple(
        LinkChange(round(change.at_s * 1000), delay_ms=change.delay_ms)
        for change in link.changes
        if change.delay_ms is not None
    )
    return DirectionConfig(delay_ms=link.delay_ms, changes=changes)


def _times(mbps: float) -> tuple[int, ...]:
    if mbps == 0:
        return ()
    return tuple(constant_times(Fraction(mbps) * 1000 / (PACKET_BYTES * 8)).tolist())
