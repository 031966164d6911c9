"""Callbacks that log a training to Weights & Biases or to MLflow; extras ``wandb`` and ``mlflow``.

import distrlcc
from distrlcc.trackers import Wandb

distrlcc.train("one", out="run", callbacks=[Wandb(project="links")])

The x-axis is environment steps. Each logs every metric of metrics.jsonl that is a finite number,
and at the end the best policy's file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from distrlcc.extras import require
from distrlcc.library import Callbacks, Policy


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    kept = {k: v for k, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)}
    return {name: float(value) for name, value in kept.items()}


class Wandb(Callbacks):
    """A run of Weights & Biases."""

    def __init__(self, **settings: Any) -> None:
        """Begin it; ``settings`` are those of ``wandb.init``, such as ``project``."""
        require("wandb")
        import wandb  # noqa: PLC0415 - of an extra

        self.run = wandb.init(**settings)

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        """See `Callbacks`."""
        self.run.log(_numbers(metrics), step=int(metrics["steps"]), commit=True)

    def on_end(self, policy: Policy) -> None:
        """See `Callbacks`."""
        self.run.log_artifact(policy.path, name="policy", type="model")
        self.run.finish()


class MLflow(Callbacks):
    """A run of MLflow, on the server or in the store that ``MLFLOW_TRACKING_URI`` names."""

    def __init__(self, **settings: Any) -> None:
        """Begin it; ``settings`` are those of ``MlflowClient.create_run``."""
        require("mlflow")
        import mlflow  # noqa: PLC0415 - of an extra

        self._client = mlflow.MlflowClient()
        self.run = self._client.create_run(**({"experiment_id": "0"} | settings))

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        """See `Callbacks`."""
        from mlflow.entities import Metric  # noqa: PLC0415 - of an extra

        now, step = round(datetime.now(UTC).timestamp() * 1e3), int(metrics["steps"])
        logged = [Metric(name, value, now, step) for name, value in _numbers(metrics).items()]
        self._client.log_batch(self.run.info.run_id, logged)

    def on_end(self, policy: Policy) -> None:
        """See `Callbacks`."""
        self._client.log_artifact(self.run.info.run_id, policy.path)
        self._client.set_terminated(self.run.info.run_id)
