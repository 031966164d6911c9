"""An action space: one number that doubles the window, halves it, or is between the two.

distrlcc train quickstart --set env.action=examples/plugins/action.py:Doubling
"""

import numpy as np

from distrlcc.control.state import MAX_CWND, MIN_CWND


class Doubling:
    """The window is multiplied by 2 to the power of the action, which counts from -1 to 1."""

    kind, size = "continuous", 1
    initial, least_rate = (10.0, 0.0), 0.0  # packets, and no pacing

    def apply(self, actions, cwnd, pacing):
        """Return windows and rates ``[N]``."""
        return np.clip(cwnd * 2.0 ** self.encode(actions)[:, 0], MIN_CWND, MAX_CWND), pacing

    def encode(self, actions):
        """Return what the next observation has of them, ``[N, 1]``."""
        return np.clip(np.asarray(actions, float).reshape(-1, 1), -1.0, 1.0)

    def label(self, best_cwnd, cwnd, pacing, rtt):
        """Return what an expert would do, ``[N]``."""
        return np.clip(np.log2(best_cwnd / cwnd), -1.0, 1.0).astype(np.float32)
