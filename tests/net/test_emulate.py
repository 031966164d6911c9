"""Real packets through real devices: what COMMAND and its peer outside see of the link."""

import random
import socket
import statistics
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socketserver import TCPServer, UDPServer
from typing import Any

import pytest

from distrlcc.sim.link import read_log, replay
from distrlcc.sim.trace import load_trace, parse_trace

pytestmark = pytest.mark.net

ECHO = """
    import os, socket, time
    outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    outside.settimeout(5)
    for _ in range({count}):
        start = time.monotonic()
        outside.sendto(b"x", (os.environ["MAHIMAHI_BASE"], {port}))
        outside.recv(99)
        print(1e3 * (time.monotonic() - start))
"""

FLOOD = """
    import os, socket, time
    outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to = os.environ["MAHIMAHI_BASE"], {port}
    start = time.monotonic()
    for k in range({count}):
        outside.sendto(b"%06d" % k + bytes(1466), to)
        while time.monotonic() - start < (k + 1) * {interval}:
            time.sleep(0.001)
"""

TCP = """
    import os, socket
    outside = socket.socket()
    outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    name = outside.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    print(name.rstrip(bytes(1)).decode())
    outside.connect((os.environ["MAHIMAHI_BASE"], {port}))
    outside.sendall(bytes({count}))
"""


class Outside:
    """A UDP and a TCP server on every address, each in a thread."""

    def __init__(self) -> None:
        self.arrivals, self.streams = list[bytes](), list[int]()
        handlers: dict[Any, Any] = {UDPServer: self._datagram, TCPServer: self._stream}
        self.servers = [kind(("0.0.0.0", 0), handler) for kind, handler in handlers.items()]
        self.udp_port, self.tcp_port = (server.server_address[1] for server in self.servers)
        for server in self.servers:
            server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            threading.Thread(target=server.serve_forever, args=(0.1,)).start()

    def _datagram(self, request: Any, sender: Any, _: Any) -> None:
        data, udp = request
        self.arrivals.append(data)
        if len(data) == 1:
            udp.sendto(data, sender)

    def _stream(self, connection: socket.socket, *_: Any) -> None:
        connection.settimeout(20)
        self.streams.append(sum(iter(lambda: len(connection.recv(1 << 20)), 0)))

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def outside() -> Iterator[Outside]:
    with closing(Outside()) as served:
        yield served


def _run(emulator: Any, flags: str, program: str, **fields: float) -> str:
    """Run a program behind a link; return what it prints."""
    code, out, err = emulator.run(flags, command=emulator.python(program.format(**fields)))
    assert (code, err) == (0, "")
    return str(out)


def _round_trips(printed: str) -> list[float]:
    return [float(line) for line in printed.split()]


def test_losses_are_the_seeds(emulator: Any, outside: Outside) -> None:
    flags = "--up 96 --down 96 --loss 0.2 --seed 3"
    _run(emulator, flags, FLOOD, count=600, port=outside.udp_port, interval=2e-3)
    draw = random.Random("3/Uplink")
    expected = [k for k in range(600) if draw.random() >= 0.2]
    assert [int(data[:6]) for data in outside.arrivals] == expected


def test_each_direction_jitters(emulator: Any, outside: Outside) -> None:
    flags = "--up 96 --down 96 --delay 5 --jitter 40"
    trips = _round_trips(_run(emulator, flags, ECHO, count=40, port=outside.udp_port))
    # 10 ms and up to 80 ms: 50 ms in the mean, or 30 ms if one direction alone had it.
    assert 10 <= min(trips) < 40
    assert statistics.mean(trips) > 40
    assert max(trips) > 60


def test_a_flood_gets_the_links_rate(emulator: Any, outside: Outside, tmp_path: Path) -> None:
    log = tmp_path / "up.log"

    flags = f"--up 12mbit --down 12mbit --queue droptail:packets=50 --log {log}"
    _run(emulator, flags, FLOOD, count=3200, port=outside.udp_port, interval=7e-4)
    # The rate and who is dropped by the link's own time, which is exact on a busy machine too.
    events = read_log(log).events
    result = replay(read_log(log), parse_trace(b"1\n", "12"))
    assert result.mismatches == ()
    left = [time for time, kind, size, _ in events if kind == "-" and size > 1400]
    offered = [time for time, kind, _, _ in events if kind == "#" and time <= left[-1]]
    mbps = (len(offered) - 1) * 1500 * 8 / (offered[-1] - offered[0]) / 1e3
    assert mbps == pytest.approx(12, rel=0.01)
    assert len(outside.arrivals) == len(left) < 2800  # the rest was dropped
    assert sum(kind == "+" and size > 1400 for _, kind, size, _ in events) == 3200


