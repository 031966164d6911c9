"""Train a policy on an expert's trajectories that 'distrlcc collect' wrote.

distrlcc imitate data/oracle --out runs/oracle
distrlcc imitate data/oracle --processes 2
distrlcc imitate data/cubic --set network.kind=lstm network.hidden=[64,64]
distrlcc imitate --resume --out runs/oracle --epochs 20

Flags:
    data? DATA  a folder that 'distrlcc collect' wrote
    --set/assignments* KEY=VALUE  change a key of the configuration, such as imitation.lr=1e-3
    --epochs N {1..} sets epochs  passes over the data
    --processes N {1..4096} =1  processes on this machine
    --out DIR {path}  run directory (default: runs/…)
    --resume  go on with the run in --out
    $SEED
    --no-tensorboard  write no event files
    $TRACKERS
    --print-config  print it as TOML and stop
"""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import assignments
from distrlcc.cli.run_arguments import close_loopback, run_options
from distrlcc.config import override, to_toml
from distrlcc.errors import ConfigError
from distrlcc.runs.options import GroupOptions
from distrlcc.runs.run_config import ImitateConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.storage import say

if TYPE_CHECKING:
    from distrlcc.data.reader import StoredData


def run(args: Namespace) -> int:
    """Train; 0 when done, 128 and the signal's number after a signal."""
    from distrlcc.runs.imitation import imitation_run
    from distrlcc.runs.start import train_alone

    if args.processes > 1 and not args.print_config:
        close_loopback()
    config, data = _config(args)
    if args.print_config:
        print(to_toml(config), end="")
        return 0
    state = imitation_run(config, data)  # what does not fit is found before anything is written
    if (split := data.manifest.origin.split) != "train":
        say(f"{data.folder} has the {split} split: scores on it are of links that it learned from")
    options = run_options(args)
    if args.processes == 1:
        return train_alone(state, options)
    from distrlcc.parallel.start import start_node

    return start_node(config, options, GroupOptions(elastic=False), processes=args.processes)


def _config(args: Namespace) -> "tuple[ImitateConfig, StoredData]":
    from distrlcc.data.reader import StoredData
    from distrlcc.runs.source import data_env

    if args.resume:
        if args.out is None:
            raise ConfigError("--resume needs --out DIR, the run to go on with")
        began = RunDirectory.read_config(args.out, ImitateConfig, say)
        data = StoredData(Path(args.data or began.data))
        began = replace(began, data=str(data.folder), data_digest=data.digest)
    else:
        if args.data is None:
            raise ConfigError("no data set; expected a folder that 'distrlcc collect' wrote")
        data = StoredData(Path(args.data))
        began = ImitateConfig(data=args.data, data_digest=data.digest, env=data_env(data))
    config = override(began, assignments(args))
    if (config.data, config.data_digest) != (began.data, began.data_digest):
        raise ConfigError("data and data_digest are of DATA: give that, instead of --set")
    return config, data
