"""Laws that every simulator of a bottleneck keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.control.state import CWND, SCHEMES
from distrlcc.errors import CheckpointError, ConfigError
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator

STEP = 10_000_000


def _run(link: Link, *flows: Flow, steps: int = 300, **options: bool) -> tuple[Simulator, Any]:
    simulator = Simulator(1, len(flows), **options)
    simulator.load(0, Scenario("test", link, flows, seed=3))
    used = capacity = 0.0
    for _ in range(steps):
        simulator.advance(STEP)
        used += simulator.results[0, col.USED]
        capacity += simulator.results[0, col.CAPACITY]
    return simulator, {"used": used, "capacity": capacity}


def timeout_after(handshake_ms: float, *rtts_ms: float) -> float:
    """Return the timeout that RFC 6298 has after some RTTs, s, as the handshake's was the first."""
    smoothed, variation = handshake_ms, handshake_ms / 2
    for rtt in rtts_ms:
        variation += (abs(smoothed - rtt) - variation) / 4
        smoothed += (rtt - smoothed) / 8
    return (smoothed + max(4 * variation, 200.0)) * 1e-3


@pytest.mark.parametrize("cwnd", [20, 41, 61])
def test_one_bdp_fills_the_link_without_a_queue(cwnd: int) -> None:
    # 12.032 Mbit/s is a packet a millisecond: 40 ms of propagation, 1 of service: 41.
    link = Link(rate_mbps=12.032, delay_ms=20, queue_packets=100)
    simulator, totals = _run(link, Flow(cwnd=cwnd), steps=1000, with_best=True)
    assert totals["used"] / totals["capacity"] == pytest.approx(min(cwnd / 41, 1), rel=0.01)
    # At the step's end one packet has just departed and the next has not arrived yet.
    assert simulator.results[0, col.QUEUE] == max(cwnd - 41, 0)
    assert simulator.stats().rtt_last[0] == pytest.approx(max(cwnd, 41) * 1e-3)
    assert simulator.results[0, col.BASE_RTT] == pytest.approx(0.041)
    assert simulator.results[0, col.BEST_CWND] == pytest.approx(41.0)


@pytest.mark.parametrize("scheme", [*list(SCHEMES)[3:], "oracle"])
@pytest.mark.parametrize("loss", [0.0, 0.02])
@pytest.mark.parametrize(
    "queue", [{"queue_packets": 20}, {"aqm": "pie:packets=99", "jitter_ms": 2}]
)
def test_packets_are_conserved(scheme: str, loss: float, queue: Any) -> None:
    link = Link(rate_mbps=8, delay_ms=15, loss=loss, **queue)
    simulator, totals = _run(link, Flow(scheme), Flow("cubic", start_s=1.0, stop_s=2.0))
    waiting = 0
    for row in simulator.flows:
        gone = row[col.DROPPED] + row[col.RANDOM_LOST]
        resolved = row[col.DELIVERED] + row[col.TAIL] - row[col.HEAD] + gone
        waiting += row[col.SENT] - resolved
    link_row = simulator.links[0]
    queued = link_row[col.QUEUE_TAIL] - link_row[col.QUEUE_HEAD]
    assert waiting == queued + link_row[col.HOP_TAIL] - link_row[col.HOP_HEAD]
    assert totals["used"] <= totals["capacity"] + 1e-6
    assert totals["used"] > 0.5 * totals["capacity"]


def test_random_loss_has_its_probability() -> None:
    simulator, _ = _run(Link(rate_mbps=50, delay_ms=5, loss=0.1), Flow(cwnd=60), steps=1000)
    row = simulator.flows[0]
    assert row[col.RANDOM_LOST] / row[col.SENT] == pytest.approx(0.1, rel=0.06)


def _ack_times(link: Link, window: int, ms: int) -> list[float]:
    """Return when ACKs of a first window come, ms."""
    simulator = Simulator(1, 1, log_packets=100)
    simulator.load(0, Scenario("acks", link, (Flow(cwnd=window),)))
    simulator.advance(ms * 1_000_000)
    return [round(time * 1e-6, 3) for time in simulator.log[1 : window + 1, 3].tolist()]


