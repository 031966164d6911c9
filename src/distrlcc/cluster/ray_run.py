"""What training on Ray has in common in both topologies, in the process that the user started."""

from __future__ import annotations

import sys
from pathlib import Path

from distrlcc.cluster.ray_session import RayOptions
from distrlcc.runs.options import RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import fresh_folder
from distrlcc.runs.run_state import rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.storage_session import go_on

TICK = 0.2
"""Time between two looks at the members, s."""
AGAIN_SECONDS = 2.0
"""Time before a member that died is started again, s."""
_STOP_SECONDS = 30.0
_STORE_SECONDS = 60.0


def stop_seconds(*, stored: bool) -> float:
    """Return the time to save and end after a user's signal, or when the others have ended, s."""
    return _STOP_SECONDS + (_STORE_SECONDS if stored else 0.0)


def check_fit(config: RunConfig, processes: int = 1) -> None:
    """Find what does not fit before anything is written, and compile the simulator here."""
    share = Share.of(config.num_envs, 0, processes, config.env.agents)
    rehearse(config, share.first)


def absolute_out(options: RunOptions, config: RunConfig) -> Path:
    """Return the run directory as a path that means the same in another process."""
    return (options.out or fresh_folder(Path("runs"), config.recipe)).absolute()


def command_again(topology: str, options: RunOptions, on: RayOptions) -> str:
    """Return the command that goes on with a run."""
    address = f" --address {on.address}" if on.address else ""
    rest = go_on(options.out or Path(), options.place(""))
    return f"distrlcc train --engine ray --topology {topology}{address} {rest}"


def fetch_run(options: RunOptions) -> None:
    """Fetch a run that was trained on another machine."""
    storage = options.place("")
    if storage is not None and options.out is not None and not options.out.exists():
        storage.pull(options.out)


def end_run(signal: int, said: list[str], again: str) -> int:
    """Say what the members said last, and how to go on; return the exit code."""
    sys.stdout.write("".join(said))
    sys.stdout.flush()
    if not signal:
        return 0
    sys.stderr.write(f"distrlcc: stopped; saved. Go on with: {again}\n")
    return 128 + signal
