"""The doctor's report for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distrlcc.doctor.row import Row, Verdict

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}
_NARROWEST = 100


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table, and how many rows came out how."""
    table = Table(show_lines=False)
    for name in ("check", "machine", "", "found", "what to do"):
        table.add_column(name, overflow="fold", no_wrap=name in ("check", "machine", ""))
    for (check, verdict, found, remedy), machines in _merged(rows).items():
        where = ", ".join(machines[:2]) if len(machines) < 3 else f"{len(machines)} machines"
        cells = [Text(cell) for cell in (check, where, found, remedy)]
        table.add_row(*cells[:2], Text(verdict, style=_STYLES[verdict]), *cells[2:])
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = max(console.width, _NARROWEST)
    console.print(table)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in Verdict}
    console.print(
        f"{counts[Verdict.OK]} ok, {counts[Verdict.WARN]} warnings, {counts[Verdict.FAIL]} failures"
    )


def _merged(rows: Sequence[Row]) -> dict[tuple[str, Verdict, str, str], list[str]]:
    """Return the machines that share a finding, check by check in the order they came."""
    order = list(dict.fromkeys(row.check for row in rows))
    merged: dict[tuple[str, Verdict, str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: order.index(row.check)):
        finding = (row.check, row.verdict, row.found, row.remedy)
        merged.setdefault(finding, []).append(row.machine)
    return merged
