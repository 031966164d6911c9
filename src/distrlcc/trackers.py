"""Callbacks that log a training to Weights & Biases or to MLflow; extras ``wandb`` and ``mlflow``.

import distrlcc
from distrlcc.trackers import Wandb

distrlcc.train("one", out="run", callbacks=[Wandb(project="links")])

The x-axis is environment steps. Each logs the configuration, every metric of metrics.jsonl that is
a finite number, and at the end the best policy's file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from distrlcc.extras import require
from distrlcc.library import Callbacks, Policy


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    kept = {k: v for k, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)}
    return {name: float(value) for name, value in kept.items()}


class Wandb(Callbacks):
    """A run of Weights & Biases."""

    def __init__(self, **settings: Any) -> None:
        """Begin it, or go on with it; ``settings`` are those of ``wandb.init``."""
        require("wandb")
        import wandb  # noqa: PLC0415 - of an extra

        self.run: Any = wandb.init(**settings)

    def on_begin(self, config: Mapping[str, Any]) -> None:
        """See `Callbacks`."""
        self.run.config.update(dict(config), allow_val_change=True)

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        """See `Callbacks`."""
        self.run.log(_numbers(metrics), step=int(metrics["steps"]), commit=True)

    def on_end(self, policy: Policy) -> None:
        """See `Callbacks`."""
        self.run.log_artifact(policy.path, name="policy", type="model")
        self.run.finish()

    def on_stop(self) -> None:
        """See `Callbacks`."""
        self.run.finish(exit_code=1)


class MLflow(Callbacks):
    """A run of MLflow, in the place and experiment that MLflow's own settings name.

    A server that fails is warned of, and does not end the training.
    """

    def __init__(self, **settings: Any) -> None:
        """Begin it, or go on with it; ``settings`` are those of ``mlflow.start_run``."""
        require("mlflow")
        import mlflow  # noqa: PLC0415 - of an extra

        self._mlflow, self.run = mlflow, mlflow.start_run(**settings)

    def on_begin(self, config: Mapping[str, Any]) -> None:
        """See `Callbacks`."""
        with self._leniently("the configuration"):
            params = {key: str(value)[:500] for key, value in config.items()}
            self._mlflow.log_params(params, run_id=self.run.info.run_id)

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        """See `Callbacks`."""
        step = int(metrics["steps"])
        with self._leniently(f"the metrics of step {step}"):
            numbers, run = _numbers(metrics), self.run.info.run_id
            self._mlflow.log_metrics(numbers, step=step, run_id=run)

    def on_end(self, policy: Policy) -> None:
        """See `Callbacks`."""
        with self._leniently("the policy"):
            self._mlflow.log_artifact(str(policy.path), run_id=self.run.info.run_id)
        with self._leniently("the run's end"):
            self._mlflow.end_run()

    def on_stop(self) -> None:
        """See `Callbacks`."""
        with self._leniently("the run's end"):
            self._mlflow.end_run("KILLED")

    @contextmanager
    def _leniently(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of MLflow, its server or its store
            warnings.warn(f"MLflow lacks {what}: {error}", stacklevel=4)
