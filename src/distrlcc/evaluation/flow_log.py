"""A flow of real packets by its logs: the emulated link's, and its sender's report.

The link's log says when each packet came, waited, left or was dropped, the same for every sender.
The RTT is that wait and the path's delay both ways. Windows and definitions are those of
`distrlcc.evaluation.runner`: beside other flows utilisation is the link's, all else the flow's own,
whose packets stand in a log of their own.

The kernel's TCP is sampled each 10 ms (TCP_INFO); our senders write down each of their steps. Both
smooth the RTT as RFC 6298 says, over each acknowledgement, so unlike the link's log theirs includes
delays of the two ends' machines.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distrlcc.errors import OutputError
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.runner import WARMUP_S
from distrlcc.evaluation.scores import Series, bucket_edges, bucket_sums, share_of
from distrlcc.net.emulator.direction import FULL_BYTES
from distrlcc.sim.link import Log, read_log
from distrlcc.sim.reference import capacity, conditions_at, service_at
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.types import NANOSECONDS, PACKET_BYTES, FloatArray

_MBIT_PER_BYTE_MS = 8e-3  # Mbit/s of a byte per ms


@dataclass(frozen=True)
class Departures:
    """Packets of a flow that left the bottleneck; every array is float64 ``[P]``."""

    time_ms: FloatArray  # when, on the log's clock
    bytes: FloatArray
    base_ms: FloatArray  # RTT without a queue: the delay both ways and the time in service then
    queueing_ms: FloatArray
    lost: FloatArray  # probability of random loss after the bottleneck, which the log does not show


@dataclass(frozen=True)
class FlowLog:
    """The first flow's log; all times are the log's, ms."""

    scenario: Scenario
    whole: Log  # log of all flows
    own: Log  # log of the flow; the same where it is alone
    zero_ms: float  # when the scenario began: before the link's time if no flow starts at once

    @property
    def begin_ms(self) -> float:
        """When the flow starts."""
        return self.zero_ms + 1e3 * self.scenario.flows[0].start_s

    @property
    def warm_ms(self) -> float:
        """When its first second is over, or half of it if it runs less than two."""
        return self.begin_ms + min(1e3 * WARMUP_S, (self.end_ms - self.begin_ms) / 2)

    @property
    def end_ms(self) -> float:
        """When the flow ends, or the scenario."""
        stop_s, end_s = self.scenario.flows[0].stop_s, self.scenario.duration_s
        return self.zero_ms + 1e3 * (end_s if stop_s is None else min(stop_s, end_s))

    def departures(self, begin_ms: float) -> Departures:
        """Return the flow's packets that left from a time on."""
        times, sizes, waits = events_of(self.own, "-")
        chosen = (begin_ms <= times) & (times < self.end_ms)
        times, sizes, waits = times[chosen], sizes[chosen], waits[chosen]
        path, service, lost = _link_at(self.scenario.link, times - self.zero_ms)
        # A packet that arrives in a ms leaves in a later one: half of one is the log's grain.
        queueing = np.maximum(waits - np.maximum(service, 1.0), 0.0)
        return Departures(times, sizes, np.maximum(path + service, 1.0), queueing, lost)

    def offered_bytes(self, edges_ms: FloatArray) -> FloatArray:
        """Return what could leave in buckets; what came after the log's end is the link's."""
        offered = binned(edges_ms, events_of(self.whole, "#")[0]) * float(PACKET_BYTES)
        last = self.whole.events[-1][0] + 1
        for place in np.flatnonzero(edges_ms[1:] > last):
            begin, end = (
                round(1e6 * (time - self.zero_ms))
                for time in (max(float(edges_ms[place]), last), float(edges_ms[place + 1]))
            )
            offered[place] += capacity(self.scenario.link, begin, end) / NANOSECONDS / 8.0
        return offered


def read_flow_log(path: Path, scenario: Scenario, *, own: Path | None = None) -> FlowLog:
    """Read an uplink's log as the first flow's, whose own packets stand in ``own`` beside others.

    The first full packet belongs to the flow that starts first.
    """
    whole = read_log(path)
    zero = _first_full(whole, path) - 1e3 * min(flow.start_s for flow in scenario.flows)
    log = whole
    if own is not None:
        log = read_log(own)
        _first_full(log, own)
    return FlowLog(scenario, whole, log, zero)


