"""List the policies that come with the package: name one wherever a policy is asked for.

distrlcc evaluate gail --against cubic,bbr
distrlcc send HOST:PORT --policy gail
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrlcc.recipes.row import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", metavar="FILE", help="write the list as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Print a line for each policy."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.policy.policy_file import load_policy, shipped_policies
    from distrlcc.recipes.experiment import PREFER
    from distrlcc.recipes.row import shipped_rows

    check_json_target(args.json)
    rows, listed = shipped_rows(), []
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("policy", "network", "observation", "action", "kB", "scored on", "power"):
        right = head in ("kB", "power")
        table.add_column(head, justify="right" if right else "left", no_wrap=head == "policy")
    for name, path in shipped_policies().items():
        policy = load_policy(path)
        spec, size = policy.spec, path.stat().st_size
        power = _powers(rows[name]) if name in rows else {}
        wanted = "" if spec.preference is None else f"{PREFER}{spec.preference:g}"
        suite = next((label for label in power if label.endswith(wanted)), "")
        listed.append({"name": name, "file": str(path), "bytes": size, "power": power})
        hidden = "-".join(map(str, spec.hidden))
        table.add_row(
            name, f"{spec.kind} {hidden}", spec.observation, spec.action, f"{size / 1e3:.0f}",
            suite, f"{power[suite]:.3f}" if suite else "",
        )  # fmt: skip
    console = Console(stderr=args.json == "-")
    console.width = max(console.width, 80)
    console.print(table)
    emit_json(args.json, listed)
    return 0


def _powers(row: Row) -> dict[str, float]:
    """Return a row's means of power by label."""
    return {label: row.mean(label, "power") for label in row.scores if "power" in row.scores[label]}
