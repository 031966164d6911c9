"""Let this machine join a Ray cluster; versions and the token are compared before Ray starts.

distrlcc cluster join 10.0.0.1:6379
"""

from __future__ import annotations

import argparse
import getpass
import sys

from distrlcc.cli.cluster_start import add_share_arguments, ray_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("head", metavar="HOST:PORT", help="the cluster's head")
    add_share_arguments(parser)
    text = "join again by itself whenever the head was lost, or gave this machine up"
    parser.add_argument("--rejoin", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Join; 2 when that is not possible."""
    from distrlcc.cluster.cluster import join

    node = join(
        args.head,
        interface=args.interface,
        flags=ray_flags(args),
        allow_public=args.allow_public,
        rejoin=args.rejoin,
        ask_token=lambda: _ask(args.head),
    )
    print(f"This machine, {node.address} ({node.interface}), is in the cluster of {args.head}.")
    print(f"Let the other machines reach ports {node.ports} here.")
    print("'distrlcc cluster status' shows the cluster, 'distrlcc cluster stop' leaves it.")
    return 0


def _ask(head: str) -> str:
    if not sys.stdin.isatty():
        return ""
    return getpass.getpass(f"Token of the cluster at {head}: ").strip()
