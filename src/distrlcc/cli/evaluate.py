"""Measure policies and schemes on a suite or on traces, and write a report.

distrlcc evaluate runs/first/policy.safetensors --against cubic,bbr,vegas --suite random
distrlcc evaluate                                                        (one, on random links)
distrlcc evaluate policy.safetensors --trace Verizon-LTE-short.down --delay 30 --out report
distrlcc evaluate --against cubic,bbr,copa --suite dynamic --links 64 --json -
distrlcc evaluate runs/demo --world emulated --links 3 --out report     (real packets)
distrlcc evaluate one --scorecard --gates --trace traces/*.down --out report    (all kinds)
distrlcc evaluate --world emulated --as kernel --links 3           (in the kernel's TCP, too)

Flags:
    $CONTENDERS
    --against A,B,…  schemes, or none (default: cubic,bbr,vegas,copa,reno,oracle; with --world
        emulated kernel-cubic,kernel-bbr,kernel-reno, if the kernel has them)
    --world {simulated|emulated} =simulated  emulated: real packets on emulated links, one after
        another in real time; then kernel-NAME is the kernel's TCP, and 'cmd:SENDER :: RECEIVER' any
        programs
    --others {ours|kernel}  other flows of an emulated link: our schemes over UDP, or the kernel's
        TCP of these names (default: beside kernel-NAME the kernel's if it has them, else ours)
    --as/also WHAT {kernel|}  kernel: also put each POLICY into the kernel's TCP, and measure it as
        kernel-POLICY
    --flows N,… {1..32} =  also measure N parallel kernel flows, as iperf3 -P does, for each N, such
        as 1,4,32; the link has 96 Mbit/s, 10 ms one way and a queue of 300 packets
    --scorecard  links of all kinds, with the gates that a policy for every link should pass; a gate
        of a --trace is the best scheme's power; a line says which gates are missed
    --gates  with --scorecard: exit code 1 if a policy misses a gate
    --retries N {0..} =2  repeat a run of real packets that does not count, up to N times
    --suite SUITE  a suite, TOML file or folder of traces (default: random)
    --trace* FILE  trace files, or cellular:SEED
    --delay/delay_ms MS {0.0..60000}  of the links of --trace, one way (default: 20)
    --queue SPEC  of the links of --trace: packets, or droptail:bytes=N, codel:packets=N, …
        (default: 100)
    --loss P {0.0..1}  random, on the links of --trace (default: 0)
    --links N {1..}  at most N links of the suite
    --seeds N {1..}  runs of each link (default: 5; of real packets 1)
    --series LINK,… =  links drawn over time (default: two)
    --out DIR {path}  write the report there
    $JSON

Rules:
    --others: for --world emulated; simulated flows are always ours
    --flows: for --world emulated; 'distrlcc fairness' simulates several
    --retries: for --world emulated; a simulated run is always the same
    --suite --delay --queue --loss --links --seeds --series: not with --scorecard
    --scorecard: not with --world emulated; its links are simulated
    --delay --queue --loss: for --trace; suites have their own
    --series: needs --out; it names links that the report draws
"""

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

from distrlcc.cli.contenders import contenders_of
from distrlcc.cli.output import (
    Countdown,
    check_report,
    command_line,
    console,
    emit_json,
    note,
)
from distrlcc.errors import ConfigError, LinkError, counted, listed, once, printable
from distrlcc.evaluation.both_worlds import ParallelFlows, compare, measure_parallel
from distrlcc.evaluation.contender import KERNEL, Contender, kernel_note
from distrlcc.evaluation.emulated import busy, evaluate_emulated, real_flows
from distrlcc.evaluation.kernel_policy import kernel_work, registered
from distrlcc.evaluation.runner import evaluate, links_of
from distrlcc.evaluation.scores import SchemeScores, Series
from distrlcc.evaluation.summary import print_table, summarise, to_json
from distrlcc.evaluation.tables import BELOW, printed
from distrlcc.files import write_atomically
from distrlcc.net.kernel.tcp import KernelControl
from distrlcc.policy.spec import DEFAULT
from distrlcc.processes import heard
from distrlcc.runs.identity import package_versions
from distrlcc.sim.scenario import Scenario

AGAINST = "cubic,bbr,vegas,copa,reno,oracle"
EMULATED_AGAINST = "kernel-cubic,kernel-bbr,kernel-reno"
_EMULATED_LINKS = 4  # links of a suite by default where packets are real: each takes its own time
_MOST_LINES = 5  # runs of a contender that do not count and have a line while they are measured


