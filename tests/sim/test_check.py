"""The kernel agrees with the reference, and the comparison catches planted mistakes."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import distrlcc.sim
from distrlcc.sim.check import Script, compare, random_script
from distrlcc.sim.scenario import Change, Flow, Link, Scenario

FOLDER = Path(distrlcc.sim.__file__).parent
MODULES = ("aqm", "acks", "capacity", "reordering", "live_queue", "kernel")
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


CORNERS = {
    "12 Gbit/s and 3 s": (Link(rate_mbps=12_032, delay_ms=1500), 1, 10.0),
    "32 flows": (Link(rate_mbps=50, delay_ms=10, queue_packets=100, ack_jitter_ms=2.0), 32, 20.0),
    "8 BDP of 1 Gbit/s and 400 ms": (
        Link(rate_mbps=1000, delay_ms=200, queue_packets=8 * 33_245),
        1,
        300_000.0,
    ),
}
"""Links beyond those of random scripts, with their flows and the greatest window of each."""


def _long_ago() -> Script:
    """Return a script whose greatest lateness comes early, more than 20 s before its end."""
    link = Link(rate_mbps=6, delay_ms=20, queue_packets=60, loss=0.02, reorder="0.1:50")
    rng, steps = np.random.default_rng(1), 500
    windows = np.where(np.arange(steps) < 50, rng.uniform(2, 90, steps), 20.0).round()
    scenario = Scenario("long ago", link, duration_s=0.05 * steps)
    return Script(scenario, [50_000_000] * steps, windows[:, None].tolist(), [[0.0]] * steps)


def _long_silence() -> Script:
    """Return the same, silent for more than two windows of time before its end."""
    script = _long_ago()
    changes = Change(3.0, rate_mbps=0.0), Change(24.5, rate_mbps=6.0)
    link = replace(script.scenario.link, changes=changes)
    scenario = replace(script.scenario, name="long silence", link=link, duration_s=30.0)
    steps = 600
    windows = [*script.windows[:50], *[[20.0]] * (steps - 50)]
    return Script(scenario, [50_000_000] * steps, windows, [[0.0]] * steps)


LONG = {"long ago": _long_ago, "long silence": _long_silence}


@pytest.mark.parametrize("name", LONG)
def test_they_agree_when_a_lateness_is_of_long_ago(name: str) -> None:
    assert compare(LONG[name]()) is None


@pytest.mark.parametrize(
    "corner", [*islice(CORNERS, 2), pytest.param([*CORNERS][2], marks=pytest.mark.long)]
)
def test_they_agree_in_corners_of_the_world(corner: str) -> None:
    link, count, most = CORNERS[corner]
    rng, steps = np.random.default_rng(0), 60
    flows = tuple(Flow(start_s=round(0.01 * k, 2)) for k in range(count))
    scenario = Scenario(corner, link, flows, duration_s=0.01 * steps)
    windows = rng.uniform(0.9 * most, most, (steps, count)).round()
    pacing = np.zeros((steps, count))
    assert (
        compare(Script(scenario, [10_000_000] * steps, windows.tolist(), pacing.tolist())) is None
    )


FLAT, DEEP, WINDOW = " " * 12, " " * 20, "window = "
MUTANTS = {
    "drops are counted twice": ("dropped += 1", "dropped += 2"),
    "random losses are not counted": ("random_lost += 1", "random_lost += 0"),
    "a live link's drops are counted twice": ("col.DROPPED] += 1", "col.DROPPED] += 2"),
    "a live link's losses are not counted": ("col.RANDOM_LOST] += 1", "col.RANDOM_LOST] += 0"),
    "capacity of the step before, too": (
        "carried(link, schedule, traces, link[col.STEP_START], end)",
        "carried(link, schedule, traces, 0, end)",
    ),
    "base RTT without service": ("base += float(service)", "base += 0.0"),
    "used is all that ever was": ("used - link_results[n, col.TOTAL_USED]", "used"),
    "the bucket's total is a step's": (
        "capacity = total - link_results[n, col.TOTAL_CAPACITY]",
        "capacity = total",
    ),
    "the bucket lets pass what it had not": (
        "total = max(min(whole, policed), used)",
        "total = whole",
    ),
    "queue holds one more": ("(limit - 1) * service", "limit * service"),
    "trace queue holds one more": ("following - cursor < limit", "following - cursor <= limit"),
    "departures after arrivals": ("queues[place] <= now", "queues[place] < now"),
    "opportunity at the arrival is used": ("cursor_time <= now:", "cursor_time < now:"),
    "timer before ACK": ("if ack_time <= time:", "if ack_time < time:"),
    "timer: another least timeout": ("max(rttvar, MIN_RTO)", "max(rttvar, MIN_RTO + 1)"),
    "timer: the RTT does not count": ("base = (srtt >> 3) +", "base = 0 +"),
    "timer: the variation does not count": ("max(rttvar, MIN_RTO)", "MIN_RTO"),
    "timer: smoothed too fast": ("error = rtt - (srtt >> 3)\n", "error = rtt - (srtt >> 2)\n"),
    "timer: its variation never falls": ("abs(error) - (rttvar >> 2)", "abs(error)"),
    "timer: it does not back off": ("base << min(backoff, MOST_DOUBLINGS)", "base"),
    "timer: an ACK does not end the back-off": ("backoff = 0\n", "pass\n"),
    "timer: each packet restarts it": ("if pending > 0 and sent == next_ack:", "if pending > 0:"),
    "timer: an ACK does not restart it": (
        "timer_start = now\n                    last_rtt",
        "last_rtt",
    ),
    "timer: no handshake came first": ("srtt = 8 * rtt\n", "srtt = 8\n"),
    "timer: a handshake over the first delay": (
        "row_at(link, times[n], now)] + extra, 1",
        "0] + extra, 1",
    ),
    "undo: a spurious timeout stays": ("undone = seq < flows[f, col.PROBE]", "undone = False"),
    "undo: any timeout": ("undone = seq < flows[f, col.PROBE]", "undone = True"),
    "undo: to what the newest timeout left": (
        "if backoff == 0:\n                                    copy_row",
        "if True:\n                                    copy_row",
    ),
    "late: by the loss": ("number + LATE_FLOW", "number"),
    "late: packets keep their order": ("last[col.R_ACK_TIME] > newest", "False and newest"),
    "late: they wait for the others": ("if ahead > 0 or", "if True or"),
    "late: a tie goes to the ring": ("(ahead == 0 and late", "(ahead == 0 or late"),
    "late: a tie goes to the newer": ("and late[col.R_COUNTS] >", "and late[col.R_COUNTS] <"),
    "late: two later ones are enough": ("PACKET_THRESHOLD + 1", "PACKET_THRESHOLD + 2"),
    "late: patience without the lateness seen": ("late + (late >> 2)", "0"),
    "late: no quarter more": ("late + (late >> 2)", "late"),
    "late: a finer clock": ("least >> 2, GRANULARITY)", "least >> 2)"),
    "late: the threshold counts for ever": ("if late == NEVER_LATE else 0", ""),
    "late: the RTT of any packet": (
        "        flow[col.LARGEST_RTT] = rtt\n    else:",
        "        pass\n    flow[col.LARGEST_RTT] = rtt\n    if seq < flow[col.LARGEST]:",
    ),
    "late: the newest lateness": ("max(flow[col.LATENESS], rtt", "max(rtt"),
    "late: a lateness counts for ever": ("> LATE_FOR", "> FOREVER"),
    "late: the window before does not count": (
        "flow[col.LATENESS] if age <= 2 * LATE_FOR else NEVER_LATE",
        "NEVER_LATE",
    ),
    "late, silence: any window before counts": ("if age <= 2 * LATE_FOR else NEVER_LATE", ""),
    "late: who was lost never comes": ("return (0 if fate > 0 else 1), undone", "return 1, undone"),
    "late: overtaken ones are smoothed": ("newest = seq > flows[f, col.LARGEST]", "newest = True"),
    "late: the scheme hears of the packet, not the losses": (
        "told = flows[f, col.LARGEST_LOST] + 1",
        "told = seq",
    ),
    "late: losses are told twice": ("flows[f, col.UNREPORTED] = 0\n", "pass\n"),
    "late: what the timer finds lost does not count": (
        f"step_lost += lost\n{' ' * 28}next_ack += lost",
        "next_ack += lost",
    ),
    "undo: after it the next one must be of newer packets": (
        "flow[col.RECOVERY_UNTIL] = flow[col.RECOVERY_FROM]",
        "pass",
    ),
    "late: spurious ones do not count": ("flow[col.STEP_SPURIOUS] += 1", "pass"),
    "undo: a recovery stays": ("undone = flow[col.BEGINS] == 0", "pass"),
    "undo: one that the scheme does not know of": (
        "undone = flow[col.BEGINS] == 0",
        "undone = True",
    ),
    "undo: one of a recovery's losses is enough": ("if flow[col.RECOVERY_LOST] == 0:", "if True:"),
    "undo: losses of the recovery before count": (
        "elif fate > 0 and seq >= flow[col.RECOVERY_FROM]:",
        "elif fate > 0:",
    ),
    "undo: the recovery's row is of its end": (
        "if begins:\n                                copy",
        "if lost > 0:\n                                copy",
    ),
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
    "the least RTT is forgotten": ("if min_rtt == 0 or rtt < min_rtt:", "if True:"),
    "an average of another weight": ("+= 0.125 * (delay -", "+= 0.1250001 * (delay -"),
    "the sending rate leaves out a packet": ("(sent - seq) * MEGA", "(sent - seq - 1) * MEGA"),
    "the delivery rate starts with the flow": ("(delivered - prior) * MEGA", "delivered * MEGA"),
    "losses are counted twice": ("step_lost += lost", "step_lost += 2 * lost"),
    "ACKs jitter by their loss": ("number + JITTER_FLOW", "number"),
    "ACKs come before their tick": ("(late + tick - 1) // tick", "late // tick"),
    "a held ACK jitters alone": ("late = until + wait(", "late = until + 0 * wait("),
    "a held ACK jitters as it came": ("JITTER_FLOW, seq, until)", "JITTER_FLOW, seq, back)"),
    "ACKs jitter as packets do": ("link[col.ACK_JITTER_KIND]", "link[col.HOP_JITTER_KIND]"),
    "packets jitter as ACKs do": ("link[col.HOP_JITTER_KIND]", "link[col.ACK_JITTER_KIND]"),
    "normal: of three": ("parts + (bits >> 45 & 0x7FFF)", "parts"),
    "exponential: each scale halves": (">> 9)) >> 23", ">> 9)) >> 20"),
    "exponential: steps of whole halvings": (
        "halvings * _HALF - (share - _HALF)",
        "halvings * _HALF",
    ),
    "correlated: flows are strangers": ("flow // JITTER_FLOW * JITTER_FLOW + NO_FLOW", "flow"),
    "correlated: it jumps": ("place + 1) >> 33", "place + 2) >> 33"),
    "correlated: by packets": ("if kind == col.CORRELATED or", "if"),
    "bursts: a pause begins its period": (
        "begin = ((period - length)",
        "begin = 0 * ((period - length)",
    ),
    "bursts: pauses are alike": ("length = (scale * share) >> 30", "length = scale"),
    "bursts: what came before waits too": ("begin <= elapsed <", "elapsed <"),
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
    "the hop lets packets overtake": ("link[col.HOP_ARRIVAL], late)", "now, late)"),
    "jitter before the queue by the loss": ("number + HOP_FLOW", "number"),
    "a wait in the hop is queueing": (
        "departure - queues[slot + col.Q_ARRIVAL]",
        "departure - queues[slot + col.Q_SEND_TIME]",
    ),
    "arrivals before a live link's departures": (
        "leaves <= min(until, arrives)",
        "leaves <= until and leaves < arrives",
    ),
    "a live link's departure at the step's end": (
        "min(best_time, end),",
        "min(best_time, end - 1),",
    ),
    "a flow goes on before the live link": ("if other_time > best_time:", "if False:"),
    "a live link uses the opportunity at the arrival": (
        "opportunity(link, traces) <= now",
        "opportunity(link, traces) < now",
    ),
    "a live link rounds service down": ("now + (work + rate - 1) // rate", "now + work // rate"),
    "a live link takes the delay before its departure": (
        "row = row_at(link, times, departure)",
        "row = row_at(link, times, departure - 1)",
    ),
    "a live link's ACKs overtake": ("ack_at = max(back, flow[col.LAST_ACK])", "ack_at = back"),
    "the bucket overflows": ("elapsed > missing // rate", "False"),
    "the bucket must hold more than a packet": ("< PACKET_WORK", "<= PACKET_WORK"),
    "droptail leaves out the packet in service": ("and link[col.FREE] > now", "and False"),
    "CoDel and PIE count the packet in service": ("kind == col.DROPTAIL and", "kind >= 0 and"),
    "PIE's lottery is the loss": ("+ LOTTERY_FLOW", ""),
    "PIE does not see departures": ("pie_catch_up(rule, now, float(arrival))", "pass"),
    "PIE sees the newest packet": (
        "place(link, link[col.QUEUE_HEAD]) + col.Q_ARRIVAL])\n        pie",
        "place(link, link[col.QUEUE_TAIL] - 1) + col.Q_ARRIVAL])\n        pie",
    ),
    "CoDel counts the packet that it takes": ("left * PACKET", "(left + 1) * PACKET"),
    "what CoDel drops was carried": ("link[col.ACCEPTED] -= 1", "pass"),
    "ECN: a mark is forgotten": ("marked = 1\n", "marked = 0\n"),
    "ECN: a mark spoils the wait": ("wait = ~wait", "wait = -wait"),
    "ECN: each capable packet is marked": ("== col.MARKED else", ">= col.CAPABLE else"),
    "ECN: packets of any flow are marked": ("= flows[f, col.ECN]", "= 1"),
    "CoDel of ECN drops what it marks": ("fate != aqm.DROP:\n", "fate == aqm.PASS:\n"),
    "CoDel of ECN marks the next one at once": (
        "row[COUNT] += 1\n        if capable:\n            row[DROP_NEXT] +=",
        "row[COUNT] += 1\n        if capable:\n            row[LAST_COUNT] +=",
    ),
    "CoDel of ECN drops the first one": ("MARK if capable else DROP", "DROP"),
    "PIE of ECN drops what it marks": ("return fate != aqm.DROP", "return fate == aqm.PASS"),
    "PIE of ECN never drops": ("capable and chance < _MARKS_BELOW", "capable"),
    "PIE of ECN marks packets of any flow": ("MARK if capable and", "MARK if"),
    "droptail of ECN marks one too late": ("held >= link[col.MARK]", "held > link[col.MARK]"),
    "droptail of ECN marks packets of any flow": ("link[col.MARK] and capable:", "link[col.MARK]:"),
    "droptail of ECN leaves out the packet in service": (
        "held >= link[col.MARK]",
        "waiting >= link[col.MARK]",
    ),
    "a flow sends more than its size": (
        "pending = min(window, size - delivered)",
        "pending = window",
    ),
    "a paced flow sends more than its size": (
        "most = min(window, size - delivered)",
        "most = window",
    ),
    "a flow goes on when it is complete": ("stop = min(stop, now)", "pass"),
    "a flow is complete when all is sent": ("if delivered == size:", "if sent == size:"),
    "silence: its time counts as service": (
        "begin = until_row\n",
        "begin = until_row if rate else begin\n",
    ),
    "sends after the stop": (f"elif now < stop:\n{DEEP}    p", f"else:\n{DEEP}    p"),
}


KINDS = {
    "ECN": "ecn=1|mark=",
    "PIE of ECN": "pie:.*ecn=1",
    "CoDel of ECN": "codel:.*ecn=1",
    "droptail of ECN": "mark=",
    "PIE": "pie:",
    "CoDel": "codel:",
    "the bucket": r"policer_packets=\d",
    "ACKs overtake": r"aqm=None, jitter_ms=0.0.*ack_jitter_ms=0.0, .*False, .*delay_ms=\d",
    "the ACK of one": r"ack_jitter_ms=[1-9]\d.*delayed_acks=True",
    "packets come": "delayed_acks=True",
    "a packet as": r"loss=0.0.*ack_tick_ms=0.0, delayed_acks=True",
    "a live link's departure": "trace='.*(codel|pie)",
    "a live link's drops": "codel|pie",
    "a live link's losses": r"loss=0\.(01|3).*(codel|pie)",
    "random losses": r"loss=0\.(01|3)",
    "base RTT": "trace=None.*changes=\\(\\)",
    "silence": r"rate_mbps=0\.0\b",
    "late: a lateness counts": "long ago",
    "late: the window": "long ago",
    "late, silence": "long silence",
    "a held ACK jitters as": "ack_jitter_kind='(correlated|bursts)'.*delayed_acks=True",
    "ACKs jitter as": "jitter_kind='(normal|exponential|correlated|bursts)'",
    "packets jitter as": " jitter_kind='(normal|exponential|correlated|bursts)'",
    "normal": "jitter_kind='normal'",
    "exponential": "jitter_kind='exponential'",
    "correlated": "jitter_kind='correlated'",
    "correlated: flows": "jitter_kind='correlated'.*Flow.*Flow",
    "bursts": "jitter_kind='bursts'",
    "late": "reorder='",
    "undo: a rec": "reorder='",
    "undo: one": "reorder='",
    "undo: losses": "reorder='",
    "undo: the": "reorder='",
    "undo: after": "reorder='",
    "undo: one that": "reorder='",
}
"""Which links, by their text, show a mistake whose name begins so; any link shows the others."""


def _is_import_of_compiled(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.ImportFrom):
        return False
    modules = [f"{statement.module}.{name.name}" for name in statement.names]
    compiled = ["distrlcc.control.compiled", *(f"distrlcc.sim.{name}" for name in MODULES)]
    return statement.module in compiled or modules[0] in compiled


def _mutant(old: str, new: str) -> Callable[..., int]:
    """Return the kernel with one change of its sources, in plain Python."""
    namespace: dict[str, Any] = {"__name__": "mutant"}
    changed = 0
    for name in MODULES:
        source = (FOLDER / f"{name}.py").read_text()
        changed += source.count(old) > 0
        tree = ast.parse(source.replace(old, new))
        # What one module takes from another is what was made of that one here, uncompiled.
        tree.body = [each for each in tree.body if not _is_import_of_compiled(each)]
        namespace["njit"] = lambda function: function
        exec(compile(tree, name, "exec"), namespace)
        if name in ("aqm", "reordering"):
            namespace[name] = SimpleNamespace(**namespace)
    assert changed, f"the mutant's target is gone: {old!r}"
    advance: Callable[..., int] = namespace["advance"]
    return advance


FIRST = {
    "undo: a spurious timeout stays": 46,
    "undo: to what the newest timeout left": 46,
    "undo: a recovery stays": 49,
    "undo: losses of the recovery before count": 49,
    "undo: the recovery's row is of its end": 49,
    "queue holds one more": 18,
    "departures after arrivals": 37,
    "opportunity at the arrival is used": 5,
    "delay of the arrival, not the departure": 21,
    "ACKs overtake": 425,
    "a packet after a gap is held": 8,
    "a packet as the time is over is held too": 289,
    "arrivals before a live link's departures": 26,
    "a live link's departure at the step's end": 156,
    "a flow goes on before the live link": 8,
    "a live link rounds service down": 10,
    "a live link takes the delay before its departure": 46,
    "a live link's ACKs overtake": 15,
    "droptail leaves out the packet in service": 10,
    "PIE sees the newest packet": 70,
    "ECN: a mark is forgotten": 77,
    "PIE of ECN drops what it marks": 331,
    "droptail of ECN marks one too late": 91,
    "droptail of ECN leaves out the packet in service": 91,
}
"""Where the search for a script that tells begins, as those before do not: it takes seconds."""


def _agrees(
    kernel: Callable[..., int], scenarios: int = 60, kind: str = "", first: int = 0
) -> bool:
    """Compare on random scenarios whose link's text has a ``kind``."""
    scripts: Iterator[Script] = (random_script(seed=7, number=k) for k in count(first))
    if kind in LONG:
        scripts, kind = iter([LONG[kind]()]), ""
    wanted = (script for script in scripts if re.search(kind, str(script.scenario.link)))
    with np.errstate(over="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("distrlcc.sim.simulator._compiled_kernel", lambda _: kernel)
        return all(compare(script) is None for script in islice(wanted, scenarios))


@pytest.mark.slow
def test_the_plain_kernel_agrees() -> None:
    assert _agrees(_mutant("PACKET_BITS * 1e-6", "1e-6 * PACKET_BITS"), scenarios=12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (k % 6 > 0)) for k, n in enumerate(MUTANTS)]
)
def test_the_comparison_catches(name: str) -> None:
    kind = next((text for start, text in KINDS.items() if name.startswith(start)), "")
    assert not _agrees(_mutant(*MUTANTS[name]), kind=kind, first=FIRST.get(name, 0))
