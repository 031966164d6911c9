"""A tuner's results: reports, the best policy and recipe with its schedule, a table, a figure."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from distrlcc.config import to_toml
from distrlcc.errors import OutputError, reading, writing
from distrlcc.files import write_together
from distrlcc.learn.config import Schedule
from distrlcc.runs.progress import duration
from distrlcc.runs.run_config import RunConfig
from distrlcc.tune.report import Copy, Report, Segment, decode, read_lines, read_reports
from distrlcc.tune.space import short, with_values
from distrlcc.tune.tune_config import TuneConfig

REPORTS, COPIES = "reports.jsonl", "copies.jsonl"
BEST, POLICY = "best.json", "policy.safetensors"
_LINE_SECONDS = 5.0
_SCHEDULED = ("ppo.lr", "ppo.entropy_coeff", "dagger.lr")
"""Keys whose changes a recipe can hold, as ``KEY_schedule``."""


class Recorder:
    """Keeps every report, and the best policy as soon as it is known; shows lines to the user."""

    def __init__(
        self, folder: Path, config: TuneConfig, show: Callable[[str], None] = lambda _: None
    ) -> None:
        """Read what earlier attempts have written."""
        self._folder, self._config, self.show = folder, config, show
        earlier = read_reports(folder / REPORTS)
        for path in (folder / REPORTS, folder / COPIES):
            if path.exists() and not path.read_bytes().endswith(b"\n"):
                with writing(path), path.open("ab") as file:
                    file.write(b"\n")  # a kill cut the last line short
        self._attempt = max((report.attempt + 1 for report in earlier), default=0)
        self.best = read_best(folder)
        self._count, self._shown = len(earlier), -_LINE_SECONDS
        self._updates = {report.member: report.update for report in earlier}
        self._before, self._begin = sum(self._updates.values()), time.monotonic()

    def record(self, report: Report) -> None:
        """Append a report; raises OutputError."""
        config, known = self._config, [report] if self.best is None else [self.best, report]
        best = max(known, key=_worth(config.mode))
        self.append(REPORTS, replace(report, attempt=self._attempt))
        self._count += 1
        self._updates[report.member] = report.update
        if time.monotonic() - self._shown >= _LINE_SECONDS:
            self._shown = time.monotonic()
            values = " ".join(f"{key}={short(value)}" for key, value in report.values.items())
            self.show(
                f"report {self._count}  member {report.member} update {report.update}/"
                f"{config.updates}: {config.metric} {report.score:.4f}  best {best.score:.4f} "
                f"(member {best.member} update {best.update})  {values}  {self._left()}".rstrip()
            )

    def append(self, name: str, what: Report | Copy) -> None:
        """Append to a file of reports or copies; raises OutputError."""
        path = self._folder / name
        remedy = "; members' checkpoints are kept, so make room and go on with --resume"
        with writing(path, remedy), path.open("ab") as file:
            file.write(msgspec.json.encode(what) + b"\n")

    def _left(self) -> str:
        """Return the time left if no member is stopped early, by the speed so far."""
        done = sum(self._updates.values())
        left, made = self._config.members * self._config.updates - done, done - self._before
        seconds = (time.monotonic() - self._begin) * left / made if made > 0 else math.nan
        return f"{duration(seconds)} left" if seconds >= 0 else ""

    def keep(self, report: Report, policy: Callable[[], bytes]) -> None:
        """Keep a policy, which ``policy`` reads, if no better one was reported."""
        worth = _worth(self._config.mode)
        if self.best is None or worth(report) > worth(self.best):
            write_together(self._folder, {POLICY: policy(), BEST: msgspec.json.encode(report)})
            self.best = report


def read_best(folder: Path) -> Report | None:
    """Return the report of the kept policy, or None if none is kept yet; raises OutputError."""
    path = folder / BEST
    with reading(OutputError, f"cannot read {path}", "; remove it to keep a new best"):
        return decode(path.read_bytes()) if path.exists() else None


def _worth(mode: str) -> Callable[[Report], float]:
    return lambda report: report.score if mode == "max" else -report.score


def standings(reports: Sequence[Report], mode: str) -> list[tuple[Report, Report]]:
    """Return each member's best and last report, the best member first."""
    worth = _worth(mode)
    members = sorted({report.member for report in reports})
    each = [[report for report in reports if report.member == member] for member in members]
    found = [(max(own, key=worth), own[-1]) for own in each]
    return sorted(found, key=lambda pair: -worth(pair[0]))


