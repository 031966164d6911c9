"""Real packets, measured: the sender, its steps' lateness, the emulator, links in real time."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import process_time

import numpy as np

from distrlcc.control.schemes import SchemeController
from distrlcc.errors import LinkError
from distrlcc.net.kernel_calls import die_with_parent
from distrlcc.net.sending import Request, send
from distrlcc.net.sent import Sent
from distrlcc.net.udp_socket import resolve
from distrlcc.net.world_process import WorldProcess
from distrlcc.sim.replay import read_log
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.types import PACKET_BYTES

_DISTRLCC = (sys.executable, "-m", "distrlcc")
_LOOK_SECONDS = 0.02
_START_SECONDS = 30.0
_SHORT_SECONDS = 1.5
_FLOW_MBPS = 12.0
_STEP_NS = 10_000_000


@dataclass(frozen=True)
class Cost:
    """What sending as fast as possible takes on loopback."""

    packets_per_second: float
    us_per_packet: float
    """CPU time of the sender's process."""


@dataclass(frozen=True)
class Lateness:
    """How late a sender's 10 ms steps began, ms."""

    p50: float
    p99: float
    within_1ms: float
    """Share of the steps."""


@dataclass(frozen=True)
class Emulated:
    """A link that an emulator was asked for, and what it let through."""

    asked_mbps: float
    carried_mbps: float
    cores: float
    """Of the emulator alone."""
    all_cores: float
    """Of emulator, sender and receiver together."""

    @property
    def error(self) -> float:
        """The rate's error over what was asked for."""
        return self.carried_mbps / self.asked_mbps - 1.0


@dataclass(frozen=True)
class RealTime:
    """Flows of 12 Mbit/s on emulated links, stepped every 10 ms."""

    flows: int
    steps_per_second: float
    """Of each; 100 is real time."""
    cores: float
    """Of the links' process."""
    p50_ms: float
    p99_ms: float
    """Lateness of the steps' ends."""


@contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver on loopback; yield its address."""
    process = subprocess.Popen(
        [*_DISTRLCC, "receive", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=partial(die_with_parent, signal.SIGKILL),
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            ready = select.select([process.stdout], [], [], _START_SECONDS)[0]
            line = process.stdout.readline() if ready else ""
            if "listening on " not in line:
                raise LinkError("the receiver on loopback did not start")
            yield line.split("listening on ")[1].split()[0]
        finally:
            process.kill()


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep processes computing meanwhile."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=_be_nobody)
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _be_nobody() -> None:
    """Run as any other program does, and end with who measures."""
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    die_with_parent(signal.SIGKILL)


def sending_cost(seconds: float) -> Cost:
    """Send as fast as the window lets us."""
    with receiver() as address:
        _send(address, 64.0, 0.2)  # compiles
        before = process_time()
        sent = _send(address, 256.0, seconds)
        used = process_time() - before
    return Cost(sent.acked / sent.seconds, used / max(sent.acked, 1) * 1e6)


def lateness(seconds: float, busy_processes: int) -> Lateness:
    """Send little, and see when each step begins."""
    with receiver() as address, busy(busy_processes):
        sent = _send(address, 2.0, seconds)
    return Lateness(sent.lateness_p50_ms, sent.lateness_p99_ms, 1.0 - sent.late_share)


def _send(address: str, window: float, seconds: float) -> Sent:
    remote = resolve(address, "receiver")
    request = Request(seconds, keep_series=False)
    return send(remote, SchemeController("fixed", parameter=window), request)


def emulated(mbps: float, seconds: float) -> Emulated:
    """Send more than an emulated link can carry, and count what left it."""
    _, *start_up = _emulate(mbps, _SHORT_SECONDS)
    carried, *used = _emulate(mbps, _SHORT_SECONDS + seconds)
    own, whole = (max(b - a, 0.0) / seconds for a, b in zip(start_up, used, strict=True))
    return Emulated(mbps, carried, own, whole)


def tcp_rate(seconds: float) -> float:
    """Return what one CUBIC flow gets over an emulated link that hardly limits it, Mbit/s."""
    tcp = f"{sys.executable} -m distrlcc.net.tcp_flow"
    words = [
        *_DISTRLCC, "emulate", "--up", "10000", "--down", "10000", "--outside",
        f"sh -c 'exec {tcp} sink $MAHIMAHI_BASE 4730'", "--", "sh", "-c",
        f"exec {tcp} send $MAHIMAHI_BASE 4730 cubic {seconds:g}",
    ]  # fmt: skip
    told = json.loads(_output(words, seconds)[0])
    return float(told["acked_bytes"]) * 8e-6 / float(told["seconds"])


def _output(words: list[str], seconds: float) -> tuple[str, float]:
    """Return what a command prints, and its process's own CPU time, s."""
    limit = seconds + _START_SECONDS
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = subprocess.Popen(
            words, stdout=out, stderr=err, preexec_fn=partial(die_with_parent, signal.SIGKILL)
        )
        try:
            deadline = time.monotonic() + limit
            # What has ended keeps its figures until it is waited for.
            look = os.WEXITED | os.WNOWAIT | os.WNOHANG
            while os.waitid(os.P_PID, process.pid, look) is None:
                if time.monotonic() > deadline:
                    raise LinkError(f"the emulator did not end within {limit:.0f} s")
                time.sleep(_LOOK_SECONDS)
            used = _cpu_seconds(process.pid)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        if process.returncode:
            lines = err.read().strip().splitlines() or ["no reason given"]
            raise LinkError(f"the emulator failed: {lines[-1].removeprefix('distrlcc: error: ')}")
        return out.read(), used


