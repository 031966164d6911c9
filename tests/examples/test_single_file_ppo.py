"""A PPO that knows Gymnasium alone trains on our links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PPO = Path(__file__).parents[2] / "examples" / "single_file_ppo.py"


def test_rewards_rise() -> None:
    words = ("--num-envs", "64", "--total-timesteps", str(64 * 64 * 8))
    command = [sys.executable, str(PPO), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rewards = [float(found) for found in re.findall(r"reward (\S+)", done.stdout)]
    assert len(rewards) == 8
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.1
