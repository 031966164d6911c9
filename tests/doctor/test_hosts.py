"""The links of machines that SSH reaches, which are namespaces here with a real server in each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import distrlcc
from tests.hosts import Hosts, wait_until
from tests.sshd import PROGRAM, servers

PORT = "29513"


@pytest.fixture
def check(
    make_hosts: Callable[[int], Hosts], tmp_path: Path
) -> Iterator[Callable[..., tuple[int, list[dict[str, str]]]]]:
    """Return a function that checks, and the hosts as its attribute."""
    hosts = make_hosts(3)
    names = {"one": 1, "two": 2}
    within = {name: hosts.command(host) for name, host in names.items()}
    with servers(tmp_path, {n: hosts.address(h) for n, h in names.items()}, within) as client:

        def run(*lines: str, program: str = str(PROGRAM)) -> tuple[int, list[dict[str, str]]]:
            (tmp_path / "hosts").write_text("\n".join(lines))
            words = ["--hosts", "hosts", "--ip", hosts.address(0), "--remote-command", program]
            done = subprocess.run(
                hosts.command(0, str(PROGRAM), "doctor", *words, "--json", "-"),
                cwd=tmp_path,
                env={**os.environ, "DISTRLCC_SSH": client},
                capture_output=True,
                text=True,
                timeout=150,
            )
            assert not done.stderr
            return done.returncode, json.loads(done.stdout)["rows"]

        run.hosts = hosts  # type: ignore[attr-defined]
        yield run


def failed(rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(row["check"], row["machine"]) for row in rows if row["verdict"] == "fail"]


@pytest.mark.net
def test_all_is_measured_between_each_two(check: Any) -> None:
    code, rows = check("one", "two 2")
    assert (code, failed(rows)) == (0, [])
    address = check.hosts.address
    links = [
        (row["machine"], row["found"].split()[1].strip(":"))
        for row in rows
        if row["check"] == "link"
    ]
    assert sorted(links) == [(address(a), address(b)) for a, b in ((0, 1), (0, 2), (1, 2))]
    found = [row["found"] for row in rows if row["check"] == "link"]
    assert all("Mbit/s there" in each and "Mbit/s back" in each for each in found)
    assert {row["machine"] for row in rows if row["check"] == "clock"} == {address(1), address(2)}
    assert [r["found"] for r in rows if r["check"] == "same versions"] == ["as on this machine"] * 2
    wait_until(lambda: not check.hosts.processes(1)[1:], 30.0, "the server is left alone")


@pytest.mark.net
def test_a_closed_port_a_busy_one_and_a_lost_host_fail(check: Any) -> None:
    hosts, address = check.hosts, check.hosts.address
    # Classic BPF: load TCP's destination port, compare, return "drop" or "go on".
    drop = f"4,40 0 0 36,21 0 1 {PORT},6 0 0 2,6 0 0 4294967295"
    hosts.inside(2, "tc", "qdisc", "add", "dev", "eth0", "clsact")
    rule = ("filter", "add", "dev", "eth0", "ingress", "bpf", "bytecode", drop, "da")
    hosts.inside(2, "tc", *rule)
    script = f"import socket; s = socket.create_server(('{address(1)}', {PORT})); print(); input()"
    pipe = subprocess.PIPE
    busy = subprocess.Popen(hosts.command(1, "python3", "-c", script), stdin=pipe, stdout=pipe)
    assert busy.stdout is not None
    busy.stdout.readline()
    code, rows = check("one", "two", "locked")
    busy.communicate(b"\n", timeout=20)
    assert code == 1
    assert failed(rows) == [
        ("SSH", "locked"),
        ("ports", address(1)),
        ("ports", address(0)),
        ("ports", address(1)),
        ("link", address(0)),
        ("link", address(1)),
    ]
    found = " ".join(row["found"] for row in rows)
    assert f"does not reach {address(2)}:{PORT} (timed out)" in found
    assert f"none of the ports {PORT}-{PORT} is free on {address(1)}" in found


@pytest.mark.net
def test_another_source_fails(check: Any, tmp_path: Path) -> None:
    source = Path(distrlcc.__file__).parent
    shutil.copytree(source, tmp_path / "distrlcc", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "distrlcc" / "errors.py").open("a") as file:
        file.write("# another\n")
    program = f"env PYTHONPATH={tmp_path} {sys.executable} -s -m distrlcc"
    code, rows = check("one", program=program)
    assert (code, failed(rows)) == (1, [("same versions", check.hosts.address(1))])
    (found,) = [row["found"] for row in rows if row["check"] == "same versions"]
    assert [line.split()[0] for line in found.splitlines()[1:]] == ["code"]
