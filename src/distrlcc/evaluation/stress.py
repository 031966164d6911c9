"""Properties that a congestion control must hold on every link, judged beside schemes there.

A `Property` gives each link a score: by how much it holds. At 1 it just holds, at 0.5 it is half of
what it must be, and NaN says that it has no meaning there. All is counted from a third of the time
on, when all flows have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.fairness import jain_index
from distrlcc.evaluation.runner import MBIT, SCHEME_STEP_MS, loaded, simulate
from distrlcc.evaluation.space import Point, runs_copa, scenario, without_noise
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import mean_rate_mbps
from distrlcc.types import NANOSECONDS, FloatArray

SCHEMES = ("cubic", "bbr", "copa", "vegas", "reno")
"""Schemes beside which a policy is judged; the bounds that name CUBIC use the first one."""
ROOM = 4.0  # packets for each flow, in BDP and queue together: with less no share is judged
MOST_SCORE = 10.0  # greater scores count as this
_COUNTS = (col.SENT, col.DELIVERED, col.DROPPED, col.QUEUEING_SUM)
_TOGETHER = 64  # links in one call, which last about equally long


class Figures(np.recarray[Any, Any]):
    """Figures of a contender on L links, ``[L]``; NaN where it was not run."""

    used: FloatArray  # share of what the link could carry, by all flows
    power: FloatArray  # that, times the round trip without a queue (with noise) over the mean one
    queue_s: FloatArray  # mean queueing delay of the agents' packets, s
    sent: FloatArray  # packets of the agents
    dropped: FloatArray  # of these, by the queue
    ratio: FloatArray  # what an agent delivers in the mean, over what the rival does; NaN: no rival
    jain: FloatArray  # Jain's index of the agents
    broken: FloatArray  # 1 where its scheme, a user's, broke


def _figures(count: int, *columns: FloatArray) -> Figures:
    """Return figures of so many links, NaN without columns."""
    found = np.full(count, np.nan, [(name, float) for name in Figures.__annotations__])
    for name, column in zip(found.dtype.names or (), columns, strict=False):
        found[name] = column
    return found.view(Figures)


def measure(
    contender: Contender, scenarios: Sequence[Scenario], together: int = _TOGETHER
) -> Figures:
    """Run a contender as every agent of L scenarios, at most so many together."""
    found = _figures(len(scenarios))
    # Links that last about equally long share a batch: it steps until the last one is over.
    seconds = np.array([s.duration_s for s in scenarios])
    order = np.argsort(seconds, kind="stable")
    while len(order):
        near = int((seconds[order] <= 1.5 * seconds[order[0]]).sum())
        part, order = np.split(order, [min(near, together)])
        found[part] = _measure(contender, [scenarios[n] for n in part.tolist()])
    return found


def _measure(contender: Contender, scenarios: list[Scenario]) -> Figures:
    # A row for each agent of a policy; a scheme decides nothing in a step, which may be long.
    count = len(scenarios)
    agents = np.array([sum(f.scheme == "agent" for f in s.flows) for s in scenarios])
    rooms = agents if contender.learned else np.ones(count, int)
    config = replace(contender.env_config(), agents=int(rooms.max()))
    if not contender.learned:
        config = replace(config, step_ms=SCHEME_STEP_MS)
    batch = loaded(contender, scenarios, config, rooms=rooms)
    n_flows = batch.n_flows
    ends = np.array([float(round(s.duration_s * NANOSECONDS)) for s in scenarios])
    warm = ends / 3
    # Sums over the steps, and counts where they begin and end.
    sums, begins = np.zeros((3, count)), np.zeros((4, count, n_flows))
    lasts, broken, warmed = begins.copy(), [""] * count, np.zeros(count, bool)
    for then, now in simulate(contender, batch, scenarios, 0, broken):
        results = batch.simulator.results
        capacity, used = results[:, col.CAPACITY], results[:, col.USED]
        base = batch.base_rtt[batch.first]
        seen = (then >= warm) & (then < ends)
        sums += np.where(seen, [capacity, used, base * capacity], 0.0)
        crossed, over = (now >= warm) & ~warmed, (now >= ends) & (then < ends)
        if (crossed | over).any():
            counts = batch.simulator.flows[:, _COUNTS].T.reshape(begins.shape).astype(float)
            begins[:, crossed], lasts[:, over] = counts[:, crossed], counts[:, over]
            warmed |= crossed
    if (now < ends).any() and all(broken):
        raise ConfigError(f"{contender.name} on {scenarios[0].name}: {broken[0]}")
    capacity, used, base = sums
    counted = lasts - begins
    flows = np.arange(n_flows)
    own = flows < agents[:, None]
    rivals = (flows < [[len(s.flows)] for s in scenarios]) & ~own
    sent, delivered, dropped, queueing = np.where(own, counted, 0.0).sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        base_s = np.where(capacity > 0, base / capacity, np.nan)
        traced = np.array([s.link.trace is not None for s in scenarios])
        base_s = np.maximum(base_s, 1e-3 * traced)
        queue_s = queueing / delivered / NANOSECONDS
        theirs = np.where(rivals, counted[1], 0.0).sum(axis=1)
        ratio = np.where(rivals.any(axis=1), delivered / agents / theirs, np.nan)
        share = used / capacity
        power = np.where(delivered > 0, share * base_s / (base_s + queue_s), 0.0)
    jain = jain_index(np.where(own, counted[1], np.nan).T)
    was = np.array([float(bool(each)) for each in broken])
    return _figures(count, share, power, queue_s, sent, dropped, ratio, jain, was)


@dataclass
class Seen:
    """L links with what ran there."""

    points: Sequence[Point]
    scenarios: Sequence[Scenario]
    own: Figures
    schemes: dict[str, Figures]
    quiet: Figures  # the policy on the same links without noise, where there is noise

    def best(self, name: str) -> FloatArray:
        """Return the greatest figure of the schemes, ``[L]``; NaN where none has run."""
        values = np.array([getattr(each, name) for each in self.schemes.values()])
        best: FloatArray = np.fmax.reduce(values, axis=0)
        return best

    @property
    def cubic(self) -> Figures:
        """Figures of the first of the schemes."""
        return next(iter(self.schemes.values()))

    def of(self, name: str) -> FloatArray:
        """Return a field of the points, ``[L]``."""
        return np.array([getattr(point, name) for point in self.points], float)

    @property
    def rate(self) -> FloatArray:
        """Mean rates of the links, Mbit/s ``[L]``."""
        return np.array([mean_rate_mbps(made) for made in self.scenarios])

    @property
    def room(self) -> NDArray[np.bool_]:
        """Where BDP and queue hold `ROOM` packets of each flow, ``[L]``."""
        depth = [s.link.queue.packets or 0 for s in self.scenarios]
        bdp = self.rate * self.of("rtt_ms") * 1e-3 / MBIT
        return bdp + depth >= ROOM * np.array([len(s.flows) for s in self.scenarios])


def _use(seen: Seen) -> FloatArray:
    return seen.own.used / (0.8 * seen.best("used"))


def _power(seen: Seen) -> FloatArray:
    return seen.own.power / (0.9 * seen.best("power"))


def _queue(seen: Seen) -> FloatArray:
    # A delay of a tenth of the round trip, two packets and 2 ms together is always allowed.
    packet = MBIT / seen.rate
    none = 2e-3 + 1e-4 * seen.of("rtt_ms") + 2 * packet
    comparable = seen.cubic.used >= 0.9 * seen.own.used
    score = np.fmax(seen.cubic.queue_s, none) / np.maximum(seen.own.queue_s, 1e-9)
    return np.where(comparable, score, np.nan)


def _loss(seen: Seen) -> FloatArray:
    # Five lost packets and half a per cent are always allowed.
    own, cubic = seen.own, seen.cubic
    share = np.fmax(2 * cubic.dropped / np.maximum(cubic.sent, 1.0), 0.005)
    return (share * own.sent + 5.0) / np.maximum(own.dropped, 1e-9)


def _noise(seen: Seen) -> FloatArray:
    held = np.minimum(0.5 * seen.quiet.used, 0.8 * seen.best("used"))  # NaN without noise
    return seen.own.used / held


def _beside(seen: Seen, *, cubic: bool) -> FloatArray:
    # Where CUBIC's own share is further from an equal one, the agent's may be, too.
    theirs, own = seen.cubic.ratio, seen.own.ratio
    score = np.minimum(own / np.fmin(theirs, 1 / 3), np.fmax(theirs, 3.0) / own)
    where = np.array([p.rival != "" and (p.rival == "cubic") == cubic for p in seen.points])
    return np.where(where & seen.room, score, np.nan)


def _fair(seen: Seen) -> FloatArray:
    score = seen.own.jain / np.fmin(0.9, 0.9 * seen.cubic.jain)
    return np.where((seen.of("flows") > 1) & seen.room, score, np.nan)


@dataclass(frozen=True)
class Property:
    """A property, and in which share of the space it must hold."""

    key: str
    says: str
    score: Callable[[Seen], FloatArray] = field(repr=False)
    bar: float  # least share of the links on which it holds for `--gates`; 0: it is only told
    all_schemes: bool = False  # whether all of `SCHEMES` run for it, or the first one
    alone: bool = False  # whether it is judged on links without a rival alone
    noisy: bool = False  # whether it needs the link without its noise, too


_SHARE = "gets a third to three times of what CUBIC beside it gets"
_BEST = {"all_schemes": True, "alone": True}
_ALL = (
    Property("use", "uses 0.8 of what the best scheme uses", _use, 0.97, **_BEST),
    Property(
        "queue", "queues no longer than {first}, where that uses as much", _queue, 0.95, alone=True
    ),
    Property("loss", "loses at most twice what {first} loses in the queue", _loss, 0.95),
    Property("noise", "noise in delay leaves half of its use", _noise, 0.97, **_BEST, noisy=True),
    Property("beside-cubic", _SHARE, partial(_beside, cubic=True), 0.85),
    Property(
        "beside-others",
        "the same beside BBR, Copa, Vegas and Reno",
        partial(_beside, cubic=False),
        0.7,
    ),
    Property("fair", "Jain's index of its flows is 0.9, or 0.9 of {first}'s", _fair, 0.9),
    Property("power", "power within 10% of the best scheme's", _power, 0.0, **_BEST),
)
PROPERTIES = {one.key: one for one in _ALL}


@dataclass(frozen=True)
class Judge:
    """Scores links, as one process does."""

    contender: Contender
    properties: tuple[Property, ...] = tuple(PROPERTIES.values())
    schemes: tuple[str, ...] = SCHEMES

    def of(self, keys: Sequence[str]) -> Judge:
        """Return the judge of some of the properties."""
        return replace(self, properties=tuple(p for p in self.properties if p.key in keys))

    def __call__(self, points: Sequence[Point]) -> FloatArray:
        """Return scores from 0 to `MOST_SCORE`, ``[L, P]``; 0 where the policy, a scheme, broke."""
        if not points:
            return np.zeros((0, len(self.properties)))
        scenarios = [scenario(point, f"stress-{k}") for k, point in enumerate(points)]
        count, alone = len(points), np.array([not point.rival for point in points])
        sane = np.array(list(map(runs_copa, points, scenarios)))
        noisy = np.array([point.noise_ms > 0 for point in points])
        noisy &= alone & any(each.noisy for each in self.properties)

        def run(contender: Contender, where: NDArray[np.bool_]) -> tuple[Figures, Figures]:
            """Return figures on some links, and on those without their noise, in one batch."""
            places, calm = np.flatnonzero(where), np.flatnonzero(where & noisy)
            if contender is not self.contender:
                calm = calm[:0]
            made = [scenarios[k] for k in places.tolist()]
            made += [without_noise(scenarios[k]) for k in calm.tolist()]
            found, quiet, both = _figures(count), _figures(count), measure(contender, made)
            found[places], quiet[calm] = np.split(both, [len(places)])
            return found, quiet

        several = any(each.all_schemes for each in self.properties)
        names = self.schemes if several else self.schemes[:1]

        def where(name: str) -> NDArray[np.bool_]:
            asked = alone if name in names[1:] else np.ones(count, bool)
            return asked & (sane | (name != "copa"))

        schemes = {name: run(Contender(name), where(name))[0] for name in names}
        own, quiet = run(self.contender, sane | (self.contender.scheme != "copa"))
        seen = Seen(points, scenarios, own, schemes, quiet)
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = [each.score(seen) for each in self.properties]
        scores = np.stack(columns, axis=1)
        for column, each in zip(scores.T, self.properties, strict=True):
            column[~alone if each.alone else np.zeros(count, bool)] = np.nan
            column[(own.broken == 1) & np.isfinite(column)] = 0.0
        return np.minimum(scores, MOST_SCORE)
