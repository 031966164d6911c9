"""What may leave when, what an ACK tells the controller, what a step shows: by hand."""

import tracemalloc

import pytest

from distrlcc.control.base import Held
from distrlcc.transport.recovery import NEVER
from distrlcc.transport.sender import SIMULATOR_OPTIONS, Sender, SenderOptions
from distrlcc.types import Ack, IntervalStats

MS = 1_000_000


class Steered(Held):
    """A controller that does nothing and remembers what it was told."""

    def __init__(self, cwnd: float = 10.0, pacing_rate: float = 0.0) -> None:
        super().__init__(cwnd, pacing_rate)
        self.acks: list[Ack] = []
        self.timeouts: list[tuple[int, int]] = []

    def on_ack(self, ack: Ack, *, now: int) -> None:
        self.acks.append(ack)

    def on_timeout(self, *, now: int, sent: int) -> None:
        self.timeouts.append((now, sent))


def sending(cwnd: float, options: SenderOptions | None = None) -> tuple[Steered, Sender]:
    """Return a controller, and a sender that has sent its first window at 0."""
    steered = Steered(cwnd)
    sender = Sender(steered, options, now=0)
    send(sender, now=0)
    return steered, sender


def send(sender: Sender, *, now: int, count: int = 1000) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count and (number := sender.packet_to_send(now=now)) is not None:
        numbers.append(number)
    return numbers


def test_fewer_than_the_windows_floor_are_in_flight() -> None:
    steered = Steered(3.9)
    sender = Sender(steered, now=0)
    assert sender.next_time() == 0
    assert send(sender, now=0) == [0, 1, 2]
    assert sender.inflight == 3
    assert sender.send_time() == NEVER
    steered.cwnd = 5.0
    assert send(sender, now=MS) == [3, 4]
    assert sender.on_ack(((0, 2),), now=20 * MS) == ([0, 1], [], [])
    assert send(sender, now=20 * MS) == [5, 6]
    steered.cwnd = 0.5
    sender.on_ack(((0, 7),), now=40 * MS)
    assert send(sender, now=41 * MS) == []
    assert sender.timer_time() < NEVER  # a window of nothing is probed out of


def test_paced_packets_wait_their_turn() -> None:
    sender = Sender(Steered(10.0, 400.0), SIMULATOR_OPTIONS, now=5 * MS)
    assert send(sender, now=5 * MS) == [0]
    assert sender.next_time() == 7.5 * MS
    assert send(sender, now=7 * MS) == []
    assert send(sender, now=8 * MS) == [1]
    assert sender.next_time() == 10.5 * MS


def test_a_new_rate_counts_from_now_and_without_catching_up_lateness_stays() -> None:
    steered = Steered(pacing_rate=1000.0)
    sender = Sender(steered, SIMULATOR_OPTIONS, now=0)
    send(sender, now=3 * MS, count=1)
    assert sender.send_time() == 4 * MS
    steered.pacing_rate = 0.01
    send(sender, now=4 * MS, count=1)
    assert sender.send_time() == 100_004 * MS
    for rate, now, expected in ((100.0, 5, 15), (1000.0, 50, 50)):
        steered.pacing_rate = rate
        sender.on_action(now=now * MS)
        assert sender.send_time() == expected * MS


@pytest.mark.parametrize("lateness_us", [0, 300, 1900])
def test_catching_up_keeps_the_rate(lateness_us: int) -> None:
    sender = Sender(Steered(1e6, 8000.0), now=0)
    now, step = 0, 10 * MS
    while now < 1000 * MS:
        now = max(now, sender.send_time()) + lateness_us * 1000
        if now >= step:  # a policy sets the rate each step
            sender.on_action(now=now)
            step += 10 * MS
        send(sender, now=now)
    assert abs(sender.next_number - 8000) <= 8 * 4
    # A long pause allows a small burst only.
    assert send(Sender(Steered(pacing_rate=1000.0), now=0), now=1000 * MS) == [0, 1, 2]


