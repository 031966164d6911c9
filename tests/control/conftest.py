"""Two ways to exercise a controller: hand-fed ACKs, and a tiny ideal link written out plainly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import CWND
from distrlcc.types import NANOSECONDS, Ack

MS = 1_000_000
TIMEOUT = NANOSECONDS


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
        rtt_ms: float = 100.0,
        after_ms: float = 1.0,
        lost: int = 0,
        rate: float | None = None,
    ) -> None:
        """Acknowledge the next packet but ``lost``, ``after_ms`` after the last."""
        self.now += round(after_ms * MS)
        self.seq += lost + 1
        self.delivered += 1
        self.sent = max(self.sent, self.seq + 1)
        inflight = self.sent - self.seq - 1
        before = max(self.delivered - inflight, 0)
        rtt = round(rtt_ms * MS)
        ack = Ack(
            rtt_ns=rtt,
            seq=self.seq,
            sent=self.sent,
            lost=lost,
            inflight=inflight,
            delivered=self.delivered,
            prior_delivered=before,
            delivery_rate=rate or (self.delivered - before) / rtt_ms * 1000,
        )
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
        self.now += TIMEOUT
        self.controller.on_timeout(now=self.now, sent=self.sent)


@dataclass
class Sample:
    """One ACK on the ideal link."""

    now: int
    rtt: int
    inflight: int
    cwnd: float
    pacing: float
    state: np.ndarray | None


@dataclass
class _Flow:
    controller: Controller
    start: int
    pending: deque[tuple[int, int, int, int, int]] = field(default_factory=deque)
    sent: int = 0
    acked: int = 0
    delivered: int = 0
    delivered_time: int = 0
    next_send: int = 0
    activity: int = 0
    samples: list[Sample] = field(default_factory=list)

    def can_send(self) -> bool:
        return self.sent - self.acked < int(self.controller.cwnd)

    def next_event(self, now: int) -> tuple[int, str]:
        events = [(self.activity + TIMEOUT, "timer")]
        if self.pending:
            events.append((self.pending[0][0], "ack"))
        if self.can_send():
            paced = self.controller.pacing_rate > 0
            events.append((max(now, self.start, self.next_send if paced else 0), "send"))
        return min(events)


class IdealLink:
    """A FIFO queue of ``limit`` packets, ``rate`` packets/s, then the RTT's delay and loss."""

    def __init__(
        self, rate: float, rtt_ms: float, limit: int, *, loss: float = 0.0, seed: int = 1
    ) -> None:
        self.service = round(NANOSECONDS / rate)
        self.delay = round(rtt_ms * MS)
        self.limit, self.loss = limit, loss
        self.random = np.random.default_rng(seed)
        self.free = 0

    def run(
        self, controllers: list[Controller], seconds: float, starts: list[float] | None = None
    ) -> list[list[Sample]]:
        """Run the flows together and return each one's ACKs."""
        begins = [round(start * NANOSECONDS) for start in starts or [0.0] * len(controllers)]
        flows = [
            _Flow(c, b, delivered_time=b, activity=b)
            for c, b in zip(controllers, begins, strict=True)
        ]
        now, end = 0, round(seconds * NANOSECONDS)
        while True:
            (now, kind), flow = min(
                ((f.next_event(now), f) for f in flows), key=lambda pair: pair[0][0]
            )
            if now >= end:
                return [f.samples for f in flows]
            if kind == "ack":
                self._acknowledge(flow, now)
            else:
                if kind == "timer":
                    flow.controller.on_timeout(now=now, sent=flow.sent)
                if flow.controller.pacing_rate > 0:
                    flow.next_send = now + int(NANOSECONDS / flow.controller.pacing_rate)
                self._send(flow, now)

    def _send(self, flow: _Flow, now: int) -> None:
        seq, flow.sent, flow.activity = flow.sent, flow.sent + 1, now
        if self.free - now > (self.limit - 1) * self.service:
            return
        self.free = max(now, self.free) + self.service
        if self.random.random() >= self.loss:
            ack = self.free + self.delay
            flow.pending.append((ack, seq, now, flow.delivered, flow.delivered_time))

    def _acknowledge(self, flow: _Flow, now: int) -> None:
        _, seq, sent_time, prior, prior_time = flow.pending.popleft()
        lost, flow.acked = seq - flow.acked, seq + 1
        flow.delivered += 1
        flow.delivered_time = flow.activity = now
        rate = (flow.delivered - prior) * NANOSECONDS / (now - prior_time)
        inflight = flow.sent - flow.acked
        ack = Ack(now - sent_time, seq, flow.sent, lost, inflight, flow.delivered, prior, rate)
        flow.controller.on_ack(ack, now=now)
        state = getattr(flow.controller, "state", None)
        flow.samples.append(
            Sample(
                now,
                ack.rtt_ns,
                inflight,
                flow.controller.cwnd,
                flow.controller.pacing_rate,
                None if state is None else state.copy(),
            )
        )


@pytest.fixture(scope="session")
def driver() -> Callable[..., Driver]:
    return Driver


@pytest.fixture(scope="session")
def link() -> Callable[..., IdealLink]:
    return IdealLink


def _after(samples: list[Sample], seconds: float) -> list[Sample]:
    return [sample for sample in samples if sample.now >= seconds * NANOSECONDS]


@pytest.fixture(scope="session")
def after() -> Callable[[list[Sample], float], list[Sample]]:
    return _after
