"""How fast a sender finds its way after a link has changed: round trips until it fits again.

A change of rate or delay makes a new bandwidth-delay product (BDP). A sender has recovered at the
end of the first step whose packets in flight are within `TOLERANCE` of it. Those of the next
`HOLD_RTTS` must be, too: a window that only passes by does not fit. Times are in the new base RTTs;
a change whose successor comes first counts as never.
"""

import math

import numpy as np

from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.runner import loaded, simulate
from distrlcc.evaluation.scores import RECOVERY_METRICS
from distrlcc.evaluation.summary import MeanInterval, by_metric
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.scenario import Scenario
from distrlcc.types import NANOSECONDS, PACKET_BYTES, FloatArray

TOLERANCE = 0.1
HOLD_RTTS = 1.0
GOAL_RTTS = 5.0


def recovery_times(
    contender: Contender, scenarios: list[Scenario], broken: list[str] | None = None
) -> FloatArray:
    """Return how long one flow alone takes after C changes, RTTs ``[C]``; infinite: too long."""
    batch = loaded(contender, scenarios, contender.env_config())
    times, inflight = [], []
    broken = [""] * len(scenarios) if broken is None else broken
    for before, now in simulate(contender, batch, scenarios, 0, broken):
        # After its scenario's end a link's time stands still, and its packets do not count.
        times.append(np.where(now > before, now / NANOSECONDS, math.inf))
        inflight.append(batch.stats().inflight.copy())
    ends, held = (np.array(x).reshape(-1, len(scenarios)) for x in (times, inflight))
    found = [recoveries(s, ends[:, n], held[:, n]) for n, s in enumerate(scenarios)]
    return np.concatenate(found or [np.zeros(0)])


def recovery_scores(
    contender: Contender, scenarios: list[Scenario]
) -> tuple[dict[str, MeanInterval], str]:
    """Return the lower median of times, RTTs, and the share within `GOAL_RTTS`, and a reason.

    Their tails are of changes, not of links. The reason says why both are NaN; else it is empty.
    """
    broken = [""] * len(scenarios)
    times, void = recovery_times(contender, scenarios, broken), next(filter(None, broken), "")
    if void:
        times = np.full(1, math.nan)
    within = np.where(np.isnan(times), math.nan, times <= GOAL_RTTS)
    found = [float(np.quantile(times, 0.5, method="lower")), float(within.mean())]  # inf: never
    rows = np.array([[mean, math.nan, math.nan] for mean in found])
    return by_metric(RECOVERY_METRICS, rows, np.array([times, within])), void


def recoveries(scenario: Scenario, ends: FloatArray, inflight: FloatArray) -> FloatArray:
    """Return a flow's RTTs after each change, by its steps' ends, s, and packets in flight then."""
    rate, delay = scenario.link.rate_mbps, scenario.link.delay_ms
    assert rate is not None, "a trace has no BDP to come back to"
    found, own = list[float](), 1e-3 * scenario.flows[0].extra_rtt_ms
    changes = [
        change
        for change in scenario.link.changes
        if change.at_s < scenario.duration_s and (change.rate_mbps, change.delay_ms) != (None, None)
    ]
    untils = [*(change.at_s for change in changes), scenario.duration_s][1:]
    for change, until in zip(changes, untils, strict=True):
        rate = rate if change.rate_mbps is None else change.rate_mbps
        delay = delay if change.delay_ms is None else change.delay_ms
        if not rate:  # there is nothing to come back to
            continue
        rtt = 2e-3 * delay + own + 8e-6 * PACKET_BYTES / rate
        bdp = bdp_packets(rate, 1e3 * rtt)
        steps = (ends > change.at_s) & (ends <= until + 1e-9)
        found.append(first_fit(ends[steps] - change.at_s, inflight[steps], bdp, rtt) / rtt)
    return np.array(found)


def first_fit(ages: FloatArray, inflight: FloatArray, bdp: float, rtt: float) -> float:
    """Return the age, s, from which on the packets in flight fit for `HOLD_RTTS`."""
    fits = np.abs(inflight - bdp) <= np.maximum(TOLERANCE * bdp, 1.0)
    for k in np.flatnonzero(fits):
        held = ages <= ages[k] + HOLD_RTTS * rtt
        if ages[-1] >= ages[k] + HOLD_RTTS * rtt and fits[k:][held[k:]].all():
            return float(ages[k])
    return math.inf
