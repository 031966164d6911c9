"""Opening and door against each other, and against forgers, replays and other versions."""

from __future__ import annotations

import random

import pytest

from distrlcc.transport import wire
from distrlcc.transport.door import Door, DoorOptions
from distrlcc.transport.handshake import Closing, Opening, State
from distrlcc.transport.keys import session_key
from distrlcc.transport.messages import (
    Acknowledgement,
    Close,
    Closed,
    Hello,
    Reason,
    Refuse,
    Retry,
    Verdict,
    Welcome,
)
from distrlcc.transport.repeat import RepeatOptions
from distrlcc.types import NANOSECONDS

HERE = ("127.0.0.1", 4000)
MS = 1_000_000


def opening(session: int = 7, *, now: int = 0) -> Opening:
    return Opening(Hello(session, bytes([session]) * 16, 1452, 1000, "data.bin"), now=now)


def door(**options: int) -> Door:
    return Door(b"s" * 32, DoorOptions(**options))


def first(opening: Opening, now: int = 0) -> bytes:
    datagram = opening.datagram_to_send(now=now)
    assert datagram is not None
    return datagram


def with_cookie(opening: Opening, door: Door, *, now: int = 0) -> bytes:
    reply, session = door.on_datagram(first(opening, now), HERE, now=now)
    assert reply is not None
    assert session is None
    opening.on_datagram(reply, now=now)
    return first(opening, now)


def test_hello_retry_hello_welcome() -> None:
    sender, receiver = opening(), door(max_datagram=1400)
    datagram = with_cookie(sender, receiver)
    assert receiver.sessions == {}  # nothing is stored before the cookie is back
    assert sender.state is State.WAITING
    reply, session = receiver.on_datagram(datagram, HERE, now=50 * MS)
    assert reply is not None
    assert session is not None
    sender.on_datagram(reply, now=60 * MS)
    assert sender.state is State.OPEN
    assert sender.welcome is not None
    assert sender.welcome.max_datagram == session.max_datagram == 1400
    assert sender.key == session.key != session_key(7, bytes([7]) * 16)
    assert (session.hello.file_name, session.hello.file_size) == ("data.bin", 1000)
    assert sender.next_time() > 10**18
    assert sender.datagram_to_send(now=70 * MS) is None
    assert receiver.counts.accepted == 1


def test_no_answer_is_longer_than_its_question() -> None:
    sender, receiver = opening(), door()
    hello = first(sender)
    reply, _ = receiver.on_datagram(hello, HERE, now=0)
    assert reply is not None
    assert len(reply) <= len(hello)


def test_a_lost_welcome_is_sent_again() -> None:
    sender, receiver = opening(), door()
    datagram = with_cookie(sender, receiver)
    welcome, session = receiver.on_datagram(datagram, HERE, now=0)
    again, none = receiver.on_datagram(datagram, HERE, now=20 * NANOSECONDS)
    assert again == welcome
    assert session is not None
    assert none is None
    assert receiver.counts.repeated == 1


def test_a_second_cookie_opens_the_same_session() -> None:
    """A copy of the first HELLO fetches another cookie while the WELCOME gets lost."""
    sender, receiver = opening(), door()
    hello = first(sender)
    retries = [receiver.on_datagram(hello, HERE, now=now).reply for now in (0, 2 * NANOSECONDS)]
    assert retries[0] is not None
    assert retries[1] is not None
    sender.on_datagram(retries[0], now=NANOSECONDS)
    _, session = receiver.on_datagram(first(sender, NANOSECONDS), HERE, now=NANOSECONDS)
    sender.on_datagram(retries[1], now=3 * NANOSECONDS)
    welcome, none = receiver.on_datagram(first(sender, 3 * NANOSECONDS), HERE, now=3 * NANOSECONDS)
    assert none is None
    assert welcome is not None
    assert session is not None
    sender.on_datagram(welcome, now=3 * NANOSECONDS)
    assert sender.key == session.key


