"""The pages, of one template: what each says, with figures and numbers in files beside them."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distrlcc.errors import TraceError, counted
from distrlcc.evaluation.both_worlds import BOUNDS, ParallelFlows, WorldComparison
from distrlcc.evaluation.fairness import SharedRun, SuiteFairness, table
from distrlcc.evaluation.fairness import to_json as fairness_json
from distrlcc.evaluation.figures import encode
from distrlcc.evaluation.flow_log import binned, events_of
from distrlcc.evaluation.page import Chart, Page, Section, Tile, lines_chart
from distrlcc.evaluation.plots import drawn, heatmap, over_time, scatter, scattered, shared_link
from distrlcc.evaluation.published import csv_text, series_json
from distrlcc.evaluation.runner import MBIT
from distrlcc.evaluation.scorecard import Scorecard
from distrlcc.evaluation.scores import (
    FAIRNESS_METRICS,
    RECOVERY_METRICS,
    SENDER_METRICS,
    SchemeScores,
    Series,
    bucket_edges,
    metric,
    shown,
)
from distrlcc.evaluation.summary import (
    ORACLE,
    MeansRow,
    SchemeSummary,
    Summary,
    cells_of,
    ranked,
    summarise,
    to_json,
)
from distrlcc.evaluation.tables import BELOW, Cell, Table, plain_table
from distrlcc.files import require_writable, write_together
from distrlcc.sim.link import Log
from distrlcc.sim.suites import unique_names
from distrlcc.sim.trace import Trace
from distrlcc.types import PACKET_BYTES, FloatArray

_TILES = ("power", "utilisation", "queueing_delay_rtt", "excess_loss")
_LINK_METRICS = (*_TILES[:3], "p95_queueing_delay_ms", _TILES[3])
_PARALLEL = ("Mbit/s", "mean RTT, ms", "lost, %", "Jain")
_ON_INTERVALS = (
    "95% percentile-bootstrap interval of the mean over links; a link's seeds are drawn together. "
    "Over a single link, seeds are drawn; a single value has no interval. A link on which nothing "
    "was delivered has no delay and is left out of the delays' means."
)


@dataclass(frozen=True)
class ReportInfo:
    """The run that a page reports."""

    suite: str  # name of the suite, or of the traces
    command: str  # the command that makes this report again
    versions: Mapping[str, str]  # of packages
    notes: tuple[str, ...] = ()  # sentences under the table, such as how long each link was run


def write_report(
    folder: Path, scores: Sequence[SchemeScores], series: Sequence[Series], info: ReportInfo
) -> Path:
    """Write the report of an evaluation and return its page; a full disk leaves no part of it."""
    summary = summarise(scores)
    by_link: dict[str, list[Series]] = {}
    for one in series:
        by_link.setdefault(one.link, []).append(one)
    named = zip(_file_names("series", by_link), by_link.values(), strict=True)
    charts = [over_time(name, lines, summary.names()) for name, lines in named]
    files = {"scatter.png": encode(scatter(summary), "png")}
    files |= {f"{chart.id}.png": encode(drawn(chart), "png") for chart in charts}
    means = ranked(summary, marked=True)
    files["table.csv"] = _csv(means, summary.schemes).encode()
    files["table.tex"] = _latex(means).encode()
    of = {"suite": info.suite, "command": info.command, "versions": dict(info.versions)}
    files["summary.json"] = _json(to_json(summary) | of | {"series": series_json(series)})
    return _write_files(folder, files | {"report.html": render(summary, charts, info).encode()})


def render(summary: Summary, charts: Sequence[Chart], info: ReportInfo) -> str:
    """Return the page's HTML, with figures of some links over time."""
    links, seeds = len(summary.links), summary.seeds
    sections = [Section("Throughput against delay", [scattered(summary)])]
    sections.append(Section("Ranked by power", [ranked(summary), *_under_table(summary, info)]))
    if charts:
        sections.append(Section("Over time", [*charts, _under_series(charts)]))
    means = " ± half of the 95% bootstrap interval over seeds" if seeds > 1 else ""
    per_link = _per_link(summary, {chart.title: chart.id for chart in charts})
    sections.append(Section("Per link", [per_link, f"Mean over seeds{means}."]))
    policies = ", ".join(one.scheme for one in summary.schemes if one.learned)
    facts = {
        "suite": f"{info.suite}: {counted(links)}",
        **({"policies": policies} if policies else {}),
        "seeds": ", ".join(map(str, range(seeds))),
        "versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
    }
    lead = f"{counted(len(summary.schemes), 'scheme')} on {counted(links)} of {info.suite}, "
    lead += f"{counted(seeds, 'seed')} each"
    definitions = {m.title: m.definition for m in summary.metrics}
    definitions["± and crosses"] = _ON_INTERVALS
    says = lead, summary.answer(), _tiles(summary), facts, definitions
    return Page("Congestion control evaluation", info.command, sections, *says).html()


