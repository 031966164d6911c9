"""A reward: throughput's logarithm less the delay's, which no one link's speed outweighs.

distrlcc train quickstart --set env.reward.name=examples/plugins/reward.py:reward
"""

import numpy as np

from distrlcc.env.rewards import Floats, LinkView, RewardConfig
from distrlcc.types import IntervalStats


def reward(stats: IntervalStats, link: LinkView, config: RewardConfig) -> Floats:
    """Return log(1e-3 + utilisation) - weight * log(RTT / base RTT), ``[N]``."""
    used = stats.acked / stats.duration / link.mean_rate
    rtt = np.where(stats.rtt_last > 0, stats.rtt_last, link.base_rtt)
    delay = np.log(np.clip(rtt / link.base_rtt, 1.0, 100.0))
    return np.asarray(np.log(1e-3 + used) - config.delay_weight * delay)
