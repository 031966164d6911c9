"""Rewards: each is a function of a step's statistics and of the link.

Throughputs in the papers' formulas are of acknowledged packets; utilisation in ours is the link's.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrlcc.config import check_fields, check_types, check_values, hidden
from distrlcc.control.compiled import njit
from distrlcc.env.observations import loss_share, mean_rtt
from distrlcc.errors import ConfigError
from distrlcc.plugins import Registry, function
from distrlcc.types import PACKET_BYTES, IntervalStats

Floats = NDArray[np.float64]
_PAPERS = ("aurora", "genet", "mvfst", "orca").__contains__


@dataclass(frozen=True)
class RewardConfig:
    """Which reward, and the weights of our own (the others are fixed by their papers)."""

    name: str = "distrlcc"
    """One of `REWARDS`, or a reference to a `Reward`."""
    delay_weight: float = field(default=0.5, metadata=hidden(name=_PAPERS, delay_weights=bool))
    """Price of a queueing delay of one round trip."""
    beside_weight: float = field(default=1.0, metadata=hidden(name=_PAPERS))
    """Share of that price that is paid beside a scheme's flow, which decides on the queue."""
    loss_weight: float = field(default=10.0, metadata=hidden(name=_PAPERS))
    """Price of losing every packet."""
    delay_weights: tuple[float, ...] = ()
    """Least and greatest price of delay: each episode draws its own from there, by a preference
    that the agent sees (see `preferred`); empty: `delay_weight` for all."""
    window_weight: float = 0.0
    """Price of packets in flight that do not fit the link; see `with_window`."""
    guard_weight: float = 0.0
    """Price of a step in which CUBIC's rule of the guard is on."""
    fairness_weight: float = 0.0
    """Price of a share of the link's throughput that is e times a fair one, or the e-th part; see
    `with_fairness`."""

    def __post_init__(self) -> None:
        check_types(self)
        REWARDS.pin(self, "name")
        check_fields(self, "delay_weight loss_weight window_weight guard_weight fairness_weight", 0)
        check_fields(self, "beside_weight", 0, 1)
        if self.delay_weights:
            self._check_range()

    def _check_range(self) -> None:
        weights = self.delay_weights
        needed = {"name": "distrlcc", "beside_weight": 1, "window_weight": 0}
        why = "with delay_weights: a preference sets the whole price of delay; or take [] for these"
        check_values(self, needed, why)
        if len(weights) != 2 or not 0 < weights[0] < weights[1] < float("inf"):
            raise ConfigError(
                f"delay_weights is {list(weights)}: expected the least and the greatest weight, "
                "both above 0, as in [0.05, 5.0], or none: []"
            )


@dataclass(slots=True)
class LinkView:
    """The simulator's knowledge of the links, which senders do not have; arrays ``[N]``."""

    capacity: Floats  # packets that the link could carry in the step
    used: Floats  # packets' worth of it that was used
    mean_rate: Floats  # the link's mean rate, packets/s
    base_rtt: Floats  # propagation and transmission, s
    share: Floats | None = None  # the agent's throughput relative to an equal share; None: alone
    flows: Floats | None = None  # that run on its link; None: it alone, as far as is known
    schemes: Floats | None = None  # how many of these are no agents; None: none, as far as known


class Reward(Protocol):
    """A function of a step: it keeps nothing, and looks at each sender alone."""

    def __call__(self, stats: IntervalStats, link: LinkView, config: RewardConfig, /) -> Floats:
        """Return what each sender is paid for the step, ``[N]``, finite."""


@njit
def _measure(acked: Any, lost: Any, rtt_sum: Any, rtt_last: Any, base_rtt: Any, out: Any) -> None:
    for n in range(len(acked)):
        rtt = mean_rtt(acked[n], rtt_sum[n], rtt_last[n])
        delay = max(rtt / base_rtt[n] - 1.0, 0.0) if rtt_last[n] > 0.0 else 0.0
        damped = 1.0 + math.log(delay) if delay > 1.0 else delay
        loss = loss_share(acked[n], lost[n])
        out[0, n], out[1, n], out[2, n], out[3, n] = rtt, delay, damped, loss


