"""Compare policies, schemes, runs or reports on the same links, and say which is better.

distrlcc compare one bbr cubic
distrlcc compare runs/new runs/old --suite cellular --links 64
distrlcc compare report other/summary.json:bbr                    (a scheme of a report)

The first is compared with each other one: the difference of each link, its mean with a 95%
interval, Wilcoxon's test, and the links on which it is most ahead and most behind.

Flags:
    senders* SENDER  policies, runs, schemes, or reports, with :SCHEME for one of several
    --suite NAME  links of senders that are no reports (default: random)
    --links N {1..}  at most N of them (default: 64)
    --seeds N {1..}  runs of each (default: 1)
    $JSON
"""

import os
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from distrlcc.cli.output import Countdown, console, emit_json, note
from distrlcc.errors import ConfigError, counted, once, printable, unknown_name
from distrlcc.evaluation.contender import contender_named, distinct
from distrlcc.evaluation.runner import check_scenario, evaluate, suite_links
from distrlcc.evaluation.scores import metric, shown
from distrlcc.evaluation.summary import SchemeSummary, Summary, summarise, void_note
from distrlcc.evaluation.tables import plain_table, printed
from distrlcc.extras import require

Report = tuple[Summary, SchemeSummary]  # and the one of it that is compared
_HEADS = ("", "difference", "95% interval", "p", "ahead", "behind", "within 1%")


def run(args: Namespace) -> int:
    """Measure what is no report, compare, and end with the sentence."""
    require("scipy")
    from distrlcc.evaluation.compare import KEYS, TIE, compare_links

    names = once(args.senders)
    if len(names) < 2:
        raise ConfigError("expected two or more to compare, such as: distrlcc compare one bbr")
    # All that can be refused is refused before the first run.
    reports = {name: one for name in names if (one := _report(name)) is not None}
    given = [name for name in names if name not in reports]
    contenders = {name: distinct([contender_named(name)])[0] for name in given}
    scenarios = suite_links(args.suite or "random", args.links, 64) if contenders else []
    for scenario in scenarios:
        check_scenario(scenario)
    if contenders and reports:
        raise ConfigError(
            f"{next(iter(reports))} is a report, but {next(iter(contenders))} is not: evaluate "
            "both first, or compare two of a kind"
        )
    _check_reports(args, {name: summary for name, (summary, _) in reports.items()})
    countdown = Countdown(list(contenders), lambda name: f"{name} on {counted(len(scenarios))}")
    for name in countdown:
        scores, _ = evaluate(contenders[name], scenarios, seeds=args.seeds or 1, show=countdown)
        summary = summarise([scores])
        reports[name] = summary, summary.schemes[0]
    values = {name: one.scenarios for name, (_, one) in reports.items()}
    for summary, mine in reports.values():
        if void := [run for run in summary.void if run.scheme == mine.scheme]:
            note(f"distrlcc: {void_note(void, len(summary.links) * summary.seeds)}")
    # What each is called: its scheme or policy, or where two are the same as given.
    short = {name: one.scheme for name, (_, one) in reports.items()}
    labels = {k: name if [*short.values()].count(name) == 1 else k for k, name in short.items()}
    found = compare_links({labels[name]: values[name] for name in names})
    # A table for each other one.
    out = console(args.json)
    for other in dict.fromkeys(row.other for row in found.rows):
        rows = [row for row in found.rows if row.other == other]
        both = (values[name] for name in names if labels[name] in (found.first, other))
        of = len({link for each in both for link in each})
        had = rows[0].links
        on = counted(had) + f" of {of}: the rest is not of both" * (of > had)
        head = f"{shown(found.first)} less {shown(other)}, on {on}"
        lines = []
        for row in rows:
            m, mean, ties = metric(row.key), row.mean, row.links - row.ahead - row.behind
            low, high = (m.text(v) for v in (mean.low, mean.high))
            interval = "-" if low == "-" else f"{low} to {high}"
            p = "-" if row.p != row.p else "<0.001" if row.p < 1e-3 else f"{row.p:.3f}"
            counts = map(str, (row.ahead, row.behind, ties))
            title = m.title + f", {counted(row.links)}" * (row.links != had)
            lines.append((title, m.text(mean.mean), interval, p, *counts))
        out.print(printed(plain_table(head, _HEADS, lines)))
        for word, links in (("ahead", rows[0].best), ("behind", rows[0].worst)):
            if links:
                print(printable(f"most {word} in {KEYS[0]} on: {', '.join(links)}"), file=out.file)
    print(f"(within {TIE:.0%} of each other counts as neither)", file=out.file)
    print(printable(found.sentence()), file=out.file)
    emit_json(args.json, found.to_json())
    return 0


def _report(name: str) -> Report | None:
    """Return the report, and the scheme of it, that a name stands for; None: it is no report."""
    parted = re.fullmatch(r"(.*?\.json|[^:]*):(.+)", name)
    path, scheme = parted.groups() if parted else (name, "")
    if not (path.endswith(".json") or os.path.isfile(os.path.join(path, "summary.json"))):
        return None
    require("matplotlib")
    from distrlcc.evaluation.published import read

    summary, _ = read(Path(path))
    known = {one.scheme: one for one in summary.schemes}
    if scheme and scheme not in known:
        raise unknown_name(f"scheme of {path}", scheme, known)
    policies = [one.scheme for one in summary.schemes if one.learned]
    if not scheme and len(policies) != 1:
        has = f"{len(policies)} policies" if policies else "no policy"
        says = ", ".join(f"{path}:{each}" for each in policies or known)
        raise ConfigError(f"{path} has {has}: say which of {says}")
    return summary, known[scheme or policies[0]]


def _check_reports(args: Namespace, reports: Mapping[str, Summary]) -> None:
    """Raise ConfigError if links of one name differ; say so where a report does not tell."""
    for flag in ("suite", "links", "seeds"):
        if reports and getattr(args, flag) is not None:
            raise ConfigError(f"--{flag}: reports have been measured already; leave it out")
    if len({summary.seeds for summary in reports.values()}) > 1:
        runs = ", ".join(f"{name} has {summary.seeds}" for name, summary in reports.items())
        note(f"distrlcc: reports have other numbers of runs for each link: {runs}")
    known: dict[str, tuple[str, str]] = {}
    for name, summary in reports.items():
        if not summary.digests:
            note(f"distrlcc: {name} is older, and does not tell whether its links are the same")
        for link, digest in summary.digests.items():
            other, theirs = known.setdefault(link, (name, digest))
            if digest != theirs:
                raise ConfigError(
                    f"{link} is not the same link, or world, in {other} and in {name}; compare "
                    "what was measured on one suite"
                )
