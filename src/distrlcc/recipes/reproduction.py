"""Trains a recipe anew, once per seed, and scores what comes out on links it has never seen."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import Any

from distrlcc import __version__
from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import contender_from_file, contender_from_scheme
from distrlcc.evaluation.scorecard import Benchmark
from distrlcc.files import require_writable, write_atomically
from distrlcc.policy.policy_file import RUN_POLICY, SHIPPED, load_policy
from distrlcc.recipes.experiment import Experiment
from distrlcc.recipes.registry import recipe
from distrlcc.recipes.result_row import ResultRow, plain, read_result
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import done


@dataclass
class SeedRun:
    """How far one seed is; kept as JSON, so that what was stopped goes on."""

    seed: int
    train: list[str]  # the words of the training's command
    version: str = __version__  # version of distrlcc that trains it
    cpu_seconds: float = 0.0  # CPU time of the training, over all its parts
    trained: bool = False
    steps: int = 0  # environment steps, once it is trained, as is the next
    held_out_reward: float = 0.0  # on the validation links, which chose its checkpoint
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Means over links by benchmark and metric; what was not scored yet is missing."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_atomically(path, json.dumps(plain(asdict(self)), indent=1, allow_nan=False).encode())


def _scoring(name: str, benchmark: Benchmark) -> str:
    return f"scoring {name} on {benchmark.suite}"


def _ended(place: Path, words: Sequence[str], seed: int) -> bool:
    """Say whether a run that is there, of which that was not noted, has nothing left to do."""
    config: RunConfig | ImitateConfig
    if words[0] == RunConfig.command:
        config = replace(override(recipe(words[1]), [w for w in words[2:] if "=" in w]), seed=seed)
    else:
        config = RunDirectory.read_config(place, ImitateConfig)
    with RunDirectory.resume(place, config, tensorboard=False) as run:
        return bool(done(config, run))


@dataclass(frozen=True)
class Reproduction:
    """A folder with one run per seed; done again it goes on with what is missing."""

    experiment: Experiment
    folder: Path
    command: Callable[[Sequence[str]], int]  # runs a `distrlcc` command here; its exit code
    tell: Callable[[str], None]  # takes a line for each step
    progress: Callable[[Sequence[Any], Callable[[Any], str]], Iterable[Any]]
    """Yields what is scored, and may say what each is and how long the rest takes."""

    def row(self, seeds: Sequence[int]) -> ResultRow:
        """Train and score what is not there yet, and return the row of all."""
        require_writable(self.folder)
        done = self.folder / "prepared"
        if self.experiment.prepare and not done.exists():
            shutil.rmtree(self.folder / "data", ignore_errors=True)  # left by one that was stopped
            self._do(self._placed(self.experiment.prepare))
            write_atomically(done, b"")
        runs = [self._run(seed) for seed in seeds]
        benchmarks = self.experiment.benchmarks
        best = max(runs, key=lambda run: run.held_out_reward)
        chosen = runs[0] if self.experiment.blind else best
        peers: dict[str, dict[str, dict[str, float]]] = {b.label: {} for b in benchmarks}
        pairs = [(name, b) for b in benchmarks for name in b.peers]
        for name, b in self.progress(pairs, lambda pair: _scoring(*pair)):
            peers[b.label][name] = b.means(contender_from_scheme(name))
        return ResultRow(
            recipe=self.experiment.name,
            version=__version__,
            steps=max(run.steps for run in runs),
            seeds=tuple(run.seed for run in runs),
            cpu_minutes=tuple(run.cpu_seconds / 60.0 for run in runs),
            shipped=chosen.seed,
            scores={
                b.label: {m: tuple(run.scores[b.label][m] for run in runs) for m in b.metrics}
                for b in benchmarks
            },
            peers=peers,
        )

    def ship(self, row: ResultRow, folder: Path = SHIPPED) -> None:
        """Put a row and its policy where the package has them."""
        require_writable(folder)
        policy = self.folder / f"seed-{row.shipped}" / RUN_POLICY
        write_atomically(folder / f"{row.recipe}.safetensors", policy.read_bytes())
        row.save(folder / f"{row.recipe}.json")

    def _run(self, seed: int) -> SeedRun:
        kept, place = self.folder / f"seed-{seed}.json", self.folder / f"seed-{seed}"
        words = [*self._placed(self.experiment.train), "--seed", str(seed), "--out", str(place)]
        run = SeedRun(seed, words)
        if kept.exists():
            run = read_result(kept, SeedRun, "result of a run", "remove it")
        if (run.version, run.train) != (__version__, words):
            raise ConfigError(
                f"{kept} is of distrlcc {run.version}, '{' '.join(run.train)}'; expected "
                f"{__version__}, '{' '.join(words)}': give another --out"
            )
        # The training, or the rest of it.
        if not run.trained:
            begin = process_time()
            try:
                if not place.exists():
                    self._do(words)
                elif not _ended(place, words[:-4], seed):
                    self._do([*words, "--resume"])
                notes = load_policy(place / RUN_POLICY).notes
                run.steps = int(notes["steps"])
                run.held_out_reward = float(notes["held_out_reward"])
                run.trained = True
            finally:
                run.cpu_seconds += process_time() - begin
                run.save(kept)
        # What was not scored yet, or by other metrics.
        benchmarks, scored = self.experiment.benchmarks, run.scores
        missing = [b for b in benchmarks if set(scored.get(b.label, {})) != set(b.metrics)]
        for b in self.progress(missing, lambda b: _scoring(place.name, b)):
            run.scores[b.label] = b.means(contender_from_file(str(place), b.prefer))
        run.save(kept)
        return run

    def _placed(self, command: str) -> list[str]:
        return [word.replace("FOLDER", str(self.folder)) for word in command.split()]

    def _do(self, words: Sequence[str]) -> None:
        self.tell(f"distrlcc {' '.join(words)}")
        code = self.command(words)
        if code >= 128:
            self.tell("stopped; the same command goes on")
        if code:
            raise SystemExit(code)
