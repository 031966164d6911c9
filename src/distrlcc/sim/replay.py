"""Replay of a real mahimahi log: its arrivals go into the link model, everything else must match.

A log has lines ``T + SIZE`` (arrival), ``T # 1504`` (opportunity), ``T - SIZE DELAY`` (departure)
and ``T d PACKETS BYTES`` (drop), times in ms, after ``#`` header lines that name the queue and the
base timestamp, which is the trace's time zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import TraceError
from distrlcc.sim.link import TraceLink
from distrlcc.sim.queues import DropHead, DropTail, Packet, Queue
from distrlcc.sim.trace import Trace

_LINE = re.compile(r"(\d+) (?:([+#]) (\d+)|(-) (\d+) (\d+)|(d) (\d+) (\d+))$")


@dataclass(frozen=True)
class Log:
    """A mahimahi log of one direction."""

    queue: str
    """``droptail``, ``drophead`` or ``infinite``."""
    packets: int | None
    bytes: int | None
    base: int
    """Time of the trace's zero, ms."""
    events: tuple[tuple[int, str, int, int], ...]
    """(time in ms, one of ``+#-d``, size or packets, delay or bytes)."""
    port: int | None = None
    """The port whose packets alone stand in it; None: all packets do."""


@dataclass(frozen=True)
class Replay:
    """What a replay found."""

    arrivals: int
    opportunities: int
    departures: int
    drops: int
    mismatches: tuple[str, ...]


def read_log(path: Path) -> Log:
    """Read a log.

    Raises:
        TraceError: The file is no mahimahi log, or of a queue that is not modelled.
    """
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is no regular file; expected a log of mm-link")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as a mahimahi log ({error})") from None
    header = "\n".join(line for line in lines if line.startswith("#"))
    base = re.search(r"# base timestamp: (-?\d+)", header)
    port = re.search(r"^# port: (\d+)", header, re.MULTILINE)
    queue = re.search(r"# queue: (\w+)(?: \[(.*)\])?", header)
    if base is None or queue is None:
        raise TraceError(
            f"{path}: no '# queue:' and '# base timestamp:' header; expected a log of mm-link"
        )
    if queue[1] not in ("droptail", "drophead", "infinite"):
        raise TraceError(f"{path}: queue {queue[1]!r} is not modelled; expected droptail, drophead "
                         "or infinite")  # fmt: skip
    limits = dict(re.findall(r"(packets|bytes)=(\d+)", queue[2] or ""))
    events = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        match = _LINE.match(line.strip())
        if match is None:
            raise TraceError(f"{path}, line {number}: {line[:60]!r} is no line of a mahimahi log")
        time, *rest = (part for part in match.groups() if part is not None)
        events.append((int(time), rest[0], int(rest[1]), int(rest[2]) if len(rest) > 2 else 0))
    return Log(
        queue[1],
        int(limits["packets"]) if "packets" in limits else None,
        int(limits["bytes"]) if "bytes" in limits else None,
        int(base[1]),
        tuple(events),
        int(port[1]) if port else None,
    )


def replay(log: Log, trace: Trace) -> Replay:
    """Feed a log's arrivals to the link model and compare all that it says happened.

    Raises:
        TraceError: Not all packets stand in the log.
    """
    if log.port is not None:
        raise TraceError(
            f"the log holds the packets of port {log.port} alone, which does not replay; give the "
            "link's whole log"
        )
    queue: Queue = (DropHead if log.queue == "drophead" else DropTail)(log.packets, log.bytes)
    found: list[tuple[int, str, int, int]] = []
    times = (trace.times_ns // 1_000_000).tolist()
    link = TraceLink(times, queue, base=log.base)
    while log.events and link.next_time() < log.events[0][0]:  # a log may begin inside its trace
        link.step()
    link.on_opportunity = lambda time: found.append((time, "#", 1504, 0))

    def use_until(now: int) -> None:
        while link.next_time() <= now:
            time = link.next_time()
            found.extend((time, "-", p.size, time - p.arrival) for p in link.step())

    for time, kind, size, _ in log.events:
        if kind != "+":
            continue
        use_until(time)
        found.append((time, "+", size, 0))
        dropped = link.arrive(Packet(size, time))
        if dropped:
            found.append((time, "d", len(dropped), sum(p.size for p in dropped)))
    if log.events:
        use_until(log.events[-1][0])
    return _compare(log, found)


def _compare(log: Log, found: list[tuple[int, str, int, int]]) -> Replay:
    mismatches = []
    counts = {kind: sum(e[1] == kind for e in log.events) for kind in "+#-d"}
    for kind, name in (("#", "opportunity"), ("-", "departure"), ("d", "drop")):
        said = [e for e in log.events if e[1] == kind]
        ours = [e for e in found if e[1] == kind]
        for k in range(max(len(said), len(ours))):
            a = said[k] if k < len(said) else None
            b = ours[k] if k < len(ours) else None
            if a != b:
                mismatches.append(f"{name} {k}: log {a}, model {b}")
    return Replay(counts["+"], counts["#"], counts["-"], counts["d"], tuple(mismatches))