def _tiles(summary: Summary) -> list[Tile]:
    tiles = []
    if void := summary.void_notes():
        runs = len(summary.schemes) * len(summary.links) * summary.seeds
        do = "do" if len(summary.void) > 1 else "does"
        unit = f"of {runs} runs {do} not count"
        tiles.append(Tile(str(len(summary.void)), " ".join(void), unit, "bad"))
    best = summary.best_policy()
    for place, key in enumerate(_TILES if best is not None else ()):
        assert best is not None
        m, found = metric(key), best.overall[key]
        (mean, half), (p10, worst) = found.texts(m), found.tails(m)
        text = m.label
        if worst:
            text += f"; a tenth of the links have worse than {p10}, the worst has {worst}"
        unit = f"{m.unit}{f' ±{half}' if half else ''}".strip()
        tiles.append(Tile(mean, text, unit, "" if place else "main"))
    return tiles


def _under_table(summary: Summary, info: ReportInfo) -> list[str]:
    means = f"Mean over links ± half of the 95% bootstrap interval over links; below, {BELOW}. "
    said = means * summary.has_intervals + (
        "Bold: the best of its column, the oracle apart, which knows the link. Shaded: policies."
    )
    said += " Struck through: no run counts." * bool(summary.void)
    return [said, *summary.notes(), *info.notes]


def _under_series(charts: Sequence[Chart]) -> str:
    said = (
        "First seed. The shade is what the link can carry; the queueing delay is the mean of the "
        "packets of each time bucket. Drag to zoom, double click to go back."
    )
    reported = {m.label.removeprefix("mean ") for m in SENDER_METRICS}
    if any(panel["title"] in reported for chart in charts for panel in chart.data["panels"]):
        said += (
            " Both are the link's. Below them is what the senders say of themselves: the "
            "congestion window, the smoothed RTT and the share of the packets sent that had been "
            "sent before; the kernel's TCP is asked each 10 ms (TCP_INFO), and ours, which send "
            "nothing again here, at each of their steps."
        )
    return said


def _per_link(summary: Summary, charts: Mapping[str, str]) -> Chart:
    """Return a table of each link, of which the page shows a metric at a time."""
    metrics = [metric(key) for key in _LINK_METRICS]
    metrics += [m for m in summary.metrics if m in SENDER_METRICS]
    tables = []
    for m in metrics:
        rows = [cells_of(summary, m, link) for link in summary.links]
        cells = [[_with_half(c) + " (void)" * (c.how == "void") for c in row] for row in rows]
        numbers = [[c.value for c in row] for row in rows]
        tables.append({"title": m.title, "cells": cells, "numbers": numbers})
    data = {"links": list(summary.links), "schemes": [s.shown for s in summary.schemes]}
    return Chart("per-link", "links", {**data, "metrics": tables, "charts": dict(charts)})


