"""Suites with the scores that are taken on them, and the scorecard with its gates."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.fairness import measure
from distrlcc.evaluation.recovery import recovery_scores
from distrlcc.evaluation.runner import evaluate
from distrlcc.evaluation.scores import FAIRNESS_METRICS, METRICS, RECOVERY_METRICS, Metric, shown
from distrlcc.evaluation.summary import MeanInterval, figure, over_links
from distrlcc.evaluation.tables import Cell, Column, Row, Table
from distrlcc.sim.suites import BEST_CWND, load_suite, trace_suite, unique_names

ALONE = ("power", "utilisation", "first_second_utilisation", "queueing_delay_rtt", "excess_loss")
"""Scores of one flow on a link: keys of `distrlcc.evaluation.scores.METRICS`."""
TOGETHER = ("jain", "utilisation", "queueing_delay_rtt", "converged", "convergence_s")
BESIDE = ("share", "tolerable", "utilisation", "queueing_delay_rtt")
"""Scores of several flows: keys of `distrlcc.evaluation.scores.FAIRNESS_METRICS`."""
RECOVERY = ("recovery_rtts", "recovered")
"""Scores after changes: keys of `distrlcc.evaluation.scores.RECOVERY_METRICS`."""
PREFER = ", prefer "  # between a suite and a preference in the labels of rows of results
RIVALS = ("cubic", "bbr", "vegas", "copa")


@dataclass(frozen=True)
class Benchmark:
    """Links on which contenders are scored."""

    suite: str  # a suite's name, or a link's; its split `test`
    peers: tuple[str, ...] = (*RIVALS, "oracle")  # schemes that are scored beside it
    links: int | None = None  # at most so many of its links
    metrics: tuple[str, ...] = ALONE
    prefer: float | None = None  # what a policy is told to prefer; None: its default
    name: str = ""  # what rows of results call the links; empty: as the suite
    is_trace: bool = False  # a trace: its link has 20 ms one way and a queue of 100 packets

    @property
    def label(self) -> str:
        """Name in rows of results."""
        after = ", after changes" if self.metrics == RECOVERY else ""
        prefer = "" if self.prefer is None else f"{PREFER}{self.prefer:g}"
        return f"{self.name or self.suite}{after}{prefer}"

    def means(self, contender: Contender) -> dict[str, float]:
        """Return a contender's means over the links; NaN where a run does not count."""
        return {key: found.mean for key, found in self.scores(contender)[0].items()}

    def scores(self, contender: Contender) -> tuple[dict[str, MeanInterval], str]:
        """Return a contender's means over links with a value, and why they are void (all NaN)."""
        suite = trace_suite([self.suite]) if self.is_trace else load_suite(self.suite)
        scenarios = suite.scenarios("test", self.links)
        if self.metrics == RECOVERY:
            return recovery_scores(contender, scenarios)
        if {"jain", "share"} & set(self.metrics):
            shared = measure(contender, self.suite, scenarios)
            return {m: shared.overall[m] for m in self.metrics}, "".join(map(str, shared.void[:1]))
        found, _ = evaluate(contender, scenarios)
        metrics = [known_metric(key, self.metrics) for key in self.metrics]
        void = found.void()
        values = found.values(metrics)
        values = np.full_like(values, math.nan) if void else values
        return over_links(metrics, values), "".join(map(str, void[:1]))


def known_metric(key: str, beside: Collection[str]) -> Metric:
    """Return how a score is shown, given the keys of those beside it."""
    shared = {"jain", "share"} & set(beside)
    known = FAIRNESS_METRICS if shared else METRICS + RECOVERY_METRICS
    return next(metric for metric in known if metric.key == key)


_ALONE = (*ALONE, "guarded")
_CROWD = (*TOGETHER, "excess_loss")
_LONE = (
    *("random", "dynamic", "cellular", "shallow", "jitter", "silent"),
    *("falls", "slow", "fast", "whole-ms", "lossy", "long", "satellite"),
    *("noisy", "wifi", "lan"),
    *("indigo", "aurora", "genet"),
)
BENCHMARKS = (
    *(Benchmark(suite, (), 64, _ALONE) for suite in _LONE),
    Benchmark("dynamic", (), 128, RECOVERY),
    *(
        Benchmark(suite, (), 32, _CROWD)
        for suite in ("shared-2", "shared-4", "shared-rtt", "shared")
    ),
    Benchmark("flows-32", (), 8, _CROWD),
    Benchmark("world", (), 64, ("jain", "utilisation", "queueing_delay_rtt", "excess_loss")),
    *(Benchmark(suite, (), 32, BESIDE) for suite in ("beside-cubic", "beside-bbr")),
)


