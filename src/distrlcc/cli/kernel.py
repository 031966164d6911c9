"""``distrlcc kernel``: a policy as a congestion control of the kernel's own TCP."""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrlcc.cli.output import add_json, console, counted, emit_json, note
from distrlcc.cli.parser import Parser, number

if TYPE_CHECKING:
    from distrlcc.evaluate.contender import Contender
    from distrlcc.net.kernel_tcp import KernelControl

_NAME = "distrlcc"
_ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def add_load(parser: Parser) -> None:
    _add_policy(parser)
    _add_name(parser)
    parser.add("--keep", "stay until 'distrlcc kernel unload', not only until Ctrl-C", bool)
    parser.add("--swap", "give NAME, which is loaded already, this policy", bool)


def run_load(args: Namespace) -> int:
    """Register a policy as a congestion control of the kernel's TCP, for any program.

    distrlcc kernel load fair                 (until Ctrl-C)
    distrlcc kernel load fair --keep          (until 'distrlcc kernel unload')
    distrlcc kernel load best --swap          (connections go on, under the new policy)
    """
    from distrlcc.evaluate.kernel_policy import kernel_record
    from distrlcc.net.kernel_tcp import check_name, find_control, register, require_kernel

    # What cannot work is refused before the policy is read.
    require_kernel()
    if not args.swap:
        check_name(args.name)
    contender = _contender(args)
    record = kernel_record(contender)
    if args.swap:
        control = find_control(args.name)
        before = control.label
        control.swap(record, contender.name)
        print(f"{args.name} runs {contender.name} now, in place of {before}")
        return 0
    # From here on a signal ends the hold, and nothing halfway.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    begin = time.perf_counter()
    control = register(record, contender.name, args.name, keep=args.keep)
    took = time.perf_counter() - begin
    print(
        f"{contender.name} is the kernel's TCP congestion control {args.name} ({took:.1f} s)\n"
        f'  one program    setsockopt(IPPROTO_TCP, TCP_CONGESTION, "{args.name}"); '
        f"iperf3 -C {args.name}\n"
        f"  one namespace  ip netns exec NETNS {_default_line(args.name)}\n"
        f"  this machine   {_default_line(args.name)}      (we never do that)",
        flush=True,
    )
    if args.keep:
        print(f"  its end        distrlcc kernel unload{_flag(args.name)}")
        control.close()
        return 0
    print("  its end        Ctrl-C; connections that are open go on under the policy", flush=True)
    signal.sigwait(_ENDS)
    print(_sums(control))
    control.close()
    _warn_of_default(args.name)
    return 0


def add_status(parser: Parser) -> None:
    add_json(parser)


def run_status(args: Namespace) -> int:
    """Show the policies in the kernel's TCP: their connections, decisions and the guard's work."""
    from rich.table import Table

    from distrlcc.net.kernel_tcp import loaded_controls

    found = loaded_controls()
    table = Table()
    for column in ("control", "policy", "held", "connections", "decisions", "guard", "CUBIC"):
        table.add_column(column, overflow="fold")
    for control in found:
        figures = _figures(control)
        table.add_row(
            control.name,
            control.label,
            figures["held"],
            f"{figures['open']} open of {figures['sockets']}",
            f"{figures['decisions']}, {figures['decision_us']:.1f} µs each, "
            f"longest {figures['longest_us']:.0f}",
            f"{figures['guard_entries']} times, {figures['guard_s']:.1f} s",
            f"{figures['fallbacks']} fell back",
        )
    if args.json != "-":
        if found:
            console(args.json).print(table)
        else:
            print("no policy is in the kernel's TCP; see 'distrlcc kernel load --help'")
    emit_json(args.json, [_figures(control) for control in found])
    return 0


def add_unload(parser: Parser) -> None:
    _add_name(parser)


def run_unload(args: Namespace) -> int:
    """Take a policy out of the kernel's TCP; connections that are open go on under it."""
    from distrlcc.net.kernel_tcp import find_control, remove

    control = find_control(args.name)
    remove(control)
    print(f"{args.name} is gone; {_sums(control)}")
    _warn_of_default(args.name)
    return 0


def _add_policy(parser: Parser) -> None:
    parser.add("policy POLICY", "a policy's file, a run, or the name of a shipped policy")
    text = "0: throughput, 1: delay, for a policy trained with preferences (default: its own)"
    parser.add("--prefer P", text, number(0, 1))


def _add_name(parser: Parser) -> None:
    parser.add("--name NAME", "the control's name", default=_NAME)


def _contender(args: Namespace) -> Contender:
    from distrlcc.evaluate.contender import contender_from_file

    return contender_from_file(args.policy, set(), args.prefer)


def _flag(name: str) -> str:
    return "" if name == _NAME else f" --name {name}"


def _default_line(name: str) -> str:
    return f"sysctl -w net.ipv4.tcp_congestion_control={name}"


def _warn_of_default(name: str) -> None:
    """Say that a network still names what is gone: its new connections would get Reno."""
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    if default == name:
        note(f"distrlcc: {name} is still this network's default; {_default_line('cubic')}")


def _figures(control: KernelControl) -> dict[str, Any]:
    """Return what status shows, and the program's own counts."""
    counts = control.counts()
    return counts | {
        "name": control.name,
        "policy": control.label,
        "held": _held(control),
        "open": counts["sockets"] - counts["released"],
        "decision_us": counts["ns"] / max(counts["decisions"], 1) / 1e3,
        "longest_us": counts["max_ns"] / 1e3,
        "guard_s": counts["guard_us"] / 1e6,
    }


def _held(control: KernelControl) -> str:
    if control.link is None:
        return "no more: its connections go on"
    if control.pin is not None:
        return f"kept, {control.pin}"
    holders = [pid for pid in control.holders() if pid != os.getpid()]
    return f"by process {', '.join(map(str, holders))}" if holders else "by another container"


def _sums(control: KernelControl) -> str:
    figures = _figures(control)
    return (
        f"{counted(range(figures['sockets']), 'connection')}, {figures['open']} still open; "
        f"{figures['decisions']} decisions of {figures['decision_us']:.1f} µs"
    )