def write_fairness(folder: Path, rows: Sequence[SuiteFairness], *, command: str) -> Path:
    """Write the fairness report and return its page; a full disk leaves no part of it."""
    # Of each contender the link with the most flows is drawn, of those on which its run counts.
    runs: dict[str, list[SharedRun]] = {}
    for row in rows:
        if whole := [run for run in row.runs if not run.broken]:
            runs.setdefault(row.contender, []).extend(whole)
    files = {"fairness.json": _json(fairness_json(rows))}
    charts: list[str | Table | Chart] = []
    for name, contender in zip(_file_names("fairness", runs), runs, strict=True):
        run = max(runs[contender], key=lambda run: len(run.scenario.flows))
        charts.append(chart := shared_link(name, run, contender))
        files |= {f"{name}.{kind}": encode(drawn(chart), kind) for kind in ("png", "pdf")}
    # The page has a table for each suite.
    sections = []
    for suite in dict.fromkeys(row.suite for row in rows):
        of_suite = [row for row in rows if row.suite == suite]
        links, seeds = of_suite[0].values.shape[1:]
        said = f"{counted(links)}, {counted(seeds, 'run')} each."
        notes = [note for row in of_suite for note in row.notes]
        sections.append(Section(suite, [said, table(suite, of_suite), *notes]))
    if charts:
        sections.append(Section("Flows that join and leave", charts))
    lead = f"Means over links, ± half of the 95% interval; below, {BELOW}"
    definitions = {m.title: m.definition for m in FAIRNESS_METRICS}
    page = Page("Fairness", command, sections, lead, _fair(rows), definitions=definitions)
    return _write_files(folder, files | {"fairness.html": page.html().encode()})


def _fair(rows: Sequence[SuiteFairness]) -> str:
    """Return the answer of a fairness page: how alike flows' shares are, by suite."""
    said = []
    for row in rows:
        jain = row.overall["jain"].mean
        if row.learned and math.isfinite(jain):
            said.append(f"{jain:.2f} on {row.suite}")
    names = list(dict.fromkeys(row.name for row in rows if row.learned))
    if len(names) != 1 or not said:
        return "How evenly flows share a link; 1 is an equal share."
    return (
        f"Flows of {names[0]} share with a Jain's index of {', '.join(said)}; 1 is an equal share."
    )


def write_scorecard(folder: Path, card: Scorecard, *, command: str) -> Path:
    """Write a scorecard and return its page; ``command`` makes it again."""
    tiles = []
    for name, count, failed in card.gates():
        passed, how = f"{count - len(failed)} of {count}", "bad" if failed else "main"
        tiles.append(Tile(passed, f"gates that {name} passes", how=how))
    said = (
        "Power is utilisation / (1 + queueing delay in round trips), at most 1. A gate is what a "
        "policy for every link should reach; ✗ marks what a policy misses. Rows without a gate "
        "explain those with one, or show other links. docs/metrics.md defines each score."
    )
    lead = f"Means over links of the split test, one run each; below each {BELOW}"
    sections = [Section("Scores", [card.table(), said])]
    page = Page("Scorecard", command, sections, lead, " ".join(card.verdicts), tiles)
    files = {"scorecard.json": _json(card.to_json(), 1), "scorecard.html": page.html().encode()}
    return _write_files(folder, files)


