"""Files for launchers of others: a Slurm script, run by a real Slurm, and Kubernetes' and Ray's."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distrlcc.cli.main import COMMANDS, GROUPS, find
from tests.hosts import wait_until
from tests.sshd import PROGRAM

EXAMPLES = Path(__file__).parents[2] / "examples"
SBATCH = EXAMPLES / "slurm.sbatch"


def _texts(value: Any) -> Iterator[str]:
    """Yield the commands in a YAML file: texts, and lists of words."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        if str(value[0]).endswith("/distrlcc"):
            yield shlex.join(value)
        for each in value:
            yield from _texts(each)


@pytest.mark.parametrize("name", ["pytorchjob.yaml", "ray-cluster.yaml", "slurm.sbatch"])
def test_files_name_commands_and_flags_that_there_are(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    texts = [text] if name == "slurm.sbatch" else [*_texts(yaml.safe_load(text))]
    called = [line for each in texts for line in re.findall(r"\bdistrlcc ([a-z].*)", each)]
    checked = 0
    for line in called:
        words = line.split()
        if words[0] not in COMMANDS:
            continue
        command = "_".join(words[: 2 if words[0] in GROUPS else 1])
        known = find(command)[0]._option_string_actions
        unknown = {word for word in words if word.startswith("--")} - {*known, "--resume"}
        assert not unknown, line
        checked += 1
    assert checked


def test_kubernetes_file_has_a_token_and_one_image() -> None:
    job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: each["replicas"] for name, each in replicas.items()} == {"Master": 1, "Worker": 2}
    for each in replicas.values():
        (container,) = each["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert [variable["name"] for variable in container["env"]] == ["DISTRLCC_TOKEN"]


def test_the_slurm_script_is_bash() -> None:
    subprocess.run(["bash", "-n", str(SBATCH)], check=True, timeout=20)


SLURM = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of the test's own on this machine."""
    tools = ["munged", "slurmctld", "slurmd"]
    paths = {each: shutil.which(each, path="/usr/sbin:/usr/bin") for each in tools}
    if os.geteuid() or not all(paths.values()):
        pytest.skip("needs root, and Slurm: apt-get install slurm-wlm")
    host = socket.gethostname().partition(".")[0]
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (one, two)]
    config = tmp_path / "slurm.conf"
    config.write_text(SLURM.format(host=host, folder=tmp_path, ports=ports))
    monkeypatch.setenv("SLURM_CONF", str(config))
    key = tmp_path / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    files = {"socket": "munge", "key-file": "key", "log-file": "m.log", "pid-file": "m.pid"}
    files |= {"seed-file": "seed"}
    words = [f"--{flag}={tmp_path}/{name}" for flag, name in files.items()]
    with contextlib.ExitStack() as stack, (tmp_path / "log").open("wb") as log:

        def start(*command: str) -> None:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        start(paths["munged"] or "", "--foreground", "--force", *words)
        wait_until((tmp_path / "munge").exists, 20, "munged")
        start(paths["slurmctld"] or "", "-D")
        start(paths["slurmd"] or "", "-D", "-N", host)

        def idle() -> bool:
            return b"idle" in subprocess.run(["sinfo"], capture_output=True, timeout=60).stdout

        wait_until(idle, 60, "an idle machine")
        yield


@pytest.mark.long
@pytest.mark.net
def test_slurm_runs_it_with_two_tasks(
    slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}:{os.environ['PATH']}")
    settings = ["--set", "num_envs=48", "total_steps=6000"]
    command = ["sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", str(SBATCH), *settings]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    said = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert done.returncode == 0, done.stderr + said
    (policy,) = tmp_path.glob("runs/slurm-*/policy.safetensors")
    rows = (policy.parent / "metrics.jsonl").read_text()
    assert '"ranks": 2' in rows or '"ranks":2' in rows, rows
