"""Runs contenders as real packets on emulated links, one link after another in real time.

A policy or one of our schemes sends over UDP as ``distrlcc send`` does; ``kernel-cubic`` and the
like are the kernel's own TCP; ``cmd:`` is a user's program. The emulated link's log scores all, so
that only their packets on the link differ. A run that does not count is run again: it failed, a
sender was late, or next to nothing was acknowledged.
"""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import msgspec
import numpy as np

from distrlcc.config import to_toml
from distrlcc.errors import ConfigError, DistrlccError, LinkError, OutputError, counted
from distrlcc.evaluation.contender import Contender, rival
from distrlcc.evaluation.flow_log import link_series, read_flow_log, read_sender_log, score_log
from distrlcc.evaluation.runner import LEAST_SECONDS, MBIT, WARMUP_S, check_scenario, reseed
from distrlcc.evaluation.scores import (
    COUNTED,
    METRICS,
    NO_NUMBER,
    SENDER_METRICS,
    SchemeScores,
    Series,
)
from distrlcc.limits import limits
from distrlcc.net.emulator.command import ENDED
from distrlcc.net.emulator.command_group import BASE, ERROR, Part
from distrlcc.net.emulator.direction import FULL_BYTES
from distrlcc.net.emulator.link_config import require_plain_link
from distrlcc.net.flow_record import MOST_LATE, Ticker
from distrlcc.processes import die_with_parent
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.suites import digest
from distrlcc.types import NANOSECONDS

FIRST_PORT = 24_730  # of the first flow's receiver, unused by default; the others' follow it
RETRIES = 2  # how often a run that does not count is run again
LEAST_PACKETS = 10  # a run that delivers fewer after its first second does not count
_BUSY_SHARE, _BUSY_TICKS, _BUSY_STEP_NS = 0.05, 50, 10_000_000
"""Share of late timers, and of CPU time taken by other guests, that makes a host busy."""
_SILENCE = "30"  # how long a sender sends on into an outage of the link, s
_MOST_PATIENCE_SECONDS = 3600
_AT_ONCE_S = 1e-6
_GRAIN_S = 1e-3  # the emulator knows whole milliseconds
_DISTRLCC = (sys.executable, "-m", "distrlcc")
_TCP = (sys.executable, "-m", "distrlcc.net.kernel.tcp_flow")
_PROGRAM = (sys.executable, "-m", "distrlcc.net.emulator.program")
_TOGETHER = (sys.executable, "-m", "distrlcc.net.emulator.command_group")


@dataclass(frozen=True)
class RealFlow:
    """One flow on an emulated link, as commands that send real packets and receive them."""

    number: int  # among the scenario's, from 1
    contender: Contender
    start_s: float
    seconds: float  # how long it sends
    seed: int
    cwnd: float | None = None  # window of the scheme `fixed`, packets
    count: int = 1  # how many connections at once; more than one only of the kernel's TCP

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"flow {self.number} ({self.contender.name})"

    @property
    def port(self) -> int:
        """Port of its receiver."""
        return FIRST_PORT + self.number - 1

    def figures(self, folder: Path) -> Path:
        """Return where its sender writes its figures."""
        return folder / f"sent-{self.number}.json"

    def sender(self, folder: Path) -> Part:
        """Return what runs behind the link."""
        contender, figures, seconds = self.contender, str(self.figures(folder)), f"{self.seconds:g}"
        if contender.program[0]:
            return Part(self.name, self._program("sender", self.seconds), self.start_s)
        if contender.is_kernel:
            where = ("send", BASE, str(self.port), contender.scheme)
            words = (*_TCP, *where, seconds, str(self.count), figures)
            return Part(self.name, words, self.start_s)
        window = () if self.cwnd is None else ("--cwnd", f"{self.cwnd:g}")
        what = ("send", f"{BASE}:{self.port}", *contender.words(), *window)
        wait = f"{limits().join:g}"
        how = ("--seed", str(self.seed), "--seconds", seconds, "--wait", wait, "--hold")
        said = (*what, *how, "--timeout", _SILENCE, "--json", figures)
        return Part(self.name, (*_DISTRLCC, *said), self.start_s)

    def receiver(self) -> Part:
        """Return what runs outside."""
        # It starts before the first flow, and receives nothing until its own flow begins.
        patience = self.start_s + self.seconds + limits().start
        name = f"the receiver of {self.name}"
        if self.contender.program[1]:
            return Part(name, self._program("receiver", patience))
        patience = min(patience, _MOST_PATIENCE_SECONDS)  # for a packet
        if self.contender.is_kernel or self.contender.program[0]:
            said = ("sink", BASE, str(self.port), f"{patience:g}", str(self.count))
            return Part(name, (*_TCP, *said))
        listen = ("--timeout", f"{patience:g}", "--listen", f"{BASE}:{self.port}")
        return Part(name, (*_DISTRLCC, "receive", "--count", "1", *listen))

    def _program(self, role: str, seconds: float) -> tuple[str, ...]:
        command = self.contender.program[role == "receiver"]
        length = str(math.ceil(self.seconds))  # many a program takes whole ones
        known = {"host": BASE, "port": str(self.port), "seconds": length}
        for name, value in known.items():
            command = command.replace(f"{{{name}}}", value)
        return (*_PROGRAM, role, f"{seconds:g}", command)


