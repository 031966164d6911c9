"""A compiled scheme as a `Controller`, so that the real sender runs the simulator's code."""

from __future__ import annotations

import numpy as np

from distrlcc.control.schemes import AGENT, ORACLE, SCHEMES, initialise, on_ack, on_timeout
from distrlcc.control.state import CWND, INITIAL_CWND, PACING, STATE_SIZE
from distrlcc.errors import unknown_name
from distrlcc.types import Ack, IntervalStats


class SchemeController:
    """One flow of a scheme, such as ``SchemeController("fixed", parameter=20)``.

    ``agent`` and ``oracle`` have no compiled functions, so they are no valid names here: see
    `distrlcc.control.oracle` for the oracle.

    Args:
        scheme_name: A key of `distrlcc.control.schemes.SCHEMES` with compiled functions.
        now: When the flow starts, ns.
        seed: Chooses what the scheme draws at random (BBR's first phase of PROBE_BW).
        parameter: The window of ``fixed``, packets.

    Raises:
        ConfigError: No compiled scheme has the name.
    """

    def __init__(
        self,
        scheme_name: str,
        *,
        now: int = 0,
        seed: int = 0,
        parameter: float = INITIAL_CWND,
    ) -> None:
        valid = {name: i for name, i in SCHEMES.items() if i not in (AGENT, ORACLE)}
        if scheme_name not in valid:
            raise unknown_name("scheme", scheme_name, valid)
        self._scheme, self._seed, self._parameter = valid[scheme_name], seed, float(parameter)
        self.state = np.zeros(STATE_SIZE)
        """The scheme's row; see `distrlcc.control.state`."""
        self.begin(now=now)

    def begin(self, *, now: int) -> None:
        """Start anew, where the flow starts later than was known."""
        self.state[:] = 0.0
        initialise(self._scheme, self.state, now, self._seed, self._parameter)

    @property
    def cwnd(self) -> float:
        """Congestion window, packets."""
        return float(self.state[CWND])

    @property
    def pacing_rate(self) -> float:
        """Pacing rate, packets/s; 0 means that the window alone limits."""
        return float(self.state[PACING])

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Take one acknowledgement."""
        on_ack(
            self._scheme,
            self.state,
            now,
            ack.rtt_ns,
            ack.seq,
            ack.sent,
            ack.lost,
            ack.inflight,
            ack.delivered,
            ack.prior_delivered,
            float(ack.delivery_rate),
        )

    def on_timeout(self, *, now: int, sent: int) -> None:
        """React to one second of silence."""
        on_timeout(self._scheme, self.state, now, sent)

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Do nothing: these schemes act on each acknowledgement."""