def _measured(stats: IntervalStats, link: LinkView) -> Floats:
    """Return mean RTT, s, queueing delay, that as `outcome` has it, and loss, ``[4, N]``."""
    out = np.empty((4, len(stats.acked)))
    _measure(stats.acked, stats.net_lost, stats.rtt_sum, stats.rtt_last, link.base_rtt, out)
    return out


LEAST_SHARE = 0.1  # as part of an equal share; lower shares are paid like this one
FREE_WINDOW = 0.05  # logarithm of how far packets in flight may be off at no price
NEAR_WINDOW = 0.1  # logarithm of how far beyond that they are where the price begins to flatten
MOST_WINDOW = 16.0  # times too many, or too few: what is further off is paid as this

OUTCOMES = ("wasted", "queueing_delay", "loss")
"""Names of a step's outcome on its link, which the sender alone cannot know; see `outcome`."""


def outcome(stats: IntervalStats, link: LinkView) -> tuple[Floats, Floats, Floats]:
    """Return `OUTCOMES`, ``[N]`` each: wasted capacity, queueing delay in RTTs, share lost.

    Wasted capacity counts against the link's mean rate, so that a trace's quiet moments weigh
    little. Above one RTT delay grows with its logarithm: an outage alone makes hundreds of RTTs,
    which must not drown everything else.
    """
    wasted = (link.capacity - link.used) / (link.mean_rate * stats.duration)
    _, _, delay, loss = _measured(stats, link)
    return wasted, delay, loss


PARTS = ("throughput_mbps", "capacity_mbps", "utilisation", "queueing_delay_rtt", "loss")
"""Names of the parts of rewards; see `parts`."""


def parts(stats: IntervalStats, link: LinkView) -> dict[str, Floats]:
    """Return `PARTS`, ``[N]`` each, for a reward of a user's own.

    Throughput is of acknowledged packets, utilisation of what the link carried, loss a share of
    packets. The queueing delay is in base RTTs, 0 before the first acknowledgement.
    """
    mbit = 8e-6 * PACKET_BYTES / stats.duration
    _, delay, _, loss = _measured(stats, link)
    rates = stats.acked * mbit, link.capacity * mbit
    values = (*rates, link.used / np.maximum(link.capacity, 1e-9), delay, loss)
    return dict(zip(PARTS, values, strict=True))


def distrlcc(stats: IntervalStats, link: LinkView, config: RewardConfig) -> Floats:
    """Ours: utilisation - a * queueing delay in RTTs - b * loss.

    Beside a scheme's flow a is multiplied with `RewardConfig.beside_weight`, in the simulator: an
    agent that pays in full for a queue which CUBIC fills leaves CUBIC the link.
    """
    wasted, delay, loss = outcome(stats, link)
    price = config.delay_weight * delay
    if link.schemes is not None:
        price = np.where(link.schemes > 0, config.beside_weight * price, price)
    return np.asarray(1.0 - wasted - price - config.loss_weight * loss)


def preferred(
    stats: IntervalStats, link: LinkView, config: RewardConfig, preference: Floats
) -> Floats:
    """Ours, with a price of delay ``low * (high / low) ** preference``, preferences 0 to 1 ``[N]``.

    Rewards are divided by 1 + the price. That leaves the best action the best, and keeps senders
    with a high price from outweighing the others in learning.
    """
    low, high = config.delay_weights
    price = low * np.exp(math.log(high / low) * preference)
    wasted, delay, loss = outcome(stats, link)
    return np.asarray((1.0 - wasted - price * delay - config.loss_weight * loss) / (1.0 + price))