def test_acks_are_delayed_and_bunched_as_computed_by_hand() -> None:
    # A packet a ms, so that ACKs would come at 21, 22, 23, ... ms.
    link = Link(rate_mbps=12.032, delay_ms=10)
    assert _ack_times(link, 3, 1) == [21.0, 22.0, 23.0]
    # Every second packet, and the fifth alone after 40 ms.
    delayed = replace(link, delayed_acks=True)
    assert _ack_times(delayed, 5, 1) == [22.0, 22.0, 24.0, 24.0, 65.0]
    # The fourth of a queue of three is dropped, so nothing tells that it is missing until later.
    assert _ack_times(replace(delayed, queue_packets=3), 4, 1) == [22.0, 22.0, 63.0, -0.0]
    # In bunches at multiples of 8 ms: 24, 24, 24, 24, 32.
    assert _ack_times(replace(link, ack_tick_ms=8), 5, 1) == [24.0, 24.0, 24.0, 24.0, 32.0]


def test_acks_jitter_uniformly_and_none_overtakes() -> None:
    # So far apart that none waits for the one before it.
    slow = Link(rate_mbps=12.032 / 50, delay_ms=10, ack_jitter_ms=30)
    times = np.array(_ack_times(slow, 60, 1))
    waits = times - (20 + 50 * np.arange(1, 61))
    assert 0 <= waits.min() < 3
    assert 27 < waits.max() < 30
    assert waits.mean() == pytest.approx(15, abs=3)
    fast = np.array(_ack_times(replace(slow, rate_mbps=12.032), 60, 1))
    assert (np.diff(fast) >= 0).all()
    assert (np.diff(fast) == 0).sum() > 20


def test_packets_jitter_before_the_queue_in_the_order_of_sending() -> None:
    # So fast that a packet's ACK tells when it reached the queue, and so seldom sent that each
    # has a time of its own.
    link = Link(rate_mbps=1000, delay_ms=0, jitter_ms=30)
    simulator = Simulator(1, 1, log_packets=200)
    simulator.load(0, Scenario("hop", link, (Flow(cwnd=1000, pacing_mbps=12.032 / 50),)))
    for _ in range(300):
        simulator.advance(STEP)
    log = simulator.log[1 : int(simulator.log[0, 0]) + 1]
    waits = (log[:, 2] - log[:, 1])[log[:, 2] != col.FOREVER] * 1e-6
    assert len(waits) > 55
    assert 0 < waits.min() < 3
    assert 27 < waits.max() < 30.1
    assert waits.mean() == pytest.approx(15, abs=3)
    # Sent at once, they come in order, and the wait is no queueing.
    simulator, _ = _run(link, Flow(cwnd=40), steps=300)
    row = simulator.flows[0]
    assert row[col.QUEUEING_SUM] / row[col.DELIVERED] < 1e6
    assert row[col.DROPPED] == row[col.NEXT_ACK] - row[col.DELIVERED] == 0


def test_a_policer_drops_what_its_bucket_lacks() -> None:
    # Five packets of burst, and one more each 2 ms: of a window of eight at once three are lost,
    # and the link carries most of what passes the bucket.
    link = Link(rate_mbps=12.032, delay_ms=10, policer_mbps=6.016, policer_packets=5)
    assert _ack_times(link, 8, 30) == [21.0, 22.0, 23.0, 24.0, 25.0, -0.0, -0.0, -0.0]
    simulator, totals = _run(link, Flow("cubic"), steps=1000)
    assert 0.6 < totals["used"] / totals["capacity"] <= 1.0
    assert simulator.flows[0, col.DROPPED] > 20


