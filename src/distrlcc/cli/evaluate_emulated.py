"""``distrlcc evaluate --world emulated``: real packets, and the simulator beside them."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distrlcc.cli.evaluate_arguments import report_info, scenarios_of
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.evaluate.emulated import RealContender
    from distrlcc.evaluate.sim_to_real import Row

_LINKS = 4
"""Of a suite, unless the user says how many: each takes its own time."""


def run_emulated(args: argparse.Namespace) -> int:
    """Evaluate, print the tables, write the report."""
    from rich.console import Console

    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.evaluate.emulated import check_emulated, evaluate_emulated
    from distrlcc.evaluate.report import write_report
    from distrlcc.evaluate.runner import evaluate
    from distrlcc.evaluate.sim_to_real import compare, render
    from distrlcc.evaluate.summary import print_table, summarise, to_json
    from distrlcc.files import require_writable, write_atomically

    if args.series:
        raise ConfigError("--series is for the simulated world")
    if args.links is None and (args.suite is not None or not args.trace):
        args.links = _LINKS
    contenders, scenarios = _contenders(args), scenarios_of(args)
    check_emulated(scenarios)
    if args.out is not None:
        require_writable(args.out)
    check_json_target(args.json)
    scores = []
    with _ended_by_sigterm():
        for contender in contenders:
            measured, late = evaluate_emulated(
                contender, scenarios, seeds=args.seeds,
                show=lambda line: print(f"{line} ...", file=sys.stderr),
            )  # fmt: skip
            scores.append(measured)
            _warn(contender, late)
    summary = summarise(scores)
    out = sys.stderr if args.json == "-" else sys.stdout
    console = Console(file=out)
    console.width = max(console.width, 80)
    print_table(summary, console)
    paired = [k for k, contender in enumerate(contenders) if contender.model is not None]
    models = [contenders[k].model for k in paired]
    simulated = [evaluate(m, scenarios, seeds=args.seeds)[0] for m in models if m is not None]
    rows = compare([scores[k] for k in paired], simulated)
    for row in rows:
        print(_line(row), file=out)
    emit_json(args.json, to_json(summary))
    if args.out is not None:
        note = "Real packets; sim-to-real.html has the simulator's figures beside these."
        page = write_report(args.out, scores, [], report_info(args, note))
        write_atomically(args.out / "sim-to-real.html", render(rows).encode())
        print(f"report: {page}", file=out)
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does, so that no folder is left behind."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    old = [(number, signal.signal(number, end)) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        yield
    finally:
        for number, handler in old:
            signal.signal(number, handler)


def _contenders(args: argparse.Namespace) -> list[RealContender]:
    from distrlcc.evaluate.emulated import policy_from_file, scheme_or_kernel

    names = list(dict.fromkeys(filter(None, map(str.strip, args.against.split(",")))))
    found: list[RealContender] = []
    for path in args.policies:
        found.append(policy_from_file(path, {*names, *(each.name for each in found)}))
    found += [scheme_or_kernel(name) for name in names]
    if not found:
        raise ConfigError("nothing to evaluate; give a POLICY file or --against SCHEMES")
    return found


def _warn(contender: RealContender, late: float) -> None:
    from distrlcc.net.ticker import MOST_LATE

    if late > MOST_LATE:
        print(
            f"distrlcc: {contender.name}: {late:.1%} of a run's steps were more than 1 ms late; "
            "this machine was too busy for its figures to count",
            file=sys.stderr,
        )


def _line(row: Row) -> str:
    return (
        f"{row.link}, {row.sender}: {row.emulated_mbps:.2f} Mbit/s, simulated "
        f"{row.simulated_mbps:.2f} ({row.throughput_difference:+.1%}); p95 RTT "
        f"{row.emulated_p95_ms:.1f} ms, simulated {row.simulated_p95_ms:.1f} "
        f"({row.rtt_difference:+.1%})"
    )
