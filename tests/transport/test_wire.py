"""Round trips, and input that is anything but a datagram: one kind of error, always."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrlcc.errors import VersionError, WireError
from distrlcc.transport import wire
from distrlcc.transport.wire import (
    MAX_RANGES,
    MIN_DATAGRAM,
    Acknowledgement,
    Answer,
    Data,
    Hello,
    Message,
    authentic,
    session_key,
)

KEY = session_key(1, bytes(16), bytes(16))
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=40).filter(str.isprintable)


def u(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def blob(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


@st.composite
def range_sets(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    count = draw(st.integers(1, MAX_RANGES))
    lengths = st.integers(1, 1000)
    numbers = draw(st.lists(lengths, min_size=2 * count, max_size=2 * count))
    low = draw(st.integers(0, 2**61))
    ranges = []
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        ranges.append((low + gap, low + gap + length))
        low += gap + length
    return tuple(reversed(ranges))


def data(message: Data, size: int = MIN_DATAGRAM) -> bytes:
    session, number, lowest, fin = message
    return wire.data_header(session, number, lowest, fin=fin).ljust(size, b"\0")


SIZES = st.integers(MIN_DATAGRAM, 65507)
HELLOS = st.builds(Hello, u(64), blob(16), SIZES)
ACKS = st.builds(Acknowledgement, u(64), range_sets(), u(32), u(64))
DATA = st.builds(
    lambda session, number, below, fin: Data(session, number, max(number - below, 0), fin),
    u(64),
    u(62),
    u(62),
    st.booleans(),
)
SIGNED = {
    Answer: (st.builds(Answer, u(64), blob(16), SIZES, u(32), TEXTS), wire.encode_answer),
    Acknowledgement: (ACKS, wire.encode_ack),
}
ALL = (
    wire.encode_hello(Hello(7, b"n" * 16, 1472)),
    wire.encode_answer(Answer(1, bytes(16), 1472, 1000), KEY),
    wire.encode_answer(Answer(1, refusal="come later"), KEY),
    data(Data(9, 5, 3, True)),
    wire.encode_ack(Acknowledgement(1, ((9, 12), (3, 5)), 17, 99), KEY),
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
    assert len(datagram) == MIN_DATAGRAM
    assert wire.decode(datagram) == hello


@given(DATA, st.integers(MIN_DATAGRAM, 3000))
def test_data_come_back_whatever_the_padding(message: Data, size: int) -> None:
    datagram = data(message, size)
    for buffer in (datagram, bytearray(datagram), memoryview(datagram)):
        assert wire.decode(buffer) == message


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
    padded = datagram[5] in (wire.Kind.DATA, wire.Kind.HELLO)
    for size in range(len(datagram)):
        assert decode(datagram[:size]) is None
    assert padded or decode(datagram + b"\0") is None


@pytest.mark.parametrize("datagram", ALL)
def test_every_flipped_bit_is_refused_or_noticed(datagram: bytes) -> None:
    original = wire.decode(datagram)
    signed = type(original) in SIGNED
    size = wire.DATA_BYTES if isinstance(original, Data) else len(datagram)  # the rest is padding
    for place in range(8 * size):
        flipped = bytearray(datagram)
        flipped[place // 8] ^= 1 << place % 8
        message = decode(bytes(flipped))
        if message is not None:
            assert message != original or signed
            assert not (signed and authentic(bytes(flipped), KEY))


@pytest.mark.parametrize("version", [0, 1, 255])
def test_another_version_can_be_told(version: int) -> None:
    datagram = bytearray(ALL[0])
    datagram[4] = version
    with pytest.raises(VersionError, match=f"version {version}") as caught:
        wire.decode(bytes(datagram))
    error = caught.value
    assert (error.version, error.kind, error.session) == (version, wire.Kind.HELLO, 7)


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


def test_no_answer_is_as_long_as_what_it_answers() -> None:
    refused = wire.encode_answer(Answer(1, refusal="x" * 1000), KEY)
    ranges = tuple((3 * k, 3 * k + 1) for k in range(100, 0, -1))
    acknowledged = wire.encode_ack(Acknowledgement(1, ranges, 0, 0), KEY)
    assert max(len(refused), len(acknowledged)) < MIN_DATAGRAM
    answer, ack = wire.decode(refused), wire.decode(acknowledged)
    assert isinstance(answer, Answer)
    assert answer.refusal == "x" * wire.MAX_TEXT_BYTES
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ranges[:MAX_RANGES]  # the oldest are left out


@pytest.mark.parametrize(
    "pairs", [(0, 0), (1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 101), (0, 1, 99, 2), (0, 1, 100, 1)]
)
def test_ranges_are_never_empty_touching_or_negative(pairs: tuple[int, ...]) -> None:
    start = wire.encode_ack(Acknowledgement(1, ((99, 100),), 0, 0), KEY)[: -8 - 8 - 1]
    body = struct.pack(f"!B{len(pairs)}I", len(pairs) // 2, *pairs)
    assert decode(start + body + bytes(8)) is None
    body = struct.pack("!B4I", 2, 0, 1, 98, 1)
    ack = decode(start + body + bytes(8))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ((99, 100), (0, 1))


@pytest.mark.parametrize(("number", "lowest"), [(2**62, 0), (4, 5)])
def test_numbers_out_of_range_are_refused(number: int, lowest: int) -> None:
    assert decode(data(Data(1, number, lowest))) is None


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(WireError, match="a largest datagram of 511 bytes; expected 512"):
        wire.encode_hello(Hello(1, bytes(16), 511))
    assert decode(ALL[0].replace((1472).to_bytes(2), (511).to_bytes(2))) is None


def test_a_refusal_cannot_write_to_the_terminal() -> None:
    answer = wire.decode(wire.encode_answer(Answer(1, refusal="a\x1b[2Jé"), KEY))
    assert isinstance(answer, Answer)
    assert answer.refusal == "a?[2Jé"


def test_ranges_that_do_not_fit_lose_what_is_oldest() -> None:
    far = ((2**40, 2**40 + 5), (3, 2**39))
    ack = wire.decode(wire.encode_ack(Acknowledgement(1, far, 0, 0), KEY))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == far[:1]
    ack = wire.decode(wire.encode_ack(Acknowledgement(1, ((0, 2**40),), 0, 0), KEY))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ((2**40 - 2**32 + 1, 2**40),)
