"""Show recipes, policies and other names, and the scores of recipes."""

from argparse import Namespace
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from distrlcc.cli.output import console, emit_json
from distrlcc.recipes.result_row import shipped_rows


def run_list(args: Namespace) -> int:
    """List the names of recipes, suites and so on, with those of installed packages.

    Flags:
        kind? {recipes|policies|suites|schemes|observations|actions|rewards|networks|learners|
            explorers|stoppers}  only this kind
    """
    from distrlcc.cli.plugin_checks import REGISTRIES
    from distrlcc.policy.policy_file import shipped_policies
    from distrlcc.recipes.registry import RECIPES

    tables: dict[str, dict[str, Any]] = {"recipes": {**RECIPES}, "policies": {**shipped_policies()}}
    tables |= {f"{each.kind}s": {**each, **each.registered} for each in REGISTRIES}
    for kind, things in tables.items():
        things.pop("agent", None)
        if args.kind == kind or (args.kind is None and things):
            width = max(map(len, things), default=0)
            texts = ((name, about(kind, name, thing)) for name, thing in things.items())
            lines = (f"  {name:<{width}}  {text}" for name, text in texts)
            print("\n".join([f"{kind}:", *lines]))
    return 0


def about(kind: str, name: str, thing: Any) -> str:
    """Return what a named thing is, in a line: as `told` says, or its docstring or file begins."""
    if isinstance(thing, str):
        return f"of an installed package: {thing}"
    from distrlcc.board.policies import told

    if name in told().get(kind, ()):
        return told()[kind][name]
    if kind == "recipes":
        text = thing.read_text("utf-8").removeprefix("# ")
    else:
        text = (import_module(f"distrlcc.control.{name}") if kind == "schemes" else thing).__doc__
    return (text or "").strip().partition("\n")[0].rstrip(".:").replace("`", "")


def run_policies(args: Namespace) -> int:
    """List the policies that come with the package; their names stand for their files.

    distrlcc evaluate gail --against cubic,bbr
    distrlcc send HOST:PORT gail

    Flags:
        --json FILE {json}  write the list as JSON; - for stdout
    """
    from distrlcc.board.policies import gallery
    from distrlcc.evaluation.scorecard import PREFER
    from distrlcc.evaluation.tables import plain_table, printed
    from distrlcc.policy.policy_file import shipped_policies

    lines, cards, files = [], gallery({}), shipped_policies()
    for card in cards:
        card["file"] = str(files[card["name"]])
        # Power by suite; shown is the first at the policy's own preference.
        power, prefer = card["power"], card["preference"]
        wanted = "" if prefer is None else f"{PREFER}{prefer:g}"
        suite = next((label for label in power if label.endswith(wanted)), "")
        cells = (card[key] for key in ("name", "network", "observation", "action"))
        scored = suite, f"{power[suite]:.3f}" if suite else ""
        lines.append((*cells, f"{card['bytes'] / 1e3:.0f}", *scored))
    heads = ("policy", "network", "observation", "action", "kB", "scored on", "power")
    table = plain_table("Policies", heads, lines, "policy|network|observation|action|scored on")
    limits = (card["not_for"] for card in cards if card["not_for"])
    console(args.json).print(printed(table), *limits, sep="\n")
    emit_json(args.json, cards)
    return 0


def run_results(args: Namespace) -> int:
    """Show the scores of every recipe with results, beside schemes on the same links.

    distrlcc results
    distrlcc results --markdown > docs/results.md

    Flags:
        --markdown  print the page's source
    """
    from distrlcc.recipes.results_page import results_page

    page = results_page(shipped_rows())
    if args.markdown:
        print(page, end="")
        return 0
    Console().print(Markdown(page))
    return 0
