"""What is acknowledged, counted and forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from distrlcc.transport.receiver import KEPT_RANGES, Receiver
from distrlcc.transport.wire import MAX_RANGES, Acknowledgement

MS = 1_000_000


def acked(receiver: Receiver, now: int = 0) -> Acknowledgement:
    ack = receiver.ack_to_send(now=now)
    assert ack is not None
    return ack


def test_one_ack_for_a_batch() -> None:
    receiver = Receiver(7)
    assert receiver.ack_to_send(now=0) is None
    for number in (0, 1, 2, 5, 4, 9):
        assert receiver.on_data(number, 1400, now=10 * MS)
    ack = acked(receiver, 10 * MS + 250_000)
    assert (ack.session, ack.delay_us, ack.received_bytes) == (7, 250, 6 * 1400)
    assert ack.ranges == ((9, 10), (4, 6), (0, 3))
    assert receiver.ack_to_send(now=11 * MS) is None
    assert (receiver.packets, receiver.reordered) == (6, 1)


def test_a_duplicate_is_counted_and_acknowledged_again() -> None:
    receiver = Receiver(7)
    for new in (True, False):
        assert receiver.on_data(0, 100, now=5) == new
        assert acked(receiver, 5).ranges == ((0, 1),)
    assert (receiver.duplicates, receiver.bytes, receiver.packets) == (1, 100, 1)


def test_what_the_sender_no_longer_waits_for_is_forgotten() -> None:
    receiver = Receiver(7)
    for number in (0, 2, 4, 6):
        receiver.on_data(number, 1, now=0)
    receiver.on_data(8, 1, 5, now=0)
    assert acked(receiver).ranges == ((8, 9), (6, 7))
    assert not receiver.on_data(3, 1, now=0)
    assert receiver.duplicates == 1
    assert receiver.on_data(7, 1, now=0)


def test_a_hostile_pattern_does_not_grow() -> None:
    receiver = Receiver(7)
    for number in range(0, 20_000, 2):
        assert receiver.on_data(number, 1, now=number)
    assert len(acked(receiver, 20_000).ranges) == MAX_RANGES
    lowest = 20_000 - 2 * KEPT_RANGES
    assert receiver.on_data(lowest + 1, 1, now=20_000)
    assert not receiver.on_data(lowest - 3, 1, now=20_000)  # forgotten, so it passes for old


@given(st.lists(st.integers(0, 200), min_size=1, max_size=300))
def test_what_is_acknowledged_came(numbers: list[int]) -> None:
    receiver = Receiver(7)
    for number in numbers:
        receiver.on_data(number, 10, now=0)
    ack = acked(receiver)
    told = {n for start, stop in ack.ranges for n in range(start, stop)}
    assert told <= set(numbers)
    assert len(ack.ranges) == 32 or told == set(numbers)
    count = len(set(numbers))
    counts = (receiver.packets, receiver.bytes, receiver.duplicates)
    assert counts == (count, 10 * count, len(numbers) - count)
