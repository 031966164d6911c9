"""N scenarios in one batch: the arrays that the compiled kernel advances, and their set-up.

Links of one batch may have fewer flows than K: the others' rows then stand still.
"""

import sys
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.compiled import CACHE_FOLDER, njit
from distrlcc.control.schemes import LEDBAT, ORACLE
from distrlcc.control.state import CWND, PACING, SCHEMES, STATE_SIZE, scheme_name
from distrlcc.errors import CheckpointError, ConfigError
from distrlcc.files import crc32
from distrlcc.sim import aqm
from distrlcc.sim import layout as col
from distrlcc.sim.reordering import LATE, SCORE
from distrlcc.sim.scenario import JITTERS, Link, Scenario
from distrlcc.sim.trace import Trace, load_trace, require_memory
from distrlcc.transport.recovery import NEVER_LATE
from distrlcc.types import NANOSECONDS, PACKET_BYTES, IntervalStats, copy_state, restore_state

IntArray = NDArray[np.int64]
BROKEN = "a user's scheme raised, or set a window or rate out of bounds, and sends no more"

_STEP = 10_000_000
_MILLISECOND = 1_000_000
_FIRST_RING = 64
_MOST_SPARE = 1 << 22  # opportunities for which there is room before traces that will come need it
_FIELDS = IntervalStats.names()
_STATE = (
    "links times rates rtts losses flows control saved ring scores queues aqm ewmas results "
    "_duration _queue_rings"
)