@dataclass(frozen=True)
class Gate:
    """Bounds of a score."""

    low: float = -math.inf
    high: float = math.inf
    times: float = math.inf  # at most so many times what CUBIC has there, too
    ahead: bool = False  # at least what each of `RIVALS` and of those beside has, not `_KNOWING`

    def bounds(self, peers: Mapping[str, float]) -> tuple[float, float]:
        """Return the least and the greatest score that pass, beside schemes with these."""
        low = float(np.nanmax(list(peers.values()))) if self.ahead else self.low
        many = math.isfinite(self.times)
        return low, min(self.high, self.times * peers["cubic"]) if many else self.high

    def text(self, metric: Metric, peers: Mapping[str, float]) -> str:
        """Return the bounds as shown; empty without any."""
        pairs = zip("≥≤", self.bounds(peers), strict=True)
        return " ".join(f"{w} {metric.text(v)}" for w, v in pairs if math.isfinite(v))


GATES: dict[tuple[str, str], Gate] = {
    ("random", "power"): Gate(0.98),
    ("dynamic", "power"): Gate(0.92),
    ("dynamic, after changes", "recovery_rtts"): Gate(high=5.0),
    ("cellular", "power"): Gate(0.66),
    ("shallow", "power"): Gate(0.97),
    ("shallow", "excess_loss"): Gate(high=0.01),
    ("jitter", "utilisation"): Gate(0.97),
    ("silent", "power"): Gate(0.93),
    ("falls", "power"): Gate(0.96),
    ("slow", "power"): Gate(0.75),
    ("fast", "utilisation"): Gate(0.99),
    ("satellite", "utilisation"): Gate(0.95),
    ("noisy", "utilisation"): Gate(0.95),
    ("wifi", "utilisation"): Gate(0.95),
    ("lan", "utilisation"): Gate(0.98),
    ("shared-2", "jain"): Gate(0.98),
    ("shared-4", "jain"): Gate(0.98),
    ("shared-rtt", "jain"): Gate(0.94),
    ("flows-32", "jain"): Gate(0.9),
    ("flows-32", "excess_loss"): Gate(times=2.0),
    ("beside-cubic", "tolerable"): Gate(0.85),
    ("beside-bbr", "tolerable"): Gate(0.7),
}
"""Gates by links and score. Beside others they bound the share of links: a mean of shares would
hide a policy that takes nearly all of some links and nearly nothing of others."""
_KNOWING = ("oracle", BEST_CWND)  # they know the link


def on_traces(paths: Sequence[str]) -> list[Benchmark]:
    """Return the scores that are taken on recorded traces, each alone."""
    if paths:
        trace_suite(paths)
    labels = [benchmark.label for benchmark in BENCHMARKS]
    names = unique_names([*labels, *(Path(path).name for path in paths)])[len(labels) :]
    return [
        Benchmark(path, (), None, _ALONE, name=name, is_trace=True)
        for path, name in zip(paths, names, strict=True)
    ]


@dataclass(frozen=True)
class Line:
    """One score of all contenders on some links."""

    label: str
    bound: str  # its gate as shown; empty: none
    found: tuple[MeanInterval, ...]  # means with their tails
    passed: tuple[bool, ...]  # whether each is within the gate; True where there is none
    metric: Metric


