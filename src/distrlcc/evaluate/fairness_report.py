"""The fairness report: one self-contained HTML page, its figures as PNG and PDF, JSON.

``write_fairness`` writes into a folder::

    fairness.html            the page
    fairness.json            all figures (distrlcc.evaluate.fairness_scores says which keys)
    fairness-CONTENDER.png   a link on which flows join and leave; .pdf likewise
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from distrlcc.evaluate.fairness_plot import fairness_plot, to_pdf
from distrlcc.evaluate.fairness_scores import FAIRNESS_METRICS, SuiteFairness, to_json
from distrlcc.evaluate.palette import DARK, LIGHT
from distrlcc.evaluate.plots import svg_pictures, to_png
from distrlcc.evaluate.shared_run import SharedRun
from distrlcc.files import require_writable, write_together


def write_fairness(folder: Path, rows: Sequence[SuiteFairness], *, command: str, date: str) -> Path:
    """Write the report; a full disk leaves no part of it.

    Args:
        folder: Where to; made if it is missing.
        rows: One for each contender and suite.
        command: The command that makes it again.
        date: When it was made.

    Returns:
        The page.

    Raises:
        OutputError: The folder cannot be written.
    """
    drawn = {
        row.contender: _busiest(row)
        for row in sorted(rows, key=lambda row: len(_busiest(row).scenario.flows))
    }
    order = dict.fromkeys(row.contender for row in rows)
    files = {"fairness.json": (json.dumps(to_json(rows), allow_nan=False) + "\n").encode()}
    pictures = []
    for number, contender in enumerate(order):
        run = drawn[contender]
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", contender).strip("-.")[:80] or str(number)
        name = f"fairness-{stem}" if f"fairness-{stem}.png" not in files else f"fairness-{number}"
        light, dark = (fairness_plot(run, contender, theme=theme) for theme in (LIGHT, DARK))
        files[f"{name}.png"], files[f"{name}.pdf"] = to_png(light), to_pdf(light)
        pictures.append(
            {"contender": contender, "link": run.scenario.name, **svg_pictures(light, dark)}
        )
    files["fairness.html"] = _render(rows, pictures, command, date).encode()
    require_writable(folder)
    write_together(folder, files)
    return folder / "fairness.html"


def _busiest(row: SuiteFairness) -> SharedRun:
    """Return the first of the links with the most flows."""
    return max(row.runs, key=lambda run: len(run.scenario.flows))


def _render(
    rows: Sequence[SuiteFairness], pictures: list[dict[str, str]], command: str, date: str
) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = resources.files("distrlcc.evaluate").joinpath("fairness.html.jinja").read_text("utf-8")
    suites = dict.fromkeys(row.suite for row in rows)
    page = environment.from_string(text).render(
        command=command,
        date=date,
        suites=[_suite([row for row in rows if row.suite == name]) for name in suites],
        pictures=pictures,
        metrics=FAIRNESS_METRICS,
    )
    return page + "\n"


def _suite(rows: Sequence[SuiteFairness]) -> dict[str, Any]:
    found = [row.overall for row in rows]
    shown = [m for m in FAIRNESS_METRICS if any(math.isfinite(o[m.key].mean) for o in found)]
    return {
        "name": rows[0].suite,
        "links": rows[0].values.shape[1],
        "seeds": rows[0].values.shape[2],
        "metrics": shown,
        "rows": [
            {
                "contender": row.contender,
                "learned": row.learned,
                "cells": [overall[m.key].texts(m) for m in shown],
            }
            for row, overall in zip(rows, found, strict=True)
        ],
    }