def score_log(log: FlowLog) -> dict[str, float]:
    """Return a flow's scores by its log, as `distrlcc.evaluation.scores` defines them."""
    edges = np.array([log.begin_ms, log.warm_ms, log.end_ms])
    left, sizes, _ = events_of(log.whole, "-")
    carried, offered = binned(edges, left, sizes), log.offered_bytes(edges)
    first, offered = share_of(carried, offered), np.maximum(offered, 1.0)
    # Losses: what the queue dropped, and what was lost at random after it.
    dropped = binned(edges, *events_of(log.own, "d")[:2])[1]
    excess = dropped / max(binned(edges, events_of(log.own, "+")[0])[1], dropped, 1.0)
    gone = log.departures(log.warm_ms)
    random_loss = float(gone.lost.mean()) if len(gone.lost) else 0.0
    arrived = float(gone.bytes @ (1.0 - gone.lost))
    utilisation = share = carried[1] / offered[1]
    if log.own is not log.whole:  # the share of what was offered that the flow's receiver got
        share = arrived / offered[1]
    # Delays: there are none where nothing was delivered.
    base = mean = p95 = mean_rtt = p95_rtt = math.nan
    if len(gone.lost):
        rtts, base = gone.queueing_ms + gone.base_ms, float(gone.base_ms.mean())
        mean, mean_rtt = float(gone.queueing_ms.mean()), float(rtts.mean())
        p95, p95_rtt = (float(np.percentile(x, 95.0)) for x in (gone.queueing_ms, rtts))
    return {
        "throughput_mbps": arrived * _MBIT_PER_BYTE_MS / (log.end_ms - log.warm_ms),
        "utilisation": float(utilisation),
        "first_second_utilisation": float(first[0]),
        "mean_queueing_delay_ms": mean,
        "p95_queueing_delay_ms": p95,
        "mean_rtt_ms": mean_rtt,
        "p95_rtt_ms": p95_rtt,
        "queueing_delay_rtt": mean / base if base else math.nan,
        "loss": float(excess + (1.0 - excess) * random_loss),
        "excess_loss": float(excess),
        "guarded": math.nan,
        "power": float(share * base / mean_rtt) if mean_rtt > 0 else 0.0,
    }


def link_series(log: FlowLog, sender: "SenderLog | None", contender: Contender) -> Series:
    """Return a flow's series from its start on; the sender may report nothing."""
    edges_s = bucket_edges((log.end_ms - log.begin_ms) / 1e3)
    # The log's grain is the ms, and between two of them an opportunity is in either bucket.
    edges_ms = np.round(log.begin_ms + 1e3 * edges_s)
    lengths_ms = np.maximum(np.diff(edges_ms), 1.0)
    gone = log.departures(log.begin_ms)
    packets = binned(edges_ms, gone.time_ms)
    delays = binned(edges_ms, gone.time_ms, gone.queueing_ms)
    arrived = binned(edges_ms, gone.time_ms, gone.bytes * (1.0 - gone.lost))
    # Little's law: packets that wait are their rate times their wait.
    times, _, waits = events_of(log.whole, "-")
    return Series(
        scheme=contender.name,
        learned=contender.learned,
        link=log.scenario.name,
        edges_s=edges_s,
        capacity_mbps=log.offered_bytes(edges_ms) * _MBIT_PER_BYTE_MS / lengths_ms,
        rate_mbps=arrived * _MBIT_PER_BYTE_MS / lengths_ms,
        queueing_delay_ms=np.where(packets > 0, delays / np.maximum(packets, 1), np.nan),
        queue_packets=binned(edges_ms, times, waits) / lengths_ms,
        sender=None if sender is None else sender.over(edges_s),
    )


