"""Show what can be named: recipes and the like, policies, and what recipes scored."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from typing import Any

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from distrlcc.cli.output import add_json, console, emit_json
from distrlcc.cli.parser import Parser
from distrlcc.plugins import Registry
from distrlcc.recipes.result_row import shipped_rows

KINDS = (
    *("recipes", "policies", "suites", "schemes", "observations", "actions", "rewards"),
    *("networks", "learners", "explorers", "stoppers"),
)


def add_list(parser: Parser) -> None:
    parser.add("kind", "only this kind", choices=KINDS, nargs="?")


def run_list(args: Namespace) -> int:
    """List what can be named, that of installed packages included."""
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
    """Return what a named thing is, in a line: as its docstring begins, or as `_ABOUT` says."""
    if isinstance(thing, str):
        return f"of an installed package: {thing}"
    if name in _ABOUT.get(kind, ()):
        return _ABOUT[kind][name]
    if isinstance(thing, int):  # a scheme
        thing = import_module(f"distrlcc.control.{name}")
    return (thing.__doc__ or "").strip().partition("\n")[0].rstrip(".:").replace("`", "")


_ABOUT = {
    "policies": {
        "aurora": "Aurora's network, trained by PPO on Aurora's links",
        "cloning": "behaviour cloning of the oracle's data set, to compare gail and dagger with",
        "dagger": "imitates the oracle by DAgger: the recipe imitation",
        "distrlcc": "DistRLCC's ten inputs and LSTM, trained on its 26 links",
        "gail": "imitates the oracle's data set by GAIL and PPO",
        "genet": "Genet's network, trained by PPO on its widest ranges of links",
        "indigo": "Indigo's LSTM, trained on Indigo's links",
        "one": "for every link, alone or shared: the default of evaluate, send and kernel load",
        "preference": "between throughput and delay as --prefer says",
    },
    "suites": {
        "random": "5-100 Mbit/s, RTT 10-100 ms, queue 0.5-4 BDP, loss to 1% on a quarter",
        "dynamic": "rate or delay or both step every 1.5 to 4 s",
        "cellular": "generated traces, RTT 20-100 ms, queues of 50-500 packets",
        "shallow": "queues of 0.02-0.3 BDP",
        "slow": "0.2-2 Mbit/s",
        "fast": "100-1000 Mbit/s",
        "jitter": "ACKs jitter by up to 1-6 ms, and some come in bunches",
        "silent": "nothing leaves in the first 0.3-2 s",
        "falls": "after 3 s the rate falls to a quarter to a tenth",
        "whole-ms": "served in whole ms, as an emulator's links",
        "lossy": "0.1-2% are lost at random while ACKs jitter, half served in whole ms",
        "long": "RTT 150-800 ms, half lose up to 1% at random",
        "world": "most of this mixed, with up to sixteen agents and rivals",
        "flows": "4, 16 or 32 agents",
        "flows-32": "32 agents",
        "genet": "Genet's widest ranges of links",
        "aurora": "Aurora's training links",
        "aurora-sweep": "30 Mbit/s, 60 ms, with one of rate, delay, queue and loss changed",
        "indigo": "Indigo's 30 links",
        "indigo-grid": "Indigo's grid of rates and delays, calibrated links, a satellite",
        "satellite": "42 Mbit/s, RTT 600 ms, 0.74% lost at random",
        "shared": "1 to 4 agents that come and go",
        "shared-2": "two agents, the second joins after 5 s",
        "shared-4": "four agents that join one after another",
        "shared-rtt": "two agents, one with four times the other's RTT",
        "beside-cubic": "an agent beside a flow of CUBIC",
        "beside-bbr": "an agent beside a flow of BBRv1",
    },
    "schemes": {
        "oracle": "knows the link, and holds the window that fills it",
        "fixed": "one window, --cwnd of send",
    },
    "actions": {
        "multiplicative": "the window times 0.5 to 2, six actions",
        "fine": "the window times 0.5 to 2, nine actions down to 3%",
        "indigo": "Indigo's: the window halved, less 10, held, plus 10, doubled",
        "rate": "Aurora's: the pacing rate by up to a quarter",
        "fast-rate": "the same four times as fast",
        "genet": "Genet's change of the pacing rate",
    },
    "networks": {
        "mlp": "dense layers",
        "lstm": "dense layers, then an LSTM",
        "mingru": "dense layers, then a minGRU",
    },
}
"""By kind and name."""


_NOT_FOR = {
    "one": "Where not to take one: noise in delay above 4 ms in the mean (it uses 1 to 55% of such "
    "links) and RTTs under 2 ms, where CUBIC's rule sends in its place; beside CUBIC (within a "
    "third to three times on 25 to 31% of links); 32 flows at once (Jain 0.68 simulated, 0.98 in "
    "the kernel). See docs/recipes/one.md."
}
"""What a shipped policy is not for."""


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
        policy, size = load_policy(path), path.stat().st_size
        spec = policy.spec
        # Power by suite; shown is the first at the policy's own preference.
        row = rows.get(name)
        labels = [] if row is None else [k for k, found in row.scores.items() if "power" in found]
        power = {label: row.of_shipped(label, "power") for label in labels if row is not None}
        wanted = "" if spec.preference is None else f"{PREFER}{spec.preference:g}"
        suite = next((label for label in power if label.endswith(wanted)), "")
        told = {"name": name, "file": str(path), "bytes": size, "acting": policy.acting}
        not_for = {"not_for": _NOT_FOR[name]} if name in _NOT_FOR else {}
        listed.append(told | {"power": power} | not_for)
        scored = (suite, f"{power[suite]:.3f}" if suite else "")
        cells = (spec.network_text, spec.observation, spec.action, f"{size / 1e3:.0f}")
        table.add_row(name, *cells, *scored)
    console(args.json).print(table)
    for text in _NOT_FOR.values():
        console(args.json).print(text)
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
