"""Measure real packets: the sender, its steps, the emulator, links in real time.

python -m benchmarks net
python -m benchmarks net --rates 12,96 --flows 8,16 --json -

Flags:
    --seconds S {1.0..3600} =5.0  length of each measurement
    --rates R,… {0.1..10000} =12,48,96,200  emulated links, Mbit/s
    --flows N,… {1..1000} =4,8,16,32  flows of 12 Mbit/s in real time
    $JSON
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import process_time

import numpy as np

from distrlcc.cli.output import emit_json
from distrlcc.control.schemes import SchemeController
from distrlcc.errors import KernelError, LinkError
from distrlcc.limits import limits
from distrlcc.net.flow_record import Sent
from distrlcc.net.sending import Request, send
from distrlcc.net.udp_socket import resolve
from distrlcc.net.worlds import emulated_world, kernel_world
from distrlcc.net.worlds.emulated_world import WorldProcess
from distrlcc.processes import die_with_parent, run_soon
from distrlcc.sim.link import read_log
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.types import PACKET_BYTES

_DISTRLCC = (sys.executable, "-m", "distrlcc")
_SHORT_SECONDS = 1.5
_FLOW_MBPS = 12.0
_STEP_NS = 10_000_000

Figures = dict[str, float]


def run(args: Namespace) -> int:
    """Measure and print."""
    # As the sender does; figures are printed as they come.
    run_soon()
    out = sys.stderr if args.json == "-" else sys.stdout

    def say(template: str, figures: Figures) -> Figures:
        out.write(template.format(**figures) + "\n")
        out.flush()
        return figures

    # Measure one after the other: each alone on the machine.
    seconds, busy = args.seconds, "10 ms steps, {}: {{within_1ms:.2%}} within 1 ms"
    late = " (p50 {p50:.2f}, p99 {p99:.2f} ms late)"
    told = {
        "sender": say(
            "sender on loopback: {packets_per_second:,.0f} packets/s, {us_per_packet:.1f} us of "
            "CPU per packet",
            sending_cost(seconds),
        ),
        "steps": {
            name: say(busy.format(name) + late, lateness(seconds, processes))
            for name, processes in (("alone", 0), ("beside two busy processes", 2))
        },
        "emulator": [
            say(
                "emulated {asked_mbps:g} Mbit/s: {carried_mbps:.3f} ({error:+.3%}), {cores:.2f} "
                "cores, {all_cores:.2f} with sender and receiver",
                emulated(rate, seconds),
            )
            for rate in args.rates
        ],
        "largest_tcp": [
            say("one CUBIC flow over a link of 10 Gbit/s: {mbps:,.0f} Mbit/s", tcp_rate(seconds))
            for _ in args.rates[:1]
        ],
        "real_time": {
            world: [
                say(
                    f"{{flows}} flows of 12 Mbit/s, {world}: {{steps_per_second:.1f}} steps/s "
                    "each, {utilisation:.0%} of the links, {cores:.2f} cores, {us_per_packet:.1f} "
                    "us per packet, {flows_per_core:.0f} flows a core; steps {p50_ms:.2f} ms "
                    "late (p99 {p99_ms:.2f})",
                    real_time(count, seconds, module),
                )
                for count in args.flows
            ]
            for world, module in _worlds().items()
        },
    }
    emit_json(args.json, told)
    return 0


@contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver on loopback; yield its address."""
    process = subprocess.Popen(
        [*_DISTRLCC, "receive", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=partial(die_with_parent, signal.SIGKILL),
    )
    with process:
        try:
            assert process.stdout is not None
            ready = select.select([process.stdout], [], [], limits().join)[0]
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
    """Run as any other program does, and end with the process that measures."""
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    die_with_parent(signal.SIGKILL)


def sending_cost(seconds: float) -> Figures:
    """Send as fast as the window lets us."""
    with receiver() as address:
        _send(address, 64.0, 0.2)  # compiles
        before = process_time()
        sent = _send(address, 256.0, seconds)
        used = process_time() - before
    return {
        "packets_per_second": sent.acked / sent.seconds,
        "us_per_packet": used / max(sent.acked, 1) * 1e6,
    }


def lateness(seconds: float, busy_processes: int) -> Figures:
    """Send little, and see when each step begins."""
    with receiver() as address, busy(busy_processes):
        sent = _send(address, 2.0, seconds)
    within = 1.0 - sent.late_share
    return {"p50": sent.lateness_p50_ms, "p99": sent.lateness_p99_ms, "within_1ms": within}


def _send(address: str, window: float, seconds: float) -> Sent:
    remote = resolve(address, "receiver")
    request = Request(seconds)
    return send(remote, SchemeController("fixed", parameter=window), request)


def emulated(mbps: float, seconds: float) -> Figures:
    """Send more than an emulated link can carry, and count what left it."""
    _, *start_up = _emulate(mbps, _SHORT_SECONDS)
    carried, *used = _emulate(mbps, _SHORT_SECONDS + seconds)
    own, whole = (max(b - a, 0.0) / seconds for a, b in zip(start_up, used, strict=True))
    return {
        "asked_mbps": mbps,
        "carried_mbps": carried,
        "error": carried / mbps - 1.0,
        "cores": own,
        "all_cores": whole,
    }


def tcp_rate(seconds: float) -> Figures:
    """Return what one CUBIC flow gets over an emulated link that hardly limits it, Mbit/s."""
    tcp = f"{sys.executable} -m distrlcc.net.kernel.tcp_flow"
    link = ["emulate", "--up", "10000", "--down", "10000", "--outside"]
    outer = f"sh -c 'exec {tcp} sink $MAHIMAHI_BASE 4730 120'"
    inner = ["sh", "-c", f"exec {tcp} send $MAHIMAHI_BASE 4730 cubic {seconds:g}"]
    (told,) = json.loads(output([*_DISTRLCC, *link, outer, "--", *inner], seconds)[0])
    return {"mbps": float(told["acked_bytes"]) * 8e-6 / float(told["seconds"])}


def output(words: list[str], seconds: float) -> tuple[str, float]:
    """Return what a command prints, and its process's own CPU time, s."""
    limit = seconds + limits().join
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
                time.sleep(limits().tick)
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
        link = f"emulate --up {mbps:g} --down 10000 --delay 5 --queue droptail:packets=500".split()
        ours = " ".join(_DISTRLCC)
        outer = f"sh -c 'exec {ours} receive --listen $MAHIMAHI_BASE:4730 --count 1'"
        window = round(mbps * 2 + 200)
        inner = f"exec {ours} send $MAHIMAHI_BASE:4730 fixed --wait 20 --cwnd {window}"
        inner += f" --seconds {seconds:g}"
        words = [*_DISTRLCC, *link, "--log", str(log), "--outside", outer, "--", "sh", "-c", inner]
        _, own = output(words, seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        events = read_log(log).events
    start = next(t for t, kind, size, _ in events if kind == "+" and size > 1000)
    begin, end = start + 500, start + 1e3 * seconds - 200
    carried = sum(size for t, kind, size, _ in events if kind == "-" and begin <= t < end)
    # A packet of 1500 bytes counts 1504 on the link, and in its log.
    return carried * (1500 / PACKET_BYTES) * 8e-3 / (end - begin), own, used


def _worlds() -> dict[str, str]:
    """Return the modules of worlds of real packets that can be here."""
    found = {"emulated": emulated_world.__name__, "kernel": kernel_world.__name__}
    try:
        kernel_world.require_world(1)
    except KernelError as error:
        sys.stderr.write(f"world kernel is left out: {error}\n")
        del found["kernel"]
    return found


def real_time(flows: int, seconds: float, module: str) -> Figures:
    """Run flows whose windows fill their links with a short queue.

    The links' process gets its core before all others, as if the machine had no other work, where
    that is allowed. ``flows_per_core`` is by its CPU time for each packet that was carried, and
    counts where nearly all steps were made.
    """
    link = Link(rate_mbps=_FLOW_MBPS, delay_ms=25.0, queue_packets=100)
    world = WorldProcess(flows, module)
    steps = round(seconds * 1e9 / _STEP_NS)
    first = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    with suppress(PermissionError):
        os.sched_setscheduler(world.pid, first, os.sched_param(1))
    try:
        for place in range(flows):
            world.load(place, Scenario(f"flow {place}", link, duration_s=seconds + 60.0))
        window, none = np.full(flows, 70.0), np.zeros(flows)
        for _ in range(100):
            world.step(window, none, step=_STEP_NS)
        before, late, ended, packets, room = _cpu_seconds(world.pid), [], 0.0, 0.0, 0.0
        for _ in range(steps):
            result = world.step(window, none, step=_STEP_NS)
            late.append(result.lateness * 1e-6)
            ended += float(result.stats.duration[0])
            packets += float(result.truth.used.sum())
            room += float(result.truth.capacity.sum())
        used = _cpu_seconds(world.pid) - before
    finally:
        world.close()
    p50, p99 = (float(np.percentile(late, percent)) for percent in (50, 99))
    speed = {"steps_per_second": steps / ended, "cores": used / ended}
    speed["utilisation"] = packets / room
    speed["us_per_packet"] = used / max(packets, 1.0) * 1e6
    of_one = _FLOW_MBPS * 1e6 / (8 * PACKET_BYTES) * speed["us_per_packet"] * 1e-6
    speed["flows_per_core"] = 1.0 / max(of_one, 1e-9)
    return {"flows": flows, **speed, "p50_ms": p50, "p99_ms": p99}


def _cpu_seconds(pid: int) -> float:
    """Return a process's CPU time, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0