@dataclass(frozen=True)
class SenderLog:
    """A sender's report; every array float64 ``[T]``, one element for each step or sample."""

    time_s: FloatArray  # end of the step, since the flow began
    cwnd_packets: FloatArray
    smoothed_rtt_ms: FloatArray  # NaN before the first sample
    sent_packets: FloatArray  # until then, with those sent again; 0: nothing is ever sent again
    retransmitted_packets: FloatArray
    guarded: FloatArray  # 1 where the guard held a lower window than chosen; NaN: it is not said

    def over(self, edges_s: FloatArray) -> dict[str, FloatArray]:
        """Return `SENDER_METRICS`, and ``guarded``, in B buckets with edges ``[B + 1]``."""
        sent, again = (
            np.diff(np.interp(edges_s, self.time_s, counts))
            for counts in (self.sent_packets, self.retransmitted_packets)
        )
        return {
            "mean_cwnd_packets": self._mean(edges_s, self.cwnd_packets),
            "mean_smoothed_rtt_ms": self._mean(edges_s, self.smoothed_rtt_ms),
            "retransmitted_share": np.where(sent > 0, again / np.where(sent > 0, sent, 1), np.nan),
            "guarded": self._mean(edges_s, self.guarded),
        }

    def _mean(self, edges_s: FloatArray, values: FloatArray) -> FloatArray:
        """Return means over time of what is defined; NaN where nothing is."""
        seconds = np.where(np.isfinite(values), np.diff(self.time_s, prepend=0.0), 0.0)
        lengths = bucket_sums(edges_s, self.time_s, seconds)
        sums = bucket_sums(edges_s, self.time_s, np.where(seconds > 0, values, 0.0) * seconds)
        return np.where(lengths > 1e-9, sums / np.maximum(lengths, 1e-9), np.nan)


def read_sender_log(path: Path, *, kernel: bool) -> SenderLog:
    """Read JSON: the first flow of `distrlcc.net.kernel.tcp_flow`, or ``distrlcc send --json``."""
    found = json.loads(path.read_text(encoding="utf-8"))
    steps = found[0]["samples_columns"] if kernel else found["steps_columns"]
    columns = {name: np.array(values, float) for name, values in steps.items()}
    if kernel:
        names = "time_s cwnd_packets smoothed_rtt_ms sent_packets retransmitted_packets"
        time, cwnd, rtt, sent, again = (columns[name] for name in names.split())
        guarded = np.full(len(time), np.nan)
    else:
        names = "time cwnd smoothed_rtt guarded"
        time, cwnd, rtt, guarded = (columns[name] for name in names.split())
        rtt, sent, again = 1e3 * rtt, np.zeros(len(time)), np.zeros(len(time))
    rtt = np.where(rtt > 0, rtt, np.nan)  # 0: no sample yet
    return SenderLog(time, cwnd, rtt, sent, again, guarded)


def events_of(log: Log, kind: str) -> FloatArray:
    """Return times, ms, sizes, bytes (of drops packets), and waits, ms, of one kind's lines."""
    found = [(time, size, wait) for time, which, size, wait in log.events if which == kind]
    return np.array(found, float).reshape(-1, 3).T


def binned(edges: FloatArray, times: FloatArray, values: FloatArray | None = None) -> FloatArray:
    """Sum values, or count, over buckets ``[B]`` that end before their right edges."""
    places = np.searchsorted(edges, times, side="right") - 1
    inside = (places >= 0) & (places < len(edges) - 1)
    weights = None if values is None else values[inside]
    return np.bincount(places[inside], weights, len(edges) - 1).astype(float)


def _first_full(log: Log, path: Path) -> int:
    """Return when the first full packet came, ms; what shakes hands is smaller."""
    for time, kind, size, _ in log.events:
        if kind == "+" and size >= FULL_BYTES:
            return time
    whose = "" if log.port is None else f" to port {log.port}"
    raise OutputError(f"{path}: no full packet{whose} crossed the link; did the sender start?")


def _link_at(link: Link, times_ms: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what packets that left then met: the delay both ways, ms, service, ms, and loss."""
    begins = [0, *(round(change.at_s * NANOSECONDS) for change in link.changes)]
    rows = []
    for begin in begins:
        delay, loss = conditions_at(link, begin)
        rows.append((2e-6 * delay, 1e-6 * service_at(link, begin + 1), loss))
    places = np.searchsorted(begins, 1e6 * times_ms, side="right") - 1
    path, served, lost = np.array(rows)[np.maximum(places, 0)].T
    return path, served, lost
