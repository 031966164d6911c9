"""Say whether this machine, or every machine of a cluster, is fit for distributed training.

distrlcc doctor
distrlcc doctor --address 10.0.0.1:6379
distrlcc doctor --cluster --storage /mnt/shared
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from distrlcc.cli.output import check_json_target, emit_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--cluster", action="store_true",
        help="check every machine of the cluster that this one is in, and the links between them",
    )  # fmt: skip
    parser.add_argument(
        "--address", metavar="HOST:PORT",
        help="head of the cluster; without --cluster: see whether this machine could join it",
    )  # fmt: skip
    parser.add_argument(
        "--interface", default="", metavar="NAME", help="network interface towards the head"
    )
    parser.add_argument(
        "--storage", default="", metavar="PATH",
        help="folder or URL that must be writable, and the same on all machines",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Check; 1 when anything fails."""
    from distrlcc.doctor.row import Verdict, worst
    from distrlcc.doctor.table import print_rows

    check_json_target(args.json)
    if args.cluster:
        from distrlcc.cluster.state import node_here
        from distrlcc.doctor.cluster import cluster_rows

        head = args.address or node_here().ray_address
        rows = cluster_rows(head, args.storage)
    else:
        from distrlcc.doctor.here import here_rows

        rows = here_rows(args.address or "", args.interface, args.storage)
    if args.json != "-":
        print_rows(rows)
    verdict = worst(rows)
    emit_json(args.json, {"verdict": verdict, "rows": [asdict(row) for row in rows]})
    return 1 if verdict == Verdict.FAIL else 0
