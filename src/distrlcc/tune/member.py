"""One trial of Ray Tune: trains, scores, reports; goes on from its own or another's checkpoint.

A trial's checkpoint is a folder of three files: ``state.safetensors``, all that the trainer needs
to go on bit for bit; ``policy.safetensors``, the policy that was scored; ``report.json``.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from distrlcc.errors import CheckpointError
from distrlcc.files import write_atomically
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.runs.checkpoint import load_checkpoint, save_checkpoint
from distrlcc.runs.held_out import ACTINGS
from distrlcc.runs.identity import package_versions
from distrlcc.runs.run_state import env_run
from distrlcc.runs.train import iterate
from distrlcc.tune.report import Report, Segment, extended
from distrlcc.tune.space import parse_space, with_values
from distrlcc.tune.tune_config import Metric, TuneConfig

STATE, POLICY, REPORT = "state.safetensors", "policy.safetensors", "report.json"
_SCHEDULE = "schedule"
_WORST: dict[Metric, float] = {
    "reward": -1e30,
    "utilisation": -1e30,
    "queueing_delay": 1e30,
    "loss": 1e30,
}
"""Scores of a member that diverged, so that they can be compared and written."""


class Member:
    """A trainer with the values that it was given, and the schedule that led to them."""

    def __init__(self, config: TuneConfig, values: Mapping[str, Any], number: int) -> None:
        """Build the trainer.

        Args:
            config: The tuner's.
            values: Of its keys.
            number: This member's.

        Raises:
            ConfigError: The values do not fit.
        """
        self._config, self._number = config, number
        self._values = {key: values[key] for key in parse_space(config.space, config.flag)}
        self.trainer = env_run(with_values(config.run, self._values))
        self.schedule = extended((), Segment(0, number, self._values))

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.trainer.counters.steps >= self._config.run.total_steps

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, with this member's values.

        The learner reads its values from this member's configuration and not from the checkpoint,
        so that the next update is made with them.

        Raises:
            CheckpointError: It cannot be read.
        """
        state = load_checkpoint(folder / STATE)
        if _SCHEDULE not in state:
            raise CheckpointError(f"{folder / STATE} is not a tuner's checkpoint")
        before = msgspec.json.decode(state.pop(_SCHEDULE), type=tuple[Segment, ...])
        self.trainer.load_state_dict(state)
        update = self.trainer.counters.update
        self.schedule = extended(before, Segment(update, self._number, self._values))

    def advance(self, now: Callable[[], float]) -> Report:
        """Train until the next report is due, and score.

        Args:
            now: Seconds from any origin.
        """
        # Train.
        trainer, counters = self.trainer, self.trainer.counters
        begin = now() - counters.seconds
        while True:
            iterate(trainer)
            counters.seconds = now() - begin
            if self.done or counters.update % self._config.report_every == 0:
                break
        # Score.
        found = trainer.score()
        acting = max(ACTINGS, key=lambda a: found[f"held_out_reward_{a}"])
        scores = {name: found[f"held_out_{name}_{acting}"] for name in _WORST}
        finite: Any = {n: s if math.isfinite(s) else _WORST[n] for n, s in scores.items()}
        return Report(
            member=self._number,
            update=counters.update,
            steps=counters.steps,
            score=finite[self._config.metric],
            acting=acting,
            seconds=counters.seconds,
            schedule=self.schedule,
            **finite,
        )

    def save(self, folder: Path, report: Report) -> None:
        """Write a checkpoint of the state that a report is of."""
        schedule = msgspec.json.encode(self.schedule).decode()
        state = self.trainer.state_dict() | {_SCHEDULE: schedule}
        save_checkpoint(folder / STATE, state, versions=package_versions())
        config = self.trainer.config
        notes = {
            "recipe": config.recipe,
            "seed": config.seed,
            "update": report.update,
            "steps": report.steps,
            "held_out_reward": report.reward,
        }
        weights = self.trainer.learner.weights().arrays
        acting = next(a for a in ACTINGS if a == report.acting)
        save_policy(folder / POLICY, PolicyFile(self.trainer.spec, weights, acting, notes))
        write_atomically(folder / REPORT, msgspec.json.encode(report))


def trainable(tuner: TuneConfig) -> Callable[[dict[str, Any]], None]:
    """Return the function that Ray Tune runs for each member, in a process of its own."""

    def member(config: dict[str, Any]) -> None:
        run_member(tuner, config)

    member.__mixins__ = (_Quiet,)  # type: ignore[attr-defined]  # bases that Ray's wrapper takes
    return member


class _Quiet:
    """Keeps Ray's notes on every checkpoint from the user's terminal."""

    def setup(self, config: dict[str, Any]) -> None:
        for name in ("ray.train", "ray.tune"):
            logging.getLogger(name).setLevel(logging.WARNING)
        super().setup(config)  # type: ignore[misc]  # Ray's wrapper has one


def run_member(tuner: TuneConfig, config: Mapping[str, Any]) -> None:
    """Train as the trial that Ray Tune started in this process, until its steps are done."""
    from ray import tune  # noqa: PLC0415 - an optional extra

    member = Member(tuner, config, member_number(tune.get_context().get_trial_name()))
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            member.load(Path(folder))
    while not member.done:
        report = member.advance(time.perf_counter)
        metrics = {
            "score": report.score,
            "update": report.update,
            "steps": report.steps,
            "report": msgspec.json.encode(report).decode(),
            "done": member.done,
        }
        with tempfile.TemporaryDirectory(prefix="distrlcc-member-") as folder:
            member.save(Path(folder), report)
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def member_name(trial: Any) -> str:
    """Return the name of a new trial of Ray Tune, as ``member-00007``."""
    number = int(trial.experiment_tag.partition("_")[0])
    if "_" not in trial.trial_id:  # Ray numbers trials of a sampler from 1, others from 0
        number -= 1
    return f"member-{number:05}"


def member_number(name: str) -> int:
    """Return a member's number from its name."""
    return int(name.rpartition("-")[2])