def test_waits_double_and_end() -> None:
    sender = opening(now=5)
    times = []
    while sender.state is State.WAITING:
        now = sender.next_time()
        if sender.datagram_to_send(now=now) is not None:
            times.append((now - 5) // MS)
    assert times == [0, 250, 750, 1750, 3750, 5750, 7750, 9750]
    assert sender.state is State.SILENT
    assert sender.failure == "no answer within 10 s"


def test_a_retry_restarts_the_waits_but_not_the_limit() -> None:
    sender, receiver = opening(), door()
    hello = first(sender)
    sender.datagram_to_send(now=250 * MS)
    reply, _ = receiver.on_datagram(hello, HERE, now=300 * MS)
    assert reply is not None
    sender.on_datagram(reply, now=400 * MS)
    assert sender.next_time() == 400 * MS
    first(sender, 400 * MS)
    assert sender.next_time() == 650 * MS
    sender.on_datagram(reply, now=500 * MS)  # the same cookie again changes nothing
    assert (sender.ignored, sender.next_time()) == (1, 650 * MS)
    assert sender.datagram_to_send(now=10 * NANOSECONDS) is None
    assert sender.state is State.SILENT


def test_endless_retries_are_ignored() -> None:
    sender = opening()
    for k in range(10):
        retry = Retry(7, bytes([k]) * 20)
        datagram = wire.encode_retry(retry, session_key(7, bytes([7]) * 16))
        sender.on_datagram(datagram, now=0)
    assert sender.hello.cookie == bytes([2]) * 20
    assert sender.ignored == 7


def test_cookies_of_another_address_or_made_up() -> None:
    sender, receiver = opening(), door()
    datagram = with_cookie(sender, receiver)
    reply, session = receiver.on_datagram(datagram, ("127.0.0.2", 4000), now=0)
    assert session is None
    assert receiver.counts.forged == 1
    assert reply is not None
    sender.on_datagram(reply, now=0)
    assert sender.state is State.REFUSED
    made_up = wire.encode_hello(Hello(9, bytes(16), 1452, cookie=bytes(20)))
    assert receiver.on_datagram(made_up, HERE, now=0).session is None
    assert receiver.counts.forged == 2
    assert receiver.sessions == {}


def test_an_old_cookie_is_replaced() -> None:
    sender, receiver = opening(), door(max_cookie_age_s=3)
    datagram = with_cookie(sender, receiver)
    reply, session = receiver.on_datagram(datagram, HERE, now=5 * NANOSECONDS)
    assert session is None
    assert receiver.counts.expired == 1
    assert reply is not None
    sender.on_datagram(reply, now=5 * NANOSECONDS)
    fresh = first(sender, 5 * NANOSECONDS)
    assert receiver.on_datagram(fresh, HERE, now=5 * NANOSECONDS).session is not None


def test_a_replayed_hello_opens_nothing() -> None:
    sender, receiver = opening(), door(max_cookie_age_s=3)
    datagram = with_cookie(sender, receiver)
    receiver.on_datagram(datagram, HERE, now=0)
    receiver.leave(7, now=NANOSECONDS)
    assert receiver.on_datagram(datagram, HERE, now=2 * NANOSECONDS) == (None, None)
    assert receiver.counts.replayed == 1
    # Later the cookie is too old, so that the session need not be remembered.
    reply, session = receiver.on_datagram(datagram, HERE, now=9 * NANOSECONDS)
    assert reply is not None
    assert session is None
    assert receiver._left == {}


def test_a_session_number_cannot_be_taken_over() -> None:
    receiver = door()
    datagram = with_cookie(opening(), receiver)
    receiver.on_datagram(datagram, HERE, now=0)
    thief = Opening(Hello(7, b"t" * 16, 1452), now=0)
    stolen = with_cookie(thief, receiver)
    assert receiver.on_datagram(stolen, HERE, now=0) == (None, None)
    assert receiver.counts.replayed == 1
    assert receiver.sessions[7].hello.file_name == "data.bin"


def test_a_full_house_and_an_unwanted_file() -> None:
    receiver = Door(
        b"s" * 32,
        DoorOptions(max_sessions=1),
        lambda hello, _: (
            Refuse(hello.session, Reason.FILE_REFUSED, "too large")
            if (hello.file_size or 0) > 500
            else None
        ),
    )
    sender = opening()
    reply, session = receiver.on_datagram(with_cookie(sender, receiver), HERE, now=0)
    assert session is None
    assert reply is not None
    sender.on_datagram(reply, now=0)
    assert sender.state is State.REFUSED
    assert sender.failure == "the receiver refuses: it does not want the file (too large)"
    small = Opening(Hello(8, b"8" * 16, 1452, 10, "a"), now=0)
    assert receiver.on_datagram(with_cookie(small, receiver), HERE, now=0).session is not None
    late = Opening(Hello(9, b"9" * 16, 1452, 10, "a"), now=0)
    reply, session = receiver.on_datagram(with_cookie(late, receiver), HERE, now=0)
    assert session is None
    assert reply is not None
    late.on_datagram(reply, now=0)
    assert late.failure == "the receiver refuses: it is busy (1 sessions are open)"


def _version_2(datagram: bytes) -> bytes:
    return datagram[:4] + b"\2" + datagram[5:]


def test_another_version_is_told() -> None:
    sender, receiver = opening(), door()
    newer = _version_2(first(sender))
    reply, session = receiver.on_datagram(newer, HERE, now=0)
    assert session is None
    assert receiver.counts.other_version == 1
    assert reply is not None
    assert len(reply) < len(newer)
    refuse = wire.decode(reply)
    assert isinstance(refuse, Refuse)
    assert (refuse.reason, refuse.session) == (Reason.OTHER_VERSION, 7)
    # What a newer receiver's REFUSE looks like to this version:
    sender.on_datagram(_version_2(reply), now=0)
    assert sender.state is State.REFUSED
    assert "speaks version 2 of the protocol and this is version 1" in sender.failure
    # Nothing is answered to what is shorter than the answer, or no HELLO.
    assert receiver.on_datagram(newer[:20], HERE, now=0) == (None, None)
    ack = wire.encode_ack(Acknowledgement(7, ((0, 1),) * 1, 0, 0), bytes(32))
    assert receiver.on_datagram(_version_2(ack), HERE, now=0) == (None, None)


@pytest.mark.parametrize("seed", range(3))
def test_forgers_who_do_not_see_packets_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    sender, receiver = opening(), door()
    datagram = with_cookie(sender, receiver)
    reply, _ = receiver.on_datagram(datagram, HERE, now=0)
    assert reply is not None
    wrong = session_key(7, rng.randbytes(16))
    forgeries = [
        wire.encode_refuse(Refuse(7, 2), wrong),
        wire.encode_retry(Retry(7, rng.randbytes(20)), wrong),
        wire.encode_welcome(Welcome(7, bytes(16), 1400, 1, 1), wrong),
        wire.encode_welcome(Welcome(8, bytes(16), 1400, 1, 1), session_key(8, bytes(16))),
        wire.encode_closed(Closed(7, 0), wrong),
        _version_2(wire.encode_refuse(Refuse(8, 1), wrong)),
        _version_2(reply),
        rng.randbytes(40),
    ]
    for forgery in forgeries:
        sender.on_datagram(forgery, now=0)
    assert (sender.state, sender.ignored) == (State.WAITING, len(forgeries))
    sender.on_datagram(reply, now=0)
    assert sender.state is State.OPEN
    sender.on_datagram(reply, now=0)
    assert sender.ignored == len(forgeries) + 1


def test_a_welcome_for_larger_datagrams_than_offered_is_ignored() -> None:
    sender = opening()
    welcome = Welcome(7, bytes(16), 1453, 1, 1)
    sender.on_datagram(wire.encode_welcome(welcome, session_key(7, bytes([7]) * 16)), now=0)
    assert (sender.state, sender.ignored) == (State.WAITING, 1)


def test_garbage_at_the_door_is_counted() -> None:
    receiver, rng = door(), random.Random(1)
    for _ in range(100):
        assert receiver.on_datagram(rng.randbytes(rng.randrange(600)), HERE, now=0) == (None, None)
    close = wire.encode_close(Close(1, 0), bytes(32))
    assert receiver.on_datagram(close, HERE, now=0) == (None, None)
    assert (receiver.counts.malformed, receiver.counts.stray) == (100, 1)


def test_closing() -> None:
    key = bytes(range(32))
    options = RepeatOptions(100 * MS, 200 * MS, 1000 * MS)
    closing = Closing(Close(7, 0, 10, b"d" * 32), key, options, now=0)
    datagram = closing.datagram_to_send(now=0)
    assert datagram is not None
    assert wire.decode(datagram) == Close(7, 0, 10, b"d" * 32)
    assert closing.datagram_to_send(now=50 * MS) is None
    assert closing.next_time() == 100 * MS
    closed = Closed(7, Verdict.INTACT, 3, 10, b"d" * 32)
    closing.on_datagram(wire.encode_closed(closed, bytes(32)), now=60 * MS)
    closing.on_datagram(wire.encode_closed(closed._replace(session=8), key), now=60 * MS)
    closing.on_datagram(b"rubbish", now=60 * MS)
    assert (closing.state, closing.ignored) == (State.WAITING, 3)
    assert not closing.intact
    closing.on_datagram(wire.encode_closed(closed, key), now=60 * MS)
    assert closing.state is State.CLOSED
    assert closing.intact
    silent = Closing(Close(7, 1), key, options, now=0)
    while silent.state is State.WAITING:
        silent.datagram_to_send(now=silent.next_time())
    assert silent.state is State.SILENT
