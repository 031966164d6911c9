"""Queues by hand, and their specifications."""

import random

import pytest

from distrlcc.errors import ConfigError
from distrlcc.sim import aqm
from distrlcc.sim.link import TraceLink
from distrlcc.sim.queues import (
    PIE,
    CoDel,
    DropHead,
    DropTail,
    Packet,
    Policer,
    QueueSpec,
    parse_queue,
)


def _codel() -> tuple[CoDel, list[tuple[int, int]]]:
    """Return a queue, and the times and numbers of the packets that it will drop."""
    drops: list[tuple[int, int]] = []
    return CoDel(5, 100, on_drop=lambda now, packet: drops.append((now, packet.seq))), drops


def test_codel_drops_at_the_control_laws_times_and_goes_on_at_its_former_rate() -> None:
    queue, drops = _codel()
    for seq in range(1000):
        queue.push(Packet(1504, 0, seq=seq))
    for now in range(10, 400):
        queue.pop(now=now)
    # Above the target since 10, so the first drop is an interval later; then after 100 / sqrt(n),
    # whole milliseconds: 100, 70, 57, 50.
    assert [now for now, _ in drops] == [110, 210, 280, 337, 387]
    assert drops[:2] == [(110, 100), (210, 201)]  # the head; the next one is sent
    while queue.pop(now=400) is not None:
        pass
    drops.clear()
    for _ in range(1000):
        queue.push(Packet(1504, 400))
    for now in range(410, 600):
        queue.pop(now=now)
    # Over the target again from 410: a drop at 510, and the count goes on from 5 - 1.
    assert [now for now, _ in drops] == [510, 560]


def test_codel_marks_what_it_would_drop_where_the_sender_takes_marks() -> None:
    for capable in (True, False):
        drops: list[int] = []
        queue = CoDel(5, 100, on_drop=lambda now, _, drops=drops: drops.append(now), ecn=True)  # type: ignore[misc]
        for seq in range(1000):
            queue.push(Packet(1504, 0, seq=seq, capable=capable))
        popped = [(now, queue.pop(now=now)) for now in range(10, 400)]
        marks = [now for now, packet in popped if packet is not None and packet.marked]
        # One packet each ms leaves, and the control law's times are those of drops.
        assert (marks if capable else drops) == [110, 210, 280, 337, 387]
        assert (drops if capable else marks) == []
    # A queue without ecn drops them all the same.
    queue, dropped = _codel()
    for _ in range(1000):
        queue.push(Packet(1504, 0, capable=True))
    assert not any(queue.pop(now=now).marked for now in range(10, 120))  # type: ignore[union-attr]
    assert len(dropped) == 1


def test_pie_marks_below_a_probability_of_a_tenth_and_drops_above() -> None:
    # Twice what departs, and a lot that always wins.
    queue = PIE(15, 150, 1, lambda _: 0.0, ecn=True)
    marked, dropped = [], []
    for now in range(3000):
        packet = Packet(1504, now, capable=True)
        if queue.push(packet):
            dropped.append(queue.row[aqm.PROBABILITY])
        elif packet.marked:
            marked.append(queue.row[aqm.PROBABILITY])
        if now % 2:
            queue.pop(now=now)
    assert len(marked) > 20
    assert len(dropped) > 20
    assert 0 < max(marked) < 0.1 <= min(dropped)
    assert aqm.pie_fate(0.05, 0.049, True) == aqm.MARK
    assert aqm.pie_fate(0.05, 0.05, True) == aqm.PASS
    assert aqm.pie_fate(0.05, 0.049, False) == aqm.pie_fate(0.1, 0.049, True) == aqm.DROP


def test_a_droptail_marks_those_above_a_number() -> None:
    queue = parse_queue("droptail:packets=4,mark=2").build(unit=1, draw=lambda _: 0.5)
    packets = [Packet(1504, 0, capable=k != 2) for k in range(5)]
    assert [len(queue.push(packet)) for packet in packets] == [0, 0, 0, 0, 1]
    assert [packet.marked for packet in packets] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("every", "count", "size", "waits"),
    [(1, 3, 500, 4), (10, 2, 1504, 50)],
    ids=["less than the target", "the last full packet"],
)
def test_codel_keeps(every: int, count: int, size: int, waits: int) -> None:
    queue, drops = _codel()
    for now in range(0, 1000, every):
        for _ in range(count):
            queue.push(Packet(size, now))
        for _ in range(count):
            assert queue.pop(now=now + waits) is not None
    assert drops == []