@pytest.mark.parametrize(
    ("aqm", "loss", "wait_ms"), [("codel", (0.001, 0.02), 20), ("pie", (0.001, 0.05), 30)]
)
@pytest.mark.parametrize("link", [{"rate_mbps": 12.032}, {"trace": "constant:12.032"}])
def test_active_queues_keep_a_loss_based_flow_short(
    aqm: str, loss: tuple[float, float], wait_ms: float, link: Any
) -> None:
    long, short = (
        _run(Link(delay_ms=20, **link, **queue), Flow("cubic"), steps=2000)
        for queue in ({"queue_packets": 300}, {"aqm": f"{aqm}:packets=300"})
    )
    waits = [
        run[0].flows[0, col.QUEUEING_SUM] / run[0].flows[0, col.DELIVERED] for run in (long, short)
    ]
    assert waits[0] > 100e6
    assert waits[1] < wait_ms * 1e6
    row, totals = short[0].flows[0], short[1]
    assert loss[0] < row[col.DROPPED] / row[col.SENT] < loss[1]
    assert totals["used"] / totals["capacity"] > 0.9


def _shares(run: tuple[Simulator, Any]) -> Any:
    """Return each flow's drops, marks and mean wait in ms, and the utilisation."""
    rows, totals = run[0].flows, run[1]
    waits = rows[:, col.QUEUEING_SUM] / rows[:, col.DELIVERED] * 1e-6
    used = totals["used"] / totals["capacity"]
    return rows[:, col.DROPPED].tolist(), rows[:, col.MARKS].tolist(), waits.tolist(), used


@pytest.mark.parametrize("queue", ["codel:packets=400", "pie:packets=400"])
@pytest.mark.parametrize("link", [{"rate_mbps": 12.032}, {"trace": "constant:12.032"}])
def test_cubic_with_marks_loses_nothing_and_is_as_fast_and_as_short(queue: str, link: Any) -> None:
    first, whole = (
        [
            _shares(_run(Link(delay_ms=20, aqm=aqm, **link), Flow("cubic", ecn=True), steps=steps))
            for aqm in (queue, f"{queue},ecn=1")
        ]
        for steps in (500, 3000)
    )
    # Slow start may bring PIE above a tenth, so that it drops; nothing is lost after that.
    (lost, drops), (_, marks) = (
        [after[what][0] - before[what][0] for before, after in zip(first, whole, strict=True)]
        for what in (0, 1)
    )
    assert lost > 10
    assert drops == 0
    assert marks > 10
    assert first[1][0] == [0] or queue.startswith("pie")
    (_, _, (wait,), used), (_, _, (marked_wait,), marked_used) = whole
    assert marked_used == pytest.approx(used, abs=0.02)
    assert marked_wait == pytest.approx(wait, rel=0.2)


def test_only_flows_that_take_marks_have_them_and_agents_never_do() -> None:
    link = Link(rate_mbps=12.032, delay_ms=20, aqm="codel:packets=400,ecn=1")
    flows = Flow("cubic", ecn=True), Flow("cubic"), Flow(cwnd=60, ecn=True)
    drops, marks, _, _ = _shares(_run(link, *flows, steps=3000))
    assert drops[0] == marks[1] == marks[2] == 0
    assert min(marks[0], drops[1], drops[2]) > 10
    # A queue that gives no marks drops the packets of all.
    drops, marks, _, _ = _shares(_run(replace(link, aqm="codel:packets=400"), *flows, steps=3000))
    assert marks == [0, 0, 0]
    assert min(drops) > 10


def test_a_droptail_that_marks_keeps_the_queue_near_its_number() -> None:
    link = Link(rate_mbps=12.032, delay_ms=20, aqm="droptail:packets=400,mark=30")
    drops, marks, waits, used = _shares(_run(link, Flow("reno", ecn=True), steps=3000))
    assert drops == [0]
    assert marks[0] > 10
    assert 5 < waits[0] < 30
    assert used > 0.95


PLAIN = Link(trace="cellular:4", delay_ms=20, queue_packets=60, loss=0.01)
LIVE = Link(trace="cellular:4", delay_ms=20, loss=0.01, aqm="codel:packets=400", jitter_ms=3)
LATE = Link(rate_mbps=50, delay_ms=40, queue_packets=400, reorder="0.1:30", loss=0.01)