def real_flows(
    scenario: Scenario, contender: Contender, others: str | None = None
) -> list[RealFlow]:
    """Return a scenario's flows, the contender's first; those that hardly send are left out."""
    found = []
    check_scenario(scenario)
    require_plain_link(scenario.link)
    for number, flow in enumerate(scenario.flows, 1):
        stop = scenario.duration_s if flow.stop_s is None else flow.stop_s
        seconds = min(stop, scenario.duration_s) - flow.start_s
        try:
            runs = contender if number == 1 else rival(flow.scheme, contender, others)
            _check(flow, runs)
        except ConfigError as error:
            raise ConfigError(f"{scenario.name}, flow {number}: {error}") from None
        if seconds >= LEAST_SECONDS:
            # As the simulator seeds it, so that two of one scheme do not draw the same.
            seed = scenario.seed * 64 + number - 1
            found.append(RealFlow(number, runs, flow.start_s, seconds, seed, flow.cwnd))
    return found


def _check(flow: Flow, contender: Contender) -> None:
    cwnd = flow.cwnd is not None and contender.name != "fixed"
    simulated = {
        "extra_rtt_ms": (flow.extra_rtt_ms, "real flows share the link's delay"),
        "packets": (flow.packets is not None, "give real flows a stop_s"),
        "ecn": (flow.ecn, "our sender's real packets take no marks"),
        "pacing_mbps": (flow.pacing_mbps is not None, "real flows find their own rate"),
        "cwnd": (cwnd, f"of real packets only fixed takes it, not {contender.name}"),
    }
    for name, (given, why) in simulated.items():
        if given:
            raise ConfigError(f"{name} is for the simulated world; {why}")


@dataclass(frozen=True)
class RealRun:
    """Results of a run of real packets; all except the lateness are the first flow's."""

    figures: dict[str, float]  # by metric, from the first second's end on: link's log and sender
    series: Series
    late_share: float  # of the worst flow's steps, those over 1 ms late; 0 for the kernel's


