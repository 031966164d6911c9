"""Measure how fast policies and schemes find their way after a link has changed.

distrlcc recovery --against cubic,bbr,copa
distrlcc recovery runs/mine --suite SUITE.toml --json -

Each link has a flow alone, and a constant rate until that or the delay changes.

Flags:
    $CONTENDERS
    --against A,B,… =cubic,bbr,vegas,copa,oracle  schemes, or none
    --suite SUITE =dynamic  links that change
    --links N {1..}  at most N of its links (default: 128)
    --out DIR {path}  write recovery.html there
    $JSON
"""

from argparse import Namespace
from typing import Any

import numpy as np

from distrlcc.cli.contenders import contenders_of
from distrlcc.cli.output import Countdown, check_report, command_line, console, emit_json
from distrlcc.errors import ConfigError, counted
from distrlcc.evaluation.recovery import recoveries, recovery_scores
from distrlcc.evaluation.runner import suite_links
from distrlcc.evaluation.scores import RECOVERY_METRICS, shown
from distrlcc.evaluation.summary import MeansRow, figure, means_table
from distrlcc.evaluation.tables import printed
from distrlcc.sim.suites import check_agents


def run(args: Namespace) -> int:
    # All that can be refused is refused before the first run.
    contenders = contenders_of(args)
    scenarios = suite_links(args.suite, args.links, 128)
    for scenario in scenarios:
        check_agents(scenario)
        link = scenario.link
        if link.trace is not None or link.policer_mbps is not None or len(scenario.flows) > 1:
            raise ConfigError(
                f"{scenario.name}: expected links of a constant rate with one flow and no policer, "
                "whose bandwidth-delay products are known; take --suite dynamic"
            )
    check_report(args.out)
    changes = [one for each in scenarios for one in recoveries(each, np.zeros(0), np.zeros(0))]
    if not changes:
        raise ConfigError(
            f"--suite {args.suite}: none of its links changes except for outages; take "
            "--suite dynamic"
        )
    # The runs, a table, and JSON, in which None stands for never.
    finite, rows, void = dict[str, Any](), list[MeansRow](), list[str]()
    links = counted(len(scenarios))
    for contender in Countdown(contenders, lambda one: f"measuring {one.name} on {links}"):
        found, why = recovery_scores(contender, scenarios)
        told = finite[contender.name] = dict[str, Any]()
        for end in ("mean", "p10", "worst"):
            for key, values in found.items():
                told[key if end == "mean" else f"{end}_{key}"] = figure(getattr(values, end))
        rows.append((shown(contender.name), found, contender.learned, bool(why)))
        if why:
            void.append(f"{shown(contender.name)} does not count: {why}.")
            told["void"] = why
    title = f"{counted(len(changes), 'change')} on {links}"
    table = means_table("Recovery", "scheme", rows, RECOVERY_METRICS)
    console(args.json).print(printed(table, title, void))
    emit_json(args.json, finite)
    if args.out is not None:
        from distrlcc.evaluation.report import write_recovery

        page = write_recovery(args.out, table, rows, void, lead=title, command=command_line())
        print(f"report: {page}", file=console(args.json).file)
    return int(bool(void))
