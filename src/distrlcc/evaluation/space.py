"""The space of links that `distrlcc.evaluation.stress` searches: one line for each dimension.

A `Point` says what its link is, and `scenario` builds it. `drawn` makes a point of uniforms, so
that whatever draws or searches needs to know nothing of links; `simpler` makes it simpler, one step
at a time. Some dimensions are features: a link has them or not.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np

from distrlcc.errors import ConfigError, unknown_name
from distrlcc.seeding import stream_key, uniform
from distrlcc.sim.families import bdp_packets, between
from distrlcc.sim.scenario import JITTERS, MAX_POLICER_PACKETS, Change, Flow, Link, Scenario
from distrlcc.sim.suites import mean_rate_mbps
from distrlcc.sim.trace import load_trace
from distrlcc.types import FloatArray

RTTS, LEAST_S, MOST_S = 40.0, 10.0, 30.0
MOST_RTTS, SHORTEST_S, MOST_PACKETS = 2000.0, 1.0, 400_000.0
"""A link lasts `RTTS` round trips, within `LEAST_S` and `MOST_S`. `MOST_RTTS` is the limit if that
exceeds `SHORTEST_S`, and no link carries more than `MOST_PACKETS`."""
MOST_BDP = 20_000.0  # packets in a round trip, noise counted: links with more are not in the space
POLICED, POLICED_RTT_MS, POLICED_RTTS = 0.1, 5.0, 400.0
"""With a policer a link has this part of `MOST_BDP` and `MOST_PACKETS` at most, at least this RTT,
and at most so many round trips. A scheme that ignores losses would send ever more into it."""
FEW_PACKETS, COPA_SENDS = 4, 2e7
"""Copa ignores losses. Without a standing queue (policers, AQM or a queue of so few packets) it
sends about half of rate times round trips. Above this it does not run."""
MOST_TRACE_MBPS = 100.0
MOST_CHANGES = 64
NOISE = ("jitter_ms", "ack_jitter_ms", "ack_tick_ms", "late_ms")
RIVALS = ("cubic", "bbr", "copa", "vegas", "reno")
_SEEDS = 64


@dataclass(frozen=True)
class Dimension:
    """Which values a field of `Point` takes."""

    low: float = 0.0
    high: float = 0.0  # ends of a log-uniform distribution; zeros where there are `choices`
    choices: tuple[str, ...] = ()  # names instead of numbers
    share: float = 1.0  # of the draws that have it; 1: all links have a value
    needs: str = ""  # fields, parted by spaces, without any of which it says nothing
    whole: bool = False

    @property
    def is_feature(self) -> bool:
        """Whether a link can do without it: then it is 0 or empty."""
        return self.share < 1 and not self.needs

    def applies(self, point: "Point") -> bool:
        """Say whether a point has what it needs."""
        return not self.needs or any(getattr(point, name) for name in self.needs.split())

    def value(self, u: float) -> Any:
        """Return the value at ``u`` in [0, 1): low uniforms are those without the feature."""
        if self.share < 1:
            if u < 1 - self.share:
                return "" if self.choices else 0 if self.whole else 0.0
            u = (u - 1 + self.share) / self.share
        if self.choices:
            return self.choices[int(u * len(self.choices))]
        value = between(u, self.low, self.high)
        return round(value) if self.whole else _rounded(value, 3)

    def read(self, name: str, text: str) -> Any:
        """Return a value as a user writes it; raises ConfigError where there is no such value."""
        if self.choices:
            if text not in self.choices:
                raise unknown_name(name, text, self.choices)
            return text
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high or (self.whole and value % 1):
            kind = "a whole number" if self.whole else "a number"
            raise ConfigError(
                f"{name} is {text!r}: expected {kind} from {self.low:g} to {self.high:g}"
            )
        return int(value) if self.whole else value

    def place(self, value: Any) -> float:
        """Return where a value lies, from 0 to 1; a feature that is absent is at -1."""
        if not value:
            return -1.0
        if self.choices:
            return self.choices.index(value) + 0.0
        return math.log(value / self.low) / math.log(self.high / self.low)


def _in(low: float, high: float, calm: float = 0, **more: Any) -> Any:
    """Return a field of numbers; ``calm`` is what simple links have."""
    return field(default=calm, metadata={"dimension": Dimension(low, high, **more)})


def _of(*choices: str, share: float, needs: str = "") -> Any:
    dimension = Dimension(choices=choices, share=share, needs=needs)
    return field(default="", metadata={"dimension": dimension})


@dataclass(frozen=True)
class Point:
    """A link of the space, by default the simplest; fields with names of `Link`'s go there."""

    rate_mbps: float = _in(0.05, 1e4, 20.0)  # of a generated cellular trace it says nothing
    rtt_ms: float = _in(0.02, 3e3, 40.0)
    queue_bdp: float = _in(0.01, 16.0, 1.0)  # of the BDP, or of 4 packets if that is more
    aqm: str = _of("codel", "pie", "codel-ecn", "pie-ecn", "mark", share=0.15)
    """In place of droptail; ``mark`` is a droptail that marks from a fifth of its room on."""
    loss: float = _in(1e-4, 0.05, share=0.2)
    jitter_ms: float = _in(0.05, 50.0, share=0.2)
    jitter_kind: str = _of(*JITTERS[1:], share=0.6, needs="jitter_ms")
    ack_jitter_ms: float = _in(0.05, 50.0, share=0.3)
    ack_jitter_kind: str = _of(*JITTERS[1:], share=0.6, needs="ack_jitter_ms")
    ack_tick_ms: float = _in(0.1, 50.0, share=0.1)
    delayed_acks: str = _of("yes", share=0.15)
    late_ms: float = _in(0.1, 50.0, share=0.1)  # by how much packets come late and are overtaken
    late_share: float = _in(1e-3, 0.3, 0.05, needs="late_ms")
    policer: float = _in(0.3, 0.9, share=0.07)  # rate of a token bucket, of the link's
    policer_bdp: float = _in(0.1, 8.0, 1.0, needs="policer")  # of its own BDP; 4 packets or more
    rate_factor: float = _in(0.1, 0.8, share=0.12)  # of the rate in every other `change_s`
    delay_factor: float = _in(0.25, 4.0, share=0.1)
    change_s: float = _in(0.2, 20.0, 3.0, needs="rate_factor delay_factor")
    silence_s: float = _in(0.05, 3.0, share=0.07)  # nothing leaves for so long from the middle on
    trace: str = _of("cellular", "poisson", "constant", share=0.1)
    flows: int = _in(2, 32, share=0.2, whole=True)  # flows of the policy; 0 is one
    rival: str = _of("cubic", "cubic", *RIVALS, share=0.3)  # the scheme of one flow more
    start: float = _in(0.01, 0.2, share=0.5, needs="flows rival")
    """The flows begin one after the other, the last after this share of the time."""
    rival_first: str = _of("yes", share=0.5, needs="rival")
    seed: int = field(default=0, metadata={"dimension": Dimension(1, _SEEDS, whole=True)})

    def features(self) -> tuple[str, ...]:
        """Return the names of what is not on every link."""
        return tuple(n for n, d in DIMENSIONS.items() if d.is_feature and getattr(self, n))

    @property
    def noise_ms(self) -> float:
        """The greatest noise in a round trip's delay."""
        return float(sum(getattr(self, name) for name in NOISE))

    @property
    def agents(self) -> int:
        """How many flows run the policy."""
        return max(self.flows, 1)

    def told(self) -> dict[str, Any]:
        """Return the fields that say something, by name."""
        return {n: v for n, v in asdict(self).items() if v and DIMENSIONS[n].applies(self)}


