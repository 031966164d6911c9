"""What the agent sees of an `IntervalStats`: each space a class with running state per sender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrlcc.plugins import Registry, having
from distrlcc.types import IntervalStats

Observation = NDArray[np.float32]
Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


class Observations(Protocol):
    """What N senders see; each begins anew by itself. Made as ``space(n)``."""

    size: int
    """Elements of an observation, without the previous action's."""
    with_ewmas: bool
    """Whether it looks at Indigo's averages in `IntervalStats`, which cost time to keep."""

    def observe(self, stats: IntervalStats) -> Floats:
        """Take a step of the senders ``[N]`` and return what they see, ``[N, size]``, finite."""
        ...

    def reset(self, which: Indices) -> None:
        """Begin anew with some senders."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, as arrays by name."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        ...


class Running:
    """A space's running arrays ``[N]`` or ``[N, ...]`` by name, with their values at the start."""

    size: int
    with_ewmas = False

    def __init__(self, n: int, **initial: float | Floats) -> None:
        self._initial = initial
        self.values = {
            k: np.broadcast_to(np.asarray(v, float), (n, *np.shape(v))).copy()
            for k, v in initial.items()
        }

    def reset(self, which: Indices) -> None:
        """See `Observations`."""
        for name, value in self._initial.items():
            self.values[name][which] = value

    def state_dict(self) -> dict[str, Any]:
        """See `Observations`."""
        return {k: v.copy() for k, v in self.values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Observations`."""
        self.values = {k: np.array(state[k], float) for k in self.values}


class ScaleFree(Running):
    """Ratios to the sender's own minimum RTT and rates, so that one policy fits every link.

    In order: the log of interval RTT over min RTT; its slow average; its change; the log of
    delivered * min RTT over cwnd for the fast, the slow and the greatest rate; log cwnd; log min
    RTT; share of packets lost in the step and its slow average; time without ACK and time since the
    start in min RTTs (logs, the latter bounded); in flight over cwnd; log of packets acknowledged.
    """

    size = 14
    WINDOW_S = 4.0
    """The minimum RTT is taken over one to two windows of this length, s."""

    def __init__(self, n: int, **more: float) -> None:
        names = "delay slow_delay fast slow top loss idle age window"
        zeros = dict.fromkeys(names.split(), 0.0)
        super().__init__(n, **zeros, least=np.inf, least_before=np.inf, **more)

    def observe(self, stats: IntervalStats) -> Floats:
        """Return ``[N, size]``."""
        # Of the last one to two windows, so that a longer path is noticed.
        least = self._windowed_least(stats, "", self.WINDOW_S)
        least = np.where(np.isfinite(least), least, stats.min_rtt)
        min_rtt = np.where(stats.min_rtt > 0, least, 0.1)
        return np.stack(self._elements(stats, min_rtt), axis=1)

    def _elements(self, stats: IntervalStats, min_rtt: Floats) -> list[Floats]:
        v = self.values
        # Delay: of the step, smoothed, and its change.
        seen = stats.acked > 0
        known = stats.min_rtt > 0
        mean_rtt = np.where(seen, stats.rtt_sum / np.maximum(stats.acked, 1), stats.rtt_last)
        v["idle"] = np.where(seen, 0.0, v["idle"] + stats.duration)
        v["age"] += stats.duration
        # A queue that answers no more is at least as long as the silence.
        delay = np.where(known, mean_rtt / min_rtt - 1.0, 0.0)
        delay = np.where(known, np.maximum(delay, v["idle"] / min_rtt - 1.0), 0.0)
        delay = np.log1p(np.clip(delay, 0.0, 400.0))
        change, v["delay"] = delay - v["delay"], delay
        weight = np.clip(stats.duration / min_rtt, 0.0, 1.0)
        v["slow_delay"] += 0.25 * weight * (delay - v["slow_delay"])
        # Delivery rates and loss.
        rate = stats.acked / stats.duration
        fresh = (v["fast"] == 0) & seen
        v["fast"] = np.where(fresh, rate, v["fast"] + weight * (rate - v["fast"]))
        v["slow"] = np.where(fresh, rate, v["slow"] + 0.25 * weight * (rate - v["slow"]))
        # The greatest smoothed rate fades over about a hundred round trips.
        v["top"] = np.maximum(v["fast"], v["top"] * (1.0 - 0.01 * weight))
        lost = stats.lost / np.maximum(stats.lost + stats.acked, 1)
        v["loss"] += 0.1 * (lost - v["loss"])
        cwnd = np.maximum(stats.cwnd, 1.0)
        return [
            delay,
            v["slow_delay"],
            change,
            *(np.log((v[k] * min_rtt + 0.1) / cwnd) for k in ("fast", "slow", "top")),
            np.log(cwnd) - 4.0,
            np.log(min_rtt * 30.0),
            lost,
            v["loss"],
            np.log1p(v["idle"] / min_rtt),
            # Slow start is over by then, and what was learned in short episodes holds later.
            np.minimum(np.log1p(v["age"] / min_rtt), 3.0) - 3.0,
            np.minimum(stats.inflight / cwnd, 2.0),
            np.log1p(stats.acked) - 2.0,
        ]

    def _windowed_least(
        self, stats: IntervalStats, prefix: str, window_s: Floats | float
    ) -> Floats:
        """Return the least RTT of the last one to two windows, s; infinite without samples."""
        v = self.values
        least, before, window = prefix + "least", prefix + "least_before", prefix + "window"
        v[window] += stats.duration
        # Sums of steps are a rounding short of what they stand for.
        over = v[window] >= window_s - 1e-9
        v[before] = np.where(over, v[least], v[before])
        v[least] = np.where(over, np.inf, v[least])
        v[window] = np.where(over, 0.0, v[window])
        v[least] = np.where(stats.acked > 0, np.minimum(v[least], stats.rtt_min), v[least])
        return np.asarray(np.minimum(v[least], v[before]))


class ScaleFreeRecent(ScaleFree):
    """`ScaleFree`, what the last round trips alone tell, and how the path was at its shortest.

    After `ScaleFree`'s, in order: the log of the recent min RTT over min RTT; the log of interval
    RTT over the recent min RTT; the log of delivered * recent min RTT over cwnd, for the fast rate,
    one smoothed over a third of the recent min RTT, and the step's own; log cwnd over its mean of
    about one and of about four round trips; the log of the packets that wait in the queue; the log
    of min RTT over the least RTT ever: a queue has stood for long, or the path has got longer.
    """

    size = ScaleFree.size + 9
    RECENT_RTTS = 2.0
    """The recent minimum RTT is taken over one to two windows of so many of itself."""

    def __init__(self, n: int) -> None:
        zeros = dict.fromkeys(["recent_window", "quick", "cwnd_fast", "cwnd_slow"], 0.0)
        super().__init__(n, **zeros, recent_least=np.inf, recent_least_before=np.inf)

    def _elements(self, stats: IntervalStats, min_rtt: Floats) -> list[Floats]:
        v = self.values
        elements = super()._elements(stats, min_rtt)
        unseen = np.maximum(stats.rtt_last, min_rtt)
        recent = np.minimum(v["recent_least"], v["recent_least_before"])
        recent = np.where(np.isfinite(recent), recent, unseen)
        recent = self._windowed_least(stats, "recent_", self.RECENT_RTTS * recent)
        recent = np.where(np.isfinite(recent), recent, unseen)
        rtt = np.where(stats.acked > 0, stats.rtt_sum / np.maximum(stats.acked, 1), recent)
        weight = np.clip(stats.duration / recent, 0.0, 1.0)
        cwnd = np.maximum(stats.cwnd, 1.0)
        rate, window = stats.acked / stats.duration, np.log(cwnd)
        for name, value, share in (
            ("quick", rate, np.clip(3.0 * weight, 0.0, 1.0)),
            ("cwnd_fast", window, weight),
            ("cwnd_slow", window, 0.25 * weight),
        ):
            v[name] = np.where(v[name] == 0, value, v[name] + share * (value - v[name]))
        waiting = np.clip(rtt / min_rtt - 1.0, 0.0, 400.0)
        ever = np.where(stats.min_rtt > 0, stats.min_rtt, min_rtt)
        return [
            *elements,
            np.log(np.clip(recent / min_rtt, 1.0, 400.0)),
            np.log(np.clip(rtt / recent, 1.0, 400.0)),
            *(np.log((r * recent + 0.1) / cwnd) for r in (v["fast"], v["quick"], rate)),
            window - v["cwnd_fast"],
            window - v["cwnd_slow"],
            np.log1p(v["fast"] * min_rtt * waiting),
            np.log(np.clip(min_rtt / ever, 1.0, 400.0)),
        ]


class ScaleFreeSpread(ScaleFreeRecent):
    """`ScaleFreeRecent`, and what tells a jittering path from a queue.

    After `ScaleFreeRecent`'s, in order, with logs of ratios of RTTs: the step's least over min RTT;
    a low quantile of these; the step's mean over min RTT less that quantile; the step's greatest
    over its least; its slow average. A step without samples has those of the one before.
    """

    size = ScaleFreeRecent.size + 5
    DOWN, UP = 1 / 8, 1 / 64
    """Part of the way that the quantile goes down or up in a step with samples."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        more = dict.fromkeys(["floor", "quantile", "spread", "slow_spread"], 0.0)
        self._initial |= more
        self.values |= {name: np.zeros(n) for name in more}

    def _elements(self, stats: IntervalStats, min_rtt: Floats) -> list[Floats]:
        v, seen = self.values, stats.acked > 0
        elements = super()._elements(stats, min_rtt)
        least = np.maximum(stats.rtt_min, 1e-9)
        floor = np.log(np.clip(least / min_rtt, 1.0, 400.0))
        v["floor"] = np.where(seen, floor, v["floor"])
        move = np.where(v["floor"] < v["quantile"], self.DOWN, self.UP)
        v["quantile"] += np.where(seen, move * (v["floor"] - v["quantile"]), 0.0)
        spread = np.log(np.clip(stats.rtt_max / least, 1.0, 400.0))
        v["spread"] = np.where(seen, spread, v["spread"])
        v["slow_spread"] += np.where(seen, (v["spread"] - v["slow_spread"]) / 16, 0.0)
        above = elements[0] - v["quantile"]
        return [*elements, v["floor"], v["quantile"].copy(), above, v["spread"], v["slow_spread"]]


class Indigo(Running):
    """Indigo's four fields: delay, delivery rate, send rate (EWMAs) and cwnd, normalised."""

    size = 4
    with_ewmas = True

    def observe(self, stats: IntervalStats) -> Floats:
        """Return ``[N, 4]``."""
        rates = stats.delivery_rate_ewma / 200.0, stats.send_rate_ewma / 200.0
        return np.stack([stats.delay_ewma / 200.0, *rates, stats.cwnd / 5000.0], axis=1)


class IndigoMinRtt(Indigo):
    """Indigo's fields and DistRLCC's min RTT over 100 ms."""

    size = 5

    def observe(self, stats: IntervalStats) -> Floats:
        """Return ``[N, 5]``."""
        return np.concatenate([super().observe(stats), stats.min_rtt[:, None] * 10.0], axis=1)


class Aurora(Running):
    """Aurora's history of 10 intervals: latency inflation, latency ratio - 1, send ratio - 1.

    Source: Jay et al., ICML 2019, section 4.1. The latency inflation is the change of the mean RTT
    from interval to interval over the interval's length.
    """

    HISTORY = 10
    size = 3 * HISTORY

    def __init__(self, n: int) -> None:
        super().__init__(n, rtt=0.0, history=np.zeros((self.HISTORY, 3)))

    def observe(self, stats: IntervalStats) -> Floats:
        """Return ``[N, 30]``, the newest interval last."""
        v = self.values
        seen = stats.acked > 0
        rtt = np.where(seen, stats.rtt_sum / np.maximum(stats.acked, 1), v["rtt"])
        inflation = np.where((v["rtt"] > 0) & seen, (rtt - v["rtt"]) / stats.duration, 0.0)
        ratio = np.where(stats.min_rtt > 0, rtt / np.maximum(stats.min_rtt, 1e-9), 1.0) - 1.0
        v["rtt"] = rtt
        v["history"] = np.roll(v["history"], -1, axis=1)
        v["history"][:, -1] = self._interval(stats, inflation, ratio)
        return v["history"].reshape(len(rtt), -1).copy()

    def _interval(self, stats: IntervalStats, inflation: Floats, ratio: Floats) -> Floats:
        """Return an interval's row of the history, ``[N, 3]``."""
        seen = stats.acked > 0
        send = np.where(seen, stats.sent / np.maximum(stats.acked, 1), 1.0 + stats.sent) - 1.0
        return np.stack(
            [np.clip(inflation, -1, 10), np.clip(ratio, 0, 100) / 10, np.clip(send, -1, 100) / 10],
            axis=1,
        )


class Genet(Aurora):
    """Genet's history of 10 intervals: latency inflation, latency ratio, receive ratio.

    Source: Xia et al., SIGCOMM 2022. The last is packets acknowledged over packets sent. Ratios are
    logarithms here: links of 0.1 to 100 Mbit/s have queues of up to 30 round trips, beside which a
    small one would not be seen.
    """

    def _interval(self, stats: IntervalStats, inflation: Floats, ratio: Floats) -> Floats:
        received = np.log((stats.acked + 0.1) / (stats.sent + 0.1))
        inflation = np.clip(inflation, -1, 1)
        return np.stack([inflation, np.log1p(np.clip(ratio, 0, 1000)), received], axis=1)


OBSERVATIONS: Registry[Callable[[int], Observations]] = Registry(
    "observation",
    {
        "scale-free": ScaleFree,
        "scale-free-recent": ScaleFreeRecent,
        "scale-free-spread": ScaleFreeSpread,
        "indigo": Indigo,
        "indigo-min-rtt": IndigoMinRtt,
        "aurora": Aurora,
        "genet": Genet,
    },
    having("size with_ewmas observe reset state_dict load_state_dict", made=False),
)