def comparison_page(
    rows: Sequence[WorldComparison],
    notes: Sequence[str] = (),
    parallel: Sequence[ParallelFlows] = (),
    *,
    command: str = "",
) -> str:
    """Return the page that compares both worlds: a table, sentences, and several flows' table."""
    lines = []
    for row in rows:
        cells: list[str | Cell] = [row.link, row.shown]
        for each in (row.mbps, row.p95_ms):
            simulated, emulated, difference = each.texts()
            value = abs(each.difference) if math.isfinite(each.difference) else None
            how = "failed" if each.far else ""
            cells += [emulated, simulated, Cell(difference, how=how, value=value)]
        lines.append(cells)
    heads = ("link", "sender", "Mbit/s", "simulated", "apart", "p95 RTT, ms", "simulated", "apart")
    table = plain_table("Both worlds", heads, lines, "sender")
    void = ["void" * (row.failed == row.runs) for row in rows]
    struck = [replace(line, how=how) for line, how in zip(table.rows, void, strict=True)]
    table = replace(table, rows=struck)
    near = sum(not (row.mbps.far or row.p95_ms.far) for row in rows)
    bounds = " and ".join(f"{bound:.0%} of {metric(key).label}" for key, bound in BOUNDS.items())
    both: list[str | Table | Chart] = [table, *notes]
    sections = [Section("Each link", both)]
    if parallel:
        worlds = [f"{each}{head}" for each in ("", "simulated ") for head in _PARALLEL]
        flows = []
        for one in parallel:
            model = one.simulated.texts() if one.simulated else ("-",) * 4
            flows.append((str(one.flows), shown(one.sender), *one.emulated.texts(), *model))
        together = plain_table("Several flows", ("flows", "sender", *worlds), flows, "sender")
        said = (
            "All flows of one sender together, on a link of 96 Mbit/s, 10 ms one way and a queue "
            "of 300 packets; lost are the packets that the kernel sent again, simulated those that "
            "the queue dropped."
        )
        parts: list[str | Table | Chart] = [said, together]
        sections.append(Section("Several flows at once", parts))
    answer = f"{near} of {counted(len(rows), 'pair')} are within {bounds}." if rows else ""
    lead = "Real packets on emulated links, and the same senders in the simulator"
    return Page("Simulator and real packets", command, sections, lead=lead, answer=answer).html()


def log_page(log: Log, name: str, *, command: str) -> str:
    """Return the page of an emulator's log: rates over the link's, delay in the queue, drops."""
    left, sizes, waits = events_of(log, "-")
    if not len(left):
        raise TraceError(f"{name}: nothing left the link, so that there is nothing to draw")
    ends = [time for time, *_ in log.events]
    begin, seconds = float(min(ends)), max(max(ends) - min(ends), 100) / 1e3
    edges = begin + 1e3 * bucket_edges(seconds)
    lengths = np.diff(edges)
    offered = binned(edges, events_of(log, "#")[0]) * PACKET_BYTES
    carried, came = binned(edges, left, sizes), binned(edges, *events_of(log, "+")[:2])
    counts, total = binned(edges, left), binned(edges, left, waits)
    delay = np.where(counts > 0, total / np.maximum(counts, 1), np.nan)
    dropped = binned(edges, *events_of(log, "d")[:2])

    def mbps(data: FloatArray) -> FloatArray:
        return 8e-3 * data / lengths

    panels = [
        ("rate", "Mbit/s", {"delivered": mbps(carried), "arrived": mbps(came)}),
        ("time in the queue", "ms", {"delay": delay}),
        ("dropped", "packets", {"drops": dropped}),
    ]
    time = (edges[1:] + edges[:-1]) / 2e3 - begin / 1e3
    chart = lines_chart("log", time, panels, capacity=mbps(offered))
    # The answer.
    rate, used = 8e-6 * carried.sum() / seconds, carried.sum() / max(offered.sum(), 1.0)
    p95 = float(np.percentile(waits, 95.0))
    lost = float(dropped.sum() / max(len(events_of(log, "+")[0]), 1))
    tiles = [
        Tile(f"{rate:.2f}", "delivered", "Mbit/s", "main"),
        Tile(f"{100 * used:.1f}", "of what the link could carry", "%"),
        Tile(f"{waits.mean():.1f}", "mean time in the queue", "ms"),
        Tile(f"{p95:.0f}", "95% of the packets waited less", "ms"),
        Tile(f"{100 * lost:.2f}", "dropped by the queue", "%"),
    ]
    answer = (
        f"{rate:.2f} Mbit/s crossed the link, {used:.0%} of what it could carry; packets waited "
        f"{waits.mean():.0f} ms in the mean, and 95% of them less than {p95:.0f} ms."
    )
    limit = f"{log.packets} packets" if log.packets else f"{log.bytes} bytes" if log.bytes else ""
    facts = {"log": name, "queue": f"{log.queue} {limit}".strip(), "time": f"{seconds:.1f} s"}
    sections = [Section("Over time", [chart])]
    return Page("An emulated link", command, sections, "", answer, tiles, facts).html()


