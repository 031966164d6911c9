"""The kernel's program in NumPy: the same whole numbers, bit for bit, for N connections at once.

What a connection has is a row of `CONNECTION`. See ``net/kernel/observe.bpf.h`` and
``network.bpf.h``, which have functions of the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import LEAST_PATH
from distrlcc.policy import kernel_layout as layout
from distrlcc.policy.fixed_point import SHIFT, Ints, exp, fixed, ln, mul, tanh
from distrlcc.policy.kernel_layout import ONE
from distrlcc.types import IntervalStats

LN_ONE, LN_RATE_SECOND = int(ln(np.array(ONE))), int(ln(np.array(65536 * 10**6)))
LN_400, LN_401, LN_1001 = (int(ln(np.array(x))) for x in (400, 401, 1001))
TENTH = 65536 * 10**5
"""0.1 packets, as a rate * 1 us."""
LEAST_PATH_US, WINDOW_US = int(fixed(LEAST_PATH, 10**6)), 4_000_000
MOST_RATE, MOST_US, MOST_PACKETS = 1 << 38, 1 << 24, (1 << 14) - 1
"""Bounds that keep products within 63 bits: 4 million packets/s, 16.8 s, and 16,383 in flight,
above which they are more than twice any window."""
INDIGO_RATE = round(1504 * 8 / 1e6 / 200 * 2**32)
"""A rate in Indigo's unit, 200 Mbit/s."""
CLIP = 10 * ONE


def intervals(stats: IntervalStats) -> NDArray[np.void]:
    """Return statistics ``[N]`` as the kernel would have them: whole microseconds and packets."""
    to = np.zeros(len(stats.duration), layout.INTERVAL)
    for name in ("duration", "rtt_sum", "rtt_min", "rtt_max", "rtt_last", "min_rtt"):
        to[name] = fixed(getattr(stats, name), 10**6)
    for name in ("sent", "acked", "lost", "inflight"):
        to[name] = getattr(stats, name)
    to["rtt_count"] = stats.acked
    to["delay"] = fixed(stats.delay_ewma, 1000 << 16)
    to["delivery_rate"] = fixed(stats.delivery_rate_ewma / (1504 * 8 / 1e6), 1 << 16)
    to["send_rate"] = fixed(stats.send_rate_ewma / (1504 * 8 / 1e6), 1 << 16)
    return to


def _least_of(a: Ints, b: Ints) -> Ints:
    """Return the lesser, where 0 means none."""
    return np.where(a == 0, b, np.where(b == 0, a, np.minimum(a, b)))


def _sigmoid(x: Ints) -> Ints:
    return np.asarray((ONE + tanh(x >> 1)) >> 1)


