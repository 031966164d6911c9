"""A scenario: one bottleneck link, the flows that share it, and for how long.

Declarative and frozen, so that it can be written to TOML and read back. For instance::

    name = "commuter"
    duration_s = 20.0

    [link]
    rate_mbps = 12.0
    delay_ms = 20.0                # one way
    queue_packets = 100            # or queue_bytes; neither: infinite
    changes = [{at_s = 8.0, rate_mbps = 4.0}, {at_s = 12.0, delay_ms = 35.0}]

    [[flows]]
    scheme = "agent"               # the policy; or cubic, bbr, ...

    [[flows]]
    scheme = "cubic"
    start_s = 5.0
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, get_args

from distrlcc.config import check_fields, check_types
from distrlcc.control.state import INITIAL_CWND, SCHEMES
from distrlcc.errors import ConfigError
from distrlcc.sim.layout import FOREVER
from distrlcc.sim.queues import QueueSpec, parse_queue
from distrlcc.types import NANOSECONDS, PACKET_BYTES

MIN_RATE_MBPS = 1e-3
MAX_RATE_MBPS = 400_000.0
MAX_DELAY_MS = 60_000.0
MAX_LATE_MS = 1_000.0
JitterKind = Literal["uniform", "normal", "exponential", "correlated", "bursts"]
JITTERS: tuple[JitterKind, ...] = get_args(JitterKind)
"""Kinds of jitter of a scale J; none lets packets overtake.