@pytest.mark.parametrize(
    "link",
    [
        Link(rate_mbps=200, delay_ms=80),
        replace(LIVE, trace=None, rate_mbps=20.0, aqm="pie:packets=5000"),
    ],
    ids=["plain", "live"],
)
def test_a_full_ring_grows_and_changes_nothing(link: Link) -> None:
    """Windows far above the first ring's size, beside the same in another batch."""
    many = Simulator(3, 2)
    flows = Flow(cwnd=4000), Flow("cubic")
    for n in range(3):
        many.load(n, Scenario("test", link, flows, seed=3))
    for _ in range(80):
        many.advance(STEP)
    one, _ = _run(link, *flows, steps=80)
    grown = one.links[0, col.QUEUE_MASK] if link.is_live else one.flows[0, col.RING_MASK]
    assert grown >= 2048
    for column in (col.SENT, col.DELIVERED, col.STEP_RTT_SUM, col.DROPPED):
        assert (many.flows[:, column].reshape(3, 2) == one.flows[:, column]).all()


@pytest.mark.parametrize(
    "link",
    [
        Link(100.0, delay_ms=5.0, queue_packets=10, policer_mbps=30.0, policer_packets=20),
        Link(100.0, delay_ms=5.0, queue_packets=10, jitter_ms=0.1),
        Link(100.0, delay_ms=5.0, aqm="pie:packets=10"),
        Link(100.0, delay_ms=5.0, aqm="codel:packets=10"),
    ],
    ids=["policer", "jitter", "pie", "codel"],
)
def test_what_is_dropped_takes_no_room_in_a_live_links_ring(link: Link) -> None:
    simulator = Simulator(1)
    simulator.load(0, Scenario("live", link, (Flow("fixed", cwnd=500.0),), duration_s=4.0))
    simulator.advance(4_000_000_000)
    dropped = simulator.flows[0, col.DROPPED]
    assert dropped > 20_000
    assert simulator.links[0, col.QUEUE_MASK] < 2048


def test_a_place_is_used_again_by_links_of_other_kinds() -> None:
    links = (
        Link(rate_mbps=10, delay_ms=10, queue_packets=700, changes=(Change(0.1, rate_mbps=5),)),
        replace(LIVE, policer_mbps=20, policer_packets=10),
        Link(trace="poisson:5:1", delay_ms=10),
        replace(LIVE, aqm="pie:packets=90"),
    )
    used = Simulator(1)
    for link in links * 2:
        used.load(0, Scenario("test", link, (Flow("cubic"),), seed=3))
        for _ in range(200):
            used.advance(STEP)
        fresh, _ = _run(link, Flow("cubic"), steps=200)
        assert used.flows[0, col.DELIVERED] == fresh.flows[0, col.DELIVERED]
        assert used.flows[0, col.DROPPED] == fresh.flows[0, col.DROPPED]


def test_nothing_is_used_in_silence() -> None:
    # 300 packets wait for a rate at which each takes a part of a ns more than the rate says.
    link = Link(rate_mbps=0.0, delay_ms=5, changes=(Change(1.0, rate_mbps=77.7),))
    simulator, totals = _run(link, Flow(cwnd=300), steps=99)
    # And two that the timer sent, after 0.21 and 0.42 s more.
    assert simulator.results[0, col.QUEUE] == pytest.approx(302, abs=1e-3)
    assert totals == {"used": 0.0, "capacity": 0.0}
    assert (simulator.results[:, col.USED] >= 0).all()


def test_a_flow_of_a_size_is_complete_when_that_is_acknowledged() -> None:
    link = Link(rate_mbps=12.032, delay_ms=10, queue_packets=100)
    # A packet a ms after a round trip of 20; of the others' sizes one is out of reach.
    flows = Flow(cwnd=50, packets=30), Flow(packets=10, start_s=0.5), Flow(packets=10**9, start_s=2)
    simulator, _ = _run(link, *flows)
    assert simulator.completions()[:2].tolist() == pytest.approx([0.05, 0.53])
    assert np.isnan(simulator.completions()[2])
    assert simulator.flows[:2, col.SENT].tolist() == [30, 10]
    # What is lost is sent again: five at once into a queue of three, whose last two nothing tells
    # of before the timer 0.22 s later; then its packet, and two more for those.
    simulator, _ = _run(replace(link, queue_packets=3), Flow(cwnd=5, packets=5), steps=150)
    row = simulator.flows[0]
    assert (row[col.SENT], row[col.DELIVERED], row[col.DROPPED]) == (7, 5, 2)
    timeout = timeout_after(20, 21, 22, 23)
    assert simulator.completions()[0] == pytest.approx(0.023 + timeout + 0.021 + 0.021, abs=1e-8)


