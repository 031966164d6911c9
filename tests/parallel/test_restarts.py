"""Runs whose ranks are killed, frozen and started again, by distrlcc's launcher and by torchrun."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrlcc.policy.policy_file import load_policy
from distrlcc.processes import descendants
from distrlcc.runs.checkpoint import load_checkpoint
from tests.hosts import rank_processes, wait_until
from tests.parallel.commands import Command, rows, saved, settings, updates
from tests.support.verdict import row_faults

pytestmark = [pytest.mark.timeout(240)]

PPO = """num_envs=4 checkpoint_every=5 held_out.every=1000 held_out.links=2 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[8] ppo.rollout_length=16 ppo.minibatch_size=64
    distributed.straggler_share=0"""
UPDATE = 4 * 16
LONG = f"total_steps={10**9}"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Every 30th update is scored, for about a second; an update takes less than a tenth.
SCORED = 30
SCORES = f"""num_envs=16 ppo.rollout_length=16 ppo.minibatch_size=128 network.hidden=[8]
    max_seconds=600 held_out.every={SCORED} held_out.links=64 held_out.seconds=20
    checkpoint_every=1 distributed.straggler_share=0"""


def _train(out: Path, *words: str) -> list[str]:
    return ["-m", "distrlcc", "train", "quickstart", "--no-tensorboard", "--out", str(out), *words]


def _is_whole(out: Path) -> None:
    assert row_faults(out / "metrics.jsonl") == []


def _freeze_at_a_write(pid: int, out: Path) -> None:
    """Freeze a process while the file that it writes has its temporary name."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(out.rglob("*.tmp")):
            os.kill(pid, signal.SIGSTOP)
            if any(out.rglob("*.tmp")):
                return
            os.kill(pid, signal.SIGCONT)
    pytest.fail("it was never seen to write")


@pytest.mark.long
def test_without_elasticity_a_death_ends_all_or_all_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--processes", "2", "--no-elastic", "--restarts", "1", "--set", *PPO.split(), LONG)
    with Command(tmp_path, *_train(out, *words)) as run:
        # Before the first checkpoint: all begin again, and no update is logged twice.
        run.until_updates(out, 1)
        first, second = rank_processes(run.process.pid)
        os.kill(second, signal.SIGKILL)

        def all_again() -> bool:
            return len(set(rank_processes(run.process.pid)) - {first, second}) == 2

        wait_until(all_again, 30, "all are started again")
        run.until_updates(out, 12)
        os.kill(rank_processes(run.process.pid)[0], signal.SIGKILL)
        assert run.process.wait(30) == 3
        run.nothing_is_left()
        again, *anew, error = [line for line in run.said if line.startswith("distrlcc: ")]
        assert not [line for line in anew if "nothing was saved, and it begins anew" not in line]
        assert f"rank 1 (process {second}) was killed by SIGKILL; starting all again" in again
        assert error.startswith("distrlcc: error: rank 0 (process ")
        _is_whole(out)


@pytest.mark.long
def test_with_elasticity_the_dead_are_started_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--processes", "2", "--restarts", "2", "--set", *PPO.split(), LONG)
    with Command(tmp_path, *_train(out, *words)) as run:
        run.until_updates(out, 7)
        first, second = rank_processes(run.process.pid)
        os.kill(second, signal.SIGKILL)
        wait_until(
            lambda: any("joined" in str(row.get("events")) for row in rows(out)), 40, "rank 1"
        )
        # All at once: no rank holds the weights, so rank 0 begins at the last checkpoint.
        before = len(rows(out))
        pids = rank_processes(run.process.pid)
        assert first in pids
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        wait_until(lambda: len(run.said) >= 2, 20, "the deaths are told")
        time.sleep(1.0)
        run.until_updates(out, before + 20)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(40) == 143
        run.nothing_is_left()
        _is_whole(out)
        counters = saved(out)["counters"]
        assert (counters["update"], counters["steps"]) == (len(rows(out)), rows(out)[-1]["steps"])
        assert any(line.startswith(f"gone: rank 1 (process {second} ") for line in run.said)


