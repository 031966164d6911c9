"""Action spaces: each turns actions into windows and pacing rates, and labels them."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.compiled import njit, njit_inner
from distrlcc.control.state import INITIAL_CWND, MAX_CWND, MIN_CWND
from distrlcc.plugins import Registry, having
from distrlcc.policy.spec import ActionKind

Floats = NDArray[np.float64]

GREATEST = 10.0  # a continuous action lies within plus and minus this


@njit_inner
def _bounded(cwnd: float) -> Any:
    return max(min(cwnd, MAX_CWND), MIN_CWND)


@njit
def _apply(actions: Any, cwnd: Any, factors: Any, offsets: Any, new: Any) -> None:
    for n in range(len(new)):
        new[n] = _bounded(cwnd[n] * factors[actions[n]] + offsets[actions[n]])


@njit
def _nearest(best: Any, cwnd: Any, factors: Any, offsets: Any, labels: Any) -> None:
    for n in range(len(labels)):
        target, least = _bounded(best[n]), np.inf
        for action in range(len(factors)):
            result = _bounded(cwnd[n] * factors[action] + offsets[action])
            ratio = max(result / target, target / result)
            if ratio < least:
                least, labels[n] = ratio, action


class Actions(Protocol):
    """The actions of N senders; it keeps no state."""

    kind: ActionKind
    """``discrete``: one of `size` actions; ``continuous``: numbers within `GREATEST`."""
    size: int
    """Actions, or 1 where continuous; also the elements of an encoded action."""
    initial: tuple[float, float]
    """First window, packets, and pacing rate, packets/s; 0: none."""
    least_rate: float
    """Least pacing rate, packets/s; 0 where actions set windows."""

    def apply(self, actions: NDArray[Any], cwnd: Floats, pacing: Floats) -> tuple[Floats, Floats]:
        """Return new windows, packets, and pacing rates, packets/s, ``[N]``, within bounds."""

    def encode(self, actions: NDArray[Any]) -> Floats:
        """Return actions as an observation has them, ``[N, size]``."""

    def label(
        self, best_cwnd: Floats, cwnd: Floats, pacing: Floats, rtt: Floats
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        """Return the actions that lead nearest to the best windows, ``[N]``; RTTs are in s."""


class WindowActions:
    """A discrete action changes the window: ``cwnd * factor + offset``."""

    kind: ActionKind = "discrete"
    size: int
    initial = (INITIAL_CWND, 0.0)
    least_rate = 0.0

    def __init__(self, factors: tuple[float, ...], offsets: tuple[float, ...]) -> None:
        """Take one factor and one offset (packets) per action."""
        self.factors, self.offsets = np.array(factors), np.array(offsets)
        self.size = len(factors)
        self._one_hot = np.eye(self.size)

    def apply(self, actions: NDArray[Any], cwnd: Floats, pacing: Floats) -> tuple[Floats, Floats]:
        """Return the clipped new windows, and no pacing."""
        new = np.empty(len(cwnd))
        _apply(np.asarray(actions, np.int64), cwnd, self.factors, self.offsets, new)
        return new, pacing

    def encode(self, actions: NDArray[Any]) -> Floats:
        """Return one-hot rows."""
        return np.asarray(self._one_hot[actions])

    def label(
        self, best_cwnd: Floats, cwnd: Floats, pacing: Floats, rtt: Floats
    ) -> NDArray[np.int64]:
        """Return the action whose window is nearest to the best one, by ratio."""
        labels = np.zeros(len(cwnd), np.int64)
        _nearest(best_cwnd, cwnd, self.factors, self.offsets, labels)
        return labels


class RateActions:
    """Aurora's continuous action: the pacing rate is scaled by ``1 + scale * a`` or its inverse."""

    kind: ActionKind = "continuous"
    size = 1
    initial = (MAX_CWND * 8, 100.0)
    MIN_RATE, MAX_RATE = 40.0, 40_000.0

    def __init__(self, scale: float, least_rate: float = MIN_RATE) -> None:
        """Take the change of rate that an action of 1 makes, and the least rate, packets/s."""
        self.scale, self.least_rate = scale, least_rate

    def apply(self, actions: NDArray[Any], cwnd: Floats, pacing: Floats) -> tuple[Floats, Floats]:
        """Return the windows as they are, and the clipped new pacing rates."""
        a = np.clip(np.asarray(actions, float).reshape(-1), -GREATEST, GREATEST) * self.scale
        factor = 1.0 + np.abs(a)
        new = np.where(a >= 0, pacing * factor, pacing / factor)
        return cwnd, np.clip(new, self.least_rate, self.MAX_RATE)

    def encode(self, actions: NDArray[Any]) -> Floats:
        """Return the actions themselves, bounded."""
        return np.asarray(np.clip(actions, -GREATEST, GREATEST), np.float64).reshape(-1, 1)

    def label(
        self, best_cwnd: Floats, cwnd: Floats, pacing: Floats, rtt: Floats
    ) -> NDArray[np.float32]:
        """Return the action that brings the rate to the best window per round trip."""
        target = np.clip(best_cwnd / np.maximum(rtt, 1e-6), self.least_rate, self.MAX_RATE)
        ratio = target / np.clip(pacing, self.least_rate, self.MAX_RATE)
        a = np.where(ratio >= 1, ratio - 1, 1 - 1 / ratio) / self.scale
        return np.asarray(np.clip(a, -GREATEST, GREATEST), np.float32)


_FINE = (0.5, 0.75, 1 / 1.1, 1 / 1.03, 1.0, 1.03, 1.1, 1.33, 2.0)
ACTIONS: Registry[Actions] = Registry(
    "action",
    {
        "multiplicative": WindowActions((0.5, 1 / 1.1, 1.0, 1.1, 1.5, 2.0), (0.0,) * 6),
        "fine": WindowActions(_FINE, (0.0,) * 9),
        "indigo": WindowActions((0.5, 1.0, 1.0, 1.0, 2.0), (0.0, -10.0, 0.0, 10.0, 0.0)),
        "rate": RateActions(0.025),
        "fast-rate": RateActions(0.1),
        "genet": RateActions(1.0, 5.0),
    },
    having("kind size initial least_rate apply encode label"),
)
