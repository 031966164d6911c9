"""The pages: self-contained HTML with their figures as PNG or PDF, and the numbers as JSON.

They load nothing from elsewhere and run no script; figures stand in them as SVG, for light and
dark pages. This room's other modules need neither jinja2 nor matplotlib, except for the plots.
Into a folder write::

    write_report     report.html, summary.json (distrlcc.evaluation.summary says which keys),
                     scatter.png (throughput against p95 queueing delay),
                     series-LINK.png, one for each link with time series
    write_fairness   fairness.html, fairness.json (docs/fairness.md says which keys),
                     fairness-CONTENDER.png, a link on which flows join and leave; .pdf likewise
    write_scorecard  scorecard.html, a row for each score; scorecard.json, with the gates
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from distrlcc.evaluation.fairness import SharedRun
from distrlcc.evaluation.fairness_summary import SuiteFairness, shown_metrics
from distrlcc.evaluation.fairness_summary import to_json as fairness_json
from distrlcc.evaluation.figures import DARK, LIGHT, encode, looks, svg_pictures
from distrlcc.evaluation.parallel_flows import ParallelFlows
from distrlcc.evaluation.plots import fairness_plot, scatter, time_series
from distrlcc.evaluation.published import series_json
from distrlcc.evaluation.scorecard import Scorecard
from distrlcc.evaluation.scores import (
    FAIRNESS_METRICS,
    SENDER_METRICS,
    TABLE_METRICS,
    Metric,
    SchemeScores,
    Series,
    metric,
    shown,
)
from distrlcc.evaluation.sim_to_real import RTT_BOUND, THROUGHPUT_BOUND, WorldComparison
from distrlcc.evaluation.summary import SchemeSummary, Summary, summarise, to_json
from distrlcc.files import require_writable, write_together
from distrlcc.sim.suites import unique_names

MAX_LINKS = 60
"""Links shown in the tables per link; all are in ``summary.json``."""

_TILES = ("power", "utilisation", "queueing_delay_rtt", "excess_loss")
_LINK_METRICS = (*_TILES[:3], "p95_queueing_delay_ms", _TILES[3])
_NO_RIVAL = "oracle"  # knows the link, so it is not marked as the best


@dataclass(frozen=True)
class ReportInfo:
    """What was run, as the page says it."""

    suite: str
    """Name of the suite, or of the traces."""
    command: str
    """The command that makes this report again."""
    versions: Mapping[str, str]
    """Of packages."""
    notes: tuple[str, ...] = ()
    """Sentences under the table, such as how long each link was run."""


def write_report(
    folder: Path, scores: Sequence[SchemeScores], series: Sequence[Series], info: ReportInfo
) -> Path:
    """Write the report of an evaluation and return its page; a full disk leaves no part of it.

    All scores are of the same links; series are of chosen ones, which stand in this order.

    Raises:
        OutputError: The folder cannot be written.
    """
    summary = summarise(scores)
    by_link: dict[str, list[Series]] = {}
    for one in series:
        by_link.setdefault(one.link, []).append(one)
    files = {"scatter.png": encode(scatter(summary), "png")}
    for name, lines in zip(_file_names("series", by_link), by_link.values(), strict=True):
        files[f"{name}.png"] = encode(time_series(lines, schemes=summary.names()), "png")
    files["summary.json"] = _json(to_json(summary) | {"series": series_json(series)})
    return _write_files(folder, files | {"report.html": render(summary, by_link, info).encode()})


def render(summary: Summary, by_link: Mapping[str, Sequence[Series]], info: ReportInfo) -> str:
    """Return the page's HTML."""
    # The best policy among its rivals, and its worst links.
    learned = [s for s in summary.schemes if s.learned]
    ranking = summary.ranking()
    rivals = [scheme for scheme in ranking if scheme != _NO_RIVAL]
    best = next((s for s in learned if s.scheme in rivals), None)
    links = _links(summary, learned)
    # The tables' columns, and the schemes' colours.
    columns = [_cells(summary, m) for m in TABLE_METRICS]
    link_metrics = [metric(key) for key in _LINK_METRICS]
    link_metrics += [m for m in summary.metrics if m in SENDER_METRICS]
    names = summary.names()
    light, dark = (looks(names, theme) for theme in (LIGHT, DARK))

    def drawn(lines: Sequence[Series]) -> dict[str, str]:
        return svg_pictures(lambda theme: time_series(lines, theme=theme, schemes=names))

    page = _template("report.html.jinja").render(
        info=info,
        policies=[each.scheme for each in learned],
        void=summary.void_notes(),
        summary=summary,
        scatter=svg_pictures(lambda theme: scatter(summary, theme=theme)),
        tiles=[(metric(key), best.overall[key]) for key in _TILES if best],
        best_policy=best.scheme if best else "",
        rank=rivals.index(best.scheme) + 1 if best else 0,
        rivals=rivals,
        ranking=ranking,
        intervals=summary.has_intervals,
        columns=TABLE_METRICS,
        rows=list(zip(summary.schemes, zip(*columns, strict=True), strict=True)),
        swatches=[(light[name].color, dark[name].color) for name, _ in names],
        links=links,
        link_tables=[(m, [_cells(summary, m, link) for link in links]) for m in link_metrics],
        left_out=len(summary.links) - len(links),
        worst_first=learned[0].scheme if learned else "",
        series=[(link, drawn(lines)) for link, lines in by_link.items()],
        senders=any(one.sender is not None for s in by_link.values() for one in s),
        metrics=summary.metrics,
    )
    return page + "\n"


