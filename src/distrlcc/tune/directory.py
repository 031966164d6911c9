"""A tuner's folder: a run's folder (`RunDirectory`) whose configuration is a `TuneConfig`.

::

    runs/tune-quickstart-20260131-120000/
    ├── config.toml           exactly what ran
    ├── versions.json         packages, platform, seed, command
    ├── checkpoints/          members' checkpoints and Ray Tune's state, unless --storage is given
    ├── reports.jsonl         every member's every report
    ├── best.json             the best report
    ├── policy.safetensors    its policy
    ├── best.toml             its recipe, with the schedule of its values
    ├── population.png, .svg  scores and values over time
    └── table.txt             the table that was printed
"""

from __future__ import annotations

from pathlib import Path

from distrlcc.errors import ConfigError, OutputError
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.tune.tune_config import TuneConfig


def create(out: Path | None, config: TuneConfig) -> RunDirectory:
    """Begin a tuner's folder and lock it.

    Raises:
        OutputError: It holds something already, or cannot be written.
    """
    directory = RunDirectory.create(
        out,
        config,
        recipe=f"tune-{config.run.recipe}",
        seeds={"seed": config.run.seed},
        tensorboard=False,
    )
    directory.lock()
    return directory


def resume(out: Path) -> tuple[RunDirectory, TuneConfig]:
    """Open a tuner's folder to go on, and lock it.

    Raises:
        OutputError: It holds no tuner, or another process is at it.
    """
    config = read_config(out)
    directory = RunDirectory.resume(out, config, tensorboard=False)
    directory.lock()
    return directory, config


def read_config(out: Path) -> TuneConfig:
    """Return the configuration of the tuner in a folder.

    Raises:
        OutputError: It holds none.
    """
    try:
        return RunDirectory.read_config(out, TuneConfig)
    except ConfigError as error:
        raise OutputError(f"{out} holds no tuner to resume: {error}") from None
    except OutputError:
        raise OutputError(
            f"{out} holds no tuner to resume: expected a folder that 'distrlcc tune' wrote; leave "
            "out --resume to begin one there"
        ) from None
