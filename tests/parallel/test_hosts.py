"""Machines that are started by SSH: real servers on loopback, and in namespaces."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distrlcc.errors import ConfigError, NoGroupError
from distrlcc.parallel.hosts import read_hosts, started
from distrlcc.processes import descendants, marked
from tests.hosts import Hosts, wait_until
from tests.sshd import PROGRAM, servers

TOKEN = f"of-the-tests-by-ssh-{os.getpid()}"
MARK = f"DISTRLCC_TOKEN={TOKEN}"
PROBE = """#!/bin/sh
[ "$1" = --version ] && exit 0
echo "$DISTRLCC_TOKEN" >"$1"
echo "told $2 and $DISTRLCC_LIMITS"
echo broken >&2
{trap}
while :; do sleep 0.1; done
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with servers(tmp_path, {"one": "127.0.0.1", "two": "127.0.0.2"}) as line:
        monkeypatch.setenv("DISTRLCC_SSH", line)
        monkeypatch.setenv("DISTRLCC_TOKEN", TOKEN)
        yield line


def probe(folder: Path, trap: str = "") -> str:
    """Write a program that tells what it was told, and goes on until it is ended."""
    path = folder / "a probe"
    path.write_text(PROBE.format(trap=trap))
    path.chmod(0o755)
    return f"'{path}'"


def runs() -> bool:
    """Say whether a program that has the token still runs, here or there."""
    return bool(marked(MARK))


def ended() -> None:
    wait_until(lambda: not runs(), 30, "the end of all that has the token")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("one\n\n# two\nme@three 4 # more\n", {"one": 0, "me@three": 4}),
        ("\ufeffone\r\ntwo\r\n", {"one": 0, "two": 0}),
        ("10.0.0.2\t16\nfe80::1\n", {"10.0.0.2": 16, "fe80::1": 0}),
    ],
)
def test_hosts_stand_on_lines(tmp_path: Path, text: str, found: dict[str, int]) -> None:
    (tmp_path / "hosts").write_text(text)
    assert read_hosts(str(tmp_path / "hosts")) == found


@pytest.mark.parametrize(
    "line",
    [
        "two slots=4",
        "two 0",
        "two -1",
        "two 1 1",
        "-oProxyCommand=sh",
        "a;b",
        "$(id)",
        "a/b",
        "one",
        *("ONE", "one.", "me@one"),
        *("two:22", "[::1]:22", "two:4", "@", ":", "a@b@c", "two,three"),
    ],
)
def test_a_misspelled_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"one\n# a comment\n{line}\n")
    with pytest.raises(ConfigError, match=f"hosts, line 3: '{re.escape(line)}': expected a host"):
        read_hosts(str(path))


@pytest.mark.parametrize("text", ["", "# none\n", "\n"])
def test_a_file_without_hosts_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError, match="names no host: expected one on each line"):
        read_hosts(str(tmp_path / "hosts"))
    with pytest.raises(ConfigError, match="cannot read"):
        read_hosts(str(tmp_path / "no hosts"))


def test_a_program_is_told_the_token_in_secret_and_ends_with_us(
    client: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=4,stop=3")
    files, said = [tmp_path / "1", tmp_path / "2"], ""
    words = [[str(file), f'it\'s "$HOME" {file.name}'] for file in files]

    def told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.count("broken") == 2

    with started(["one", "two"], probe(tmp_path), words):
        wait_until(told, 60, "what both say")
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert not any(TOKEN.encode() in line for line in lines)
        assert any(b"$HOME" in line for line in lines)
    assert [file.read_text() for file in files] == [f"{TOKEN}\n"] * 2
    for name, number in (("one", 1), ("two", 2)):
        own = [line for line in said.splitlines() if line.startswith(f"{name}: ")]
        assert own == [f'{name}: told it\'s "$HOME" {number} and call=4,stop=3', f"{name}: broken"]
    assert TOKEN not in said
    ended()


def test_what_does_not_end_is_killed(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "stop=1")
    file = tmp_path / "1"
    with started(["one"], probe(tmp_path, "trap '' TERM"), [[str(file)]]):
        wait_until(lambda: file.exists() and runs(), 60, "the program")
    ended()


OWNER = """
from distrlcc.parallel.hosts import started
with started(["one", "two"], {program!r}, [[{folder!r} + "/1"], [{folder!r} + "/2"]]):
    input()
"""


@pytest.mark.parametrize("dies", ["owner", "client"])
def test_a_program_ends_with_the_connection(client: str, tmp_path: Path, dies: str) -> None:
    script = OWNER.format(program=probe(tmp_path), folder=str(tmp_path))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stderr=pipe) as owner:
        both = [tmp_path / "1", tmp_path / "2"]
        wait_until(lambda: all(map(Path.exists, both)), 60, "both programs")
        clients = [each for each in descendants(owner.pid) if _is_client(each.pid)]
        assert len(clients) == 2
        for process in clients:
            if dies == "client":
                process.signal(signal.SIGKILL)
        if dies == "owner":
            owner.kill()
        # Only the programs' own environment has the token, not that of a login.
        mine = {owner.pid, *(each.pid for each in clients)}
        wait_until(lambda: {p.pid for p in marked(MARK)} <= mine, 30, "the end of the programs")
        owner.kill()
        said = owner.stderr.read().decode() if owner.stderr else ""
    if dies == "client":
        assert "one: ended with exit code -9" in said


