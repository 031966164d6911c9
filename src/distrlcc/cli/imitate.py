"""Train a policy on an expert's trajectories that 'distrlcc collect' wrote.

distrlcc imitate data/oracle --out runs/oracle
distrlcc imitate data/oracle --processes 2
distrlcc imitate data/cubic --set network.kind=lstm network.hidden=[64,64] imitation.lr=1e-3
distrlcc imitate --resume --out runs/oracle --epochs 20
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.data.reader import StoredData
    from distrlcc.runs.run_config import ImitateConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="a folder that 'distrlcc collect' wrote"
    )
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the configuration, such as imitation.lr=1e-3; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=number(1, whole=True), metavar="N", help="passes over the data"
    )
    parser.add_argument(
        "--processes", type=number(1, 4096, whole=True), default=1, metavar="N",
        help="processes on this machine (default: 1)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", type=Path, help="run directory (default: runs/…)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument("--no-tensorboard", action="store_true", help="write no event files")
    parser.add_argument("--print-config", action="store_true", help="print it as TOML and stop")


def run(args: argparse.Namespace) -> int:
    """Train; 0 when done, 128 and the signal's number after a signal."""
    from distrlcc.config import to_toml
    from distrlcc.parallel.start import start_node, train_alone
    from distrlcc.runs.imitation import imitation_run
    from distrlcc.runs.options import GroupOptions, RunOptions

    config, data = _config(args)
    if args.print_config:
        print(to_toml(config), end="")
        return 0
    state = imitation_run(config, data)  # what does not fit is found before anything is written
    options = RunOptions(args.out, resume=args.resume, tensorboard=not args.no_tensorboard)
    if args.processes == 1:
        return train_alone(state, options)
    return start_node(config, options, GroupOptions(elastic=False), processes=args.processes)


def _config(args: argparse.Namespace) -> tuple[ImitateConfig, StoredData]:
    from dataclasses import replace

    from distrlcc.config import override
    from distrlcc.data.reader import StoredData
    from distrlcc.runs.imitation import data_env
    from distrlcc.runs.run_config import ImitateConfig
    from distrlcc.runs.run_directory import RunDirectory

    assignments = list(args.assignments)
    given = {"epochs": args.epochs, "seed": args.seed}
    assignments += [f"{key}={value}" for key, value in given.items() if value is not None]
    if args.resume:
        if args.out is None:
            raise ConfigError("--resume needs --out DIR, the run to go on with")
        began = RunDirectory.read_config(args.out, ImitateConfig)
        data = StoredData(Path(args.data or began.data))
        began = replace(began, data=str(data.folder), data_digest=data.digest)
    else:
        if args.data is None:
            raise ConfigError("no data set; expected a folder that 'distrlcc collect' wrote")
        data = StoredData(Path(args.data))
        began = ImitateConfig(data=args.data, data_digest=data.digest, env=data_env(data))
    return override(began, assignments), data
