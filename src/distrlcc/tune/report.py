"""What a member says of itself, and how its values came to be; one JSON line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from distrlcc.errors import OutputError
from distrlcc.tune.distribution import Value


@dataclass(frozen=True)
class Segment:
    """Values that a lineage trained with, from an update on."""

    update: int
    """Updates done before."""
    member: int
    """Who trained."""
    values: dict[str, Value]
    """By dotted key."""


@dataclass(frozen=True)
class Report:
    """A member's score after some updates."""

    member: int
    update: int
    """Updates behind the weights, those of the members that it descends from included."""
    steps: int
    """Environment steps, likewise."""
    score: float
    """The metric that members are compared by."""
    reward: float
    """Mean reward per step on held-out links."""
    utilisation: float
    queueing_delay: float
    """In base RTTs."""
    loss: float
    acting: str
    """``argmax`` or ``sample``: whichever had the greater reward."""
    seconds: float
    """Time that its lineage trained, s."""
    schedule: tuple[Segment, ...]
    """Values from the first update on; the last are the present ones."""
    attempt: int = 0
    """Times that the tuner was resumed before."""

    @property
    def values(self) -> dict[str, Value]:
        """The present values."""
        return self.schedule[-1].values

    @property
    def since(self) -> int:
        """Update from which the present values count."""
        return self.schedule[-1].update


def encode(report: Report) -> bytes:
    """Return a report as one line of JSON, without its end."""
    return msgspec.json.encode(report)


def decode(line: bytes | str) -> Report:
    """Read :func:`encode`'s line."""
    return msgspec.json.decode(line, type=Report)


def encode_schedule(schedule: Sequence[Segment]) -> str:
    """Return a schedule as JSON."""
    return msgspec.json.encode(list(schedule)).decode()


def decode_schedule(text: str) -> tuple[Segment, ...]:
    """Read :func:`encode_schedule`'s text."""
    return msgspec.json.decode(text, type=tuple[Segment, ...])


def extended(schedule: Sequence[Segment], segment: Segment) -> tuple[Segment, ...]:
    """Return a schedule that goes on with a segment's member and values."""
    kept = tuple(schedule)
    if kept and (kept[-1].member, kept[-1].values) == (segment.member, segment.values):
        return kept
    while kept and kept[-1].update >= segment.update:  # values that never trained
        kept = kept[:-1]
    return (*kept, segment)


def read_reports(path: Path) -> list[Report]:
    """Read a file of reports, without those that a resumed tuner made anew.

    Raises:
        OutputError: The file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}") from None
    reports = []
    for line in lines:
        try:
            reports.append(decode(line))
        except msgspec.MsgspecError:
            continue  # a line that a kill cut short
    return without_repeated(reports)


def without_repeated(reports: Iterable[Report]) -> list[Report]:
    """Drop what members reported before a resume that took them back behind it."""
    kept: list[Report] = []
    attempts: dict[int, int] = {}
    for report in reports:
        if attempts.get(report.member, report.attempt) != report.attempt:
            kept = [k for k in kept if k.member != report.member or k.update < report.update]
        attempts[report.member] = report.attempt
        kept.append(report)
    return kept


def relabelled(report: Report, attempt: int) -> Report:
    """Return a report as of an attempt."""
    return replace(report, attempt=attempt)