@dataclass(frozen=True)
class Scorecard:
    """Contenders' scores."""

    contenders: tuple[Contender, ...]
    lines: tuple[Line, ...]
    void: tuple[str, ...] = ()  # a sentence on each contender and suite that does not count

    def failed(self, name: str) -> list[str]:
        """Return the gates that a contender does not pass."""
        k = [one.name for one in self.contenders].index(name)
        return [f"{line.label}: {line.metric.title}" for line in self.lines if not line.passed[k]]

    @property
    def verdicts(self) -> list[str]:
        """Void runs, and a sentence for each policy where there are gates."""
        found = list(self.void)
        for name, gates, failed in self.gates():
            more = f"; it misses {'; '.join(failed)}" if failed else ""
            found.append(f"{name} passes {gates - len(failed)} of {gates} gates{more}.")
        return found

    def gates(self) -> list[tuple[str, int, list[str]]]:
        """Return each policy with the number of gates, if there are any, and those it misses."""
        count = sum(bool(line.bound) for line in self.lines)
        names = [one.name for one in self.contenders if one.learned and count]
        return [(name, count, self.failed(name)) for name in names]

    def table(self, *, brief: bool = False) -> Table:
        """Return the table; a cross marks a policy outside a gate.

        A brief one has, of links without a gate, the first score, and utilisation beside power.
        """
        rows, told = list[Row](), {line.label for line in self.lines if line.bound}
        label, title = "", ""
        for line in self.lines:
            is_next = line.label == label
            beside = is_next and title == "power" and line.metric.key == "utilisation"
            if brief and not line.bound and line.label in told and not beside:
                continue
            told.add(line.label)
            label, title = line.label, line.metric.title
            cells = [Cell(line.bound)]
            for mean, passed, one in zip(line.found, line.passed, self.contenders, strict=True):
                how = ("passed" if passed else "failed") if line.bound and one.learned else ""
                text = line.metric.text(mean.mean) + " ✗" * (one.learned and not passed)
                tails = "; ".join(filter(None, mean.tails(line.metric)))
                cells.append(Cell(text, "", (tails,), how, figure(mean.mean)))
            rows.append(Row(f"{label}: {title}", cells, "first" * (not is_next)))
        names = [Column(shown(one.name)) for one in self.contenders]
        return Table("Scores", [Column("score", left=True), Column("gate"), *names], rows)

    def to_json(self) -> dict[str, Any]:
        """Return all figures, and which gates each policy fails."""
        scores: list[dict[str, Any]] = []
        for line in self.lines:
            scores.append({"links": line.label, "score": line.metric.title, "gate": line.bound})
            pairs = list(zip(self.contenders, line.found, strict=True))
            for key, part in (("values", "mean"), ("p10", "p10"), ("worst", "worst")):
                scores[-1][key] = {one.name: figure(getattr(found, part)) for one, found in pairs}
        failed = {one.name: self.failed(one.name) for one in self.contenders if one.learned}
        head = {"format": "distrlcc-scorecard", "version": 1}
        return {**head, "scores": scores, "void": list(self.void), "failed": failed}


def score(contenders: Sequence[Contender], benchmarks: Iterable[Benchmark]) -> Scorecard:
    """Score contenders on links of each kind."""
    lines, void = [], []
    for benchmark in benchmarks:
        scored = [benchmark.scores(contender) for contender in contenders]
        found = [scores for scores, _ in scored]
        for contender, (_, reason) in zip(contenders, scored, strict=True):
            if reason:
                void.append(f"{shown(contender.name)}, {benchmark.label}: no score ({reason}).")
        peers = _peers(benchmark, contenders, found)
        for key in benchmark.metrics:
            metric = known_metric(key, benchmark.metrics)
            gate, beside = _gate(benchmark, key), {n: its[key] for n, its in peers.items()}
            low, high = gate.bounds(beside)
            bound = gate.text(metric, beside)
            values = tuple(scores[key] for scores in found)
            passed = tuple(not bound or low <= each.mean <= high for each in values)
            lines.append(Line(benchmark.label, bound, values, passed, metric))
    return Scorecard(tuple(contenders), tuple(lines), tuple(void))


def _gate(benchmark: Benchmark, key: str) -> Gate:
    if benchmark.is_trace:
        return Gate(ahead=key == "power")
    return GATES.get((benchmark.label, key), Gate())


def _peers(
    benchmark: Benchmark, contenders: Sequence[Contender], found: Sequence[dict[str, MeanInterval]]
) -> dict[str, dict[str, float]]:
    """Return the scores of the schemes beside, and of those that a gate compares with."""
    peers = {
        one.name: {key: each.mean for key, each in scores.items()}
        for one, scores in zip(contenders, found, strict=True)
        if not (one.learned or one.name in _KNOWING)
    }
    gates = [_gate(benchmark, key) for key in benchmark.metrics]
    wanted: tuple[str, ...] = RIVALS if any(gate.ahead for gate in gates) else ()
    wanted = wanted or ("cubic",) * any(math.isfinite(gate.times) for gate in gates)
    missing = [name for name in wanted if name not in peers]
    return peers | {name: benchmark.means(Contender(name)) for name in missing}
