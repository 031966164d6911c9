"""The links behind the named suites; each parameter is a draw named by suite, split and index."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distrlcc.errors import unknown_name
from distrlcc.seeding import stream_key, uniform
from distrlcc.sim.scenario import JITTERS, Change, Flow, JitterKind, Link, Scenario
from distrlcc.types import PACKET_BYTES

SPLITS = ("train", "validation", "test")


def draws(suite: str, split: str, index: int, count: int) -> list[float]:
    """Return ``count`` uniforms in [0, 1) of a suite's scenario; raises ConfigError at a split."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    key = stream_key(0, f"suite/{suite}/{split}")
    return [float(u) for u in uniform(key, index, np.arange(count))]


def between(u: float, low: float, high: float) -> float:
    """Return the value at ``u`` in [0, 1] of a log-uniform distribution."""
    return float(low * (high / low) ** u)


def bdp_packets(rate_mbps: float, rtt_ms: float) -> float:
    """Return a bandwidth-delay product in packets."""
    return rate_mbps * rtt_ms * 1e3 / (8 * PACKET_BYTES)


PACKETS_EACH = 4.0  # least BDP per flow, packets: windows are 2 packets or more


def random_link(u: list[float], flows: int = 1, loss: float = 0.0) -> Link:
    """Return 5-100 Mbit/s (log-uniform) with RTT 10-100 ms. The queue has 0.5-4 BDP."""
    rtt = round(10.0 + 90.0 * u[1], 3)
    least = max(5.0, PACKETS_EACH * flows / bdp_packets(1.0, rtt))
    rate = round(between(u[0], least, 100.0), 3)
    queue = max(2, round(between(u[2], 0.5, 4.0) * bdp_packets(rate, rtt)))
    return Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=queue, loss=loss)


def some_loss(share: float, u: list[float]) -> float:
    """Return up to 1% of loss for a share of links, 0 for the others."""
    return round(0.01 * u[1], 6) if u[0] < share else 0.0


def varied_link(split: str, index: int) -> Scenario:
    """Return a link of `random_link`'s ranges, with up to 1% of loss on a quarter."""
    u = draws("random", split, index, 5)
    link = random_link(u, loss=some_loss(0.25, u[3:]))
    return Scenario(f"random/{split}/{index}", link, seed=index)


@dataclass(frozen=True)
class Wide:
    """Constant links of a range: each value is log-uniform."""

    rate_mbps: tuple[float, float] = (5.0, 100.0)
    rtt_ms: tuple[float, float] = (10.0, 100.0)
    queue_bdp: tuple[float, float] = (0.5, 4.0)
    least_queue: int = 2  # packets that its queue holds at least

    def link(self, u: list[float]) -> Link:
        """Return the link of three uniforms."""
        rate, rtt = (
            round(between(v, *r), 3) for v, r in zip(u, (self.rate_mbps, self.rtt_ms), strict=False)
        )
        depth = round(between(u[2], *self.queue_bdp) * bdp_packets(rate, rtt))
        return Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=max(self.least_queue, depth))


def with_jitter(link: Link, u: list[float], least: float = 1.0, most: float = 6.0) -> Link:
    """ACKs jitter by up to 1-6 ms; on a quarter they come each 1-8 ms, on a quarter in pairs."""
    return replace(
        link,
        ack_jitter_ms=round(between(u[0], least, most), 3),
        ack_jitter_kind="uniform",
        ack_tick_ms=round(between(u[1], 1.0, 8.0), 3) if u[2] < 0.25 else 0.0,
        delayed_acks=u[2] > 0.75,
    )


def with_noise(link: Link, u: list[float]) -> Link:
    """ACKs jitter by 2 to 40 ms on 80%, packets before the queue on 45%, of any kind; or both."""
    acks = u[0] < 0.8
    if acks:
        kind, scale = _noise(u[1:3], 2.0, 40.0)
        link = replace(link, ack_jitter_ms=scale, ack_jitter_kind=kind)
    if u[3] < 0.45 or not acks:
        kind, scale = _noise(u[4:6], 2.0, 40.0)
        link = replace(link, jitter_ms=scale, jitter_kind=kind)
    return link


