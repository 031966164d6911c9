"""Start, join, show and leave a Ray cluster."""

import getpass
import json
import os
import sys
from argparse import Namespace
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path

from rich.console import Console

from distrlcc.cli.output import emit_json
from distrlcc.cluster.cluster import join, join_line, start_head, stop
from distrlcc.cluster.session import AUTO, RayNode, ray_nodes, ray_session
from distrlcc.cluster.state import DASHBOARD_PORT, name_ports, node_here, token_path
from distrlcc.errors import ConfigError
from distrlcc.evaluation.tables import plain_table, printed
from distrlcc.runs.run_config import amounts

_SHARE = """
    --interface NAME =  network interface to use, as eth0 or wg0
    --cpus N {0..100000}  cores that Ray may give away here (default: all)
    --gpus N {0..1000}  GPUs that Ray may give away here (default: all)
    --object-store-mb MB {80..10000000}  memory for objects (default: 30% of all)
    --resource+ NAME=AMOUNT  another resource of this machine, as learner=1
    --allow-public  listen on a public address
"""


def run_start(args: Namespace) -> int:
    """Start the head of a Ray cluster on this machine, and print the line for the others.

    distrlcc cluster start
    distrlcc cluster start --listen 10.0.0.1 --cpus 8 --show-token

    Flags:
        --listen IP =  address where the head listens; needed if this machine has several
        --port P {1024..8254} =6379  first of the cluster's seven ports
        $_SHARE
        --show-token  print the cluster's token in the line to paste
        --no-dashboard  start without Ray's dashboard, which is on loopback
        --autoscaling-config FILE {path}  for 'ray up' alone: the file that it writes on the head
    """
    # Translate the arguments into flags of `ray start`, and start.
    flags = [*_ray_flags(args), f"--include-dashboard={str(args.dashboard).lower()}"]
    if (scaling := args.autoscaling_config) is not None:
        path = Path(os.path.expanduser(scaling))
        if not path.is_file():
            raise ConfigError(f"--autoscaling-config {scaling}: there is no such file")
        flags.append(f"--autoscaling-config={path.resolve()}")
    where = {"interface": args.interface, "allow_public": args.allow_public}
    node = start_head(args.listen, args.port, flags=flags, **where)
    # Say where it runs, and how the others join.
    print(f"The cluster's head runs here, at {node.ray_address} ({node.interface}).")
    alone = ip_address(node.address).is_loopback
    if not alone:
        print(f"Let the other machines reach ports {name_ports(node.port)}, and each other too.")
    if args.dashboard:
        print(f"Dashboard, on this machine only: http://127.0.0.1:{DASHBOARD_PORT}")
    print(f"The token is in {token_path()}.")
    if alone:
        print("No other machine can join at a loopback address; --listen takes the one they reach.")
        return 0
    asks = "" if args.show_token else " (it asks for the token; --show-token puts it into the line)"
    print(f"On each of the others{asks}:")
    print(f"\n  {join_line(node, show_token=args.show_token)}\n")
    return 0


def _ray_flags(args: Namespace) -> list[str]:
    """Return the arguments of `_add_share` as flags of ``ray start``."""
    custom = amounts("--resource", args.resource)
    named = {
        "--num-cpus": args.cpus,
        "--num-gpus": args.gpus,
        "--object-store-memory": args.object_store_mb and args.object_store_mb * 1_000_000,
        "--resources": json.dumps(custom) if custom else None,
    }
    return [f"{flag}={value}" for flag, value in named.items() if value is not None]


def run_join(args: Namespace) -> int:
    """Let this machine join a Ray cluster; versions and the token are compared before Ray starts.

    distrlcc cluster join 10.0.0.1:6379

    Flags:
        head HOST:PORT  the cluster's head
        $_SHARE
        --rejoin  join again after the head was lost, or gave this machine up
    """
    asked = f"Token of the cluster at {args.head}: "
    node = join(
        args.head,
        interface=args.interface,
        flags=_ray_flags(args),
        allow_public=args.allow_public,
        rejoin=args.rejoin,
        ask_token=lambda: getpass.getpass(asked).strip() if sys.stdin.isatty() else "",
    )
    print(f"This machine, {node.address} ({node.interface}), is in the cluster of {args.head}.")
    print(f"Let the other machines reach ports {name_ports(node.port)} here.")
    print("'distrlcc cluster status' shows the cluster, 'distrlcc cluster stop' leaves it.")
    return 0


def run_status(args: Namespace) -> int:
    """Show the cluster that this machine is in, and its machines.

    Flags:
        --show-token  print the cluster's token in the line to paste
        --json FILE {json}  write the machines as JSON; - for stdout
    """
    here = node_here()
    with ray_session(AUTO) as ray:
        nodes = ray_nodes(ray)
    if args.json != "-":
        role = "the head" if here.is_head else "a member"
        print(f"This machine, {here.address}, is {role} of the cluster {here.ray_address}.")
        heads = ("machine", "state", "cores", "GPUs", "memory", "objects", "resources")
        table = plain_table("Machines", heads, map(_cells, nodes), "machine|state|resources")
        Console(file=sys.stdout).print(printed(table))
        if here.is_head or args.show_token:
            print(f"Next machine:\n\n  {join_line(here, show_token=args.show_token)}\n")
    emit_json(args.json, {"head": here.ray_address, "nodes": [asdict(node) for node in nodes]})
    return 0


def _cells(node: RayNode) -> tuple[str, ...]:
    if not node.alive:
        return (node.address, f"gone: {node.death}" if node.death else "gone", *[""] * 5)
    name = f"{node.address}{', head' if node.is_head else ''}"
    sizes = (f"{size:.1f} GB" for size in (node.memory_gb, node.object_store_gb))
    others = ", ".join(f"{name}={amount:g}" for name, amount in node.resources.items())
    return (name, "alive", f"{node.cpus:g}", f"{node.gpus:g}", *sizes, others)


def run_stop(args: Namespace) -> int:
    """End this machine's part in a Ray cluster, which 'start' or 'join' began here."""
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
