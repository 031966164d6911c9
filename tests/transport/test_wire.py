"""Round trips, and input that is anything but a datagram: one kind of error, always."""

import struct
from collections.abc import Callable
from typing import Any

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
HELLOS = st.builds(Hello, u(64), blob(16), SIZES, blob(16))
ACKS = st.builds(Acknowledgement, u(64), range_sets())
DATA = st.tuples(u(64), u(62), u(62), st.booleans()).map(
    lambda drawn: Data(drawn[0], drawn[1], max(drawn[1] - drawn[2], 0), drawn[3])
)
SIGNED: dict[type, tuple[st.SearchStrategy[Any], Callable[..., bytes]]] = {
    Answer: (st.builds(Answer, u(64), blob(16), SIZES, TEXTS, st.booleans()), wire.encode_answer),
    Acknowledgement: (ACKS, wire.encode_ack),
}
ALL = (
    wire.encode_hello(Hello(7, b"n" * 16, 1472)),
    wire.encode_answer(Answer(1, bytes(16), 1472), KEY),
    wire.encode_answer(Answer(1, refusal="come later"), KEY),
    data(Data(9, 5, 3, True)),
    wire.encode_ack(Acknowledgement(1, ((9, 12), (3, 5))), KEY),
)


def decode(datagram: bytes) -> Message | None:
    """Decode; None for what is refused. Any other exception fails the test."""
    try:
        return wire.decode(datagram)
    except WireError:
        return None


@given(HELLOS, DATA, st.integers(MIN_DATAGRAM, 3000))
def test_a_hello_and_data_come_back_whatever_the_padding(
    hello: Hello, message: Data, size: int
) -> None:
    datagram = wire.encode_hello(hello)
    assert len(datagram) == MIN_DATAGRAM
    assert wire.decode(datagram) == hello
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


def encode(message: Message) -> bytes:
    """Encode a message without DATA's padding and without the authenticator of the others."""
    if isinstance(message, Hello):
        return wire.encode_hello(message)
    if isinstance(message, Data):
        return wire.data_header(*message[:3], fin=message.fin)
    return SIGNED[type(message)][1](message, KEY)[: -wire.TAG_BYTES]


@settings(max_examples=300)
@given(st.binary(max_size=700), st.sampled_from(range(10)))
def test_random_bytes_are_taken_or_refused(body: bytes, kind: int) -> None:
    decode(body)
    decode(struct.pack("!4sBBH", wire.MAGIC, wire.VERSION, kind, 0) + body)


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.sampled_from(ALL), st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255))))
def test_what_is_taken_has_one_encoding(datagram: bytes, edits: list[tuple[int, int]]) -> None:
    changed = bytearray(datagram)
    for place, value in edits:
        changed[place % len(changed)] = value
    message = decode(bytes(changed))
    if message is not None:
        assert bytes(changed).startswith(encode(message))


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


@pytest.mark.parametrize(
    ("datagram", "says"),
    [
        (b"", "0 bytes"),
        (b"HTTP" + ALL[0][4:], "magic"),
        (ALL[0].ljust(65508, b"\0"), "65508 bytes"),
        (ALL[0][:5] + b"\x09" + ALL[0][6:], "kind 9"),
        (ALL[0][:7] + b"\1" + ALL[0][8:], "flags 0x1"),
        (ALL[0].replace((1472).to_bytes(2), (511).to_bytes(2)), "largest"),
        (data(Data(1, 2**62, 0)), "number"),
        (data(Data(1, 4, 5)), "number"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(datagram: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        wire.decode(datagram)
    with pytest.raises(WireError, match="a largest datagram of 511 bytes; expected 512"):
        wire.encode_hello(Hello(1, bytes(16), 511))


def _through(message: Answer | Acknowledgement) -> Message:
    """Return what comes of a message, in a datagram shorter than what it answers."""
    datagram = SIGNED[type(message)][1](message, KEY)
    assert len(datagram) < MIN_DATAGRAM
    return wire.decode(datagram)


@pytest.mark.parametrize(
    ("text", "shown"), [("x" * 1000, "x" * wire.MAX_TEXT_BYTES), ("a\x1b[2Jé", "a?[2Jé")]
)
def test_a_refusal_is_cut_and_cannot_write_to_the_terminal(text: str, shown: str) -> None:
    assert _through(Answer(1, refusal=text)) == Answer(1, refusal=shown)


MANY = tuple((3 * k, 3 * k + 1) for k in range(100, 0, -1))


@pytest.mark.parametrize(
    ("ranges", "kept"),
    [
        (MANY, MANY[:MAX_RANGES]),
        (((2**40, 2**40 + 5), (3, 2**39)), ((2**40, 2**40 + 5),)),
        (((0, 2**40),), ((2**40 - 2**32 + 1, 2**40),)),
    ],
)
def test_of_ranges_that_do_not_fit_the_oldest_are_left_out(ranges: Any, kept: Any) -> None:
    assert _through(Acknowledgement(1, ranges)) == Acknowledgement(1, kept)


@pytest.mark.parametrize("version", [0, 1, 255])
def test_another_version_can_be_told(version: int) -> None:
    with pytest.raises(VersionError, match=f"version {version}") as caught:
        wire.decode(ALL[0][:4] + bytes([version]) + ALL[0][5:])
    error = caught.value
    assert (error.version, error.kind, error.session) == (version, wire.Kind.HELLO, 7)


@pytest.mark.parametrize(
    "pairs", [(0, 0), (1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 101), (0, 1, 99, 2), (0, 1, 100, 1)]
)
def test_ranges_are_never_empty_touching_or_negative(pairs: tuple[int, ...]) -> None:
    start = wire.encode_ack(Acknowledgement(1, ((99, 100),)), KEY)[: -8 - 8 - 1]
    body = struct.pack(f"!B{len(pairs)}I", len(pairs) // 2, *pairs)
    assert decode(start + body + bytes(8)) is None
    body = struct.pack("!B4I", 2, 0, 1, 98, 1)
    ack = decode(start + body + bytes(8))
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges == ((99, 100), (0, 1))
