"""A fixed window: the caller sets ``s[CWND]`` and nothing changes it."""

from __future__ import annotations

from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import CWND, INITIAL_CWND, PACING
from distrlcc.types import FloatArray


@njit_inner
def initialise(s: FloatArray, now: int, seed: int) -> None:
    """Start with the initial window; a caller that wants another writes ``s[CWND]``."""
    s[CWND] = INITIAL_CWND
    s[PACING] = 0.0


@njit_inner
def on_ack(
    s: FloatArray,
    now: int,
    rtt: int,
    seq: int,
    sent: int,
    lost: int,
    inflight: int,
    delivered: int,
    prior_delivered: int,
    rate: float,
) -> None:
    """Leave the window alone."""


@njit_inner
def on_timeout(s: FloatArray, now: int, sent: int) -> None:
    """Leave the window alone."""
