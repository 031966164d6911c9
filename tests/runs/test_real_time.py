"""Runs on emulated links: real packets, resumed, fine-tuned, marked when late."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import KernelError
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.ppo import PPO
from distrlcc.net.flow_record import MOST_LATE
from distrlcc.net.kernel.tcp_flow import kernel_controls
from distrlcc.net.worlds.kernel_world import require_world
from distrlcc.policy.policy_file import PolicyFile, load_policy, save_policy
from distrlcc.recipes.registry import recipe
from distrlcc.runs.source import policy_spec
from tests.hosts import wait_until
from tests.parallel.commands import Command, rows, saved, settings, updates

pytestmark = pytest.mark.net

SMALL = """num_envs=4 checkpoint_every=2 held_out.every=2 held_out.links=4 held_out.seconds=0.3
    env.episode_s=0.3 network.hidden=[16] env.suites=["indigo/3"] env.suite_weights=[]
    total_steps=512 distributed.straggler_share=0"""
OF_PPO = f"{SMALL} ppo.rollout_length=32 ppo.minibatch_size=64".split()
OF_DAGGER = f"{SMALL} dagger.rollout_length=32 dagger.minibatch_size=64 dagger.num_epochs=2".split()


def _run(*words: str) -> str:
    """Run a command; return what it said of its state."""
    command = [sys.executable, "-m", "distrlcc", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _train(out: Path, *words: str) -> str:
    return _run("train", "--out", str(out), "--no-tensorboard", *words)


def test_ppo_trains_in_real_time_goes_on_and_is_fine_tuned(tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = _train(run, "quickstart", "--world", "emulated", "--set", *OF_PPO)
    assert 'world = "emulated"' in (run / "config.toml").read_text()
    lines = rows(run)
    assert [row["steps"] for row in lines] == [128, 256, 384, 512]
    # 32 steps of 10 ms, four environments at once: no faster than real time.
    assert all(row["steps_per_second"] < 440 for row in lines)  # some after a pause are quick
    assert all(0.0 <= row["late_steps"] <= 1.0 for row in lines)
    assert all(row["episodes"] > 0 and row["utilisation"] > 0.2 for row in lines)
    late = any(row["late_steps"] > MOST_LATE for row in lines)
    assert said.count("steps were late") == late

    _train(run, "--resume", "--set", "total_steps=768")
    assert updates(run) == [1, 2, 3, 4, 5, 6]

    policy = run / "policy.safetensors"
    tuned = tmp_path / "tuned"
    words = (
        "--start-from",
        str(policy),
        "--set",
        *settings(*OF_PPO, "ppo.lr=1e-9", "total_steps=128"),
    )
    _train(tuned, "quickstart", *words)
    before, after = (load_policy(path / "policy.safetensors").arrays for path in (run, tuned))
    for name in before.keys() - {name for name in before if name.startswith("normalizer")}:
        np.testing.assert_allclose(before[name], after[name], atol=1e-6, err_msg=name)
    policy.unlink()
    _train(tuned, "--resume", "--set", "total_steps=256")


def test_ppo_trains_on_the_kernels_tcp(tmp_path: Path) -> None:
    try:
        require_world(4)
    except KernelError as error:
        pytest.skip(str(error))
    words = ("train", "quickstart", "--world", "kernel", "--out", str(tmp_path / "run"))
    few = settings(*OF_PPO, "total_steps=256", "held_out.every=99")
    assert main([*words, "--no-tensorboard", "--set", *few]) == 0
    lines = rows(tmp_path / "run")
    assert [row["steps"] for row in lines] == [128, 256]
    assert all(row["episodes"] > 0 and row["utilisation"] > 0.1 for row in lines)
    assert load_policy(tmp_path / "run" / "policy.safetensors").spec.action_size == 6
    # Of the processes that have ended nothing is registered; other tests' may live.
    holders = [control[2:] for control in kernel_controls() if control[2:].isdigit()]
    assert all(Path(f"/proc/{holder}").exists() for holder in holders)


def test_updates_whose_steps_were_late_are_refused_and_named_each_time(tmp_path: Path) -> None:
    """The machine is busy now and then: the trainer gets a ninth of its time."""
    out = tmp_path / "run"
    words = ("train", "--out", str(out), "--no-tensorboard", "quickstart", "--world", "emulated")
    # A step is late by a quarter of itself: 20 ms, as other tests take the cores for less.
    steps = ("env.step_ms=80", "env.episode_s=1.6", "ppo.rollout_length=8")
    many = settings(*OF_PPO, "num_envs=1", *steps, "total_steps=1000000", "held_out.every=999")
    with Command(tmp_path, "-m", "distrlcc", *words, "--set", *many) as run:

        def learned(wanted: bool, count: int) -> bool:
            assert run.process.poll() is None, run.said
            return sum(("policy_loss" in row) == wanted for row in rows(out)) >= count

        wait_until(lambda: learned(True, 2), 90.0, "updates in time")
        busy = monotonic() + 60.0
        while not learned(False, 2):
            assert monotonic() < busy
            for number, seconds in ((signal.SIGSTOP, 0.16), (signal.SIGCONT, 0.02)):
                run.process.send_signal(number)
                sleep(seconds)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(30.0) == 128 + signal.SIGINT
    for row in rows(out):
        late = row["late_steps"] > 0.3
        assert ("policy_loss" in row, row["late_batches"]) == (not late, float(late))
        says = (
            f"refused: {row['late_steps']:.0%} of the steps of the update were late (more than 30%"
        )
        told = [line for line in row.get("events", []) if line.startswith(says)]
        assert len(told) == late
        assert any(told[0] in line for line in run.said) if told else True
    # They count as updates, with their steps.
    counters = saved(out)["counters"]
    assert counters["steps"] == 8 * counters["update"] == rows(out)[-1]["steps"]


@pytest.mark.long
def test_two_processes_train_in_real_time(tmp_path: Path) -> None:
    words = (
        "--world",
        "emulated",
        "--processes",
        "2",
        "--set",
        *settings(*OF_PPO, "total_steps=256"),
    )
    _train(tmp_path / "run", "quickstart", *words)
    lines = rows(tmp_path / "run")
    assert [(row["steps"], row["ranks"]) for row in lines] == [(128, 2.0), (256, 2.0)]
    assert all("late_steps" in row for row in lines)


@pytest.mark.long
def test_workers_act_for_a_trainer_in_real_time(tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text("nodes = [[3, 7]]")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    node = ("node", "--node-index", "0", "--node-num", "1", "--ip", "127.0.0.1", "--port", port)
    places = ("--nodes", str(tmp_path / "nodes.toml"), "--out", str(tmp_path / "run"))
    _run(*node, *places, "imitation", "--set", "env.world=emulated", *OF_DAGGER)
    lines = rows(tmp_path / "run")
    assert lines[-1]["steps"] >= 512
    assert lines[-1]["workers"] == 2.0
    assert lines[-1]["imitation_loss"] > 0
    assert "late_steps" in lines[-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("quickstart", "--start-from", "no.safetensors"), "no policy file at no.safetensors"),
        (
            ("quickstart", "--start-from", "small.safetensors"),
            "hidden [16]; expected hidden [64, 64]",
        ),
        (
            ("--resume", "--start-from", "small.safetensors"),
            "--start-from and --resume are not allowed with each other",
        ),
        (("quickstart", "--world", "real"), "invalid choice: 'real'"),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = override(recipe("quickstart"), ["network.hidden=[16]"])
    spec = policy_spec(config, LinkVectorEnv(1, config.env))
    assert config.ppo is not None
    arrays = PPO(config.ppo, spec, 0).weights().arrays
    save_policy("small.safetensors", PolicyFile(spec, arrays))
    assert main(["train", *words, "--out", "run"]) == 2
    line = capsys.readouterr().err.strip()
    assert says in line
    assert "\n" not in line
    assert not Path("run").exists()


def test_late_steps_of_ranks_add_up() -> None:
    assert "late_steps" not in CollectStats(steps=100.0).metrics()
    stats = CollectStats(steps=100.0, timed_steps=100.0, late_steps=2.0)
    stats.merge(CollectStats(timed_steps=50.0, late_steps=4.0))
    assert stats.metrics()["late_steps"] == pytest.approx(6 / 150)