def trace_page(trace: Trace, *, command: str) -> str:
    """Return the page of a trace: the link's rate over time, and its pauses."""
    times, seconds = trace.times_ns / 1e9, trace.period_ns / 1e9
    edges = np.linspace(0.0, seconds, max(min(int(seconds / 0.1), 600), 1) + 1)
    rates = np.histogram(times, edges)[0] * MBIT / np.diff(edges)
    pause = 1e3 * float(np.diff(times, prepend=0.0).max())
    mean, slow = trace.mean_mbps, float((rates < 0.1 * trace.mean_mbps).mean())
    tiles = [
        Tile(f"{mean:.2f}", "mean rate", "Mbit/s", "main"),
        Tile(f"{np.percentile(rates, 5):.2f}", "a twentieth of the time has less", "Mbit/s"),
        Tile(f"{rates.max():.2f}", "greatest rate", "Mbit/s"),
        Tile(f"{pause:.0f}", "longest pause", "ms"),
    ]
    answer = (
        f"{mean:.2f} Mbit/s in the mean over {seconds:.1f} s; for {slow:.0%} of the time the link "
        f"has less than a tenth of that, and the longest pause is {pause:.0f} ms."
    )
    middles, each = (edges[1:] + edges[:-1]) / 2, 1e3 * float(edges[1])
    says = f"Each point is {each:.0f} ms. After its end a trace begins anew."
    chart = lines_chart("trace", middles, [("rate", "Mbit/s", {"rate": rates})], says=says)
    facts = {"trace": trace.name, "opportunities": f"{len(times):,}", "time": f"{seconds:.1f} s"}
    sections = [Section("Over time", [chart])]
    return Page("A link's trace", command, sections, "", answer, tiles, facts).html()


def flow_page(chart: Chart, says: str, tiles: Sequence[Tile], command: str) -> str:
    """Return the page of a flow of real packets, which the figure shows over time."""
    sections = [Section("Over time", [replace(chart, title="")])]
    return Page(f"A flow of {chart.title}", command, sections, "", says, tiles).html()


def write_recovery(
    folder: Path, table: Table, rows: Sequence[MeansRow], notes: Sequence[str], **says: Any
) -> Path:
    """Write the page of times to recover, with the rows' table; ``says`` is the page's."""
    first = RECOVERY_METRICS[0]
    known = [(found[first.key].mean, name) for name, found, *_ in rows if name != ORACLE]
    known = [one for one in known if math.isfinite(one[0])]  # some never recover
    best = min(known) if known else None
    answer = f"{best[1]} is first: {first.label} {first.text(best[0])}." if best else ""
    definitions = {m.title: m.definition for m in RECOVERY_METRICS}
    sections = [Section("Recovery", [table, *notes])]
    page = Page("Recovery", sections=sections, answer=answer, definitions=definitions, **says)
    return _write_files(folder, {"recovery.html": page.html().encode()})


def stress_page(figures: Mapping[str, Any], tables: Sequence[Table], *, command: str) -> str:
    """Return the page of a search for failures: in what share of the space each property holds."""
    shares, links = tables
    judged = {key: s["share"] for key, s in figures["shares"].items() if s["judged"]}
    name, answer, all_of_them = shown(figures["policy"]), "", judged.pop("all", None)
    if judged:
        share, key = min((share, key) for key, share in judged.items())
        answer = f"{name} holds '{key}' least often: on {share:.0%} of the links."
    if all_of_them is not None:
        answer = f"{answer} All judged properties together hold on {all_of_them:.0%}.".lstrip()
    sections = [Section("What holds, and where", [shares])]
    if links.rows:
        said = "Each link is the simplest that fails so; at a score of 1 the property just holds."
        sections.append(Section("The worst links, made simple", [said, links]))
    return Page(f"Where {name} fails", command, sections, answer=answer).html()