def aurora(stats: IntervalStats, link: LinkView, config: RewardConfig) -> Floats:
    """PCC-RL's: 1e-3 * (10 * throughput (packets/s) - 1000 * latency (s) - 2000 * loss)."""
    throughput = stats.acked / stats.duration
    rtt, _, _, loss = _measured(stats, link)
    return np.asarray(1e-3 * (10 * throughput - 1000 * rtt - 2000 * loss))


def genet(stats: IntervalStats, link: LinkView, config: RewardConfig) -> Floats:
    """Genet's: 500 * throughput / mean link rate - 1000 * latency (s) - 2000 * loss, over 1000."""
    share = stats.acked / stats.duration / link.mean_rate
    rtt, _, _, loss = _measured(stats, link)
    return np.asarray(1e-3 * (500 * share - 1000 * rtt - 2000 * loss))


def mvfst(stats: IntervalStats, link: LinkView, config: RewardConfig) -> Floats:
    """mvfst-rl's: log(1e-5 + MB/s) - 0.2 * log(1e-5 + greatest queueing delay (ms))."""
    megabytes = stats.acked / stats.duration * PACKET_BYTES * 1e-6
    delay = np.maximum(stats.rtt_max - stats.min_rtt, 0.0) * 1e3
    return np.asarray(np.log(1e-5 + megabytes) - 0.2 * np.log(1e-5 + delay))


def orca(stats: IntervalStats, link: LinkView, config: RewardConfig) -> Floats:
    """Orca's: (throughput - 5 * loss rate) / greatest throughput * min(1, 1.25 * min RTT / RTT).

    The greatest throughput is the link's mean rate here, which the sender in Orca estimates.
    """
    rate = (stats.acked - 5 * stats.net_lost) / stats.duration
    rtt = _measured(stats, link)[0]
    near = np.where(rtt > 0, 1.25 * stats.min_rtt / np.maximum(rtt, 1e-9), 1.0)
    return np.asarray(rate / link.mean_rate * np.minimum(1.0, near))


def with_window(
    reward: Floats, stats: IntervalStats, link: LinkView, config: RewardConfig
) -> Floats:
    """Take off the price of packets in flight that are not the agent's part of the BDP.

    The price is ``weight * log(1 + max(|log(inflight / part)| - 0.05, 0) / 0.1)``, alike for too
    many and too few. It is steepest near the goal, and flat far off, so that a trace's noise does
    not outweigh the rest. The BDP is that of the step's capacity, divided among the link's flows,
    and a packet at least. In the simulator there is no price beside a scheme's flow: an agent that
    keeps to its part beside a flow that fills the queue gets nothing.
    """
    if not config.window_weight:
        return reward
    flows = 1.0 if link.flows is None else np.maximum(link.flows, 1.0)
    fitting = np.maximum(link.capacity / stats.duration * link.base_rtt / flows, 1.0)
    ratio = np.maximum(stats.inflight, 0.5) / fitting
    off = np.abs(np.log(np.clip(ratio, 1 / MOST_WINDOW, MOST_WINDOW)))
    price = config.window_weight * np.log1p(np.maximum(off - FREE_WINDOW, 0.0) / NEAR_WINDOW)
    return reward - (price if link.schemes is None else np.where(link.schemes > 0, 0.0, price))


def with_fairness(reward: Floats, link: LinkView, config: RewardConfig) -> Floats:
    """Take off the price of a share that is not fair: the size of its logarithm.

    A share is relative to an equal one among the flows that run; alone it is 1, and the price 0.
    Too much costs as too little does: with the logarithm itself each agent gained by pushing. Each
    pays for its own share: the mean over a link's agents taught all to hold the least window.
    """
    if link.share is None or not config.fairness_weight:
        return reward
    return reward - config.fairness_weight * np.abs(np.log(np.maximum(link.share, LEAST_SHARE)))


REWARDS: Registry[Reward] = Registry(
    "reward",
    {"distrlcc": distrlcc, "aurora": aurora, "genet": genet, "mvfst": mvfst, "orca": orca},
    function,
)
