"""A doctor's report: one finding for each check and machine, and the table of them."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table
from rich.text import Text

HERE = "here"  # machine of a finding about this one


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


@dataclass(frozen=True)
class Finding:
    """A check of a thing, its outcome, and the remedy."""

    check: str
    machine: str
    verdict: Verdict
    found: str
    remedy: str = ""


def finding(check: str, found: str, *, fail: str = "", warn: str = "") -> Finding:
    """Return a finding; the verdict follows from the remedy, which only failures have."""
    verdict = Verdict.FAIL if fail else Verdict.WARN if warn else Verdict.OK
    return Finding(check, HERE, verdict, found, fail or warn)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst of all verdicts."""
    found = {each.verdict for each in findings}
    return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.OK)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a table, where machines share a row of equal findings, and how many came out how."""
    order = list(dict.fromkeys(each.check for each in findings))
    machines: dict[tuple[str, Verdict, str, str], list[str]] = {}
    for one in sorted(findings, key=lambda each: order.index(each.check)):
        machines.setdefault((one.check, one.verdict, one.found, one.remedy), []).append(one.machine)
    table = Table()
    for name in ("check", "machine", "", "found", "what to do"):
        table.add_column(name, overflow="fold", no_wrap=name in ("check", "machine", ""))
    for (check, verdict, found, remedy), names in machines.items():
        where = ", ".join(names) if len(names) < 3 else f"{len(names)} machines"
        styled = Text(verdict, style=_STYLES[verdict])
        table.add_row(Text(check), Text(where), styled, Text(found), Text(remedy))
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = max(console.width, 100)
    console.print(table)
    ok, warn, fail = (sum(one.verdict == verdict for one in findings) for verdict in Verdict)
    console.print(f"{ok} ok, {warn} warnings, {fail} failures")
