"""What is measured of a recipe, so that somebody else can measure it again."""

from __future__ import annotations

from dataclasses import dataclass

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
    """What is trained, what must be there before, and where it is scored.

    Commands are `distrlcc`'s, as words; ``FOLDER`` stands for the experiment's own.
    """

    name: str
    train: tuple[str, ...]
    """To which seed and place are added."""
    benchmarks: tuple[Benchmark, ...]
    prepare: tuple[str, ...] = ()
    """Runs once, before the training."""
    page: str = ""
    """Its page in the documentation, if not that of its name."""


def _oracle(*words: str) -> tuple[str, ...]:
    """Return the command that collects 500,000 steps of the oracle's."""
    data = ("--recipe", "gail", "--steps", "500000", "--out", "FOLDER/data")
    return ("collect", "--scheme", "oracle", *data, *words)


_OPEN = (RANDOM, CELLULAR, DYNAMIC)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("indigo", ("train", "indigo"), (GRID, RANDOM)),
        Experiment("distrlcc", ("train", "distrlcc"), (GRID, RANDOM)),
        Experiment(
            "gail",
            ("train", "gail", "--set", "gail.demonstrations=FOLDER/data"),
            _OPEN,
            prepare=_oracle("--disturb", "0"),
        ),
        Experiment("cloning", ("imitate", "FOLDER/data"), _OPEN, prepare=_oracle(), page="gail"),
        Experiment(
            "dagger",
            ("train", "imitation", "--set", "max_seconds=0", "total_steps=4000000"),
            _OPEN,
            page="gail",
        ),
    )
}
"""By name: the recipes with results, and what stands beside GAIL."""


def experiment(name: str) -> Experiment:
    """Return an experiment.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("recipe with results", name, EXPERIMENTS)
    return EXPERIMENTS[name]
