"""The checks of every machine of a Ray cluster, and of what passes between each two of them."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from distrlcc.cluster import session
from distrlcc.cluster.state import FIRST_WORKER_PORT, LAST_WORKER_PORT, name_ports
from distrlcc.doctor import machine, wire
from distrlcc.doctor.findings import Finding, finding
from distrlcc.errors import GroupError
from distrlcc.limits import limits

OBJECT_BYTES = 8_000_000  # large enough to leave the sender's process, as weights and segments are
_WIRE_SECONDS = 5.0  # time of all streams together, s; each lasts a quarter of a second at most
_TOTAL_SECONDS = 30.0  # no new round of pairs begins after this long
_SLOW_MBIT, _FAR_MS, _SKEWED_MS, _WRONG_MS = 50.0, 100.0, 100.0, 60e3


class Probe:
    """A Ray actor on a machine: calls functions there, which are this package's."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns."""
        return function(*arguments)


def check_cluster(head: str, place: str = "") -> list[Finding]:
    """Check a cluster that this machine is in, by its head's HOST:PORT, and storage if named."""
    host, port = session.parse_address(head)
    with session.ray_session(head) as ray:
        # Start a process on each machine.
        known = session.ray_nodes(ray)
        nodes = [node for node in known if node.alive]
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        where = {node: affinity(node.identifier, soft=False) for node in nodes}
        kind = ray.remote(num_cpus=0)(Probe)
        probes = {node: kind.options(scheduling_strategy=where[node]).remote() for node in nodes}
        ports = {n: [*[port][: n.is_head], n.manager_port, n.object_port] for n in nodes}
        free = FIRST_WORKER_PORT, LAST_WORKER_PORT

        def call(node: session.RayNode, *words: Any) -> Any:
            return probes[node].call.remote(*words).future()

        survey = Survey(nodes, call, name_ports(port), free, ports)
        # Report which have gone; then check each, the storage, and what is between each two.
        for node in known:
            if not node.alive:
                found, warn = f"gone: {node.death}", f"there: distrlcc cluster join {head}"
                survey.add(node, finding("alive", found, warn=warn))
        sys.stderr.write(f"distrlcc: asking {len(nodes)} machine{'s' * (len(nodes) > 1)} ...\n")
        _machines(survey, host)
        if place:
            sys.stderr.write("distrlcc: trying the storage ...\n")
            _storage(survey, place)
        if len(survey.nodes) > 1:
            sys.stderr.write("distrlcc: trying ports and measuring between machines ...\n")
            wires(survey, try_ports(survey))
            _objects(survey, probes)
        return survey.findings