def run(args: Namespace) -> int:
    # What is measured on which links.
    once(args.trace, "--trace: ")
    real = args.world == "emulated"
    if args.against is None:
        args.senders = args.senders or [DEFAULT]
        args.against = known_to_the_kernel(EMULATED_AGAINST) if real else AGAINST
        if args.scorecard and not real:
            args.against += ",ledbat"
    contenders = contenders_of(args, real=real)
    if args.gates and not (args.scorecard and any(one.learned for one in contenders)):
        raise ConfigError("--gates is for a policy's --scorecard; it judges what that measures")
    if args.scorecard:
        return _scorecard(args, contenders)
    args.seeds = args.seeds or (1 if real else 5)
    scenarios = _scenarios(args)
    with _in_kernel(args, contenders) as controls:
        return _evaluate(args, contenders, scenarios, controls)


def known_to_the_kernel(schemes: str) -> str:
    """Return those of ``kernel-NAME,…`` that the kernel has; say so where it lacks some."""
    from distrlcc.net.kernel.tcp_flow import kernel_controls

    known, named = kernel_controls(), listed(schemes, "--against")
    found = [name for name in named if name.removeprefix("kernel-") in known]
    if found != named:
        note(f"the kernel's TCP has only {', '.join(known)} (sudo modprobe tcp_bbr for BBR)")
    return ",".join(found)


def _scorecard(args: Namespace, contenders: list[Contender]) -> int:
    from distrlcc.evaluation.scorecard import BENCHMARKS, on_traces, score

    benchmarks = (*BENCHMARKS, *on_traces(args.trace))
    check_report(args.out)
    card = score(contenders, Countdown(benchmarks, lambda benchmark: benchmark.label))
    out = console(args.json)
    out.print(printed(card.table(brief=True), f"Means; below them {BELOW}"))
    for verdict in card.verdicts:
        print(verdict, file=out.file)
    emit_json(args.json, card.to_json())
    if args.out is not None:
        from distrlcc.evaluation.report import write_scorecard

        page = write_scorecard(args.out, card, command=command_line())
        print(f"report: {page}", file=out.file)
    missed = args.gates and any(map(card.failed, (c.name for c in contenders if c.learned)))
    return int(missed or bool(card.void))


@contextmanager
def _in_kernel(args: Namespace, contenders: list[Contender]) -> Iterator[list[KernelControl]]:
    """Put the policies into the kernel's TCP, if that is asked for; each follows itself then."""
    if args.also is None:
        yield []
        return
    if args.world != "emulated" or not any(one.learned for one in contenders):
        raise ConfigError("--as kernel is for a POLICY and --world emulated")
    policies = [contender for contender in contenders if contender.learned]
    _end_on_signals()
    with registered(policies) as controls:
        for one, control in zip(policies, controls, strict=True):
            there = replace(one, name=KERNEL + one.name, control=control)
            contenders.insert(contenders.index(one) + 1, there)
        yield controls


def _end_on_signals() -> None:
    """End on these as on Ctrl-C, so that nothing is left behind."""
    for each in heard((signal.SIGTERM, signal.SIGHUP)):
        signal.signal(each, lambda number, frame: sys.exit(128 + number))


def _evaluate(
    args: Namespace,
    contenders: list[Contender],
    scenarios: list[Scenario],
    controls: Sequence[KernelControl],
) -> int:
    # All that can be refused is refused before the first run.
    real = args.world == "emulated"
    for scenario, contender in product(scenarios, contenders if real else ()):
        real_flows(scenario, contender, args.others)
    kernels = [contender for contender in contenders if contender.is_kernel]
    if args.flows and not kernels:
        raise ConfigError("--flows: no sender is in the kernel's TCP; add --as kernel")
    drawn = _drawn_links(args.series, scenarios)
    check_report(args.out)
    # The runs and their table.
    measured = _measure(args, contenders, scenarios, drawn if args.out else ())
    scores = [one for one, _ in measured]
    summary = summarise(scores)
    table = console(args.json)
    print_table(summary, table)
    if answer := summary.answer():
        print(printable(answer), file=table.file)
    figures = to_json(summary)
    notes: list[str] = []
    parallel: list[ParallelFlows] = []
    # Real packets: the simulator beside them, and what a reader of the figures must know.
    failed = list[str]()
    if real:
        models = [contender.simulated() for contender in contenders]
        pairs = [
            (one, evaluate(model, scenarios, seeds=args.seeds)[0])
            for one, model in zip(scores, models, strict=True)
            if model is not None
        ]
        rows = compare(pairs)
        parallel, failed = measure_parallel(
            kernels, args.flows, lambda line: note(f"{line} ..."), args.retries
        )
        figures["flows"] = [one.to_json() for one in parallel]
        figures["failed_flows"] = failed
        notes = _notes(contenders, scenarios, args.others) + list(map(kernel_work, controls))
        for line in (*rows, *parallel, *failed, *notes):
            print(line, file=table.file)
        figures["programs"] = {one.name: one.program[0] for one in contenders if one.program[0]}
    emit_json(args.json, figures)
    # The report.
    if args.out is not None:
        from distrlcc.evaluation.report import ReportInfo, comparison_page, write_report

        names = [args.suite or "random"] if args.suite or not args.trace else []
        names += [Path(trace).name for trace in args.trace]
        said = [
            "Throughput, utilisation, delays and losses are taken after the first second, which "
            "has a column of its own."
        ]
        said += ["Real packets; sim-to-real.html has the simulator's figures beside these."] * real
        said += [*map(str, parallel), *notes, *failed]
        info = ReportInfo(", ".join(names), command_line(), package_versions(), tuple(said))
        series = [one for _, each in measured for one in each]
        page = write_report(args.out, scores, series, info)
        if real:
            beside = comparison_page(
                rows, [*notes, *summary.notes(), *failed], parallel, command=info.command
            )
            write_atomically(args.out / "sim-to-real.html", beside.encode())
        print(f"report: {page}", file=table.file)
    return int(bool(summary.void or failed))


