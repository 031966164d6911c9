"""How fast a sender finds its way after a link has changed: round trips until it fits again.

A change of rate or delay at a time makes a new bandwidth-delay product (BDP). A sender has
recovered with the first step that ends with its packets in flight within `TOLERANCE` of it, and
that is followed by others that do for `HOLD_RTTS`, as a window that only passes by is none that
fits. Times are in the new base RTTs; a change after which the next one comes first counts as never.
"""

from __future__ import annotations

import math

import numpy as np

from distrlcc.env.batch import LinkBatch
from distrlcc.evaluate.contender import Contender
from distrlcc.evaluate.scores import Metric
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import with_scheme
from distrlcc.types import PACKET_BYTES, FloatArray

TOLERANCE = 0.1
HOLD_RTTS = 1.0
GOAL_RTTS = 5.0

RECOVERY_METRICS: tuple[Metric, ...] = (
    Metric(
        "recovery_rtts", "recovery", "RTT", 1, "lower",
        "Round trips from a change of rate or delay until the packets in flight fit the new "
        "bandwidth-delay product, median over the changes.",
    ),
    Metric(
        "recovered", f"within {GOAL_RTTS:g} RTT", "%", 0, "higher",
        "Share of the changes after which they fit within so many round trips.", 100.0,
    ),
)  # fmt: skip


def recovery_times(contender: Contender, scenarios: list[Scenario], seed: int = 0) -> FloatArray:
    """Measure every change of constant-rate links on which one flow is alone.

    Returns:
        Round trips ``[C]``, infinite where a sender did not recover before the next change.
    """
    config = contender.env_config()
    batch = LinkBatch(len(scenarios), config, with_labels=False)
    for n, scenario in enumerate(scenarios):
        batch.load(n, with_scheme(scenario, contender.scheme))
    contender.tell(batch)
    actor = contender.actor(len(scenarios), seed) if contender.policy is not None else None
    observation = batch.first_observation(np.arange(len(scenarios)))
    longest = max(scenario.duration_s for scenario in scenarios)
    times, inflight = [np.zeros(len(scenarios))], [np.zeros(len(scenarios))]
    while times[-1].min() < longest:
        if actor is None:
            batch.advance()
        else:
            observation, _ = batch.step(actor.act(observation))
        stats = batch.stats()
        times.append(times[-1] + stats.duration)
        inflight.append(stats.inflight.copy())
    ends, held = np.array(times), np.array(inflight)
    return np.concatenate(
        [_of_link(s, ends[:, n], held[:, n]) for n, s in enumerate(scenarios)] or [np.zeros(0)]
    )


def recovery_scores(contender: Contender, scenarios: list[Scenario]) -> dict[str, float]:
    """Return the lower median of the times, RTTs, and the share within `GOAL_RTTS`."""
    times = recovery_times(contender, scenarios)
    return {
        "recovery_rtts": float(np.sort(times)[(len(times) - 1) // 2]),
        "recovered": float((times <= GOAL_RTTS).mean()),
    }


def _of_link(scenario: Scenario, ends: FloatArray, inflight: FloatArray) -> FloatArray:
    rate, delay = scenario.link.rate_mbps, scenario.link.delay_ms
    assert rate is not None, "a trace has no BDP to come back to"
    found = []
    changes = [change for change in scenario.link.changes if change.at_s < scenario.duration_s]
    for change, following in zip(changes, [*changes[1:], None], strict=True):
        rate = rate if change.rate_mbps is None else change.rate_mbps
        delay = delay if change.delay_ms is None else change.delay_ms
        rtt = 2e-3 * delay + 8e-6 * PACKET_BYTES / rate
        bdp = bdp_packets(rate, 1e3 * rtt)
        until = scenario.duration_s if following is None else following.at_s
        steps = (ends > change.at_s) & (ends <= until + 1e-9)
        found.append(_first(ends[steps] - change.at_s, inflight[steps], bdp, rtt) / rtt)
    return np.array(found)


def _first(ages: FloatArray, inflight: FloatArray, bdp: float, rtt: float) -> float:
    """Return the age, s, from which on the packets in flight fit for `HOLD_RTTS`."""
    fits = np.abs(inflight - bdp) <= np.maximum(TOLERANCE * bdp, 1.0)
    for k in np.flatnonzero(fits):
        held = ages <= ages[k] + HOLD_RTTS * rtt
        if ages[-1] >= ages[k] + HOLD_RTTS * rtt and fits[k:][held[k:]].all():
            return float(ages[k])
    return math.inf
