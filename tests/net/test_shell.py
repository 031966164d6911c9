"""COMMAND's exit code and signals, and that nothing remains."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distrlcc.net.emulator.device import address_of
from distrlcc.processes import descendants, find_process
from tests.hosts import wait_until
from tests.net.conftest import NO_TUN

pytestmark = pytest.mark.net

LINK = "--up 12 --down 12"


def _indices() -> set[int]:
    """Return the devices here; numbers are never used again, as others' names may be."""
    return {index for index, _ in socket.if_nameindex()}


def _outer(base: str) -> tuple[int, str]:
    """Return the device with an address."""
    for index, name in socket.if_nameindex():
        found = address_of(name)
        if found is not None and str(found.network.network_address) == base:
            return index, name
    raise AssertionError(f"no device has {base}")


def _members(network: str) -> set[int]:
    """Return the processes of a network namespace, whose number may be used again."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns/net") == network:
                found.add(int(entry.name))
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
    assert emulator.run(LINK, command=command) == (code, "", "")


def test_what_cannot_run_is_one_line(emulator: Any, tmp_path: Path) -> None:
    code, out, err = emulator.run(LINK, command=["no-such-program"])
    assert (code, out, err) == (127, "", "distrlcc: error: no-such-program: command not found\n")
    plain = tmp_path / "plain"
    plain.write_text("hello")
    code, out, err = emulator.run(LINK, command=[str(plain)])
    assert (code, out, err) == (126, "", f"distrlcc: error: {plain}: Permission denied\n")


def test_without_a_command_it_is_the_users_shell(emulator: Any) -> None:
    emulator.environment["SHELL"] = "/bin/sh"
    process = subprocess.run(
        emulator.words(LINK)[:-1],
        env=emulator.environment,
        text=True,
        capture_output=True,
        input="echo $MAHIMAHI_BASE; exit 5\n",
        timeout=60,
        check=False,
    )
    assert process.returncode == 5
    assert process.stdout.startswith("100.")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signals_reach_command(emulator: Any, number: signal.Signals, code: int) -> None:
    process = emulator.start(LINK, command=["sh", "-c", "echo $MAHIMAHI_BASE; exec sleep 1000"])
    device, _ = _outer(process.stdout.readline().strip())
    process.send_signal(number)
    assert process.wait(30) == code
    assert device not in _indices()


def test_nohup_keeps_the_link(emulator: Any) -> None:
    emulator.environment["DISTRLCC_LIMITS"] = "kill=0.3"  # after which a link that ends kills
    script = "trap 'exit 4' TERM; while true; do echo on; sleep 0.05; done"
    words = ["nohup", *emulator.words(LINK, command=["sh", "-c", script])]
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": emulator.environment}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **how) as process:
        assert process.stdout
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGHUP)
        assert [process.stdout.readline() for _ in range(30)] == ["on\n"] * 30
        process.terminate()
        assert process.wait(30) == 4


@pytest.mark.parametrize(
    ("trap", "says", "code"), [("echo caught; exit 3", "caught\n", 3), ("", "", 137)]
)
def test_command_may_handle_a_signal_and_is_killed_if_it_goes_on(
    emulator: Any, trap: str, says: str, code: int
) -> None:
    emulator.environment["DISTRLCC_LIMITS"] = "kill=0.5"
    script = f"trap '{trap}' TERM; echo on; while true; do sleep 0.05; done"
    process = emulator.start(LINK, command=["sh", "-c", script])
    assert process.stdout.readline() == "on\n"
    process.terminate()
    assert process.communicate(timeout=30)[0] == says
    assert process.returncode == code


def test_ctrl_c_on_a_terminal(emulator: Any) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        script = "trap 'echo once' INT; echo on; sleep 1; sleep 1; exit 9"
        words = emulator.words(LINK, command=["sh", "-c", script])
        os.execve(words[0], words, emulator.environment)
    shown = b""
    pressed = False
    with suppress(OSError):  # which is the terminal's end
        while select.select([terminal], [], [], 30)[0] and (data := os.read(terminal, 4096)):
            shown += data
            if b"on\r\n" in shown and not pressed:
                pressed = True
                os.write(terminal, b"\x03")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    # COMMAND had it from the terminal, and not a second time from us.
    assert shown.count(b"once") == 1


LEFTOVERS = (
    "setsid sleep 1000 & sleep 1000 & (sleep 1000 &) ; "
    "echo $MAHIMAHI_BASE; readlink /proc/self/ns/net; read line; "
)


@pytest.mark.parametrize("prefix", [(), NO_TUN], ids=["TUN", "no TUN"])
@pytest.mark.parametrize("end", ["exit", "SIGKILL", "of the guard", "of both"])
def test_the_host_has_a_route_to_the_block_alone_and_at_the_end_nothing(
    emulator: Any, prefix: tuple[str, ...], end: str
) -> None:
    process = emulator.start(LINK, command=["sh", "-c", LEFTOVERS], prefix=prefix)
    base = process.stdout.readline().strip()
    device, name = _outer(base)
    lines = [line.split() for line in Path("/proc/net/route").read_text().splitlines()]
    block = int.from_bytes(socket.inet_aton(base), "little") - (1 << 24)
    assert [(line[1], line[7]) for line in lines if line[0] == name] == [
        (f"{block:08X}", "00C0FFFF")  # its /18, and no default route
    ]
    network = process.stdout.readline().strip()
    members = _members(network)
    assert len(members) >= 5
    if end == "exit":
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(30) == 0
        assert not _members(network) & members
        assert device not in _indices()
    else:
        if end != "SIGKILL":
            # The guard is a copy of the emulator.
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            for child in descendants(process.pid):
                if Path(f"/proc/{child.pid}/cmdline").read_bytes() == words:
                    child.signal(signal.SIGKILL)
        if end != "of the guard":
            process.kill()
        assert process.wait(30) in {-signal.SIGKILL, 137}
        wait_until(lambda: not _members(network) & members, 15.0, "the end of the processes")
        wait_until(lambda: device not in _indices(), 15.0, "the end of the device")


@pytest.mark.parametrize("leaves", ["", "setsid "])
def test_what_runs_outside_ends_with_all_that_it_started(leaves: str, emulator: Any) -> None:
    server = f"sh -c '{leaves}sleep 98765 & echo $!; wait'"  # a daemon leaves the group
    code, said, _ = emulator.run(LINK, "--outside", server, command=["sleep", "0.5"])
    assert code == 0
    wait_until(lambda: find_process(int(said)) is None, 15.0, "the server's end")


def test_what_runs_outside_ends_with_an_emulator_that_is_killed(emulator: Any) -> None:
    outside = "sh -c 'sleep 98766 & echo $!; true'"  # whose parent has ended
    process = emulator.start(LINK, "--outside", outside, command=["sleep", "60"])
    pid = int(process.stdout.readline())
    assert find_process(pid)
    process.kill()
    process.wait()
    wait_until(lambda: find_process(pid) is None, 15.0, "the server's end")


def test_a_log_that_cannot_be_written_is_an_error(emulator: Any) -> None:
    code, _, said = emulator.run(LINK, "--log", "/dev/full", command=["true"])
    assert code == 1
    assert "/dev/full is not whole" in said


def test_the_host_is_as_before(emulator: Any) -> None:
    def state() -> list[str]:
        settings = ("net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter")
        return [Path(f"/proc/sys/{name}").read_text() for name in settings]

    before = state()
    inside = "cat /proc/sys/net/ipv4/ip_forward; ls /proc/self/fd | wc -l; cat /proc/net/route"
    code, out, _ = emulator.run(LINK, command=["sh", "-c", inside])
    assert code == 0
    assert out.splitlines()[0] == "1"
    # Standard streams and what ls opens itself: no descriptor of ours.
    assert out.splitlines()[1].strip() == "4"
    assert state() == before