DIMENSIONS: dict[str, Dimension] = {f.name: f.metadata["dimension"] for f in fields(Point)}
SIMPLEST = Point()
_LINK = {f.name for f in fields(Link)} - {"rate_mbps", "trace", "delayed_acks", "aqm"}


def _tidy(point: Point) -> Point:
    """Return a point whose fields that say nothing are the simplest link's."""
    idle = {n: getattr(SIMPLEST, n) for n, d in DIMENSIONS.items() if not d.applies(point)}
    if point.trace == "cellular":
        idle["rate_mbps"] = SIMPLEST.rate_mbps
    return replace(point, **idle)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def drawn(u: Sequence[float] | FloatArray) -> Point:
    """Return the point of uniforms in [0, 1), one for each of `DIMENSIONS`."""
    values = {n: d.value(float(x)) for (n, d), x in zip(DIMENSIONS.items(), u, strict=True)}
    return _tidy(Point(**values))


def uniforms(seed: int, first: int, count: int) -> FloatArray:
    """Return the draws ``first`` to ``first + count`` of a seed, ``[count, D]``."""
    numbers = np.arange(first, first + count)[:, None]
    return uniform(stream_key(seed, "stress"), numbers, np.arange(len(DIMENSIONS)))


def distance(one: Point, other: Point) -> float:
    """Return how unlike two points are but for seeds: a dimension adds 0 to 1, and 1 if lacking."""
    total = 0.0
    for name, dimension in DIMENSIONS.items():
        a, b = (dimension.place(getattr(point, name)) for point in (one, other))
        total += 0.0 if name == "seed" else min(abs(a - b), 1.0)
    return total


