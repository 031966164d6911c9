"""The seam between a sender and its controller, and the simplest controller."""

from dataclasses import dataclass
from typing import Protocol

from distrlcc.control.state import INITIAL_CWND
from distrlcc.types import Ack, IntervalStats


class Controller(Protocol):
    """Acknowledgements or interval statistics in, window and pacing rate out.

    A controller has no clock: the caller passes ``now``, which never decreases. The sender calls
    `on_ack` per ACK and `on_interval` per step; what a subclass leaves out does nothing. The sender
    reads the two properties before each packet.
    """

    @property
    def cwnd(self) -> float:
        """Congestion window, packets; fewer than ``floor(cwnd)`` are kept in flight."""

    @property
    def pacing_rate(self) -> float:
        """Pacing rate, packets/s; 0 means that the window alone limits."""

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Take one acknowledgement; ``now`` is the time, ns."""
        return

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Learn that the timer fired; a probe follows the ``sent`` ones. It may prove spurious."""
        return

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Take one step's statistics, arrays of one element, at the step's end."""
        return


@dataclass(eq=False)
class Held(Controller):
    """A controller whose window, packets, and rate, packets/s, are set from outside."""

    cwnd: float = INITIAL_CWND
    pacing_rate: float = 0.0
