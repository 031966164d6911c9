"""Start the head of a Ray cluster on this machine, and print the line for the others.

distrlcc cluster start
distrlcc cluster start --ip 10.0.0.1 --cpus 8 --show-token
"""

from __future__ import annotations

import argparse
import json
from ipaddress import ip_address
from pathlib import Path

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import RESERVED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "address of this machine that the others reach; needed where there are several"
    parser.add_argument("--ip", default="", metavar="IP", help=text)
    text = "first of the cluster's ten ports (default: 6379)"
    port = number(1024, 8254, whole=True)
    parser.add_argument("--port", type=port, default=6379, metavar="P", help=text)
    add_share_arguments(parser)
    text = "print the cluster's token in the line to paste"
    parser.add_argument("--show-token", action="store_true", help=text)
    text = "do without Ray's dashboard, which is on this machine's loopback"
    parser.add_argument("--no-dashboard", action="store_true", help=text)
    text = "for 'ray up' alone: the file that it writes on the head"
    parser.add_argument("--autoscaling-config", type=Path, metavar="FILE", help=text)


def add_share_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what of this machine Ray may give away."""
    text = "network interface to use, as eth0 or wg0"
    parser.add_argument("--interface", default="", metavar="NAME", help=text)
    for flag, metavar, least, most, text in (
        ("--cpus", "N", 0, 100_000, "cores that Ray may give away here (default: all)"),
        ("--gpus", "N", 0, 1000, "GPUs that Ray may give away here (default: all)"),
        ("--object-store-mb", "MB", 80, 10_000_000, "memory for objects (default: 30%% of all)"),
    ):
        kind = number(least, most, whole=True)
        parser.add_argument(flag, type=kind, metavar=metavar, help=text)
    text = "another resource of this machine, as learner=1; may be repeated"
    parser.add_argument("--resource", action="append", default=[], metavar="NAME=AMOUNT", help=text)
    parser.add_argument("--allow-public", action="store_true", help="listen on a public address")


def ray_flags(args: argparse.Namespace) -> list[str]:
    """Return the arguments of `add_share_arguments` as flags of ``ray start``.

    Raises:
        ConfigError: A resource that is none.
    """
    named = {
        "--num-cpus": args.cpus,
        "--num-gpus": args.gpus,
        "--object-store-memory": args.object_store_mb and args.object_store_mb * 1_000_000,
        "--resources": json.dumps(dict(map(_resource, args.resource))) if args.resource else None,
    }
    return [f"{flag}={value}" for flag, value in named.items() if value is not None]


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = -1.0
    if not name.isidentifier() or name in RESERVED or not 0.0 < value <= 1e9:
        raise ConfigError(
            f"--resource {text}: expected NAME=AMOUNT, as learner=1; cores, GPUs and memory have "
            "--cpus, --gpus and --object-store-mb"
        )
    return name, value


def run(args: argparse.Namespace) -> int:
    """Start; 2 when that is not possible."""
    from distrlcc.cluster.cluster import join_line, start_head
    from distrlcc.cluster.state import DASHBOARD_PORT, token_path

    # Translate the arguments into flags of `ray start`, and start.
    flags = [*ray_flags(args), f"--include-dashboard={str(not args.no_dashboard).lower()}"]
    scaling = args.autoscaling_config
    if scaling is not None:
        if not scaling.expanduser().is_file():
            raise ConfigError(f"--autoscaling-config {scaling}: there is no such file")
        flags.append(f"--autoscaling-config={scaling.expanduser().resolve()}")
    public = args.allow_public
    node = start_head(
        args.ip, args.port, interface=args.interface, flags=flags, allow_public=public
    )
    # Say where it runs, and how the others join.
    print(f"The cluster's head runs here, at {node.ray_address} ({node.interface}).")
    alone = ip_address(node.address).is_loopback
    if not alone:
        print(f"Let the other machines reach ports {node.ports}, and each other too.")
    if not args.no_dashboard:
        print(f"Dashboard, on this machine only: http://127.0.0.1:{DASHBOARD_PORT}")
    print(f"The token is in {token_path()}.")
    if alone:
        print("No other machine can join at a loopback address; --ip takes the one they reach.")
        return 0
    asks = "" if args.show_token else " (it asks for the token; --show-token puts it into the line)"
    print(f"On each of the others{asks}:")
    print(f"\n  {join_line(node, show_token=args.show_token)}\n")
    return 0
