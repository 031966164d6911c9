"""Looks for the links on which properties fail, and shrinks them: plain draws, then a search.

Plain draws say in which share of the space each property holds. The search keeps, of each kind of
link, the one on which a property holds least, and changes these at random. This is MAP-Elites
(Mouret and Clune, https://arxiv.org/abs/1504.04909). The worst are then shrunk.
"""

import json
import math
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from distrlcc.config import to_toml
from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.space import (
    DIMENSIONS,
    Point,
    distance,
    drawn,
    fits,
    merged,
    scenario,
    simpler,
    uniforms,
)
from distrlcc.evaluation.stress import PROPERTIES, Judge, Property
from distrlcc.evaluation.tables import Cell, Table, plain_table
from distrlcc.files import require_writable, write_together
from distrlcc.limits import limits
from distrlcc.processes import die_with_parent
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import SuiteFile
from distrlcc.types import FloatArray

T = TypeVar("T")
CHUNK, GENERATION = 64, 2
"""Links that one process judges at once, and such chunks that the search chooses at once. The links
judged so do not depend on the number of processes."""
PLAIN, SEARCHED = 0.4, 0.65  # parts of the time after which plain draws and the search end
ROUNDS, STILL, BESIDE = 12, 0.9, 2
"""Steps of shrinking; the score up to which a simpler link still fails; and how many schemes that
is judged beside. A link that fails beside some does not hold beside all."""
APART = 1.5  # least distance of two links that are shrunk for the same property


@dataclass(frozen=True)
class Failure:
    """A link on which a property fails."""

    key: str  # of the property
    point: Point
    score: float
    found: Point  # the link that was shrunk to it


@dataclass
class Findings:
    """Findings so far, whole at any time, so that an interruption loses nothing."""

    properties: tuple[Property, ...]
    points: list[Point] = field(default_factory=list)
    draws: list[FloatArray] = field(default_factory=list)  # the uniforms of each point
    scores: list[FloatArray] = field(default_factory=list)  # scores of each point, [P]
    plain: int = 0  # how many of the points, the first ones, are plain draws
    failures: dict[str, Failure] = field(default_factory=dict)  # by name: `use-1` and so on
    interrupted: bool = False
    failure: str = ""  # why it ended before its time, if not by Ctrl-C

    def add(self, draws: FloatArray, points: Sequence[Point], scores: FloatArray) -> None:
        """Take links with their scores, ``[L, P]``."""
        self.draws += list(draws)
        self.points += points
        self.scores += list(scores)

    def shares(self) -> dict[str, dict[str, Any]]:
        """Return in what share of plain draws each property holds, and ``all`` that have a bar."""
        scores = np.array(self.scores[: self.plain]).reshape(-1, len(self.properties))
        gated = scores[:, [each.bar > 0 for each in self.properties]]
        columns = dict(zip((each.key for each in self.properties), scores.T, strict=True))
        seen = np.isfinite(gated).any(axis=1)
        columns["all"] = np.where(seen, (~(gated < 1).any(axis=1)).astype(float), np.nan)
        found = {}
        for key, column in columns.items():
            judged, held = int(np.isfinite(column).sum()), int((column >= 1).sum())
            share = held / judged if judged else None
            interval = wilson(held, judged) if judged else None
            found[key] = {"judged": judged, "held": held, "share": share, "interval": interval}
        return found

    def missed(self) -> list[str]:
        """Return the properties that hold in a share below their bar."""
        shares = {key: share["share"] for key, share in self.shares().items() if share["judged"]}
        return [p.key for p in self.properties if shares.get(p.key, p.bar) < p.bar]

    def unjudged(self) -> list[str]:
        """Return the properties with a bar that no plain draw was judged for."""
        shares = self.shares()
        return [p.key for p in self.properties if p.bar and not shares[p.key]["judged"]]

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        worst = {}
        for name, one in self.failures.items():
            links = {"link": one.point.told(), "found": one.found.told()}
            worst[name] = {"property": one.key, "score": float(f"{one.score:.4g}"), **links}
        return {
            "format": "distrlcc-stress",
            "version": 1,
            "plain": self.plain,
            "searched": len(self.points) - self.plain,
            "interrupted": self.interrupted,
            "shares": self.shares(),
            "bars": {each.key: each.bar for each in self.properties if each.bar},
            "missed": self.missed(),
            "worst": worst,
        }