def _scenarios(args: Namespace) -> list[Scenario]:
    names = ("delay_ms", "queue", "loss")
    link = {name: x for name in names if (x := getattr(args, name)) is not None}
    suite = args.suite or ("" if args.trace else "random")
    usual = _EMULATED_LINKS if args.world == "emulated" else None
    return links_of(suite, args.trace, args.links, usual, **link)


def _drawn_links(names: str, scenarios: Sequence[Scenario]) -> tuple[int, ...]:
    """Return the places of the links that the report draws over time; the first two by default."""
    if not names:
        return tuple(range(min(2, len(scenarios))))
    known = [scenario.name for scenario in scenarios]
    chosen = listed(names, "--series")
    for name in chosen:
        if name not in known:
            first = ", ".join(known[:3])
            raise ConfigError(f"--series {name}: no such link; expected names such as {first}")
    return tuple(map(known.index, chosen))


def _measure(
    args: Namespace,
    contenders: Sequence[Contender],
    scenarios: list[Scenario],
    drawn: tuple[int, ...],
) -> list[tuple[SchemeScores, list[Series]]]:
    found = []
    if args.world == "simulated":
        links = counted(len(scenarios))
        countdown = Countdown(contenders, lambda c: f"evaluating {c.name} on {links}")
        for contender in countdown:
            found.append(
                evaluate(contender, scenarios, seeds=args.seeds, series_links=drawn, show=countdown)
            )
            _say_void(found[-1][0])
        return found
    if line := busy():
        note(f"distrlcc: {line}")
    _end_on_signals()
    left = len(contenders) * args.seeds * sum(scenario.duration_s for scenario in scenarios)

    def show(line: str, seconds: float) -> None:
        nonlocal left
        note(f"{line}, about {max(left, seconds):.0f} s left ...")
        left -= seconds

    how = {"seeds": args.seeds, "others": args.others, "retries": args.retries, "show": show}
    for contender in contenders:
        found.append(evaluate_emulated(contender, scenarios, series_links=drawn, **how))
        _say_void(found[-1][0])
    void = [run for scores, _ in found for run in scores.void()]
    shape = len(contenders) * len(scenarios) * args.seeds
    if len(void) == shape and not any(run.figures for run in void):
        raise LinkError(f"no run succeeded: {void[0]}")
    return found


def _say_void(scores: SchemeScores) -> None:
    first, more = list(map(str, scores.void()))[:_MOST_LINES], len(scores.void()) - _MOST_LINES
    for line in first + [f"{more} more of its runs do not count"] * (more > 0):
        note(f"distrlcc: {line}")


def _notes(
    contenders: Sequence[Contender], scenarios: Sequence[Scenario], others: str | None
) -> list[str]:
    """Return what a reader of real packets' figures must know."""
    kernels = any(contender.is_kernel for contender in contenders)
    notes = [kernel_note()] if kernels else []
    notes += [f"{one.name} is {one.program[0]!r}" for one in contenders if one.program[0]]
    if any(len(scenario.flows) > 1 for scenario in scenarios):
        what = "the kernel's TCP" if others == "kernel" else "our schemes over UDP"
        if kernels and others is None:
            what += ", beside kernel-NAME the kernel's TCP where it has them"
        notes.append(
            "Beside other flows throughput, RTT and loss are the sender's own; the others are "
            f"{what}, and simulated our schemes."
        )
    return notes