def as_wifi(link: Link, u: list[float]) -> Link:
    """Either way, or both, stands still for up to 5 to 250 ms at a time; the other way jitters."""
    pauses = "both" if u[0] < 0.4 else "acks" if u[0] < 0.7 else "packets"
    (_, ack), (_, hop) = _noise(u[1:3], 5.0, 250.0), _noise(u[3:5], 5.0, 250.0)
    kinds: dict[str, Any] = {"ack_jitter_kind": "bursts", "jitter_kind": "bursts"}
    if pauses == "packets":
        kinds["ack_jitter_kind"], ack = _noise(u[5:7], 0.5, 15.0)
    if pauses == "acks":
        kinds["jitter_kind"], hop = _noise(u[5:7], 0.5, 15.0)
    return replace(link, ack_jitter_ms=ack, jitter_ms=hop, **kinds)


def with_host(link: Link, u: list[float]) -> Link:
    """Hosts hold ACKs for 0.05 to 4 ms, and on 30% packets before the queue, one by one."""
    acks, hop = (round(between(v, 0.05, 4.0), 3) for v in u[:2])
    link = replace(link, ack_jitter_ms=acks, ack_jitter_kind=JITTERS[int(3 * u[2])])
    return replace(link, jitter_ms=hop, jitter_kind="exponential") if u[3] < 0.3 else link


def _noise(u: list[float], least: float, most: float) -> tuple[JitterKind, float]:
    """Return a kind of jitter, uniform for a third and any other for a sixth, and its scale, ms."""
    return JITTERS[max(int(6 * u[0]) - 1, 0)], round(between(u[1], least, most), 3)


def with_silence(link: Link, u: list[float]) -> Link:
    """Nothing leaves in the first 0.3 to 2 s."""
    begins = Change(round(0.3 + 1.7 * u[0], 3), rate_mbps=link.rate_mbps)
    return replace(link, rate_mbps=0.0, changes=(begins,))


def with_fall(link: Link, u: list[float]) -> Link:
    """After 3 s the rate falls to a quarter to a tenth."""
    left = round((link.rate_mbps or 0.0) * between(u[0], 0.1, 0.25), 3)
    return replace(link, changes=(Change(3.0, rate_mbps=left),))


_PER_100_MS = 8 * PACKET_BYTES / 1e5  # a packet in 100 ms, Mbit/s: its multiples have short periods


def in_whole_ms(link: Link, u: list[float]) -> Link:
    """Packets leave in whole ms, as an emulator's, and the host holds ACKs for up to 0-1 ms.

    On half of the links ACKs come in pairs, on half they leave in whole ms, too.
    """
    rate = _PER_100_MS * max(1, round((link.rate_mbps or 0.0) / _PER_100_MS))
    tick = float(u[2] < 0.5)
    link = replace(link, rate_mbps=None, trace=f"constant:{rate:.5f}", delayed_acks=u[0] < 0.5)
    return replace(link, ack_jitter_ms=round(u[1], 3), ack_tick_ms=tick)


def with_losses(link: Link, u: list[float]) -> Link:
    """0.1 to 2% are lost at random, ACKs jitter by up to 0.3 to 3 ms; half serve in whole ms."""
    link = in_whole_ms(link, u[3:]) if u[2] < 0.5 else link
    jitter = round(between(u[1], 0.3, 3.0), 3)
    return replace(link, loss=round(between(u[0], 0.001, 0.02), 6), ack_jitter_ms=jitter)


