"""Observation spaces, classes with a running state per sender; docs/environment.md has formulas."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrlcc.control import windows
from distrlcc.control.compiled import njit, njit_inner
from distrlcc.control.state import LEAST_PATH
from distrlcc.plugins import Registry, having
from distrlcc.types import IntervalStats

Observation = NDArray[np.float32]
Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit_inner
def mean_rtt(acked: float, rtt_sum: float, unseen: float) -> Any:
    """Return the mean RTT of a step's acknowledged packets, s; without any, ``unseen``."""
    return rtt_sum / acked if acked > 0.0 else unseen


@njit_inner
def loss_share(acked: float, lost: float) -> Any:
    """Return the share of a step's packets that were lost; 0 of none, or of fewer than none."""
    return max(lost, 0.0) / max(lost + acked, 1.0)


class Observations(Protocol):
    """What N senders see; each begins anew by itself. Made as ``space(n)``."""

    size: int
    """Elements of an observation, without the previous action's."""
    with_ewmas: bool
    """Whether it looks at Indigo's averages in `IntervalStats`, which cost time to keep."""

    def observe(self, stats: IntervalStats) -> Floats:
        """Take a step of the senders ``[N]`` and return what they see, ``[N, size]``, finite."""

    def reset(self, which: Indices) -> None:
        """Begin anew with some senders."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, as arrays by name."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""


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
        for name, values in self.values.items():
            values[:] = state[name]


SCALE_FREE, RECENT, SPREAD, NOISE = 14, 23, 28, 33
"""Elements of `ScaleFree`, `ScaleFreeRecent`, `ScaleFreeSpread` and `ScaleFreeNoise`: each begins
as the one before."""
WINDOW_S = 4.0  # the minimum RTT is taken over one to two windows of this length, s
RECENT_RTTS = 2.0  # the recent minimum RTT is taken over one to two windows of so many of itself
FASTEST = 25_000.0  # packets/s, 300 Mbit/s: a window of more in a minimum RTT is seen as so many
DOWN, UP = 1 / 8, 1 / 64  # part of the way that the quantile goes down or up in a step with samples

# Columns of a sender's row: what `ScaleFree` keeps, what `ScaleFreeRecent` keeps, the rest.
DELAY, SLOW_DELAY, FAST, SLOW, TOP, LOSS, IDLE, AGE = range(8)
WINDOW, LEAST, LEAST_BEFORE = 8, 9, 10
RECENT_WINDOW, RECENT_LEAST, RECENT_LEAST_BEFORE = 11, 12, 13
QUICK, CWND_FAST, CWND_SLOW = 14, 15, 16
FLOOR, QUANTILE, SPREAD_NOW, SLOW_SPREAD = 17, 18, 19, 20
MEAN, CALM_WINDOW, CALM_LEAST, CALM_LEAST_BEFORE, WANDER = 21, 22, 23, 24, 25
_INITIAL = np.zeros(WANDER + 1)
_INITIAL[[LEAST, LEAST_BEFORE, RECENT_LEAST, RECENT_LEAST_BEFORE]] = math.inf
_INITIAL[[CALM_LEAST, CALM_LEAST_BEFORE]] = math.inf


@njit_inner
def _windowed_least(s: Any, window: int, seen: Any, window_s: float, rtt: float) -> Any:
    """Return the least RTT of the last one to two windows, s; infinite without samples."""
    least, before = window + 1, window + 2
    s[window] += seen[0]
    # Sums of steps are a rounding short of what they stand for.
    if s[window] >= window_s - 1e-9:
        s[before], s[least], s[window] = s[least], np.inf, 0.0
    if seen[1] > 0.0:
        s[least] = min(s[least], rtt)
    return min(s[least], s[before])


@njit_inner
def _scale(path: float, cwnd: float) -> Any:
    """Return what a packet counts for: less where the window has more than `FASTEST`."""
    return min(FASTEST * path / cwnd, 1.0)


@njit_inner
def _scale_free(s: Any, seen: Any, elements: Any) -> Any:
    """Fill `ScaleFree`'s elements of a sender; return its minimum RTT, s."""
    duration, acked, lost, rtt_sum, _, _, rtt_last, min_rtt, cwnd, inflight = seen
    # Of the last one to two windows, so that a longer path is noticed.
    path = _windowed_least(s, WINDOW, seen, WINDOW_S, seen[4])
    path = path if math.isfinite(path) else min_rtt
    path = max(path, LEAST_PATH) if min_rtt > 0.0 else 0.1
    # Delay: of the step, smoothed, and its change.
    s[IDLE] = 0.0 if acked > 0.0 else s[IDLE] + duration
    s[AGE] += duration
    delay = 0.0
    if min_rtt > 0.0:
        # A queue that answers no more is at least as long as the silence.
        delay = max(mean_rtt(acked, rtt_sum, rtt_last) / path - 1.0, s[IDLE] / path - 1.0)
    delay = math.log1p(min(max(delay, 0.0), 400.0))
    change, s[DELAY] = delay - s[DELAY], delay
    weight = min(duration / path, 1.0)
    s[SLOW_DELAY] += 0.25 * weight * (delay - s[SLOW_DELAY])
    # Delivery rates and loss.
    rate = acked / duration
    if s[FAST] == 0.0 and acked > 0.0:
        s[FAST] = s[SLOW] = rate
    else:
        s[FAST] += weight * (rate - s[FAST])
        s[SLOW] += 0.25 * weight * (rate - s[SLOW])
    # The greatest smoothed rate fades over about a hundred round trips.
    s[TOP] = max(s[FAST], s[TOP] * (1.0 - 0.01 * weight))
    loss = loss_share(acked, lost)
    s[LOSS] += 0.1 * (loss - s[LOSS])
    # The elements, in order.
    cwnd = max(cwnd, 1.0)
    scale = _scale(path, cwnd)
    elements[0], elements[1], elements[2] = delay, s[SLOW_DELAY], change
    for k in range(3):
        elements[3 + k] = math.log((s[FAST + k] * path + 0.1) / cwnd)
    elements[6] = math.log(cwnd * scale) - 4.0
    elements[7] = math.log(path * 30.0)
    elements[8], elements[9] = loss, s[LOSS]
    elements[10] = math.log1p(s[IDLE] / path)
    # Slow start is over by then, and what was learned in short episodes holds later.
    elements[11] = min(math.log1p(s[AGE] / path), 3.0) - 3.0
    elements[12] = min(inflight / cwnd, 2.0)
    elements[13] = math.log1p(acked * scale) - 2.0
    return path


