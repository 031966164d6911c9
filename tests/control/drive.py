"""Two ways to exercise a scheme: hand-fed ACKs, and the reference simulator's link."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from distrlcc.control.reno import SSTHRESH
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import CWND
from distrlcc.sim.reference import Reference
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack

MS = 1_000_000


class Driver:
    """Feed a scheme ACKs one by one, with a full window in flight."""

    def __init__(self, scheme: str, seed: int = 0) -> None:
        self.controller = SchemeController(scheme, seed=seed)
        self.state = self.controller.state
        self.now = 0
        self.seq = -1
        self.sent = int(self.state[CWND])
        self.delivered = 0

    @property
    def cwnd(self) -> float:
        return self.controller.cwnd

    def ack(
        self,
        rtt_ms: float = 100,
        after_ms: float = 1,
        lost: int = 0,
        rate: float = 0.0,
        marked: int = 0,
    ) -> None:
        """Acknowledge the next packet but ``lost``, ``after_ms`` after the last."""
        self.now += round(after_ms * MS)
        self.seq += lost + 1
        self.delivered += 1
        self.sent = max(self.sent, self.seq + 1)
        inflight = self.sent - self.seq - 1
        before = max(self.delivered - inflight, 0)
        rate = rate or (self.delivered - before) / rtt_ms * 1000
        sent, rtt = self.sent, round(rtt_ms * MS)
        ack = Ack(rtt, self.seq, sent, lost, inflight, self.delivered, before, rate, marked)
        self.controller.on_ack(ack, now=self.now)
        self.fill()

    def fill(self, cwnd: float | None = None) -> None:
        """Send what the window allows, after setting it to ``cwnd`` if given."""
        if cwnd is not None:
            self.state[CWND] = cwnd
        self.sent = max(self.sent, self.seq + 1 + int(self.cwnd))

    def round(self, rtt_ms: float = 100.0, lost: int = 0) -> None:
        """Acknowledge all that is in flight now, evenly over one RTT; losses come first."""
        end, step = self.sent, rtt_ms / max(self.sent - self.seq - 1, 1)
        self.ack(rtt_ms, step, lost)
        while self.seq < end - 1:
            self.ack(rtt_ms, step)

    def timeout(self) -> None:
        self.now += NANOSECONDS
        self.controller.on_timeout(now=self.now, sent=self.sent)


def linear(scheme: str, window: float, acks: int = 1) -> Driver:
    """Return a flow past slow start, with a least RTT of 100 ms."""
    flow = Driver(scheme)
    for _ in range(acks):
        flow.ack(rtt_ms=100)
    flow.state[SSTHRESH] = 2
    flow.fill(window)
    return flow


@dataclass
class Sample:
    """One ACK on the link, and the controller after it."""

    now: int
    rtt: int
    inflight: int
    cwnd: float
    pacing: float
    state: np.ndarray


class Recorded(SchemeController):
    """A scheme that keeps a sample of each ACK."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.samples: list[Sample] = []

    def on_ack(self, ack: Ack, *, now: int) -> None:
        super().on_ack(ack, now=now)
        shown = (self.cwnd, self.pacing_rate, self.state.copy())
        self.samples.append(Sample(now, ack.rtt_ns, ack.inflight, *shown))

    def after(self, seconds: float) -> list[Sample]:
        return [sample for sample in self.samples if sample.now >= seconds * NANOSECONDS]


def run(
    *schemes: str,
    seconds: float,
    limit: int,
    rate: float = 1000,
    rtt_ms: float = 39,
    loss: float = 0.0,
    seed: int = 1,
    starts: tuple[float, ...] = (0.0, 0.0),
) -> list[Recorded]:
    """Run flows over a queue of ``limit`` packets and ``rate`` packets/s, and return them."""
    flows = tuple(Flow(name, start_s=start) for name, start in zip(schemes, starts, strict=False))
    link = Link(
        rate_mbps=rate * PACKET_BYTES * 8e-6, delay_ms=rtt_ms / 2, queue_packets=limit, loss=loss
    )
    made: list[Recorded] = []

    def make(*args: Any, **options: Any) -> Recorded:
        made.append(Recorded(*args, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distrlcc.sim.reference.SchemeController", make)
        Reference(Scenario("drive", link, flows, seconds, seed=seed)).run(round(seconds * 1e9))
    return made