def _overload(seed: int) -> tuple[list[int], float]:
    """Feed 1.2 packets per ms into a link of one; return the drops and the late mean delay."""
    generator = random.Random(seed)
    queue = PIE(15, 150, 1, lambda _: generator.random())
    link = TraceLink([1], queue)
    drops, delays = [], []
    for now in range(20_000):
        while link.next_time() <= now:
            delays += [now - packet.arrival for packet in link.step()]
        for _ in range(2 if now % 5 == 0 else 1):
            drops += [now for _ in link.arrive(Packet(1504, now))]
    late = delays[len(delays) // 2 :]
    return drops, sum(late) / len(late)


def test_pie_keeps_the_delay_near_its_reference_and_lets_bursts_pass() -> None:
    drops, delay = _overload(0)
    assert 8 < delay < 22
    assert drops[0] >= 150
    assert _overload(0) == (drops, delay) != _overload(2)
    # A sixth of the arrivals is too many.
    assert 0.12 < sum(now >= 10_000 for now in drops) / 12_000 < 0.21


def test_pie_forgets_when_the_queue_is_empty() -> None:
    generator = random.Random(0)
    queue = PIE(15, 150, 1, lambda _: generator.random())
    for now in range(2000):
        queue.push(Packet(1504, now))
        if now % 2:
            queue.pop(now=now)
    before = queue.row[aqm.PROBABILITY]
    assert before > 0.1
    while queue.pop(now=2000) is not None:
        pass
    queue.push(Packet(1504, 30_000))
    assert queue.row[aqm.PROBABILITY] < 0.01 * before


def test_a_policer_lets_its_burst_pass_and_then_its_rate() -> None:
    # Two packets of burst, and one each ms.
    policer = Policer(12_032_000, 2 * 1504)
    arrivals = [0, 0, 0, 999_999, 1_000_000, 1_000_000, 10_000_000, 10_000_000, 10_000_000]
    passed = [policer.passes(Packet(1504, at)) for at in arrivals]
    assert passed == [True, True, False, False, True, False, True, True, False]


def test_specifications_name_queues() -> None:
    assert parse_queue("infinite") == QueueSpec()
    assert parse_queue("droptail:packets=100") == QueueSpec("droptail", 100)
    assert parse_queue("drophead:bytes=60000, packets=7") == QueueSpec("drophead", 7, 60000)
    codel = parse_queue("codel:packets=1000,target=7")
    assert codel.times_ms == (("target", 7), ("interval", 100))
    assert codel.arguments == "packets=1000, target=7, interval=100"
    assert parse_queue("pie:bytes=60000").arguments == "bytes=60000, qdelay_ref=15, max_burst=150"
    assert parse_queue("droptail:packets=9,mark=3") == QueueSpec("droptail", 9, mark=3)
    assert parse_queue("codel:packets=9,ecn=1").arguments.endswith("interval=100, ecn=1")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("infinite", DropTail),
        ("droptail:packets=2", DropTail),
        ("droptail:bytes=3100", DropTail),
        ("drophead:packets=2", DropHead),
        ("codel:packets=2", CoDel),
        ("pie:packets=2", PIE),
    ],
)
def test_they_are_built(text: str, kind: type) -> None:
    queue = parse_queue(text).build(unit=1, draw=lambda _: 0.5)
    assert type(queue) is kind
    dropped = [[packet.seq for packet in queue.push(Packet(1504, 0, seq=k))] for k in range(3)]
    assert dropped == [[], [], {"infinite": [], "drophead:packets=2": [0]}.get(text, [2])]
    assert len(queue) == (3 if text == "infinite" else 2)


def test_times_are_in_the_links_unit() -> None:
    drops: list[int] = []
    queue = parse_queue("codel:packets=1000").build(
        unit=1000, draw=lambda _: 0.5, on_drop=lambda now, packet: drops.append(now)
    )
    for _ in range(500):
        queue.push(Packet(1504, 0))
    for now in range(10_000, 400_000, 1000):
        queue.pop(now=now)
    assert drops[0] == 110_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown queue ''"),
        ("dropptail:packets=1", "did you mean droptail"),
        ("droptail", "has no limit; say droptail:packets=100"),
        ("droptail:packets=0", "packets is '0'; expected a whole number of 1 or more"),
        ("droptail:packets=1.5", "packets is '1.5'"),
        ("droptail:packets=9" + "9" * 5000, "packets is"),
        ("droptail:packet=1", "no parameter 'packet'; expected packets, bytes"),
        ("droptail:packets=1,target=5", "no parameter 'target'"),
        ("droptail:packets=1,packets=2", "given twice"),
        ("droptail:bytes=100", "expected 1504 or more"),
        ("drophead:packets=1,mark=1", "no parameter 'mark'"),
        ("droptail:packets=1,ecn=1", "no parameter 'ecn'; expected packets, bytes, mark"),
        ("codel:packets=1,ecn=0", "ecn is '0'; expected 1, or leave it out"),
        ("infinite:packets=1", "it takes none"),
        ("pie:packets=1,max_burst=x", "max_burst is 'x'"),
        ("droptail:packets=10,mark=20", "mark is 20; expected less than packets, 10"),
        ("droptail:mark=9,packets=9,bytes=90000", "mark is 9; expected less than packets, 9"),
        ("codel:packets=9,target=100", "target is 100; expected less than interval, 100"),
        ("codel:packets=9,interval=5", "target is 5; expected less than interval, 5"),
    ],
)
def test_what_does_not_fit_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_queue(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
