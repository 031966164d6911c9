"""Experiments: the measurements of a recipe, so that they can be made again elsewhere."""

from dataclasses import dataclass

from distrlcc.evaluation.scorecard import BESIDE, RECOVERY, RIVALS, TOGETHER, Benchmark

RANDOM, CELLULAR, DYNAMIC = Benchmark("random"), Benchmark("cellular"), Benchmark("dynamic")
CHANGES = Benchmark("dynamic", links=128, metrics=RECOVERY)
OPEN = (RANDOM, CELLULAR, DYNAMIC)
GRID = Benchmark("indigo-grid", ("cubic", "bbr", "copa", "best-cwnd", "oracle"))
_HARD = "shallow jitter silent falls slow fast whole-ms lossy long satellite noisy wifi lan"
HARD = tuple(map(Benchmark, _HARD.split()))
FLOWS = tuple(
    Benchmark(name, RIVALS, links, (*TOGETHER, "excess_loss"))
    for name, links in (("flows", 24), ("flows-32", 8))
)
SHARED = (
    *(Benchmark(name, RIVALS, 64, TOGETHER) for name in ("shared-2", "shared-4", "shared-rtt")),
    *(Benchmark(name, RIVALS, 64, BESIDE) for name in ("beside-cubic", "beside-bbr")),
)


@dataclass(frozen=True)
class Experiment:
    """A training, its prerequisites, and the links where it is scored; ``FOLDER`` is its own."""

    name: str
    train: str  # to which seed and place are added
    benchmarks: tuple[Benchmark, ...]
    prepare: str = ""  # runs once, before the training
    blind: bool = False  # nothing is chosen by reward: the first seed's policy is shipped
    page: str = ""  # its page in the documentation, if not that of its name


_PREFERRED = tuple(
    Benchmark(one.suite, one.peers if prefer == 0.5 else (), one.links, prefer=prefer)
    for one in OPEN
    for prefer in (0.0, 0.25, 0.5, 0.75, 1.0)
)
_COLLECT = "collect oracle --recipe gail --steps 500000 --out FOLDER/data"
_GAIL = "train gail --set gail.demonstrations=FOLDER/data"
_DAGGER = "train imitation --set max_seconds=0 total_steps=4000000"
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("indigo", "train indigo", (GRID, RANDOM)),
        Experiment("distrlcc", "train distrlcc", (GRID, RANDOM)),
        Experiment("gail", _GAIL, OPEN, f"{_COLLECT} --disturb 0", blind=True),
        Experiment("cloning", "imitate FOLDER/data", OPEN, _COLLECT, page="gail"),
        Experiment("dagger", _DAGGER, OPEN, page="gail"),
        Experiment("aurora", "train aurora", (Benchmark("aurora"), RANDOM)),
        Experiment("genet", "train genet", (Benchmark("genet"), RANDOM)),
        Experiment("preference", "train preference", _PREFERRED),
        Experiment("one", "train one", (*OPEN, CHANGES, *HARD, *SHARED, *FLOWS)),
    )
}
"""The recipes with results, and GAIL's rivals, by name."""