def test_a_trace_that_changes_on_the_disk_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "one.trace"
    path.write_text("7\n")
    simulator, link = Simulator(1), Link(trace=str(path), delay_ms=10)
    used = []
    for _ in range(2):
        simulator.load(0, Scenario("link", link))
        simulator.advance(10**9)
        used.append(simulator.results[0].tolist())
        path.write_text("1\n2\n900\n")
    assert used[0] == used[1]
    other, totals = _run(link, Flow(), steps=100)
    assert totals["capacity"] == 5
    # A checkpoint does not go on with another trace.
    other.load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match="is not the checkpoint's trace any more"):
        other.load_state_dict(simulator.state_dict())


def test_a_trace_wraps() -> None:
    link = Link(trace="poisson:5:1", delay_ms=10)
    long, _ = _run(link, Flow(cwnd=100), steps=7000)
    start = Link(trace="poisson:5:1", delay_ms=10, trace_start_s=60.0)
    first, again = (_run(each, Flow(cwnd=100), steps=500)[0] for each in (link, start))
    assert first.flows[0, col.SENT] == again.flows[0, col.SENT]
    assert long.flows[0, col.DELIVERED] == pytest.approx(7 / 6 * 24_900, rel=0.05)


def test_a_rate_in_whole_milliseconds_serves_what_it_says_in_bunches() -> None:
    link = Link(trace="constant:120.32", delay_ms=10)
    assert _ack_times(link, 12, 1) == [21.0] * 10 + [22.0] * 2
    _, totals = _run(link, Flow(cwnd=220))
    assert totals["used"] == pytest.approx(totals["capacity"], rel=0.01)
    assert totals["capacity"] == 30_000


def test_a_changed_delay_moves_the_rtt() -> None:
    link = Link(rate_mbps=12.032, delay_ms=20, changes=(Change(1.0, delay_ms=40),))
    simulator, _ = _run(link, Flow(cwnd=20))
    assert simulator.stats().rtt_last[0] == pytest.approx(0.081)
    assert simulator.stats().min_rtt[0] == pytest.approx(0.041)


@pytest.mark.parametrize("link", [PLAIN, LIVE], ids=["plain", "live"])
def test_steps_of_any_length_give_the_same_deliveries(link: Link) -> None:
    whole, _ = _run(link, Flow("cubic"), steps=300)
    parts = Simulator(1)
    parts.load(0, Scenario("test", link, (Flow("cubic"),), seed=3))
    rng = np.random.default_rng(1)
    while parts.links[0, col.NOW] < 300 * STEP:
        left = 300 * STEP - int(parts.links[0, col.NOW])
        parts.advance(min(left, int(rng.integers(1, 50_000_000))))
    assert parts.flows[0, col.DELIVERED] == whole.flows[0, col.DELIVERED]
    assert parts.control[0, CWND] == whole.control[0, CWND]


def _shared(second: Flow, first: Flow | None = None) -> list[Any]:
    """Return the label and the oracle's window at the start of each step of 10 ms."""
    simulator = Simulator(2, 3, with_best=True)
    link = Link(rate_mbps=12.032, delay_ms=20)
    simulator.load(0, Scenario("label", link, (first or Flow(cwnd=10), second)))
    simulator.load(1, Scenario("oracle", link, (first or Flow("oracle"), second)))
    seen = []
    for _ in range(6):
        best = float(simulator.results[0, col.BEST_CWND])
        simulator.advance(STEP)
        seen.append((best, float(simulator.control[3, CWND])))
    return seen


