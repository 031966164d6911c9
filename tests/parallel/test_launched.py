"""Ranks that launchers of others have started: read by their names, and in real processes."""

import os
import socket
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from distrlcc.errors import ConfigError
from distrlcc.parallel import launched as launched_module
from distrlcc.parallel.launched import launched
from tests.parallel.commands import rows, updates
from tests.parallel.test_restarts import PPO, UPDATE

FOUR = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
MASTER = {name: FOUR[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
EACH = {
    launcher: {started: "1", local: "1", rank: "1", size: "2"}
    for launcher, rank, size, local, started in launched_module._OTHERS
}


@pytest.mark.parametrize("given", [FOUR, *EACH.values()])
@pytest.mark.parametrize("around", [{}, {name: "7" for name in SRUN}], ids=["alone", "in Slurm"])
def test_a_rank_is_read_by_each_launchers_names(
    given: dict[str, str], around: dict[str, str]
) -> None:
    if around and given in (EACH["srun"], EACH["PMI"]):
        given = around | EACH["PMI"] | EACH["srun"]  # Slurm's own PMI has no rank on the machine
    found = launched(around | given | MASTER)
    assert found is not None
    assert {name: found[name] for name in FOUR} == FOUR
    assert found["LOCAL_RANK"] == ("0" if given == FOUR else "1")


@pytest.mark.parametrize(
    "given",
    [
        {},
        MASTER,
        FOUR | {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # sbatch's own script is no task
        SRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    ],
)
def test_a_process_that_none_started_as_a_rank_trains_alone(given: dict[str, str]) -> None:
    assert launched(given) is None


PARTS = [dict(part) for count in (1, 2, 3) for part in combinations(FOUR.items(), count)]


@pytest.mark.parametrize("given", [*PARTS, *EACH.values()], ids=lambda given: "-".join(given))
def test_a_part_of_them_is_refused(given: dict[str, str]) -> None:
    if not given.keys() - MASTER.keys():
        assert launched(given) is None
        return
    with pytest.raises(ConfigError, match="each process would train alone; set all four"):
        launched(given)


@pytest.mark.parametrize(
    "changes",
    [
        *({"RANK": rank} for rank in ("2", "-1", "1.0", " 1")),
        *({"MASTER_PORT": port} for port in ("http", "0", "65536", "70000", "99999999999999999")),
        *({"WORLD_SIZE": size} for size in ("0", "-2", "two")),
        {"LOCAL_RANK": "x"},
    ],
)
def test_what_is_no_rank_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        launched(FOUR | changes)


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _words(out: Path, count: int) -> list[str]:
    words = ["-m", "distrlcc", "train", "quickstart", "--out", str(out), "--no-tensorboard"]
    return [*words, "--set", *PPO.split(), f"total_steps={count * UPDATE}"]


@pytest.mark.parametrize("names", ["plain", pytest.param("srun", marks=pytest.mark.long)])
def test_processes_that_a_script_starts_train_one_run(names: str, tmp_path: Path) -> None:
    out, count, port = tmp_path / "run", 6, _free_port()
    started = []
    for rank in range(2):
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own = {"RANK": str(rank), "WORLD_SIZE": "2"}
        if names == "srun":
            own = SRUN | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        command = [sys.executable, *_words(out, count)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, **master, **own}, **pipes))
    try:
        said = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    assert updates(out) == list(range(1, count + 1))
    assert {row["ranks"] for row in rows(out)} == {2.0}


def test_torch_distributed_launch_starts_one_run(tmp_path: Path) -> None:
    out, count = tmp_path / "run", 6
    line = ["--nproc_per_node=2", f"--master_port={_free_port()}", *_words(out, count)]
    command = [sys.executable, "-m", "torch.distributed.launch", *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert updates(out) == list(range(1, count + 1))
    assert {row["ranks"] for row in rows(out)} == {2.0}


def test_a_long_folder_for_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("t" * max(90 - len(str(tmp_path)), 1))
    folder.mkdir()
    out, count = tmp_path / "run", 3
    words = _words(out, count)
    command = [sys.executable, *words[:4], "--processes", "2", *words[4:]]
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert updates(out) == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("rank", "there", "said"),
    [
        ("0", "a silent one", "cannot serve the ranks at"),
        ("1", "nothing", "rank 0's store at"),
        ("1", "a silent one", "rank 0's store at"),
    ],
)
def test_a_master_that_cannot_be_is_named(rank: str, there: str, said: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        if there == "nothing":
            other.close()
        own = {"MASTER_PORT": port, "RANK": rank, "DISTRLCC_LIMITS": "call=1"}
        done = subprocess.run(
            [sys.executable, *_words(tmp_path / "run", 1), "--join-timeout", "2"],
            env=os.environ | FOUR | own,
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"rank {rank}: {said} 127.0.0.1:{port}" in line
    assert "MASTER_PORT that nothing else has" in line
    assert "torchrun" not in line