@dataclass
class Survey:
    """Machines, and what is known of them so far."""

    nodes: list[Any]  # each has an `address`
    call: Callable[..., Future[Any]]  # calls a function on a node, both given first
    names: str  # the ports that must be open, for people
    free: tuple[int, int]  # first and last of those that this may listen on
    ports: Mapping[Any, list[int]] = field(default_factory=dict)  # others to be reached on a node
    findings: list[Finding] = field(default_factory=list)

    def ask(self, seconds: float, calls: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        """Call functions at once, each as node, function and arguments; errors are results."""
        asked = {key: self.call(*words) for key, words in calls.items()}
        deadline, results = time.monotonic() + seconds, dict[Any, Any]()
        for key, answer in asked.items():
            try:
                results[key] = answer.result(max(0.0, deadline - time.monotonic()))
            except Exception as error:  # the function's own, or what ended its process
                late = f"no answer within {seconds:.0f} s"
                results[key] = GroupError(session.last_line(error) if answer.done() else late)
        return results

    def each(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> dict[Any, Any]:
        """Call a function on all machines at once."""
        return self.ask(seconds, {node: (node, function, *arguments) for node in self.nodes})

    def add(self, node: Any, *findings: Finding) -> None:
        """Add what was found on a machine."""
        self.findings += [replace(each, machine=node.address) for each in findings]

    def rounds(self, check: str) -> Iterator[list[tuple[int, int]]]:
        """Yield rounds of pairs of machines, as many as there is time for."""
        plan, deadline = wire.rounds(len(self.nodes)), time.monotonic() + _TOTAL_SECONDS
        for number, pairs in enumerate(plan):
            if time.monotonic() > deadline:
                left = f"{len(plan) - number} of {len(plan)} rounds of pairs left out after "
                left += f"{_TOTAL_SECONDS:.0f} s"
                warn = "mend what failed, and ask again"
                self.add(self.nodes[0], finding(check, left, warn=warn))
                return
            yield pairs


def _machines(survey: Survey, host: str) -> None:
    """Check each machine; one that does not answer is left out of what follows."""
    common: dict[session.RayNode, dict[str, str]] = {}
    calls = {
        node: (node, machine.check_node, host, "" if node.is_head else node.address)
        for node in survey.nodes
    }
    for node, answer in survey.ask(limits().start, calls).items():
        if isinstance(answer, GroupError):
            fail = f"open ports {survey.names} between this machine and all others"
            survey.add(node, finding("alive", f"runs nothing for us: {answer}", fail=fail))
        else:
            common[node], found = answer
            survey.add(node, *found)
    survey.nodes = list(common)
    for node in survey.nodes[1:]:
        first = survey.nodes[0]
        survey.add(node, machine.compare_versions(first.address, common[first], common[node]))


def _storage(survey: Survey, place: str) -> None:
    """Let each machine leave a mark, and look for those of all others."""
    marks, seconds = machine.new_marks(place), 2 * limits().start  # it is opened, written and read
    calls = {node: (node, machine.leave_mark, marks, node.address) for node in survey.nodes}
    problems = survey.ask(seconds, calls)
    wrote = [node.address for node in survey.nodes if problems[node] == ""]
    missing = survey.each(seconds, machine.missing_marks, marks, wrote)
    for node, problem in problems.items():
        lacks = wrote if isinstance(missing[node], GroupError) else missing[node]
        survey.add(node, machine.judge_storage(place, str(problem), lacks))
    survey.each(seconds, machine.sweep_marks, marks)


def try_ports(survey: Survey) -> dict[Any, int]:
    """Try each port of each machine from each other one; return where machines listen for us."""
    # Listen on one.
    calls = {node: (node, wire.listen, node.address, *survey.free) for node in survey.nodes}
    ports = survey.ask(limits().call, calls)
    for node, port in ports.items():
        if isinstance(port, GroupError):
            survey.add(node, finding("ports", str(port), fail=f"free one of {survey.names}"))
    ports = {node: port for node, port in ports.items() if isinstance(port, int)}
    # Connect to it and to Ray's own.
    targets: list[tuple[str, int]] = []
    for node in survey.nodes:
        own = [ports[node]] if node in ports else []
        targets += [(node.address, number) for number in survey.ports.get(node, []) + own]
    all_ports = ", ".join(map(str, sorted({port for _, port in targets})))
    seconds = limits().call * (2 + len(targets) / 64)
    for node, answer in survey.each(seconds, wire.reach, targets).items():
        found, fail = f"reaches {all_ports} of the others", ""
        if isinstance(answer, GroupError):
            found, fail = str(answer), "see what was found"
        elif any(answer):
            tried = zip(targets, answer, strict=True)
            closed = [f"{host}:{port} ({problem})" for (host, port), problem in tried if problem]
            found = f"does not reach {', '.join(closed)}"
            fail = f"open ports {survey.names} there for {node.address}"
        survey.add(node, finding("ports", found, fail=fail))
    return ports


def wires(survey: Survey, ports: dict[Any, int]) -> None:
    """Measure between each two, as many at once as do not disturb each other."""
    # Round trips and rates.
    nodes, offsets = survey.nodes, dict[Any, float]()
    seconds = min(0.25, _WIRE_SECONDS / (2 * len(nodes)))
    for pairs in survey.rounds("link"):
        calls = {
            (a, b): (nodes[a], wire.measure, nodes[b].address, ports[nodes[b]], seconds)
            for a, b in pairs
            if nodes[b] in ports
        }
        for (a, b), wired in survey.ask(limits().call + 2 * seconds, calls).items():
            found, fail, warn = str(wired), "", ""
            if isinstance(wired, GroupError):
                fail = f"open ports {survey.names} between the two"
            elif min(wired.up_mbit, wired.down_mbit) < _SLOW_MBIT:
                warn = "slow: is it the right network? use actor-learner rather than decentralized"
            elif wired.round_trip_ms > _FAR_MS:
                warn = "far: use actor-learner rather than decentralized"
            found = f"to {nodes[b].address}: {found}"
            survey.add(nodes[a], finding("link", found, fail=fail, warn=warn))
            if a == 0 and not fail:
                offsets[nodes[b]] = wired.offset_ms
    # Clocks, as far as they were compared with the first machine's.
    for node, offset in offsets.items():
        fail = "set it: storage and certificates fail" if abs(offset) > _WRONG_MS else ""
        warn = "let NTP set it, or logs cannot be compared" if abs(offset) > _SKEWED_MS else ""
        compared = f"{offset:+.1f} ms from {nodes[0].address}'s"
        survey.add(node, finding("clock", compared, fail=fail, warn=warn))


def _hold(size: int) -> list[Any]:
    """Put an object of a size in bytes into this machine's store; return its reference."""
    return [session.require_ray().put(bytes(size))]


def _fetch(held: list[Any], seconds: float) -> float:
    """Return how long it takes to fetch another machine's object, s."""
    begin = time.perf_counter()
    session.require_ray().get(held[0], timeout=seconds)
    return time.perf_counter() - begin


def _objects(survey: Survey, probes: Mapping[session.RayNode, Any]) -> None:
    """Move a large object to the other one of each pair, and one back to the first."""
    nodes, seconds = survey.nodes, limits().worker_silence
    for pairs in survey.rounds("object"):
        calls = {}
        for source, target in [way for a, b in pairs for way in ((a, b), (b, a))]:
            held = probes[nodes[source]].call.remote(_hold, OBJECT_BYTES)
            calls[source, target] = (nodes[target], _fetch, held, seconds)
        for (source, target), took in survey.ask(2 * seconds, calls).items():
            first, second = nodes[source], nodes[target]
            found, fail = str(took), ""
            if isinstance(took, float):
                found = f"in {took * 1e3:.0f} ms"
            else:
                fail = f"let {second.address} reach {first.address} at port {first.object_port}; "
                fail += "if that is not its address, join with --interface"
            found = f"{OBJECT_BYTES / 1e6:.0f} MB from {first.address}: {found}"
            survey.add(second, finding("object", found, fail=fail))
