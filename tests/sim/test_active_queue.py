"""CoDel by hand-computed drops, PIE by what it promises."""

import random

from distrlcc.sim.link import TraceLink
from distrlcc.sim.queues import PIE, CoDel, Packet


def test_codel_drops_at_the_control_laws_times() -> None:
    drops: list[tuple[int, int]] = []
    queue = CoDel(5, 100, on_drop=lambda now, packet: drops.append((now, packet.seq)))
    for seq in range(1000):
        queue.push(Packet(1504, 0, seq=seq))
    for now in range(10, 400):
        queue.pop(now=now)
    # Above the target since 10, so the first drop is an interval later; then after 100 / sqrt(n),
    # whole milliseconds: 100, 70, 57, 50.
    assert [now for now, _ in drops] == [110, 210, 280, 337, 387]
    assert drops[0] == (110, 100)  # the head; the next one is sent
    assert drops[1] == (210, 201)


def test_codel_keeps_what_waits_less_than_the_target() -> None:
    drops: list[int] = []
    queue = CoDel(5, 100, on_drop=lambda now, packet: drops.append(now))
    for now in range(1000):
        for _ in range(3):
            queue.push(Packet(500, now))
        for _ in range(3):
            assert queue.pop(now=now + 4) is not None
    assert drops == []


def test_codel_keeps_the_last_full_packet() -> None:
    drops: list[int] = []
    queue = CoDel(5, 100, on_drop=lambda now, packet: drops.append(now))
    for now in range(0, 2000, 10):
        queue.push(Packet(1504, now - 50))
        queue.push(Packet(1504, now - 50))
        assert queue.pop(now=now) is not None
        assert queue.pop(now=now) is not None
    assert drops == []


def test_codel_goes_on_at_its_former_rate() -> None:
    drops: list[int] = []
    queue = CoDel(5, 100, on_drop=lambda now, packet: drops.append(now))
    for _ in range(1000):
        queue.push(Packet(1504, 0))
    for now in range(10, 400):
        queue.pop(now=now)  # five drops: the next would come after 100 / sqrt(5)
    while queue.pop(now=400) is not None:
        pass
    drops.clear()
    for _ in range(1000):
        queue.push(Packet(1504, 400))
    for now in range(410, 600):
        queue.pop(now=now)
    # Over the target again from 410: a drop at 510, and the count goes on from 5 - 1.
    assert drops == [510, 560]


def test_codel_has_a_droptails_limit() -> None:
    queue = CoDel(5, 100, packets=2)
    assert [len(queue.push(Packet(1504, 0))) for _ in range(3)] == [0, 0, 1]
    assert len(queue) == 2


def _overload(seed: int) -> tuple[list[int], float]:
    """Feed 1.2 packets per ms into a link of one; return the drops and the late mean delay."""
    queue = PIE(15, 150, 15, 1000, random.Random(seed))
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
    # A sixth of the arrivals is too many.
    assert 0.12 < sum(now >= 10_000 for now in drops) / 12_000 < 0.21


def test_pie_draws_from_its_seed() -> None:
    assert _overload(1) == _overload(1)
    assert _overload(1) != _overload(2)


def test_pie_forgets_when_the_queue_is_empty() -> None:
    queue = PIE(15, 150, 15, 1000, random.Random(0))
    for now in range(2000):
        queue.push(Packet(1504, now))
        if now % 2:
            queue.pop(now=now)
    before = queue.probability
    assert before > 0.1
    while queue.pop(now=2000) is not None:
        pass
    queue.push(Packet(1504, 30_000))
    assert queue.probability < 0.01 * before
