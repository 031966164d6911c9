"""Show the cluster that this machine is in, and its machines."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from distrlcc.cli.output import check_json_target, emit_json

if TYPE_CHECKING:
    from distrlcc.cluster.nodes import RayNode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--show-token", action="store_true", help="print the cluster's token in the line to paste"
    )
    parser.add_argument("--json", metavar="FILE", help="write the machines as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Show; 2 when this machine is in no cluster, or the head does not answer."""
    from distrlcc.cluster.cluster import join_line
    from distrlcc.cluster.nodes import ray_nodes
    from distrlcc.cluster.session import AUTO, RayOptions, ray_session
    from distrlcc.cluster.state import node_here

    check_json_target(args.json)
    here = node_here()
    with ray_session(RayOptions(AUTO)) as ray:
        nodes = ray_nodes(ray)
    if args.json != "-":
        role = "the head" if here.is_head else "a member"
        print(f"This machine, {here.address}, is {role} of the cluster {here.ray_address}.")
        _show(nodes)
        if here.is_head or args.show_token:
            print(f"Next machine:\n\n  {join_line(here, show_token=args.show_token)}\n")
    emit_json(args.json, {"head": here.ray_address, "nodes": [asdict(node) for node in nodes]})
    return 0


def _show(nodes: list[RayNode]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("machine", "state", "cores", "GPUs", "memory", "objects", "resources"):
        numeric = name not in ("machine", "state", "resources")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "state")
    for node in nodes:
        if not node.alive:
            table.add_row(node.address, f"gone: {node.death}" if node.death else "gone")
            continue
        table.add_row(
            f"{node.address}{', head' if node.is_head else ''}",
            "alive",
            f"{node.cpus:g}",
            f"{node.gpus:g}",
            f"{node.memory_gb:.1f} GB",
            f"{node.object_store_gb:.1f} GB",
            ", ".join(f"{name}={amount:g}" for name, amount in node.resources.items()),
        )
    Console(file=sys.stdout).print(table)
