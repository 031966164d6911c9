"""A link in a few numbers, and what senders do there.

A `Question`'s fields are the page's sliders, the flags of ``distrlcc try``, and the map's axes.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from distrlcc.board import quick
from distrlcc.config import override, to_toml, told
from distrlcc.control.state import SCHEMES
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.looks import color_pairs
from distrlcc.evaluation.runner import evaluate
from distrlcc.evaluation.scores import SchemeScores, Series, metric, shown
from distrlcc.evaluation.stress import measure
from distrlcc.evaluation.summary import figure, numbers
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.trace import load_trace

CELLS = 32
MOST_MBIT = 12_000.0  # what a link carries in one answer at most: a million packets
MOST_SENDERS = 6
SCORES = ("power", "utilisation", "queueing_delay_rtt", "p95_queueing_delay_ms", "excess_loss")
MEASURES = {"power": "power", "use": "share of the link used"}
_MAP_MBIT, _MAP_RTTS = 120.0, 30.0
"""Mbit that a link of a map carries, and its round trips; from 1.5 s up to 4 s."""


def _slider(
    default: float, low: float, high: float, unit: str, text: str, *, off: bool = False
) -> Any:
    """Return a number's field; with ``off`` it may be 0, which leaves the thing out."""
    return field(
        default=default, metadata={"low": low, "high": high, "unit": unit, "text": text, "off": off}
    )


def _choice(text: str, *choices: str) -> Any:
    return field(default="", metadata={"text": text, "choices": choices})


