"""Two hosts train in both topologies while a third one, without their token, attacks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from distrlcc.control.compiled import kept_folders
from distrlcc.net.emulator.namespace import NETWORK, on_loopback
from distrlcc.processes import descendants
from tests.actors.shared import SMALL, acting
from tests.hosts import listening, rank_processes, wait_until
from tests.net.test_rootless import NO_NAMESPACES, NOBODY, python_of_nobody
from tests.parallel.commands import Command, session, updates
from tests.parallel.test_elastic import NODE
from tests.parallel.test_elastic import SMALL as EQUALS

pytestmark = [pytest.mark.net, pytest.mark.timeout(300)]

ROOT, STRANGERS = Path(__file__).parents[2], "tests.parallel.strangers"
PORTS = {
    int(port)
    for port in re.findall(
        r"\| `node`, [a-z-]+ \| one port of each machine: `--port`, (\d+)",
        (ROOT / "docs" / "security.md").read_text(),
    )
}
"""What the documentation says that others reach: of each topology one."""

ALONE = ["train", "quickstart", "--processes", "2", "--no-tensorboard", "--out", "alone"]


def _script(hosts: Any, host: int, address: str, port: int, command: str) -> Any:
    words = ("call", address, str(port), command)
    line = hosts.command(host, sys.executable, "-m", STRANGERS, *words)
    quiet = subprocess.DEVNULL
    return subprocess.Popen(line, cwd=ROOT, stdout=quiet, stderr=quiet)


def _start(hosts: Any, folder: Path) -> list[Any]:
    """Start both runs: node 0 makes the token, and says how the others are started."""
    (folder / "nodes.toml").write_text("nodes = [[0], [1]]")
    where = ("--node-num", "2", "--node-index", "0", "--ip", hosts.address(0))
    equals = ("--topology", "decentralized", "quickstart", "--out", "equals", "--set", *EQUALS)
    acts = ["--nodes", "nodes.toml", "--out", "acts", "--set", "actors.segments_per_update=2"]
    token, hosts.token = hosts.token, ""
    first = hosts.start(0, "node", *where, "--no-tensorboard", *equals)
    wait_until(lambda: "\n\n" in hosts.log(first), 60, "a line for the others")
    told, line = hosts.log(first).splitlines()[0:3:2]
    assert told == "On each of the other machines, with its own number for I:"
    variable, program, *words = shlex.split(line)
    name, _, hosts.token = variable.partition("=")
    assert (name, program, len(hosts.token)) == ("DISTRLCC_TOKEN", "distrlcc", 64)
    second = hosts.start(1, *("1" if word == "I" else word for word in words))
    hosts.token = token
    line = ["node", *where, "--no-tensorboard", *acts, *SMALL.split()]
    third = hosts.start(0, *line)
    place = line.index("--node-index") + 1
    fourth = hosts.start(1, *line[:place], "1", *line[place + 1 :])
    return [first, third, second, fourth]


@pytest.mark.long
def test_strangers_change_nothing(
    make_hosts: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    hosts, outs = make_hosts(3), [tmp_path / "equals", tmp_path / "acts"]
    runs = _start(hosts, tmp_path)
    alone = hosts.start(2, *ALONE, "--set", *EQUALS)
    wait_until(lambda: all(len(updates(out)) > 2 for out in outs), 120, "training")
    wait_until(acting(outs[1], 2), 60, "all workers act")

    # All that others reach, users of the same machine too, is one port of each run and host.
    reached = [listening(hosts.processes(host)) for host in (0, 1)]
    assert len(PORTS) == 2
    assert reached == [{(hosts.address(host), port) for port in PORTS} for host in (0, 1)]
    wait_until(lambda: len(updates(tmp_path / "alone")) > 2, 60, "a run of one machine")
    assert listening(hosts.processes(2)) == set()
    alone.send_signal(signal.SIGTERM)
    assert alone.wait(60) == 143
    ranks = {process.pid: rank_processes(process.pid) for process in runs}

    # A stranger sends 14 kinds of garbage and holds connections, and has torch RPC run a command.
    senders = [
        hosts.start(2, "send", hosts.address(host), *map(str, PORTS), module=STRANGERS)
        for host in (0, 1)
    ]
    touched = tmp_path / "touched"
    places = [(hosts.address(0), port) for port in sorted(PORTS)]  # of each run its node 0
    scripts = [_script(hosts, 2, *place, f"touch {touched}") for place in places]
    assert all(script.wait(60) != 0 for script in scripts)
    # A host with another token is told so, and cannot join.
    token, hosts.token = hosts.token, "another-than-that-of-node-0"
    where = ("--node-index", "2", "--ip", hosts.address(0), "--join-timeout", "20")
    joiner = hosts.start(2, *NODE, "2", *where, "quickstart", "--set", *EQUALS)
    assert joiner.wait(60) == 2
    (said,) = hosts.log(joiner).splitlines()
    assert said == (
        f"distrlcc: error: the master at {hosts.address(0)}:29512 has another DISTRLCC_TOKEN than "
        "this process; set the same one on every machine"
    )
    hosts.token = token

    # Nothing came of it: both runs go on, with all their processes.
    done = [len(updates(out)) for out in outs]
    time.sleep(6.0)  # longer than a rank or a worker that is gone would stay unnoticed
    wait_until(
        lambda: all(len(updates(out)) > n + 2 for out, n in zip(outs, done, strict=True)),
        60,
        "training goes on",
    )
    assert not touched.exists()
    assert {process.pid: rank_processes(process.pid) for process in runs} == ranks
    assert [sender.poll() for sender in senders] == [None, None]  # they hold connections
    assert all("held" in hosts.log(sender) for sender in senders)
    assert not any("gone" in (out / "metrics.jsonl").read_text() for out in outs)

    # A machine whose tunnel dies ends with one line, and the others go on.
    for process in descendants(runs[2].pid):
        if b"distrlcc.parallel.tunnel" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            process.signal(signal.SIGKILL)
    assert runs[2].wait(20) == 3
    last = hosts.log(runs[2]).splitlines()[-1]
    assert last.startswith("distrlcc: error: the tunnel to the other machines (process ")
    gone = "gone: rank 1"
    wait_until(lambda: gone in (outs[0] / "metrics.jsonl").read_text(), 30, gone)
    for process in runs[:2]:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in runs] == [143, 143, 3, 0]
    assert all("Traceback" not in hosts.log(process) for process in runs)


RPC = ["node", "--node-num", "1", "--node-index", "0", "--ip", "127.0.0.1", "--no-tensorboard"]
RPC += ["--out", "alone", "--set", *SMALL.split(), "actors.engine=torch-rpc", "actors.nodes=[[0]]"]


RANKS = [*ALONE, "--set", *EQUALS]


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        pytest.param("root", RPC, id="root-torch-rpc"),
        pytest.param("nobody", RANKS, id="nobody-ranks"),
        pytest.param("no namespaces", RANKS, id="no-namespaces-ranks"),
        pytest.param("root", RANKS, id="root-ranks", marks=pytest.mark.long),
        pytest.param("nobody", RPC, id="nobody-torch-rpc", marks=pytest.mark.long),
    ],
)
def test_other_users_of_a_machine_reach_no_port(
    rights: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    python = [sys.executable]
    if rights == "nobody":
        python = [*NOBODY, python_of_nobody(environment)]
    elif rights == "no namespaces":
        python = [*NO_NAMESPACES, *python]
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        patch = stack.enter_context(monkeypatch.context())
        # What is compiled already.
        cache = kept_folders()[-1]
        shutil.copytree(cache, f"{folder}/cache/distrlcc/{cache.name}")
        subprocess.run(["chmod", "-R", "a+rwX", folder], check=True)
        environment |= {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache"}
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        run = stack.enter_context(Command(Path(folder), "-m", "distrlcc", *words, python=python))
        run.until_updates(Path(folder) / "alone", 3)
        open_to_all = listening(session(run.process.pid))
        told = "other users of this machine reach this run's ports" in "".join(run.said)
        # Its ports are on a loopback of its own, which the test may enter as root.
        links = Path(f"/proc/{run.process.pid}/fd").glob("*")
        own = [str(link) for link in links if os.readlink(link).startswith("net:")]
        if rights == "no namespaces":
            assert (told, own, len(open_to_all) > 1) == (True, [], True)
        else:
            assert (told, len(own), open_to_all) == (False, 1, set())
            patch.setenv(NETWORK, own[0])
            table = on_loopback(Path("/proc/thread-self/net/tcp").read_text)
            assert table.count(" 0A ") > 1
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 143
        run.nothing_is_left()


@pytest.mark.long
def test_the_script_does_run_a_command_where_it_reaches_torch_rpc(tmp_path: Path) -> None:
    words = [sys.executable, "-m", STRANGERS]
    with subprocess.Popen(
        [*words, "victim"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        place = victim.stdout.readline().split()
        command = [*words, "call", *place, f"touch {tmp_path / 'touched'}"]
        subprocess.run(command, cwd=ROOT, timeout=60, stderr=subprocess.DEVNULL, check=False)
        victim.kill()
    assert (tmp_path / "touched").exists()


def test_a_loopback_whose_command_was_killed_is_as_one_that_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NETWORK, str(tmp_path / "gone"))
    with pytest.raises(RuntimeError, match="has ended"):
        on_loopback(int)
