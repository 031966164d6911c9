"""The arguments that ``cluster start`` and ``cluster join`` have in common."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError
from distrlcc.runs.resources import RESERVED

if TYPE_CHECKING:
    from distrlcc.cluster.ray_cluster import Share


def add_share_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what of this machine Ray may give away."""
    parser.add_argument(
        "--interface", default="", metavar="NAME", help="network interface to use, as eth0 or wg0"
    )
    parser.add_argument(
        "--cpus", type=number(0, 100_000, whole=True), metavar="N",
        help="cores that Ray may give away here (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", type=number(0, 1000, whole=True), metavar="N",
        help="GPUs that Ray may give away here (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--resource", action="append", default=[], metavar="NAME=AMOUNT",
        help="another resource of this machine, as learner=1; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--object-store-mb", type=number(80, 10_000_000, whole=True), metavar="MB",
        help="memory for objects (default: 30%% of this machine's)",
    )  # fmt: skip
    parser.add_argument("--allow-public", action="store_true", help="listen on a public address")


def share_of(args: argparse.Namespace) -> Share:
    """Return what the arguments say.

    Raises:
        ConfigError: A resource that is none.
    """
    from distrlcc.cluster.ray_cluster import Share

    resources = dict(map(_resource, args.resource))
    return Share(args.cpus, args.gpus, resources, args.object_store_mb)


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