# From a point to its scenario


def scenario(point: Point, name: str = "stress") -> Scenario:
    """Return the scenario of a point, or refuse one that is not in the space."""
    # The link's rate, its longest round trip and its queue.
    traced = _trace(point) if point.trace else None
    rate = load_trace(traced).mean_mbps if traced else point.rate_mbps
    longest = point.rtt_ms * max(point.delay_factor, 1.0) + point.noise_ms
    less = POLICED if point.policer else 1.0
    if bdp_packets(rate, longest) > MOST_BDP * less:
        raise ConfigError(f"{name}: more than {MOST_BDP * less:g} packets in a round trip")
    if point.policer and point.rtt_ms < POLICED_RTT_MS:
        raise ConfigError(f"{name}: a policer needs an RTT of {POLICED_RTT_MS:g} ms or more")
    given = {n: getattr(point, n) for n in DIMENSIONS if n in _LINK and getattr(point, n)}
    packets = max(round(point.queue_bdp * max(bdp_packets(rate, point.rtt_ms), 4.0)), 1)
    if point.aqm == "mark":
        given["aqm"] = f"droptail:packets={max(packets, 2)},mark={max(packets // 5, 1)}"
    elif point.aqm:
        kind, _, marks = point.aqm.partition("-")
        given["aqm"] = f"{kind}:packets={packets}{',ecn=1' * bool(marks)}"
    else:
        given["queue_packets"] = packets
    # What has a unit of its own here.
    if point.late_ms:
        given["reorder"] = f"{point.late_share:g}:{point.late_ms:g}"
    seconds = min(max(RTTS * longest * 1e-3, LEAST_S), MOST_S)
    seconds = min(seconds, max(MOST_RTTS * longest * 1e-3, SHORTEST_S))
    if point.policer:
        seconds = min(seconds, POLICED_RTTS * longest * 1e-3)
        policed = _rounded(rate * point.policer, 4)
        burst = round(point.policer_bdp * bdp_packets(policed, point.rtt_ms))
        given["policer_packets"] = min(max(burst, 4), MAX_POLICER_PACKETS)
        given["policer_mbps"] = policed
    seconds = _rounded(min(seconds, MOST_PACKETS * less / bdp_packets(rate, 1e3)), 3)
    link = Link(
        rate_mbps=None if traced else rate,
        trace=traced,
        delay_ms=point.rtt_ms / 2,
        delayed_acks=bool(point.delayed_acks),
        changes=_changes(point, rate, seconds, constant=traced is None),
        **given,
    )
    made = Scenario(name, link, _flows(point, seconds), duration_s=seconds, seed=point.seed)
    if point.rival == "copa" and not runs_copa(point, made):
        raise ConfigError(f"{name}: Copa would send too much as a rival")
    return made


def without_noise(made: Scenario) -> Scenario:
    """Return the same scenario without noise in its delay."""
    calm: dict[str, Any] = dict.fromkeys(("jitter_ms", "ack_jitter_ms", "ack_tick_ms"), 0.0)
    calm |= dict.fromkeys(("jitter_kind", "ack_jitter_kind"), "uniform")
    return replace(made, link=replace(made.link, reorder=None, **calm))


def runs_copa(point: Point, made: Scenario) -> bool:
    """Say whether Copa may run on a link: it sends no more than `COPA_SENDS` there."""
    if not (point.aqm or point.policer) and (made.link.queue_packets or 0) > FEW_PACKETS:
        return True
    packets = bdp_packets(mean_rate_mbps(made), 1e3 * made.duration_s)
    return packets * 1e3 * made.duration_s / point.rtt_ms / 2 < COPA_SENDS


