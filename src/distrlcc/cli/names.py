"""Show recipes, policies and other names, and the scores of recipes."""

from argparse import Namespace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from distrlcc.cli.output import console, emit_json
from distrlcc.config import read_toml
from distrlcc.plugins import Registry
from distrlcc.recipes.result_row import shipped_rows

KINDS = (
    *("recipes", "policies", "suites", "schemes", "observations", "actions", "rewards"),
    *("networks", "learners", "explorers", "stoppers"),
)


def run_list(args: Namespace) -> int:
    """List the names of recipes, suites and so on, with those of installed packages.

    Flags:
        kind? {recipes|policies|suites|schemes|observations|actions|rewards|networks|learners|
            explorers|stoppers}  only this kind
    """
    from distrlcc.control.state import SCHEMES
    from distrlcc.env.actions import ACTIONS
    from distrlcc.env.observations import OBSERVATIONS
    from distrlcc.env.rewards import REWARDS
    from distrlcc.learn.config import LEARNERS
    from distrlcc.policy.policy_file import shipped_policies
    from distrlcc.policy.spec import NETWORKS
    from distrlcc.recipes.registry import RECIPES
    from distrlcc.sim.suites import SUITES
    from distrlcc.tune.tune_config import EXPLORERS, STOPPERS

    registries: list[Registry[Any]] = [SUITES, SCHEMES, OBSERVATIONS, ACTIONS, REWARDS, NETWORKS]
    registries += [LEARNERS, EXPLORERS, STOPPERS]
    tables: list[dict[str, Any]] = [dict(RECIPES), dict(shipped_policies())]
    tables += [{**r, **r.registered} for r in registries]
    for kind, things in zip(KINDS, tables, strict=True):
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
    if name in told().get(kind, ()):
        return told()[kind][name]
    if kind == "recipes":
        text = thing.read_text("utf-8").removeprefix("# ")
    else:
        text = (import_module(f"distrlcc.control.{name}") if kind == "schemes" else thing).__doc__
    return (text or "").strip().partition("\n")[0].rstrip(".:").replace("`", "")


@cache
def told() -> dict[str, dict[str, str]]:
    """Return what is said of named things in a file of its own, by kind and name."""
    found, rows = read_toml(Path(__file__).with_name("about.toml")), shipped_rows()
    return found | {"not_for": {k: rows[k].filled(v) for k, v in found["not_for"].items()}}


def run_policies(args: Namespace) -> int:
    """List the policies that come with the package; their names stand for their files.

    distrlcc evaluate gail --against cubic,bbr
    distrlcc send HOST:PORT gail

    Flags:
        --json FILE {json}  write the list as JSON; - for stdout
    """
    from distrlcc.evaluation.benchmark import PREFER
    from distrlcc.policy.policy_file import load_policy, shipped_policies

    rows, listed, limits = shipped_rows(), [], told()["not_for"]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("policy", "network", "observation", "action", "kB", "scored on", "power"):
        right = head in ("kB", "power")
        table.add_column(head, justify="right" if right else "left", no_wrap=head == "policy")
    for name, path in shipped_policies().items():
        policy, size = load_policy(path), path.stat().st_size
        spec = policy.spec
        # Power by suite; shown is the first at the policy's own preference.
        row = rows.get(name)
        labels = [] if row is None else [k for k, found in row.scores.items() if "power" in found]
        power = {label: row.of_shipped(label, "power") for label in labels if row is not None}
        wanted = "" if spec.preference is None else f"{PREFER}{spec.preference:g}"
        suite = next((label for label in power if label.endswith(wanted)), "")
        entry = {"name": name, "file": str(path), "bytes": size, "acting": policy.acting}
        not_for = {"not_for": limits[name]} if name in limits else {}
        listed.append(entry | {"power": power} | not_for)
        scored = (suite, f"{power[suite]:.3f}" if suite else "")
        cells = (spec.network_text, spec.observation, spec.action, f"{size / 1e3:.0f}")
        table.add_row(name, *cells, *scored)
    console(args.json).print(table)
    for text in limits.values():
        console(args.json).print(text)
    emit_json(args.json, listed)
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