class IntegerPolicy:
    """A policy as the kernel runs it."""

    def __init__(self, policy: NDArray[np.void], count: int) -> None:
        """Take one `POLICY`, and how many connections there are."""
        self.policy = policy
        self.rows = np.zeros(count, layout.CONNECTION)
        self.begin(np.arange(count))

    def begin(self, which: NDArray[np.int64]) -> None:
        """Let some connections begin."""
        fresh = np.zeros(len(which), layout.CONNECTION)
        fresh["cwnd"], fresh["rate"] = self.policy["first_window"], self.policy["first_rate"]
        fresh["action"] = layout.MAX_ACTIONS
        self.rows[which] = fresh

    def step(self, draws: Any, begin: NDArray[np.int64] | None = None) -> None:
        """Observe ``rows["now"]`` and act.

        Args:
            draws: ``[N]``: of 32 bits, or standard normals in fixed point where actions are rates.
            begin: Connections that act for the first time, on nothing seen.
        """
        self._observe()
        if begin is not None:
            self.begin(begin)
        self._act(np.asarray(draws))

    def _signed(self, name: str) -> Ints:
        return np.asarray(self.rows["now"][name]).astype(np.int64)

    def _observe(self) -> None:
        rows = self.rows
        rows["now"]["duration"] = np.maximum(rows["now"]["duration"], 1)
        least = self._least("", WINDOW_US)
        space = list(layout.SPACES)[int(self.policy["observation"])]
        if space.startswith("scale-free"):
            min_rtt, ln_mean, rate, ln_cwnd = self._scale_free(least)
            if space != "scale-free":
                self._recent(min_rtt, ln_mean, rate, ln_cwnd)
            if space == "scale-free-spread":
                self._spread(min_rtt)
        elif space.startswith("indigo"):
            self._indigo()
        else:
            self._history(space == "genet")

    def _least(self, prefix: str, length: Ints | int) -> Ints:
        """Return the least RTT of the last one to two windows, us; 0: none."""
        rows, names = self.rows, [prefix + n for n in ("window", "least", "least_before")]
        window, least, before = (rows[name].astype(np.int64) for name in names)
        window += self._signed("duration")
        over = window >= length
        before, least = np.where(over, least, before), np.where(over, 0, least)
        window = np.where(over, 0, window)
        seen = self._signed("acked") > 0
        least = np.where(seen, _least_of(least, self._signed("rtt_min")), least)
        rows[names[0]], rows[names[1]], rows[names[2]] = window, least, before
        return _least_of(least, before)

    def _share(self, rate: Ints, us: Ints, ln_cwnd: Ints) -> Ints:
        """Return ln((rate * time + 0.1) / cwnd)."""
        return np.asarray(ln(rate * np.minimum(us, MOST_US) + TENTH) - LN_RATE_SECOND - ln_cwnd)

    def _scale_free(self, min_rtt: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        rows, put = self.rows, self.rows["observation"].T
        duration, acked, lost, ever = map(self._signed, ("duration", "acked", "lost", "min_rtt"))
        seen = acked > 0
        # The path's least RTT, and the step's mean one.
        min_rtt = np.maximum(np.where(min_rtt == 0, ever, min_rtt), LEAST_PATH_US)
        min_rtt = np.where(ever == 0, 100_000, min_rtt)
        ln_min = ln(min_rtt)
        count = self._signed("rtt_count")
        mean = ln(self._signed("rtt_sum")) - ln(count)
        ln_mean = np.where(seen & (count > 0), mean, ln(self._signed("rtt_last")))
        rows["idle"] = idle = np.where(seen, 0, rows["idle"].astype(np.int64) + duration)
        rows["age"] = age = rows["age"].astype(np.int64) + duration
        # Delay: of the step, smoothed, and its change.
        delay = np.clip(np.maximum(ln_mean, ln(idle)) - ln_min, 0, LN_401)
        delay = np.where(ever > 0, delay, 0)
        put[0], put[2] = delay, delay - rows["delay"]
        rows["delay"] = delay
        weight = np.where(duration >= min_rtt, ONE, (duration << SHIFT) // min_rtt)
        rows["slow_delay"] += mul(weight, delay - rows["slow_delay"]) >> 2
        put[1] = rows["slow_delay"]
        # Rates: 0 means none yet, and stays 1 where a float would not be 0.
        rate = np.minimum((acked * 10**6 << 16) // duration, MOST_RATE)
        fast, slow = rows["fast"].copy(), rows["slow"].copy()
        fresh = (fast == 0) & seen
        alive = ((fast > 0) & (weight < ONE)).astype(np.int64)
        rows["fast"] = np.where(fresh, rate, np.maximum(fast + mul(weight, rate - fast), alive))
        rows["slow"] = np.where(fresh, rate, slow + (mul(weight, rate - slow) >> 2))
        rows["lately"] = np.maximum(
            rows["fast"], rows["lately"] - (mul(rows["lately"], weight) >> 4)
        )
        fade = mul(rows["top"], weight * 167_772 >> SHIFT)
        rows["top"] = np.maximum(rows["fast"], rows["top"] - fade)
        share = (lost << SHIFT) // np.maximum(lost + acked, 1)
        rows["loss"] += (share - rows["loss"]) * 1_677_722 >> SHIFT
        # Beside the window.
        cwnd = np.maximum(rows["cwnd"], ONE)
        ln_cwnd = ln(cwnd) - LN_ONE
        for number, name in enumerate(("fast", "slow", "top")):
            put[3 + number] = self._share(rows[name], min_rtt, ln_cwnd)
        put[6], put[7] = ln_cwnd - 4 * ONE, ln(min_rtt * 30) - ln(np.array(10**6))
        put[8], put[9] = share, rows["loss"]
        put[10] = ln(idle + min_rtt) - ln_min
        put[11] = np.minimum(ln(age + min_rtt) - ln_min, 3 * ONE) - 3 * ONE
        inflight = np.minimum(self._signed("inflight"), MOST_PACKETS)
        put[12] = np.minimum((inflight << 2 * SHIFT) // cwnd, 2 * ONE)
        put[13] = ln(acked + 1) - 2 * ONE
        return min_rtt, ln_mean, rate, ln_cwnd

    def _average(self, name: str, value: Ints, share: Ints) -> Ints:
        """Move an average towards a value; 0 means none yet."""
        old = self.rows[name].copy()
        alive = ((old > 0) & (share < ONE)).astype(np.int64)
        moved = np.maximum(old + mul(share, value - old), alive)
        self.rows[name] = moved = np.where(old == 0, value, moved)
        return moved

    def _recent(self, min_rtt: Ints, ln_mean: Ints, rate: Ints, ln_cwnd: Ints) -> None:
        rows, put, ln_min = self.rows, self.rows["observation"].T, ln(min_rtt)
        duration, acked, ever = map(self._signed, ("duration", "acked", "min_rtt"))
        # The least RTT of the last round trips.
        unseen = np.maximum(self._signed("rtt_last"), min_rtt)
        recent = _least_of(*(rows[f"recent_least{n}"].astype(np.int64) for n in ("", "_before")))
        recent = np.where(recent == 0, unseen, recent)
        recent = self._least("recent_", 2 * np.maximum(recent, LEAST_PATH_US))
        recent = np.maximum(np.where(recent == 0, unseen, recent), LEAST_PATH_US)
        ln_recent = ln(recent)
        put[14] = np.clip(ln_recent - ln_min, 0, LN_400)
        put[15] = np.clip(np.where(acked > 0, ln_mean, ln_recent) - ln_recent, 0, LN_400)
        # Rates and windows over as long.
        weight = np.where(duration >= recent, ONE, (duration << SHIFT) // recent)
        quick = self._average("quick", rate, np.minimum(3 * weight, ONE))
        for number, value in enumerate((rows["fast"], quick, rate)):
            put[16 + number] = self._share(value, recent, ln_cwnd)
        put[19] = ln_cwnd - self._average("cwnd_fast", ln_cwnd, weight)
        put[20] = ln_cwnd - self._average("cwnd_slow", ln_cwnd, weight >> 2)
        # Packets that wait; 1/16 us.
        count = self._signed("rtt_count")
        mean = (self._signed("rtt_sum") << 4) // np.maximum(count, 1)
        mean = np.where((acked > 0) & (count > 0), mean, recent << 4)
        waiting = np.clip(mean - (min_rtt << 4), 0, MOST_US << 4)
        put[21] = ln((rows["fast"] >> 4) * waiting + 65536 * 10**6) - LN_RATE_SECOND
        ever = np.where(ever > 0, np.maximum(ever, LEAST_PATH_US), min_rtt)
        put[22] = np.clip(ln_min - ln(ever), 0, LN_400)

    def _spread(self, min_rtt: Ints) -> None:
        rows, put = self.rows, self.rows["observation"].T
        seen = (self._signed("acked") > 0) & (self._signed("rtt_count") > 0)
        least, most = np.maximum(self._signed("rtt_min"), LEAST_PATH_US), self._signed("rtt_max")
        least, most = ln(least), ln(most)
        rows["floor"] = np.where(seen, np.clip(least - ln(min_rtt), 0, LN_400), rows["floor"])
        away = np.where(seen, rows["floor"] - rows["quantile"], 0)
        rows["quantile"] += np.where(away < 0, away >> 3, away >> 6)
        rows["spread"] = np.where(seen, np.clip(most - least, 0, LN_400), rows["spread"])
        rows["slow_spread"] += np.where(seen, rows["spread"] - rows["slow_spread"] >> 4, 0)
        put[23], put[24], put[25] = rows["floor"], rows["quantile"], put[0] - rows["quantile"]
        put[26], put[27] = rows["spread"], rows["slow_spread"]

    def _indigo(self) -> None:
        put = self.rows["observation"].T
        put[0] = (self._signed("delay") << 8) // 200_000
        put[1] = self._signed("delivery_rate") * INDIGO_RATE >> SHIFT
        put[2] = self._signed("send_rate") * INDIGO_RATE >> SHIFT
        put[3] = self.rows["cwnd"] // 5000
        put[4] = (self._signed("min_rtt") << SHIFT) // 100_000

    def _history(self, genet: bool) -> None:
        rows, put = self.rows, self.rows["observation"].T
        names = ("duration", "acked", "sent", "min_rtt", "rtt_count")
        duration, acked, sent, ever, count = map(self._signed, names)
        # Mean RTTs in us with 16 bits after the point.
        mean = (self._signed("rtt_sum") << 16) // np.maximum(count, 1)
        seen = (acked > 0) & (count > 0)
        rtt = np.where(seen, mean, rows["rtt"])
        change = np.where((rows["rtt"] > 0) & seen, rtt - rows["rtt"], 0)
        steep = np.sign(change) * ((np.abs(change) << 8) // duration)
        inflation = np.clip(steep, -ONE, (1 if genet else 10) * ONE)
        rows["rtt"] = rtt
        put[:27] = put[3:30].copy()
        put[27] = inflation
        known = ever > 0
        if genet:
            inflated = np.clip(ln(rtt) - ln(ever << 16), 0, LN_1001)
            put[28] = np.where(known, inflated, 0)
            put[29] = ln(10 * acked + 1) - ln(10 * sent + 1)
        else:
            inflated = (rtt << 8) // np.maximum(ever, 1) - ONE
            put[28] = np.where(known, np.clip(inflated, 0, 100 * ONE) // 10, 0)
            each = (sent + (acked == 0) << SHIFT) // np.maximum(acked, 1)
            put[29] = np.minimum(each, 101 * ONE) // 10 - ONE // 10

    def _act(self, draws: Ints) -> None:
        """Choose an action, and set window or rate."""
        rows, policy = self.rows, self.policy
        head = self.head()
        if not policy["actions"]:
            noise = mul(policy["deviation"], draws) if policy["sample"] else 0
            rows["answer"] = answer = np.clip(head[:, 0] + noise, -CLIP, CLIP)
            rows["action"] = 0
            factor = ONE + mul(np.abs(answer), policy["scale"])
            rate = rows["rate"]
            rate = np.where(answer >= 0, mul(rate, factor), (rate << SHIFT) // factor)
            rate = np.clip(rate, policy["least_rate"], policy["greatest_rate"])
            rows["rate"] = self._allowed(rows["rate"], rate)
            return
        likeliest = head.argmax(axis=1)
        rows["action"] = action = self._sampled(head, draws) if policy["sample"] else likeliest
        cwnd = np.minimum(rows["cwnd"], policy["greatest_window"])
        cwnd = mul(cwnd, policy["factor"][action]) + policy["offset"][action]
        cwnd = np.clip(cwnd, policy["least_window"], policy["greatest_window"])
        rows["cwnd"] = self._allowed(rows["cwnd"], cwnd)

    def _allowed(self, old: Ints, new: Ints) -> Ints:
        """Return what the guard leaves of it; no growth where the application is the limit."""
        if self.policy["growth"]:
            new = np.maximum(self._bounded(old, new), self.policy["least_window"])
        new = np.where(self.rows["limited"] > 0, np.minimum(old, new), new)
        guard = self.rows["guard"]
        alone, bounded = guard["window"], np.minimum(new, guard["window"])
        most = np.where(guard["on"] == layout.OUTSIDE, alone, bounded)
        return np.asarray(np.where(guard["on"] > 0, most if self.policy["actions"] else old, new))

    def _bounded(self, old: Ints, new: Ints) -> Ints:
        """Return windows bounded by the policy's growth, and by eight recent BDPs."""
        rows = self.rows
        growth = np.minimum(self._signed("acked"), MOST_PACKETS) << SHIFT
        new = np.minimum(new, old + growth * int(self.policy["growth"]))
        rtt = _least_of(rows["least"].astype(np.int64), rows["least_before"].astype(np.int64))
        rtt = np.where(rtt == 0, self._signed("min_rtt"), rtt)
        rtt = np.minimum(rtt, 4 * self._signed("min_rtt"))
        known = (rows["lately"] > 0) & (rtt > 0)
        most = rows["lately"] * np.clip(rtt, LEAST_PATH_US, MOST_US) // 10**6
        return np.where(known, np.minimum(new, (most << SHIFT - 13) + 10 * ONE), new)

    def _sampled(self, head: Ints, draws: Ints) -> Ints:
        """Return actions by the inverse CDF; draws are of 32 bits."""
        sums = np.cumsum(exp(head - head.max(axis=1, keepdims=True)), axis=1)
        cut = (sums[:, -1] >> 4) * draws >> 28
        return np.asarray((sums[:, :-1] <= cut[:, None]).sum(axis=1))

    def head(self) -> Ints:
        """Return logits or the mean ``[N, A]`` of what is seen; the recurrent state moves on."""
        policy, dense = self.policy, int(self.policy["dense"])
        features = self._inputs()
        for number in range(dense):
            features = self._layer(number, features)
        if policy["state"]:
            recur = self._mingru if policy["gates"] == 2 else self._lstm
            seen = features[:, : int(policy["state_input"])]
            features = recur(dense, seen)
            dense += 1
            if policy["post_hidden"]:
                features = self._layer(dense, np.concatenate([seen, features], axis=1))
                dense += 1
        return self._layer(dense, features)

    def _lstm(self, number: int, features: Ints) -> Ints:
        size = int(self.policy["state"])
        both = np.concatenate([features, self.rows["hidden"][:, :size]], axis=1)
        gates = self._layer(number, both).reshape(len(both), 4, size)
        i, f, o = (_sigmoid(gates[:, k]) for k in (0, 1, 3))
        cell = mul(f, self.rows["cell"][:, :size]) + mul(i, tanh(gates[:, 2]))
        cell = np.clip(cell, -layout.CELL_GREATEST, layout.CELL_GREATEST)
        self.rows["cell"][:, :size] = cell
        self.rows["hidden"][:, :size] = hidden = mul(o, tanh(cell))
        return hidden

    def _mingru(self, number: int, features: Ints) -> Ints:
        size = int(self.policy["state"])
        gates = self._layer(number, features)
        hidden = self.rows["hidden"][:, :size]
        hidden += mul(_sigmoid(gates[:, :size]), tanh(gates[:, size:]) - hidden)
        return hidden

    def _inputs(self) -> Ints:
        """Return what is seen, the previous action and the preference, normalised."""
        rows, policy = self.rows, self.policy
        size, actions = int(policy["observed"]), int(policy["actions"])
        seen = rows["observation"]
        seen[:, size:] = 0
        if actions:
            began = np.flatnonzero(rows["action"] < layout.MAX_ACTIONS)
            seen[began, size + rows["action"][began]] = ONE
        else:
            seen[:, size] = rows["answer"]
        if policy["has_preference"]:
            seen[:, size + max(actions, 1)] = policy["preference"]
        away = np.clip(seen - policy["mean"], -64 * ONE, 64 * ONE)
        return np.asarray(np.clip(away * policy["inverse"] >> 20, -CLIP, CLIP))

    def _layer(self, number: int, inputs: Ints) -> Ints:
        shape, policy = self.policy["layers"][number], self.policy
        rows, columns, place, first, activation = map(int, shape)
        weights = policy["weights"][place : place + rows * columns].astype(np.int64) - (1 << 31)
        width = min(columns, inputs.shape[1])
        sums = inputs[:, :width] @ weights.reshape(rows, columns)[:, :width].T
        out: Ints = (sums >> layout.WEIGHT_SHIFT) + policy["biases"][first : first + rows]
        if activation == layout.TANH:
            return tanh(out)
        return np.asarray(np.maximum(out, 0) if activation == layout.RELU else out)
