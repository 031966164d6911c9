"""The same checks on every machine of a Ray cluster, and between each two of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from distrlcc.cluster.nodes import Failed, RayNode, gather, probes, ray_nodes
from distrlcc.cluster.session import RayOptions, parse_address, ray_session
from distrlcc.cluster.state import Ports
from distrlcc.doctor import storage
from distrlcc.doctor.emulation import emulation_rows
from distrlcc.doctor.links import measure_links
from distrlcc.doctor.machine import Machine, common_rows, look, machine_rows
from distrlcc.doctor.members import Members
from distrlcc.doctor.row import Row
from distrlcc.errors import GroupError
from distrlcc.parallel.interface import interface_towards

_START_SECONDS = 40.0
_WAY_SECONDS = 10.0


def cluster_rows(head: str, place: str = "") -> list[Row]:
    """Check a cluster that this machine is in.

    Args:
        head: HOST:PORT of its head.
        place: Storage that all machines should have, a folder or a URL; empty leaves that out.

    Raises:
        GroupError: There is no such cluster, or it does not let us in.
    """
    host, port = parse_address(head)
    with ray_session(RayOptions(head)) as ray:
        known = ray_nodes(ray)
        nodes = [node for node in known if node.alive]
        if not nodes:
            raise GroupError(f"the cluster at {head} has no machine that is alive", exit_code=2)
        with probes(ray, nodes) as made:
            members = Members(ray, host, Ports(port), nodes, made)
            _gone(members, known)
            with _said(f"asking {len(nodes)} machine{'s' if len(nodes) > 1 else ''}"):
                _machines(members)
            if place:
                with _said("trying the storage"):
                    _storage(members, place)
            if len(members.nodes) > 1:
                with _said("trying ports and measuring between machines"):
                    measure_links(members)
            return members.rows


@contextmanager
def _said(what: str) -> Iterator[None]:
    begin = time.monotonic()
    sys.stderr.write(f"distrlcc: {what} ... ")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write(f"{time.monotonic() - begin:.1f} s\n")


def _gone(members: Members, known: list[RayNode]) -> None:
    for node in known:
        if not node.alive:
            members.add(
                "alive", node, f"gone: {node.death or 'no reason known'}",
                warn=f"there: distrlcc cluster join {members.head}:{members.ports.first}",
            )  # fmt: skip


def _machines(members: Members) -> None:
    """Look at each machine; who does not answer is left out of what follows."""
    machines: dict[str, Machine] = {}
    answers = members.each(look, _START_SECONDS)
    for node, answer in answers.items():
        if isinstance(answer, Failed):
            members.add(
                "alive", node, f"runs nothing for us: {answer.reason}",
                fail=f"open ports {members.ports} between this machine and all others",
            )  # fmt: skip
            continue
        machines[node.address] = answer
        members.rows += machine_rows(answer, node.address, cluster=True)
    members.nodes = [node for node in members.nodes if node.address in machines]
    if len(machines) > 1:
        members.rows += common_rows(machines)
    for node, rows in members.each(emulation_rows, _START_SECONDS, "").items():
        if not isinstance(rows, Failed):
            members.rows += [replace(row, machine=node.address) for row in rows]
    for node, way in members.each(_way, _WAY_SECONDS, members.head).items():
        if isinstance(way, Failed):
            members.add("interface", node, way.reason, fail="see what was found")
            continue
        name, address = way
        wrong = address != node.address and not node.is_head
        members.add(
            "interface", node,
            f"{name} ({address}) leads to the head{f'; Ray has {node.address}' if wrong else ''}",
            fail="leave and join again with --interface" if wrong else "",
        )  # fmt: skip


def _way(head: str) -> tuple[str, str]:
    way = interface_towards(head)
    return way.name, way.address


def _storage(members: Members, place: str) -> None:
    marks = storage.Marks.new(place)
    seconds = storage.STORAGE_SECONDS + 5.0
    calls = {
        node: members.probes[node].call.remote(storage.leave, marks, node.address)
        for node in members.nodes
    }
    problems = gather(members.ray, calls, seconds)
    wrote = [node.address for node in members.nodes if problems[node] == ""]
    missing = members.each(storage.find, seconds, marks, wrote)
    for node in members.nodes:
        problem = problems[node]
        lacks = missing[node]
        reason = problem.reason if isinstance(problem, Failed) else problem
        members.rows.append(
            storage.storage_row(
                place, node.address, reason, wrote if isinstance(lacks, Failed) else lacks
            )
        )
    members.each(storage.sweep, seconds, marks)
