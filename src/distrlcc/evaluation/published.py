"""Figures for a paper, drawn from the summary.json of a report, with their numbers as CSV."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
from matplotlib.figure import Figure

from distrlcc.errors import ConfigError, reading, unknown_name
from distrlcc.evaluation import scores
from distrlcc.evaluation.figures import STYLE, panels
from distrlcc.evaluation.looks import INK, looks
from distrlcc.evaluation.plots import drawn, legend, over_time, scatter
from distrlcc.evaluation.summary import (
    FORMAT,
    VERSION,
    MeanInterval,
    SchemeSummary,
    Summary,
    numbers,
)
from distrlcc.types import FloatArray


@dataclass(frozen=True)
class _Scheme:
    learned: bool
    failed_runs: int
    overall: dict[str, MeanInterval]
    scenarios: dict[str, dict[str, MeanInterval]]


@dataclass(frozen=True)
class _LeftOut:
    scenario: str
    schemes: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    seeds: int
    common_scenarios: int
    schemes: dict[str, _Scheme]
    without_runs: list[str]
    left_out_scenarios: list[_LeftOut] = field(default_factory=list)
    void_runs: list[scores.VoidRun] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    series: list[scores.Series] = field(default_factory=list)


def series_json(series: Sequence[scores.Series]) -> list[dict[str, Any]]:
    """Return what `read` reads of series over time; what a sender reports is left out."""
    return [
        {"scheme": one.scheme, "link": one.link, "learned": one.learned}
        | {name: numbers(getattr(one, name)) for name in _ARRAYS}
        for one in series
    ]


_UNREAD = ["links", "metrics", "ranking", "confidence", "flows", "failed_flows", "programs"]
_UNREAD += ["suite", "command", "versions"]
_ARRAYS = ("edges_s", "capacity_mbps", "rate_mbps", "queueing_delay_ms", "queue_packets")


def read(path: Path) -> tuple[Summary, list[scores.Series]]:
    """Read a report, by its folder or summary.json: means, and links that are drawn over time."""
    path = path / "summary.json" if path.is_dir() else path
    remedy = "; expected the summary.json of 'distrlcc evaluate --out'"
    with reading(ConfigError, f"{path} is no summary of an evaluation", remedy):
        data = json.loads(path.read_bytes(), object_pairs_hook=_defined, parse_constant=_refuse)
        file = msgspec.convert(data, _File, dec_hook=_floats)
        read_of = msgspec.to_builtins(file, enc_hook=np.ndarray.tolist)
        _check_keys(data, dict.fromkeys(_UNREAD) | read_of)
        _check(file)
    schemes = tuple(
        SchemeSummary(name, one.learned, one.overall, one.scenarios, one.failed_runs)
        for name, one in file.schemes.items()
    )
    links = tuple(schemes[0].scenarios)
    without, void = tuple(file.without_runs), tuple(file.void_runs)
    left_out = {one.scenario: one.schemes for one in file.left_out_scenarios}
    reported = (m for m in scores.SENDER_METRICS if m.key in schemes[0].overall)
    metrics = (*scores.METRICS, *reported)
    counts = file.common_scenarios, left_out, without
    summary = Summary(schemes, links, file.seeds, *counts, metrics, void, file.digests)
    return summary, file.series


def _check_keys(given: Any, read: Any) -> None:
    """Raise a `ValueError` at a key that nothing was read from."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key not in read:
                raise ValueError(str(unknown_name("key", key, read)))
            _check_keys(value, read[key])
    elif isinstance(given, list) and isinstance(read, list):
        for one, other in zip(given, read, strict=True):
            _check_keys(one, other)


def _check(file: _File) -> None:
    """Raise a `ValueError` where something is missing, or of another length than it must be."""
    if (file.format, file.version) != (FORMAT, VERSION) or not file.schemes:
        said = f"format {file.format!r} version {file.version}, {len(file.schemes)} schemes"
        raise ValueError(f"{said}; this distrlcc reads version {VERSION} of {FORMAT}")
    links = [list(scheme.scenarios) for scheme in file.schemes.values()]
    if any(each != links[0] for each in links):
        raise ValueError("its schemes have different scenarios")
    for name, scheme in file.schemes.items():
        for values in (scheme.overall, *scheme.scenarios.values()):
            has = {key for key, v in values.items() if not (v.mean < 0 or math.isinf(v.mean))}
            if lacking := {m.key for m in scores.METRICS} - has:
                raise ValueError(f"{name} has no {min(lacking)} of 0 or more")
    for one in file.series:
        if one.scheme not in file.schemes:
            raise ValueError(f"series {one.link!r} is of {one.scheme!r}, a scheme that is not here")
        for name in _ARRAYS:
            buckets, edge = len(getattr(one, name)), name == "edges_s"
            if buckets != len(one.rate_mbps) + edge or not len(one.rate_mbps):
                raise ValueError(f"series {one.link!r}: {name} has {buckets} values")
        if not (np.diff(one.edges_s) > 0).all():
            raise ValueError(f"series {one.link!r}: edges_s do not increase")


