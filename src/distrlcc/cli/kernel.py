"""Put a policy into the kernel's own TCP, as a congestion control for any program."""

import os
import time
from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from distrlcc.cli.output import emit_json, exposition, note
from distrlcc.errors import counted
from distrlcc.limits import limits
from distrlcc.net.kernel import tcp
from distrlcc.net.kernel.tcp import KernelControl
from distrlcc.runs.stopper import Stopper

_NAME = "distrlcc"
_POLICY = """
    policy? POLICY =one  a policy's file, a run, or the name of a shipped policy
"""
_SUITES = ("random", "dynamic", "cellular", "slow", "fast", "shared-4")
_LINKS, _SECONDS = 8, 10.0
_SAME = 0.999  # least share of the same decisions


def run_load(args: Namespace) -> int:
    """Register a policy as a congestion control of the kernel's TCP, for any program.

    distrlcc kernel load                      (until Ctrl-C)
    distrlcc kernel load --keep               (until 'distrlcc kernel unload')
    distrlcc kernel load dagger --swap        (connections go on, under the new policy)

    Flags:
        $_POLICY
        $PREFER
        --name NAME =distrlcc  the control's name
        $ALWAYS
        --keep  stay until 'distrlcc kernel unload', not only until Ctrl-C
        --swap  give NAME, which is loaded already, this policy

    Rules:
        --keep: not with --swap; the registration stays as it is, leave --keep out
    """
    from distrlcc.evaluation.contender import contender_from_file
    from distrlcc.evaluation.kernel_policy import kernel_policy

    # What cannot work is refused before the policy is read.
    tcp.require_kernel()
    if not args.swap:
        tcp.check_name(args.name)
    contender = replace(contender_from_file(args.policy, args.prefer), always=args.always)
    record = kernel_policy(contender)
    if args.swap:
        control = tcp.find_control(args.name)
        before = control.label
        control.swap(record, contender.name)
        print(f"{args.name} runs {contender.name} now, in place of {before}")
        return 0
    # From here on a signal ends the hold, and nothing halfway.
    with Stopper() as stopper:
        begin = time.perf_counter()
        control = tcp.register(record, contender.name, args.name, keep=args.keep)
        print(_welcome(control, args, time.perf_counter() - begin), flush=True)
        while not (args.keep or stopper.signal):
            time.sleep(limits().tick)
        if not args.keep:
            print(_sums(control))
        control.close()
    if not args.keep:
        _warn_of_default(args.name)
    return 0


def _welcome(control: KernelControl, args: Namespace, seconds: float) -> str:
    """Return how it is put to use, and how it ends."""
    flag = "" if control.name == _NAME else f" --name {control.name}"
    end = f"distrlcc kernel unload{flag}" if args.keep else "Ctrl-C"
    return (
        f"{control.label} is the kernel's TCP congestion control {control.name} ({seconds:.1f} s)\n"
        f'  one program    setsockopt(IPPROTO_TCP, TCP_CONGESTION, "{control.name}"), '
        f"iperf3 -C {control.name}\n"
        f"  one namespace  ip netns exec NETNS {_default_line(control.name)}\n"
        f"  this machine   {_default_line(control.name)}      (yours to do)\n"
        f"  its end        {end}; connections that are open go on under the policy"
    )


def run_status(args: Namespace) -> int:
    """Show the policies in the kernel's TCP: their connections, decisions and the guard's work.

    Flags:
        $JSON
        --prometheus  print the figures for Prometheus, as node_exporter's textfiles

    Rules:
        --prometheus: not with --json; one of the two goes to standard output
    """
    found = tcp.loaded_controls()
    if args.prometheus:
        things = [({"name": c.name, "policy": c.label}, _figures(c)) for c in found]
        counters = {name for c in found for name in c.counts()} - {"max_ns"}
        print(exposition("distrlcc_kernel", things, counters), end="")
        return 0
    if args.json != "-":
        for control in found:
            print(_report(control))
        if not found:
            print("no policy is in the kernel's TCP; see 'distrlcc kernel load --help'")
    emit_json(args.json, [_figures(control) for control in found])
    return 0


