"""List the policies that come with the package: name one wherever a policy is asked for.

distrlcc evaluate gail --against cubic,bbr
distrlcc send HOST:PORT --policy gail
"""

from __future__ import annotations

import argparse

from distrlcc.cli.output import add_json, check_json_target, console, emit_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_json(parser, "the list")


def run(args: argparse.Namespace) -> int:
    """Print a line for each policy."""
    from rich import box
    from rich.table import Table

    from distrlcc.policy.policy_file import load_policy, shipped_policies
    from distrlcc.recipes.experiment import PREFER
    from distrlcc.recipes.result_row import shipped_rows

    check_json_target(args.json)
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
