"""The protocol of a measured flow: four kinds of datagrams, version 4.

::

    sender                        receiver
    HELLO            ------>
                     <------      ANSWER: accepted, the reason why not, or a cookie.
                                  HELLO comes again with the cookie.
    DATA ...         ------>
                     <------      ACK ...
    DATA with FIN    ------>
                     <------      ACK of it.

Every datagram starts with magic, version, kind, flags and session (`HEADER`). All of these except
the flags stand in the same place in every version. A receiver of another version answers a HELLO
with kind `Kind.ANSWER`. Numbers are big-endian.

ANSWER and ACK end with an authenticator, which `decode` does not check (it has no key): ask
`authentic`. A machine that does not see a session's packets can neither refuse nor steer it. DATA
has none: its session number is as hard to guess. The keys come from nonces that travel in clear, so
an observer on the path can forge everything; against it only a tunnel helps.

A sender's datagrams have at least `MIN_DATAGRAM` bytes, and every answer is shorter, so a forged
address gets no more bytes than its forger spends.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2s
from hmac import compare_digest
from typing import NamedTuple

from distrlcc.errors import VersionError, WireError

Buffer = bytes | bytearray | memoryview
MAGIC = b"DLCC"
VERSION = 4
FIN = RETRY = 1  # the one flag: DATA ends the flow; an ANSWER's nonce is a cookie to come with
NONCE_BYTES = 16
TAG_BYTES = 8
MAX_TEXT_BYTES = 200
MAX_RANGES = 32  # ranges in one ACK
MAX_NUMBER = 1 << 62  # packet numbers stay below
MIN_DATAGRAM = 512  # least size of HELLO and DATA, bytes
MAX_DATAGRAM = 65507  # largest UDP payload over IPv4, bytes
_UINT32 = 0xFFFFFFFF


class Kind(IntEnum):
    """Kinds of datagrams; version 1 had more, under the numbers that are missing."""

    HELLO = 1
    ANSWER = 4
    DATA = 5
    ACK = 6


class Hello(NamedTuple):
    """A sender asks for a session."""

    session: int  # random, 64 bit; every datagram of the session bears it
    nonce: bytes  # `NONCE_BYTES` random bytes of the sender
    max_datagram: int  # largest UDP payload that the sender wants to send, bytes
    cookie: bytes = bytes(NONCE_BYTES)  # of a receiver that asks: it proves the sender's address


class Answer(NamedTuple):
    """A receiver accepts, or says why it does not."""

    session: int
    nonce: bytes = bytes(NONCE_BYTES)  # `NONCE_BYTES` of the receiver
    max_datagram: int = MIN_DATAGRAM  # largest UDP payload the receiver takes, bytes
    refusal: str = ""  # why it refuses, printable, cut to `MAX_TEXT_BYTES`; empty if it accepts
    retry: bool = False  # whether it neither accepts nor refuses, and the nonce is a cookie


class Data(NamedTuple):
    """A packet that is counted and acknowledged, and sent once (FIN: until it is acknowledged)."""

    session: int
    number: int  # from 0, in order of sending
    lowest: int  # least number that the sender still waits for: none below need be reported
    fin: bool = False  # whether it ends the flow


class Acknowledgement(NamedTuple):
    """The packets that a receiver has got."""

    session: int
    ranges: tuple[tuple[int, int], ...]  # half-open, newest first: 1 to `MAX_RANGES`, with gaps


Message = Hello | Answer | Data | Acknowledgement

HEADER = struct.Struct("!4sBBHQ")
_START = struct.Struct("!4sBBH")  # magic, version, kind, flags
# Each begins with the 8 bytes of `_START` and the session.
_HELLO = struct.Struct("!8sQ16sH16s")
_ANSWER = struct.Struct("!8sQ16sHB")  # the last is the refusal's length
_DATA = struct.Struct("!8sQQQ")
# Largest, count of ranges; gap and length of each range.
_ACKS = tuple(struct.Struct(f"!8sQQB{2 * n}I") for n in range(MAX_RANGES + 1))
DATA_BYTES = _DATA.size  # bytes of a DATA datagram before its padding
_DATA_STARTS = tuple(_START.pack(MAGIC, VERSION, Kind.DATA, flags) for flags in (0, FIN))
_ANSWER_STARTS = tuple(_START.pack(MAGIC, VERSION, Kind.ANSWER, flags) for flags in (0, RETRY))
_HELLO_START, _ACK_START = (_START.pack(MAGIC, VERSION, kind, 0) for kind in (Kind.HELLO, Kind.ACK))


def session_key(session: int, client_nonce: bytes, server_nonce: bytes = b"") -> bytes:
    """Derive the key of a session, 32 bytes; ANSWER's is derived with an empty server's nonce."""
    material = session.to_bytes(8) + client_nonce + server_nonce
    return blake2s(material, person=b"dlcckey1").digest()


def authentic(datagram: Buffer, key: bytes) -> bool:
    """Tell whether a datagram that `decode` took ends with the authenticator of its key."""
    return compare_digest(_tag(datagram[:-TAG_BYTES], key), datagram[-TAG_BYTES:])


def _tag(data: Buffer, key: bytes) -> bytes:
    return blake2s(data, digest_size=TAG_BYTES, key=key).digest()


def encode_hello(hello: Hello) -> bytes:
    """Encode a HELLO, padded to `MIN_DATAGRAM`; raises WireError at an odd ``max_datagram``."""
    _check_size(hello.max_datagram)
    return _HELLO.pack(_HELLO_START, *hello).ljust(MIN_DATAGRAM, b"\0")


def encode_answer(answer: Answer, key: bytes) -> bytes:
    """Encode an ANSWER; what cannot be printed is replaced, and a long text is cut."""
    text = "".join(c if c.isprintable() else "?" for c in answer.refusal)
    cut = text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()
    data = _ANSWER.pack(_ANSWER_STARTS[answer.retry], *answer[:3], len(cut)) + cut
    return data + _tag(data, key)


def data_header(session: int, number: int, lowest: int, *, fin: bool = False) -> bytes:
    """Return a DATA datagram's first `DATA_BYTES`; padding up to `MIN_DATAGRAM` or more follows."""
    return _DATA.pack(_DATA_STARTS[fin], session, number, lowest)