def _emulate(mbps: float, seconds: float) -> tuple[float, float, float]:
    """Return what left the link, Mbit/s, and CPU time, s: the emulator's and all processes'."""
    with TemporaryDirectory(prefix="distrlcc-") as folder:
        log = Path(folder) / "up.log"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [
            *_DISTRLCC, "emulate", "--up", f"{mbps:g}", "--down", "10000", "--delay", "5",
            "--queue", "droptail:packets=500", "--log", str(log),
            "--outside", f"sh -c 'exec {sys.executable} -m distrlcc receive --listen "
            "$MAHIMAHI_BASE:4730 --count 1'", "--", "sh", "-c",
            f"exec {sys.executable} -m distrlcc send $MAHIMAHI_BASE:4730 --wait 20 --scheme fixed "
            f"--cwnd {round(mbps * 2 + 200)} --seconds {seconds:g}",
        ]  # fmt: skip
        _, own = _output(words, seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        events = read_log(log).events
    start = next(t for t, kind, size, _ in events if kind == "+" and size > 1000)
    begin, end = start + 500, start + 1e3 * seconds - 200
    carried = sum(size for t, kind, size, _ in events if kind == "-" and begin <= t < end)
    # A packet of 1500 bytes counts 1504 on the link, and in its log.
    return carried * (1500 / PACKET_BYTES) * 8e-3 / (end - begin), own, used


def real_time(flows: int, seconds: float) -> RealTime:
    """Run flows whose windows fill their links without a queue."""
    link = Link(rate_mbps=_FLOW_MBPS, delay_ms=25.0, queue_packets=100)
    world = WorldProcess(flows)
    steps = round(seconds * 1e9 / _STEP_NS)
    try:
        for place in range(flows):
            world.load(place, Scenario(f"flow {place}", link, duration_s=seconds + 60.0))
        window, none = np.full(flows, 52.0), np.zeros(flows)
        for _ in range(100):
            world.step(window, none, step=_STEP_NS)
        before, late, ended = _cpu_seconds(world.pid), [], 0.0
        for _ in range(steps):
            result = world.step(window, none, step=_STEP_NS)
            late.append(result.lateness * 1e-6)
            ended += float(result.stats.duration[0])
        used = _cpu_seconds(world.pid) - before
    finally:
        world.close()
    return RealTime(
        flows,
        steps / ended,
        used / ended,
        float(np.percentile(late, 50)),
        float(np.percentile(late, 99)),
    )


def _cpu_seconds(pid: int) -> float:
    """Return a process's CPU time, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0
