"""What is trained where others act: with the account of their segments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from distrlcc.actors.segment_queue import SegmentQueue
from distrlcc.learn.reducer import LocalReducer
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.training import Training

_UNSEEN = 64
"""Segments that a worker may have acted beyond those that came here."""


class InterruptedUpdateError(Exception):
    """The user wants to stop in the middle of an update."""


class _Interruptible(LocalReducer):
    """Asks before each minibatch whether to go on."""

    interrupted: Callable[[], bool] = staticmethod(lambda: False)

    def mean_gradient(self, gradient: Tensor, weight: float) -> None:
        if self.interrupted():
            raise InterruptedUpdateError
        super().mean_gradient(gradient, weight)


class ActorTraining(Training):
    """Training that keeps a ledger, which a checkpoint holds too, and may be interrupted."""

    def __init__(self, config: RunConfig, spec: PolicySpec, device: str = "cpu") -> None:
        """See `Training`."""
        self._reducer = _Interruptible()
        super().__init__(config, spec, self._reducer, device)
        self.ledger = SegmentQueue(config.actors.max_lag)
        self.first_step = 0
        """Step from which this run's workers began."""

    def fresh_step(self) -> int:
        """Return a step from which links are new: no worker can have come as far."""
        seen = self.ledger.received
        if not seen and not self.counters.update:
            return self.first_step
        segments = max(seen, self.counters.update) + _UNSEEN
        return self.first_step + segments * self.config.rollout_length

    def update(self, rollout: Rollout, interrupted: Callable[[], bool]) -> dict[str, float] | None:
        """Learn from a rollout; if interrupted undo what was learned of it and return nothing."""
        before = self.learner.shared_state()
        self._reducer.interrupted = interrupted
        try:
            return self.learner.update(rollout)
        except InterruptedUpdateError:
            self.learner.undo_update(before)
            return None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs."""
        return super().state_dict() | {
            "ledger": self.ledger.state_dict(),
            "first_step": self.first_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; with another number of segments in an update a data set fills anew."""
        actors, learner = self.config.actors, state["learner"]
        data = learner.get("dataset")
        if data is not None and data["count"] != actors.per_update * actors.envs_per_worker:
            learner = learner | {"dataset": None}
            warnings.warn(
                "the data set is of another number of workers or environments, and fills anew",
                stacklevel=2,
            )
        super().load_state_dict(state | {"learner": learner})
        if "ledger" in state:
            self.ledger.load_state_dict(state["ledger"])
        self.first_step = int(state.get("first_step", 0))
        self.first_step = self.fresh_step()
