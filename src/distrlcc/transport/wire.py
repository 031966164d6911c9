"""The datagram format, version 1.

Every datagram starts with magic, version, kind, flags and session (`HEADER`); of these, magic,
version, kind and session stand in the same place in every version. Numbers are big-endian.

RETRY, WELCOME, REFUSE, ACK, CLOSE and CLOSED end with an authenticator, which `decode` does not
check (it has no key): ask `distrlcc.transport.keys.authentic`, and read there what that protects
from and what not. DATA has none: its session number is as hard to guess, and a file is judged by
its SHA-256. An observer on the path can forge all of them.

A HELLO has at least `HELLO_BYTES`, more than any answer to it, so nobody gets more bytes sent to a
forged address than he spends himself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from distrlcc.errors import VersionError, WireError
from distrlcc.transport.keys import TAG_BYTES, tag
from distrlcc.transport.messages import (
    COOKIE_BYTES,
    MAX_NAME_BYTES,
    MAX_NUMBER,
    MAX_RANGES,
    MAX_TEXT_BYTES,
    NONCE_BYTES,
    Acknowledgement,
    Buffer,
    Close,
    Closed,
    Data,
    Ending,
    Hello,
    Kind,
    Message,
    Refuse,
    Retry,
    Verdict,
    Welcome,
)

MAGIC = b"DLCC"
VERSION = 1
FIN = 1
"""The one flag: this DATA ends the file."""
HELLO_BYTES = 512
MAX_DATAGRAM = 65507
"""Largest UDP payload over IPv4, bytes."""
MIN_DATAGRAM = HELLO_BYTES
"""Least value of ``max_datagram``, bytes."""

HEADER = struct.Struct("!4sBBHQ")
_START = struct.Struct("!4sBBH")  # magic, version, kind, flags
_SESSION = struct.Struct("!8xQ")
_HELLO = struct.Struct("!16sHBQBB")  # nonce, max datagram, is a file, size, name and cookie length
_WELCOME = struct.Struct("!16sHII")
_REFUSE = struct.Struct("!BB")
_DATA = struct.Struct("!8sQQQQH")  # start, session, number, lowest, offset, payload's length
# Start, session, largest, received bytes, delay, count of ranges; gap and length of each range.
_ACKS = tuple(struct.Struct(f"!8sQQQIB{2 * n}I") for n in range(MAX_RANGES + 1))
_CLOSE = struct.Struct("!BQ32s")
_CLOSED = struct.Struct("!BQQ32s")
DATA_BYTES = _DATA.size
"""Bytes of a DATA datagram before its payload."""
_UINT32 = 0xFFFFFFFF
_DATA_STARTS = tuple(_START.pack(MAGIC, VERSION, Kind.DATA, flags) for flags in (0, FIN))
_ACK_START = _START.pack(MAGIC, VERSION, Kind.ACK, 0)


def encode_hello(hello: Hello) -> bytes:
    """Encode a HELLO, padded to `HELLO_BYTES`.

    Raises:
        WireError: The file's name is none, or a number does not fit.
    """
    name = hello.file_name.encode("utf-8", "surrogateescape")
    is_file = hello.file_size is not None
    if len(hello.nonce) != NONCE_BYTES or len(hello.cookie) not in (0, COOKIE_BYTES):
        raise WireError(f"expected a nonce of {NONCE_BYTES} and a cookie of {COOKIE_BYTES} bytes")
    _check_request(hello.max_datagram, hello.file_size, hello.file_name, len(name))
    body = _HELLO.pack(
        hello.nonce,
        hello.max_datagram,
        is_file,
        hello.file_size or 0,
        len(name),
        len(hello.cookie),
    )
    return (_header(Kind.HELLO, hello.session) + body + name + hello.cookie).ljust(
        HELLO_BYTES, b"\0"
    )


def encode_retry(retry: Retry, key: bytes) -> bytes:
    """Encode a RETRY."""
    return _signed(_header(Kind.RETRY, retry.session) + retry.cookie, key)


def encode_welcome(welcome: Welcome, key: bytes) -> bytes:
    """Encode a WELCOME."""
    return _signed(_header(Kind.WELCOME, welcome.session) + _WELCOME.pack(*welcome[1:]), key)


def encode_refuse(refuse: Refuse, key: bytes) -> bytes:
    """Encode a REFUSE; what cannot be printed is replaced, and a long text is cut."""
    text = "".join(c if c.isprintable() else "?" for c in refuse.text)
    cut = text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()
    body = _REFUSE.pack(refuse.reason, len(cut)) + cut
    return _signed(_header(Kind.REFUSE, refuse.session) + body, key)


def data_header(
    session: int, number: int, lowest: int, offset: int = 0, length: int = 0, fin: bool = False
) -> bytes:
    """Return a DATA datagram's first `DATA_BYTES`; payload, then padding, follow.

    For callers that hand header and payload to ``sendmsg`` without joining them.
    """
    return _DATA.pack(_DATA_STARTS[fin], session, number, lowest, offset, length)


def encode_data(data: Data, size: int = 0) -> bytes:
    """Encode a DATA, padded with zeros to ``size`` bytes."""
    session, number, lowest, offset, payload, fin = data
    header = data_header(session, number, lowest, offset, len(payload), fin)
    return (header + payload).ljust(size, b"\0")


def encode_ack(ack: Acknowledgement, key: bytes) -> bytes:
    """Encode an ACK; ranges that do not fit (see `MAX_RANGES`) are left out, oldest first."""
    session, ranges, delay, received = ack
    pairs: list[int] = []
    below = largest = ranges[0][1]
    for start, stop in ranges[:MAX_RANGES]:
        gap, length = below - stop, stop - start
        if gap > _UINT32 or length > _UINT32:
            if not pairs:
                pairs = [0, _UINT32]
            break
        pairs += gap, length
        below = start
    count = len(pairs) >> 1
    delay = min(delay, _UINT32)
    data = _ACKS[count].pack(_ACK_START, session, largest - 1, received, delay, count, *pairs)
    return _signed(data, key)


def encode_close(close: Close, key: bytes) -> bytes:
    """Encode a CLOSE."""
    return _signed(_header(Kind.CLOSE, close.session) + _CLOSE.pack(*close[1:]), key)


def encode_closed(closed: Closed, key: bytes) -> bytes:
    """Encode a CLOSED."""
    return _signed(_header(Kind.CLOSED, closed.session) + _CLOSED.pack(*closed[1:]), key)


def decode(datagram: Buffer) -> Message:
    """Decode a datagram.

    Raises:
        VersionError: It is of another version.
        WireError: It is malformed, cut short, too long or not ours. Nothing else is ever raised.
    """
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


def _session(datagram: Buffer) -> int:
    session: int = _SESSION.unpack_from(datagram)[0]
    return session


def _decode_hello(datagram: Buffer) -> Hello:
    if len(datagram) < HELLO_BYTES:
        raise WireError(f"a HELLO of {len(datagram)} bytes; expected at least {HELLO_BYTES}")
    fields = _HELLO.unpack_from(datagram, HEADER.size)
    nonce, max_datagram, is_file, size, name_length, cookie_length = fields
    start = HEADER.size + _HELLO.size
    middle, end = start + name_length, start + name_length + cookie_length
    if cookie_length not in (0, COOKIE_BYTES) or is_file > 1 or size >= MAX_NUMBER:
        raise WireError("a HELLO with a bad cookie length, kind of request or file size")
    name = _text(datagram[start:middle])
    if size and not is_file:
        raise WireError("a HELLO for a measurement with a file's size")
    file_size = size if is_file else None
    _check_request(max_datagram, file_size, name, name_length)
    if any(datagram[end:]):
        raise WireError("a HELLO with something in its padding")
    return Hello(
        _session(datagram), nonce, max_datagram, file_size, name, bytes(datagram[middle:end])
    )


def _decode_retry(datagram: Buffer) -> Retry:
    _expect_size(datagram, HEADER.size + COOKIE_BYTES + TAG_BYTES)
    return Retry(_session(datagram), bytes(datagram[HEADER.size : -TAG_BYTES]))


def _decode_welcome(datagram: Buffer) -> Welcome:
    _expect_size(datagram, HEADER.size + _WELCOME.size + TAG_BYTES)
    nonce, max_datagram, delay, idle = _WELCOME.unpack_from(datagram, HEADER.size)
    if not MIN_DATAGRAM <= max_datagram <= MAX_DATAGRAM:
        raise WireError(f"a largest datagram of {max_datagram}; expected {MIN_DATAGRAM} or more")
    return Welcome(_session(datagram), nonce, max_datagram, delay, idle)


def _decode_refuse(datagram: Buffer) -> Refuse:
    start = HEADER.size + _REFUSE.size
    if len(datagram) < start:
        raise WireError("a REFUSE that is cut short")
    reason, length = _REFUSE.unpack_from(datagram, HEADER.size)
    if length > MAX_TEXT_BYTES:
        raise WireError(f"a REFUSE with {length} bytes of text; expected up to {MAX_TEXT_BYTES}")
    _expect_size(datagram, start + length + TAG_BYTES)
    return Refuse(_session(datagram), reason, _text(datagram[start : start + length]))


def _decode_data(datagram: Buffer) -> Data:
    if len(datagram) < DATA_BYTES:
        raise WireError("a DATA that is cut short")
    _, session, number, lowest, offset, length = _DATA.unpack_from(datagram)
    end = DATA_BYTES + length
    if len(datagram) < end:
        raise WireError("a DATA whose payload is cut short")
    if number >= MAX_NUMBER or lowest > number or offset + length >= MAX_NUMBER:
        raise WireError("a DATA with a number or offset out of range")
    return Data(session, number, lowest, offset, datagram[DATA_BYTES:end], datagram[7] == FIN)


def _decode_ack(datagram: Buffer) -> Acknowledgement:
    size = len(datagram)
    count = datagram[_ACKS[0].size - 1] if size >= _ACKS[0].size else 0
    if not 1 <= count <= MAX_RANGES or size != _ACKS[count].size + TAG_BYTES:
        raise WireError(f"an ACK of {size} bytes with {count} ranges")
    _, session, largest, received, delay, _, *pairs = _ACKS[count].unpack_from(datagram)
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
    return Acknowledgement(session, tuple(ranges), delay, received)


def _decode_close(datagram: Buffer) -> Close:
    _expect_size(datagram, HEADER.size + _CLOSE.size + TAG_BYTES)
    ending, size, digest = _CLOSE.unpack_from(datagram, HEADER.size)
    if ending > max(Ending) or size >= MAX_NUMBER:
        raise WireError("a CLOSE with an unknown ending or a file size out of range")
    return Close(_session(datagram), ending, size, digest)


def _decode_closed(datagram: Buffer) -> Closed:
    _expect_size(datagram, HEADER.size + _CLOSED.size + TAG_BYTES)
    verdict, packets, received, digest = _CLOSED.unpack_from(datagram, HEADER.size)
    if verdict > max(Verdict):
        raise WireError(f"a CLOSED with the unknown verdict {verdict}")
    return Closed(_session(datagram), verdict, packets, received, digest)


_DECODERS: dict[bytes, Callable[[Buffer], Message]] = {
    _START.pack(MAGIC, VERSION, Kind.HELLO, 0): _decode_hello,
    _START.pack(MAGIC, VERSION, Kind.RETRY, 0): _decode_retry,
    _START.pack(MAGIC, VERSION, Kind.WELCOME, 0): _decode_welcome,
    _START.pack(MAGIC, VERSION, Kind.REFUSE, 0): _decode_refuse,
    **dict.fromkeys(_DATA_STARTS, _decode_data),
    _ACK_START: _decode_ack,
    _START.pack(MAGIC, VERSION, Kind.CLOSE, 0): _decode_close,
    _START.pack(MAGIC, VERSION, Kind.CLOSED, 0): _decode_closed,
}


def _header(kind: Kind, session: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, 0, session)


def _signed(data: bytes, key: bytes) -> bytes:
    return data + tag(data, key)


def _expect_size(datagram: Buffer, size: int) -> None:
    if len(datagram) != size:
        raise WireError(f"{len(datagram)} bytes of kind {datagram[5]}; expected {size}")


def _text(data: Buffer) -> str:
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        raise WireError("a text that is not UTF-8") from None
    if not text.isprintable():
        raise WireError("a text with characters that cannot be printed")
    return text


def _check_request(max_datagram: int, file_size: int | None, name: str, name_bytes: int) -> None:
    """Check what a HELLO asks for; a name must be safe to join to a folder."""
    if not MIN_DATAGRAM <= max_datagram <= MAX_DATAGRAM:
        raise WireError(
            f"a largest datagram of {max_datagram} bytes; expected {MIN_DATAGRAM} to {MAX_DATAGRAM}"
        )
    if file_size is None:
        if name:
            raise WireError("a HELLO for a measurement with a file's name")
        return
    if not 0 <= file_size < MAX_NUMBER:
        raise WireError(f"a file of {file_size} bytes; expected up to 2**62")
    bad = name in ("", ".", "..") or not name.isprintable() or any(c in name for c in "/\\")
    if bad or name_bytes > MAX_NAME_BYTES:
        raise WireError(
            f"the file name {name[:80]!r}: expected up to {MAX_NAME_BYTES} bytes of printable "
            "characters without / or \\; rename the file"
        )
