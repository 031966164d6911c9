"""Population-based training beside as many independent members, from the same first values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from distrlcc.cluster.session import RayOptions
from distrlcc.tune import directory
from distrlcc.tune.outcome import rows, write_outcome
from distrlcc.tune.plots import pieces
from distrlcc.tune.recorder import REPORTS
from distrlcc.tune.report import read_reports
from distrlcc.tune.tune_config import SearchConfig, TuneConfig, steps_per_update
from distrlcc.tune.tuner import Ended, run


@dataclass(frozen=True)
class Measured:
    """One tuner's result."""

    seed: int
    method: str
    """``pbt`` or ``random``."""
    best: float
    """Greatest score of all reports."""
    final: float
    """Greatest score of the members' last reports."""
    median: float
    """Median of the members' last scores."""
    steps: int
    """Environment steps that all members trained; without ``synch`` a member that copies a slower
    one trains some updates again."""
    seconds: float
    """Time, s, Ray's start included."""


@dataclass(frozen=True)
class Compared:
    """Both methods over seeds."""

    measured: tuple[Measured, ...]
    signal: int = 0
    """Number of the signal that ended it early, or 0."""

    def finals(self, method: str) -> list[float]:
        """Return a method's final scores of the best, seed by seed."""
        return [m.final for m in self.measured if m.method == method]

    def gains(self) -> list[float]:
        """Return by how much PBT's final best is ahead, seed by seed."""
        return [a - b for a, b in zip(self.finals("pbt"), self.finals("random"), strict=False)]


def independent(config: TuneConfig) -> TuneConfig:
    """Return the same members without copying: the first values are those that PBT begins with."""
    search = SearchConfig(trials=config.members, sampler="random", asha=False)
    return replace(config, pbt=None, search=search)


def compare(
    config: TuneConfig,
    seeds: Sequence[int],
    out: Path,
    options: RayOptions,
    show: Callable[[str], None],
) -> Compared:
    """Run both methods with every seed.

    Args:
        config: Of PBT; `prepare` has checked it.
        seeds: Of links, first weights, first values and mutations.
        out: Folder of all tuners' folders.
        options: Which Ray.
        show: Takes a line for the user.

    Raises:
        DistrlccError: What ended it.
    """
    measured: list[Measured] = []
    for seed in seeds:
        seeded = replace(config, run=replace(config.run, seed=seed))
        for method, one in (("pbt", seeded), ("random", independent(seeded))):
            begin = time.monotonic()
            with directory.create(out / f"{method}-seed{seed}", one) as folder:
                ended = run(one, folder, options)
                write_outcome(folder.path, one, ended.failures)
            if ended.signal:
                return Compared(tuple(measured), ended.signal)
            found = _measure(seed, method, one, folder.path, ended, time.monotonic() - begin)
            measured.append(found)
            show(
                f"seed {seed} {method:>6}: final best {found.final:.4f}, best ever "
                f"{found.best:.4f}, median {found.median:.4f}, {found.steps / 1e6:.2f} M steps, "
                f"{found.seconds:.0f} s"
            )
    return Compared(tuple(measured))


def _measure(
    seed: int, method: str, config: TuneConfig, folder: Path, ended: Ended, seconds: float
) -> Measured:
    reports = read_reports(folder / REPORTS)
    found = rows(reports, config.mode)
    pick = max if config.mode == "max" else min
    last = [row.last.score for row in found]
    return Measured(
        seed=seed,
        method=method,
        best=pick(row.best.score for row in found),
        final=pick(last),
        median=float(np.median(last)),
        steps=steps_per_update(config.run)
        * sum(piece.reports[-1].update - piece.reports[0].since for piece in pieces(reports)),
        seconds=seconds,
    )