@pytest.mark.parametrize(
    "kind", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_should_rank_0_stop_while_it_scores_no_update_is_lost_or_written_twice(
    tmp_path: Path, kind: signal.Signals
) -> None:
    out = tmp_path / "run"

    def scores() -> bool:
        row = rows(out)[-1]
        return row["update"] % SCORED == 0 and "held_out_reward_argmax" not in row

    def grown(update: int) -> None:
        wait_until(lambda: rows(out)[-1]["update"] >= update, 60, f"update {update}")

    with Command(tmp_path, *_train(out, "--processes", "2", "--set", *SCORES.split())) as run:
        run.until_updates(out, 5)
        leader = rank_processes(run.process.pid)[0]
        wait_until(scores, 90, "a scoring")
        os.kill(leader, kind)
        grown(rows(out)[-1]["update"] + 5)  # the other goes on
        if kind == signal.SIGSTOP:
            os.kill(leader, signal.SIGCONT)
            wait_until(lambda: _events(out, "joined: rank 0") == 1, 60, "it is back")
        grown(rows(out)[-1]["update"] + 5)
        run.process.send_signal(signal.SIGINT)
        run.process.wait(60)
    _is_whole(out)
    events = [event for row in rows(out) for event in row.get("events", [])]
    assert sum("gone: rank 0" in event for event in events) == 1
    assert sum("joined: rank 0" in event for event in events) == (kind == signal.SIGSTOP)
    assert 0 < load_policy(out / "policy.safetensors").notes["update"] <= len(rows(out))


@pytest.mark.long
@pytest.mark.parametrize("freezes", [2, 8])
def test_rank_0_freezes_again_and_again_and_each_update_has_its_row(
    tmp_path: Path, freezes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=2")
    out, dice = tmp_path / "run", random.Random(freezes)
    every = ["checkpoint_every=1", "held_out.every=3"]
    words = ("--processes", "3", "--set", *settings(*PPO.split(), *every, LONG))
    with Command(tmp_path, *_train(out, *words)) as run:
        run.until_updates(out, 4)
        leader = rank_processes(run.process.pid)[0]
        for count in range(1, freezes + 1):
            if count % 2:
                _freeze_at_a_write(leader, out)
            else:
                time.sleep(dice.uniform(0.0, 1.0))
                os.kill(leader, signal.SIGSTOP)
            wait_until(lambda n=count: _events(out, "gone: rank 0") == n, 30, "it is gone")
            run.until_updates(out, len(rows(out)) + 3)
            os.kill(leader, signal.SIGCONT)
            wait_until(lambda n=count: _events(out, "joined: rank 0") == n, 30, "it is back")
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(40) == 143
        run.nothing_is_left()
    _is_whole(out)
    for name in ("latest", "previous", "best"):
        load_checkpoint(out / "checkpoints" / f"{name}.safetensors")
    assert saved(out)["counters"]["update"] == len(rows(out))
    assert not list(out.rglob("*.tmp"))


def _events(out: Path, start: str) -> int:
    events = [event for row in rows(out) for event in row.get("events", [])]
    return sum(event.startswith(start) for event in events)


def test_a_leader_that_is_killed_and_its_successor_are_in_the_record(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--processes", "2", "--restarts", "1", "--set", *PPO.split(), LONG)
    with Command(tmp_path, *_train(out, *words)) as run:
        run.until_updates(out, 7)
        os.kill(rank_processes(run.process.pid)[0], signal.SIGKILL)
        wait_until(lambda: _events(out, "joined: rank 0") == 1, 40, "its successor is back")
        assert _events(out, "gone: rank 0") == 1
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(40) == 143
    _is_whole(out)


@pytest.mark.long
@pytest.mark.net
def test_two_agents_of_torchrun_train_one_run_and_start_it_again(
    make_hosts: Callable[[int], Any], tmp_path: Path
) -> None:
    hosts, out, count = make_hosts(2), tmp_path / "run", 40
    words = _train(out, "--debug", "--set", *PPO.split(), f"total_steps={count * UPDATE}")
    rendezvous = f"--rdzv-backend c10d --rdzv-endpoint {hosts.address(0)}:29400"
    agent = f"--nnodes 2 --nproc-per-node 1 --max-restarts 1 --monitor-interval 0.1 {rendezvous}"
    agents = []
    for host in range(2):
        # Hosts here share a name, from which torchrun would else conclude which of them serves.
        here = ("--local-addr", hosts.address(host), "--rdzv-conf", f"is_host={int(host == 0)}")
        line = (*agent.split(), *here, *words)
        agents.append(hosts.start(host, *line, module="torch.distributed.run"))
    wait_until(lambda: len(rows(out)) >= 8, 60, "training begins")
    rank, _tunnel = descendants(agents[1].pid)
    rank.signal(signal.SIGKILL)
    for each in agents:
        assert each.wait(60) == 0, hosts.log(each)
    # --debug compared all weights after every update: that they end is that they are equal.
    assert updates(out) == list(range(1, count + 1))
    assert [row["steps"] for row in rows(out)] == [UPDATE * update for update in updates(out)]
    assert {row["ranks"] for row in rows(out)} == {2.0}
    counters = saved(out)["counters"]
    assert (counters["update"], counters["steps"]) == (count, count * UPDATE)
    assert load_policy(out / "policy.safetensors").notes["steps"] == count * UPDATE
    assert len(json.loads((out / "versions.json").read_text())["resumed"]) == 1
    said = "".join(map(hosts.log, agents)).splitlines()
    for start in ("held-out links: ", "policy: "):
        assert sum(line.startswith(start) for line in said) == 1


def test_where_torchruns_agent_serves_no_store_rank_0_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    out, count = tmp_path / "run", 6
    words = _train(out, "--debug", "--set", *PPO.split(), f"total_steps={count * UPDATE}")
    with Command(tmp_path, *TORCHRUN, *words) as run:
        assert run.process.wait(60) == 0, run.said
        run.nothing_is_left()
    assert updates(out) == list(range(1, count + 1))
    assert {row["ranks"] for row in rows(out)} == {2.0}


def test_torchrun_with_a_bad_config_says_one_line_for_each_rank(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Command(tmp_path, *TORCHRUN, *_train(out, "--set", "ppo.lrr=1")) as run:
        assert run.process.wait(60) != 0
        said = [line for line in run.said if "distrlcc: error: " in line]
        assert 1 <= len(said) <= 2  # torchrun ends the other as soon as one has ended
        assert all("ppo.lr" in line for line in said)
        assert not out.exists()
        run.nothing_is_left()


def test_a_restart_of_torchrun_does_not_go_on_with_a_run_that_was_there(tmp_path: Path) -> None:
    out, again = tmp_path / "run", ("--max-restarts", "1", "--monitor-interval", "0.1")
    words = _train(out, "--set", *PPO.split())
    with Command(tmp_path, *words, f"total_steps={4 * UPDATE}") as run:
        assert run.process.wait(200) == 0, run.said
    with Command(tmp_path, *TORCHRUN, *again, *words, f"total_steps={8 * UPDATE}") as run:
        assert run.process.wait(200) != 0, run.said
        assert sum("already holds a run: add --resume" in line for line in run.said) > 1
    assert updates(out) == [1, 2, 3, 4]
