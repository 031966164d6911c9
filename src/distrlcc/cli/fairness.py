"""Measure how policies and schemes share links, with their own kind and with others.

distrlcc fairness runs/mine --against cubic,bbr,vegas,copa
distrlcc fairness policy.safetensors --suite shared-4 --links 64 --seeds 3 --out report
distrlcc fairness --against cubic,bbr --suite beside-cubic,mine.toml --json -

Flags:
    $CONTENDERS
    --against A,B,… =cubic,bbr,vegas,copa  schemes, or none
    --suite A,B,… =shared-2,shared-4,shared-rtt,beside-cubic,beside-bbr,random  suites or TOML
        files, all of whose agents run the policy or the scheme; on random a flow is alone
    --links N {1..}  at most N links of each (default: 16)
    --seeds N {1..} =1  runs of each link
    --out DIR {path}  write the report there
    $JSON
"""

from argparse import Namespace

from distrlcc.cli.contenders import contenders_of
from distrlcc.cli.output import Countdown, check_report, command_line, console, emit_json
from distrlcc.errors import ConfigError, counted, listed
from distrlcc.evaluation.fairness import LEAST_S, measure, table, to_json
from distrlcc.evaluation.runner import suite_links
from distrlcc.evaluation.tables import printed
from distrlcc.sim.suites import check_agents


def run(args: Namespace) -> int:
    # All that can be refused is refused before the first run.
    contenders, names = contenders_of(args), listed(args.suite, "--suite")
    suites = {name: suite_links(name, args.links, 16) for name in names}
    for scenario in (scenario for scenarios in suites.values() for scenario in scenarios):
        check_agents(scenario, len(scenario.flows))
        if scenario.duration_s < LEAST_S:
            raise ConfigError(
                f"{scenario.name}: duration_s is {scenario.duration_s:g}; expected "
                f"{LEAST_S:g} or more, to share a link for a while"
            )
    check_report(args.out)
    # The runs, a table of each suite, and the report.
    out, rows = console(args.json), []
    for name in Countdown(names, lambda name: f"{name}: {counted(len(suites[name]))}"):
        scenarios = suites[name]
        found = [measure(contender, name, scenarios, args.seeds) for contender in contenders]
        title = f"{name}: {counted(len(scenarios))}, {counted(args.seeds, 'seed')} each"
        notes = [note for row in found for note in row.notes]
        out.print(printed(table(name, found), title, notes))
        rows += found
    emit_json(args.json, to_json(rows))
    if args.out is not None:
        from distrlcc.evaluation.report import write_fairness

        page = write_fairness(args.out, rows, command=command_line())
        print(f"report: {page}", file=out.file)
    return int(any(row.void for row in rows))
