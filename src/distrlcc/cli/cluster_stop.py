"""End this machine's part in a Ray cluster: what 'cluster start' or 'cluster join' started here."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def run(args: argparse.Namespace) -> int:
    """Stop; 2 when there is nothing to stop."""
    from distrlcc.cluster.cluster import stop

    node = stop()
    if node is None:
        print("Processes that a cluster had left on this machine are ended.")
    elif node.is_head:
        print(
            f"The cluster at {node.ray_address} has ended here; members end by themselves "
            "within half a minute."
        )
    else:
        print(f"This machine has left the cluster at {node.ray_address}.")
    return 0
