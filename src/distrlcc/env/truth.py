"""The simulator's knowledge of a link, for a critic in training; a policy never sees it.

A critic that knows the link predicts returns better, so that advantages have less noise: an
asymmetric actor-critic (https://arxiv.org/abs/1710.06542).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.rewards import LinkView
from distrlcc.sim.scenario import Link
from distrlcc.types import PACKET_BYTES

Float32 = NDArray[np.float32]

_ENDLESS = 1e5  # packets that a queue without a limit is taken to hold
_STATIC = 6


class Truth:
    """Knowledge of N agents' links: an episode's start, to which `of` adds each step."""

    def __init__(self, n: int) -> None:
        """Allocate; `begin` fills."""
        self.static = np.zeros((n, _STATIC), np.float32)

    def begin(self, n: int, link: Link, bdp: float, wait: float, in_kernel: bool) -> None:
        """Begin agent n's episode on a link of some packets' ``bdp`` and mean ``wait``, s."""
        limits = (link.queue.packets, link.queue.bytes and link.queue.bytes / PACKET_BYTES)
        queue = min(filter(None, limits), default=_ENDLESS)
        self.static[n] = (
            np.log(np.clip(queue / max(bdp, 1.0), 0.01, 50.0)) / 2,
            20 * min(link.loss, 0.1),
            np.log1p(1e3 * wait) / 2,
            link.aqm is not None,
            link.policer_mbps is not None,
            in_kernel,
        )

    def of(self, view: LinkView, duration: NDArray[np.float64]) -> Float32:
        """Return the values of `distrlcc.types.TRUTH`, ``[N, 12]``, all about 1, after a step.

        If an episode has just begun, they are of the link before. Other flows on emulated links are
        unknown.
        """
        n = len(duration)
        rate, rtt = np.maximum(view.mean_rate, 1e-3), np.maximum(view.base_rtt, 1e-4)
        flows: Any = np.ones(n) if view.flows is None else view.flows
        schemes: Any = np.zeros(n) if view.schemes is None else view.schemes
        moving = (
            (np.log(rate) - 7.0) / 2,
            np.log(rtt) + 3.0,
            np.log(np.clip(view.capacity / (rate * np.maximum(duration, 1e-9)), 0.02, 20.0)),
            np.log1p(flows),
            schemes,
            np.log(np.maximum(rate * rtt / np.maximum(flows, 1.0), 0.1)) / 2 - 1.0,
        )
        return np.concatenate([np.stack(moving, axis=1), self.static], axis=1).astype(np.float32)
