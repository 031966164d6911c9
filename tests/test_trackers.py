"""Trainings that are logged to Weights & Biases and MLflow: stores on disk, no network."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import distrlcc
from distrlcc.errors import ConfigError
from distrlcc.trackers import MLflow, Wandb

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's SQLAlchemy
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
        self.summary, self.config = dict(self.run.summary), dict(self.run.config)
        super().on_end(policy)


def test_a_run_of_wandb_has_the_metrics_and_the_policy(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    callbacks = _Seen(project="links", mode="offline", dir=tmp_path)
    distrlcc.train("quickstart", out=tmp_path / "run", callbacks=[callbacks], show=False, **SMALL)
    last = _lines(tmp_path / "run")[-1]
    assert callbacks.summary["steps"] == callbacks.summary["_step"] == last["steps"] == 2048
    assert callbacks.config["env.action"] == "multiplicative"
    assert callbacks.summary["policy_entropy"] == last["policy_entropy"]
    wandb.teardown()  # its own process writes what is buffered
    kept = next(tmp_path.glob("wandb/offline-run-*/*.wandb")).read_bytes()
    assert b"policy.safetensors" in kept


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow")  # its tables take seconds to make


@pytest.fixture
def store(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "links")
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    client = mlflow.MlflowClient()
    if client.get_experiment_by_name("links") is None:
        client.create_experiment("links", artifact_location=(place / "kept").as_uri())
    return client


def test_a_run_of_mlflow_has_the_metrics_and_the_policy(
    tmp_path: Path, store: Any, place: Path
) -> None:
    callbacks = MLflow(run_name="first")
    distrlcc.train("quickstart", out=tmp_path / "run", callbacks=[callbacks], show=False, **SMALL)
    run = callbacks.run.info
    history = store.get_metric_history(run.run_id, "policy_entropy")
    lines = [(line["steps"], line["policy_entropy"]) for line in _lines(tmp_path / "run")]
    assert [(metric.step, metric.value) for metric in history] == lines
    assert len(lines) == 4
    ended = store.get_run(run.run_id).info
    assert (ended.run_name, ended.status) == ("first", "FINISHED")
    assert store.get_experiment(run.experiment_id).name == "links"
    assert (place / "kept" / run.run_id / "artifacts" / "policy.safetensors").exists()


class _Broken(distrlcc.Callbacks):
    def on_update(self, metrics: Any) -> None:
        raise ArithmeticError


def test_a_run_that_is_stopped_is_closed_and_goes_on(tmp_path: Path, store: Any) -> None:
    callbacks, out = MLflow(), tmp_path / "run"
    more = {"out": out, "show": False, **SMALL}
    with pytest.raises(ArithmeticError):
        distrlcc.train("quickstart", callbacks=[callbacks, _Broken()], **more)
    run = callbacks.run.info.run_id
    assert store.get_run(run).info.status == "KILLED"
    assert store.get_run(run).data.params["ppo.rollout_length"] == "64"
    assert (out / "checkpoints" / "latest.safetensors").exists()
    distrlcc.train(out=out, show=False, resume=True, callbacks=[MLflow(run_id=run)])
    assert store.get_run(run).info.status == "FINISHED"
    assert store.get_metric_history(run, "policy_entropy")[-1].step == 2048


def test_what_mlflow_refuses_does_not_end_a_training(tmp_path: Path, store: Any) -> None:
    callbacks = MLflow()
    store.delete_run(callbacks.run.info.run_id)
    with pytest.warns(UserWarning, match="MLflow lacks the metrics of step 7"):
        callbacks.on_update({"steps": 7.0, "entropy": 1.0, "alarm": "none", "loss": float("nan")})
    with pytest.warns(UserWarning, match="MLflow lacks the run's end"):
        callbacks.on_stop()
    callbacks = MLflow()
    with pytest.warns(UserWarning, match="MLflow lacks the policy"):
        callbacks.on_end(SimpleNamespace(path=tmp_path / "none"))  # type: ignore[arg-type]
    assert store.get_run(callbacks.run.info.run_id).info.status == "FINISHED"


def test_without_the_package_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (None, ModuleSpec("wandb", None)):  # nothing, or the folder that W&B leaves
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=found: found)
        with pytest.raises(ConfigError, match=r"wandb is not installed .*pip install"):
            Wandb()
        with pytest.raises(ConfigError, match=r"mlflow .*\(extra 'mlflow'\): pip install .*skinny"):
            MLflow()
