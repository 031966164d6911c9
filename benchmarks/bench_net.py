"""Measure real packets: the sender, its steps, the emulator, links in real time.

python -m benchmarks net
python -m benchmarks net --rates 12,96 --flows 8,16 --json -
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--seconds", type=number(1.0, 3600.0), default=5.0, metavar="S",
        help="length of each measurement (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--rates", default="12,48,96,200", metavar="R,…",
        help="emulated links, Mbit/s (default: 12,48,96,200); none: ''",
    )  # fmt: skip
    parser.add_argument(
        "--flows", default="4,8,16,32", metavar="N,…",
        help="flows of 12 Mbit/s in real time (default: 4,8,16,32); none: ''",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from benchmarks.packets import emulated, lateness, real_time, sending_cost, tcp_rate
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.scheduling import run_soon

    check_json_target(args.json)
    rates, flows = _numbers(args.rates, "--rates"), _numbers(args.flows, "--flows")
    run_soon()
    quiet = args.json == "-"
    cost = sending_cost(args.seconds)
    _say(
        quiet,
        f"sender on loopback: {cost.packets_per_second:,.0f} packets/s, "
        f"{cost.us_per_packet:.1f} us of CPU per packet",
    )
    steps = {}
    for name, processes in (("alone", 0), ("beside two busy processes", 2)):
        steps[name] = late = lateness(args.seconds, processes)
        _say(
            quiet,
            f"10 ms steps, {name}: {late.within_1ms:.2%} within 1 ms (p50 {late.p50:.2f}, p99 "
            f"{late.p99:.2f} ms late)",
        )
    links = []
    for rate in rates:
        links.append(link := emulated(rate, args.seconds))
        _say(
            quiet,
            f"emulated {rate:g} Mbit/s: {link.carried_mbps:.3f} ({link.error:+.3%}), "
            f"{link.cores:.2f} cores, {link.all_cores:.2f} with sender and receiver",
        )
    largest = tcp_rate(args.seconds) if rates else None
    if largest is not None:
        _say(quiet, f"one CUBIC flow over a link of 10 Gbit/s: {largest:,.0f} Mbit/s")
    worlds = []
    for count in flows:
        worlds.append(world := real_time(int(count), args.seconds))
        _say(
            quiet,
            f"{world.flows} flows of 12 Mbit/s: {world.steps_per_second:.1f} steps/s each, "
            f"{world.cores:.2f} cores, steps {world.p50_ms:.2f} ms late (p99 {world.p99_ms:.2f})",
        )
    emit_json(
        args.json,
        {
            "sender": asdict(cost),
            "steps": {name: asdict(late) for name, late in steps.items()},
            "emulator": [asdict(link) | {"error": link.error} for link in links],
            "largest_tcp_mbps": largest,
            "real_time": [asdict(world) for world in worlds],
        },
    )
    return 0


def _say(quiet: bool, line: str) -> None:
    if not quiet:
        print(line, flush=True)


def _numbers(text: str, flag: str) -> list[float]:
    try:
        values = [float(word) for word in text.split(",") if word]
    except ValueError:
        values = [0.0]
    if not all(0.1 <= value <= 10_000.0 for value in values):
        raise ConfigError(f"{flag} {text}: expected numbers from 0.1 to 10000, as in 12,48")
    return values