def write_fairness(folder: Path, rows: Sequence[SuiteFairness], *, command: str) -> Path:
    """Write the fairness report and return its page; a full disk leaves no part of it.

    Rows are one for each contender and suite; ``command`` makes the report again.

    Raises:
        OutputError: The folder cannot be written.
    """
    # Of each contender the link with the most flows is drawn, of those on which its run counts.
    runs: dict[str, list[SharedRun]] = {}
    for row in rows:
        if counted := [run for run in row.runs if not run.broken]:
            runs.setdefault(row.contender, []).extend(counted)
    files = {"fairness.json": _json(fairness_json(rows))}
    pictures = []
    for name, contender in zip(_file_names("fairness", runs), runs, strict=True):
        run = max(runs[contender], key=lambda run: len(run.scenario.flows))
        draw = partial(fairness_plot, run, contender)
        files |= {f"{name}.{kind}": encode(draw(LIGHT), kind) for kind in ("png", "pdf")}
        shown = {"contender": contender, "link": run.scenario.name}
        pictures.append(shown | svg_pictures(draw))
    # The page has a table for each suite.
    suites = []
    for suite in dict.fromkeys(row.suite for row in rows):
        of_suite = [row for row in rows if row.suite == suite]
        suites.append({"name": suite, "metrics": shown_metrics(of_suite), "rows": of_suite})
    page = _template("fairness.html.jinja").render(
        command=command, suites=suites, pictures=pictures, metrics=FAIRNESS_METRICS
    )
    return _write_files(folder, files | {"fairness.html": f"{page}\n".encode()})


def write_scorecard(folder: Path, card: Scorecard, *, command: str) -> Path:
    """Write a scorecard and return its page; ``command`` makes it again.

    Raises:
        OutputError: The folder cannot be written.
    """
    page = _template("scorecard.html.jinja").render(card=card, command=command)
    files = {"scorecard.json": _json(card.to_json(), 1), "scorecard.html": f"{page}\n".encode()}
    return _write_files(folder, files)


def comparison_page(
    rows: Sequence[WorldComparison],
    notes: Sequence[str] = (),
    parallel: Sequence[ParallelFlows] = (),
) -> str:
    """Return the page that compares both worlds: a table, sentences, and several flows' table."""
    bounds = {"throughput_bound": THROUGHPUT_BOUND, "rtt_bound": RTT_BOUND}
    return _template("sim_to_real.html.jinja").render(
        rows=rows, parallel=parallel, notes=notes, **bounds
    )


def _write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder that is made for them, or none of them; return the last one."""
    require_writable(folder)
    write_together(folder, files)
    return folder / list(files)[-1]


def _template(name: str) -> jinja2.Template:
    """Return one of the pages' templates."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = shown
    environment.globals["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
    text = resources.files("distrlcc.evaluation").joinpath(name).read_text("utf-8")
    return environment.from_string(text)


def _json(value: dict[str, Any], indent: int | None = None) -> bytes:
    return f"{json.dumps(value, allow_nan=False, indent=indent)}\n".encode()


def _file_names(kind: str, names: Iterable[str]) -> list[str]:
    """Return names ``KIND-NAME`` that every file system takes, no two the same."""
    stems = [re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80] for name in names]
    return unique_names([f"{kind}-{stem or 'unnamed'}" for stem in stems], "{}-{}")


def _cells(summary: Summary, m: Metric, link: str | None = None) -> list[tuple[str, str, str]]:
    """Return each scheme's mean and half width as shown, and how: best, with ties, or void."""
    means = [s.overall if link is None else s.scenarios[link] for s in summary.schemes]
    texts = [found[m.key].texts(m) for found in means]
    # The oracle is no rival, and delays of some runs only are not the best.
    values = [
        math.nan
        if mean == "-" or s.scheme == _NO_RIVAL or (s.idle and m.better == "lower")
        else float(mean)
        for s, (mean, _) in zip(summary.schemes, texts, strict=True)
    ]
    judge = {"higher": max, "lower": min}.get(m.better or "")
    best = judge(filter(math.isfinite, values), default=None) if judge else None
    cells = [(*text, "best" * (v == best)) for text, v in zip(texts, values, strict=True)]
    # What is struck through: there is no run that counts.
    for place, s in enumerate(summary.schemes):
        if s.scheme in summary.without_runs or s.scheme in summary.left_out.get(link or "", ()):
            cells[place] = (m.text(summary.struck(s.scheme, m, link)), "", "void")
    return cells


def _links(summary: Summary, learned: Sequence[SchemeSummary]) -> list[str]:
    """Choose links for the tables per link: where the best policy has the least power."""
    if len(summary.links) <= MAX_LINKS or not learned:
        return list(summary.links[:MAX_LINKS])
    scenarios = learned[0].scenarios
    power = {link: scenarios[link]["power"].mean for link in summary.links}
    # Where it failed there is none, which is worse than any.
    return sorted(power, key=lambda link: (math.isfinite(power[link]), power[link]))[:MAX_LINKS]
