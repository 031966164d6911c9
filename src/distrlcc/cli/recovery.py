"""Measure how fast policies and schemes find their way after a link has changed.

distrlcc recovery best --against cubic,bbr,copa
distrlcc recovery runs/mine --suite SUITE.toml --json -

Links are of a constant rate that changes, or whose delay does; a flow is alone there.
"""

from __future__ import annotations

import argparse
import math
import sys

from distrlcc.cli.evaluate_arguments import add_prefer, counted
from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="policy files, or runs")
    parser.add_argument(
        "--against", default="cubic,bbr,vegas,copa,oracle", metavar="A,B,…",
        help="schemes (default: cubic,bbr,vegas,copa,oracle)",
    )  # fmt: skip
    parser.add_argument("--suite", default="dynamic", metavar="SUITE", help="default: dynamic")
    parser.add_argument(
        "--links", type=number(1, whole=True), default=128, metavar="N",
        help="at most N of its links (default: 128)",
    )  # fmt: skip
    add_prefer(parser)
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Measure and print a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from distrlcc.cli.evaluate_arguments import contenders_of
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.evaluate.recovery import RECOVERY_METRICS, recovery_scores
    from distrlcc.sim.suites import check_agents, load_suite

    contenders = contenders_of(args)
    scenarios = load_suite(args.suite).scenarios("test", args.links)
    for scenario in scenarios:
        check_agents(scenario)
        if scenario.link.trace is not None or len(scenario.flows) > 1:
            raise ConfigError(
                f"{scenario.name}: expected links of a constant rate with one flow, which "
                "bandwidth-delay products are known of; take --suite dynamic"
            )
    changes = sum(c.at_s < s.duration_s for s in scenarios for c in s.link.changes)
    if not changes:
        raise ConfigError(f"--suite {args.suite}: none of its links changes; take --suite dynamic")
    check_json_target(args.json)
    table = Table(title=f"{changes} changes on {counted(scenarios)}", box=box.SIMPLE_HEAD)
    table.add_column("scheme")
    for metric in RECOVERY_METRICS:
        table.add_column(metric.title, justify="right")
    found = {}
    for contender in contenders:
        print(f"measuring {contender.name} on {counted(scenarios)} ...", file=sys.stderr)
        scores = found[contender.name] = recovery_scores(contender, scenarios)
        cells = [
            f"{scores[m.key] * m.scale:.{m.digits}f}".replace("inf", "never")
            for m in RECOVERY_METRICS
        ]
        table.add_row(contender.name, *cells)
    Console(stderr=args.json == "-").print(table)
    finite = {
        name: {key: None if math.isinf(value) else value for key, value in scores.items()}
        for name, scores in found.items()
    }
    emit_json(args.json, finite)
    return 0
