"""Take part in a run on several machines; the same line on each but for the index.

distrlcc node quickstart --topology decentralized --node-index 0 --node-num 2 --ip 10.0.0.1
distrlcc node quickstart --topology decentralized --node-index 1 --node-num 2 --ip 10.0.0.1
"""

from __future__ import annotations

import argparse

from distrlcc.cli.parser import number
from distrlcc.cli.run_arguments import (
    add_group_arguments,
    add_run_arguments,
    group_options,
    run_config,
    run_options,
)
from distrlcc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "--topology", choices=("decentralized",), required=True,
        help="decentralized: every process steps its environments and learns",
    )  # fmt: skip
    parser.add_argument(
        "--node-index", type=number(0, 4095, whole=True), required=True, metavar="I",
        help="this machine's number from 0; M or more joins a run that is under way",
    )  # fmt: skip
    parser.add_argument(
        "--node-num", type=number(1, 4096, whole=True), required=True, metavar="M",
        help="machines that the run begins with",
    )  # fmt: skip
    parser.add_argument(
        "--ip", "--IP", required=True, metavar="IP", help="address of node 0, the master"
    )
    parser.add_argument(
        "--port", type=number(1, 65534, whole=True), default=29512, metavar="P",
        help="of the master, which takes the next one too (default: 29512)",
    )  # fmt: skip
    parser.add_argument(
        "--processes", type=number(1, 4096, whole=True), default=1, metavar="N",
        help="equal processes on each machine (default: 1)",
    )  # fmt: skip
    add_group_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Take part until the run ends; 3 when the others are gone or out of reach."""
    from distrlcc.runtime.process_group import checked_device
    from distrlcc.runtime.start import Node, start_node

    if args.node_index >= args.node_num and args.no_elastic:
        raise ConfigError(
            f"--node-index {args.node_index}: expected 0 to {args.node_num - 1}; only an elastic "
            "run takes late comers"
        )
    if args.gpu >= 0:
        for local in range(args.processes):
            checked_device(f"cuda:{args.gpu + local}")
    if args.resume and args.node_index > 0:
        raise ConfigError("--resume is for node 0 alone, which sends the state to the others")
    return start_node(
        run_config(args),
        run_options(args),
        group_options(args),
        node=Node(args.node_index, args.node_num, args.ip, args.port),
        processes=args.processes,
    )