def test_the_best_window_is_shared_among_the_flows_that_send_in_the_step() -> None:
    alone, half = (pytest.approx(41.0), 41.0), (pytest.approx(20.5), 21.0)
    # A flow that sends during a part of the step counts.
    for start, stop in ((0.02, 0.04), (0.025, 0.031)):
        shared = [half if k in (2, 3) else alone for k in range(6)]
        assert _shared(Flow("cubic", start_s=start, stop_s=stop)) == shared
    # No flow sends: the whole window, not a division by zero.
    idle = Flow("oracle", start_s=0.04)
    assert _shared(Flow("cubic", start_s=0.05), idle)[:5] == [alone] * 5


def test_the_oracle_uses_what_a_flow_that_comes_and_goes_leaves() -> None:
    link = Link(rate_mbps=12, delay_ms=20, queue_packets=100)
    cubic = Flow("cubic", start_s=1.0, stop_s=2.0)
    _, totals = _run(link, Flow("oracle"), cubic, steps=500)
    assert totals["used"] / totals["capacity"] > 0.98


@pytest.mark.parametrize("link", [PLAIN, LIVE, LATE], ids=["plain", "live", "late"])
def test_a_checkpoint_of_the_simulator_goes_on_bit_for_bit(link: Link) -> None:
    first, _ = _run(link, Flow("cubic"), Flow("bbr", start_s=0.5))
    assert link != LATE or (first.flows[:, col.RING_MASK] >= 255).all()
    other = Simulator(1, 2)
    other.load_state_dict(first.state_dict())
    for _ in range(200):
        first.advance(STEP)
        other.advance(STEP)
    assert np.array_equal(first.flows, other.flows)
    assert np.array_equal(first.control, other.control)


def test_a_checkpoint_of_another_layout_is_refused() -> None:
    state = Simulator(1).state_dict()
    state["flows"] = state["flows"][:, :-1]
    with pytest.raises(CheckpointError, match="of another distrlcc"):
        Simulator(1).load_state_dict(state)


def test_rings_that_grew_are_used_again() -> None:
    simulator = Simulator(2, 2)
    flows = (Flow("fixed", cwnd=5000), Flow("fixed", cwnd=3000))
    changes = (Change(0.05, rate_mbps=150.0),)
    fast = Scenario("fast", Link(rate_mbps=200.0, queue_packets=9000, changes=changes), flows)
    sizes = []
    for _ in range(5):
        for n in range(2):
            simulator.load(n, fast)
        for _ in range(20):
            simulator.advance(10_000_000)
        sizes.append((simulator.ring.shape, simulator.queues.shape))
    assert len(set(sizes[1:])) == 1
    # So do those of a simulator that goes on from its state.
    again = Simulator(2, 2)
    again.load_state_dict(simulator.state_dict())
    for each in (simulator, again):
        each.load(1, fast)
        for _ in range(20):
            each.advance(10_000_000)
    assert np.array_equal(simulator.flows[:, col.DELIVERED], again.flows[:, col.DELIVERED])
    assert len(again.ring) <= len(simulator.ring)


@pytest.mark.parametrize(
    "link", [Link(10_000.0), Link(trace="constant:10000"), Link(1.0, changes=(Change(1.0, 1e5),))]
)
def test_more_packets_than_a_flow_can_count_are_refused(link: Link) -> None:
    simulator = Simulator(1)
    simulator.load(0, Scenario("short", link, duration_s=30.0))
    with pytest.raises(ConfigError, match="more than a flow can count"):
        simulator.load(0, Scenario("long", link, duration_s=10_000.0))


@pytest.mark.parametrize(
    ("columns", "most"),
    [([col.SENT, col.NEXT_ACK], col.MAX_PACKETS), ([col.QUEUEING_SUM], 2**63 - 1)],
)
def test_full_counts_end_the_simulation(columns: list[int], most: int) -> None:
    # A flow may send more than its link carries.
    simulator = Simulator(1)
    simulator.load(0, Scenario("full", Link(10.0, delay_ms=1.0)))
    simulator.flows[0, columns] = most
    with pytest.raises(ConfigError, match="counts are full"):
        simulator.advance(100_000_000)


