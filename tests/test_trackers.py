"""Trainings that are logged to Weights & Biases and MLflow: stores on disk, no network."""

import fcntl
import json
import os
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

import distrlcc
from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.runs.metrics_log import MetricsLog, read_metrics
from distrlcc.runs.options import RunOptions
from distrlcc.runs.trackers import Trackers
from tests.trees import TINY

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of MLflow's SQLAlchemy
    pytest.mark.timeout(300),
]
SMALL = TINY | {"num_envs": 8, "total_steps": 2048, "ppo.rollout_length": 64}
WORDS = ["--set", *(f"{key}={value}" for key, value in SMALL.items())]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow")  # its tables take seconds to make


@pytest.fixture
def store(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "links")
    mlflow = pytest.importorskip("mlflow", reason="needs MLflow")
    client = mlflow.MlflowClient()
    if client.get_experiment_by_name("links") is None:
        client.create_experiment("links", artifact_location=(place / "kept").as_uri())
    return client


def _logged(out: Path, kind: str) -> str:
    return str(json.loads((out / f"tracker-{kind}.json").read_text())["run"])


def _steps(out: Path) -> list[float]:
    return [row["steps"] for row in read_metrics(out / "metrics.jsonl")]


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: LevelDB's log, blocks of 32 kB, after 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def _history(folder: Path, run: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the steps that offline runs of W&B with an id keep, and their metrics."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob(f"wandb/offline-run-*-{run}/*.wandb")):
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if items := record.history.item:
                row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}
                found.append((record.history.step.num, row))
    return found


ACTORS = "node quickstart --node-index 0 --node-num 1 --ip 127.0.0.1 --nodes nodes.toml"
WAYS = {
    "alone": "train quickstart",
    "ranks": "train quickstart --processes 2",
    "actors": f"{ACTORS} --envs-per-worker 4",
}


