"""What Ray's memory monitor kills is named, with what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from distrlcc.cluster.session import death
from tests.parallel.commands import Command

TOLD = {
    "2.60": (
        "2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
        "10.0.0.7, ID: 51954188f803de24b7cec8702100c0728b) was 4.86GB used / 23.59GB limit "
        "(0.206190)\nOOM kill reason: Memory usage 5242589184B exceeded threshold of 1266263424B"
    ),
    "2.40": (
        "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.7, "
        "ID: 51954188) where the task (actor ID: dae6e5c3, name=RayRank.__init__, pid=1652, memory "
        "used=0.05GB) was running was 4.86GB / 23.59GB (0.206190), which exceeds the threshold"
    ),
}
"""What Ray says, by version."""
NAMED = "killed by Ray's memory monitor on {}: "
REMEDY = (
    " in use; run fewer processes or environments there, or raise RAY_memory_usage_threshold where "
    "Ray starts"
)


@pytest.mark.parametrize("version", TOLD)
def test_rays_words_become_a_line(version: str) -> None:
    line = NAMED.format("10.0.0.7") + "4.86GB of 23.59GB" + REMEDY
    assert death(RuntimeError(TOLD[version])) == line
    assert death(RuntimeError("The actor is unavailable: it was restarted")) != line


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("topology", ["decentralized", "actor-learner"])
def test_a_run_that_is_killed_for_memory_says_so_and_ends(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is so low that the monitor kills whatever starts."""
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    keys = "--no-tensorboard --set num_envs=4 ppo.rollout_length=16 max_seconds=1e9"
    line = f"-m distrlcc train quickstart --engine ray --topology {topology} {keys}"
    out: Any = tmp_path / "run"
    with Command(tmp_path, *shlex.split(line), f"--out={out}") as run:
        assert run.process.wait(300) == 3
        errors = [line for line in run.said if "error" in line]
    assert len(errors) == 1, run.said
    assert NAMED.format("127.0.0.1") in errors[0]
    assert REMEDY in errors[0]
    assert "Traceback" not in "".join(run.said)
