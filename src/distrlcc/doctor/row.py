"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

HERE = "here"
"""Machine of a row about this one."""


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Row:
    """What was checked where, what was found, and what to do about it."""

    check: str
    machine: str
    verdict: Verdict
    found: str
    remedy: str = ""


def judged(check: str, machine: str, found: str, *, fail: str = "", warn: str = "") -> Row:
    """Return a row whose verdict follows from the remedies that are given.

    Args:
        check: What was looked at.
        machine: Where.
        found: What was found.
        fail: What to do about a failure; empty if it is none.
        warn: The same for a warning.
    """
    verdict = Verdict.FAIL if fail else Verdict.WARN if warn else Verdict.OK
    return Row(check, machine, verdict, found, fail or warn)


def worst(rows: Iterable[Row]) -> Verdict:
    """Return the worst of all verdicts."""
    found = {row.verdict for row in rows}
    return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.OK)
