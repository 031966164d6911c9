"""``distrlcc evaluate --world emulated``: real packets, and the simulator beside them."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING

from distrlcc.cli.evaluate_arguments import drawn_links, preferences, report_info, scenarios_of
from distrlcc.errors import ConfigError, LinkError

if TYPE_CHECKING:
    from distrlcc.evaluate.emulated import Measured
    from distrlcc.evaluate.real_contender import RealContender
    from distrlcc.evaluate.sim_to_real import Row
    from distrlcc.sim.scenario import Scenario

_LINKS = 4
"""Of a suite, unless the user says how many: each takes its own time."""


def run_emulated(args: argparse.Namespace) -> int:
    """Evaluate, print the tables, write the report."""
    from rich.console import Console

    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.evaluate.report import write_report
    from distrlcc.evaluate.runner import evaluate
    from distrlcc.evaluate.sim_to_real import compare, render
    from distrlcc.evaluate.summary import print_table, summarise, to_json
    from distrlcc.files import require_writable, write_atomically

    if args.links is None and (args.suite is not None or not args.trace):
        args.links = _LINKS
    contenders, scenarios = _contenders(args), scenarios_of(args)
    _check(contenders, scenarios, args.others)
    drawn = drawn_links(args.series, scenarios)
    if args.out is not None:
        require_writable(args.out)
    check_json_target(args.json)
    measured = _measure(contenders, scenarios, args, drawn)
    scores = [one.scores for one in measured]
    late = [run for one in measured for run in one.late]
    failures = [run for one in measured for run in one.failures]
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
    notes = _notes(contenders, scenarios, args.others)
    for note in notes:
        print(note, file=out)
    emit_json(args.json, to_json(summary) | {"late_runs": [asdict(run) for run in late]})
    notes += map(str, late)
    if args.out is not None:
        note = "Real packets; sim-to-real.html has the simulator's figures beside these."
        said = (note, *notes, *map(str, failures))
        series = [one for each in measured for one in each.series]
        page = write_report(args.out, scores, series, report_info(args, *said))
        write_atomically(
            args.out / "sim-to-real.html", render(rows, [*notes, *summary.common.notes()]).encode()
        )
        print(f"report: {page}", file=out)
    return 1 if failures else 0


def _check(
    contenders: Sequence[RealContender], scenarios: Sequence[Scenario], others: str | None
) -> None:
    """Refuse flows that cannot send real packets, before the first link is emulated."""
    from distrlcc.evaluate.real_flow import real_flows

    for scenario in scenarios:
        for contender in contenders:
            real_flows(scenario, contender, others)


def _measure(
    contenders: Sequence[RealContender],
    scenarios: Sequence[Scenario],
    args: argparse.Namespace,
    drawn: tuple[int, ...],
) -> list[Measured]:
    """Run all; one line for each run that failed or did not keep its time.

    Raises:
        LinkError: All failed.
    """
    from distrlcc.evaluate.emulated import evaluate_emulated

    found: list[Measured] = []
    with _ended_by_sigterm():
        for contender in contenders:
            measured = evaluate_emulated(
                contender, scenarios, seeds=args.seeds, others=args.others, series_links=drawn,
                show=lambda line: print(f"{line} ...", file=sys.stderr),
            )  # fmt: skip
            found.append(measured)
            for line in (*measured.late, *measured.failures):
                print(f"distrlcc: {line}", file=sys.stderr)
    failures = [run for one in found for run in one.failures]
    if len(failures) == len(contenders) * len(scenarios) * args.seeds:
        raise LinkError(f"no run succeeded: {failures[0]}")
    return found


def _notes(
    contenders: Sequence[RealContender], scenarios: Sequence[Scenario], others: str | None
) -> list[str]:
    """Return what a reader of the figures must know."""
    from distrlcc.evaluate.real_contender import kernel_note

    notes = []
    kernels = any(contender.is_kernel for contender in contenders)
    if kernels:
        notes.append(kernel_note())
    if any(len(scenario.flows) > 1 for scenario in scenarios):
        who = "the kernel's TCP" if others == "kernel" else "our schemes over UDP"
        if kernels and others is None:
            who += ", beside kernel-NAME the kernel's TCP where it has them"
        notes.append(
            "Beside other flows throughput, RTT and loss are the sender's own; the others are "
            f"{who}, and simulated our schemes."
        )
    return notes


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
    from distrlcc.evaluate.real_contender import policy_from_file, scheme_or_kernel

    names = list(dict.fromkeys(filter(None, map(str.strip, args.against.split(",")))))
    found: list[RealContender] = []
    for path, prefer in product(args.policies, preferences(args)):
        found.append(policy_from_file(path, {*names, *(each.name for each in found)}, prefer))
    found += [scheme_or_kernel(name) for name in names]
    if not found:
        raise ConfigError("nothing to evaluate; give a POLICY file or --against SCHEMES")
    return found


def _line(row: Row) -> str:
    from distrlcc.evaluate.sim_to_real import figure, percent

    if row.failed == row.runs:
        return f"{row.link}, {row.sender}: failed"
    failed = f" ({row.failed} of {row.runs} runs failed)" if row.failed else ""
    return (
        f"{row.link}, {row.sender}{failed}: {figure(row.emulated_mbps, 2)} Mbit/s, simulated "
        f"{figure(row.simulated_mbps, 2)} ({percent(row.throughput_difference)}); p95 RTT "
        f"{figure(row.emulated_p95_ms, 1)} ms, simulated {figure(row.simulated_p95_ms, 1)} "
        f"({percent(row.rtt_difference)})"
    )
