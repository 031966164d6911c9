"""Run COMMAND behind an emulated link, as in mahimahi's shells.

What COMMAND sends meets the queue and the bottleneck, then random loss, then delay; what comes back
likewise. Services outside are reached at the address in $MAHIMAHI_BASE.

distrlcc emulate --up 12 --down 12 --delay 20 --queue droptail:packets=100 -- ./sender
distrlcc emulate --up 12mbit --down cellular:7 --log up.log -- sh -c 'ping -c 3 $MAHIMAHI_BASE'
distrlcc emulate --up LTE.up --down LTE.down --delay 20 --loss 0.01     (your shell)
distrlcc emulate --scenario random/test/17 -- ./sender
distrlcc emulate --emulator mahimahi --up 12 --down 12 --delay 20 -- ./sender

Flags:
    --up RATE|TRACE  from COMMAND: Mbit/s, 500kbit, or a mahimahi trace
    --down RATE|TRACE  to COMMAND, likewise
    --scenario ID|FILE  a simulator's link with its changes, as the uplink
    --delay MS {0.0..60000}  one way, each direction (default: 0)
    --jitter [KIND:]MS  greatest wait of packets, each direction, without overtaking; KIND:MS is
        another kind: normal, exponential, correlated, bursts (default: 0)
    --reorder P:MS  share of packets, such as 0.2:6, that come MS late, each direction, and are
        overtaken
    --loss P {0.0..1}  probability of loss, uplink (default: 0)
    --loss-down P {0.0..1} =0.0  downlink (default: 0)
    --queue SPEC  both directions' queue: infinite (default), packets, or droptail, drophead, codel,
        pie, each with :packets=N or :bytes=N
    --queue-down SPEC  the downlink's own
    --log FILE {path}  write the uplink's log, as mahimahi does
    --log-down FILE {path}  the downlink's
    --log-port+ PORT FILE  write the uplink's log of one UDP or TCP port alone, with all
        opportunities
    --begin {start|data} =start  the link's time begins at once, or with the first full packet from
        COMMAND; before it the link only delays, with an opportunity each ms
    --seed N {0..281474976710656}  of losses and of PIE (default: 0)
    --outside COMMAND {words}  run this program outside meanwhile, such as a server; sh -c 'LINE'
        for a line
    --emulator {own|mahimahi} =own  which one
    command... COMMAND  command behind the link (default: $SHELL)

Rules:
    --begin --log-port: not with --emulator mahimahi; its links begin at once and its logs hold all
        packets, leave one out
    --seed: not with --emulator mahimahi; mahimahi's losses have seeds of their own, leave it out
    --up --delay --jitter --reorder --loss --queue: not with --scenario; the scenario says that
    --queue-down --log-down: needs --down; the downlink has no bottleneck, give --down
"""

import os
import shlex
import sys
from argparse import Namespace
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from distrlcc.cli.output import note
from distrlcc.errors import ConfigError
from distrlcc.net.emulator.link_config import LinkConfig, direction, downlink, load_scenario, uplink
from distrlcc.net.emulator.link_log import LinkLog
from distrlcc.net.emulator.mahimahi import run_mahimahi
from distrlcc.net.emulator.namespace import enter_user_namespace, is_privileged
from distrlcc.net.emulator.shell import Job, run_shell
from distrlcc.sim.queues import QueueSpec, parse_queue
from distrlcc.sim.scenario import parse_jitter, parse_reorder


def run(args: Namespace) -> int:
    """Run COMMAND; return its exit code, 128 + number for a signal, 126 and 127 as a shell."""
    # The link, by this emulator or by mahimahi.
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    command = command or [os.environ.get("SHELL") or "/bin/sh"]
    link = replace(_link(args), waits=args.begin == "data")
    if args.emulator == "mahimahi":
        return run_mahimahi(link, command, logs=(args.log, args.log_down), outside=args.outside)
    # Run behind it.
    with ExitStack() as stack:
        up, down = (
            [stack.enter_context(closing(LinkLog(path, port))) for path, port in way]
            for way in _logs(args)
        )
        if not is_privileged():
            enter_user_namespace()
            if args.outside is None:
                note(
                    "distrlcc: without root COMMAND reaches only what --outside starts, or what "
                    "runs with it under unshare -Urn"
                )
        job = Job(link, command, args.outside, up, down, ("distrlcc", *sys.argv[1:]))
        code, start_error = run_shell(job, os.environ)
    # Say what failed.
    failures = [log.failure for log in (*up, *down) if log.failure]
    if start_error is not None:
        what = "command not found" if code == 127 else start_error.strerror
        failures.append(f"{command[0]}: {what}")
    for failure in failures:
        note(f"distrlcc: error: {failure}")
    return code or int(bool(failures))


def _logs(args: Namespace) -> tuple[list[tuple[Path, int | None]], list[tuple[Path, int | None]]]:
    up: list[tuple[Path, int | None]] = [] if args.log is None else [(args.log, None)]
    for port, file in args.log_port:
        if not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65535:
            raise ConfigError(f"--log-port {port} {file}: expected a port from 1 to 65535 first")
        up.append((Path(file), int(port)))
    down: list[tuple[Path, int | None]] = [] if args.log_down is None else [(args.log_down, None)]
    paths = [path.resolve() for path, _ in (*up, *down)]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{path} cannot hold two logs; name two files")
    return up, down


def words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--outside {text!r}: {error}; expected a command line") from None
    if not words:
        raise ConfigError("--outside is empty; expected a command line")
    return words


def _link(args: Namespace) -> LinkConfig:
    # Both directions from the flags.
    queue = QueueSpec() if args.queue is None else parse_queue(args.queue)
    queue_down = queue if args.queue_down is None else parse_queue(args.queue_down)
    if args.scenario is None:
        if args.up is None or args.down is None:
            raise ConfigError(
                "no link: give --up and --down (a rate such as 12, or a trace), or --scenario; "
                "see 'distrlcc emulate --help'"
            )
        share, late = parse_reorder(args.reorder)
        kind, jitter = parse_jitter(args.jitter)
        both = {"delay_ms": args.delay or 0.0, "jitter_ms": jitter, "jitter_kind": kind}
        both |= {"late_share": share, "late_ms": late}
        up = direction(args.up, queue=queue, loss=args.loss or 0.0, **both)
        down = direction(args.down, queue=queue_down, loss=args.loss_down, **both)
        return LinkConfig(up, down, args.seed or 0)
    # Or the uplink from a scenario.
    scenario = load_scenario(args.scenario)
    if (count := len(scenario.flows)) > 1:
        note(f"distrlcc: {scenario.name}: the link alone is emulated, none of its {count} flows")
    down = downlink(scenario.link)
    if args.down is not None:
        limited = direction(args.down, queue=queue_down, delay_ms=scenario.link.delay_ms)
        down = replace(down, source=limited.source, times=limited.times, queue=limited.queue)
    down = replace(down, loss=args.loss_down)
    seed = scenario.seed if args.seed is None else args.seed
    return LinkConfig(uplink(scenario.link), down, seed)