@dataclass(frozen=True)
class Question:
    """A link, what happens on it, and who else sends there."""

    rate: float = _slider(20.0, 0.1, 1000.0, "Mbit/s", "rate")
    rtt: float = _slider(40.0, 1.0, 1000.0, "ms", "round trip without a queue")
    queue: int = _slider(100, 1, 5000, "packets", "room in the queue")
    loss: float = _slider(0.0, 0.01, 20.0, "%", "random loss", off=True)
    jitter: float = _slider(0.0, 0.1, 100.0, "ms", "jitter of the path", off=True)
    ack_jitter: float = _slider(0.0, 0.1, 100.0, "ms", "jitter of acknowledgements", off=True)
    aqm: str = _choice("queue management", "codel", "pie")
    trace: str = _choice("a trace in place of the rate")
    beside: str = _choice("a second flow's scheme", *(name for name in SCHEMES if name != "agent"))
    beside_at: float = _slider(3.0, 0.1, 59.0, "s", "when it begins")
    change_at: float = _slider(0.0, 0.1, 59.0, "s", "when the link changes", off=True)
    change_rate: float = _slider(0.0, 0.1, 1000.0, "Mbit/s", "rate from then on", off=True)
    change_rtt: float = _slider(0.0, 1.0, 1000.0, "ms", "round trip from then on", off=True)
    seconds: float = _slider(10.0, 1.0, 60.0, "s", "time")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, meta = getattr(self, each.name), each.metadata
            if "low" in meta:
                absent = meta["off"] and value == 0
                if not (absent or meta["low"] <= value <= meta["high"]):
                    raise ConfigError(
                        f"{each.name} is {value:g}: expected {meta['low']:g} to {meta['high']:g} "
                        f"{meta['unit']}{', or 0 for none' * meta['off']}"
                    )
            elif value and meta["choices"] and value not in meta["choices"]:
                raise unknown_name(each.name, value, meta["choices"])
        if bool(self.change_at) != bool(self.change_rate or self.change_rtt):
            raise ConfigError(
                "change_at goes with change_rate or change_rtt: give a time and what changes then"
            )
        beside_at = self.beside_at if self.beside else 0.0
        for name, at in (("beside_at", beside_at), ("change_at", self.change_at)):
            if at >= self.seconds:
                raise ConfigError(
                    f"{name} is {at:g}: expected less than the {self.seconds:g} s that it takes"
                )
        if self.trace and self.change_rate:
            raise ConfigError("change_rate is for a rate; a trace has its own: leave one out")

    @classmethod
    def read(cls, texts: Mapping[str, str]) -> "Question":
        """Return the question of a page's address; raises ConfigError."""
        return override(cls(), [f"{name}={text}" for name, text in texts.items()])

    def scenario(self) -> Scenario:
        """Return the link with its flows; raises ConfigError if it carries too much, TraceError."""
        mbps = load_trace(self.trace).mean_mbps if self.trace else max(self.rate, self.change_rate)
        if mbps * self.seconds > MOST_MBIT:
            raise ConfigError(
                f"{mbps:g} Mbit/s for {self.seconds:g} s is {mbps * self.seconds:,.0f} Mbit; "
                f"expected at most {MOST_MBIT:,.0f}: take fewer seconds"
            )
        # A CoDel or PIE holds the packets that a droptail would.
        limit: dict[str, Any] = {"queue_packets": self.queue}
        if self.aqm:
            limit = {"aqm": f"{self.aqm}:packets={self.queue}"}
        changes: tuple[Change, ...] = ()
        if self.change_at:
            rate, rtt = self.change_rate or None, self.change_rtt or None
            changes = (Change(self.change_at, rate, None if rtt is None else rtt / 2),)
        link = Link(
            rate_mbps=None if self.trace else self.rate,
            trace=self.trace or None,
            delay_ms=self.rtt / 2,
            loss=self.loss / 100,
            jitter_ms=self.jitter,
            ack_jitter_ms=self.ack_jitter,
            changes=changes,
            **limit,
        )
        second = (Flow(self.beside, start_s=self.beside_at),) if self.beside else ()
        return Scenario("mine", link, (Flow(), *second), duration_s=self.seconds)

    def toml(self) -> str:
        """Return the scenario as a file for ``--suite`` and ``check link``."""
        return to_toml(self.scenario())

    def words(self) -> str:
        """Return the link in a line, with units: a loss here is in percent."""
        unsaid = {"rate" if self.trace else "", "" if self.beside else "beside_at"}
        said = [(f, getattr(self, f.name)) for f in fields(self) if f.name not in unsaid]
        units = [(f.name.replace("_", " "), value, f.metadata.get("unit", "")) for f, value in said]
        return ", ".join(f"{name} {value} {unit}".strip() for name, value, unit in units if value)

    def command(self, senders: Sequence[str]) -> str:
        """Return the ``distrlcc try`` that asks the same."""
        pairs = ((f"--{k.replace('_', '-')}", v) for k, v in told(self))
        flags = [f"{k}={v}" if isinstance(v, str) else f"{k}={v:g}" for k, v in pairs]
        return shlex.join(["distrlcc", "try", *flags, *senders])


@dataclass(frozen=True)
class Answer:
    """One sender's scores on a link."""

    contender: Contender
    scores: SchemeScores
    series: Series | None  # none where its run does not count; the scores say why

    def value(self, key: str) -> float:
        """Return a score."""
        return float(self.scores.figures[key][0, 0])

    def text(self, key: str) -> str:
        """Return a score as shown, with its unit."""
        text, unit = self.bare(key), metric(key).unit
        return text if text == "-" else f"{text}{'' if unit == '%' else ' '}{unit}".strip()

    def bare(self, key: str) -> str:
        """Return a score as shown in a column whose head has the unit."""
        return metric(key).text(self.value(key))


def answer(contender: Contender, question: Question) -> Answer:
    """Run one contender on a question's link; raises what `Question.scenario` raises."""
    scores, series = evaluate(contender, [question.scenario()], series_links=(0,), run=quick.run)
    return Answer(contender, scores, series[0] if series else None)


