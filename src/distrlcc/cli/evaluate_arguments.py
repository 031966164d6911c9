"""The links that ``evaluate`` runs on, and what its report says of them, in either world."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.evaluate.contender import Contender
    from distrlcc.evaluate.report import ReportInfo
    from distrlcc.sim.scenario import Scenario


def counted(links: Sequence[object]) -> str:
    """Return their number with its noun: ``1 link``, ``12 links``."""
    return f"{len(links)} link{'s' * (len(links) != 1)}"


def add_prefer(parser: argparse.ArgumentParser) -> None:
    """Add the argument that `preferences` reads."""
    parser.add_argument(
        "--prefer", default="", metavar="P,…",
        help="0: throughput, 1: delay, for policies trained with preferences; each is measured "
        "once for each (default: the policy's own)",
    )  # fmt: skip


def contenders_of(args: argparse.Namespace) -> list[Contender]:
    """Return the policies and schemes that the arguments name."""
    from distrlcc.evaluate.contender import contender_from_file, contender_from_scheme

    schemes = list(dict.fromkeys(filter(None, map(str.strip, args.against.split(",")))))
    contenders: list[Contender] = []
    for path, prefer in product(args.policies, preferences(args)):
        taken = {*schemes, *(contender.name for contender in contenders)}
        contenders.append(contender_from_file(path, taken, prefer))
    contenders += [contender_from_scheme(name) for name in schemes]
    if not contenders:
        raise ConfigError("nothing to evaluate; give a POLICY file or --against SCHEMES")
    return contenders


def scenarios_of(args: argparse.Namespace) -> list[Scenario]:
    """Return the links that the arguments name."""
    from distrlcc.sim.suites import check_agents, load_suite, trace_suite

    scenarios: list[Scenario] = []
    if args.suite is not None or not args.trace:
        scenarios += load_suite(args.suite or "random").scenarios("test", args.links)
    if args.trace:
        scenarios += trace_suite(args.trace).scenarios("test")
    for scenario in scenarios:
        check_agents(scenario)
    return scenarios


def preferences(args: argparse.Namespace) -> list[float | None]:
    """Return what policies are told to prefer, one after another; None: their own default.

    Raises:
        ConfigError: It is no list of numbers from 0 to 1.
    """
    words = [word.strip() for word in args.prefer.split(",") if word.strip()]
    if not words:
        return [None]
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = [-1.0]
    if not all(0.0 <= value <= 1.0 for value in values):
        raise ConfigError(f"--prefer {args.prefer}: expected numbers from 0 to 1, as in 0,0.5,1")
    if not args.policies:
        raise ConfigError("--prefer is for a POLICY; there is none")
    return list(dict.fromkeys(values))


def drawn_links(names: str, scenarios: Sequence[Scenario]) -> tuple[int, ...]:
    """Return the places of the links that the report draws over time.

    Args:
        names: Theirs, with commas between; none: the first two.
        scenarios: All links.

    Raises:
        ConfigError: There is no such link.
    """
    places = {scenario.name: k for k, scenario in enumerate(scenarios)}
    if not names:
        return tuple(range(min(2, len(scenarios))))
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in places:
            first = ", ".join(list(places)[:3])
            raise ConfigError(f"--series {name}: no such link; expected names such as {first}")
    return tuple(places[name] for name in chosen)


def report_info(args: argparse.Namespace, *notes: str) -> ReportInfo:
    """Return what the report says of the run."""
    from datetime import UTC, datetime

    from distrlcc.evaluate.report import ReportInfo
    from distrlcc.runs.identity import package_versions

    names = [args.suite or "random"] if args.suite or not args.trace else []
    names += [Path(trace).name for trace in args.trace]
    return ReportInfo(
        title="Congestion control evaluation",
        suite=", ".join(names),
        command="distrlcc " + shlex.join(sys.argv[1:]),
        policies=tuple(args.policies),
        seeds=tuple(range(args.seeds)),
        versions=package_versions(),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        notes=(
            "Throughput, utilisation, delays and losses are taken after the first second, which "
            "has a column of its own.",
            *notes,
        ),
    )
