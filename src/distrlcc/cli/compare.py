"""Compare policies, schemes, runs or reports on the same links, and say which is better.

distrlcc compare one bbr cubic
distrlcc compare runs/new runs/old --suite cellular --links 64
distrlcc compare report/summary.json other/summary.json:bbr       (a scheme of a report)

The first is compared with each other one: the difference of each link, its mean with a 95%
interval, Wilcoxon's test, and the links on which it is most ahead and most behind.

Flags:
    senders* SENDER  policies, runs, schemes, or reports' summary.json, with :SCHEME for one scheme
    --suite NAME =random  links of senders that are no reports
    --links N {1..} =64  at most N of them
    --seeds N {1..} =1  runs of each
    $JSON
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from distrlcc.cli.output import Countdown, console, counted, emit_json
from distrlcc.errors import ConfigError, once, printable, unknown_name
from distrlcc.evaluation.contender import Contender, contender_named
from distrlcc.evaluation.runner import check_scenario, evaluate
from distrlcc.evaluation.scores import shown
from distrlcc.evaluation.summary import SchemeSummary, summarise
from distrlcc.extras import require
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import load_suite

Values = Mapping[str, Mapping[str, float]]


def run(args: Namespace) -> int:
    """Measure what is no report, compare, and end with the sentence."""
    require("scipy")
    from distrlcc.evaluation.compare import KEYS, TIE, compare_links

    names = once(args.senders)
    if len(names) < 2:
        raise ConfigError("expected two or more to compare, such as: distrlcc compare one bbr")
    # All that can be refused is refused before the first run.
    reports = {name: one for name in names if (one := _report(name)) is not None}
    contenders = {name: contender_named(name) for name in names if name not in reports}
    scenarios = load_suite(args.suite).scenarios("test", args.links) if contenders else []
    for scenario in scenarios:
        check_scenario(scenario)
    if contenders and reports:
        raise ConfigError(
            f"{next(iter(reports))} is a report, but {next(iter(contenders))} is not: evaluate "
            "both first, or compare two of a kind"
        )
    values = {name: _by_links(one) for name, one in reports.items()}
    values |= _measured(contenders, scenarios, args.seeds)
    labels = _labels(reports, contenders)
    found = compare_links({labels[name]: values[name] for name in names})
    # A table for each other one.
    out = console(args.json)
    for other in dict.fromkeys(row.other for row in found.rows):
        rows = [row for row in found.rows if row.other == other]
        title = f"{shown(found.first)} less {shown(other)}, on {rows[0].links} links"
        table = Table(title=printable(title), title_justify="left", title_style="", box=None)
        for head in ("", "difference", "95% interval", "p", "ahead", "behind", "within 1%"):
            table.add_column(head, justify="right" if head else "left")
        for row in rows:
            m, mean = row.metric, row.mean
            low, high = (m.text(v) for v in (mean.low, mean.high))
            interval = "-" if low == "-" else f"{low} to {high}"
            p = "-" if row.p != row.p else "<0.001" if row.p < 1e-3 else f"{row.p:.3f}"
            ties = row.links - row.ahead - row.behind
            cells = (m.text(mean.mean), interval, p, row.ahead, row.behind, ties)
            table.add_row(m.title, *map(str, cells))
        out.print(table)
        for word, links in (("ahead", rows[0].best), ("behind", rows[0].worst)):
            if links:
                print(printable(f"most {word} in {KEYS[0]} on: {', '.join(links)}"), file=out.file)
    print(f"(within {TIE:.0%} of each other counts as neither)", file=out.file)
    print(printable(found.sentence()), file=out.file)
    emit_json(args.json, found.to_json())
    return 0


def _report(name: str) -> SchemeSummary | None:
    """Return the scheme of a report that a name stands for; None: it is no report."""
    path, _, scheme = name.partition(".json:")
    path = f"{path}.json" if scheme else name
    if not (path.endswith(".json") or os.path.isfile(os.path.join(path, "summary.json"))):
        return None
    require("matplotlib")
    from distrlcc.evaluation.published import read

    place = Path(path)
    summary, _ = read(place / "summary.json" if place.is_dir() else place)
    known = {one.scheme: one for one in summary.schemes}
    if scheme and scheme not in known:
        raise unknown_name(f"scheme of {path}", scheme, known)
    learned = [one for one in summary.schemes if one.learned] or list(summary.schemes)
    return known[scheme] if scheme else learned[0]


def _by_links(one: SchemeSummary) -> Values:
    return {
        link: {key: each.mean for key, each in by_metric.items()}
        for link, by_metric in one.scenarios.items()
    }


def _measured(
    contenders: Mapping[str, Contender], scenarios: list[Scenario], seeds: int
) -> dict[str, Values]:
    found = {}
    countdown = Countdown(list(contenders), lambda name: f"{name} on {counted(scenarios)}")
    for name in countdown:
        scores, _ = evaluate(contenders[name], scenarios, seeds=seeds, show=countdown)
        found[name] = _by_links(summarise([scores]).schemes[0])
    return found


def _labels(
    reports: Mapping[str, SchemeSummary], contenders: Mapping[str, Contender]
) -> dict[str, str]:
    """Return what each is called: its scheme or policy, or where two are the same as given."""
    short = {name: one.scheme for name, one in reports.items()}
    short |= {name: one.name for name, one in contenders.items()}
    plain = list(short.values())
    return {name: one if plain.count(one) == 1 else name for name, one in short.items()}