@njit_inner
def _log_ratio(value: float, least: float) -> Any:
    return math.log(min(max(value / least, 1.0), 400.0))


@njit_inner
def _smoothed(old: float, new: float, share: float) -> Any:
    return new if old == 0.0 else old + share * (new - old)


@njit_inner
def _recent(s: Any, seen: Any, path: float, elements: Any) -> Any:
    """Fill what `ScaleFreeRecent` adds beside the minimum RTT ``path``; return the recent one."""
    duration, acked, _, rtt_sum, _, _, rtt_last, min_rtt, cwnd, _ = seen
    # The minimum RTT of the last round trips.
    unseen = max(rtt_last, path)
    recent = min(s[RECENT_LEAST], s[RECENT_LEAST_BEFORE])
    recent = recent if math.isfinite(recent) else unseen
    length = RECENT_RTTS * max(recent, LEAST_PATH)
    recent = _windowed_least(s, RECENT_WINDOW, seen, length, seen[4])
    recent = max(recent, LEAST_PATH) if math.isfinite(recent) else unseen
    rtt = mean_rtt(acked, rtt_sum, recent)
    # Averages over a third of it, over it, and over four.
    weight = min(duration / recent, 1.0)
    cwnd = max(cwnd, 1.0)
    rate, window = acked / duration, math.log(cwnd)
    s[QUICK] = _smoothed(s[QUICK], rate, min(3.0 * weight, 1.0))
    s[CWND_FAST] = _smoothed(s[CWND_FAST], window, weight)
    s[CWND_SLOW] = _smoothed(s[CWND_SLOW], window, 0.25 * weight)
    # The elements, in order.
    elements[14] = _log_ratio(recent, path)
    elements[15] = _log_ratio(rtt, recent)
    elements[16] = math.log((s[FAST] * recent + 0.1) / cwnd)
    elements[17] = math.log((s[QUICK] * recent + 0.1) / cwnd)
    elements[18] = math.log((rate * recent + 0.1) / cwnd)
    elements[19] = window - s[CWND_FAST]
    elements[20] = window - s[CWND_SLOW]
    waiting = min(max(rtt / path - 1.0, 0.0), 400.0)
    scale = _scale(path, cwnd)
    elements[21] = math.log1p(s[FAST] * path * waiting * scale)
    elements[22] = _log_ratio(path, max(min_rtt, LEAST_PATH) if min_rtt > 0.0 else path)
    return recent


@njit_inner
def _spread(s: Any, seen: Any, path: float, elements: Any) -> None:
    """Fill what `ScaleFreeSpread` adds for a sender whose minimum RTT is ``path``, s."""
    rtt_min, rtt_max = seen[4], seen[5]
    if seen[1] > 0.0:
        least = max(rtt_min, LEAST_PATH)
        s[FLOOR] = _log_ratio(least, path)
        s[QUANTILE] += (DOWN if s[FLOOR] < s[QUANTILE] else UP) * (s[FLOOR] - s[QUANTILE])
        s[SPREAD_NOW] = _log_ratio(rtt_max, least)
        s[SLOW_SPREAD] += (s[SPREAD_NOW] - s[SLOW_SPREAD]) / 16
    elements[23], elements[24] = s[FLOOR], s[QUANTILE]
    elements[25] = elements[0] - s[QUANTILE]
    elements[26], elements[27] = s[SPREAD_NOW], s[SLOW_SPREAD]


