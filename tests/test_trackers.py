"""Trainings that are logged to Weights & Biases and MLflow: stores on disk, no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import distrlcc
from distrlcc.errors import ConfigError
from distrlcc.trackers import MLflow, Wandb

SMALL: dict[str, Any] = {
    "num_envs": 8,
    "total_steps": 2048,
    "ppo.rollout_length": 64,
    "held_out.links": 2,
}


def _lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class _Seen(Wandb):
    def on_end(self, policy: distrlcc.Policy) -> None:
        self.summary = dict(self.run.summary)
        super().on_end(policy)


def test_a_run_of_wandb_has_the_metrics_and_the_policy(tmp_path: Path) -> None:
    callbacks = _Seen(project="links", mode="offline", dir=tmp_path)
    distrlcc.train("quickstart", out=tmp_path / "run", callbacks=[callbacks], show=False, **SMALL)
    last = _lines(tmp_path / "run")[-1]
    assert callbacks.summary["steps"] == callbacks.summary["_step"] == last["steps"] == 2048
    assert callbacks.summary["policy_entropy"] == last["policy_entropy"]
    kept = next(tmp_path.glob("wandb/offline-run-*/*.wandb")).read_bytes()
    assert b"policy.safetensors" in kept


def test_a_run_of_mlflow_has_the_metrics_and_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    callbacks = MLflow(run_name="first")
    distrlcc.train("quickstart", out=tmp_path / "run", callbacks=[callbacks], show=False, **SMALL)
    history = callbacks._client.get_metric_history(callbacks.run.info.run_id, "policy_entropy")
    lines = [(line["steps"], line["policy_entropy"]) for line in _lines(tmp_path / "run")]
    assert [(metric.step, metric.value) for metric in history] == lines
    assert len(lines) == 4
    ended = callbacks._client.get_run(callbacks.run.info.run_id).info
    assert (ended.run_name, ended.status) == ("first", "FINISHED")
    assert [*tmp_path.glob("store/0/*/artifacts/policy.safetensors")]


def test_without_the_package_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"wandb is not installed .*pip install"):
        Wandb()
    with pytest.raises(ConfigError, match="mlflow is not installed: pip install mlflow"):
        MLflow()
