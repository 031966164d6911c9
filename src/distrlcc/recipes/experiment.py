"""What is measured of a recipe, so that somebody else can measure it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import unknown_name

SEEDS = (0, 1, 2)
"""Training runs of a recipe, by their seeds."""

METRICS = ("power", "utilisation", "first_second_utilisation", "queueing_delay_rtt", "excess_loss")
"""What is scored on every suite: keys of `distrlcc.evaluate.scores.METRICS`."""


@dataclass(frozen=True)
class Benchmark:
    """Links on which a recipe's policies are scored."""

    suite: str
    """A suite's name; its split ``test``."""
    peers: tuple[str, ...] = ("cubic", "bbr", "vegas", "copa", "oracle")
    """Schemes that are scored beside it."""
    links: int | None = None
    """At most so many of its links."""


RANDOM, CELLULAR, DYNAMIC = Benchmark("random"), Benchmark("cellular"), Benchmark("dynamic")
GRID = Benchmark("indigo-grid", ("cubic", "bbr", "copa", "best-cwnd", "oracle"))


@dataclass(frozen=True)
class Experiment:
    """A recipe, what must be there before it is trained, and where it is scored."""

    recipe: str
    """Its name, or a TOML file."""
    benchmarks: tuple[Benchmark, ...]
    prepare: tuple[str, ...] = ()
    """Arguments of a `distrlcc` command that runs once, before the training; ``FOLDER`` stands for
    the experiment's own."""
    assignments: tuple[str, ...] = ()
    """``KEY=VALUE`` for the training; ``FOLDER`` as above."""

    @property
    def name(self) -> str:
        """The recipe's name."""
        return Path(self.recipe).stem


EXPERIMENTS: dict[str, Experiment] = {
    experiment.recipe: experiment
    for experiment in (
        Experiment("indigo", (GRID, RANDOM)),
        Experiment("distrlcc", (GRID, RANDOM)),
        Experiment(
            "gail",
            (RANDOM, CELLULAR, DYNAMIC),
            prepare=(
                "collect", "--recipe", "gail", "--scheme", "oracle", "--disturb", "0",
                "--steps", "500000", "--out", "FOLDER/demonstrations",
            ),
            assignments=("gail.demonstrations=FOLDER/demonstrations",),
        ),
    )
}  # fmt: skip
"""By recipe."""


def experiment(recipe: str) -> Experiment:
    """Return a recipe's experiment.

    Raises:
        ConfigError: It has none.
    """
    if recipe not in EXPERIMENTS:
        raise unknown_name("recipe with results", recipe, EXPERIMENTS)
    return EXPERIMENTS[recipe]