@pytest.mark.parametrize(
    "way", ["alone", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != "alone")]
)
def test_each_way_of_training_logs_every_update_once_and_a_resume_goes_on(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs Weights & Biases")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    Path("nodes.toml").write_text("nodes = [[0, 1]]")
    out, line = tmp_path / "run", [*WAYS[way].split(), "--no-tensorboard"]
    small = [w.replace("=2048", "=1024") for w in WORDS]
    assert main([*line, "--out", str(out), "--wandb", "team/links", *small]) == 0
    run = _logged(out, "wandb")
    # The resume says nothing of a tracker.
    again = ["--load", str(out)] if way == "actors" else ["--resume", "--out", str(out)]
    line.remove("quickstart")
    assert main([*line, *again, "--set", "total_steps=2048"]) == 0
    assert _logged(out, "wandb") == run
    kept = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [path.stem for path in kept] == [f"run-{run}"] * 2
    history, rows = _history(tmp_path, run), read_metrics(out / "metrics.jsonl")
    assert [step for step, _ in history] == [row["steps"] for row in rows]
    for (_, sent), row in zip(history, rows, strict=True):
        assert sent["policy_entropy"] == row["policy_entropy"]
        assert sent.get("held_out_reward_argmax") == row.get("held_out_reward_argmax")
    assert b"policy.safetensors" in kept[-1].read_bytes()
    assert b"env.action" in kept[0].read_bytes()


def test_a_copy_of_a_run_is_a_run_of_its_own_and_one_that_is_moved_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    pytest.importorskip("wandb", reason="needs Weights & Biases")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    run, copy = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    (run / "config.toml").write_text("seed = 1")

    def follow(folder: Path, update: int) -> str:
        log = MetricsLog(folder, tensorboard=False)
        with Trackers(wandb="" if update > 1 else "links").follow(folder, show=False):
            log.log(update, {"steps": 10 * update, "loss": 0.5})
            log.close()
        return _logged(folder, "wandb")

    own = follow(run, 1)
    shutil.copytree(run, copy)
    another = follow(copy, 2)
    assert another != own
    assert [step for step, _ in _history(tmp_path, another)] == [10, 20]
    assert f"{copy} is a copy of {run}: wandb has it as a run of its own" in capfd.readouterr().err
    assert follow(run, 2) == own
    moved = copy.rename(tmp_path / "moved")
    assert follow(moved, 3) == another
    assert "is a copy" not in capfd.readouterr().err


class _Broken(distrlcc.Callbacks):
    def on_update(self, metrics: Any) -> None:
        raise ArithmeticError


@pytest.mark.long
def test_a_run_that_is_stopped_is_closed_and_goes_on(
    tmp_path: Path, store: Any, place: Path
) -> None:
    out, more = tmp_path / "run", dict[str, Any](show=False, processes=2, checkpoint_every=9)
    with pytest.raises(ArithmeticError):
        distrlcc.train(out=out, callbacks=[_Broken()], mlflow="auto", **more, **SMALL)
    run = _logged(out, "mlflow")
    assert store.get_run(run).info.status == "KILLED"
    distrlcc.train(out=out, show=False, resume=True, processes=2)
    ended = store.get_run(run)
    assert (ended.info.run_name, ended.info.status) == ("run", "FINISHED")
    assert ended.data.params["ppo.rollout_length"] == "64"
    assert store.get_experiment(ended.info.experiment_id).name == "links"
    rows = read_metrics(out / "metrics.jsonl")
    history = store.get_metric_history(run, "policy_entropy")
    assert [(m.step, m.value) for m in history] == [(r["steps"], r["policy_entropy"]) for r in rows]
    scored = store.get_metric_history(run, "held_out_reward_argmax")
    assert [m.step for m in scored] == [r["steps"] for r in rows if "held_out_reward_argmax" in r]
    assert scored
    assert (place / "kept" / run / "artifacts" / "policy.safetensors").exists()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.long
def test_dead_trackers_never_stop_training(
    silent: str, tmp_path: Path, store: Any, monkeypatch: Any, capfd: Any
) -> None:
    pytest.importorskip("wandb", reason="needs Weights & Biases")
    for name, value in {"BASE_URL": silent, "API_KEY": "0" * 40, "MODE": "online"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("DISTRLCC_LIMITS", "stop=2")
    words = ["--out", str(tmp_path / "run"), "--no-tensorboard", *WORDS]
    assert main(["train", "quickstart", *words, "--wandb", "--mlflow", silent]) == 0
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["steps"] == 2048
    said = capfd.readouterr().err.splitlines()
    for name in ("Weights & Biases", "MLflow"):
        assert said.count(f"distrlcc: {name} did not take all; metrics.jsonl has it") == 1


@pytest.mark.long
def test_what_a_tracker_missed_is_sent_when_it_is_back(
    tmp_path: Path, store: Any, place: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "stop=120")
    database, run = tmp_path / "late.db", tmp_path / "run"
    database.write_text("no database " * 100)
    run.mkdir()
    (run / "config.toml").write_text("seed = 1")
    log = MetricsLog(run, tensorboard=False)
    log.log(1, {"steps": 10, "loss": 0.5, "worst": float("nan"), "alarm": "none"})
    said = ""
    with Trackers(mlflow=f"sqlite:///{database}").follow(run):
        while "MLflow fails" not in said:  # pytest's timeout is its limit
            said += capfd.readouterr().err
        log.log(1, {"held_out_score": 2.0})
        log.log(2, {"steps": 20, "loss": 0.25})
        log.close()
        os.truncate(database, 0)  # the store is whole again, for those that have it open, too
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{database}")
    name = _logged(run, "mlflow")
    found = client.get_metric_history(name, "loss")
    assert [(metric.step, metric.value) for metric in found] == [(10, 0.5), (20, 0.25)]
    assert [metric.step for metric in client.get_metric_history(name, "held_out_score")] == [10]
    assert "worst" not in client.get_run(name).data.metrics
    assert "did not take all" not in capfd.readouterr().err


@pytest.mark.long
def test_a_training_that_is_killed_loses_no_row_for_its_tracker(
    tmp_path: Path, store: Any, place: Path
) -> None:
    """Killed before its tracker began, while that still sends, and before a row of scores."""
    run, at = tmp_path / "run", f"sqlite:///{place}/mlflow.db"
    run.mkdir()
    (run / "config.toml").write_text("seed = 1")
    log = MetricsLog(run, tensorboard=False)
    log.log(1, {"steps": 10, "loss": 0.5})
    # A tracker's process that outlives its training; meanwhile the resume's waits.
    with (run / ".tracker-mlflow.lock").open("w") as outlives:
        fcntl.flock(outlives, fcntl.LOCK_EX)
        with Trackers(mlflow=at).follow(run):
            assert json.loads((run / "tracker-mlflow.json").read_text())["place"] == at
            time.sleep(2.0)
            assert _logged(run, "mlflow") == ""
            fcntl.flock(outlives, fcntl.LOCK_UN)
    name = _logged(run, "mlflow")
    # The resume makes the update anew, and scores it this time.
    log.log(1, {"steps": 10, "loss": 0.75})
    log.log(1, {"held_out_score": 2.0})
    log.log(2, {"steps": 20, "loss": 0.25})
    log.close()
    with Trackers().follow(run):
        pass
    assert _logged(run, "mlflow") == name
    found = store.get_metric_history(name, "loss")
    assert [(metric.step, metric.value) for metric in found] == [(10, 0.5), (20, 0.25)]
    (score,) = store.get_metric_history(name, "held_out_score")
    assert 10 <= score.step <= 11
    assert store.get_run(name).info.status == "FINISHED"


def test_what_cannot_be_logged_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project in ("a/b/c", "/a", "a/", "a:b", "50%", "what?", "#1", "a\\b"):
        with pytest.raises(ConfigError, match="expected PROJECT or ENTITY/PROJECT"):
            Trackers(wandb=project)
    for uri in ("http://me:secret@host", "postgresql://me:secret@host/db"):
        with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as caught:
            Trackers(mlflow=uri)
        assert "secret" not in str(caught.value)
    for found in (None, ModuleSpec("wandb", None)):  # nothing, or the folder that W&B leaves
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=found: found)
        with pytest.raises(ConfigError, match=r"wandb is not installed .*pip install"):
            distrlcc.train(out=tmp_path / "run", wandb="auto")
        with pytest.raises(ConfigError, match=r"mlflow .*\(extra 'mlflow'\): pip install .*skinny"):
            distrlcc.train(out=tmp_path / "run", mlflow="auto")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", ["--wandb", "--mlflow"])
def test_a_recipe_after_the_flag_is_no_project(flag: str, capsys: Any) -> None:
    assert main(["train", flag, "quickstart"]) == 2
    assert (
        f"'quickstart' was taken for {flag}'s value: put RECIPE before" in capsys.readouterr().err
    )
    assert RunOptions(None).trackers.wandb == ""
