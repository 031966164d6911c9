"""Three hosts train one policy while processes are killed and frozen and cables are pulled."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distrlcc.parallel.launcher import Launcher
from distrlcc.policy.policy_file import load_policy
from distrlcc.runs.options import RankSpec
from tests.hosts import rank_processes, wait_until
from tests.parallel import group_targets
from tests.parallel.commands import rows

pytestmark = [pytest.mark.net, pytest.mark.timeout(400)]

ENVS, ROWS, CHECKPOINT = 24, 16, 20
SMALL = f"""num_envs={ENVS} ppo.rollout_length={ROWS} ppo.minibatch_size=96 network.hidden=[8]
    env.suites=["random"] env.suite_weights=[] total_steps=1000000000 held_out.every=40
    held_out.links=4 held_out.seconds=1 checkpoint_every={CHECKPOINT} max_seconds=0
    distributed.straggler_share=0""".split()
NODE = ["node", "--topology", "decentralized", "--no-tensorboard", "--node-num"]
NOTICE_SECONDS = 30.0


def _start(hosts: Any, folder: Path, *words: str) -> list[Any]:
    started = []
    for host in range(3):
        where = ("--node-index", str(host), "--ip", hosts.address(0))
        out = ("--out", str(folder / f"out{host}"), "--debug", *words, "quickstart")
        started.append(hosts.start(host, *NODE, "3", *where, *out, "--set", *SMALL))
    return started


def _rows(folder: Path) -> list[dict[str, Any]]:
    """Return what all that were rank 0 logged, in order of updates."""
    found = [row for out in sorted(folder.glob("out*")) for row in rows(out)]
    return sorted(found, key=lambda row: int(row["update"]))


def _events(folder: Path) -> list[str]:
    return [event for row in _rows(folder) for event in row.get("events", [])]


def _check_counters(folder: Path) -> None:
    """Every update was counted once, with the samples of those that had a rollout.

    Where folders are not shared, the next rank 0 writes the rows since the newest checkpoint, too.
    Here rank 1 takes over from rank 0, which leads again when it is back.
    """
    every = _rows(folder)
    found = list({row["update"]: row for row in every}.values())
    assert len(every) <= len(found) + 2 * CHECKPOINT
    for row, other in pairwise(every):
        if row["update"] == other["update"]:
            assert all(row[name] == other[name] for name in ("steps", "ranks"))
    assert [row["update"] for row in found] == list(range(1, len(found) + 1))
    share = ENVS // 3 * ROWS
    for before, after in pairwise(found):
        learned = (after["steps"] - before["steps"]) / share
        joined = sum(event.count("rank ") for event in after.get("events", []) if "join" in event)
        assert learned == after["ranks"] - joined, after


def test_three_hosts_survive_a_series_of_faults(
    make_hosts: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=3")
    hosts = make_hosts(3)
    dice = random.Random(7)
    # It is ended by a signal: however long the faults took, they fell into the training.
    processes = _start(hosts, tmp_path, "--restarts", "3")

    def rank_of(host: int) -> int:
        return int(rank_processes(processes[host].pid)[-1])

    def told(event: str) -> None:
        seconds = NOTICE_SECONDS if event.startswith("gone") else 60
        wait_until(lambda: any(event in line for line in _events(tmp_path)), seconds, event)

    def fault(slot: int, begin: Callable[[], object], end: Callable[[], object]) -> None:
        time.sleep(dice.uniform(0.5, 3.0))
        begin()
        told(f"gone: rank {slot}")
        time.sleep(dice.uniform(0.5, 2.0))
        end()
        told(f"joined: rank {slot}")

    wait_until(lambda: len(_rows(tmp_path)) > 5, 90, "training begins")
    fault(1, lambda: os.kill(rank_of(1), signal.SIGKILL), lambda: None)
    frozen = rank_of(0)  # it leads: another must take over
    fault(0, lambda: os.kill(frozen, signal.SIGSTOP), lambda: os.kill(frozen, signal.SIGCONT))
    fault(2, lambda: hosts.cut(2), lambda: hosts.mend(2))

    # The last fault has a while to show what it has done.
    after = _rows(tmp_path)[-1]["seconds"] + 5.0
    wait_until(lambda: _rows(tmp_path)[-1]["seconds"] >= after, 120, "training goes on")
    processes[0].send_signal(signal.SIGTERM)
    for process, code in zip(processes, (143, 0, 0), strict=True):
        assert process.wait(60) == code, hosts.log(process)
    # --debug compared all weights after every update: that they end is that they are equal.
    _check_counters(tmp_path)
    last = _rows(tmp_path)[-1]
    assert last["ranks"] == 3.0
    assert load_policy(tmp_path / "out0" / "policy.safetensors").arrays
    assert "killed by SIGKILL; starting it again" in hosts.log(processes[1])


@pytest.mark.long
def test_a_rank_that_froze_between_two_exchanges_joins_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=2.5")
    specs = [RankSpec("127.0.0.1", 0, slot, 3) for slot in range(3)]
    launcher = Launcher(group_targets.freeze_between_collectives, 5.0, specs)
    results = launcher.run().results
    for slot in (0, 1):
        stalls = [gap for gap in results[slot] if gap > 2.0]
        assert len(stalls) == 1  # until its silence was noticed, and not again when it came back
        assert stalls[0] < 5.0
    assert len(results[2]) > 11


@pytest.mark.long
def test_without_elastic_a_cut_host_ends_all(
    make_hosts: Callable[[int], Any], tmp_path: Path
) -> None:
    hosts = make_hosts(3)
    processes = _start(hosts, tmp_path, "--no-elastic")
    wait_until(lambda: len(_rows(tmp_path)) > 25, 90, "training begins")
    hosts.cut(2)
    for process in processes[:2]:
        assert process.wait(30) == 3
        lines = [line for line in hosts.log(process).splitlines() if "error" in line]
        assert len(lines) == 1
        assert "rank 2" in lines[0]
        assert "10.77.0.3" in lines[0]
    # The cut host's own last word comes when it has given up on the master.
    assert processes[2].wait(120) == 3
    assert "master" in hosts.log(processes[2])
    # Another number of processes goes on from the checkpoint.
    total = f"total_steps={int(_rows(tmp_path)[-1]['steps']) + 4000}"
    words = ("--resume", "--out", str(tmp_path / "out0"), "--no-tensorboard")
    resumed = hosts.start(0, "train", *words, "--set", total, "max_seconds=0")
    assert resumed.wait(90) == 0, hosts.log(resumed)
