"""End this machine's part in a Ray cluster: what 'cluster start' or 'cluster join' started here."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def run(args: argparse.Namespace) -> int:
    """Stop; 2 when there is nothing to stop."""
    from distrlcc.cluster.ray_cluster import stop

    state = stop()
    if state.plan.is_head:
        print(
            f"The cluster at {state.plan.ray_address} has ended here; members end by themselves "
            "within half a minute."
        )
    else:
        print(f"This machine has left the cluster at {state.plan.ray_address}.")
    return 0
