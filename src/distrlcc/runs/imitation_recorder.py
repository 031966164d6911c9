"""What rank 0 does after an epoch: score, save, log and show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from distrlcc.learn.learner import Weights
from distrlcc.policy.policy_file import save_policy
from distrlcc.runs.held_out import ACTINGS, HeldOut
from distrlcc.runs.imitation_trainer import ImitationCounters, ImitationTrainer
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_directory import RunDirectory


class ImitationRecorder:
    """Writes a trainer's run directory and shows its progress."""

    def __init__(self, trainer: ImitationTrainer, run: RunDirectory, progress: Progress) -> None:
        """Take what to record and where; the run directory is closed by the caller."""
        self._trainer, self._run, self._progress = trainer, run, progress
        self._held_out = HeldOut(trainer.config, trainer.spec)

    def open(self, *, resume: bool) -> None:
        """Take the run, and on a resume its newest state."""
        trainer = self._trainer
        self._run.lock()
        if not resume:
            return
        loaded = self._run.load()
        if loaded is not None:
            state = loaded[0]
            trainer.imitator.load_state_dict(state["imitator"])
            trainer.counters = ImitationCounters(**{**state["counters"], "signal": 0})
            if state["best"] is not None:
                trainer.best = Weights(int(state["best"]["version"]), state["best"]["arrays"])
        if trainer.counters.epoch < trainer.config.epochs:
            self._run.rewind(trainer.counters.epoch)

    def record(self, metrics: dict[str, float]) -> None:
        """Record the epoch that was just counted."""
        trainer, counters = self._trainer, self._trainer.counters
        last = counters.epoch == trainer.config.epochs
        if last or counters.epoch % trainer.config.held_out.every == 0:
            metrics |= self._score()
        self._run.metrics.log(counters.epoch, metrics)
        self._progress.update(metrics)
        self._run.save(self._state())
        if counters.best_epoch == counters.epoch:
            self._run.save(self._state(), best=True)
        if counters.best_epoch in (0, counters.epoch):  # the newest until one is scored
            save_policy(self._run.policy_path, trainer.policy())

    def show(self, steps: int) -> None:
        """Show how many steps are done in the middle of an epoch."""
        self._progress.update({"steps": steps})

    def _score(self) -> dict[str, float]:
        """Score on held-out links, and keep the weights if they are the best."""
        trainer, counters = self._trainer, self._trainer.counters
        weights = trainer.imitator.weights(counters.epoch)
        scores = self._held_out.score(weights)
        newest = trainer.config.held_out.keep == "newest"
        acting = "sample" if newest else max(ACTINGS, key=lambda a: scores[a].reward)
        self._progress.update(asdict(scores[acting]))
        if newest or scores[acting].reward > counters.best_score:
            counters.best_score, counters.best_epoch = scores[acting].reward, counters.epoch
            counters.best_acting = acting
            counters.best_utilisation = scores[acting].utilisation
            counters.best_queueing_delay = scores[acting].queueing_delay
            trainer.best = weights
        return {
            f"held_out_{name}_{acting}": value
            for acting, score in scores.items()
            for name, value in asdict(score).items()
        }

    def _state(self) -> dict[str, Any]:
        best = self._trainer.best
        return {
            "imitator": self._trainer.imitator.state_dict(),
            "counters": asdict(self._trainer.counters),
            "best": None if best is None else {"version": best.version, "arrays": best.arrays},
        }