LAN = Wide((100.0, 10_000.0), (0.02, 3.0), (0.5, 16.0), least_queue=64)
HARD: dict[str, tuple[Wide, Callable[[Link, list[float]], Link]]] = {
    "shallow": (Wide((1.0, 150.0), (8.0, 180.0), (0.02, 0.3)), lambda link, u: link),
    "slow": (Wide((0.2, 2.0), (20.0, 200.0)), lambda link, u: link),
    "fast": (Wide((100.0, 1000.0), (5.0, 100.0), (0.2, 2.0)), lambda link, u: link),
    "jitter": (Wide(), with_jitter),
    "silent": (Wide(), with_silence),
    "falls": (Wide(), with_fall),
    "whole-ms": (Wide(), in_whole_ms),
    "lossy": (Wide(), with_losses),
    "long": (  # half lose up to 1% at random
        Wide((1.0, 100.0), (150.0, 800.0), (0.2, 2.0)),
        lambda link, u: replace(link, loss=some_loss(0.5, u)),
    ),
    "noisy": (Wide((2.0, 200.0), (4.0, 200.0), (0.2, 4.0)), with_noise),
    "wifi": (Wide((5.0, 300.0), (5.0, 100.0), (0.5, 4.0)), as_wifi),
    "lan": (LAN, with_host),
}
"""Suites of what is hard for a policy that has not met it."""


def hard_link(name: str, split: str, index: int) -> Scenario:
    """Return a link of one of the suites `HARD`."""
    wide, change = HARD[name]
    u = draws(name, split, index, 10)
    return Scenario(f"{name}/{split}/{index}", change(wide.link(u), u[3:]), seed=index)


def changing_link(split: str, index: int) -> Scenario:
    """Random links whose rate and delay step every 1.5 to 4 s."""
    u = draws("dynamic", split, index, 44)
    rate = round(between(u[0], 5.0, 60.0), 3)
    delay = round(5.0 + 35.0 * u[1], 3)
    queue = max(8, round(between(u[2], 1.0, 4.0) * bdp_packets(rate, 2 * delay)))
    changes, time = [], 0.0
    for k in range(10):
        a, b, c, d = u[4 + 4 * k : 8 + 4 * k]
        time += 1.5 + 2.5 * a
        if round(time, 3) >= 20.0:
            break
        new_rate = round(min(80.0, max(3.0, rate * 4.0 ** (2 * b - 1))), 3)
        new_delay = round(min(60.0, max(5.0, delay * 2.0 ** (2 * c - 1))), 3)
        kind = int(3 * d)
        new = new_rate if kind != 1 else None, new_delay if kind != 0 else None
        changes.append(Change(round(time, 3), *new))
    link = Link(rate_mbps=rate, delay_ms=delay, queue_packets=queue, changes=tuple(changes))
    return Scenario(f"dynamic/{split}/{index}", link, duration_s=20.0, seed=index)


def cellular_link(split: str, index: int) -> Scenario:
    """Generated cellular-like traces, RTT 20-100 ms, queue of 50-500 packets."""
    u = draws("cellular", split, index, 4)
    link = Link(
        trace=f"cellular:{len(SPLITS) * (index % 256) + SPLITS.index(split)}",
        trace_start_s=round(60 * u[0], 3),
        delay_ms=round(10 + 40 * u[1], 3),
        queue_packets=round(between(u[2], 50, 500)),
    )
    return Scenario(f"cellular/{split}/{index}", link, duration_s=20.0, seed=index)


def training_link(split: str, index: int) -> Scenario:
    """100-500 packets/s, 50-500 ms each way. Up to 2981 packets queue, up to 5% are lost."""
    u = draws("aurora", split, index, 4)
    delay = round(50.0 + 450.0 * u[1], 3)
    link = Link(
        rate_mbps=round((100.0 + 400.0 * u[0]) / bdp_packets(1.0, 1e3), 6),
        delay_ms=delay,
        queue_packets=1 + int(math.exp(8.0 * u[2])),
        loss=round(0.05 * u[3], 6),
    )
    return Scenario(f"aurora/{split}/{index}", link, duration_s=0.4 * delay, seed=index)