def write_map(folder: Path, found: Mapping[str, Any], says: str, *, command: str) -> Path:
    """Write a map, whose JSON this is, with its picture, and return its page."""

    def axis(values: Sequence[Any]) -> list[Any]:
        return [value if value != "" else "none" for value in values]

    data = {"xs": axis(found["xs"]), "ys": axis(found["ys"]), "ratio": found["scores"]}
    data |= {"xLabel": found["x"], "yLabel": found["y"]}
    data |= {"low": "a quarter of what must be", "high": "four times as much"}
    scores = [x for row in found["scores"] for x in row if x is not None]
    held = sum(x >= 1 for x in scores)
    name, others = shown(found["policy"]), ", ".join(map(shown, found["against"]))
    answer = f"{name} holds it on {held} of {len(scores)} links ({held / max(len(scores), 1):.0%})."
    rest = ", ".join(f"{k} {v}" for k, v in found["at"].items())
    facts = {"beside": others, "what must hold": says, "all else": rest}
    chart = Chart("map", "map", data, says="At 1 it just holds; grey was not judged.")
    title, sections = f"{found['property']} of {name}", [Section(says, [chart])]
    page = Page(title, command, sections, "", answer, facts=facts).html()
    picture = heatmap(chart, f"{name} beside {others}", f"{found['property']}: 1 and more holds")
    files = {"map.json": _json(found), "map.png": encode(picture, "png")}
    return _write_files(folder, files | {"map.html": page.encode()})


def _write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder that is made for them, or none of them; return the last one."""
    require_writable(folder)
    write_together(folder, files)
    return folder / list(files)[-1]


def _with_half(cell: Cell) -> str:
    return f"{cell.text} ±{cell.half}" if cell.half else cell.text


def _json(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    return f"{json.dumps(value, allow_nan=False, indent=indent)}\n".encode()


def _csv(table: Table, schemes: Sequence[SchemeSummary]) -> str:
    first, *heads = (f"{c.head} {f'({c.unit})' if c.unit else ''}".strip() for c in table.columns)
    rows = [
        [s.scheme, *(x for c in r.cells for x in (c.text, c.half)), "yes" * (r.name != s.shown)]
        for r, s in zip(table.rows, schemes, strict=True)
    ]
    return csv_text([first, *(x for head in heads for x in (head, "half of 95%")), "void"], rows)


_LATEX = str.maketrans(
    {c: rf"\{c}" for c in "&%$#_{}"}
    | {"[": "{[}", "±": r"$\pm$", "\\": r"\textbackslash{}"}
    | {"^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
)


def _latex(table: Table) -> str:
    """Return a table for LaTeX, with booktabs; the best of a column is bold."""

    def plain(text: str) -> str:
        return text.translate(_LATEX)

    heads = [plain(f"{c.head} {f'({c.unit})' if c.unit else ''}".strip()) for c in table.columns]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines += [" & ".join(heads) + r" \\", r"\midrule"]
    for row in table.rows:
        cells = [plain(_with_half(c)) for c in row.cells]
        bold = [
            rf"\textbf{{{text}}}" if cell.how == "best" else text
            for text, cell in zip(cells, row.cells, strict=True)
        ]
        lines.append(" & ".join([plain(row.name), *bold]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _file_names(kind: str, names: Iterable[str]) -> list[str]:
    """Return names ``KIND-NAME`` that every file system takes, no two the same."""
    stems = [re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80] for name in names]
    return unique_names([f"{kind}-{stem or 'unnamed'}" for stem in stems], "{}-{}")