def run_link(scenario: Scenario, flows: Sequence[RealFlow]) -> RealRun:
    """Emulate a link, send flows over it, and score the first one by its log."""
    first, control = flows[0], flows[0].contender.control
    before = control.counts() if control else None
    with TemporaryDirectory(prefix="distrlcc-") as folder:
        # Run it; senders and emulator may each take their time to start.
        place = Path(folder)
        whole, own = place / "up.log", place / "own.log"
        ports = {FIRST_PORT: own} if len(scenario.flows) > 1 else {}
        words = emulation(scenario, flows, place, log=whole, port_logs=ports)
        run_emulation(words, scenario.duration_s)
        # What the senders report, and the link's log.
        late = [
            float(json.loads(flow.figures(place).read_text())["late_share"] or 0.0)
            for flow in flows
            if not (flow.contender.is_kernel or flow.contender.program[0])
        ]
        if not whole.stat().st_size:
            raise OutputError(
                f"{first.name}: nothing was sent; expected packets of {FULL_BYTES} bytes and more "
                "(a program may need a receiver of its own, 'cmd:SENDER :: RECEIVER')"
            )
        ran = replace(scenario, flows=tuple(scenario.flows[f.number - 1] for f in flows))
        log = read_flow_log(whole, ran, own=own if ports else None)
        figures, sender = score_log(log), None
        if not first.contender.program[0]:  # someone else's program reports nothing
            sender = read_sender_log(first.figures(place), kernel=first.contender.is_kernel)
            edges_s = (np.array([log.warm_ms, log.end_ms]) - log.begin_ms) / 1e3
            figures |= {key: float(value[0]) for key, value in sender.over(edges_s).items()}
            if control is not None:  # of all its flows on the link
                figures["guarded"] = control.guarded_share(since=before)
        return RealRun(figures, link_series(log, sender, first.contender), max(late, default=0.0))


def emulation(
    scenario: Scenario,
    flows: Sequence[RealFlow],
    folder: Path,
    *,
    log: Path,
    port_logs: Mapping[int, Path] = MappingProxyType({}),
) -> list[str]:
    """Return the command that emulates a link and runs flows over it; its inputs go to a folder.

    ``log`` will hold all packets; ``port_logs``, by port, those of a single receiver each.
    """
    # The link's time begins when the first flow starts.
    begin = min(flow.start_s for flow in flows)
    link = link_from(scenario.link, begin)
    if link.trace is not None and Path(link.trace).is_file():
        link = replace(link, trace=str(Path(link.trace).resolve()))
    plain = Scenario(scenario.name, link, (Flow("agent"),), scenario.duration_s, scenario.seed)
    (folder / "link.toml").write_text(to_toml(plain), encoding="utf-8")
    # What runs outside and behind the link.
    senders, receivers = folder / "senders.json", folder / "receivers.json"
    parts = [flow.sender(folder) for flow in flows]
    parts = [replace(part, start_s=(part.start_s or 0.0) - begin) for part in parts]
    senders.write_bytes(msgspec.json.encode(parts))
    receivers.write_bytes(msgspec.json.encode([flow.receiver() for flow in flows]))
    words = ["emulate", "--scenario", str(folder / "link.toml"), "--begin", "data"]
    for port, path in port_logs.items():
        words += ["--log-port", str(port), str(path)]
    outside = shlex.join([*_TOGETHER, str(receivers)])
    words += ["--log", str(log), "--outside", outside, "--", *_TOGETHER, str(senders)]
    return [*_DISTRLCC, *words]


def link_from(link: Link, seconds: float) -> Link:
    """Return the rest of a link, from a time on."""
    if link.trace is not None:
        link = replace(link, trace_start_s=link.trace_start_s + seconds)
    past: dict[str, float] = {}
    changes = []
    for change in link.changes:
        if change.at_s > seconds + _GRAIN_S:
            changes.append(replace(change, at_s=change.at_s - seconds))
        else:
            past |= {name: value for name, value in asdict(change).items() if value is not None}
    if past:
        changes.insert(0, Change(**past | {"at_s": _AT_ONCE_S}))
    return replace(link, changes=tuple(changes))


def run_emulation(words: Sequence[str], seconds: float) -> None:
    """Run the command of an emulation of so many seconds; `LinkError`: a part of it failed."""
    limit = seconds + 2 * limits().start
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=limit,
            check=False,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )
    except subprocess.TimeoutExpired:
        raise LinkError(f"it did not end within {limit:.0f} s") from None
    if done.returncode or ENDED in done.stderr:
        lines = done.stderr.splitlines()
        reasons = [line.partition(ERROR)[2] for line in lines if ERROR in line]
        raise LinkError((reasons or lines[-1:] or [f"exit code {done.returncode}"])[0])