def genet_link(split: str, index: int) -> Scenario:
    """The widest of Genet's ranges (Xia et al., SIGCOMM 2022, section 4.2, and its code).

    A rate is drawn every 1-30 s, between the highest and a tenth of it, at least 0.1 Mbit/s. The
    highest is 0.1-100 Mbit/s (log-uniform). The RTT is 4-400 ms and the queue 0.2-3 BDP. Up to 5%
    is lost (log-uniform).
    """
    u = draws("genet", split, index, 6)
    highest = between(u[0], 0.1, 100.0)
    lowest = min(max((0.1 + 0.9 * u[1]) * highest, 0.1), highest)
    rtt, change_s = 4.0 + 396.0 * u[2], 1.0 + 29.0 * u[5]
    loss = between(u[4], 1e-5, 0.05 + 1e-5)
    # Each link draws rates of its own.
    seed = len(SPLITS) * index + SPLITS.index(split)
    times = np.arange(math.ceil(30.0 / change_s))
    draws_of_rates = uniform(stream_key(0, "link-family"), seed, times)
    rates = [round(between(float(draw), lowest, highest), 6) for draw in draws_of_rates]
    link = Link(
        rate_mbps=rates[0],
        delay_ms=round(rtt / 2, 6),
        loss=0.0 if loss < 1e-4 else round(min(loss, 0.05), 6),
        queue_packets=max(2, round((0.2 + 2.8 * u[3]) * bdp_packets(highest, rtt))),
        changes=tuple(
            Change(round(k * change_s, 6), rate_mbps=rates[k]) for k in range(1, len(rates))
        ),
    )
    return Scenario(f"genet/{split}/{index}", link, duration_s=30.0, seed=seed)


_BASE = Link(rate_mbps=30.0, delay_ms=30.0, queue_packets=1000)
SWEEPS = (
    *((f"rate-{v:g}", replace(_BASE, rate_mbps=v)) for v in (1, 2, 4, 8, 16, 32, 64, 128)),
    *((f"delay-{v:g}", replace(_BASE, delay_ms=v)) for v in (1, 4, 16, 32, 64, 128, 256)),
    *((f"queue-{v}", replace(_BASE, queue_packets=v)) for v in (2, 5, 10, 50, 200, 1000, 5000)),
    *((f"loss-{v:g}", replace(_BASE, loss=v / 100)) for v in (0, 0.1, 0.5, 1, 2, 3, 5, 8)),
)
"""Names and links of the suite ``aurora-sweep``. Each changes one of 30 Mbit/s, 30 ms each way, a
queue of 1000 packets and 0% of loss."""

_POISSON = (
    Link(trace="poisson:0.57:0", delay_ms=28, loss=0.0477, queue_packets=14, best_cwnd=4),
    Link(trace="poisson:2.64:1", delay_ms=88, queue_packets=130, best_cwnd=42),
    Link(trace="poisson:3.04:2", delay_ms=130, queue_packets=426, best_cwnd=71),
)
_CALIBRATED = (
    Link(rate_mbps=100.42, delay_ms=27, queue_packets=173),
    Link(rate_mbps=77.72, delay_ms=51, loss=0.0006, queue_packets=94),
    Link(rate_mbps=114.68, delay_ms=45, queue_packets=450),
)
_DELAYS = (10, 20, 40, 80)


def _plain(*rates: int) -> tuple[Link, ...]:
    return tuple(Link(rate_mbps=r, delay_ms=d) for r in rates for d in _DELAYS)


LINKS: tuple[Link, ...] = (*_POISSON, *_plain(5, 10, 20, 50), *_CALIBRATED, *_plain(100, 200))
"""Ids 0 to 29."""