def encode_ack(ack: Acknowledgement, key: bytes) -> bytes:
    """Encode an ACK; ranges that do not fit (see `MAX_RANGES`) are left out, oldest first."""
    session, ranges = ack
    pairs: list[int] = []
    below = largest = ranges[0][1]
    for start, stop in ranges[:MAX_RANGES]:
        gap, length = below - stop, stop - start
        if gap > _UINT32 or length > _UINT32:
            pairs = pairs or [0, _UINT32]
            break
        pairs += gap, length
        below = start
    count = len(pairs) >> 1
    data = _ACKS[count].pack(_ACK_START, session, largest - 1, count, *pairs)
    return data + _tag(data, key)


def decode(datagram: Buffer) -> Message:
    """Decode a datagram; raises WireError, VersionError at another version's, and nothing else."""
    decoder = _DECODERS.get(bytes(datagram[:8]))
    if decoder is None or not HEADER.size <= len(datagram) <= MAX_DATAGRAM:
        raise _complaint(datagram)
    return decoder(datagram)


def _complaint(datagram: Buffer) -> WireError:
    """Say why a datagram's start is not one of `_DECODERS`."""
    size = len(datagram)
    if not HEADER.size <= size <= MAX_DATAGRAM:
        return WireError(f"{size} bytes; expected {HEADER.size} to {MAX_DATAGRAM}")
    magic, version, kind, flags, session = HEADER.unpack_from(datagram)
    if magic != MAGIC:
        return WireError("no datagram of ours: the magic number differs")
    if version != VERSION:
        message = f"a datagram of version {version}; expected {VERSION}"
        return VersionError(message, version=version, kind=kind, session=session)
    return WireError(f"kind {kind} with flags {flags:#x} is unknown")


def _decode_hello(datagram: Buffer) -> Hello:
    if len(datagram) < MIN_DATAGRAM:
        raise WireError(f"a HELLO of {len(datagram)} bytes; expected at least {MIN_DATAGRAM}")
    hello = Hello(*_HELLO.unpack_from(datagram)[1:])
    _check_size(hello.max_datagram)
    if any(datagram[_HELLO.size :]):
        raise WireError("a HELLO with something in its padding")
    return hello


def _decode_answer(datagram: Buffer) -> Answer:
    size = len(datagram)
    length = datagram[_ANSWER.size - 1] if size >= _ANSWER.size else 0
    if length > MAX_TEXT_BYTES or size != _ANSWER.size + length + TAG_BYTES:
        raise WireError(f"an ANSWER of {size} bytes with {length} bytes of text")
    try:
        text = str(datagram[_ANSWER.size : -TAG_BYTES], "utf-8")
    except UnicodeDecodeError:
        raise WireError("a text that is not UTF-8") from None
    if not text.isprintable():
        raise WireError("a text with characters that cannot be printed")
    _, session, nonce, max_datagram, _ = _ANSWER.unpack_from(datagram)
    _check_size(max_datagram)
    return Answer(session, nonce, max_datagram, text, datagram[7] == RETRY)


def _decode_data(datagram: Buffer) -> Data:
    if len(datagram) < MIN_DATAGRAM:
        raise WireError(f"a DATA of {len(datagram)} bytes; expected at least {MIN_DATAGRAM}")
    _, session, number, lowest = _DATA.unpack_from(datagram)
    if number >= MAX_NUMBER or lowest > number:
        raise WireError("a DATA with a number out of range")
    return Data(session, number, lowest, datagram[7] == FIN)


def _decode_ack(datagram: Buffer) -> Acknowledgement:
    size = len(datagram)
    count = datagram[_ACKS[0].size - 1] if size >= _ACKS[0].size else 0
    if not 1 <= count <= MAX_RANGES or size != _ACKS[count].size + TAG_BYTES:
        raise WireError(f"an ACK of {size} bytes with {count} ranges")
    _, session, largest, _, *pairs = _ACKS[count].unpack_from(datagram)
    if largest >= MAX_NUMBER:
        raise WireError("an ACK of a number out of range")
    ranges = []
    stop = largest + 1
    for place in range(0, 2 * count, 2):
        gap, length = pairs[place], pairs[place + 1]
        stop -= gap
        start = stop - length
        if length == 0 or start < 0 or (gap == 0) != (place == 0):
            raise WireError("an ACK whose ranges are empty, touch or fall below 0")
        ranges.append((start, stop))
        stop = start
    return Acknowledgement(session, tuple(ranges))


_DECODERS: dict[bytes, Callable[[Buffer], Message]] = {
    _HELLO_START: _decode_hello,
    **dict.fromkeys(_ANSWER_STARTS, _decode_answer),
    **dict.fromkeys(_DATA_STARTS, _decode_data),
    _ACK_START: _decode_ack,
}


def _check_size(max_datagram: int) -> None:
    if not MIN_DATAGRAM <= max_datagram <= MAX_DATAGRAM:
        raise WireError(
            f"a largest datagram of {max_datagram} bytes; expected {MIN_DATAGRAM} to {MAX_DATAGRAM}"
        )
