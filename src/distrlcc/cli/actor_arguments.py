"""The arguments of actor-learner runs: who acts where, and DistRLCC's own flags."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError, DistrlccError

if TYPE_CHECKING:
    from distrlcc.runs.run_config import RunConfig

_RUNS = Path("runs")
_NUMBERS = {
    "--envs-per-worker": ("N", number(1, 2**20, whole=True), "environments that a worker steps"),
    "--max-lag": ("U", number(0, 10**6, whole=True), "updates a segment's policy may be behind"),
    "--wait-workers": ("S", number(0.0, 1e6), "how long to wait when no worker is left, s"),
}
"""Each with its metavar, type and help; the recipe has the defaults."""


def add_actor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only actor-learner runs have."""
    add = parser.add_argument
    text = "go on with this run, by default the newest in runs/ of the recipe (node 0)"
    add("--load", nargs="?", const="", metavar="DIR", help=text)
    text = "TOML file with nodes = [[0, 1], [2]]: for each machine the links of its workers"
    add("--nodes", metavar="FILE", type=Path, help=text)
    for flag, (metavar, kind, text) in _NUMBERS.items():
        add(flag, metavar=metavar, type=kind, help=f"{text} (default: the recipe's)")
    add("--tun", action="store_true", help="use the tunnel (VPN) interface")
    text = "listen on a public address, where anyone who reaches the port can run code"
    add("--allow-public", action="store_true", help=text)
    add("--pace", type=_no_pace, help=argparse.SUPPRESS)


def _no_pace(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError("is gone; give --world emulated for links in real time")


def with_actors(config: RunConfig, args: argparse.Namespace) -> RunConfig:
    """Return the configuration with what the arguments say of workers.

    Raises:
        ConfigError: The file of nodes is malformed, or has too few machines.
    """
    actors = config.actors
    if args.nodes is not None:
        actors = replace(actors, nodes=read_nodes(args.nodes))
    for name in ("envs_per_worker", "max_lag", "wait_workers"):
        value = getattr(args, name)
        if value is not None:
            actors = replace(actors, **{name: value})
    count, known = args.node_num, len(actors.nodes)
    if count > known:
        raise ConfigError(
            f"--node-num {count}: there are lists of links for {known} machine"
            f"{'s' if known > 1 else ''} only; give one for each with --nodes FILE"
        )
    return replace(config, actors=replace(actors, nodes=actors.nodes[:count]))


def read_nodes(path: Path) -> tuple[tuple[str, ...], ...]:
    """Read each machine's links from a TOML file.

    Raises:
        ConfigError: It is malformed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as TOML ({reason})") from None
    nodes = data.get("nodes") if set(data) == {"nodes"} else None
    if not isinstance(nodes, list) or not all(isinstance(node, list) for node in nodes):
        raise ConfigError(f"{path}: expected nodes = [[0, 1], [2]], a list for each machine")
    for entry in (entry for node in nodes for entry in node):
        if isinstance(entry, bool) or not isinstance(entry, int | str):
            raise ConfigError(
                f"{path}: {entry!r} is no link; expected Indigo's link id or a name, such as 3 or "
                '"random"'
            )
    return tuple(tuple(str(entry) for entry in node) for node in nodes)


def newest_run(recipe: str) -> Path:
    """Return the newest run of a recipe in ``runs/``.

    Raises:
        ConfigError: There is none.
    """
    from distrlcc.runs.run_config import RunConfig
    from distrlcc.runs.run_directory import RunDirectory

    found = []
    for path in _RUNS.glob("*/checkpoints/latest.safetensors"):
        run = path.parent.parent
        try:
            began = RunDirectory.read_config(run, RunConfig)
        except DistrlccError:
            continue
        if began.recipe == recipe:
            found.append((path.stat().st_mtime_ns, run))
    if not found:
        raise ConfigError(
            f"--load: no run of {recipe} with a checkpoint stands in {_RUNS}/; give its folder"
        )
    return max(found)[1]
