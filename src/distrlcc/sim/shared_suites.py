"""Generated suites of links that several flows share; see `distrlcc.sim.suites`.

``shared`` is for training, the others measure: agents of equal round trips, one with four times the
other's, and one beside a flow of CUBIC or BBR. The recipe `fair` trains on ``shared-rtt`` and
``beside-cubic`` too, of the split ``train``. Links are those of the suite ``random`` whose BDP
has room for all: less than four packets each cannot be shared, since windows are 2 packets or more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from distrlcc.sim.draws import bdp_packets, between, draws
from distrlcc.sim.scenario import Flow, Link, Scenario

MOST_FLOWS = 4
"""Flows on any of these links."""
_PACKETS_EACH = 4.0
"""Least BDP per flow, packets."""


def _link(u: list[float], flows: int, loss: float = 0.0) -> Link:
    """5-100 Mbit/s (log-uniform), RTT 10-100 ms, queue 0.5-4 BDP, as the suite ``random``."""
    rtt = round(10.0 + 90.0 * u[1], 3)
    least = max(5.0, _PACKETS_EACH * flows / bdp_packets(1.0, rtt))
    rate = round(between(u[0], least, 100.0), 3)
    queue = max(2, round(between(u[2], 0.5, 4.0) * bdp_packets(rate, rtt)))
    return Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=queue, loss=loss)


def _time(low: float, high: float, u: float) -> float:
    return round(low + (high - low) * u, 2)  # whole steps of 10 ms


def _shared(split: str, index: int) -> Scenario:
    """1 to 4 agents for 12 s: starts in the first 4 s, a third leave, a third have other RTTs."""
    u = draws("shared", split, index, 20)
    count = 1 if u[3] < 0.15 else 2 + int(3 * (u[3] - 0.15) / 0.85)
    link = _link(u, count, loss=round(0.01 * u[5], 6) if u[4] < 0.25 else 0.0)
    unequal = u[6] < 1 / 3
    flows = []
    for k in range(count):
        a, b, c = u[7 + 3 * k : 10 + 3 * k]
        start = _time(0.0, 4.0, a) if k else 0.0
        stop = _time(start + 2.0, 11.0, 3 * b) if b < 1 / 3 else None
        extra = round(3.0 * c * 2 * link.delay_ms, 3) if unequal and k else 0.0
        flows.append(Flow(start_s=start, stop_s=stop, extra_rtt_ms=extra))
    return Scenario(f"shared/{split}/{index}", link, tuple(flows), duration_s=12.0, seed=index)


def _joining(name: str, count: int, split: str, index: int) -> Scenario:
    """Agents of equal RTTs that join 5 to 6 s after one another; of four, one leaves at last."""
    u = draws(name, split, index, 3 + count)
    starts = [_time(5.0 * k, 5.0 * k + 1.0, u[3 + k]) if k else 0.0 for k in range(count)]
    flows = [Flow(start_s=start) for start in starts]
    duration = 5.0 * count + 10.0
    if count > 2:
        flows[1] = Flow(start_s=starts[1], stop_s=duration - 6.0)
    return Scenario(
        f"{name}/{split}/{index}", _link(u, count), tuple(flows), duration_s=duration, seed=index
    )


def _unequal(split: str, index: int) -> Scenario:
    """Two agents, the second's RTT four times the first's; either joins the other after 5 s."""
    u = draws("shared-rtt", split, index, 5)
    link = _link([u[0], 0.5 * u[1], u[2]], 2)  # the longer RTT is 220 ms at most
    late = _time(5.0, 6.0, u[3])
    first = u[4] < 0.5
    flows = (
        Flow(start_s=0.0 if first else late),
        Flow(start_s=late if first else 0.0, extra_rtt_ms=round(3 * 2 * link.delay_ms, 3)),
    )
    return Scenario(f"shared-rtt/{split}/{index}", link, flows, duration_s=30.0, seed=index)


def _beside(scheme: str, split: str, index: int) -> Scenario:
    """One agent and one flow of a scheme for 40 s; either joins the other after 3 s."""
    name = f"beside-{scheme}"
    u = draws(name, split, index, 5)
    late = _time(3.0, 4.0, u[3])
    first = u[4] < 0.5
    flows = (
        Flow(start_s=0.0 if first else late),
        Flow(scheme, start_s=late if first else 0.0),
    )
    return Scenario(f"{name}/{split}/{index}", _link(u, 2), flows, duration_s=40.0, seed=index)


SHARED: dict[str, Callable[[str, int], Scenario]] = {
    "shared": _shared,
    "shared-2": partial(_joining, "shared-2", 2),
    "shared-4": partial(_joining, "shared-4", 4),
    "shared-rtt": _unequal,
    "beside-cubic": partial(_beside, "cubic"),
    "beside-bbr": partial(_beside, "bbr"),
}