def page_of(
    question: Question, answers: Sequence[Answer], senders: Sequence[str]
) -> dict[str, Any]:
    """Return answers as the page takes them; of what is not defined null."""
    colors = color_pairs([(one.contender.name, one.contender.learned) for one in answers])
    drawn = [one.series for one in answers if one.series is not None]
    found: dict[str, Any] = {
        "toml": question.toml(),
        "command": question.command(senders),
        "scores": [
            {"key": key, "title": metric(key).title, "about": metric(key).definition}
            for key in SCORES
        ],
        "time": numbers(drawn[0].time_s) if drawn else [],
        "capacity": numbers(drawn[0].capacity_mbps) if drawn else [],
        "senders": [],
    }
    for one in answers:
        lines: dict[str, Any] = {}
        if one.series is not None:
            lines = {
                "rate": numbers(one.series.rate_mbps),
                "queue": numbers(one.series.queueing_delay_ms),
                "window": numbers(one.series.cwnd_packets),
                "others": numbers(one.series.others_mbps) if question.beside else None,
            }
        name = one.contender.name
        why = "; ".join(dict.fromkeys(one.scores.reasons.values()))
        scores = {key: [figure(one.value(key)), one.text(key), one.bare(key)] for key in SCORES}
        head = {"name": shown(name), "learned": one.contender.learned, "colors": colors[name]}
        found["senders"].append({**head, "why": why, "scores": scores, **lines})
    return found


AXES = ("rate", "rtt", "queue", "loss", "jitter", "ack_jitter")


def axis_values(name: str) -> list[float]:
    """Return `CELLS` values over a slider's range, equal steps of their logarithms."""
    meta = Question.__dataclass_fields__[name].metadata
    found = np.geomspace(meta["low"], meta["high"], CELLS).tolist()
    return [round(v) if name == "queue" else float(f"{v:.3g}") for v in found]


def map_of(
    question: Question, x: str, y: str, key: str, own: Contender, other: Contender
) -> dict[str, Any]:
    """Compare two contenders on `CELLS` by `CELLS` links; 2 is twice as much for the first.

    All else is as the question has it, except the time: a few dozen round trips. Raises ConfigError
    if there is no such axis or measure.
    """
    for name in (x, y):
        if name not in AXES:
            raise unknown_name("axis", name, AXES)
    if x == y:
        raise ConfigError(f"both axes are {x}; expected two")
    if key not in MEASURES:
        raise unknown_name("measure", key, MEASURES)
    if question.trace and "rate" in (x, y):
        raise ConfigError("rate says nothing of a trace; take another axis, or leave the trace out")
    xs, ys = axis_values(x), axis_values(y)
    plain = replace(question, change_at=0.0, change_rate=0.0, change_rtt=0.0, beside="")
    links = []
    for b in ys:
        for a in xs:
            at: dict[str, Any] = {x: a, y: b}
            one = replace(plain, **at)
            seconds = min(max(_MAP_RTTS * one.rtt / 1e3, 1.5), 4.0)
            # A fast link is over sooner, but not before some round trips.
            fast = max(_MAP_MBIT / one.rate, 10 * one.rtt / 1e3)
            links.append(replace(one, seconds=max(min(seconds, fast), 1.0)).scenario())
    mine, theirs = (measure(each, links, len(links)) for each in (own, other))
    what = "power" if key == "power" else "used"
    values, others = getattr(mine, what), getattr(theirs, what)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.clip(values / others, 1e-3, 1e3).reshape(len(ys), len(xs))
    ahead, behind = (ratio > 1.02).mean(), (ratio < 1 / 1.02).mean()
    names = shown(own.name), shown(other.name)
    says = (
        f"{names[0]} has more {MEASURES[key]} than {names[1]} on {ahead:.0%} of these "
        f"links, and less on {behind:.0%}."
    )
    grids = {"ratio": ratio, "own": values, "other": others}
    rows = {k: [numbers(row) for row in v.reshape(ratio.shape)] for k, v in grids.items()}
    axes = {"x": x, "y": y, "xs": xs, "ys": ys}
    return {**axes, "names": names, "measure": MEASURES[key], "says": says, **rows}
