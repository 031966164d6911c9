"""The links of ``world``, on which a policy for every link is trained, and ``flows``: all mixed."""

from dataclasses import replace

from distrlcc.sim import families
from distrlcc.sim.families import bdp_packets, between, draws, time_between
from distrlcc.sim.scenario import MAX_POLICER_PACKETS, Flow, Link, Scenario

MOST_AGENTS = 16  # of `world_link`; beside one or two, one more flow may be a rival's
_RIVALS = ("cubic", "bbr", "copa")


def world_link(split: str, index: int) -> Scenario:
    """Return a link of the suite ``world``; docs/simulator.md has a table of what it mixes."""
    u = draws("world", split, index, 40)
    agents = _count(u[0], _CROWDS)
    rivals = int(agents <= 2 and u[1] < 0.25)
    if agents + rivals > 1:
        scenario = _crowd(agents, rivals, split, index)
    else:
        scenario = _alone(u, split, index)
    link = _disturbed(scenario.link, u)
    flows = scenario.flows
    if u[19] < 0.1:
        kind = "codel" if u[20] < 0.5 else "pie"
        marks = u[23] < 0.5
        aqm = f"{kind}:packets={link.queue_packets}" + ",ecn=1" * marks
        link = replace(link, queue_packets=None, aqm=aqm)
        flows = tuple(replace(flow, ecn=marks and flow.scheme == "cubic") for flow in flows)
    return replace(scenario, name=f"world/{split}/{index}", link=link, flows=flows, seed=index)


def _alone(u: list[float], split: str, index: int) -> Scenario:
    if u[2] >= 0.75:
        return families.cellular_link(split, index)
    if u[2] >= 0.45:
        return families.changing_link(split, index)
    if u[2] < 0.03:
        return Scenario("world", families.with_host(families.LAN.link(u[3:6]), u[6:10]))
    link = _anywhere(u[3:9])
    if u[9] < 0.1:
        link = families.with_silence(link, u[10:11])
    elif u[9] < 0.225:
        link = families.with_fall(link, u[10:11])
    elif u[9] < 0.275:
        link = policed(link, u[21:23])
    elif u[9] < 0.375:
        link = families.in_whole_ms(link, u[24:27])
    return Scenario("world", link)


def _disturbed(link: Link, u: list[float]) -> Link:
    if u[11] < 0.35:
        link = families.with_jitter(link, u[12:15], 0.2, 8.0)
    if link.trace is None and u[15] < 0.2:
        link = replace(link, loss=round(between(u[16], 1e-4, 0.03), 6))
    if u[17] < 0.08:
        link = replace(link, jitter_ms=round(between(u[18], 0.2, 8.0), 3), jitter_kind="uniform")
    if u[28] < 0.1:
        return families.with_noise(link, u[29:35])
    return families.as_wifi(link, u[29:36]) if u[28] < 0.14 else link


_CROWDS = ((0.6, 1, 1), (0.18, 2, 2), (0.12, 3, 4), (0.06, 5, 8), (0.04, 9, MOST_AGENTS))
"""Shares of links of `world_link` with so many agents: at least, at most."""


def _count(u: float, shares: tuple[tuple[float, int, int], ...]) -> int:
    """Return the number at ``u`` in [0, 1): ranges of numbers with their shares of it."""
    for share, least, most in shares:
        if u < share:
            return least + int((most - least + 1) * u / share)
        u -= share
    return shares[-1][2]


def policed(link: Link, u: list[float]) -> Link:
    """Put it behind a token bucket of 30-90% of its rate, which holds 0.5-4 BDP of that."""
    rate = round((link.rate_mbps or 0.0) * between(u[0], 0.3, 0.9), 3)
    burst = round(between(u[1], 0.5, 4.0) * bdp_packets(rate, 2 * link.delay_ms))
    packets = min(max(burst, 4), MAX_POLICER_PACKETS)
    return replace(link, policer_mbps=rate, policer_packets=packets)


def _anywhere(u: list[float]) -> Link:
    """Return a link: a third have wider rates, a third wider RTTs, 40% queues under 0.5 BDP."""
    rates = (0.1, 1000.0) if u[3] < 1 / 3 else (2.0, 150.0)
    rtts = (2.0, 800.0) if u[4] < 1 / 3 else (8.0, 200.0)
    return families.Wide(rates, rtts, (0.02, 0.5) if u[5] < 0.4 else (0.5, 8.0)).link(u)


def _crowd(agents: int, rivals: int, split: str, index: int) -> Scenario:
    """Flows that come in the first 5 s, of which some leave; half have RTTs of their own."""
    u = draws("crowd", split, index, 8 + 3 * agents)
    rtt = round(between(u[1], 8.0, 160.0), 3)
    least = max(2.0, families.PACKETS_EACH * (agents + rivals) / bdp_packets(1.0, rtt))
    rate = round(between(u[0], least, max(200.0, 2 * least)), 3)
    depth = between(u[2], 0.1, 4.0) * bdp_packets(rate, rtt)
    queue = max(2 * (agents + rivals), round(depth))
    flows = []
    for k in range(agents):
        a, b, c = u[8 + 3 * k : 11 + 3 * k]
        start = time_between(0.0, 5.0, a) if k else 0.0
        stop = time_between(start + 3.0, 15.0, 4 * b) if k and b < 0.25 else None
        extra = round(3.0 * c * rtt, 3) if u[3] < 0.5 and k else 0.0
        flows.append(Flow(start_s=start, stop_s=stop, extra_rtt_ms=extra))
    if rivals:
        late = time_between(0.0, 5.0, u[4])
        size = round(between(3 * u[7], 20, bdp_packets(rate, 8e3))) if u[7] < 1 / 3 else None
        starts = (0.0, late) if size or u[5] < 0.5 else (late, 0.0)
        flows[0] = replace(flows[0], start_s=starts[0])
        flows.append(Flow(_RIVALS[int(3 * u[6])], start_s=starts[1], packets=size))
    link = Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=queue)
    return Scenario("world", link, tuple(flows), duration_s=16.0)


def many_flows(split: str, index: int) -> Scenario:
    """Return a link of 4, 16 or 32 agents that start within 2 s."""
    u = draws("flows", split, index, 40)
    count = (4, 16, 32)[index % 3]
    rtt = round(between(u[1], 10.0, 80.0), 3)
    least = max(20.0, families.PACKETS_EACH * count / bdp_packets(1.0, rtt))
    rate = round(between(u[0], least, max(200.0, 2 * least)), 3)
    queue = max(2 * count, round(between(u[2], 0.5, 2.0) * bdp_packets(rate, rtt)))
    flows = tuple(
        Flow(start_s=time_between(0.0, 2.0, u[3 + k]) if k else 0.0) for k in range(count)
    )
    link = Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=queue)
    return Scenario(f"flows/{split}/{index}", link, flows, duration_s=20.0, seed=index)


def most_flows(split: str, index: int) -> Scenario:
    """Those of `many_flows` that have 32."""
    return many_flows(split, 3 * index + 2)