def tables(figures: dict[str, Any], says: dict[str, str]) -> tuple[Table, Table]:
    """Return the tables of a search's figures: what holds where, and the worst links."""
    rows = []
    for key, share in figures["shares"].items():
        held = share["share"] if share["judged"] else None
        low, high = share["interval"] or (0.0, 0.0)
        bar = figures["bars"].get(key)
        how = "" if bar is None or held is None else "passed" if held >= bar else "failed"
        holds = Cell("-" if held is None else f"{held:.1%}", how=how, value=held)
        interval = "-" if held is None else f"{low:.1%} to {high:.1%}"
        bound, must = "" if bar is None else f"{bar:.0%}", says.get(key, "all that have a bar")
        rows.append((key, holds, interval, bound, str(share["judged"]), must))
    heads = ("property", "holds", "95% interval", "bar", "links", "what must hold")
    title = f"{figures['policy']} on {figures['plain']} plain draws of the space"
    shares = plain_table(title, heads, rows, "what must hold")
    worst = []
    for name, one in figures["worst"].items():
        link = ", ".join(f"{key} {value}" for key, value in one["link"].items())
        worst.append((name, Cell(f"{one['score']:.2f}", value=one["score"]), link))
    title = f"The worst of these and of {figures['searched']} searched links, made simple"
    return shares, plain_table(title, ("name", "score", "link"), worst, "link")


def wilson(held: int, judged: int) -> tuple[float, float]:
    """Return Wilson's interval of 95% of a share (JASA 1927)."""
    share, z = held / judged, 1.96
    middle = (held + z * z / 2) / (judged + z * z)
    half = z / (judged + z * z) * math.sqrt(judged * share * (1 - share) + z * z / 4)
    return max(middle - half, 0.0), min(middle + half, 1.0)


# Many processes

_judges: list[Judge] = []  # this process's judge: a fork has its parent's, so that nothing is sent


def _begin(judge: Judge, parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL, parent=parent)
    _judges[:] = [judge]


def _work(task: Callable[..., T], *args: Any) -> T:
    return task(_judges[0], *args)


class Workers:
    """Processes that do tasks of a judge."""

    def __init__(self, judge: Judge, processes: int) -> None:
        self.judge, self.processes = judge, processes
        self._before = set(multiprocessing.active_children())
        context = multiprocessing.get_context("fork")
        arguments = judge, os.getpid()
        self._pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=arguments)

    def map(self, task: Callable[..., T], batches: Iterable[Any]) -> Iterator[tuple[int, T]]:
        """Do a task of the judge and each batch; yield number and result, in order."""
        coming: Iterator[Any] = iter(batches)
        waiting = dict[int, Future[T]]()
        first = number = 0
        name = self.judge.contender.name
        try:
            while True:
                while len(waiting) < self.processes and (batch := next(coming, None)) is not None:
                    waiting[number] = self._pool.submit(_work, task, *batch)
                    number += 1
                if not waiting:
                    return
                if not wait(waiting.values(), limits().patience, FIRST_COMPLETED).done:
                    raise ConfigError(
                        f"{name}: no process has judged its links within {limits().patience:g} s; "
                        "see that its code ends"
                    )
                while first in waiting and waiting[first].done():
                    yield first, waiting.pop(first).result()
                    first += 1
        except BrokenProcessPool:
            raise ConfigError(
                f"{name}: a process that judged links has ended; see that its code does not end "
                "it and that there is memory, or use fewer --processes"
            ) from None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes at once, also those that are judging."""
        for process in set(multiprocessing.active_children()) - self._before:
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


def stress(
    judge: Judge,
    *,
    seconds: float = 60.0,
    links: int | None = None,
    seed: int = 0,
    processes: int = 1,
    most: int = 12,
    show: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Draw, search and shrink the ``most`` worst; Ctrl-C ends it, with what was found.

    It takes ``seconds``, or as long as it takes to judge so many plain ``links`` and as many
    searched ones. Equal seeds give equal plain draws, with any number of processes; with a number
    of links all is equal. Findings say what of a user's raised or did not come back.
    """
    findings = Findings(judge.properties)
    calm = Point(rate_mbps=1.0)
    odd = {"late_ms": 2.0}, {"aqm": "pie", "jitter_ms": 1.0}, {"flows": 2}, {"rival": "cubic"}
    # Compiles once for all processes; a user's code runs in these alone, which have a time limit.
    theirs = ":" in judge.contender.name
    known = replace(judge, contender=Contender("reno")) if theirs else judge
    known([calm, *(replace(calm, **each) for each in odd)])
    begin = time.monotonic()

    def until(part: float) -> float:
        return math.inf if links is not None else begin + part * seconds

    with Workers(judge, processes) as workers:
        try:
            _draw(workers, findings, seed, links, until(PLAIN), show)
            _search(workers, findings, seed, links, until(SEARCHED), show)
            _shrink(workers, findings, most, until(1.0), show)
        except KeyboardInterrupt:
            findings.interrupted = True
        except ConfigError as error:
            findings.failure = str(error)
    findings.failures = findings.failures or _named(_worst(findings, most))
    return findings