@njit_inner
def _noise(s: Any, seen: Any, path: float, recent: float, elements: Any) -> None:
    """Fill what `ScaleFreeNoise` adds for a sender with these minimum RTTs, s."""
    duration, acked, _, rtt_sum, _, _, _, _, cwnd, _ = seen
    if acked > 0.0:
        rtt = mean_rtt(acked, rtt_sum, recent)
        s[MEAN] = _smoothed(s[MEAN], rtt, min(duration / recent, 1.0))
        away = abs(math.log(max(rtt, LEAST_PATH) / max(s[MEAN], LEAST_PATH)))
        s[WANDER] += (away - s[WANDER]) / 16
    calm = _windowed_least(s, CALM_WINDOW, seen, WINDOW_S, s[MEAN])
    calm = max(calm, path) if math.isfinite(calm) else path
    cwnd = max(cwnd, 1.0)
    elements[28] = _log_ratio(calm, path)
    elements[29] = elements[0] - elements[28]
    elements[30] = math.log((s[FAST] * calm + 0.1) / cwnd)
    elements[31] = math.log((s[TOP] * calm + 0.1) / cwnd)
    elements[32] = s[WANDER]


@njit
def _observe(rows: Any, seen: Any, out: Any) -> None:
    """Count a step of every sender in its row, and fill ``out``, ``[N, size]``.

    ``seen`` holds the step's duration, packets acknowledged and lost, the RTTs' sum, least,
    greatest and last, the least ever, the window and packets in flight, ``[10, N]``.
    """
    for n in range(len(rows)):
        s, step, elements = rows[n], seen[:, n], out[n]
        path = _scale_free(s, step, elements)
        recent = path
        if len(elements) >= RECENT:
            recent = _recent(s, step, path, elements)
        if len(elements) >= SPREAD:
            _spread(s, step, path, elements)
        if len(elements) >= NOISE:
            _noise(s, step, path, recent, elements)


class ScaleFree(Running):
    """Ratios to the sender's own minimum RTT and rates, so that one policy fits every link."""

    size = SCALE_FREE
    _kept = RECENT_WINDOW  # columns of a row

    def __init__(self, n: int) -> None:
        super().__init__(n, rows=_INITIAL[: self._kept])
        # Compiled code is loaded now, not in a sender's first step.
        _observe(self.values["rows"][:0], np.zeros((10, 0)), np.zeros((0, self.size)))

    def observe(self, stats: IntervalStats) -> Floats:
        """Return ``[N, size]``."""
        columns = (
            *(stats.duration, stats.acked, stats.net_lost, stats.rtt_sum, stats.rtt_min),
            *(stats.rtt_max, stats.rtt_last, stats.min_rtt, stats.cwnd, stats.inflight),
        )
        rows = self.values["rows"]
        out = np.empty((len(rows), self.size))
        _observe(rows, np.array(columns), out)
        return out


class ScaleFreeRecent(ScaleFree):
    """`ScaleFree`, what the last round trips alone tell, and how the path was at its shortest."""

    size = RECENT
    _kept = FLOOR


class ScaleFreeSpread(ScaleFreeRecent):
    """`ScaleFreeRecent`, and what tells a jittering path from a queue."""

    size = SPREAD
    _kept = MEAN


class ScaleFreeNoise(ScaleFreeSpread):
    """`ScaleFreeSpread`, with the least RTT smoothed over a round trip: what noise leaves of it."""

    size = NOISE
    noise_held = 0.01
    _kept = len(_INITIAL)


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

    Source: Jay et al., ICML 2019, section 4.1; inflation is the change of the mean RTT over time.
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
        v["history"][:, :-1] = v["history"][:, 1:]
        v["history"][:, -1] = self._interval(stats, inflation, ratio)
        return v["history"].reshape(len(rtt), -1).copy()

    def _interval(self, stats: IntervalStats, inflation: Floats, ratio: Floats) -> Floats:
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
        "scale-free-noise": ScaleFreeNoise,
        "indigo": Indigo,
        "indigo-min-rtt": IndigoMinRtt,
        "aurora": Aurora,
        "genet": Genet,
    },
    having("size with_ewmas observe reset state_dict load_state_dict", made=False),
)


def noise_held(observation: str) -> float:
    """Return the noise in delay, s, up to which a policy keeps its path; see `windows`."""
    return float(getattr(OBSERVATIONS[observation], "noise_held", windows.NOISE))
