"""Opening and admission against each other, and against forgers, copies and other versions."""

import random
from typing import Any

import pytest

from distrlcc.transport import wire
from distrlcc.transport.handshake import MAX_SESSIONS, MAX_UNPROVEN, Admission, Opening
from distrlcc.transport.wire import Acknowledgement, Answer, Hello, session_key

HERE = ("127.0.0.1", 4000)
MS = 1_000_000


def opening(session: int = 7, *, now: int = 0) -> Opening:
    return Opening(Hello(session, session.to_bytes(16), 1452), now=now)


def first(opening: Opening, now: int = 0) -> Any:
    return opening.datagram_to_send(now=now)


def of_version(number: int, datagram: bytes) -> bytes:
    return datagram[:4] + bytes([number]) + datagram[5:]


def test_one_round_trip_and_an_answer_that_was_lost() -> None:
    sender, receiver = Opening(Hello(7, (7).to_bytes(16), 9000), now=0), Admission()
    hello = first(sender)
    reply, session = receiver.on_datagram(hello, HERE)
    assert reply is not None
    assert session is not None
    assert len(reply) < len(hello)
    # The answer was lost: the sender asks again, and gets the same.
    assert receiver.on_datagram(first(sender, 250 * MS), HERE) == (reply, None)
    sender.on_datagram(reply, now=1100 * MS)
    assert (sender.waiting, sender.failure) == (False, "")
    assert sender.rtt == 1000 * MS  # at most, as nobody knows which HELLO was answered
    assert sender.answer is not None
    assert sender.answer.max_datagram == 1472
    assert sender.key == session.key != session_key(7, (7).to_bytes(16))
    assert sender.next_time() > 10**18
    assert sender.datagram_to_send(now=70 * MS) is None
    assert (receiver.counts["accepted"], receiver.counts["repeated"]) == (1, 1)


