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
_HELLO = struct.Struct("!16sHBQBB")  # nonce, max datagram, is a file, size, name and cookie length
_WELCOME = struct.Struct("!16sHII")
_REFUSE = struct.Struct("!BB")
_DATA = struct.Struct("!4sBBHQQQQH")  # header, number, lowest, offset, payload's length
_ACK = struct.Struct("!4sBBHQQQIB")  # header, largest, received bytes, delay, count of ranges
_CLOSE = struct.Struct("!BQ32s")
_CLOSED = struct.Struct("!BQQ32s")
_PAIRS = tuple(struct.Struct(f"!{2 * n}I") for n in range(MAX_RANGES + 1))
DATA_BYTES = _DATA.size
"""Bytes of a DATA datagram before its payload."""
_UINT32 = 0xFFFFFFFF


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
    return _DATA.pack(MAGIC, VERSION, 5, fin, session, number, lowest, offset, length)


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
    header = _ACK.pack(MAGIC, VERSION, 6, 0, session, largest - 1, received, delay, count)
    return _signed(header + _PAIRS[count].pack(*pairs), key)


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
    size = len(datagram)
    if not HEADER.size <= size <= MAX_DATAGRAM:
        raise WireError(f"{size} bytes; expected {HEADER.size} to {MAX_DATAGRAM}")
    magic, version, kind, flags, session = HEADER.unpack_from(datagram)
    if magic != MAGIC:
        raise WireError("no datagram of ours: the magic number differs")
    if version != VERSION:
        raise VersionError(
            f"a datagram of version {version}; expected {VERSION}",
            version=version,
            kind=kind,
            session=session,
        )
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise WireError(f"unknown kind {kind}")
    if flags and (kind != Kind.DATA or flags != FIN):
        raise WireError(f"unknown flags {flags:#x} of kind {kind}")
    return decoder(datagram, session, flags)


def _decode_hello(datagram: Buffer, session: int, flags: int) -> Hello:
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
    return Hello(session, nonce, max_datagram, file_size, name, bytes(datagram[middle:end]))


def _decode_retry(datagram: Buffer, session: int, flags: int) -> Retry:
    _expect_size(datagram, HEADER.size + COOKIE_BYTES + TAG_BYTES)
    return Retry(session, bytes(datagram[HEADER.size : -TAG_BYTES]))


def _decode_welcome(datagram: Buffer, session: int, flags: int) -> Welcome:
    _expect_size(datagram, HEADER.size + _WELCOME.size + TAG_BYTES)
    nonce, max_datagram, delay, idle = _WELCOME.unpack_from(datagram, HEADER.size)
    if not MIN_DATAGRAM <= max_datagram <= MAX_DATAGRAM:
        raise WireError(f"a largest datagram of {max_datagram}; expected {MIN_DATAGRAM} or more")
    return Welcome(session, nonce, max_datagram, delay, idle)


def _decode_refuse(datagram: Buffer, session: int, flags: int) -> Refuse:
    start = HEADER.size + _REFUSE.size
    if len(datagram) < start:
        raise WireError("a REFUSE that is cut short")
    reason, length = _REFUSE.unpack_from(datagram, HEADER.size)
    if length > MAX_TEXT_BYTES:
        raise WireError(f"a REFUSE with {length} bytes of text; expected up to {MAX_TEXT_BYTES}")
    _expect_size(datagram, start + length + TAG_BYTES)
    return Refuse(session, reason, _text(datagram[start : start + length]))


def _decode_data(datagram: Buffer, session: int, flags: int) -> Data:
    if len(datagram) < DATA_BYTES:
        raise WireError("a DATA that is cut short")
    _, _, _, _, _, number, lowest, offset, length = _DATA.unpack_from(datagram)
    end = DATA_BYTES + length
    if len(datagram) < end:
        raise WireError("a DATA whose payload is cut short")
    if number >= MAX_NUMBER or lowest > number or offset + length >= MAX_NUMBER:
        raise WireError("a DATA with a number or offset out of range")
    return Data(session, number, lowest, offset, datagram[DATA_BYTES:end], flags == FIN)


def _decode_ack(datagram: Buffer, session: int, flags: int) -> Acknowledgement:
    size = len(datagram)
    if size < _ACK.size:
        raise WireError("an ACK that is cut short")
    _, _, _, _, _, largest, received, delay, count = _ACK.unpack_from(datagram)
    if not 1 <= count <= MAX_RANGES or size != _ACK.size + 8 * count + TAG_BYTES:
        raise WireError(f"an ACK of {size} bytes with {count} ranges")
    if largest >= MAX_NUMBER:
        raise WireError("an ACK of a number out of range")
    pairs = _PAIRS[count].unpack_from(datagram, _ACK.size)
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


def _decode_close(datagram: Buffer, session: int, flags: int) -> Close:
    _expect_size(datagram, HEADER.size + _CLOSE.size + TAG_BYTES)
    ending, size, digest = _CLOSE.unpack_from(datagram, HEADER.size)
    if ending > max(Ending) or size >= MAX_NUMBER:
        raise WireError("a CLOSE with an unknown ending or a file size out of range")
    return Close(session, ending, size, digest)


def _decode_closed(datagram: Buffer, session: int, flags: int) -> Closed:
    _expect_size(datagram, HEADER.size + _CLOSED.size + TAG_BYTES)
    verdict, packets, received, digest = _CLOSED.unpack_from(datagram, HEADER.size)
    if verdict > max(Verdict):
        raise WireError(f"a CLOSED with the unknown verdict {verdict}")
    return Closed(session, verdict, packets, received, digest)


_DECODERS: dict[int, Callable[[Buffer, int, int], Message]] = {
    Kind.HELLO: _decode_hello,
    Kind.RETRY: _decode_retry,
    Kind.WELCOME: _decode_welcome,
    Kind.REFUSE: _decode_refuse,
    Kind.DATA: _decode_data,
    Kind.ACK: _decode_ack,
    Kind.CLOSE: _decode_close,
    Kind.CLOSED: _decode_closed,
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