class Simulator:
    """N links with K flows each, advanced by one compiled call."""

    def __init__(
        self,
        n_links: int,
        n_flows: int = 1,
        *,
        with_ewmas: bool = False,
        with_best: bool = False,
        with_histograms: bool = False,
        log_packets: int = 0,
    ) -> None:
        """Allocate the arrays of N links with K flows each.

        It may keep Indigo's EWMAs (some ns per packet), the oracle's best window after each step,
        and histograms of queueing delays and RTTs. ``log_packets``: first size of the log of every
        packet (one link alone); 0: no log.
        """
        self.n_links, self.n_flows = n_links, n_flows
        n_all = n_links * n_flows
        # What the kernel reads and writes; see `distrlcc.sim.kernel.advance`.
        self.links: IntArray = np.zeros((n_links, col.LINK_COLUMNS), np.int64)
        self.times, self.rates, self.rtts, self.losses = np.zeros((4, n_links, 1), np.int64)
        self.traces: IntArray = np.zeros(1, np.int64)
        self.flows: IntArray = np.zeros((n_all, col.FLOW_COLUMNS), np.int64)
        self.control = np.zeros((n_all, STATE_SIZE))
        self.saved = np.zeros((n_all, STATE_SIZE))
        self.ring: IntArray = np.zeros((n_all * _FIRST_RING, col.RECORD), np.int64)
        self.scores: IntArray = np.zeros((1, SCORE), np.int64)
        self.queues: IntArray = np.zeros(1, np.int64)
        self.aqm = np.zeros((n_links, aqm.COLUMNS))
        self.ewmas = np.zeros((n_all if with_ewmas else 0, 3))
        self.results = np.zeros((n_links, col.LINK_RESULTS))
        counted = n_all if with_histograms else 0
        self.histograms = np.zeros((2, counted, col.HISTOGRAM_BINS), np.int32)
        self.log: IntArray = np.zeros((log_packets + 1 if log_packets else 0, 4), np.int64)
        # Which kernel, and what is used of the arenas of traces, rings and queues.
        self.with_best = with_best
        self._kernel: tuple[Any, ...] | None = None
        self._with_schemes = self._with_aqm = False
        self._duration = np.zeros(n_links)
        self._trace_places: dict[str, tuple[int, int, int]] = {}
        self._traces_used = 0
        self._ring_places, self._queue_places = _Places(n_all * _FIRST_RING), _Places(0)
        self._queue_rings = np.zeros((n_links, 2), np.int64)
        self.flows[:, col.RING_START] = np.arange(n_all) * _FIRST_RING
        self.flows[:, col.RING_MASK] = _FIRST_RING - 1
        self.flows[:, col.PENDING] = -1

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero; raises ConfigError and TraceError."""
        if len(scenario.flows) > self.n_flows:
            raise ValueError(f"{scenario.name} has more flows than the simulator's {self.n_flows}")
        link, row = scenario.link, self.links[n]
        row[:] = 0
        queue = link.queue
        limits = queue.packets, queue.bytes and queue.bytes // PACKET_BYTES
        row[col.LIMIT] = limit = min(limit or col.FOREVER for limit in limits)
        row[col.LOSS_SEED], row[col.FLOWS] = scenario.seed, len(scenario.flows)
        row[col.ACK_JITTER] = round(link.ack_jitter_ms * 1e6)
        row[col.ACK_JITTER_KIND] = JITTERS.index(link.ack_jitter_kind)
        row[col.ACK_TICK] = max(round(link.ack_tick_ms * 1e6), 1)
        row[col.DELAYED_ACKS], row[col.SHAPES_ACKS] = link.delayed_acks, link.shapes_acks
        self._load_schedule(n, link)
        rate = max(int(self.rates[n, 0]), 1)
        row[col.SERVICE] = -(-PACKET_BYTES * 8 * NANOSECONDS // rate)
        if link.trace is not None:
            self._load_trace(row, load_trace(link.trace), round(link.trace_start_s * NANOSECONDS))
        if link.is_live:
            self._load_queue(n, link)
        elif link.trace is None and row[col.SEGMENTS] > 1 and limit < col.FOREVER:
            row[col.QUEUE_RING_START] = start = self._queue_ring(n, limit)
            self.queues[start : start + limit] = -1
        self.results[n] = 0
        self._check_counts(n, scenario)
        self._load_flows(n, scenario)
        sized = any(flow.packets is not None for flow in scenario.flows)
        if link.late_share:
            row[col.LATE_SHARE] = min(int(link.late_share * 2.0**63), 2**63 - 1)
            row[col.LATE_BY] = round(link.late_ms * 1e6)
            if len(self.scores) < len(self.ring):
                self.scores = np.zeros((len(self.ring), SCORE), np.int64)
        if not self._with_aqm and (link.is_live or link.late_share or sized):
            self._with_aqm, self._kernel = True, None
        if self.with_best:
            self._first_best(n)

    def _check_counts(self, n: int, scenario: Scenario) -> None:
        """Refuse a link that carries more packets than a flow can count."""
        row, end = self.links[n], round(scenario.duration_s * NANOSECONDS)
        times = np.minimum(np.append(self.times[n, : row[col.SEGMENTS]], end), end)
        packets = float(self.rates[n, : row[col.SEGMENTS]] @ np.diff(times).astype(float))
        packets /= 8.0 * PACKET_BYTES * NANOSECONDS
        if row[col.IS_TRACE]:
            packets = end / row[col.TRACE_PERIOD] * row[col.TRACE_LENGTH]
        if packets > col.MAX_PACKETS:
            raise ConfigError(
                f"{scenario.name}: its link carries {packets:.3g} packets, more than a flow can "
                f"count ({col.MAX_PACKETS:.3g}); expected a shorter duration_s or a lower rate"
            )

    def _load_schedule(self, n: int, link: Link) -> None:
        self.links[n, col.SEGMENTS] = rows = 1 + len(link.changes)
        if (missing := rows - self.times.shape[1]) > 0:
            for name in ("times", "rates", "rtts", "losses"):
                setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, missing))))
        time, rate, delay, loss = 0.0, link.rate_mbps or 0.0, link.delay_ms, link.loss
        for k, change in enumerate((None, *link.changes)):
            if change is not None:
                time = change.at_s
                rate = rate if change.rate_mbps is None else change.rate_mbps
                delay = delay if change.delay_ms is None else change.delay_ms
                loss = loss if change.loss is None else change.loss
            self.times[n, k], self.rates[n, k] = round(time * NANOSECONDS), round(rate * 1e6)
            self.rtts[n, k] = 2 * round(delay * 1e6)
            self.losses[n, k] = min(int(loss * 2.0**63), 2**63 - 1)

    def _load_trace(self, row: IntArray, trace: Trace, start_ns: int) -> None:
        place, length, _ = self._place_trace(trace)
        times = self.traces[place : place + length]  # as they were when the trace came first
        shift = start_ns % int(times[-1])
        first = int(np.searchsorted(times, shift, side="right"))
        row[col.IS_TRACE] = 1
        row[col.TRACE_START], row[col.TRACE_LENGTH] = place, length
        row[col.TRACE_PERIOD], row[col.TRACE_SHIFT] = times[-1], shift
        row[[col.CURSOR, col.NEXT]] = first
        row[[col.CURSOR_ROW, col.NEXT_ROW]] = first
        row[[col.CURSOR_BASE, col.NEXT_BASE]] = -shift

    def _place_trace(self, trace: Trace) -> tuple[int, int, int]:
        """Return where a trace stands in the arena, its length, opportunities, and its checksum."""
        found = self._trace_places.get(trace.name)
        if found is None:
            place, length = self._traces_used, len(trace.times_ns)
            found = place, length, crc32("", [trace.times_ns])
            if place + length > len(self.traces):
                require_memory(trace.name, 8 * (place + length))
            self._trace_places[trace.name] = found
            self._traces_used += length
            if self._traces_used > len(self.traces):
                room = min(self._traces_used, _MOST_SPARE)
                self.traces = _enlarged(self.traces, self._traces_used + room)
            self.traces[place : self._traces_used] = trace.times_ns
        return found

    def _load_queue(self, n: int, link: Link) -> None:
        row, queue = self.links[n], link.queue
        row[col.LIVE] = 1
        row[col.MARK] = col.FOREVER if queue.times_ms or queue.mark is None else queue.mark
        row[col.QUEUE_RING_START] = self._queue_ring(n, _FIRST_RING * col.QUEUED)
        room = int(self._queue_rings[n, 1]) // col.QUEUED
        row[col.QUEUE_MASK] = (1 << room.bit_length() - 1) - 1
        row[col.HOP_JITTER] = round(link.jitter_ms * 1e6)
        row[col.HOP_JITTER_KIND] = JITTERS.index(link.jitter_kind)
        row[col.POLICER_RATE] = round((link.policer_mbps or 0.0) * 1e6)
        burst = (link.policer_packets or 0) * PACKET_BYTES * 8 * NANOSECONDS
        row[[col.POLICER_BURST, col.POLICER_TOKENS]] = burst
        if queue.times_ms:
            first, second = (value * _MILLISECOND for _, value in queue.times_ms)
            codel = queue.kind == "codel"
            row[col.AQM] = col.CODEL if codel else col.PIE
            pie = aqm.pie_row(first, second, _MILLISECOND)
            self.aqm[n] = aqm.codel_row(first, second) if codel else pie

    def _queue_ring(self, n: int, size: int) -> int:
        """Return where the link's new ring begins in `queues`; it has at least this size."""
        start, had = (int(x) for x in self._queue_rings[n])
        if had:
            self._queue_places.give(start, had)
        size = 1 << (size - 1).bit_length()
        self._queue_rings[n] = start, _ = self._queue_places.take(size), size
        if self._queue_places.used > len(self.queues):
            self.queues = _enlarged(self.queues, 2 * self._queue_places.used)
        return start

    def _load_flows(self, n: int, scenario: Scenario) -> None:
        numbers = np.arange(n * self.n_flows, (n + 1) * self.n_flows)
        rows = self.flows[numbers[0] : numbers[-1] + 1]
        # Each flow goes back to its first ring; others may need the one that it had.
        for start, mask in rows[:, [col.RING_START, col.RING_MASK]].tolist():
            if mask >= _FIRST_RING:
                self._ring_places.give(start, mask + 1)
        rows[:] = 0
        rows[:, col.RING_START], rows[:, col.RING_MASK] = numbers * _FIRST_RING, _FIRST_RING - 1
        rows[:, col.PENDING] = -1
        if self.histograms.shape[1]:
            self.histograms[:, n * self.n_flows : (n + 1) * self.n_flows] = 0
        for k, flow in enumerate(scenario.flows):
            row, control = rows[k], self.control[n * self.n_flows + k]
            row[col.SCHEME] = SCHEMES[flow.scheme]
            if row[col.SCHEME] > ORACLE and not self._with_schemes:
                self._with_schemes, self._kernel = True, None
            row[[col.START, col.STOP]] = flow.span_ns
            row[col.EXTRA_RTT] = round(flow.extra_rtt_ms * 1e6)
            row[col.FLOW_SEED] = scenario.seed * 64 + k
            row[col.SIZE] = col.FOREVER if flow.packets is None else flow.packets
            row[[col.LARGEST, col.LARGEST_LOST, col.LARGEST_TOLD]] = -1
            row[[col.LATENESS, col.LATE_BEFORE]] = NEVER_LATE
            row[col.LOSS_TIME] = col.FOREVER
            row[col.ECN] = flow.takes_marks and scenario.link.queue.mark is not None
            control[:] = 0.0
            control[[CWND, PACING]] = flow.first_held

    def _first_best(self, n: int) -> None:
        from distrlcc.sim import capacity  # noqa: PLC0415 - compiles on first use

        first = n * self.n_flows
        schedule = self.times[n], self.rates[n], self.rtts[n], self.losses[n]
        extra = self.flows[first, col.EXTRA_RTT]
        best = capacity.best_window(self.links[n], schedule, self.traces, extra, 0, _STEP)
        sharing = capacity.senders(self.flows, first, first + self.n_flows, 0, _STEP)
        self.results[n, col.BEST_CWND] = best / sharing

    def advance(self, step_ns: int | IntArray) -> None:
        """Advance every link by a step, ns, one for all or one for each; raises ConfigError."""
        until = self.links[:, col.NOW] + step_ns
        self._duration[:] = step_ns
        while True:
            kernel, rules, schemes, ewmas, histograms = self._kernel or self._choose_kernel()
            log = self.log if self.log.size else None
            links = self.links, self.times, self.rates, self.rtts, self.losses, self.traces
            rows = self.flows, self.control, self.saved
            flows = *rows, self.ring, self.scores, self.queues, rules
            results = self.results, self.with_best, histograms, log
            stuck = kernel(until, *links, *flows, schemes, ewmas, *results)
            if stuck == -1:
                return
            if stuck < 0:
                raise ConfigError(
                    f"link {-2 - stuck}: a flow's counts are full: it sent {col.MAX_PACKETS:.3g} "
                    "packets, or they waited for 292 years in all; expected a smaller window or "
                    "rate of it"
                )
            self._make_room(stuck)

    def _choose_kernel(self) -> tuple[Any, ...]:
        """Return the kernel, `aqm`, `schemes`, EWMAs, histograms; what is absent costs nothing."""
        ewmas, histograms = (a if a.size else None for a in (self.ewmas, self.histograms))
        logs = self.log.size > 0
        schemes = True if self._with_schemes or histograms is not None or logs else None
        rules = self.aqm if self._with_aqm or logs else None
        given = (each is not None for each in (rules, schemes, ewmas, histograms))
        variant = "-".join(str(each) for each in (*given, logs))
        self._kernel = _compiled_kernel(variant.lower()), rules, schemes, ewmas, histograms
        return self._kernel

    def _make_room(self, n: int) -> None:
        if self.log.shape[0] and self.log[0, 0] + 1 >= self.log.shape[0]:
            self.log = _enlarged(self.log, 2 * len(self.log))
            return
        link, rows = self.links[n], self.flows[n * self.n_flows : (n + 1) * self.n_flows]
        if link[col.LIVE] and link[col.HOP_TAIL] - link[col.QUEUE_HEAD] > link[col.QUEUE_MASK]:
            self._enlarge_queue(n)
            return
        row = rows[np.argmax(rows[:, col.PENDING] >= 0)]
        old, size = int(row[col.RING_START]), int(row[col.RING_MASK]) + 1
        start = self._ring_places.take(2 * size)
        if self._ring_places.used > len(self.ring):
            self.ring = _enlarged(self.ring, max(self._ring_places.used, len(self.ring) * 3 // 2))
            if len(self.scores) > 1:
                self.scores = _enlarged(self.scores, len(self.ring))
        _move(self.ring, row[col.HEAD], row[col.TAIL], old, start, size)
        if link[col.LATE_SHARE]:
            _move(self.scores[:, :LATE], row[col.LOW], row[col.SENT], old, start, size)
            late = row[col.LATE_HEAD], row[col.LATE_TAIL]
            _move(self.scores[:, LATE:], *late, old, start, size)
        if size > _FIRST_RING:
            self._ring_places.give(old, size)
        row[col.RING_START], row[col.RING_MASK] = start, 2 * size - 1

    def _enlarge_queue(self, n: int) -> None:
        """Move a live link's packets together, into a ring of twice the size if half full."""
        row, columns = self.links[n], np.arange(col.QUEUED)
        start, mask = int(row[col.QUEUE_RING_START]), int(row[col.QUEUE_MASK])
        ends = (col.QUEUE_HEAD, col.QUEUE_TAIL), (col.HOP_HEAD, col.HOP_TAIL)
        counts = np.concatenate([np.arange(row[first], row[last]) for first, last in ends])
        packets = self.queues[start + (counts[:, None] & mask) * col.QUEUED + columns]
        row[[col.QUEUE_HEAD, col.QUEUE_TAIL]] += row[col.HOP_HEAD] - row[col.QUEUE_TAIL]
        if len(packets) > mask // 2:
            mask = 2 * mask + 1
            start = self._queue_ring(n, (mask + 1) * col.QUEUED)
        counts = np.arange(row[col.QUEUE_HEAD], row[col.HOP_TAIL])
        self.queues[start + (counts[:, None] & mask) * col.QUEUED + columns] = packets
        row[col.QUEUE_RING_START], row[col.QUEUE_MASK] = start, mask

    def broken(self) -> IntArray:
        """Return the flows whose scheme is `BROKEN`: the window is 0, or was until a timeout."""
        theirs = np.flatnonzero(self.flows[:, col.SCHEME] > LEDBAT)
        if not len(theirs):
            return theirs
        windows, started = self.control[theirs, CWND], self.flows[theirs, col.STARTED] > 0
        broken: IntArray = theirs[(started & (windows == 0)) | np.isnan(windows)]
        return broken

    def stats(self, which: IntArray | None = None) -> IntervalStats:
        """Return what flows saw in the newest step: those named, or all ``[N * K]``."""
        which = np.arange(len(self.flows)) if which is None else which
        rows = np.zeros((len(_FIELDS), len(which)))
        _fill_stats(which, self._duration, self.flows, self.control, self.ewmas, rows)
        return IntervalStats(*rows)

    def completions(self) -> NDArray[np.float64]:
        """Return when flows of a size were complete, s, ``[N * K]``; NaN: not yet, or never."""
        times = self.flows[:, col.COMPLETED]
        return np.where(times > 0, times / NANOSECONDS, np.nan)

    def state_dict(self) -> dict[str, Any]:
        """Return every array that changes, for a checkpoint."""
        state = copy_state(self, _STATE)
        for name in ("ring", "scores"):
            state[name] = getattr(self, name)[: self._ring_places.used].copy()
        state["queues"] = self.queues[: self._queue_places.used].copy()
        state["ring_places"] = self._ring_places.state()
        state["queue_places"] = self._queue_places.state()
        state["traces"] = {name: found[2] for name, found in self._trace_places.items()}
        # The number of a user's scheme is an address, of which another process knows nothing.
        numbers = state["flows"][:, col.SCHEME]
        theirs = np.unique(numbers[numbers > LEDBAT]).tolist()
        for place, number in enumerate(theirs):
            numbers[numbers == number] = -1 - place
        state["schemes"] = [scheme_name(number) for number in theirs]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of the same size; raises CheckpointError at another version's."""
        for name in ("links", "flows", "results"):
            if np.shape(state[name])[1] != getattr(self, name).shape[1]:
                raise CheckpointError(
                    "the checkpoint's simulated links are of another distrlcc; use the one that "
                    "wrote it, or begin anew from its policy (the key start_from)"
                )
        self._ring_places = _Places.of(state["ring_places"])
        self._queue_places = _Places.of(state["queue_places"])
        self._trace_places, self._traces_used = {}, 0
        for name in state["traces"]:  # names alone, in older ones
            *_, found = self._place_trace(load_trace(name))
            if isinstance(state["traces"], dict) and state["traces"][name] != found:
                raise CheckpointError(f"{name} is not the checkpoint's trace any more; restore it")
        restore_state(self, _STATE, state)
        numbers = self.flows[:, col.SCHEME]
        for place, name in enumerate(state.get("schemes", [])):
            numbers[numbers == -1 - place] = SCHEMES[name]
        self._with_schemes = bool((self.flows[:, col.SCHEME] > ORACLE).any())
        sizes = self.flows[:, col.SIZE]
        sized = (sizes > 0) & (sizes < col.FOREVER)
        special = self.links[:, [col.LIVE, col.LATE_SHARE]]
        self._with_aqm = bool(special.any() or sized.any())
        self._kernel = None


class _Places:
    """Places in an array that grows as it must; what is given back is taken again."""

    def __init__(self, used: int) -> None:
        self.used = used
        self._free: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        """Return where a place of this size begins."""
        if free := self._free.get(size):
            return free.pop()
        start, self.used = self.used, self.used + size
        return start

    def give(self, start: int, size: int) -> None:
        """Give a place back."""
        self._free.setdefault(size, []).append(start)

    def state(self) -> IntArray:
        """Return all as rows of (size, start), of which the first is of what is used."""
        free = [(size, start) for size in sorted(self._free) for start in self._free[size]]
        return np.array([(self.used, 0), *free], np.int64)

    @classmethod
    def of(cls, state: Any) -> "_Places":
        """Return what `state` gave."""
        (used, _), *free = np.asarray(state).tolist()
        places = cls(used)
        for size, start in free:
            places.give(start, size)
        return places


@njit
def _fill_stats(
    which: Any, durations: Any, flows: Any, control: Any, ewmas: Any, rows: Any
) -> None:
    """Fill the rows of `IntervalStats`, ``[17, N]``, of the flows ``which``, ``[N]``."""
    n_flows = len(flows) // len(durations)
    for n in range(len(which)):
        f = which[n]
        flow, row = flows[f], rows[:, n]
        row[0] = durations[f // n_flows] / NANOSECONDS
        for k in range(4):  # sent to timeouts
            row[1 + k] = flow[col.STEP_SENT + k]
        for k in range(3):  # rtt_sum to rtt_max
            row[5 + k] = flow[col.STEP_RTT_SUM + k] / NANOSECONDS
        row[8], row[9] = flow[col.LAST_RTT] / NANOSECONDS, flow[col.MIN_RTT] / NANOSECONDS
        row[10], row[11] = control[f, CWND], control[f, PACING]
        row[12] = flow[col.SENT] - flow[col.NEXT_ACK]
        for k in range(3 if len(ewmas) else 0):
            row[13 + k] = ewmas[f, k]
        row[16] = flow[col.STEP_SPURIOUS]


def _move(arena: IntArray, first: int, last: int, old: int, new: int, size: int) -> None:
    """Move a ring's records of the counts [first, last) to a place of twice its size."""
    counts = np.arange(first, last)
    arena[new + (counts & (2 * size - 1))] = arena[old + (counts & (size - 1))]


def _enlarged(array: IntArray, length: int) -> IntArray:
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), np.int64)])


_PARTS = "queue rules", "schemes", "averages", "histograms", "a log"  # of a variant of the kernel


@cache
def _compiled_kernel(variant: str) -> Any:
    """Import the kernel; say so when a variant of it must be compiled first."""
    marker = CACHE_FOLDER and CACHE_FOLDER / f"variant-{variant}"
    if marker is None or not marker.exists():
        given = compress(_PARTS, [each == "true" for each in variant.split("-")])
        what = f"the simulator, with {', '.join(given) or 'windows alone'}"
        print(f"compiling {what} (some seconds, once) ...", file=sys.stderr)  # noqa: T201
        if marker is not None:
            marker.touch()
    from distrlcc.sim.kernel import advance  # noqa: PLC0415 - compiles

    return advance
