"""What a tuner leaves: the best recipe with its schedule, a table, and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distrlcc.config import to_toml
from distrlcc.errors import ConfigError
from distrlcc.evaluate.plots import to_png, to_svg
from distrlcc.files import write_together
from distrlcc.learn.config import Schedule
from distrlcc.runs.run_config import RunConfig
from distrlcc.tune.plots import population_figure, search_figure
from distrlcc.tune.recorder import REPORTS, read_best
from distrlcc.tune.report import Report, Segment, read_reports
from distrlcc.tune.space import Space, short, with_values
from distrlcc.tune.tune_config import TuneConfig, better, steps_per_update

_SCHEDULED = {
    "ppo.lr": "lr_schedule",
    "ppo.entropy_coeff": "entropy_coeff_schedule",
    "dagger.lr": "lr_schedule",
}
"""Keys whose changes a recipe can hold by itself."""


@dataclass(frozen=True)
class Row:
    """A member's line in the table."""

    member: int
    best: Report
    """Its best report."""
    last: Report


def rows(reports: Sequence[Report], mode: str) -> list[Row]:
    """Return the members' rows, the best first."""
    found: dict[int, Row] = {}
    for report in reports:
        row = found.get(report.member)
        best = row is None or better(mode, report.score, row.best.score)
        found[report.member] = Row(
            report.member, report if row is None or best else row.best, report
        )
    sign = -1.0 if mode == "max" else 1.0
    return sorted(found.values(), key=lambda row: (sign * row.best.score, row.member))


def table(config: TuneConfig, reports: Sequence[Report], failures: Mapping[int, str]) -> str:
    """Return the members as a table for people, the best first."""
    keys = Space.parse(config.space, "--mutate").keys
    head = ["member", f"best {config.metric}", "at update", "last", "at update", *keys]
    lines = [head]
    for row in rows(reports, config.mode):
        best, last = row.best, row.last
        lines.append(
            [
                f"{row.member}{' (failed)' if row.member in failures else ''}",
                f"{best.score:.4f}",
                str(best.update),
                f"{last.score:.4f}",
                str(last.update),
                *(short(best.values[key]) for key in keys),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) + "\n"
        for line in lines
    )


def schedule_text(schedule: Sequence[Segment]) -> str:
    """Return a schedule as lines for people: which values from which update on."""
    return "".join(
        f"from update {segment.update} on (member {segment.member}): "
        + ", ".join(f"{key} = {value!r}" for key, value in segment.values.items())
        + "\n"
        for segment in schedule
    )


def best_config(config: RunConfig, report: Report) -> RunConfig:
    """Return a recipe with a report's values; those that changed as schedules where it has such.

    What has no schedule in a recipe has its last value.

    Raises:
        ConfigError: The values do not fit.
    """
    found = with_values(config, report.values)
    per_update = steps_per_update(config)
    for key, name in _SCHEDULED.items():
        points = [
            (segment.update * per_update, float(segment.values[key]))
            for segment in report.schedule
            if key in segment.values
        ]
        if len({value for _, value in points}) > 1:
            section = key.partition(".")[0]
            changed = replace(getattr(found, section), **{name: _stairs(points)})
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
    lines = [
        f"The best of {config.members} members: {config.metric} {report.score:.4f} at update "
        f"{report.update} ({report.steps} steps).",
        *schedule_text(report.schedule).splitlines(),
    ]
    try:
        recipe = best_config(config.run, report)
    except ConfigError:  # a value that no longer fits is still worth its comment
        recipe = config.run
    return "".join(f"# {line}\n" for line in lines) + to_toml(recipe)


def write_outcome(
    folder: Path, config: TuneConfig, failures: Mapping[int, str], *, draw: bool = True
) -> str | None:
    """Write recipe, table and figure of what was reported so far.

    Args:
        folder: The tuner's.
        config: The tuner's.
        failures: Why members failed, by their numbers.
        draw: False leaves the figure out, which takes seconds that a stop may not have.

    Returns:
        The text that was written to ``table.txt``; None if there is no report yet.

    Raises:
        OutputError: Something cannot be read or written.
    """
    reports, best = read_reports(folder / REPORTS), read_best(folder)
    if not reports or best is None:
        return None
    text = table(config, reports, failures)
    for member, reason in sorted(failures.items()):
        text += f"member {member} failed: {reason}\n"
    text += (
        f"best: {config.metric} {best.score:.4f}, utilisation {best.utilisation:.3f}, queueing "
        f"delay {best.queueing_delay:.3f} RTT (member {best.member}, update {best.update})\n"
    )
    if config.pbt is not None:
        text += schedule_text(best.schedule)
    files = {"best.toml": recipe_text(config, best).encode(), "table.txt": text.encode()}
    if draw:
        space = Space.parse(config.space, "--mutate")
        figure_of = population_figure if config.pbt is not None else search_figure
        figure = figure_of(config, space, reports, best)
        files |= {"population.svg": to_svg(figure), "population.png": to_png(figure)}
    write_together(folder, files)
    return text
