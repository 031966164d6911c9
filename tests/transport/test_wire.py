"""Round trips, and input that is anything but a datagram: one kind of error, always."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrlcc.errors import VersionError, WireError
from distrlcc.transport import messages, wire
from distrlcc.transport.keys import TAG_BYTES, authentic, cookie_age, make_cookie, session_key
from distrlcc.transport.messages import (
    Acknowledgement,
    Close,
    Closed,
    Data,
    Hello,
    Message,
    Reason,
    Refuse,
    Retry,
    Welcome,
)

KEY = session_key(1, bytes(16), bytes(16))
HELLO = Hello(7, b"n" * 16, 1472, 10**6, "größe.bin", b"c" * 20)
NAMES = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1, max_size=60
).filter(lambda name: name not in (".", "..") and name.isprintable())


def u(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def blob(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


@st.composite
def range_sets(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    count = draw(st.integers(1, messages.MAX_RANGES))
    lengths = st.integers(1, 1000)
    numbers = draw(st.lists(lengths, min_size=2 * count, max_size=2 * count))
    low = draw(st.integers(0, 2**61))
    ranges = []
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        ranges.append((low + gap, low + gap + length))
        low += gap + length
    return tuple(reversed(ranges))


HELLOS = st.one_of(
    st.builds(
        Hello, u(64), blob(16), st.integers(512, 65507), st.integers(0, 2**62 - 1), NAMES,
        st.sampled_from([b"", b"c" * 20]),
    ),
    st.builds(
        Hello, u(64), blob(16), st.integers(512, 65507), st.none(), st.just(""),
        st.sampled_from([b"", b"k" * 20]),
    ),
)  # fmt: skip
ACKS = st.builds(Acknowledgement, u(64), range_sets(), u(32), u(64))
DATA = st.builds(
    lambda session, number, below, offset, payload, fin: Data(
        session, number, max(number - below, 0), offset, payload, fin
    ),
    u(64), u(62), u(62), u(61), st.binary(max_size=2000), st.booleans(),
)  # fmt: skip
SIGNED = {
    Retry: (st.builds(Retry, u(64), blob(20)), wire.encode_retry),
    Welcome: (
        st.builds(Welcome, u(64), blob(16), st.integers(512, 65507), u(32), u(32)),
        wire.encode_welcome,
    ),
    Refuse: (st.builds(Refuse, u(64), u(8), NAMES), wire.encode_refuse),
    Acknowledgement: (ACKS, wire.encode_ack),
    Close: (st.builds(Close, u(64), st.integers(0, 1), u(62), blob(32)), wire.encode_close),
    Closed: (
        st.builds(Closed, u(64), st.integers(0, 3), u(64), u(64), blob(32)),
        wire.encode_closed,
    ),
}
ALL = (
    wire.encode_hello(HELLO),
    wire.encode_hello(Hello(8, bytes(16), 512)),
    wire.encode_retry(Retry(1, bytes(20)), KEY),
    wire.encode_welcome(Welcome(1, bytes(16), 1472, 1000, 30000), KEY),
    wire.encode_refuse(Refuse(1, Reason.BUSY, "come later"), KEY),
    wire.encode_data(Data(9, 5, 3, 100, b"abc", True)),
    wire.encode_ack(Acknowledgement(1, ((9, 12), (3, 5)), 17, 99), KEY),
    wire.encode_close(Close(1, 0, 77, bytes(32)), KEY),
    wire.encode_closed(Closed(1, 0, 3, 77, bytes(32)), KEY),
)


def decode(datagram: bytes) -> Message | None:
    """Decode; None for what is refused. Any other exception fails the test."""
    try:
        return wire.decode(datagram)
    except WireError:
        return None


@given(HELLOS)
def test_a_hello_comes_back(hello: Hello) -> None:
    datagram = wire.encode_hello(hello)
    assert len(datagram) == wire.HELLO_BYTES
    assert wire.decode(datagram) == hello


@given(DATA, st.integers(0, 3000))
def test_data_come_back_with_padding_or_without(data: Data, size: int) -> None:
    datagram = wire.encode_data(data, size)
    assert len(datagram) == max(size, wire.DATA_BYTES + len(data.payload))
    for buffer in (datagram, bytearray(datagram), memoryview(datagram)):
        assert wire.decode(buffer) == data


@pytest.mark.parametrize("kind", SIGNED)
@given(st.data())
def test_signed_messages_come_back(kind: type, data: st.DataObject) -> None:
    strategy, encode = SIGNED[kind]
    message = data.draw(strategy)
    datagram = encode(message, KEY)
    decoded = wire.decode(datagram)
    assert type(decoded) is kind
    assert decoded == message
    assert authentic(datagram, KEY)
    assert not authentic(datagram, session_key(2, bytes(16), bytes(16)))


@settings(max_examples=300)
@given(st.binary(max_size=700), st.sampled_from(range(10)))
def test_random_bytes_are_taken_or_refused(body: bytes, kind: int) -> None:
    decode(body)
    decode(struct.pack("!4sBBH", wire.MAGIC, wire.VERSION, kind, 0) + body)


@pytest.mark.parametrize("datagram", ALL)
def test_whatever_is_cut_short_is_refused(datagram: bytes) -> None:
    is_data = datagram[5] == messages.Kind.DATA
    for size in range(len(datagram)):
        assert decode(datagram[:size]) is None
    assert is_data or datagram[5] == messages.Kind.HELLO or decode(datagram + b"\0") is None


@pytest.mark.parametrize("datagram", ALL)
def test_every_flipped_bit_is_refused_or_noticed(datagram: bytes) -> None:
    original = wire.decode(datagram)
    signed = type(original) in SIGNED
    for place in range(8 * len(datagram)):
        flipped = bytearray(datagram)
        flipped[place // 8] ^= 1 << place % 8
        message = decode(bytes(flipped))
        if message is not None:
            assert message != original or signed
            assert not (signed and authentic(bytes(flipped), KEY))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_can_be_told(version: int) -> None:
    datagram = bytearray(ALL[0])
    datagram[4] = version
    with pytest.raises(VersionError, match=f"version {version}") as caught:
        wire.decode(bytes(datagram))
    error = caught.value
    assert (error.version, error.kind, error.session) == (version, messages.Kind.HELLO, 7)


@pytest.mark.parametrize(
    ("datagram", "says"),
    [
        (b"", "0 bytes"),
        (b"HTTP" + ALL[0][4:], "magic"),
        (ALL[0].ljust(65508, b"\0"), "65508 bytes"),
        (ALL[0][:5] + b"\x09" + ALL[0][6:], "kind 9"),
        (ALL[0][:7] + b"\1" + ALL[0][8:], "flags 0x1"),
    ],
)
def test_the_reason_is_said(datagram: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        wire.decode(datagram)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "\x1b[2J", "é" * 128])
def test_a_bad_file_name_is_one_clear_line(name: str) -> None:
    with pytest.raises(WireError, match="file name"):
        wire.encode_hello(Hello(1, bytes(16), 1472, 5, name))
    raw = name.encode()
    if 0 < len(raw) <= messages.MAX_NAME_BYTES:
        good = wire.encode_hello(Hello(1, bytes(16), 1472, 5, "x" * len(raw)))
        assert decode(good) is not None
        assert decode(good.replace(b"x" * len(raw), raw, 1)) is None


def test_no_answer_is_longer_than_a_hello() -> None:
    text = "x" * 1000
    answers = (
        wire.encode_retry(Retry(1, bytes(20)), KEY),
        wire.encode_welcome(Welcome(1, bytes(16), 1472, 1, 1), KEY),
        wire.encode_refuse(Refuse(1, 1, text), KEY),
    )
    assert max(map(len, answers)) < wire.HELLO_BYTES
    refuse = wire.decode(answers[2])
    assert isinstance(refuse, Refuse)
    assert refuse.text == "x" * messages.MAX_TEXT_BYTES


@pytest.mark.parametrize(
    "pairs",
    [(0, 0), (1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 101), (0, 1, 99, 2), (0, 1, 100, 1)],
)
def test_ranges_are_never_empty_touching_or_negative(pairs: tuple[int, ...]) -> None:
    start = wire.encode_ack(Acknowledgement(1, ((99, 100),), 0, 0), KEY)[: -8 - 8 - 1]
    body = struct.pack(f"!B{len(pairs)}I", len(pairs) // 2, *pairs)
    assert decode(start + body + bytes(8)) is None
    body = struct.pack("!B4I", 2, 0, 1, 98, 1)
    ack = decode(start + body + bytes(8))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ((99, 100), (0, 1))


@pytest.mark.parametrize(
    ("number", "lowest", "offset"), [(2**62, 0, 0), (4, 5, 0), (0, 0, 2**62 - 1)]
)
def test_numbers_out_of_range_are_refused(number: int, lowest: int, offset: int) -> None:
    assert decode(wire.data_header(1, number, lowest, offset, 1) + b"x") is None
    assert decode(wire.data_header(1, 5, 5, 2**62 - 2, 1) + b"x") is not None


def test_a_refusal_cannot_write_to_the_terminal() -> None:
    refuse = wire.decode(wire.encode_refuse(Refuse(1, 2, "a\x1b[2Jé"), KEY))
    assert isinstance(refuse, Refuse)
    assert refuse.text == "a?[2Jé"


def test_too_many_ranges_lose_the_oldest() -> None:
    ranges = tuple((10 * k, 10 * k + 1) for k in range(100, 0, -1))
    ack = wire.decode(wire.encode_ack(Acknowledgement(1, ranges, 0, 0), KEY))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ranges[: messages.MAX_RANGES]


def test_ranges_that_do_not_fit_lose_what_is_oldest() -> None:
    far = ((2**40, 2**40 + 5), (3, 2**39))
    ack = wire.decode(wire.encode_ack(Acknowledgement(1, far, 0, 0), KEY))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == far[:1]
    ack = wire.decode(wire.encode_ack(Acknowledgement(1, ((0, 2**40),), 0, 0), KEY))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ((2**40 - 2**32 + 1, 2**40),)


@given(st.integers(0, 2**60), st.integers(0, 10**10), blob(16), u(64))
def test_cookies_prove_what_they_were_made_for(
    now: int, later: int, nonce: bytes, session: int
) -> None:
    secret, address = b"s" * 32, ("127.0.0.1", 4000)
    cookie = make_cookie(secret, address, session, nonce, now=now)
    assert len(cookie) == messages.COOKIE_BYTES
    age = cookie_age(cookie, secret, address, session, nonce, now=now + later)
    assert age is not None
    assert abs(age - later / 1e9) <= 1
    others = (
        (cookie, secret, ("127.0.0.2", 4000), session, nonce),
        (cookie, secret, ("127.0.0.1", 4001), session, nonce),
        (cookie, b"t" * 32, address, session, nonce),
        (cookie, secret, address, session ^ 1, nonce),
        (cookie, secret, address, session, bytes([nonce[0] ^ 1]) + nonce[1:]),
        (cookie[:-1] + bytes([cookie[-1] ^ 1]), secret, address, session, nonce),
        (bytes([cookie[0] ^ 1]) + cookie[1:], secret, address, session, nonce),
    )
    for other in others:
        assert cookie_age(*other, now=now + later) is None


def test_the_authenticator_is_short_and_covers_all() -> None:
    assert TAG_BYTES == 8
    for datagram in ALL[2:5] + ALL[6:]:
        assert authentic(datagram, KEY)