def test_logs_of_a_trace_replay(emulator: Any, outside: Outside, tmp_path: Path) -> None:
    up, down = tmp_path / "up.log", tmp_path / "down.log"
    flags = (
        f"--up cellular:4 --down cellular:7 --delay 2 --queue drophead:packets=30 --log {up} "
        f"--log-down {down}"
    )
    out = _run(emulator, flags, TCP, count=700_000, port=outside.tcp_port)
    assert out == "cubic\n"  # of the kernel's TCP
    # COMMAND ended before all had arrived; the shell waits for that.
    assert outside.streams == [700_000]
    for log, trace in ((up, "cellular:4"), (down, "cellular:7")):
        result = replay(read_log(log), load_trace(trace))
        assert result.mismatches == ()
        assert result.departures > 100
        assert "distrlcc" in log.read_text().splitlines()[1]


@pytest.mark.parametrize("queue", ["codel:packets=1000", "pie:packets=1000"])
def test_active_queues_keep_the_delay_low(
    emulator: Any, outside: Outside, tmp_path: Path, queue: str
) -> None:
    log = tmp_path / "up.log"
    flags = f"--up 24 --down 24 --delay 5 --queue {queue} --log {log}"
    _run(emulator, flags, TCP, count=4_000_000, port=outside.tcp_port)
    waits = [int(line.split()[3]) for line in log.read_text().splitlines() if " - " in line]
    assert len(waits) > 2000
    # A thousand packets would be half a second.
    assert statistics.median(waits) < 60
    assert " d " in log.read_text()


def test_packets_of_a_sender_that_takes_marks_are_marked(emulator: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("0.0.0.0", 0))
        here.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        here.settimeout(1)
        set_tos = "outside.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)\n    to ="
        flags = "--up 6 --down 6 --queue droptail:packets=200,mark=5"
        flood = FLOOD.replace("to =", set_tos)
        _run(emulator, flags, flood, count=60, port=here.getsockname()[1], interval=0)
        fields = [here.recvmsg(2000, 64)[1][0][2][0] for _ in range(60)]
    # The kernel would have dropped one whose checksum is wrong. Those in transit do not count: the
    # first may not be there yet when the fifth comes.
    assert fields[:4] == [2] * 4
    assert fields.count(3) > 30


def test_a_scenarios_changes_happen(emulator: Any, outside: Outside, tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        'name = "s"\n[link]\nrate_mbps = 24.0\ndelay_ms = 5.0\nqueue_packets = 10\n'
        "changes = [{at_s = 0.6, delay_ms = 30.0}]\n[[flows]]\n"
    )

    out = _run(emulator, f"--scenario {scenario}", ECHO, count=90, port=outside.udp_port)
    trips = _round_trips(out)
    assert 10 <= min(trips) < 60
    assert 60 <= min(trips[-10:]) < 160


def test_its_time_begins_with_the_first_data(
    emulator: Any, outside: Outside, tmp_path: Path
) -> None:
    log = tmp_path / "up.log"
    late = "import time; time.sleep(0.7)\n" + textwrap.dedent(
        ECHO.format(count=1, port=outside.udp_port)
    )
    flood = textwrap.dedent(FLOOD.format(count=100, port=outside.udp_port, interval=0.001))
    _run(emulator, f"--up 6 --down 6 --delay 5 --begin data --log {log}", late + flood)
    read = read_log(log)
    arrivals = [time for time, kind, _, _ in read.events if kind == "+"]
    assert len(arrivals) == 100  # what came before met no queue
    assert read.base == arrivals[0] > 700
    result = replay(read, parse_trace(b"2\n", "6"))
    assert result.mismatches == ()
    assert result.departures == 100


def test_links_nest(emulator: Any, outside: Outside) -> None:
    code, out, err = emulator.run(
        "--up 12 --down 12 --delay 20",
        command=emulator.words(
            "--up 24 --down 24 --delay 10",
            command=emulator.python(ECHO.format(count=10, port=outside.udp_port)),
        ),
    )
    assert (code, err) == (0, "")
    assert 60 <= min(_round_trips(out)) < 160


def test_links_stand_beside_each_other(emulator: Any, outside: Outside) -> None:
    command = emulator.python(ECHO.format(count=10, port=outside.udp_port))

    started = [
        emulator.start("--up 12 --down 12 --delay", delay, command=command)
        for delay in ("10", "20", "30")
    ]
    for process, delay in zip(started, (10, 20, 30), strict=True):
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        # Each way waits for the next of mahimahi's milliseconds besides.
        assert 2 * delay <= min(_round_trips(out)) < 2 * delay + 100
