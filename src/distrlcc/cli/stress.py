"""Find the links on which a policy or a scheme fails, and make them simple.

distrlcc stress one
distrlcc stress runs/mine --budget 600 --out report
distrlcc stress examples/plugins/scheme.py:near --properties use,queue --links 256 --gates
distrlcc evaluate runs/mine --suite report/worst.toml             (what it found, again)

Flags:
    $CONTENDER
    --budget S {1.0..}  length of the search (default: 60)
    --links N {1..}  judge N plain draws and N searched links instead, however long that takes
    --seed N {0..} =0  seed of the draws
    --properties A,B,…  properties to look for (default: all)
    --worst N {0..} =12  number of links that are made simple
    --gates  exit code 1 if a property holds in too small a share of the space
    --out DIR {path}  write stress.html, stress.json, worst.toml and each link there
    $JSON

Rules:
    --budget: not with --links; leave one out
"""

from argparse import Namespace
from time import monotonic
from typing import Any

from rich.console import Console

from distrlcc.cli.contenders import contender
from distrlcc.cli.output import check_report, command_line, console, emit_json, note
from distrlcc.errors import ConfigError, listed, once, printable, unknown_name
from distrlcc.evaluation.search import Findings, stress, tables, write
from distrlcc.evaluation.stress import PROPERTIES, Judge
from distrlcc.evaluation.tables import printed

_QUIET_S = 5.0


def run(args: Namespace) -> int:
    # All that can be refused is refused before the first link.
    keys = listed(args.properties or ",".join(PROPERTIES), "--properties")
    once(keys, "--properties: ")
    for key in keys:
        if key not in PROPERTIES:
            raise unknown_name("property", key, PROPERTIES)
    judge = Judge(contender(args)).of(keys)
    if args.gates and not any(each.bar for each in judge.properties):
        raise ConfigError(f"--gates: {', '.join(keys)} has no bar; add another property")
    check_report(args.out)
    # The search.
    begin, spoken = monotonic(), ("", 0.0)

    def show(line: str) -> None:
        nonlocal spoken
        now, phase = monotonic(), line.partition(":")[0]
        if phase != spoken[0] or now >= spoken[1] + _QUIET_S:
            left = f", about {max(budget - now + begin, 0):.0f} s left" if args.budget else ""
            note(f"{line}{left} ...")
            spoken = phase, now

    args.budget = args.budget or (60.0 if args.links is None else None)
    budget = args.budget or 0.0
    options: dict[str, Any] = {"seed": args.seed, "processes": args.processes, "most": args.worst}
    findings = stress(judge, seconds=budget, links=args.links, show=show, **options)
    # What was found.
    out = console(args.json)
    figures = {"policy": judge.contender.name, "seed": args.seed, **findings.to_json()}
    first = judge.schemes[0]
    says = {each.key: each.says.format(first=first) for each in judge.properties}
    found = tables(figures, says)
    for table in (table for table in found if table.rows):
        out.print(printed(table))
    emit_json(args.json, figures)
    if args.out is not None and findings.points:
        from distrlcc.evaluation.report import stress_page

        page = stress_page(figures, found, command=command_line())
        print(f"report: {write(args.out, findings, figures, page)}", file=out.file)
    return _verdict(findings, args.gates, out)


def _verdict(findings: Findings, gates: bool, out: Console) -> int:
    """Return the exit code; raises ConfigError where the search has ended before its time."""
    missed, unjudged = (gates and each for each in (findings.missed(), findings.unjudged()))
    if missed:
        print(printable(f"below its bar: {', '.join(missed)}"), file=out.file)
    if unjudged:
        print(printable(f"judged on no link: {', '.join(unjudged)}; draw more"), file=out.file)
    if findings.interrupted:
        note("distrlcc: interrupted; these are the findings so far")
        return 130
    if findings.failure:
        raise ConfigError(f"{findings.failure} (the findings so far are shown)")
    return int(bool(missed or unjudged))
