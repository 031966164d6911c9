"""Trains a recipe anew, once per seed, and scores what comes out on links it has never seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from distrlcc import __version__
from distrlcc.errors import ConfigError, DatasetError
from distrlcc.evaluate.contender import Contender, contender_from_file, contender_from_scheme
from distrlcc.evaluate.fairness_scores import measure
from distrlcc.evaluate.recovery import recovery_scores
from distrlcc.evaluate.runner import evaluate
from distrlcc.files import require_writable, write_atomically
from distrlcc.policy.policy_file import RUN_POLICY, SHIPPED, load_policy
from distrlcc.recipes.experiment import ALONE, RECOVERY, Benchmark, Experiment
from distrlcc.recipes.row import Row, Scores
from distrlcc.sim.suites import load_suite

Command = Callable[[Sequence[str]], int]
"""Runs a `distrlcc` command in this process and returns its exit code."""


class StoppedError(Exception):
    """A command that did not end well: what was done so far stays, to go on with."""

    def __init__(self, code: int) -> None:
        """Take its exit code."""
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Run:
    """One seed's training, scored."""

    seed: int
    steps: int
    cpu_minutes: float
    held_out_reward: float
    """On the validation links, by which training chose among its checkpoints."""
    scores: Scores
    train: list[str]
    """The command's words."""
    version: str = __version__
    """Of distrlcc, when it was trained."""

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read what `Reproduction` kept.

        Raises:
            DatasetError: It is damaged.
        """
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise DatasetError(f"{path}: no result of a run ({error}); remove it") from None


@dataclass
class _Progress:
    """How far a seed's training is."""

    cpu_seconds: float = 0.0
    """Over all that it was stopped and gone on with."""
    trained: bool = False


class Reproduction:
    """A folder with one run per seed; done again it goes on with what is missing."""

    def __init__(
        self, experiment: Experiment, folder: Path, command: Command, tell: Callable[[str], None]
    ) -> None:
        """Take what to do and where.

        Args:
            experiment: What is trained and scored.
            folder: Where the runs and results are kept.
            command: How `distrlcc` commands are run.
            tell: Gets a line on what is being done.

        Raises:
            OutputError: The folder cannot be written.
        """
        require_writable(folder)
        self._experiment, self._folder = experiment, folder
        self._command, self._tell = command, tell

    def row(self, seeds: Sequence[int]) -> Row:
        """Train and score what is not there yet, and return the row of all.

        Raises:
            StoppedError: A command ended early.
        """
        self._prepare()
        runs = [self._run(seed) for seed in seeds]
        benchmarks = self._experiment.benchmarks
        blind = self._experiment.blind
        chosen = runs[0] if blind else max(runs, key=lambda run: run.held_out_reward)
        return Row(
            recipe=self._experiment.name,
            version=__version__,
            steps=max(run.steps for run in runs),
            seeds=tuple(run.seed for run in runs),
            cpu_minutes=tuple(run.cpu_minutes for run in runs),
            shipped=chosen.seed,
            scores={
                benchmark.label: {
                    metric: tuple(run.scores[benchmark.label][metric] for run in runs)
                    for metric in benchmark.metrics
                }
                for benchmark in benchmarks
            },
            peers={benchmark.label: self._peers(benchmark) for benchmark in benchmarks},
        )

    def ship(self, row: Row, folder: Path = SHIPPED) -> None:
        """Put a row and its policy where the package has them.

        Raises:
            OutputError: That place cannot be written.
        """
        require_writable(folder)
        policy = self._folder / f"seed-{row.shipped}" / RUN_POLICY
        write_atomically(folder / f"{row.recipe}.safetensors", policy.read_bytes())
        row.save(folder / f"{row.recipe}.json")

    def _prepare(self) -> None:
        done = self._folder / "prepared"
        if self._experiment.prepare and not done.exists():
            words = [self._placed(word) for word in self._experiment.prepare]
            self._tell(f"distrlcc {' '.join(words)}")
            if "--out" in words:  # left by one that was stopped
                shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
            self._do(words)
            write_atomically(done, b"")

    def _run(self, seed: int) -> Run:
        kept = self._folder / f"seed-{seed}.json"
        place = self._folder / f"seed-{seed}"
        words = [self._placed(word) for word in self._experiment.train]
        words += ["--seed", str(seed), "--out", str(place)]
        if kept.exists():
            return self._scored(Run.load(kept), kept, place, words)
        if place.exists():
            words.append("--resume")
        progress = self._progress(seed)
        if not progress.trained:
            self._tell(f"distrlcc {' '.join(words)}")
            begin = process_time()
            try:
                self._do(words)
                progress.trained = True
            finally:
                progress.cpu_seconds += process_time() - begin
                self._keep(seed, progress)
        policy = load_policy(place / RUN_POLICY)
        run = Run(
            seed=seed,
            steps=int(policy.notes["steps"]),
            cpu_minutes=progress.cpu_seconds / 60.0,
            held_out_reward=float(policy.notes["held_out_reward"]),
            scores={},
            train=words,
        )
        return self._scored(run, kept, place, words)

    def _scored(self, run: Run, kept: Path, place: Path, words: list[str]) -> Run:
        """Score what was not scored yet.

        Raises:
            ConfigError: Another version of distrlcc, or another command, trained the run.
        """
        plain = [word for word in words if word != "--resume"]
        before = [word for word in run.train if word != "--resume"]
        if (run.version, before) != (__version__, plain):
            raise ConfigError(
                f"{kept} is of distrlcc {run.version}, '{' '.join(before)}'; expected "
                f"{__version__}, '{' '.join(plain)}': give another --out"
            )
        for benchmark in self._experiment.benchmarks:
            if set(run.scores.get(benchmark.label, {})) != set(benchmark.metrics):
                contender = contender_from_file(str(place), set(), benchmark.prefer)
                run.scores[benchmark.label] = self._scores(contender, benchmark)
        write_atomically(kept, json.dumps(vars(run), indent=1).encode())
        return run

    def _progress(self, seed: int) -> _Progress:
        path = self._folder / f"seed-{seed}.progress"
        return _Progress(**json.loads(path.read_text())) if path.exists() else _Progress()

    def _keep(self, seed: int, progress: _Progress) -> None:
        path = self._folder / f"seed-{seed}.progress"
        write_atomically(path, json.dumps(vars(progress)).encode())

    def _scores(self, contender: Contender, benchmark: Benchmark) -> dict[str, float]:
        scenarios = load_suite(benchmark.suite).scenarios("test", benchmark.links)
        self._tell(f"scoring {contender.name} on {len(scenarios)} links of {benchmark.suite}")
        if benchmark.metrics == RECOVERY:
            return recovery_scores(contender, scenarios)
        if benchmark.metrics != ALONE:
            found = measure(contender, benchmark.suite, scenarios).overall
            return {metric: found[metric].mean for metric in benchmark.metrics}
        measured, _ = evaluate(contender, scenarios)
        return {metric: _mean(getattr(measured, metric)) for metric in benchmark.metrics}

    def _peers(self, benchmark: Benchmark) -> dict[str, dict[str, float]]:
        return {
            name: self._scores(contender_from_scheme(name), benchmark) for name in benchmark.peers
        }

    def _placed(self, word: str) -> str:
        return word.replace("FOLDER", str(self._folder))

    def _do(self, words: Sequence[str]) -> None:
        code = self._command(words)
        if code:
            raise StoppedError(code)


def _mean(values: Any) -> float:
    """Return the mean over links, those without a value left out."""
    return float(np.nanmean(values))
