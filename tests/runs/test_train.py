"""Runs of real processes: killed, interrupted and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.env.observations import OBSERVATIONS, ScaleFreeRecent
from distrlcc.errors import CheckpointError
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import load_policy
from distrlcc.runs.held_out import ACTINGS
from distrlcc.runs.metrics_log import read_metrics
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import check_links
from distrlcc.sim.suites import written
from tests.parallel.commands import Command, saved, updates
from tests.support.verdict import row_faults
from tests.trees import CLOCK, same

SMALL = """num_envs=16 checkpoint_every=7 held_out.every=25 held_out.links=4 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[16]"""
PPO = f"{SMALL} ppo.rollout_length=16 ppo.minibatch_size=64".split()
DAGGER = f"{SMALL} dagger.rollout_length=16 dagger.minibatch_size=256 dagger.num_epochs=2".split()
QUICK = ("quickstart", "--set", *PPO)
UPDATE = 16 * 16
ENDLESS = "total_steps=100_000_000"
KILLED_WHEN_SCORED = """
import os, sys
from distrlcc.cli.main import main
from distrlcc.runs.run_state import RunState
score = RunState.score
RunState.score = lambda state: state.over and os.kill(os.getpid(), 9) or score(state)
main(sys.argv[1:])
"""
CASES: dict[str, tuple[int, list[str]]] = {
    "ppo": (80, [*QUICK]),
    "ppo-lstm": (24, [*QUICK, "network.kind=lstm", "ppo.sequence_length=8"]),
    "ppo-mingru": (
        40,
        [
            *(*QUICK, "network.kind=mingru", "network.post_hidden=8"),
            *("ppo.privileged_critic=true", "ppo.sequence_length=8"),
        ],
    ),
    "dagger": (30, ["imitation", "--set", *DAGGER]),
}
"""Updates and words of runs that are killed."""


def _words(out: Path, *words: str) -> list[str]:
    return ["train", "--out", str(out), "--no-tensorboard", *words]


def _command(out: Path, *words: str) -> list[str]:
    return ["-m", "distrlcc", *_words(out, *words)]


def _train(out: Path, *words: str) -> None:
    assert main(_words(out, *words)) == 0


@pytest.mark.parametrize(
    "case", [c if c == "ppo-lstm" else pytest.param(c, marks=pytest.mark.long) for c in CASES]
)
def test_killed_and_resumed_is_bit_identical(case: str, tmp_path: Path) -> None:
    count, words = CASES[case]
    words = [*words, f"total_steps={count * UPDATE}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _train(whole, *words)
    with Command(tmp_path, *_command(cut, *words)) as run:
        run.until_updates(cut, 10)
        run.process.kill()
        assert run.process.wait(10) == -signal.SIGKILL
    _train(cut, "--resume")
    same(saved(whole), saved(cut), CLOCK)
    assert updates(cut) == list(range(1, count + 1))
    assert row_faults(cut / "metrics.jsonl") == []
    a, b = (NumpyPolicy.load(out / "policy.safetensors") for out in (whole, cut))
    assert a.notes == b.notes


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupt_saves_and_exits_with_its_code(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with Command(tmp_path, *_command(out, *QUICK, ENDLESS)) as run:
        run.until_updates(out, 5)
        # A second process does not train it meanwhile.
        assert main(_words(out, "--resume")) == 2
        assert "trained by another process" in capsys.readouterr().err
        run.process.send_signal(number)
        assert run.process.wait(30) == 128 + number
    done = saved(out)["counters"]["update"]
    assert done >= 5
    assert updates(out) == list(range(1, len(updates(out)) + 1))
    assert NumpyPolicy.load(out / "policy.safetensors").spec.observation == "scale-free"
    assert not list(out.rglob("*.tmp"))
    _train(out, "--resume", "--set", f"total_steps={(done + 2) * UPDATE}")
    assert saved(out)["counters"]["update"] == done + 2


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_nohup_keeps_a_run_whose_terminal_ends(processes: str, tmp_path: Path) -> None:
    out, python = tmp_path / "run", ("nohup", sys.executable)
    words = _command(out, *QUICK, ENDLESS, "--processes", processes)
    with Command(tmp_path, *words, python=python) as run:
        run.until_updates(out, 5)
        os.killpg(run.process.pid, signal.SIGHUP)
        run.until_updates(out, len(updates(out)) + 5)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_run_goes_on_though_nobody_can_read_what_it_says(processes: str, tmp_path: Path) -> None:
    out, lost = tmp_path / "run", os.pipe()
    os.close(lost[0])  # the reader of its results
    words = _command(out, *QUICK, f"total_steps={4 * UPDATE}", "--processes", processes)
    how: dict[str, Any] = {"stdout": lost[1], "timeout": 200}
    how["env"] = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, *words], stderr=full, **how)
    more = [w.replace(str(out), f"{out}-2") for w in words]
    told = subprocess.run([sys.executable, *more], stderr=subprocess.PIPE, text=True, **how)
    assert "Traceback" not in told.stderr
    os.close(lost[1])
    assert done.returncode == (141 if processes == "1" else 0)  # as `head` leaves a command
    assert updates(out)[:4] == [1, 2, 3, 4]
    assert (out / "policy.safetensors").exists()


def test_the_same_seed_learns_the_same_and_another_does_not(tmp_path: Path) -> None:
    parameters = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        _train(tmp_path / name, "--seed", str(seed), *QUICK, f"total_steps={4 * UPDATE}")
        parameters.append(saved(tmp_path / name)["learner"]["model"]["parameters"])
    assert np.array_equal(parameters[0], parameters[1])
    assert not np.array_equal(parameters[0], parameters[2])


def test_a_run_needs_no_writable_home(tmp_path: Path) -> None:
    environment = os.environ | {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/none"}
    command = [sys.executable, *_command(tmp_path / "r", *QUICK, f"total_steps={UPDATE}")]
    subprocess.run(command, timeout=120, check=True, env=environment)


def test_a_run_goes_on_with_the_links_that_it_began_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links, out, digests = tmp_path / "links.toml", tmp_path / "run", []
    for number, rate in enumerate((12.0, 12.0, 3.0), 1):
        links.write_text(f'name = "x"\n[link]\nrate_mbps = {rate}\n')
        digests.append(written([str(links), "random"]))
        words = ["--resume", "--set"] if number > 1 else [*QUICK, f'env.suites=["{links}"]']
        code = main(_words(out, *words, f"total_steps={number * UPDATE}"))
        assert code == (2 if rate == 3.0 else 0)
    assert f"the links of {links} have changed since" in capsys.readouterr().err
    # Other machines have files of their own, and tell the first what is in them.
    assert list(digests[0]) == [f"links of {links}"]
    assert digests[0] == digests[1] != digests[2]


def test_a_resume_that_is_refused_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    def refused(*words: str) -> str:
        capsys.readouterr()
        before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert main(_words(out, *words)) == 2
        assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    _train(out, *QUICK, f"total_steps={3 * UPDATE}")
    assert "has done 768 of 768 steps already" in refused("--resume")
    assert "ppo.lr" in refused("--resume", "--set", "ppo.lr=0.5")
    assert "--resume" in refused("quickstart")
    config = out / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.001", "lr = 0.007"))
    error = refused("--resume", "--set", f"total_steps={9 * UPDATE}")
    assert "ppo.lr" in error
    assert "total_steps" not in error
    for path in (out / "checkpoints").iterdir():
        path.unlink()
    assert "no checkpoint" in refused("--resume")
    out = tmp_path / "timed"
    _train(out, *QUICK, ENDLESS, "max_seconds=0.5")
    for words in (), ("--set", "total_steps=200_000_000"), ("--processes", "2"):
        assert "0.5 s already; go on with --set max_seconds=S" in refused("--resume", *words)


def test_a_resume_reads_start_from_until_there_is_a_checkpoint(tmp_path: Path, capsys: Any) -> None:
    first, out = tmp_path / "first", tmp_path / "run"
    assert main(_words(first, *QUICK, f"total_steps={UPDATE}")) == 0
    assert main(_words(out, *QUICK, f"total_steps={UPDATE}", f"start_from={first}")) == 0
    whole = load_policy(out / "policy.safetensors").arrays
    assert RunDirectory.read_config(out, RunConfig).start_from == ""
    # As if it had been killed before it saved anything.
    shutil.rmtree(out / "checkpoints")
    (out / "checkpoints").mkdir()
    (out / "policy.safetensors").unlink()
    assert RunDirectory.read_config(out, RunConfig).start_from == str(first)
    assert main(_words(out, "--resume")) == 0
    same(load_policy(out / "policy.safetensors").arrays, whole)
    # The same command goes on without it once there is a checkpoint.
    shutil.rmtree(first)
    capsys.readouterr()
    given = (*QUICK, f"total_steps={2 * UPDATE}", f"start_from={first}")
    assert main(_words(out, "--resume", *given)) == 0
    said = capsys.readouterr().err.replace(str(out), "RUN")
    assert "start_from is not read: RUN has a checkpoint, whose weights are newer\n" in said
    assert f"RUN had other settings (old != new): total_steps: {UPDATE} != {2 * UPDATE}\n" in said
    assert RunDirectory.read_config(out, RunConfig).start_from == ""


def test_a_resume_says_what_its_recipe_changes(tmp_path: Path, capsys: Any) -> None:
    words = _words(tmp_path / "run", *QUICK)
    assert main([*words, "max_seconds=0", f"total_steps={UPDATE}"]) == 0
    capsys.readouterr()
    assert main([*words, f"total_steps={2 * UPDATE}", "--resume"]) == 0
    said = f"(old != new): total_steps: {UPDATE} != {2 * UPDATE}; max_seconds: 0.0 != 165.0\n"
    assert said in capsys.readouterr().err


def test_a_run_that_was_killed_in_its_closing_score_is_scored_by_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    once = [word for word in QUICK if not word.startswith("held_out.every")]
    words = _words(out, *once, "held_out.every=2", f"total_steps={3 * UPDATE}")
    killed = [sys.executable, "-c", KILLED_WHEN_SCORED, *words]
    assert subprocess.run(killed, timeout=120, check=False).returncode == -signal.SIGKILL
    assert load_policy(out / "policy.safetensors").notes["steps"] == 2 * UPDATE
    assert main(_words(out, "--resume")) == 0
    notes = load_policy(out / "policy.safetensors").notes
    assert notes["steps"] == 3 * UPDATE
    assert main(_words(out, "--resume")) == 2

    # The closing score has a row, which a run that goes on has not.
    def scored() -> list[int]:
        rows = read_metrics(out / "metrics.jsonl")
        return [row["update"] for row in rows if "held_out_reward_sample" in row]

    assert scored() == [2, 3]
    rows = read_metrics(out / "metrics.jsonl")
    best = max(row.get(f"held_out_reward_{way}", -1e9) for row in rows for way in ACTINGS)
    assert notes["held_out_reward"] == pytest.approx(best)
    assert main(_words(out, "--resume", "--set", f"total_steps={5 * UPDATE}")) == 0
    assert scored() == [2, 4, 5]
    assert not row_faults(out / "metrics.jsonl")


@pytest.mark.parametrize("links", [None, ["suite"], {"suite": 1}])
def test_digests_of_links_that_are_none_are_refused(links: Any) -> None:
    with pytest.raises(CheckpointError, match="does not fit this learner"):
        check_links({}, links)


def test_a_checkpoint_of_another_versions_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, further = tmp_path / "run", ("--resume", "--set", f"total_steps={2 * UPDATE}")
    _train(out, *QUICK, f"total_steps={UPDATE}")
    monkeypatch.setitem(OBSERVATIONS, "scale-free", ScaleFreeRecent)
    assert main(_words(out, *further)) == 2
    assert "the checkpoint does not fit this learner" in capsys.readouterr().err
    monkeypatch.undo()
    _train(out, *further)
