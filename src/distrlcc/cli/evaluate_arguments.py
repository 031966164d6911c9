"""The links that ``evaluate`` runs on, and what its report says of them, in either world."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrlcc.evaluate.report import ReportInfo
    from distrlcc.sim.scenario import Scenario


def scenarios_of(args: argparse.Namespace) -> list[Scenario]:
    """Return the links that the arguments name."""
    from distrlcc.sim.suites import check_one_agent, load_suite, trace_suite

    scenarios: list[Scenario] = []
    if args.suite is not None or not args.trace:
        scenarios += load_suite(args.suite or "random").scenarios("test", args.links)
    if args.trace:
        scenarios += trace_suite(args.trace).scenarios("test")
    for scenario in scenarios:
        check_one_agent(scenario)
    return scenarios


def report_info(args: argparse.Namespace, *notes: str) -> ReportInfo:
    """Return what the report says of the run."""
    from datetime import UTC, datetime

    from distrlcc.evaluate.report import ReportInfo
    from distrlcc.runtime.versions import package_versions

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