def _scheme_shares(link: Link, seconds: float, seed: int = 3) -> dict[str, tuple[float, float]]:
    """Return what each scheme has acknowledged of the capacity, and found lost that came late."""
    simulator = Simulator(len(REAL_SCHEMES))
    for n, scheme in enumerate(REAL_SCHEMES):
        flow = Flow(scheme)
        simulator.load(n, Scenario(scheme, link, (flow,), duration_s=seconds, seed=seed))
    acked, spurious, capacity = (np.zeros(len(REAL_SCHEMES)) for _ in range(3))
    for _ in range(round(seconds / 0.05)):
        simulator.advance(50_000_000)
        stats = simulator.stats()
        acked += stats.acked
        spurious += stats.spurious
        capacity += simulator.results[:, col.CAPACITY]
    figures = zip((acked / capacity).tolist(), (spurious / acked).tolist(), strict=True)
    return dict(zip(REAL_SCHEMES, figures, strict=True))


REAL_SCHEMES = ("reno", "cubic", "vegas", "copa", "bbr", "ledbat")


def test_no_scheme_falls_off_where_the_rtt_passes_any_time_from_300_ms_to_3_s() -> None:
    before: dict[str, tuple[float, float]] = {}
    for rtt_ms in (300, 450, 675, 998, 1002, 1500, 2250, 3000):
        bdp = round(12e6 * rtt_ms / 1e3 / 8 / 1504)
        link = Link(rate_mbps=12, delay_ms=rtt_ms / 2, queue_packets=bdp)
        shares = _scheme_shares(link, seconds=100 * rtt_ms / 1e3)
        for scheme, (share, _) in shares.items():
            # LEDBAT has no more than 100 ms of queue, and grows by a packet in each round trip.
            # BBR starts with windows of its least RTT's, and 100 round trips are not many.
            assert scheme == "ledbat" or share > 0.65, (scheme, rtt_ms)
            assert share > 0.65 * before.get(scheme, (0.0, 0.0))[0], (scheme, rtt_ms)
        before = shares


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reorder", ["0.001:6", "0.01:3", "0.2:6", "0.5:6", "0.05:30", "0.3:20"])
def test_reordering_takes_nothing_from_a_scheme(reorder: str, seed: int) -> None:
    link = Link(rate_mbps=12, delay_ms=20, queue_packets=100)
    straight = _scheme_shares(link, 30.0, seed)
    crooked = _scheme_shares(replace(link, reorder=reorder), 30.0, seed)
    for scheme in REAL_SCHEMES:
        assert crooked[scheme][0] > 0.9 * straight[scheme][0], scheme
        assert crooked[scheme][1] < 0.02, scheme


def test_a_silence_that_ends_gives_each_scheme_its_window_again() -> None:
    """The queue holds all that was sent, so each timeout was spurious."""
    changes = Change(10.0, rate_mbps=0.0), Change(14.0, rate_mbps=12.0)
    link = Link(rate_mbps=12, delay_ms=20, queue_packets=1000, changes=changes)
    simulator = Simulator(len(REAL_SCHEMES))
    for n, scheme in enumerate(REAL_SCHEMES):
        simulator.load(n, Scenario(scheme, link, (Flow(scheme),), duration_s=20))
    for _ in range(1000):
        simulator.advance(STEP)
    before = simulator.control[:, CWND].copy()
    for _ in range(390):
        simulator.advance(STEP)
    assert (simulator.flows[:, col.BACKOFF] >= 2).all()
    assert (simulator.control[:, CWND] <= 2.0).all()  # Copa's least
    for _ in range(160):  # BBR looks for its least RTT first
        simulator.advance(STEP)
    assert (simulator.control[:, CWND] > 0.5 * before).all()


@pytest.mark.parametrize(
    "reorder",
    ["", "0.2", "0:5", "0.2:", "0.2:0", "1.5:3", "-1:3", "0.1:2000", "nan:3", "a:b", "1:2:3"],
)
def test_reordering_that_does_not_read_is_refused(reorder: str) -> None:
    with pytest.raises(ConfigError, match="expected P:MS"):
        Link(rate_mbps=12, reorder=reorder)


def test_reordering_and_delayed_acks_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="expected one of delayed_acks and reorder"):
        Link(rate_mbps=12, reorder="0.2:6", delayed_acks=True)