``uniform``: each packet waits for a time of its own from 0 to J. ``normal``: for the mean of four
such times. ``exponential``: half of the packets wait for more than J / 8, and each further J / 8
halves their number again. ``correlated``: what all wait wanders on straight lines between times
from 0 to J, one in each 4 J. ``bursts``: in each 4 J comes a pause of 0 to J, and what would come
in it comes at its end, as on Wi-Fi.
"""
MAX_QUEUE_PACKETS = 10_000_000
MAX_POLICER_PACKETS = 100_000
MAX_SEED = 2**48


def parse_reorder(text: str | None) -> tuple[float, float]:
    """Return probability and lateness, ms, of ``P:MS``; zeros for None; raises ConfigError."""
    if text is None:
        return 0.0, 0.0
    share, _, late = text.partition(":")
    try:
        values = float(share), float(late)
    except ValueError:
        values = math.nan, math.nan
    if not (0 < values[0] <= 1 and 0 < values[1] <= MAX_LATE_MS):
        raise ConfigError(
            f"reorder is {text!r}; expected P:MS, a probability up to 1 and a lateness up to "
            f"{MAX_LATE_MS:g} ms, such as 0.2:6"
        )
    return values


def parse_jitter(text: str | None) -> tuple[JitterKind, float]:
    """Return kind and scale, ms, of ``MS`` or ``KIND:MS``; zeros for None; raises ConfigError."""
    if text is None:
        return "uniform", 0.0
    name, colon, scale = text.rpartition(":")
    with suppress(ValueError):
        kind = JITTERS[JITTERS.index(name if colon else "uniform")]
        # A kind without a scale would say nothing.
        if 0 <= float(scale) <= MAX_LATE_MS and (float(scale) > 0 or not colon):
            return kind, float(scale)
    raise ConfigError(
        f"jitter is {text!r}; expected MS or KIND:MS, up to {MAX_LATE_MS:g} ms, of the kinds "
        f"{', '.join(JITTERS)}"
    )


@dataclass(frozen=True)
class Change:
    """A change of the link at a time; what is None stays as it was."""

    at_s: float
    rate_mbps: float | None = None
    """New rate; 0 is an outage. Trace links take none."""
    delay_ms: float | None = None
    loss: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_fields(self, "at_s", 1e-9, 1e6, prefix="changes.")
        if self.rate_mbps != 0:
            check_fields(self, "rate_mbps", MIN_RATE_MBPS, MAX_RATE_MBPS, prefix="changes.")
        check_fields(self, "delay_ms", 0, MAX_DELAY_MS, prefix="changes.")
        check_fields(self, "loss", 0, 1, prefix="changes.")
        if (self.rate_mbps, self.delay_ms, self.loss) == (None, None, None):
            raise ConfigError("changes nothing; expected rate_mbps, delay_ms or loss beside at_s")


@dataclass(frozen=True)
class Link:
    """A bottleneck: a rate or a trace, a delay, a queue, random loss, a schedule of changes."""

    rate_mbps: float | None = None
    """Rate, Mbit/s; 0 is silence until a change; or give `trace`."""
    trace: str | None = None
    """A mahimahi trace file, or a generator's name (see `distrlcc.sim.trace`)."""
    trace_start_s: float = 0.0
    """Time within the trace at which the scenario starts, s."""
    delay_ms: float = 20.0
    """One-way propagation delay, ms; both directions have it."""
    loss: float = 0.0
    """Probability that a packet is lost after the queue."""
    queue_packets: int | None = None
    """Droptail limit in packets, the one in service counted."""
    queue_bytes: int | None = None
    """Droptail limit in bytes; with both limits the smaller holds, with neither none."""
    aqm: str | None = None
    """A queue in place of droptail, by `distrlcc.sim.queues`, times in ms. For instance CoDel is
    ``codel:packets=1000,target=5,interval=100``. PIE is
    ``pie:packets=1000,qdelay_ref=15,max_burst=150``. With ``,ecn=1`` they mark packets. Their
    limits do not count the packet in service. A droptail as ``droptail:packets=100,mark=20`` marks
    packets above 20."""
    jitter_ms: float = 0.0
    """Scale of the time that a packet takes to the queue, ms; no packet overtakes another."""
    jitter_kind: JitterKind = "uniform"
    """One of `JITTERS`."""
    policer_mbps: float | None = None
    """Rate of a token bucket before the queue, Mbit/s; a packet that finds less than itself in it
    is dropped."""
    policer_packets: int | None = None
    """Size of the bucket, packets; it is full at first."""
    ack_jitter_ms: float = 0.0
    """Scale of the time that an ACK waits, ms; none overtakes another."""
    ack_jitter_kind: JitterKind = "uniform"
    """One of `JITTERS`."""
    ack_tick_ms: float = 0.0
    """ACKs come at multiples of this time, ms, so in bunches; 0: at any time."""
    delayed_acks: bool = False
    """Whether the receiver acknowledges every second packet (RFC 1122), and one alone after 40 ms,
    but a packet after a gap at once."""
    reorder: str | None = None
    """``P:MS``: a share P of packets comes MS late and is overtaken, chosen by a hash. (Their ACKs
    come late, after all that shapes ACKs.) Not with `delayed_acks`."""
    changes: tuple[Change, ...] = ()
    """Changes in order of time."""
    best_cwnd: float | None = None
    """The constant window with the greatest power, packets, if it was searched for. The expert of
    imitation then aims at it, and not at what the link is about to carry."""

    def __post_init__(self) -> None:
        check_types(self)
        if (self.rate_mbps is None) == (self.trace is None):
            raise ConfigError("link: give either rate_mbps or trace")
        if self.trace_start_s and self.trace is None:
            raise ConfigError("link: trace_start_s is for a trace; leave it out")
        if self.rate_mbps != 0:
            check_fields(self, "rate_mbps", MIN_RATE_MBPS, MAX_RATE_MBPS)
        check_fields(self, "trace_start_s", 0, 1e7)
        check_fields(self, "delay_ms", 0, MAX_DELAY_MS)
        check_fields(self, "loss", 0, 1)
        check_fields(self, "queue_packets", 1, MAX_QUEUE_PACKETS)
        check_fields(self, "queue_bytes", PACKET_BYTES, MAX_QUEUE_PACKETS * PACKET_BYTES)
        check_fields(self, "ack_jitter_ms ack_tick_ms jitter_ms", 0, 1e3)
        for name in ("jitter", "ack_jitter"):
            kind = getattr(self, f"{name}_kind")
            if kind != "uniform" and not getattr(self, f"{name}_ms"):
                raise ConfigError(f"link: {name}_kind is {kind} without {name}_ms, its scale")
        check_fields(self, "policer_mbps", MIN_RATE_MBPS, MAX_RATE_MBPS)
        check_fields(self, "policer_packets", 1, MAX_POLICER_PACKETS)
        if (self.policer_mbps is None) != (self.policer_packets is None):
            raise ConfigError("link: give both policer_mbps and policer_packets, or neither")
        self._check_aqm()
        if self.late_share and self.delayed_acks:
            raise ConfigError(
                "link: delayed_acks are not simulated where packets are reordered; expected one of "
                "delayed_acks and reorder"
            )
        check_fields(self, "best_cwnd", 1, 1e9)
        times = [change.at_s for change in self.changes]
        if times != sorted(set(times)):
            raise ConfigError(f"link.changes: times {times} do not increase")
        rates = [c.rate_mbps for c in self.changes if c.rate_mbps is not None]
        if rates and self.trace is not None:
            raise ConfigError("link.changes: a trace link takes no rate_mbps")
        if [self.rate_mbps, *rates][-1] == 0:
            raise ConfigError("the last rate_mbps is 0; expected one above 0")

    def _check_aqm(self) -> None:
        if self.aqm is None:
            return
        queue = parse_queue(self.aqm)
        if queue.kind not in ("codel", "pie") and queue.mark is None:
            raise ConfigError(
                f"link.aqm is {self.aqm!r}; expected codel or pie with their parameters, or "
                "queue_packets for a droptail that does not mark"
            )
        if self.queue_packets is not None or self.queue_bytes is not None:
            raise ConfigError(
                "link: aqm has the queue's limits; leave queue_packets and queue_bytes out"
            )

    @property
    def queue(self) -> QueueSpec:
        """The queue, its limits and its parameters."""
        if self.aqm is not None:
            return parse_queue(self.aqm)
        limits = self.queue_packets, self.queue_bytes
        return QueueSpec("infinite" if limits == (None, None) else "droptail", *limits)

    @property
    def late_share(self) -> float:
        """Probability that a packet is late and overtaken."""
        return parse_reorder(self.reorder)[0]

    @property
    def late_ms(self) -> float:
        """Lateness of such a packet, ms."""
        return parse_reorder(self.reorder)[1]

    @property
    def is_live(self) -> bool:
        """Whether the fate of a packet comes late, so that the queue is simulated by its events."""
        return self.aqm is not None or self.jitter_ms > 0 or self.policer_mbps is not None

    @property
    def shapes_acks(self) -> bool:
        """Whether ACKs jitter, come in bunches or are delayed."""
        return self.ack_jitter_ms > 0 or self.ack_tick_ms > 0 or self.delayed_acks


