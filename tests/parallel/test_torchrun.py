"""torchrun with an agent on each of two hosts: all ranks train one run, and start again as one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrlcc.runs.checkpoint import load_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.net]

UPDATES, UPDATE = 40, 4 * 16
SMALL = (
    "num_envs=4", "checkpoint_every=5", "held_out.every=1000", "held_out.links=2",
    "held_out.seconds=0.3", "env.episode_s=0.5", "network.hidden=[8]", "ppo.rollout_length=16",
    "ppo.minibatch_size=64", "distributed.straggler_share=0", f"total_steps={UPDATES * UPDATE}",
)  # fmt: skip


def _rows(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


def test_two_agents_train_one_run_and_start_it_again(
    make_hosts: Callable[[int], Any], tmp_path: Path, conftest: Any
) -> None:
    hosts, out = make_hosts(2), tmp_path / "run"
    agents = [
        hosts.start(
            host, "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1",
            "--monitor-interval", "0.1", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{hosts.address(0)}:29400",
            # Hosts here share a name, by which torchrun else finds who serves and where.
            "--local-addr", hosts.address(host), "--rdzv-conf", f"is_host={int(host == 0)}",
            "-m", "distrlcc", "train", "quickstart", "--out", str(out), "--no-tensorboard",
            "--debug", "--set", *SMALL, module="torch.distributed.run",
        )
        for host in range(2)
    ]  # fmt: skip
    conftest.wait_until(lambda: len(_rows(out)) >= 8, 60, "training begins")
    (rank,) = conftest.descendants(agents[1].pid)
    os.kill(rank, signal.SIGKILL)
    for agent in agents:
        assert agent.wait(60) == 0, hosts.log(agent)
    # --debug compared all weights after every update: that they end is that they are equal.
    rows = _rows(out)
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
    assert [row["steps"] for row in rows] == [UPDATE * row["update"] for row in rows]
    assert {row["ranks"] for row in rows} == {2.0}
    counters = load_checkpoint(out / "checkpoints" / "latest.safetensors")["counters"]
    assert (counters["update"], counters["steps"]) == (UPDATES, UPDATES * UPDATE)
    assert len(json.loads((out / "versions.json").read_text())["resumed"]) == 1
    said = "".join(map(hosts.log, agents)).splitlines()
    assert sum(line.startswith("policy: ") for line in said) == 1
