"""A member of a search: trains, scores, reports; goes on from its own or another's checkpoint.

A trial's checkpoint is a folder of three files: ``state.safetensors``, all that the trainer needs
to go on bit for bit; ``policy.safetensors``, the policy that was scored; ``report.json``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from distrlcc.files import write_atomically
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.runs.checkpoint import load_checkpoint, save_checkpoint
from distrlcc.runs.held_out import ACTINGS
from distrlcc.runs.identity import package_versions
from distrlcc.runs.run_state import env_run
from distrlcc.runs.train import iterate
from distrlcc.tune.report import Report, Segment, decode, extended
from distrlcc.tune.space import space_of, with_values
from distrlcc.tune.tune_config import TuneConfig

STATE, POLICY, REPORT = "state.safetensors", "policy.safetensors", "report.json"
_SCORES = ("reward", "utilisation", "queueing_delay", "loss")  # finite, or scoring has raised


class Member:
    """A trainer with the values that it was given, and the schedule that led to them."""

    def __init__(self, config: TuneConfig, values: Mapping[str, Any], number: int) -> None:
        """Build the trainer; raises ConfigError where the values of its keys do not fit."""
        self._config, self._number = config, number
        self._values = {key: values[key] for key in space_of(config)}
        self.trainer = env_run(with_values(config.run, self._values))
        self.schedule = extended((), Segment(0, number, self._values))

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.trainer.counters.steps >= self._config.run.total_steps

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, with this member's values; raises CheckpointError.

        The learner reads its values from this member's configuration and not from the checkpoint,
        so that the next update is made with them.
        """
        self.trainer.load_state_dict(load_checkpoint(folder / STATE))
        report = decode((folder / REPORT).read_bytes())
        now = Segment(report.update, self._number, self._values, report.steps)
        self.schedule = extended(report.schedule, now)

    def advance(self) -> Report:
        """Train until the next report is due, and score."""
        trainer, counters = self.trainer, self.trainer.counters
        trainer.start_clock()
        while True:
            iterate(trainer)
            if self.done or counters.update % self._config.report_every == 0:
                break
        found = trainer.score()
        acting = max(ACTINGS, key=lambda a: found[f"held_out_reward_{a}"])
        said: Any = {name: found[f"held_out_{name}_{acting}"] for name in _SCORES}
        score, schedule = said[self._config.metric], self.schedule
        said |= {"acting": acting, "seconds": counters.seconds, "schedule": schedule}
        return Report(self._number, counters.update, counters.steps, score, **said)

    def save(self, folder: Path, report: Report) -> None:
        """Write a checkpoint of the state that a report is of."""
        config, state = self.trainer.config, self.trainer.state_dict()
        save_checkpoint(folder / STATE, state, versions=package_versions())
        notes = {"recipe": config.recipe, "seed": config.seed, "update": report.update}
        notes |= {"steps": report.steps, "held_out_reward": report.reward}
        weights = self.trainer.weights_to_keep().arrays
        save_policy(folder / POLICY, PolicyFile(self.trainer.spec, weights, report.acting, notes))
        write_atomically(folder / REPORT, msgspec.json.encode(report))