def table(config: TuneConfig, reports: Sequence[Report], failures: Mapping[int, str]) -> str:
    """Return the members as a table for people, the best first."""
    keys = tuple(reports[0].values)
    lines = [("member", f"best {config.metric}", "at update", "last", "at update", *keys)]
    for best, last in standings(reports, config.mode):
        member = f"{best.member}{' (failed)' if best.member in failures else ''}"
        scores = (f"{best.score:.4f}", str(best.update), f"{last.score:.4f}", str(last.update))
        lines.append((member, *scores, *(short(best.values[key]) for key in keys)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ([f"{c:>{w}}" for c, w in zip(line, widths, strict=True)] for line in lines)
    return "".join("  ".join(cells) + "\n" for cells in aligned)


def schedule_text(schedule: Sequence[Segment]) -> str:
    """Return a schedule as lines for people: which values from which update on."""
    text = ""
    for segment in schedule:
        values = ", ".join(f"{key} = {value!r}" for key, value in segment.values.items())
        text += f"from update {segment.update} on (member {segment.member}): {values}\n"
    return text


def best_config(config: RunConfig, report: Report) -> RunConfig:
    """Return a recipe with a report's values; those that changed as schedules where it has such.

    A changed value without a schedule in a recipe is the last one.
    """
    found = with_values(config, report.values)
    for key in (key for key in _SCHEDULED if key in report.values):
        points = [(s.steps, float(s.values[key])) for s in report.schedule]
        if len({value for _, value in points}) > 1:
            section, _, name = key.partition(".")
            learner = getattr(found, section)
            unused = {name: type(learner).__dataclass_fields__[name].default}
            changed = replace(learner, **unused, **{f"{name}_schedule": _stairs(points)})
            found = replace(found, **{section: changed})
    return found


def _stairs(points: Sequence[tuple[int, float]]) -> Schedule:
    """Return points, constant between changes, as the learner's piecewise-linear schedule."""
    stairs: list[tuple[int, float]] = []
    for step, value in points:
        if stairs and value == stairs[-1][1]:
            continue
        if stairs and step - 1 > stairs[-1][0]:
            stairs.append((step - 1, stairs[-1][1]))
        stairs.append((step, value))
    return tuple(stairs)


def recipe_text(config: TuneConfig, report: Report) -> str:
    """Return the best recipe as TOML, with its schedule as comments."""
    text = (
        f"The best of {config.members} members: {config.metric} {report.score:.4f} at update "
        f"{report.update} ({report.steps} steps).\n{schedule_text(report.schedule)}"
    )
    recipe = best_config(config.run, report)
    return "".join(f"# {line}\n" for line in text.splitlines()) + to_toml(recipe)


@dataclass(frozen=True)
class Summary:
    """How a search ended, as ``summary.json``."""

    members: int
    best: Report
    copies_decided: int
    copies_made: int
    failures: dict[int, str]  # why members failed for good, by their numbers

    def text(self, config: TuneConfig) -> str:
        """Return lines for people."""
        best, text = self.best, ""
        for member, reason in sorted(self.failures.items()):
            text += f"member {member} failed: {reason}\n"
        if self.failures:
            text += f"{len(self.failures)} of {self.members} members failed\n"
        if config.pbt is not None:
            text += f"copies: {self.copies_made} made of {self.copies_decided} decided\n"
        return text + (
            f"best: {config.metric} {best.score:.4f}, utilisation {best.utilisation:.3f}, queueing "
            f"delay {best.queueing_delay:.3f} RTT (member {best.member}, update {best.update})\n"
        )


def write_outcome(
    folder: Path,
    config: TuneConfig,
    failures: Mapping[int, str],
    *,
    draw: bool = True,
    command: str = "",
) -> str | None:
    """Write recipe, table, summary, figure and page of what was reported; return the table's text.

    Where there is no report yet, nothing is written, and None is returned. Without ``draw`` figure
    and page are left out, which take seconds that a stop may not have. ``failures`` says why
    members failed, by their numbers; ``command`` is the one that the page names.
    """
    reports, best = read_reports(folder / REPORTS), read_best(folder)
    if not reports or best is None:
        return None
    # The table and the summary.
    copies = [*read_lines(folder / COPIES, Copy)]
    made = sum(copy.donor is not None for copy in copies)
    summary = Summary(config.members, best, len(copies), made, dict(failures))
    text = table(config, reports, failures) + summary.text(config)
    if config.pbt is not None:
        text += schedule_text(best.schedule)
    # The recipe and the figure.
    files = {"best.toml": recipe_text(config, best).encode(), "table.txt": text.encode()}
    files["summary.json"] = msgspec.json.encode(summary)
    if draw:
        from distrlcc.tune import plots  # noqa: PLC0415 - slow to import

        files |= plots.population_figures(config, reports, best)
        notes = schedule_text(best.schedule).splitlines() if config.pbt else []
        ranked = standings(reports, config.mode)
        page = plots.population_page(config, best, ranked, reports, failures, notes, command)
        files["tune.html"] = page.encode()
    write_together(folder, files)
    return text
