"""Members' reports, and the copies that were decided on; one JSON line each."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from distrlcc.errors import OutputError, reading
from distrlcc.policy.policy_file import Acting
from distrlcc.tune.space import Value

T = TypeVar("T")


@dataclass(frozen=True)
class Segment:
    """Values that a lineage trained with, from an update on."""

    update: int  # updates done before
    member: int  # the member that trained
    values: dict[str, Value]
    steps: int = 0  # environment steps done before


@dataclass(frozen=True)
class Report:
    """A member's score after some updates."""

    member: int
    update: int  # updates behind the weights, those of the members that it descends from included
    steps: int
    score: float  # the metric that members are compared by
    reward: float  # mean reward per step on held-out links
    utilisation: float
    queueing_delay: float  # in base RTTs
    loss: float
    acting: Acting  # ``argmax`` or ``sample``: whichever had the greater reward
    seconds: float  # time that its lineage trained, s
    schedule: tuple[Segment, ...]  # values from the first update on; the last are the present ones
    attempt: int = 0  # times that the tuner was resumed before

    @property
    def values(self) -> dict[str, Value]:
        """The present values."""
        return self.schedule[-1].values


@dataclass(frozen=True)
class Copy:
    """A copy that population-based training decided on; times are in its ``time_attr``."""

    member: int  # the member that was among the worst
    time: float
    donor: int | None = None
    """The member whose checkpoint it took; None: the one that was drawn had none yet."""
    donor_time: float | None = None


def decode(line: bytes | str) -> Report:
    """Read a report that msgspec wrote as JSON."""
    return msgspec.json.decode(line, type=Report)


def extended(schedule: Sequence[Segment], segment: Segment) -> tuple[Segment, ...]:
    """Return a schedule that goes on with a segment's member and values."""
    kept = tuple(schedule)
    if kept and (kept[-1].member, kept[-1].values) == (segment.member, segment.values):
        return kept
    while kept and kept[-1].update >= segment.update:  # values that never trained
        kept = kept[:-1]
    return (*kept, segment)


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """Yield the lines of a file, if it exists, less those that a kill cut short."""
    with reading(OutputError, f"cannot read {path}"):
        lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        with suppress(ValueError, RecursionError):
            yield msgspec.json.decode(line, type=kind)


def read_reports(path: Path) -> list[Report]:
    """Read a file of reports, without those that a resumed tuner made anew."""
    kept: list[Report] = []
    attempts: dict[int, int] = {}
    for report in read_lines(path, Report):
        member = report.member
        if attempts.get(member, report.attempt) != report.attempt:  # a resume took it back
            kept = [k for k in kept if k.member != member or k.update < report.update]
        attempts[member] = report.attempt
        kept.append(report)
    return kept


def pieces(reports: Sequence[Report]) -> list[list[Report]]:
    """Return the reports of each member between two copies: with one schedule each."""
    found: dict[tuple[int, str], list[Report]] = {}
    for report in reports:
        found.setdefault((report.member, repr(report.schedule)), []).append(report)
    return list(found.values())