GRID: tuple[tuple[str, Link], ...] = (
    *((f"{link.rate_mbps}mbps-{link.delay_ms}ms", link) for link in _plain(5, 10, 20, 50, 100)),
    *((f"calibrated-{k}", link) for k, link in enumerate((*_POISSON, *_CALIBRATED))),
    ("satellite", Link(rate_mbps=42, delay_ms=400, loss=0.0074, queue_packets=1500)),
)
"""Name and link of each point of the grid."""
SATELLITE = Link(rate_mbps=42, delay_ms=300, loss=0.0074, queue_packets=1500)
"""As the grid's, at a round trip of 600 ms in place of 800, which is that of the orbit."""


# Links that several flows share. ``shared`` is for training, the others measure: agents of equal
# round trips, one with four times the other's, and one beside a flow of CUBIC or BBR. The recipe
# `one` trains on their split ``train``.
MOST_FLOWS = 4  # flows on any of these links


def time_between(low: float, high: float, u: float) -> float:
    """Return the time at ``u`` in [0, 1] between two, s, in whole steps of 10 ms."""
    return round(low + (high - low) * u, 2)


def _shared(split: str, index: int) -> Scenario:
    """1 to 4 agents for 12 s: starts in the first 4 s, a third leave, a third have other RTTs."""
    u = draws("shared", split, index, 20)
    count = 1 if u[3] < 0.15 else 2 + int(3 * (u[3] - 0.15) / 0.85)
    link = random_link(u, count, loss=some_loss(0.25, u[4:]))
    unequal = u[6] < 1 / 3
    flows = []
    for k in range(count):
        a, b, c = u[7 + 3 * k : 10 + 3 * k]
        start = time_between(0.0, 4.0, a) if k else 0.0
        stop = time_between(start + 2.0, 11.0, 3 * b) if b < 1 / 3 else None
        extra = round(3.0 * c * 2 * link.delay_ms, 3) if unequal and k else 0.0
        flows.append(Flow(start_s=start, stop_s=stop, extra_rtt_ms=extra))
    return Scenario(f"shared/{split}/{index}", link, tuple(flows), duration_s=12.0, seed=index)


def _joining(name: str, count: int, split: str, index: int) -> Scenario:
    """Agents of equal RTTs that join after 5 to 6 s, 10 to 11 s, ...; of four one leaves."""
    u = draws(name, split, index, 3 + count)
    link = random_link(u, count)
    starts = [time_between(5.0 * k, 5.0 * k + 1.0, u[3 + k]) if k else 0.0 for k in range(count)]
    flows = [Flow(start_s=start) for start in starts]
    duration = 5.0 * count + 10.0
    if count > 2:
        flows[1] = Flow(start_s=starts[1], stop_s=duration - 6.0)
    name = f"{name}/{split}/{index}"
    return Scenario(name, link, tuple(flows), duration_s=duration, seed=index)


def _pair(
    name: str, scheme: str, late_s: float, duration_s: float, split: str, index: int
) -> Scenario:
    """One agent and one flow of a scheme, or an agent of four times its RTT; either joins late."""
    u = draws(name, split, index, 5)
    agents = scheme == "agent"
    link = random_link([u[0], 0.5 * u[1] if agents else u[1], u[2]], 2)  # so RTTs are below 220 ms
    late = time_between(late_s, late_s + 1.0, u[3])
    starts = (0.0, late) if u[4] < 0.5 else (late, 0.0)
    extra = round(3 * 2 * link.delay_ms, 3) if agents else 0.0
    flows = (Flow(start_s=starts[0]), Flow(scheme, start_s=starts[1], extra_rtt_ms=extra))
    return Scenario(f"{name}/{split}/{index}", link, flows, duration_s=duration_s, seed=index)


SHARED: dict[str, Callable[[str, int], Scenario]] = {
    "shared": _shared,
    "shared-2": partial(_joining, "shared-2", 2),
    "shared-4": partial(_joining, "shared-4", 4),
    "shared-rtt": partial(_pair, "shared-rtt", "agent", 5.0, 30.0),
    "beside-cubic": partial(_pair, "beside-cubic", "cubic", 3.0, 40.0),
    "beside-bbr": partial(_pair, "beside-bbr", "bbr", 3.0, 40.0),
}