def _report(control: KernelControl) -> str:
    figures = _figures(control)
    outside = (
        f"CUBIC's rule alone {figures['outside_s']:.1f} s: RTT under 2 ms "
        f"{figures['short_entries']} times, noise in delay {figures['noisy_entries']} times"
    )
    return (
        f"{control.name}: {control.label}, {figures['held']}\n"
        f"  connections  {figures['open']} open of {figures['sockets']}; {figures['fallbacks']} "
        "fell back to CUBIC\n"
        f"  decisions    {figures['decisions']} of {figures['decision_us']:.1f} µs, the longest "
        f"{figures['longest_us']:.0f}; {figures['acks']} ACKs\n"
        f"  guard        left {figures['guarded']:.2%} of them less than was chosen; CUBIC's rule "
        f"began {figures['guard_entries']} times, {figures['guard_s']:.1f} s in all\n"
        f"  outside      {'no path is (--always)' if control.always else outside}\n"
        f"  {figures['limited']} steps were limited by the application"
    )


def run_unload(args: Namespace) -> int:
    """Take a policy out of the kernel's TCP; connections that are open go on under it.

    Flags:
        --name NAME =distrlcc  the control's name
    """
    control = tcp.find_control(args.name)
    tcp.remove(control)
    print(f"{args.name} is gone; {_sums(control)}")
    _warn_of_default(args.name)
    return 0


def run_check(args: Namespace) -> int:
    """Compare what a policy decides in the kernel with what it decides here, and time it there.

    Simulated links are the inputs; both draw the same numbers. 1 if fewer than 99.9% of the
    decisions on a suite are the same.

    Flags:
        $_POLICY
        $PREFER
        $JSON
    """
    from distrlcc.evaluation.contender import contender_from_file
    from distrlcc.evaluation.kernel_policy import kernel_policy, same_action
    from distrlcc.net.kernel.trial import Trial
    from distrlcc.sim.suites import load_suite

    contender = contender_from_file(args.policy, args.prefer)
    shares = {}
    with closing(Trial(kernel_policy(contender))) as trial:
        for suite in _SUITES:
            scenarios = load_suite(suite).scenarios("test", _LINKS)
            shares[suite], count = same_action(contender, trial, scenarios, _SECONDS)
            if args.json != "-":
                print(f"{suite}: {shares[suite]:.2%} of {count} decisions are the same")
        nanoseconds = trial.time_decision()
    others = [suite for suite, share in shares.items() if share < _SAME]
    if args.json != "-":
        how = f"decides otherwise on {', '.join(others)}" if others else "fits"
        print(f"{contender.name} {how}; {nanoseconds / 1e3:.1f} µs a decision in this kernel")
    emit_json(args.json, {"same_action": shares, "decision_ns": nanoseconds})
    return int(bool(others))


def _default_line(name: str) -> str:
    return f"sysctl -w net.ipv4.tcp_congestion_control={name}"


def _warn_of_default(name: str) -> None:
    """Say that a network still names what is gone: its new connections would get Reno."""
    if Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip() == name:
        note(f"distrlcc: {name} is still this network's default; {_default_line('cubic')}")


def _figures(control: KernelControl) -> dict[str, Any]:
    counts = control.counts()
    return counts | {
        "name": control.name,
        "policy": control.label,
        "held": _held(control),
        "open": counts["sockets"] - counts["released"],
        "decision_us": counts["ns"] / max(counts["decisions"], 1) / 1e3,
        "longest_us": counts["max_ns"] / 1e3,
        "guarded": control.guarded_share(),
        "guard_s": counts["guard_us"] / 1e6,
        "outside_s": counts["outside_us"] / 1e6,
        "always": control.always,
    }


def _held(control: KernelControl) -> str:
    if control.link is None:
        return "unloaded; open connections keep the policy"
    if control.pin is not None:
        return f"kept, {control.pin}"
    holders = [pid for pid in control.holders() if pid != os.getpid()]
    return f"held by process {', '.join(map(str, holders))}" if holders else "held elsewhere"


def _sums(control: KernelControl) -> str:
    figures = _figures(control)
    return (
        f"{counted(figures['sockets'], 'connection')}, {figures['open']} still open; "
        f"{figures['decisions']} decisions of {figures['decision_us']:.1f} µs"
    )