@dataclass(frozen=True)
class Flow:
    """A sender on the link."""

    scheme: str = "agent"
    """``agent`` (the policy) or a scheme of `distrlcc.control`."""
    start_s: float = 0.0
    stop_s: float | None = None
    """When it stops sending; None: never."""
    packets: int | None = None
    """Its size: it is complete when so many packets are acknowledged, and sends one more for each
    that it knows lost; None: it has data without end. In the simulator alone."""
    extra_rtt_ms: float = 0.0
    """Its own round trip beside the link's, ms."""
    cwnd: float | None = None
    """Window of a ``fixed`` flow, first window of an ``agent``, packets."""
    pacing_mbps: float | None = None
    """First pacing rate of an ``agent``, Mbit/s; None: window-limited alone."""
    ecn: bool = False
    """Whether a queue that marks may mark its packets, if a scheme sends them. In the simulator
    alone."""

    def __post_init__(self) -> None:
        check_types(self)
        SCHEMES.pin(self, "scheme")
        check_fields(self, "start_s stop_s", 0, 1e6, prefix="flows.")
        check_fields(self, "packets", 1, 1e9, prefix="flows.")
        check_fields(self, "extra_rtt_ms", 0, MAX_DELAY_MS, prefix="flows.")
        check_fields(self, "cwnd", 1, 1e9, prefix="flows.")
        check_fields(self, "pacing_mbps", 1e-6, MAX_RATE_MBPS, prefix="flows.")
        if self.stop_s is not None and self.stop_s <= self.start_s:
            raise ConfigError(
                f"flows.stop_s is {self.stop_s:g}: expected more than start_s ({self.start_s:g})"
            )
        # What a scheme of ours would not read.
        if self.scheme in SCHEMES and self.scheme != "agent":
            if self.cwnd is not None and self.scheme != "fixed":
                raise ConfigError(
                    f"flows.cwnd is for agent and fixed, and {self.scheme} has a window of its "
                    "own; leave it out"
                )
            if self.pacing_mbps is not None:
                raise ConfigError(
                    f"flows.pacing_mbps is for agent, and the scheme is {self.scheme}; leave it out"
                )

    @property
    def takes_marks(self) -> bool:
        """Whether its packets can be marked: never an agent's, whose policy sees no marks."""
        return self.ecn and self.scheme != "agent"

    @property
    def span_ns(self) -> tuple[int, int]:
        """When it starts and stops, ns."""
        stop = FOREVER if self.stop_s is None else round(self.stop_s * NANOSECONDS)
        return round(self.start_s * NANOSECONDS), stop

    @property
    def first_held(self) -> tuple[float, float]:
        """The window, packets, and the pacing rate, packets/s, that it starts with."""
        rate = (self.pacing_mbps or 0.0) * 1e6 / (8 * PACKET_BYTES)
        return INITIAL_CWND if self.cwnd is None else self.cwnd, rate


@dataclass(frozen=True)
class Scenario:
    """One link, its flows, and for how long they run."""

    name: str
    link: Link
    flows: tuple[Flow, ...] = field(default=(Flow(),))
    duration_s: float = 10.0
    seed: int = 0
    """Seed of the random loss and of the schemes' random phases."""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.name.isprintable():
            raise ConfigError(f"name is {self.name!r}: expected letters that can be printed")
        check_fields(self, "duration_s", 0.1, 1e5)
        check_fields(self, "seed", 0, MAX_SEED)
        if not 1 <= len(self.flows) <= 64:
            raise ConfigError(f"{self.name}: {len(self.flows)} flows; expected 1 to 64")
        # What would never come to pass.
        late = {f"flows[{k}].start_s": flow.start_s for k, flow in enumerate(self.flows)}
        late |= {f"link.changes[{k}].at_s": one.at_s for k, one in enumerate(self.link.changes)}
        for place, time in late.items():
            if time >= self.duration_s:
                raise ConfigError(
                    f"{self.name}: {place} is {time:g}, when the scenario's {self.duration_s:g} s "
                    "are over; leave it out, or let it last longer"
                )
