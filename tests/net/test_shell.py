"""COMMAND's exit code and signals, and that nothing remains."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.net

LINK = ("--up", "12", "--down", "12")


def _devices() -> set[str]:
    return {name for _, name in socket.if_nameindex() if name.startswith("lcc")}


def _until(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _members(network: str) -> list[int]:
    """Return the processes of a network namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns/net") == network:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
    ],
)
def test_the_exit_code_is_commands(emulator: Any, command: list[str], code: int) -> None:
    assert emulator.run(*LINK, command=command) == (code, "", "")


def test_what_cannot_run_is_one_line(emulator: Any, tmp_path: Path) -> None:
    code, out, err = emulator.run(*LINK, command=["no-such-program"])
    assert (code, out, err) == (127, "", "distrlcc: error: no-such-program: command not found\n")
    plain = tmp_path / "plain"
    plain.write_text("hello")
    code, out, err = emulator.run(*LINK, command=[str(plain)])
    assert (code, out, err) == (126, "", f"distrlcc: error: {plain}: Permission denied\n")


def test_without_a_command_it_is_the_users_shell(emulator: Any) -> None:
    emulator.environment["SHELL"] = "/bin/sh"
    process = subprocess.run(
        emulator.words(*LINK)[:-1], env=emulator.environment, text=True, capture_output=True,
        input="echo $MAHIMAHI_BASE; exit 5\n", timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 5
    assert process.stdout.startswith("100.")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signals_reach_command(emulator: Any, number: signal.Signals, code: int) -> None:
    before = _devices()
    process = emulator.start(*LINK, command=["sh", "-c", "echo on; exec sleep 1000"])
    assert process.stdout.readline() == "on\n"
    process.send_signal(number)
    assert process.wait(30) == code
    assert _devices() <= before


def test_command_may_handle_a_signal(emulator: Any) -> None:
    script = "trap 'echo caught; exit 3' TERM; echo on; while true; do sleep 0.05; done"
    process = emulator.start(*LINK, command=["sh", "-c", script])
    assert process.stdout.readline() == "on\n"
    process.terminate()
    assert process.communicate(timeout=30)[0] == "caught\n"
    assert process.returncode == 3


def test_a_command_that_ignores_sigterm_is_killed(emulator: Any) -> None:
    script = "trap '' TERM; echo on; while true; do sleep 0.05; done"
    process = emulator.start(*LINK, command=["sh", "-c", script])
    assert process.stdout.readline() == "on\n"
    process.terminate()
    assert process.wait(30) == 137


def test_ctrl_c_on_a_terminal(emulator: Any) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        script = "trap 'echo once' INT; echo on; sleep 1; sleep 1; exit 9"
        words = emulator.words(*LINK, command=["sh", "-c", script])
        os.execve(words[0], words, emulator.environment)
    shown = b""
    pressed = False
    while True:
        if not select.select([terminal], [], [], 30)[0]:
            break
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
        if b"on\r\n" in shown and not pressed:
            pressed = True
            os.write(terminal, b"\x03")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    # COMMAND had it from the terminal, and not a second time from us.
    assert shown.count(b"once") == 1


LEFTOVERS = "setsid sleep 1000 & sleep 1000 & (sleep 1000 &) ; readlink /proc/self/ns/net; "


def test_nothing_remains_of_what_command_left_running(emulator: Any) -> None:
    before = _devices()
    code, out, _ = emulator.run(*LINK, command=["sh", "-c", LEFTOVERS])
    assert code == 0
    assert out.startswith("net:[")
    assert _members(out.strip()) == []
    assert _devices() <= before


def test_sigkill_leaves_nothing(emulator: Any) -> None:
    before = _devices()
    process = emulator.start(*LINK, command=["sh", "-c", LEFTOVERS + "exec sleep 1000"])
    network = process.stdout.readline().strip()
    assert len(_members(network)) >= 5
    assert _devices() > before
    process.kill()
    process.wait()
    assert _until(lambda: not _members(network))
    assert _until(lambda: _devices() <= before)


def test_the_host_is_as_before(emulator: Any) -> None:
    def state() -> list[str]:
        settings = ("net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter")
        return [Path(f"/proc/sys/{name}").read_text() for name in settings]

    before = state()
    inside = "cat /proc/sys/net/ipv4/ip_forward; ls /proc/self/fd | wc -l; cat /proc/net/route"
    code, out, _ = emulator.run(*LINK, command=["sh", "-c", inside])
    assert code == 0
    assert out.splitlines()[0] == "1"
    # Standard streams and what ls opens itself: no descriptor of ours.
    assert out.splitlines()[1].strip() == "4"
    assert state() == before


def test_routes_outside_name_the_block_alone(emulator: Any) -> None:
    process = emulator.start(*LINK, command=["sh", "-c", "echo $MAHIMAHI_BASE; exec sleep 1000"])
    base = process.stdout.readline().strip()
    lines = [line.split() for line in Path("/proc/net/route").read_text().splitlines()]
    ours = [line for line in lines if line[0] in _devices()]
    assert ours
    for line in ours:
        assert line[7] == "00C0FFFF"  # /18, and no default route
    assert base.encode() in b"".join(
        socket.inet_ntoa(
            (int.from_bytes(bytes.fromhex(line[1]), "little") + 1).to_bytes(4)
        ).encode()
        for line in ours
    )
    process.terminate()
    assert process.wait(30) == 143
