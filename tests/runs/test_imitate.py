"""Collecting and imitating with real processes: killed, resumed, on two ranks, on a full disk."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli import main as cli
from distrlcc.data.manifest import Spaces, episode_schema, step_schema
from distrlcc.data.reader import StoredData
from distrlcc.data.writer import Episode
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.config import ImitationConfig
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.runs.collect_data import CollectConfig, ExpertRounds
from distrlcc.runs.imitation import SequenceSource
from distrlcc.runs.run_config import ImitateConfig
from distrlcc.runs.source import data_env
from tests.hosts import rank_processes, wait_until
from tests.parallel.commands import rows, saved, updates
from tests.trees import same

PAGE = (Path(__file__).parents[2] / "docs" / "imitation.md").read_text()
SHORT = ("env.episode_s=0.6", "env.step_ms=10")
SETTINGS = """held_out.links=2 held_out.seconds=0.3 network.hidden=[16]
    imitation.minibatch_size=64 imitation.sequence_length=8"""
SMALL = SETTINGS.split()
GAIL = """num_envs=8 ppo.rollout_length=16 ppo.minibatch_size=64 network.hidden=[8]
    env.episode_s=0.5 held_out.every=2 held_out.links=4 held_out.seconds=0.2
    total_steps=512 distributed.sync_check_every=1 distributed.straggler_share=0"""
ENDLESS = ("--no-tensorboard", "--epochs", 10**6, "--set", *SMALL, "held_out.every=1000000")
LITTLE_DISK = "prlimit --fsize=30000:"  # of a file, bytes
EPISODES = ("--episodes", 12, "--num-envs", 3, "--shard-steps", 200, "--set", *SHORT)


def _run(*words: object) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it said."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        return cli.main([str(word) for word in words]), err.getvalue()


def _start(*words: object, before: str = "") -> subprocess.Popen[str]:
    """Run a command in a process of its own, perhaps behind another command."""
    command = [*before.split(), sys.executable, "-m", "distrlcc", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _wait(process: subprocess.Popen[str], condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition while a process runs."""
    wait_until(lambda: process.poll() is not None or condition(), 60, what)
    assert process.poll() is None


def _collect(out: Path, *words: object, scheme: str = "oracle") -> StoredData:
    code, err = _run("collect", scheme, "--suite", "random", "--out", out, *words)
    assert code == 0, err
    return StoredData(out)