def _trace(point: Point) -> str:
    if point.trace == "cellular":
        return f"cellular:{1000 + point.seed}"
    if point.rate_mbps > MOST_TRACE_MBPS:
        raise ConfigError(f"a trace of {point.rate_mbps:g} Mbit/s is too large")
    if point.trace == "poisson":
        return f"poisson:{point.rate_mbps:g}:{point.seed}"
    each = bdp_packets(1.0, 100.0)  # whole packets in 100 ms have a short period
    return f"constant:{max(round(point.rate_mbps * each), 1) / each:.5f}"


def _changes(point: Point, rate: float, seconds: float, *, constant: bool) -> tuple[Change, ...]:
    """Return what changes when: rate and delay to and fro, and a silence."""
    if not constant and (point.rate_factor or point.silence_s):
        raise ConfigError("a trace's rate does not change")
    moves = bool(point.rate_factor or point.delay_factor)
    count = min(math.ceil(seconds / point.change_s) - 1, MOST_CHANGES) if moves else 0
    turns = [round(k * point.change_s, 4) for k in range(1, count + 1)]
    silent = round(seconds / 2, 3)
    again = round(silent + min(point.silence_s, seconds / 4), 3)
    found = []
    for time in sorted({*turns, *((silent, again) if point.silence_s else ())}):
        odd = sum(turn <= time for turn in turns) % 2
        now = 0.0 if silent <= time < again else rate * (point.rate_factor or 1.0) ** odd
        delay = _rounded(point.rtt_ms / 2 * (point.delay_factor or 1.0) ** odd, 6)
        new_rate = _rounded(now, 6) if point.rate_factor or point.silence_s else None
        found.append(Change(time, new_rate, delay if point.delay_factor else None))
    return tuple(found)


def _flows(point: Point, seconds: float) -> tuple[Flow, ...]:
    schemes = ["agent"] * point.agents + [point.rival] * bool(point.rival)
    order = list(range(len(schemes)))
    order = [*order[1:], 0] if point.rival_first else order
    step = point.start * seconds / max(len(schemes) - 1, 1)
    marks = "ecn" in point.aqm or point.aqm == "mark"
    return tuple(
        Flow(scheme, start_s=round(place * step, 3), ecn=marks)
        for scheme, place in zip(schemes, order, strict=True)
    )


@cache
def fits(point: Point) -> bool:
    """Say whether a point is in the space."""
    try:
        scenario(point)
    except ConfigError:
        return False
    return True


# Shrinking


def simpler(point: Point) -> Iterator[Point]:
    """Yield simpler points, the simplest first, as Hypothesis shrinks."""
    features = point.features()
    steps: list[dict[str, Any]] = []
    off = {name: getattr(SIMPLEST, name) for name in features}
    if len(features) > 1:
        steps += [off | {name: getattr(point, name)} for name in features]  # with one alone
    steps += [{name: value} for name, value in off.items()]
    steps += [{"rival_first": ""}, {"start": 0.0}, {"seed": 0}]
    for name, dimension in DIMENSIONS.items():
        value, calm = getattr(point, name), getattr(SIMPLEST, name)
        if not dimension.choices and value and value != calm and name != "seed":
            steps += [{name: each} for each in _nearer(dimension, value, calm)]
    seen = {point}
    for step in steps:
        one = _tidy(replace(point, **step))
        if one not in seen and fits(one):
            seen.add(one)
            yield one


def _nearer(dimension: Dimension, value: float, calm: float) -> Iterator[float]:
    """Yield the simplest value or the least, some on the way there, and rounder ones."""
    end = calm or dimension.low
    ways = [end, *(value * (end / value) ** share for share in (0.5, 0.25, 0.1, 0.03))]
    if dimension.whole:
        yield from (max(round(way), 2) for way in ways)
        return
    yield ways[0]
    yield from (_rounded(way, 2) for way in ways[1:] if abs(math.log(way / value)) > 0.03)
    yield from (_rounded(value, digits) for digits in (1, 2))


def merged(point: Point, others: Sequence[Point]) -> list[Point]:
    """Return a point with others' changes, but those to a field that one before has changed."""
    was, found = asdict(point), list[Point]()
    changes: dict[str, Any] = {}
    for other in others:
        own = {n: v for n, v in asdict(other).items() if v != was[n]}
        if not own.keys() & changes.keys():
            changes |= own
            found.append(_tidy(replace(point, **changes)))
    return [one for one in found if fits(one)]
