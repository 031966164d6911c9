"""Workers as a `Source`: the trainer learns from their segments, side by side in one batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from distrlcc.actors.board import Board
from distrlcc.actors.crew import Crew
from distrlcc.actors.ledger import Ledger
from distrlcc.actors.segment import Segment
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import GroupError
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import InterruptedUpdateError, LocalReducer, Weights
from distrlcc.learn.rollout import Rollout, concatenate
from distrlcc.policy.spec import PolicySpec
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import RunState, build_learner
from distrlcc.runs.source import Stop, new_rollout, policy_spec
from distrlcc.runs.stopper import Stopper

_UNSEEN = 64
"""Segments that a worker may have acted beyond those that came here."""


class InterruptibleReducer(LocalReducer):
    """Asks before each minibatch whether to go on."""

    interrupted: Callable[[], bool] = staticmethod(lambda: False)

    def mean_gradient(self, gradient: Tensor, weight: float) -> None:
        """See `LocalReducer`.

        Raises:
            InterruptedUpdateError: The user wants to stop.
        """
        if self.interrupted():
            raise InterruptedUpdateError
        super().mean_gradient(gradient, weight)


class ActorSource:
    """A `distrlcc.runs.source.Source` whose batches are segments that workers collected."""

    def __init__(self, config: RunConfig, spec: PolicySpec) -> None:
        """Begin without workers; :meth:`start` has them."""
        self.spec, self._config = spec, config
        like = new_rollout(config, spec, config.actors.envs_per_worker)
        self.ledger = Ledger(config.actors.max_lag, like)
        self.first_step = 0
        """Step from which this run's workers began."""
        self.reducer = InterruptibleReducer()
        """Breaks an update off after a signal; the learner's."""
        self._update = 0
        self._taken: list[Segment] = []  # of the newest batch
        self._asked = self._gathered = self._began = 0.0
        self._failure: Exception | None = None
        self._crew: Crew
        self._board: Board
        self._stopper: Stopper

    def start(self, crew: Crew, board: Board, stopper: Stopper, seconds: float) -> None:
        """Take the workers.

        Args:
            crew: Entered; asks them.
            board: Shows them.
            stopper: Hears of signals.
            seconds: Time that the run has had so far, s.
        """
        self._crew, self._board, self._stopper = crew, board, stopper
        self._began = perf_counter() - seconds
        self.reducer.interrupted = lambda: bool(stopper.signal)

    def next(
        self, weights: Weights, stop: Stop | None = None
    ) -> tuple[Rollout, CollectStats] | None:
        """Publish the weights, and wait for as many segments as an update takes."""
        crew, actors = self._crew, self._config.actors
        self._update, self._taken = weights.version, []
        crew.publish(weights)
        self._asked = perf_counter()
        if self._stops():
            return None
        try:
            self._taken = crew.gather(actors.per_update, self._update, self._stops)
        except Exception as error:  # the workers are lost, what was learned is not
            self._failure = error
        if not self._taken:
            return None
        self._gathered = perf_counter()
        stats = CollectStats()
        for segment in self._taken:
            stats.merge(segment.stats)
        return concatenate([segment.rollout for segment in self._taken]), stats

    def _stops(self) -> bool:
        """Show the workers; say whether to wait no longer for segments."""
        crew, config, stopped = self._crew, self._config, self._stopper.signal
        seconds = perf_counter() - self._began
        self._board.show(crew.rows(), self._update, seconds)
        for event in crew.take_events() if not stopped else ():
            self._board.note(event)
        alone = crew.empty_seconds > config.actors.wait_workers
        if alone and not stopped:
            self._failure = GroupError(
                f"no worker is left for {config.actors.wait_workers:g} s; saved after update "
                f"{self._update}, go on with --load (distrlcc node) or --resume (distrlcc train)"
            )
        late = config.max_seconds and seconds >= config.max_seconds
        return bool(stopped or late or alone)

    def metrics(self, stats: CollectStats, seconds: float) -> dict[str, Any]:
        """Return means over the workers, their number and how old their policies were."""
        crew, ledger = self._crew, self.ledger
        lags = [self._update - segment.version for segment in self._taken]
        metrics = stats.metrics() | {
            "share_wait": (self._gathered - self._asked) / seconds,
            "lag": float(np.mean(lags)),
            "lag_max": float(max(lags)),
            "workers": float(len(crew.rows())),
            "segments_received": float(ledger.received),
            "segments_used": float(ledger.used),
            "segments_refused": float(ledger.refused.total()),
            "segments_lost": float(ledger.lost),
        }
        published = crew.take_publish_seconds()
        if published:
            metrics["publish_ms"] = float(max(published)) * 1e3
        return metrics | {"events": self._board.take_events()}

    def fresh_step(self) -> int:
        """Return a step from which links are new: no worker can have come as far."""
        seen = self.ledger.received + self.ledger.lost
        if not seen and not self._update:
            return self.first_step
        segments = max(seen, self._update) + _UNSEEN
        return self.first_step + segments * self._config.rollout_length

    def state_dict(self) -> dict[str, Any]:
        """Return the account of segments, and from which step links are new."""
        return {"ledger": self.ledger.state_dict(), "first_step": self.first_step}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on; with another number of segments in an update a data set fills anew."""
        actors, data = self._config.actors, state["learner"].get("dataset")
        fits = data is None or data["count"] == actors.per_update * actors.envs_per_worker
        if not fits:
            warnings.warn(
                "the data set is of another number of workers or environments, and fills anew",
                stacklevel=2,
            )
        if "ledger" in state:
            self.ledger.load_state_dict(state["ledger"])
        self._update = int(state["counters"]["update"])
        self.first_step = int(state.get("first_step", 0))
        self.first_step = self.fresh_step()
        return fits

    def close(self, update: int) -> Exception | None:
        """Stop the workers, so that all machines are free at once."""
        if self._taken and update == self._update:  # the update was broken off
            with self.ledger.lock:
                self.ledger.put_back(len(self._taken))
        self._crew.close()
        return None if self._stopper.signal else self._failure


def actor_run(config: RunConfig, device: str = "cpu") -> RunState:
    """Return a run whose environments are with workers.

    Raises:
        ConfigError: Something in the configuration does not exist or fit.
    """
    spec = policy_spec(config, LinkVectorEnv(config.env.agents, config.env))
    source = ActorSource(config, spec)
    learner = build_learner(config, spec, source.reducer, device)
    return RunState(config, source, learner, total_steps=config.total_steps)