def _refused(line: str, *words: object) -> None:
    code, err = _run(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert line in err


def _imitate(data: Path, out: Path, *words: object) -> dict[str, Any]:
    code, err = _run("imitate", data, "--no-tensorboard", "--out", out, *words)
    assert code == 0, err
    return saved(out)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 12 episodes of 60 steps in 4 shards, disturbed."""
    out = tmp_path_factory.mktemp("data") / "oracle"
    _collect(out, *EPISODES)
    return out


def test_of_a_single_episode_none_is_held_out_and_a_line_says_so(tmp_path: Path) -> None:
    _collect(tmp_path / "one", "--episodes", 1, "--set", *SHORT)
    data = StoredData(tmp_path / "one")
    config = ImitateConfig(env=data_env(data))
    with pytest.warns(UserWarning, match="has one episode: none is held out"):
        SequenceSource(config, data)
    SequenceSource(replace(config, imitation=ImitationConfig(validation_share=0.0)), data)


def test_links_that_are_scored_and_learned_from_are_said(tmp_path: Path) -> None:
    keys = ("--no-tensorboard", "--epochs", 1, "--set", *SMALL)
    for split, said in (("train", False), ("validation", True), ("test", True)):
        folder, out = tmp_path / split, tmp_path / f"of-{split}"
        _collect(folder, "--episodes", 2, "--split", split, "--set", *SHORT)
        code, err = _run("imitate", folder, "--out", out, *keys)
        assert code == 0, err
        line = f"{folder} has the {split} split: scores on it are of links that it learned from"
        assert (line in err) == said


def test_labels_are_the_environments_and_actions_were_taken(oracle: Path) -> None:
    data = StoredData(oracle)
    assert len(data.manifest.shards) == 4
    assert data.steps.tolist() == [60] * 12
    config = replace(data_env(data), stagger=False)
    env = LinkVectorEnv(3, config, seed=0, autoreset=False)
    different = 0
    for first in range(0, 12, 3):
        observation, info = env.reset()
        kept = [_steps(data, first + n) for n in range(3)]
        for t in range(60):
            for n in range(3):
                np.testing.assert_array_equal(kept[n]["observation"][t], observation[n])
                assert kept[n]["expert_action"][t] == info["expert_action"][n]
            taken = np.array([kept[n]["action"][t] for n in range(3)])
            different += int((taken != info["expert_action"]).sum())
            observation, reward, _, _, info = env.step(taken)
            np.testing.assert_array_equal(
                [kept[n]["reward"][t] for n in range(3)], reward.astype(np.float32)
            )
    assert 10 < different < 200  # a tenth of the 720 steps, less those drawn alike


def _steps(data: StoredData, episode: int) -> dict[str, list[Any]]:
    batch = data.read_steps(int(data.shard[episode]))
    first = int(data.first_row[episode])
    steps: dict[str, list[Any]] = batch.slice(first, int(data.steps[episode])).to_pydict()
    return steps


def test_the_same_seed_writes_the_same_bytes(oracle: Path, tmp_path: Path) -> None:
    _collect(tmp_path / "again", *EPISODES)
    names = sorted(path.name for path in oracle.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (oracle / name).read_bytes(), name
    other = _collect(tmp_path / "other", "--seed", 1, *EPISODES)
    assert not np.array_equal(other.episode(0).observations, StoredData(oracle).episode(0)[0])


def test_steps_are_whole_episodes(tmp_path: Path) -> None:
    data = _collect(
        tmp_path / "d", "--steps", 130, "--set", *SHORT, "env.interval_rtts=1", scheme="cubic"
    )
    assert data.manifest.steps >= 130
    assert data.manifest.steps - data.steps[-1] < 130
    assert data.manifest.origin.scheme == "cubic"
    last = data.read_steps(len(data.manifest.shards) - 1)
    assert last["truncated"].to_pylist()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_collect_is_no_data_set(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "d"
    amount = ("--steps", 100_000_000, "--num-envs", 8, "--shard-steps", 1000)
    process = _start("collect", "oracle", "--out", out, *amount, "--set", *SHORT)
    _wait(process, lambda: len(list(out.glob("steps-*.arrow"))) >= 3, "three shards")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "stopped; nothing was kept" in err
        assert not out.exists()
        return
    for words in (("imitate", out), ("collect", "oracle", "--out", out)):
        _refused("unfinished", *words)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("oracle", "--shard-steps", 700, "--num-envs", 4, "--set", *SHORT)
    process = _start("collect", "--out", tmp_path / "d", *words, before=LITTLE_DISK)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cannot write" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "d").exists()


def test_it_learns_and_a_resume_is_bit_identical(oracle: Path, tmp_path: Path) -> None:
    words = ("--set", *SMALL, "imitation.lr=0.01")
    whole = _imitate(oracle, tmp_path / "whole", "--epochs", 8, *words)
    metrics = rows(tmp_path / "whole")
    assert metrics[-1]["validation_accuracy"] > metrics[0]["validation_accuracy"] - 0.01
    assert metrics[-1]["imitation_accuracy"] > 0.85
    assert metrics[-1]["imitation_loss"] < 0.6 * metrics[0]["imitation_loss"]
    assert metrics[-1]["steps"] == 8 * 11 * 60  # one episode is held out
    policy = NumpyPolicy.load(tmp_path / "whole" / "policy.safetensors")
    assert policy.notes["scheme"] == "oracle"

    _imitate(oracle, tmp_path / "cut", "--epochs", 3, *words)
    again = ("imitate", "--resume", "--out", tmp_path / "cut")
    _refused("has done 3 of 3 epochs already; go on with --epochs N", *again)
    assert _run(*again, "--epochs", 8)[0] == 0
    same(whole["learner"], saved(tmp_path / "cut")["learner"])
    assert updates(tmp_path / "cut") == list(range(1, 9))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_goes_on(oracle: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    process = _start("imitate", oracle, "--out", out, *ENDLESS)
    _wait(process, lambda: len(rows(out)) >= 3, "it trains")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert ("Go on with: distrlcc imitate --resume" in err) == (number == signal.SIGINT)
    done = int(saved(out)["counters"]["update"])
    _imitate(oracle, out, "--resume", "--epochs", done + 2)
    assert saved(out)["counters"]["update"] == done + 2
    assert updates(out) == list(range(1, done + 3))


def test_a_run_goes_on_with_its_own_data_only(oracle: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "run", tmp_path / "other"
    _imitate(oracle, out, "--epochs", 1, "--set", *SMALL)
    _collect(other, "--episodes", 2, "--set", *SHORT)
    _refused("data_digest", "imitate", other, "--resume", "--epochs", 2, "--out", out)
    moved = oracle.rename(tmp_path / "moved")
    try:
        _refused("no data set at", "imitate", "--resume", "--epochs", 2, "--out", out)
        _imitate(moved, out, "--resume", "--epochs", 2)
    finally:
        moved.rename(oracle)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_two_ranks_learn_what_one_does(oracle: Path, tmp_path: Path, kind: str) -> None:
    """99 sequences, some shorter; the last minibatch of the second rank is empty."""
    odd = f"imitation.sequence_length=7 imitation.minibatch_size=98 network.kind={kind}"
    keys = ("--epochs", 3, "--set", *SMALL[:3], *odd.split())
    _imitate(oracle, tmp_path / "one", *keys)
    _imitate(oracle, tmp_path / "two", "--processes", 2, *keys)
    one, two = (tmp_path / name for name in ("one", "two"))
    a, b = (saved(out)["learner"]["model"] for out in (one, two))
    np.testing.assert_allclose(a["parameters"], b["parameters"], atol=1e-5)
    np.testing.assert_allclose(a["normalizer"]["mean"], b["normalizer"]["mean"], rtol=1e-12)
    for line, other in zip(rows(one), rows(two), strict=True):
        for key in ("imitation_loss", "validation_loss", "validation_accuracy", "steps"):
            assert line[key] == pytest.approx(other[key], rel=1e-4), key


@pytest.mark.long
def test_a_rank_that_is_killed_ends_all_and_a_resume_goes_on(oracle: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = _start("imitate", oracle, "--out", out, "--processes", 2, *ENDLESS)
    _wait(process, lambda: len(rows(out)) > 2, "it trains")
    os.kill(rank_processes(process.pid)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert re.search("rank 1 .*SIGKILL", err.splitlines()[-1])
    epochs = len(rows(out)) + 2
    _imitate(oracle, out, "--resume", "--processes", 2, "--epochs", epochs)
    assert updates(out) == list(range(1, epochs + 1))


def test_two_ranks_learn_gails_reward_from_a_data_set_and_go_on(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    small = ("--steps", 2000, "--num-envs", 16, "--set", "env.episode_s=0.5")
    _collect(data, "--disturb", 0, *small)
    train = ("train", "--no-tensorboard", "--out", run)
    demonstrations = f"gail.demonstrations={data}"
    # Of another environment, or of random actions, it cannot be.
    refused = (*train, "gail", "--set", *GAIL.split())
    line = "env.step_ms is 20.0, the data set was collected with 10.0"
    _refused(line, *refused, demonstrations, "env.step_ms=20")
    _collect(tmp_path / "wild", *small)
    line = "10% of its steps took a random action"
    _refused(line, *refused, f"gail.demonstrations={tmp_path / 'wild'}")
    assert _run(*train, "gail", "--processes", 2, "--set", demonstrations, *GAIL.split())[0] == 0
    again = (*train, "--resume", "--set")
    assert _run(*again, "total_steps=768")[0] == 0
    assert [row["steps"] for row in rows(run)] == [128.0 * k for k in range(1, 7)]
    assert all(0.0 <= row["gail_accuracy"] <= 1.0 for row in rows(run))
    # The newest weights are the policy, whatever their reward.
    assert NumpyPolicy.load(run / "policy.safetensors").notes["update"] == 6
    (data / "manifest.json").unlink()
    _refused("is an unfinished data set", *again, "total_steps=1024")


SECOND = EnvConfig(suites=("random", "cellular"), episode_s=1.0)


def _rounds(schemes: str) -> list[Episode]:
    config = CollectConfig(schemes, steps=0, episodes=16, num_envs=8, seed=3, env=SECOND)
    rounds = ExpertRounds(config)
    return [episode for _ in range(2) for episode in rounds.run()]


def test_each_link_has_the_scheme_with_the_greatest_return() -> None:
    alone = [_rounds("cubic"), _rounds("vegas")]
    best = _rounds("cubic, vegas")
    winners = set()
    for chosen, *asked in zip(best, *alone, strict=True):
        assert len({episode.link for episode in (chosen, *asked)}) == 1
        returns = [episode.scores["return"] for episode in asked]
        winner = int(np.argmax(returns))
        winners.add(winner)
        assert chosen.scores["return"] == max(returns)
        np.testing.assert_array_equal(chosen.observations, asked[winner].observations)
        np.testing.assert_array_equal(chosen.expert_actions, asked[winner].expert_actions)
    assert winners == {0, 1}
    with pytest.raises(ConfigError, match="nope"):
        _rounds("cubic,nope")


def test_the_page_explains_every_column() -> None:
    spaces = Spaces("toy", 3, "toy", "discrete", 4)
    for schema in (step_schema(spaces), episode_schema(spaces)):
        assert [name for name in schema.names if f"`{name}`" not in PAGE] == []
