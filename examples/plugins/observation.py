"""An observation: four ratios, and one average that each sender keeps.

distrlcc train quickstart --set env.observation=examples/plugins/observation.py:Small
"""

import numpy as np

from distrlcc.env.observations import Floats, Running
from distrlcc.types import IntervalStats


class Small(Running):
    """Delay, its slow average, share lost, packets delivered per packet of window."""

    size = 4

    def __init__(self, n: int) -> None:
        super().__init__(n, slow=0.0)

    def observe(self, stats: IntervalStats) -> Floats:
        """Return ``[N, 4]``."""
        known = stats.min_rtt > 0
        delay = np.where(known, stats.rtt_last / np.maximum(stats.min_rtt, 1e-9) - 1.0, 0.0)
        delay = np.log1p(np.clip(delay, 0.0, 100.0))
        slow = self.values["slow"]
        slow += 0.1 * (delay - slow)
        lost = stats.lost / np.maximum(stats.lost + stats.acked, 1)
        return np.stack([delay, slow, lost, stats.acked / np.maximum(stats.cwnd, 1)], axis=1)
