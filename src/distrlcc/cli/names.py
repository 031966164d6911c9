"""Show what can be named: recipes and the like, policies, and what recipes scored."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from distrlcc.cli.output import add_json, console, emit_json
from distrlcc.cli.parser import Parser
from distrlcc.plugins import Registry
from distrlcc.recipes.result_row import shipped_rows

KINDS = ("recipes", "suites", "schemes", "observations", "actions", "rewards", "networks")


def add_list(parser: Parser) -> None:
    parser.add("kind", "only this kind", choices=KINDS, nargs="?")


def run_list(args: Namespace) -> int:
    """List what can be named, that of installed packages included."""
    from distrlcc.control.state import SCHEMES
    from distrlcc.env.actions import ACTIONS
    from distrlcc.env.observations import OBSERVATIONS
    from distrlcc.env.rewards import REWARDS
    from distrlcc.policy.spec import NETWORKS
    from distrlcc.recipes.registry import RECIPES
    from distrlcc.sim.suites import SUITES

    registries: list[Registry[Any]] = [SUITES, SCHEMES, OBSERVATIONS, ACTIONS, REWARDS, NETWORKS]
    tables = [list(RECIPES), *([*each, *each.registered] for each in registries)]
    for kind, names in zip(KINDS, tables, strict=True):
        if args.kind in (None, kind):
            print(f"{kind}: {', '.join(name for name in names if name != 'agent')}")
    return 0


def add_policies(parser: Parser) -> None:
    add_json(parser, "the list")


def run_policies(args: Namespace) -> int:
    """List the policies that come with the package: name one wherever a policy is asked for.

    distrlcc evaluate gail --against cubic,bbr
    distrlcc send HOST:PORT gail
    """
    from distrlcc.evaluation.benchmark import PREFER
    from distrlcc.policy.policy_file import load_policy, shipped_policies

    rows, listed = shipped_rows(), []
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("policy", "network", "observation", "action", "kB", "scored on", "power"):
        right = head in ("kB", "power")
        table.add_column(head, justify="right" if right else "left", no_wrap=head == "policy")
    for name, path in shipped_policies().items():
        spec, size = load_policy(path).spec, path.stat().st_size
        # Means of power by suite; shown is the first at the policy's own preference.
        row = rows.get(name)
        labels = [] if row is None else [k for k, found in row.scores.items() if "power" in found]
        power = {label: row.mean(label, "power") for label in labels if row is not None}
        wanted = "" if spec.preference is None else f"{PREFER}{spec.preference:g}"
        suite = next((label for label in power if label.endswith(wanted)), "")
        listed.append({"name": name, "file": str(path), "bytes": size, "power": power})
        network = f"{spec.kind} {'-'.join(map(str, spec.hidden))}"
        scored = (suite, f"{power[suite]:.3f}" if suite else "")
        table.add_row(name, network, spec.observation, spec.action, f"{size / 1e3:.0f}", *scored)
    console(args.json).print(table)
    emit_json(args.json, listed)
    return 0


def add_results(parser: Parser) -> None:
    parser.add("--markdown", "print the page's source", bool)


def run_results(args: Namespace) -> int:
    """Show what every recipe with results scored, beside the schemes on the same links.

    distrlcc results
    distrlcc results --markdown > docs/results.md
    """
    from distrlcc.recipes.results_page import results_page

    page = results_page(shipped_rows())
    if args.markdown:
        print(page, end="")
        return 0
    Console().print(Markdown(page))
    return 0