def _defined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, of which null is NaN; raise `ValueError` at a key that is twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is there twice")
        found[key] = math.nan if value is None else value
    return found


def _refuse(number: str) -> None:
    raise ValueError(f"{number} is no number of JSON")


def _floats(_: type, values: object) -> FloatArray:
    """Decode numbers, of which null is NaN."""
    found = msgspec.convert(values, list[float | None])
    return np.array([math.nan if value is None else value for value in found], float)


def by_links(summary: Summary, of: scores.Metric) -> dict[str, dict[str, float]]:
    """Return schemes' shown means on the links that all have, or else on its own links."""
    apart = summary.left_out if summary.common else {}
    found: dict[str, dict[str, float]] = {}
    for one in summary.schemes:
        means = {k: v[of.key].mean for k, v in one.scenarios.items() if k not in apart}
        values = {k: of.scale * mean for k, mean in means.items() if math.isfinite(mean)}
        if values:
            found[one.scheme] = values
    return found


def draw(
    kind: str, summary: Summary, series: Sequence[scores.Series], key: str, link: str
) -> tuple[Figure, str]:
    """Return a figure, ``scatter``, ``time``, ``cdf`` or ``box``, and its numbers as CSV.

    ``key`` is the metric, and ``link`` the link, where the kind has one; empty: the first drawn.
    """
    if kind == "scatter":
        return scatter(summary), _scatter_csv(summary)
    if kind == "time":
        links = list(dict.fromkeys(one.link for one in series))
        if not links or (link and link not in links):
            has = ", ".join(links) or "none"
            raise ConfigError(
                f"link {link!r} was not drawn over time (of this summary: {has}); name it with "
                "--series when it is evaluated"
            )
        chosen = [one for one in series if one.link == (link or links[0])]
        return drawn(over_time("series", chosen, summary.names())), _time_csv(chosen)
    of = scores.metric(key)
    if not (values := by_links(summary, of)):
        raise ConfigError(f"--metric {key}: no link of this summary has one; take another")
    figure = _distributions(kind, summary, values, of)
    rows = [[name, link, value] for name, found in values.items() for link, value in found.items()]
    return figure, csv_text(["scheme", "link", of.title], rows)


def _distributions(
    kind: str, summary: Summary, values: dict[str, dict[str, float]], of: scores.Metric
) -> Figure:
    style = looks(summary.names())
    with mpl.rc_context(STYLE):
        figure, (axes,) = panels(3.0, 1.0)
        if kind == "cdf":
            for name, found in values.items():
                look, label = style[name], scores.shown(name)
                form: dict[str, Any] = {"color": look.color, "lw": 1.8 if look.learned else 1.1}
                axes.ecdf(list(found.values()), label=label, **form)
            axes.set_xlabel(of.title)
            axes.set_ylabel("share of links")
            legend(figure, *axes.get_legend_handles_labels())
        else:
            boxes = axes.boxplot(
                [list(found.values()) for found in values.values()],
                tick_labels=list(map(scores.shown, values)),
                whis=(5, 95),
                showfliers=False,
                patch_artist=True,
                medianprops={"color": INK},
            )
            for name, box in zip(values, boxes["boxes"], strict=True):
                box.set(facecolor=style[name].color, alpha=0.6)
            axes.set_ylabel(of.title)
    return figure


def _scatter_csv(summary: Summary) -> str:
    keys = ("throughput_mbps", "p95_queueing_delay_ms")
    parts = [each.name for each in fields(MeanInterval)]
    head = ["scheme", *(f"{key} {part}" for key in keys for part in parts)]
    rows = [
        [one.scheme, *(x for key in keys for x in astuple(one.overall[key]))]
        for one in summary.schemes
        if one.scheme not in summary.without_runs
    ]
    return csv_text(head, rows)


def _time_csv(series: Sequence[scores.Series]) -> str:
    rows = [
        [one.scheme, *row]
        for one in series
        for row in zip(one.time_s, *(getattr(one, name) for name in _ARRAYS[1:]), strict=True)
    ]
    return csv_text(["scheme", "time_s", *_ARRAYS[1:]], rows)


def csv_text(head: list[str], rows: list[list[Any]]) -> str:
    """Return rows below their heads as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows)
    return text.getvalue()
