"""The benchmark of random faults: its schedule, what it takes for a loss, and short sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import COMMANDS
from benchmarks.chaos_run import MARK, TOPOLOGIES, ChaosRun
from benchmarks.fault import draw, promise
from benchmarks.stranger import scan
from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.runs.checkpoint import save_checkpoint
from tests.hosts import wait_until
from tests.support.namespaces import Hosts
from tests.support.verdict import file_faults, left_files, listening, log_faults, row_faults


def test_a_seed_draws_the_same_faults_of_every_kind() -> None:
    for topology in TOPOLOGIES:
        plan = draw(Random(7), topology, 200)
        assert plan == draw(Random(7), topology, 200)
        assert plan != draw(Random(8), topology, 200)
        assert 20 < sum(fault.also is not None for fault in plan) < 80
        assert {"kill", "freeze", "signal", "full disk"} <= {fault.kind for fault in plan}
        for fault in plan:  # of two as well none that would have to end, and with no code
            expected = promise(topology, fault)
            assert bool(expected.ends) >= expected.must, fault


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            '{"update":1,"a":1}\n{"update":2,"a":2}\n{"update":2,"score":3}\n{"update":3,"a":1}\n',
            "",
        ),
        ('{"update":1}\n{"update":3}\n', "rows 2 to 2 are missing before row 3"),
        ('{"update":2}\n', "rows 1 to 1 are missing"),
        ('{"update":1,"a":1}\n{"update":1,"a":1}\n', "row 1 is there twice"),
        ('{"update":1,"a":1}\n{"update":1,"a":2,"b":1}\n', "row 1 is there twice"),
        ('{"update":1}\n{"update":2}\n{"update":1,"b":1}\n', "row 1 stands behind row 2"),
        ('{"update":1}\n{"upd\n{"update":2}\n', "line 2 is no row"),
        ('{"update":1}\n{"upd', "the last row is torn"),
    ],
)
def test_rows_that_are_lost_or_double_are_told(tmp_path: Path, lines: str, says: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines)
    found = row_faults(path)
    assert len(found) == bool(says)
    assert not says or says in found[0]
    assert row_faults(path, whole=False) == ([] if "torn" in says else found)


def test_checkpoints_and_files_that_are_wrong_are_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    latest = tmp_path / "checkpoints" / "latest.safetensors"

    def saved(update: int, weight: float, newest: int) -> str:
        weights = {"model": {"w": np.array([1.0, weight])}}
        save_checkpoint(latest, {"counters": {"update": update}, "learner": weights})
        return " ".join(file_faults(tmp_path, newest, saved=True))

    assert saved(5, 1.0, 5) == "there is no policy"
    assert "is of update 4, the newest row of 5" in saved(4, 1.0, 5)
    assert "is of update 6" in saved(6, 1.0, 5)
    assert "not finite in 1 arrays" in saved(5, np.nan, 5)
    latest.write_bytes(latest.read_bytes()[:-7])
    assert "latest.safetensors" in file_faults(tmp_path, 5)[0]
    assert not left_files(tmp_path, tmp_path, saved=True)
    (tmp_path / "checkpoints" / ".latest.tmp").touch()
    assert len(left_files(tmp_path, tmp_path, saved=True)) == 1
    assert len(log_faults("fine\nrank 1: Traceback (most recent call last):\nfine\n")) == 1


@pytest.mark.net
def test_a_process_that_is_left_is_found_and_a_lossy_host_loses(tmp_path: Path) -> None:
    try:
        hosts = Hosts(2)
    except ConfigError as error:
        pytest.skip(str(error))
    with hosts, ExitStack() as stack:
        run = ChaosRun("single", hosts, tmp_path, tmp_path / "run")
        code = """import socket, time
with socket.create_server(("0.0.0.0", 4000)) as server:
    while True: server.accept()"""
        words = hosts.command(0, sys.executable, "-c", code)
        left = subprocess.Popen(words, env=os.environ | {MARK: str(tmp_path)})
        stack.callback(left.wait, 10)
        stack.callback(run.kill)
        wait_until(lambda: ("0.0.0.0", 4000) in listening(left.pid), 20, "it listens")
        assert [process.pid for process in run.processes()] == [left.pid]
        stranger, there = f"/run/netns/{hosts.names[1]}", [(hosts.address(0), 4000)]
        assert scan(stranger, there) == 5
        hosts.lose(0, 1.0)
        assert scan(stranger, there) == 0
        hosts.lose(0, 0.0)
        assert scan(stranger, there) == 5
        run.kill()
        assert left.wait(10) == -9
        assert not run.processes()


def _play(tmp_path: Path, words: str) -> list[dict[str, Any]]:
    """Return what came of each fault of a session."""
    target = tmp_path / "told.json"
    words = f"chaos --minutes 0 --json {target} {words}"
    try:
        code = main(words.split(), "bench", COMMANDS, "benchmarks.bench_")
    except ConfigError as error:
        pytest.skip(str(error))
    outcomes: list[dict[str, Any]] = json.loads(target.read_text())["outcomes"]
    assert code == 0, [each for each in outcomes if each["failures"]]
    return outcomes


@pytest.mark.long
@pytest.mark.net
def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    outcomes = _play(tmp_path, "--only single --seed 6 --faults 1")
    assert [each["kind"] for each in outcomes] == ["started", "kill", "resumed", "signal"]
    assert [each["codes"] for each in outcomes] == [{}, {"0": -9}, {}, {"0": 130}]
    assert not list(Path("/run/netns").glob(f"dl{os.getpid()}-*"))


@pytest.mark.long
@pytest.mark.net
@pytest.mark.parametrize(
    ("topology", "seed"), [("ranks", 37), ("nodes", 32), ("actors", 59), ("ray-ranks", 3)]
)
def test_a_run_of_several_survives(tmp_path: Path, topology: str, seed: int) -> None:
    if topology.startswith("ray"):
        pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    outcomes = _play(tmp_path, f"--only {topology} --seed {seed} --faults 3")
    assert len(outcomes) >= 5