def test_waits_double_and_end() -> None:
    sender = opening(now=5)
    times = []
    while sender.waiting:
        now = sender.next_time()
        if sender.datagram_to_send(now=now) is not None:
            times.append((now - 5) // MS)
    assert times == [0, 250, 750, 1750, 3750, 5750, 7750, 9750]
    assert sender.failure.startswith("no answer within 10 s; is 'distrlcc receive' there")


def test_a_session_number_cannot_be_taken_over() -> None:
    receiver = Admission()
    _, session = receiver.on_datagram(first(opening()), HERE)
    thief = Opening(Hello(7, b"t" * 16, 1452), now=0)
    assert receiver.on_datagram(first(thief), HERE) == (None, None)
    assert receiver.on_datagram(first(opening()), ("127.0.0.2", 4000)) == (None, None)
    assert receiver.counts["stray"] == 2
    assert receiver.sessions == {7: session}


def test_a_full_receiver_and_a_greedy_host_are_refused_with_the_reason() -> None:
    receiver = Admission()

    def ask(number: int, host: str) -> str:
        sender = opening(number)
        _open(sender, receiver, (host, 1))
        return sender.failure

    assert not any(ask(number, f"host {number // 16}") for number in range(63))
    says = "the receiver refuses: it is busy (16 sessions of yours are open)"
    assert ask(100, "host 0") == says
    assert ask(101, "host 3") == ""
    assert ask(102, "other") == "the receiver refuses: it is busy (64 sessions are open)"
    receiver.leave(1)
    assert ask(103, "host 0") == ""
    receiver.leave(2)
    receiver.ending = True
    assert "about to end" in ask(104, "host 0")


def _open(sender: Opening, receiver: Admission, address: tuple[str, int]) -> int:
    """Let a sender at an address open its session; return how many HELLOs that took."""
    asked = 0
    while sender.waiting:
        reply, _ = receiver.on_datagram(first(sender, 80 * MS * asked), address)
        asked += 1
        assert reply is not None
        sender.on_datagram(reply, now=80 * MS * asked)
    return asked


def test_forged_addresses_take_few_places_and_no_memory() -> None:
    receiver = Admission()
    for number in range(10_000):
        hello = first(opening(number))
        receiver.on_datagram(hello, (f"host {number % 3_000}", number))
    assert len(receiver.sessions) == receiver.counts["accepted"] == MAX_UNPROVEN
    assert receiver.counts["retried"] == 10_000 - MAX_UNPROVEN
    # Who lives at its address is let in, after one round trip more, which its RTT leaves out.
    for number in range(10_000, 10_000 + MAX_SESSIONS - MAX_UNPROVEN):
        sender = opening(number)
        assert _open(sender, receiver, (f"honest {number}", 1)) == 2
        assert (sender.failure, sender.rtt) == ("", 80 * MS)
        assert sender.key == receiver.sessions[number].key


def test_a_cookie_is_of_one_address_one_session_and_one_receiver() -> None:
    receiver, other = Admission(), Admission()
    for number in range(MAX_UNPROVEN):
        receiver.on_datagram(first(opening(number)), ("forged", number))
        other.on_datagram(first(opening(number)), ("forged", number))
    sender = opening(100)
    reply, _ = receiver.on_datagram(first(sender), HERE)
    assert reply is not None
    assert len(reply) < wire.MIN_DATAGRAM
    sender.on_datagram(reply, now=80 * MS)
    hello = first(sender, 80 * MS)
    cookie = sender.hello.cookie
    assert any(cookie)
    stolen = wire.encode_hello(opening(101).hello._replace(cookie=cookie))
    for asked, datagram, address in (
        (receiver, hello, ("127.0.0.2", 4000)),
        (receiver, hello, (HERE[0], 4001)),
        (receiver, stolen, HERE),
        (other, hello, HERE),
    ):
        assert asked.on_datagram(datagram, address)[1] is None
    assert receiver.on_datagram(hello, HERE)[1] is not None
    # A second cookie, a forger's, changes nothing.
    sender.on_datagram(reply, now=90 * MS)
    assert (sender.ignored, sender.hello.cookie) == (1, cookie)


def test_another_version_is_told() -> None:
    sender, receiver = opening(), Admission()
    newer = of_version(5, first(sender))
    reply, session = receiver.on_datagram(newer, HERE)
    assert session is None
    assert receiver.counts["other_version"] == 1
    assert reply is not None
    assert len(reply) < len(newer)
    answer = wire.decode(reply)
    assert isinstance(answer, Answer)
    assert (answer.session, answer.refusal) == (7, "expected version 4")
    # What the refusal of a receiver of version 1 looks like to this version:
    sender.on_datagram(of_version(1, reply), now=80 * MS)
    assert "speaks version 1 of the protocol and this is version 4" in sender.failure
    # Nothing is answered to what is shorter than the answer, or no HELLO.
    assert receiver.on_datagram(newer[:20], HERE) == (None, None)
    ack = wire.encode_ack(Acknowledgement(7, ((0, 1),)), bytes(32))
    assert receiver.on_datagram(of_version(5, ack), HERE) == (None, None)


@pytest.mark.parametrize("seed", range(3))
def test_forgers_that_do_not_see_packets_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    sender, receiver = opening(), Admission()
    reply, _ = receiver.on_datagram(first(sender), HERE)
    assert reply is not None
    wrong, right = session_key(7, rng.randbytes(16)), session_key(7, (7).to_bytes(16))
    forgeries = [
        wire.encode_answer(Answer(7, refusal="go away"), wrong),
        wire.encode_answer(Answer(7, bytes(16), 1400), wrong),
        wire.encode_answer(Answer(8, bytes(16), 1400), session_key(8, bytes(16))),
        wire.encode_answer(Answer(7, bytes(16), 1453), right),  # larger than was offered
        wire.encode_ack(Acknowledgement(7, ((0, 1),)), wrong),
        of_version(5, wire.encode_answer(Answer(8, refusal="x"), wrong)),
        of_version(5, wire.encode_ack(Acknowledgement(7, ((0, 1),)), wrong)),
        rng.randbytes(40),
    ]
    for forgery in forgeries:
        sender.on_datagram(forgery, now=80 * MS)
    assert (sender.waiting, sender.ignored) == (True, len(forgeries))
    sender.on_datagram(reply, now=80 * MS)
    assert sender.answer is not None
    sender.on_datagram(reply, now=80 * MS)
    assert sender.ignored == len(forgeries) + 1


def test_garbage_is_counted() -> None:
    receiver, rng = Admission(), random.Random(1)
    for _ in range(100):
        assert receiver.on_datagram(rng.randbytes(rng.randrange(600)), HERE) == (None, None)
    stray = wire.data_header(1, 0, 0).ljust(wire.MIN_DATAGRAM, b"\0")
    assert receiver.on_datagram(stray, HERE) == (None, None)
    assert receiver.counts == {"malformed": 100, "stray": 1}
