"""Where a run cannot listen is said in a line before anything is prepared."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.parallel.interface import check_place, resolve

TOPOLOGIES = pytest.mark.parametrize("topology", ["actor-learner", "decentralized"])
NO_MACHINE = ["0.0.0.0", "0", "0.0.0.7", "224.0.0.1", "255.255.255.255"]


@pytest.fixture(autouse=True)
def _prepares_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def prepare(*_: object) -> None:
        raise AssertionError("it was prepared")

    monkeypatch.setattr("distrlcc.parallel.start.rehearse", prepare)
    monkeypatch.setattr("distrlcc.actors.start.rehearse", prepare)
    monkeypatch.chdir(tmp_path)


def _node(topology: str, ip: str, port: int = 29577, index: int = 0) -> int:
    line = f"node quickstart --topology {topology} --node-index {index} --node-num 1 --ip {ip}"
    return main([*line.split(), "--port", str(port), "--out", "run"])


@TOPOLOGIES
@pytest.mark.parametrize("ip", NO_MACHINE)
def test_an_address_of_no_machine_is_refused_at_once(
    topology: str, ip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _node(topology, ip) == 2
    assert capsys.readouterr().err == (
        f"distrlcc: error: {ip} is not the address of one machine: expected the one at which "
        "others reach it, such as 10.0.0.1\n"
    )
    assert not Path("run").exists()
    with pytest.raises(ConfigError):
        resolve(ip)


@TOPOLOGIES
def test_a_busy_port_and_anothers_address_are_refused_at_once(
    topology: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_TOKEN", "0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert _node(topology, "127.0.0.1", port) == 2
        assert _node(topology, "192.0.2.7") == 2
    rest = "; --ip must be an address of node 0 and --port must be free there"
    assert capsys.readouterr().err.splitlines() == [
        f"distrlcc: error: cannot listen on 127.0.0.1:{port} (Address already in use){rest}",
        "distrlcc: error: cannot listen on 192.0.2.7:29577 (Cannot assign requested address)"
        f"{rest}",
    ]
    assert not Path("run").exists()
    check_place("127.0.0.1", port)  # it is free again


@pytest.mark.net
@pytest.mark.parametrize(
    "line",
    [
        "node --node-index 0 --node-num 1 --ip 127.0.0.1",
        pytest.param("train quickstart --processes 2", marks=pytest.mark.long),
        pytest.param("train quickstart --engine ray", marks=pytest.mark.long),
    ],
)
def test_without_a_loopback_interface_that_is_said(line: str) -> None:
    if "ray" in line:
        pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    alone = ["unshare", "--net"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("needs unshare, and to be root")
    words = [*alone, sys.executable, "-m", "distrlcc", *line.split(), "--out", "run"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        "distrlcc: error: this machine has no loopback interface (Network is unreachable), over "
        "which its own processes speak; bring it up with: ip link set lo up\n"
    )
    assert not Path("run").exists()
