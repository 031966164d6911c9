"""What passes between each two machines of a cluster: ports, round trips, bandwidth, objects."""

from __future__ import annotations

import time
from collections.abc import Iterator

from distrlcc.cluster.nodes import Failed, RayNode, gather
from distrlcc.cluster.state import FIRST_WORKER_PORT, LAST_WORKER_PORT
from distrlcc.doctor import wire
from distrlcc.doctor.members import Members
from distrlcc.doctor.pairs import Pair, rounds
from distrlcc.doctor.row import Row, judged

OBJECT_BYTES = 8_000_000
"""Large enough to leave the sender's process, as weights and segments are."""
_LISTEN_SECONDS = 10.0
_REACH_SECONDS = 2.0
_OBJECT_SECONDS = 10.0
_WIRE_SECONDS = 5.0
"""Time of all streams together, s; each lasts a quarter of a second at most."""
_TOTAL_SECONDS = 30.0
"""No new round of pairs is begun after this long."""
_SLOW_MBIT, _FAR_MS, _SKEWED_MS = 50.0, 100.0, 100.0


def measure_links(members: Members) -> None:
    """Measure, and add the rows."""
    listening = gather(
        members.ray,
        {
            node: members.probes[node].call.remote(
                wire.listen, node.address, FIRST_WORKER_PORT, LAST_WORKER_PORT
            )
            for node in members.nodes
        },
        _LISTEN_SECONDS,
    )
    ports = {node: port for node, port in listening.items() if not isinstance(port, Failed)}
    for node, failed in listening.items():
        if isinstance(failed, Failed):
            members.add("ports", node, failed.reason, fail="free some of the workers' ports")
    _reach(members, ports)
    plan = rounds(len(members.nodes))
    _wires(members, ports, plan)
    _objects(members, plan)


def _reach(members: Members, ports: dict[RayNode, int]) -> None:
    """Try each port of each machine from each other one."""
    targets = {node: list(_targets(members, ports, node)) for node in members.nodes}
    calls = {
        node: members.probes[node].call.remote(wire.reach, targets[node], _REACH_SECONDS)
        for node in members.nodes
    }
    most = max(len(each) for each in targets.values())
    seconds = _REACH_SECONDS * (1 + most / 64) + 5.0
    for node, answer in gather(members.ray, calls, seconds).items():
        if isinstance(answer, Failed):
            members.add("ports", node, answer.reason, fail="see what was found")
            continue
        closed = [
            f"{address}:{port} ({problem})"
            for (address, port), problem in zip(targets[node], answer, strict=True)
            if problem
        ]
        numbers = sorted({port for _, port in targets[node]})
        members.add(
            "ports", node,
            f"does not reach {', '.join(closed)}" if closed else
            f"reaches {', '.join(map(str, numbers))} of the others",
            fail=f"open ports {members.ports} there for {node.address}" if closed else "",
        )  # fmt: skip


def _targets(
    members: Members, ports: dict[RayNode, int], node: RayNode
) -> Iterator[tuple[str, int]]:
    for other in members.nodes:
        if other is node:
            continue
        if other.is_head:
            yield other.address, members.ports.first
        yield other.address, other.manager_port
        yield other.address, other.object_port
        if other in ports:
            yield other.address, ports[other]


def _in_time(members: Members, check: str, plan: list[list[Pair]]) -> Iterator[list[Pair]]:
    """Yield the rounds that fit into the time, and say how many did not."""
    deadline = time.monotonic() + _TOTAL_SECONDS
    for number, pairs in enumerate(plan):
        if time.monotonic() > deadline:
            members.add(
                check, members.nodes[0], f"{len(plan) - number} of {len(plan)} rounds of pairs "
                f"left out after {_TOTAL_SECONDS:.0f} s", warn="mend what failed, and ask again",
            )  # fmt: skip
            return
        yield pairs


def _wires(members: Members, ports: dict[RayNode, int], plan: list[list[Pair]]) -> None:
    """Measure between each two, as many at once as do not disturb each other."""
    streams = 2 * len(plan)
    seconds = min(0.25, _WIRE_SECONDS / streams)
    offsets: dict[RayNode, float] = {}
    for pairs in _in_time(members, "link", plan):
        calls = {
            pair: members.probes[members.nodes[pair.first]].call.remote(
                wire.measure, members.nodes[pair.second].address,
                ports[members.nodes[pair.second]], seconds,
            )
            for pair in pairs if members.nodes[pair.second] in ports
        }  # fmt: skip
        for pair, found in gather(members.ray, calls, _WIRE_SECONDS + 2 * seconds).items():
            first, second = members.nodes[pair.first], members.nodes[pair.second]
            if isinstance(found, Failed):
                members.add(
                    "link", first, f"to {second.address}: {found.reason}",
                    fail=f"open ports {members.ports} between the two",
                )  # fmt: skip
                continue
            members.rows.append(_link_row(first.address, second.address, found))
            if pair.first == 0:
                offsets[second] = found.offset_ms
    for node, offset in offsets.items():
        members.add(
            "clock", node, f"{offset:+.1f} ms from {members.nodes[0].address}'s",
            fail="set it: storage and certificates fail" if abs(offset) > 60e3 else "",
            warn="let NTP set it, or logs cannot be compared" if abs(offset) > _SKEWED_MS else "",
        )  # fmt: skip


def _link_row(first: str, second: str, found: wire.Wire) -> Row:
    slow = min(found.up_mbit, found.down_mbit) < _SLOW_MBIT
    far = found.round_trip_ms > _FAR_MS
    return judged(
        "link", first,
        f"to {second}: {found.round_trip_ms:.2f} ms, {_rate(found.up_mbit)} there, "
        f"{_rate(found.down_mbit)} back",
        warn="slow: is it the right network? use actor-learner rather than decentralized"
        if slow else "far: use actor-learner rather than decentralized" if far else "",
    )  # fmt: skip


def _objects(members: Members, plan: list[list[Pair]]) -> None:
    """Move a large object to the other one of each pair, and one back to the first."""
    probes = [members.probes[node] for node in members.nodes]
    for pairs in _in_time(members, "object", plan):
        ways = [(p.first, p.second) for p in pairs] + [(p.second, p.first) for p in pairs]
        held = {way: probes[way[0]].hold.remote(OBJECT_BYTES) for way in ways}
        calls = {way: probes[way[1]].fetch.remote(held[way], _OBJECT_SECONDS) for way in ways}
        for (source, target), took in gather(members.ray, calls, 2 * _OBJECT_SECONDS).items():
            first, second = members.nodes[source], members.nodes[target]
            what = f"{OBJECT_BYTES / 1e6:.0f} MB from {first.address}"
            if took is None or isinstance(took, Failed):
                lost = f"does not come within {_OBJECT_SECONDS:.0f} s"
                members.add(
                    "object", second, f"{what}: {lost if took is None else took.reason}",
                    fail=f"let {second.address} reach {first.address} at port "
                    f"{first.object_port}; if that is not its address, join with --interface",
                )  # fmt: skip
            else:
                members.add("object", second, f"{what} in {took * 1e3:.0f} ms")


def _rate(mbit: float) -> str:
    return f"{mbit / 1e3:.1f} Gbit/s" if mbit >= 1e3 else f"{mbit:.1f} Mbit/s"
