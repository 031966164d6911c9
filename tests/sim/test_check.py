"""The kernel agrees with the reference, and the comparison catches planted mistakes."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distrlcc.sim
from distrlcc.sim.check import compare, random_script

FOLDER = Path(distrlcc.sim.__file__).parent
MODULES = ("acks", "capacity", "kernel")
"""What is compiled, in the order of imports."""


@pytest.mark.parametrize("number", range(80))
def test_kernel_and_reference_agree(number: int) -> None:
    assert compare(random_script(seed=2026, number=number)) is None


def test_oracles_are_drawn_and_share_with_flows_that_come_and_go() -> None:
    scripts = [random_script(seed=2026, number=k) for k in range(80)]
    beside = [
        script
        for script in scripts
        if any(flow.scheme == "oracle" for flow in script.scenario.flows)
        and any(flow.start_s > 0 or flow.stop_s is not None for flow in script.scenario.flows[1:])
    ]
    assert len(beside) >= 5


FLAT, DEEP, WINDOW = " " * 12, " " * 20, "window = "
MUTANTS = {
    "queue holds one more": ("(limit - 1) * service", "limit * service"),
    "trace queue holds one more": ("following - cursor < limit", "following - cursor <= limit"),
    "departures after arrivals": ("departures[place] <= now", "departures[place] < now"),
    "opportunity at the arrival is used": ("cursor_time <= now:", "cursor_time < now:"),
    "timer before ACK": ("if ack_time <= time:", "if ack_time < time:"),
    "wrong timeout": ("last_activity + col.TIMEOUT_NS", "last_activity + 999000000"),
    "service rounded down": ("begin + (work + rate - 1) // rate", "begin + work // rate"),
    "delay of the arrival, not the departure": ("departure >= row_end", "departure > row_end"),
    "ACKs overtake": ("ack_at = max(back, last_ack)", "ack_at = back"),
    "loss of another flow": ("loss_hash(seed, best_flow, sent)", "loss_hash(seed, 0, sent)"),
    "higher flow first": ("best_flow = filling\n", "best_flow = n_flows - 1 - filling\n"),
    "starts before ACKs": ("else FOREVER), 3", "else FOREVER), -1"),
    "event at the step's end": ("if time >= end:", "if time > end:"),
    "pacing forgets the present": (f"next_send = max(next_send, now)\n{DEEP}e", f"pass\n{DEEP}e"),
    "window rounded up": (
        f"{WINDOW}int(state[CWND])\n{FLAT}p",
        f"{WINDOW}math.ceil(state[CWND])\n{FLAT}p",
    ),
    "the oracle shares with flows that do not send": (
        "begin) < min(flows[f, col.STOP], end)",
        "begin) < FOREVER",
    ),
    "the oracle counts a stop too late": ("< min(flows[f, col.STOP], end):", "< end:"),
    "the oracle does not look ahead": ("end = time + step", "end = time"),
    "a step's least RTT is the newest": ("rtt_min = min(rtt_min, last_rtt)", "rtt_min = last_rtt"),
    "a step's greatest RTT is the newest": ("rtt_max = max(rtt_max, last_rtt)", "rtt_max = 0"),
    "the least RTT is forgotten": ("if min_rtt == 0 or last_rtt < min_rtt:", "if True:"),
    "an average of another weight": ("+= 0.125 * (delay -", "+= 0.1250001 * (delay -"),
    "the sending rate leaves out a packet": ("(sent - seq) * MEGA", "(sent - seq - 1) * MEGA"),
    "the delivery rate starts with the flow": ("(delivered - prior) * MEGA", "delivered * MEGA"),
    "losses are counted twice": ("step_lost += lost", "step_lost += 2 * lost"),
    "ACKs jitter by their loss": ("number + JITTER_FLOW", "number"),
    "ACKs come before their tick": ("(back + wait + tick - 1) // tick", "(back + wait) // tick"),
    "a held ACK jitters alone": ("until + wait +", "until +"),
    "the second of two does not release the first": (
        "ring[slot, col.R_ACK_TIME] = ack_at\n    ",
        "pass\n    ",
    ),
    "a packet after a gap is held": ("if not whole:", "if False:"),
    "packets are held for too long": ("back + col.DELAYED", "back + 1 + col.DELAYED"),
    "a packet as the time is over is held too": (
        "back <= flow[col.HELD_UNTIL]",
        "back < flow[col.HELD_UNTIL]",
    ),
    "the ACK of one that was alone is overtaken": ("last_ack = flow[col.HELD_ACK]", "pass"),
    "packets come after later ones": ("back = max(back, flow[col.NEWEST])", "pass"),
    "sends after the stop": (f"elif now < stop:\n{DEEP}    p", f"else:\n{DEEP}    p"),
}


def _mutant(old: str, new: str) -> Callable[..., int]:
    """Return the kernel with one change of its sources, in plain Python."""
    namespace: dict[str, Any] = {"__name__": "mutant"}
    changed = 0
    for name in MODULES:
        source = (FOLDER / f"{name}.py").read_text()
        changed += source.count(old) > 0
        tree = ast.parse(source.replace(old, new))
        # What one module takes from another is what was made of that one here, uncompiled.
        tree.body = [
            each
            for each in tree.body
            if not (
                isinstance(each, ast.ImportFrom)
                and each.module
                in ("distrlcc.control.compiled", *(f"distrlcc.sim.{m}" for m in MODULES))
            )
        ]
        namespace["njit"] = lambda function: function
        exec(compile(tree, name, "exec"), namespace)
    assert changed, f"the mutant's target is gone: {old!r}"
    advance: Callable[..., int] = namespace["advance"]
    return advance


def _agrees(kernel: Callable[..., int], scenarios: int = 60) -> bool:
    with np.errstate(over="ignore"):
        scripts = (random_script(seed=7, number=k) for k in range(scenarios))
        return all(compare(script, kernel) is None for script in scripts)


def test_the_plain_kernel_agrees() -> None:
    assert _agrees(_mutant("PACKET_BITS * 1e-6", "1e-6 * PACKET_BITS"), scenarios=12)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_comparison_catches(name: str) -> None:
    assert not _agrees(_mutant(*MUTANTS[name]))