def _is_client(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ssh\0")


@pytest.mark.parametrize("bad", ["locked", "closed", "no.such.host.invalid"])
def test_where_one_cannot_be_reached_none_begins(client: str, tmp_path: Path, bad: str) -> None:
    why = {"locked": "Permission denied", "closed": "Connection refused"}.get(
        bad, "Could not resolve"
    )
    words = [[str(tmp_path / "begun")]] * 3
    with (
        pytest.raises(NoGroupError, match=rf"not started on {bad} \(.*{why}.*\), so") as caught,
        started(["one", bad, "two"], probe(tmp_path), words),
    ):
        pytest.fail("it began")
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "begun").exists()
    ended()


def test_a_program_that_is_not_there_is_named(client: str, tmp_path: Path) -> None:
    with (
        pytest.raises(NoGroupError, match=r"one \(.*no-such: not found\), two .*--remote-command"),
        started(["one", "two"], "no-such", [[], []]),
    ):
        pytest.fail("it began")


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_SSH", "no-such-client -v")
    with (
        pytest.raises(ConfigError, match="DISTRLCC_SSH: no-such-client: No such file"),
        started(["one"], "x", [[]]),
    ):
        pytest.fail("it began")


SMALL = "--set num_envs=12 total_steps=1_000_000 max_seconds=200"
EQUAL = f"quickstart --topology decentralized --out run {SMALL}".split()


def node(*words: str) -> list[str]:
    return [str(PROGRAM), "node", *words, "--hosts", "hosts", "--remote-command", str(PROGRAM)]


@pytest.mark.net
@pytest.mark.long
def test_ctrl_c_ends_a_run_on_all(client: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("one\ntwo\n")
    with subprocess.Popen(
        node(*EQUAL, "--ip", "127.0.0.1"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until((tmp_path / "run" / "metrics.jsonl").exists, 150, "the first update")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=120)[1]
        finally:
            process.kill()
    assert process.returncode == 130, said
    for name in ("one", "two"):
        assert f"{name}: distrlcc: found the master at 127.0.0.1" in said
    assert "Go on with: the same lines, where node 0's has --resume --out run in" in said
    assert TOKEN not in said
    ended()


@pytest.mark.long
@pytest.mark.net
@pytest.mark.parametrize("topology", ["decentralized", "actor-learner"])
def test_a_run_on_machines_of_their_own(
    make_hosts: Callable[[int], Hosts], tmp_path: Path, topology: str
) -> None:
    hosts = make_hosts(3)
    names = {"one": 1, "two": 2}
    within = {name: hosts.command(host) for name, host in names.items()}
    (tmp_path / "hosts").write_text("one\ntwo\n")
    equal = ["quickstart", "--topology", "decentralized"]
    words = [*(equal if topology == "decentralized" else []), "--ip", hosts.address(0)]
    words += ["--out", "run", "--set", "max_seconds=20"]
    with servers(tmp_path, {n: hosts.address(h) for n, h in names.items()}, within) as line:
        env = {k: v for k, v in os.environ.items() if k != "DISTRLCC_TOKEN"} | {
            "DISTRLCC_SSH": line
        }
        command = hosts.command(0, *node(*words))
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "DISTRLCC_TOKEN=" not in done.stdout + done.stderr
    assert f"two: distrlcc: found the master at {hosts.address(0)}" in done.stderr
    assert not hosts.processes(1)
    assert not hosts.processes(2)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--node-num 2", "--node-num and --hosts are not allowed with each other"),
        ("--node-index 0", "--node-index and --hosts are not allowed with each other"),
        ("--processes 2", "expected as many processes on each machine"),
        ("--set nmu_envs=1", "nmu_envs"),
    ],
)
def test_what_does_not_fit_hosts_is_refused(tmp_path: Path, words: str, why: str) -> None:
    (tmp_path / "hosts").write_text("one 3\n")
    command = [*node(*EQUAL, "--ip", "127.0.0.1"), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert why in done.stderr
