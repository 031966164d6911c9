"""Start the head of a Ray cluster on this machine, and print the line for the others.

distrlcc cluster start
distrlcc cluster start --ip 10.0.0.1 --cpus 8 --show-token
"""

from __future__ import annotations

import argparse
from ipaddress import ip_address
from pathlib import Path

from distrlcc.cli.cluster_share import add_share_arguments, share_of
from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--ip", default="", metavar="IP",
        help="address of this machine that the others reach; needed where there are several",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=number(1024, 8254, whole=True), default=6379, metavar="P",
        help="first of the cluster's eleven ports (default: 6379)",
    )  # fmt: skip
    add_share_arguments(parser)
    parser.add_argument(
        "--show-token", action="store_true", help="print the cluster's token in the line to paste"
    )
    parser.add_argument(
        "--no-dashboard", action="store_true",
        help="do without Ray's dashboard, which is on this machine's loopback",
    )  # fmt: skip
    parser.add_argument(
        "--autoscaling-config", type=Path, metavar="FILE",
        help="for 'ray up' alone: the file that it writes on the head",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Start; 2 when that is not possible."""
    from distrlcc.cluster.ray_cluster import join_line, start_head
    from distrlcc.cluster.ray_ports import DASHBOARD_PORT
    from distrlcc.cluster.ray_token import token_path

    scaling = args.autoscaling_config
    if scaling is not None and not scaling.expanduser().is_file():
        raise ConfigError(f"--autoscaling-config {scaling}: there is no such file")
    state = start_head(
        args.ip,
        args.port,
        interface=args.interface,
        share=share_of(args),
        dashboard=not args.no_dashboard,
        autoscaling_config=str(scaling.expanduser().resolve()) if scaling else "",
        allow_public=args.allow_public,
    )
    plan = state.plan
    print(f"The cluster's head runs here, at {plan.ray_address} ({plan.interface}).")
    alone = ip_address(plan.address).is_loopback
    if not alone:
        print(f"Let the other machines reach ports {plan.ports}, and each other too.")
    if plan.dashboard:
        print(f"Dashboard, on this machine only: http://127.0.0.1:{DASHBOARD_PORT}")
    print(f"The token is in {token_path()}.")
    if alone:
        print("No other machine can join at a loopback address; --ip takes the one they reach.")
        return 0
    if args.show_token:
        print("On each of the others:")
    else:
        print("On each of the others (it asks for the token; --show-token puts it into the line):")
    print(f"\n  {join_line(state, show_token=args.show_token)}\n")
    return 0
