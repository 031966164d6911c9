"""One template for every page: the answer, tiles, tables, figures, what was run, definitions.

A page is one file that loads nothing: a script that it shares with the board draws its figures from
numbers in it. Tables sort and filter there, and lines can be hidden and zoomed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from distrlcc import __version__
from distrlcc.evaluation.summary import numbers
from distrlcc.evaluation.tables import Table


@dataclass(frozen=True)
class Chart:
    """A figure; the module `page.js` of the board says what its kinds take."""

    id: str
    kind: str
    data: Mapping[str, Any]
    title: str = ""
    says: str = ""


Panel = tuple[str, str, Mapping[str, Any]]
"""Lines over the same axis: their title, their unit, and each line's values by its label."""


def lines_chart(
    name: str,
    x: Any,
    panels: Sequence[Panel],
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    title: str = "",
    says: str = "",
    capacity: Any = None,
    **more: Any,
) -> Chart:
    """Return a figure of panels over x; ``looks`` has each label's colours and width, if any."""
    looks, drawn = looks or {}, []
    for head, unit, lines in panels:
        told = [{"label": k, "values": numbers(v, 4), **looks.get(k, {})} for k, v in lines.items()]
        drawn.append({"title": head, "unit": unit, "lines": told})
    data: dict[str, Any] = {"time": numbers(x, 4), "panels": drawn, **more}
    if capacity is not None:
        data["capacity"] = numbers(capacity, 4)
    return Chart(name, "lines", data, title, says)


@dataclass(frozen=True)
class Tile:
    """One number that matters."""

    value: str
    text: str
    unit: str = ""
    how: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    parts: Sequence[str | Table | Chart]


@dataclass(frozen=True)
class Page:
    """A page's contents."""

    title: str
    command: str  # that makes the page again
    sections: Sequence[Section]
    lead: str = ""
    answer: str = ""
    tiles: Sequence[Tile] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """Return the page."""
        parts = [part for section in self.sections for part in section.parts]
        charts = {p.id: {"kind": p.kind, **p.data} for p in parts if isinstance(p, Chart)}
        data = json.dumps(charts, allow_nan=False, separators=(",", ":"))
        modules = (_asset(name) for name in ("charts.js", "tables.js", "page.js"))
        script = "\n".join(
            re.sub(r"^import .*$|^export ", "", text, flags=re.M) for text in modules
        )
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        text = resources.files("distrlcc.evaluation").joinpath("page.html.jinja").read_text("utf-8")
        page = environment.from_string(text).render(
            page=self,
            facts={"versions": f"distrlcc {__version__}"} | dict(self.facts),
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            style=Markup(_asset("uPlot.min.css") + _asset("style.css")),
            library=Markup(_asset("uPlot.iife.min.js")),
            script=Markup(script),
            data=Markup(data.replace("<", "\\u003c")),
        )
        return page + "\n"


def _asset(name: str) -> str:
    return resources.files("distrlcc").joinpath("board", "static", name).read_text("utf-8")
