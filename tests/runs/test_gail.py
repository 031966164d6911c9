"""GAIL end to end: an expert's trajectories, two processes that learn from them, resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.policy.policy_file import load_policy
from tests.parallel.commands import rows

SMALL = """num_envs=8 ppo.rollout_length=16 ppo.minibatch_size=64 network.hidden=[8]
    env.episode_s=0.5 held_out.every=2 held_out.links=4 held_out.seconds=0.2
    total_steps=512 distributed.sync_check_every=1 distributed.straggler_share=0"""


@pytest.mark.slow
def test_two_processes_imitate_an_expert_and_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    words = ["--steps", "2000", "--num-envs", "16", "--set", "env.episode_s=0.5"]
    assert main(["collect", "--scheme", "oracle", "--out", str(data), *words]) == 0
    train = ["train", "gail", "--processes", "2", "--no-tensorboard", "--out", str(run)]
    assert main([*train, "--set", f"gail.demonstrations={data}", *SMALL.split()]) == 0
    more = ["train", "--resume", "--out", str(run), "--no-tensorboard"]
    assert main([*more, "--set", "total_steps=768"]) == 0
    assert [row["steps"] for row in rows(run)] == [128.0 * k for k in range(1, 7)]
    assert all(0.0 <= row["gail_accuracy"] <= 1.0 for row in rows(run))
    # The newest weights are the policy, whatever their reward.
    assert load_policy(run / "policy.safetensors").notes["update"] == 6
    (data / "manifest.json").unlink()
    capsys.readouterr()
    assert main([*more, "--set", "total_steps=1024"]) == 2
    assert "is an unfinished data set" in capsys.readouterr().err