Show = Callable[[str], None]
Chunk = tuple[FloatArray, list[Point]]


def _inside(u: FloatArray, most: int | None) -> Chunk:
    """Return the uniforms whose links are in the space, at most so many, and the links."""
    points = list(map(drawn, u))
    places = [k for k, point in enumerate(points) if fits(point)][:most]
    return u[places], [points[k] for k in places]


def _draw(
    workers: Workers, findings: Findings, seed: int, links: int | None, until: float, show: Show
) -> None:
    chunks: list[Chunk] = []

    def batches() -> Iterator[tuple[list[Point]]]:
        wanted = links
        while time.monotonic() < until and wanted != 0:
            chunks.append(_inside(uniforms(seed, len(chunks) * CHUNK, CHUNK), wanted))
            wanted = None if wanted is None else wanted - len(chunks[-1][1])
            yield (chunks[-1][1],)

    for number, scores in workers.map(Judge.__call__, batches()):
        findings.add(*chunks[number], scores)
        findings.plain = len(findings.points)
        show(f"drawn: {findings.plain} links")


class Elites:
    """Keeps the least score of each kind of link and property, and the uniforms of that link."""

    def __init__(self) -> None:
        self.kept: dict[tuple[object, ...], tuple[float, FloatArray]] = {}

    def tell(self, draws: Iterable[FloatArray], points: Sequence[Point], scores: Any) -> None:
        """Take links ``[L]`` with their scores ``[L, P]``."""
        for u, point, row in zip(draws, points, scores, strict=True):
            sizes = (point.rate_mbps, point.rtt_ms, point.queue_bdp)
            kind = (*point.features(), *(math.floor(math.log10(size)) for size in sizes))
            for number in np.flatnonzero(np.isfinite(row)).tolist():
                place, score = (number, *kind), float(row[number])
                if place not in self.kept or score < self.kept[place][0]:
                    self.kept[place] = score, u

    def ask(self, count: int, random: np.random.Generator) -> FloatArray:
        """Return the uniforms of new links ``[count, D]``: some of the kept ones, changed."""
        rows = list(self.kept.values())
        # The worse, the more often; those that hold by far hardly ever.
        weight = np.exp([-2.0 * min(score, 4.0) for score, _ in rows])
        chosen = random.choice(len(rows), count, p=weight / weight.sum())
        u = np.array([rows[k][1] for k in chosen])
        u += random.normal(0.0, 0.05, u.shape)
        again = random.random(u.shape) < 2 / len(DIMENSIONS)
        new: FloatArray = np.where(again, random.random(u.shape), u)
        return np.clip(new, 0.0, np.nextafter(1.0, 0.0))


def _search(
    workers: Workers, findings: Findings, seed: int, links: int | None, until: float, show: Show
) -> None:
    elites, random = Elites(), np.random.default_rng([seed, 1])
    elites.tell(findings.draws, findings.points, findings.scores)
    done = 0
    while elites.kept and time.monotonic() < until and (links is None or done < links):
        chunks: list[Chunk] = []
        for _ in range(GENERATION):
            asked = elites.ask(CHUNK, random)
            chunks.append(_inside(asked, None if links is None else max(links - done, 0)))
            done += len(chunks[-1][1])
        for number, scores in workers.map(Judge.__call__, [(points,) for _, points in chunks]):
            elites.tell(*chunks[number], scores)
            findings.add(*chunks[number], scores)
            show(f"searched: {len(findings.points) - findings.plain} links")
            if time.monotonic() >= until:
                break