def busy() -> str:
    """Return, after half a second of 10 ms timers, how busy this machine is; empty: it is not."""
    # Timers that fire late, and CPU time that a hypervisor gives to others (/proc/stat, steal).
    ticker = Ticker(now=time.monotonic_ns(), step=_BUSY_STEP_NS)
    before = _cpu_times()
    while ticker.count < _BUSY_TICKS:
        time.sleep(max(ticker.due - time.monotonic_ns(), 0) / NANOSECONDS)
        ticker.tick(now=max(time.monotonic_ns(), ticker.due), step=_BUSY_STEP_NS)
    spent = [b - a for a, b in zip(before, _cpu_times(), strict=True)]
    stolen = spent[7] / max(sum(spent[:8]), 1) if len(spent) > 7 else 0.0
    # Processes that ran in the last minute, beside the processors for them.
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    late = ticker.late_share()
    if load <= 0.75 * cores and max(late, stolen) <= _BUSY_SHARE:
        return ""
    return (
        f"this machine is busy: load {load:.1f} on {counted(cores, 'core')}, {late:.0%} of timers "
        f"late, {stolen:.0%} of CPU time taken by other guests; senders may be late, and a "
        "run whose sender is late does not count: end other programs"
    )


def _cpu_times() -> list[int]:
    """Return what the processors did since the machine's start, by kind, in ticks."""
    return list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:]))


def why_void(run: RealRun, seconds: float) -> str:
    """Return why a run whose scored part lasts so many seconds does not count; empty: it does."""
    packets = run.figures["throughput_mbps"] / MBIT * seconds
    if run.late_share > MOST_LATE:
        late = f"{run.late_share:.1%} of a flow's steps were more than 1 ms late"
        return f"{late}; this machine was too busy"
    if not all(math.isfinite(run.figures[key]) for key in COUNTED):
        return NO_NUMBER
    if packets < LEAST_PACKETS:
        return f"{packets:.0f} packets arrived after the first second; expected {LEAST_PACKETS}"
    return ""


def evaluate_emulated(
    contender: Contender,
    scenarios: Sequence[Scenario],
    *,
    seeds: int = 1,
    others: str | None = None,
    series_links: tuple[int, ...] = (),
    retries: int = RETRIES,
    show: Callable[[str, float], None] = lambda _, __: None,
) -> tuple[SchemeScores, list[Series]]:
    """Measure a contender as each link's first flow, in real time, as `runner.evaluate` does.

    A run that does not count is run again up to ``retries`` times. ``show`` takes a line on each
    run, and its length, s.
    """
    # Each link once per seed, until a run counts.
    shape = len(scenarios), seeds
    columns = {m.key: np.full(shape, np.nan) for m in METRICS + SENDER_METRICS}
    series, reasons = list[Series](), dict[tuple[int, int], str]()
    for place, scenario in enumerate(scenarios):
        for seed in range(seeds):
            run, reason = f"{contender.name} on {scenario.name}", ""
            show(f"{run}, {scenario.duration_s:g} s", scenario.duration_s)
            seeded = reseed(scenario, seed)
            flows = real_flows(seeded, contender, others)
            for attempt in range(1 + retries):
                if attempt:
                    show(f"{run}, once more ({reason})", scenario.duration_s)
                try:
                    done = run_link(seeded, flows)
                except (DistrlccError, OSError, ValueError, LookupError) as error:  # torn logs
                    reason = f"it failed: {error}"
                    continue
                # The figures of a run that does not count are kept, to be shown as such.
                for key, value in done.figures.items():
                    columns[key][place, seed] = value
                reason = why_void(done, flows[0].seconds - min(WARMUP_S, flows[0].seconds / 2))
                if not reason:
                    if place in series_links and seed == 0:
                        series.append(done.series)
                    break
            if reason:
                reasons[place, seed] = reason
    # What was measured; a run that failed has no figures.
    links = tuple(scenario.name for scenario in scenarios)
    digests = tuple(digest(scenario, f"real packets {others}") for scenario in scenarios)
    scores = SchemeScores(contender.name, links, columns, contender.learned, reasons, digests)
    return scores, series