def test_the_timer_doubles_and_an_ack_resets_it() -> None:
    steered = Steered(2.0)
    sender = Sender(steered, now=0)
    assert sender.timer_time() == NEVER  # nothing is in flight
    send(sender, now=100 * MS)
    assert sender.timer_time() == 1100 * MS  # RFC 6298 rule 2.1
    assert send(sender, now=300 * MS) == []
    fired = []
    for _ in range(3):
        now = sender.timer_time()
        fired.append(now // MS)
        assert sender.on_timer(now=now) == []
        assert sender.next_time() == now
        assert len(send(sender, now=now)) == 1  # the window is full: the probe alone
    assert fired == [1100, 3100, 7100]
    assert sender.rtt.backoff == 3
    assert steered.timeouts == [(1100 * MS, 2), (3100 * MS, 3), (7100 * MS, 4)]
    sender.on_ack(((4, 5),), now=7200 * MS)  # the last probe, after 100 ms: RTO 300 ms
    assert sender.rtt.backoff == 0
    send(sender, now=7200 * MS)
    assert sender.timer_time() == 7500 * MS


def test_the_timer_counts_from_the_newest_ack_or_the_first_packet() -> None:
    steered, sender = sending(1.0)
    steered.cwnd = 2.0
    send(sender, now=900 * MS)
    assert sender.timer_time() == 1000 * MS
    sender.on_timer(now=999 * MS)
    assert steered.timeouts == []
    sender.on_ack(((0, 1),), now=950 * MS)  # RTO: 950 ms and four times half of that
    assert sender.timer_time() == (950 + 2850) * MS
    # With nothing in flight it rests.
    sender.on_ack(((0, 2),), now=960 * MS)
    assert sender.timer_time() == NEVER
    send(sender, now=1500 * MS)
    assert sender.timer_time() == 1500 * MS + sender.rtt.rto


def test_a_timeout_is_undone_by_an_ack_of_what_was_sent_before_it_and_by_no_other() -> None:
    for first, undone in ((0, True), (2, False)):
        steered, sender = sending(2.0)
        for at in (1000, 3000):  # two in a row
            sender.on_timer(now=at * MS)
            send(sender, now=at * MS)
        sender.on_ack(((first, first + 1),), now=3100 * MS)
        assert [ack.undone for ack in steered.acks] == [undone]


def test_a_loss_that_comes_before_the_controller_is_told_is_none() -> None:
    steered, sender = sending(3.0)
    sender.on_ack(((1, 2),), now=50 * MS)
    assert sender.on_timer(now=sender.timer_time()) == [0]
    assert sender.on_ack(((0, 2),), now=63 * MS) == ([0], [], [0])
    told = [(ack.lost, ack.undone, ack.begins_recovery) for ack in steered.acks]
    assert told == [(0, False, False)] * 2


def test_a_recovery_is_undone_once_each_of_its_losses_came_after_all() -> None:
    steered, sender = sending(10.0)
    assert sender.on_ack(((5, 6),), now=50 * MS).lost == [0, 1, 2]
    assert [ack.begins_recovery for ack in steered.acks] == [True]
    assert sender.on_ack(((5, 6), (1, 3)), now=52 * MS) == ([1, 2], [], [1, 2])
    assert not any(ack.undone for ack in steered.acks)
    assert sender.inflight == 6
    assert sender.on_ack(((5, 6), (0, 3)), now=55 * MS) == ([0], [], [0])
    assert [ack.undone for ack in steered.acks] == [False, False, False, True]
    assert sender.take_interval(now=60 * MS).spurious == 3.0
    # Packets 3 and 4 have an RTT and a quarter, more than the lateness seen, 5 ms.
    assert sender.timer_time() == 62.5 * MS
    assert sender.on_timer(now=62_500_000) == [3, 4]


def test_an_ack_before_the_probe_left_cancels_it() -> None:
    _, sender = sending(1.0)
    sender.on_timer(now=1000 * MS)
    sender.on_ack(((0, 1),), now=1001 * MS)
    assert send(sender, now=1002 * MS) == [1]  # as the window says
    assert send(sender, now=1003 * MS) == []


def test_what_an_ack_tells_the_controller() -> None:
    steered, sender = sending(10.0, SIMULATOR_OPTIONS)
    assert sender.on_ack(((0, 1),), now=50 * MS) == ([0], [], [])
    assert send(sender, now=50 * MS) == [10]
    assert sender.on_ack(((3, 4), (0, 1)), now=60 * MS) == ([3], [1, 2], [])
    sender.on_ack(((10, 11),), now=100 * MS)
    assert steered.acks == [
        Ack(50 * MS, 0, 10, 0, 9, 1, 0, 1 / 0.05),
        Ack(60 * MS, 3, 11, 2, 7, 2, 0, 2 / 0.06, begins_recovery=True),
        # Sent when one was delivered, at 50 ms: two more within the 50 ms since.
        Ack(50 * MS, 10, 11, 6, 0, 3, 1, 2 / 0.05),  # of the same window
    ]


def test_marks_are_told_with_the_last_packet() -> None:
    steered, sender = sending(10.0)
    sender.on_ack(((0, 3),), now=50 * MS, marked=2)
    sender.on_ack(((3, 4),), now=50 * MS)
    assert [ack.marked for ack in steered.acks] == [0, 0, 2, 0]


def test_reordered_losses_lie_below_the_number_that_is_told() -> None:
    steered, sender = sending(10.0)
    assert sender.on_ack(((2, 5),), now=50 * MS) == ([2, 3, 4], [0, 1], [])
    told = [(ack.seq, ack.lost, ack.inflight) for ack in steered.acks]
    assert told == [(2, 0, 7), (3, 0, 6), (2, 2, 5)]


def test_a_packet_is_lost_when_one_sent_three_later_is_acknowledged() -> None:
    _, sender = sending(10.0)
    assert sender.on_ack(((2, 3),), now=50 * MS).lost == []
    assert sender.on_ack(((3, 4),), now=50 * MS).lost == [0]
    assert sender.on_ack(((9, 10),), now=50 * MS).lost == [1, 4, 5, 6]
    # What was found lost may come for two seconds more.
    assert [sender.lowest(now=at * MS) for at in (50, 2050, 2051)] == [0, 0, 7]
    assert sender.inflight == 2


def test_a_timeout_whose_probe_comes_with_old_packets_and_shows_losses_stays() -> None:
    for ranges, undone in ((((20, 21), (0, 2)), False), (((20, 21), (0, 20)), True)):
        steered, sender = sending(20.0)
        sender.on_timer(now=1000 * MS)
        send(sender, now=1000 * MS)
        sender.on_ack(ranges, now=1050 * MS)
        assert steered.acks[0].undone is undone


def test_the_time_threshold_is_no_finer_than_a_millisecond() -> None:
    _, sender = sending(2.0)
    assert sender.on_ack(((1, 2),), now=1000).lost == []
    assert sender.timer_time() == MS + 1000
    assert sender.on_timer(now=MS + 999) == []
    assert sender.on_timer(now=MS + 1000) == [0]
    assert sender.timer_time() > MS + 1000


def test_the_newest_packets_rtt_is_smoothed() -> None:
    _, sender = sending(5.0)
    assert sender.on_ack(((4, 6), (0, 1)), now=MS) == ([], [], [])  # 5 was never sent
    assert sender.inflight == 5
    sender.on_ack(((2, 3),), now=80 * MS)
    sender.on_ack(((1, 3),), now=88 * MS)  # 2 is not new, so 1 came late (RFC 9002 section 5.1)
    assert sender.rtt.smoothed == 80 * MS
    sender.on_ack(((1, 4),), now=96 * MS)
    assert (sender.rtt.latest, sender.rtt.smoothed) == (96 * MS, 82 * MS)


def test_losses_that_the_timer_finds_add_up_until_the_next_ack() -> None:
    steered, sender = sending(1.0)
    steered.cwnd = 4.0
    send(sender, now=MS)
    sender.on_ack(((2, 3),), now=51 * MS)
    assert sender.on_timer(now=sender.timer_time()) == [0]
    assert sender.timer_time() == 63.5 * MS
    assert sender.on_timer(now=sender.timer_time()) == [1]
    assert steered.timeouts == []
    assert sender.take_interval(now=64 * MS).lost == 2.0
    sender.on_ack(((2, 4),), now=64 * MS)
    assert [(ack.seq, ack.lost) for ack in steered.acks] == [(2, 0), (2, 2)]


def test_a_step_by_hand() -> None:
    steered, sender = sending(4.0, SIMULATOR_OPTIONS)
    sender.on_ack(((0, 1),), now=50 * MS)
    send(sender, now=50 * MS)
    sender.on_ack(((2, 3),), now=60 * MS)
    steered.pacing_rate = 7.0
    stats = sender.take_interval(now=100 * MS)
    seen = {name: float(getattr(stats, name)[0]) for name in IntervalStats.names()}
    packet = 1504 * 8e-6  # megabits
    rates = [packet / 0.05, 2 * packet / 0.06]
    sent = [4 * packet / 0.05, 3 * packet / 0.06]
    counts = {"sent": 5, "acked": 2, "lost": 1, "timeouts": 0, "cwnd": 4, "inflight": 2}
    counts["spurious"] = 0
    times = {"duration": 0.1, "rtt_sum": 0.11, "rtt_last": 0.06, "rtt_min": 0.05, "rtt_max": 0.06}
    averages = {
        "delay_ewma": 10 / 8,
        "delivery_rate_ewma": rates[0] + (rates[1] - rates[0]) / 8,
        "send_rate_ewma": sent[0] + (sent[1] - sent[0]) / 8,
    }
    expected = counts | times | averages | {"min_rtt": 0.05, "pacing_rate": 7}
    assert seen == pytest.approx(expected)
    empty = sender.take_interval(now=110 * MS)
    assert [*empty.duration, *empty.acked, *empty.rtt_sum] == [0.01, 0.0, 0.0]
    assert [*empty.rtt_last, *empty.min_rtt, *empty.inflight] == [0.06, 0.05, 2.0]
    assert empty.delay_ewma == 0.0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_transfer() -> None:
    class Still(Steered):
        def on_ack(self, ack: Ack, *, now: int) -> None: ...

    sender = Sender(Still(20.0), SenderOptions(), now=0)
    now, used = 0, []
    tracemalloc.start()
    for _ in range(2):
        for _ in range(1500):
            now += 10 * MS
            first = sender.next_number
            numbers = send(sender, now=now)
            assert numbers[0] == first
            sender.on_ack(((numbers[1], numbers[-1] + 1),), now=now + 5 * MS)
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sender.next_number > 55_000
    assert used[1] - used[0] < 200_000  # bytes; 27,000 stamps would take 4 MB
    assert sender.inflight < 100