# The worst, made simple


def _worst(findings: Findings, most: int) -> list[Failure]:
    """Return failures of each property in turn, the worst first, unlike those that it has."""
    scores = np.array(findings.scores).reshape(-1, len(findings.properties))
    queues: list[list[Failure]] = []
    for column, each in zip(scores.T, findings.properties, strict=True):
        queue: list[Failure] = []
        for k in np.argsort(column, kind="stable").tolist():  # NaN is last
            point = findings.points[k]
            if not column[k] < 1 or len(queue) == most:
                break
            if all(distance(point, other.point) >= APART for other in queue):
                queue.append(Failure(each.key, point, float(column[k]), point))
        queues.append(queue)
    return [queue[k] for k in range(most) for queue in queues if k < len(queue)][:most]


def shrunk(judge: Judge, key: str, point: Point, score: float, until: float) -> tuple[Point, float]:
    """Return the simplest link that still fails, and its score; ``until`` is a monotonic time.

    Each step judges all simpler links. The changes of those that still fail are then made together,
    or as many of them as leave a link that fails.
    """
    judge = replace(judge.of((key,)), schemes=judge.schemes[:BESIDE])
    most, tried = max(STILL, score), set[Point]()

    def failing(points: Sequence[Point]) -> list[tuple[Point, float]]:
        new = [one for one in dict.fromkeys(points) if one not in tried]
        tried.update(new)
        return [(p, float(s)) for p, s in zip(new, judge(new)[:, 0], strict=True) if s <= most]

    for _ in range(ROUNDS):
        found = failing(list(simpler(point))) if time.monotonic() < until else []
        if not found:
            break
        together = merged(point, [one for one, _ in found])
        fewer = together[:: -max(len(together) // 4, 1)]
        point, score = next(iter(failing(fewer)), found[0])
    return point, score


def _shrink(workers: Workers, findings: Findings, most: int, until: float, show: Show) -> None:
    """Shrink the worst links, each in one process, and name those that are unlike each other."""
    worst = _worst(findings, most)
    batches = [(one.key, one.point, one.score, until) for one in worst]
    findings.failures = _named(worst)
    for number, (point, score) in workers.map(shrunk, batches):
        worst[number] = replace(worst[number], point=point, score=score)
        findings.failures = _named(worst)
        show(f"shrunk: {number + 1} of {len(worst)} links")


def _named(failures: Sequence[Failure]) -> dict[str, Failure]:
    keys = list(PROPERTIES)
    kept: dict[str, Failure] = {}
    for one in sorted(failures, key=lambda each: (keys.index(each.key), each.score)):
        mine = [other.point for other in kept.values() if other.key == one.key]
        same = (p.features() == one.point.features() and distance(p, one.point) < 1 for p in mine)
        if not any(same):
            kept[f"{one.key}-{len(mine) + 1}"] = one
    return kept


_OURS = re.compile(rf"worst(-flows)?\.toml|({'|'.join(PROPERTIES)})-\d+\.toml")


def write(folder: Path, findings: Findings, figures: dict[str, Any], page: str) -> Path:
    """Write figures and page, and the failures as suites, with one agent or several, and alone.

    Files that an earlier search's ``stress.json`` names are removed.
    """
    suites: dict[str, list[Scenario]] = {}
    files = {}
    for name, one in findings.failures.items():
        made = scenario(one.point, name)
        suites.setdefault("worst-flows" if one.point.agents > 1 else "worst", []).append(made)
        files[f"{name}.toml"] = to_toml(made).encode()
    for name, scenarios in suites.items():
        files[f"{name}.toml"] = to_toml(SuiteFile(tuple(scenarios), name)).encode()
    files["stress.json"] = f"{json.dumps(figures, indent=1, allow_nan=False)}\n".encode()
    files["stress.html"] = page.encode()
    require_writable(folder)
    old = set[str]()
    with suppress(OSError, ValueError, KeyError, TypeError):  # none, or a stranger's
        earlier = json.loads((folder / "stress.json").read_bytes())["worst"]
        old = {f"{name}.toml" for name in (*earlier, "worst", "worst-flows")} - files.keys()
    write_together(folder, files)
    for name in old:
        if _OURS.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
    return folder / "stress.html"
