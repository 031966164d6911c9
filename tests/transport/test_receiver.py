"""What is acknowledged, counted and forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from distrlcc.transport.receiver import KEPT_RANGES, Receiver
from distrlcc.transport.wire import MAX_RANGES, Acknowledgement


def acked(receiver: Receiver) -> Acknowledgement:
    ack = receiver.ack_to_send()
    assert ack is not None
    return ack


def test_one_ack_for_a_batch() -> None:
    receiver = Receiver(7)
    assert receiver.ack_to_send() is None
    for number in (0, 1, 2, 5, 4, 9):
        assert receiver.on_data(number, 1400)
    ack = acked(receiver)
    assert (ack.session, ack.ranges) == (7, ((9, 10), (4, 6), (0, 3)))
    assert receiver.ack_to_send() is None
    assert (receiver.packets, receiver.bytes, receiver.reordered) == (6, 6 * 1400, 1)


def test_an_ack_is_full_before_it_could_leave_a_packet_out() -> None:
    receiver, told = Receiver(7), set[int]()
    for number in range(0, 400, 2):  # of every second one that was lost
        receiver.on_data(number, 1400)
        if receiver.ack_is_full:
            told |= {n for start, stop in acked(receiver).ranges for n in range(start, stop)}
    told |= {n for start, stop in acked(receiver).ranges for n in range(start, stop)}
    assert told == set(range(0, 400, 2))


def test_a_duplicate_is_counted_and_acknowledged_again() -> None:
    receiver = Receiver(7)
    for new in (True, False):
        assert receiver.on_data(0, 100) == new
        assert acked(receiver).ranges == ((0, 1),)
    assert (receiver.duplicates, receiver.bytes, receiver.packets) == (1, 100, 1)


def test_what_the_sender_no_longer_waits_for_is_forgotten() -> None:
    receiver = Receiver(7)
    for number in (0, 2, 4, 6):
        receiver.on_data(number, 1)
    receiver.on_data(8, 1, 5)
    assert acked(receiver).ranges == ((8, 9), (6, 7))
    assert not receiver.on_data(3, 1)
    assert receiver.duplicates == 1
    assert receiver.on_data(7, 1)


def test_a_hostile_pattern_does_not_grow() -> None:
    receiver = Receiver(7)
    for number in range(0, 4 * KEPT_RANGES, 2):
        assert receiver.on_data(number, 1)
    assert len(acked(receiver).ranges) == MAX_RANGES
    lowest = 2 * KEPT_RANGES
    assert receiver.on_data(lowest + 1, 1)
    assert not receiver.on_data(lowest - 3, 1)  # forgotten, so it passes for old


def test_a_late_packet_is_acknowledged_below_many_gaps() -> None:
    receiver = Receiver(7)
    for number in range(0, 400, 2):
        receiver.on_data(number, 1400)
        receiver.ack_to_send()
    receiver.on_data(101, 1400)
    ranges = acked(receiver).ranges
    assert ranges[-1] == (100, 103)
    assert ranges[0] == (398, 399)
    assert len(ranges) == MAX_RANGES
    assert list(ranges) == sorted(ranges, reverse=True)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=300))
def test_what_is_acknowledged_came(numbers: list[int]) -> None:
    receiver = Receiver(7)
    for number in numbers:
        receiver.on_data(number, 10)
    ack = acked(receiver)
    told = {n for start, stop in ack.ranges for n in range(start, stop)}
    assert told <= set(numbers)
    assert len(ack.ranges) == 32 or told == set(numbers)
    count = len(set(numbers))
    counts = (receiver.packets, receiver.bytes, receiver.duplicates)
    assert counts == (count, 10 * count, len(numbers) - count)
