"""What the two ends say to each other; `distrlcc.transport.wire` puts it into datagrams.

::

    sender                              receiver
    HELLO                    ------>
                             <------    RETRY (a cookie; nothing is stored) or REFUSE
    HELLO with the cookie    ------>
                             <------    WELCOME or REFUSE
    DATA ...                 ------>
                             <------    ACK ...
    CLOSE                    ------>
                             <------    CLOSED
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview
"""What a datagram may come in; `decode` keeps views of a memoryview and copies of the others."""

NONCE_BYTES = 16
COOKIE_BYTES = 20
MAX_NAME_BYTES = 255
MAX_TEXT_BYTES = 200
MAX_RANGES = 64
"""Ranges in one ACK."""
MAX_NUMBER = 1 << 62
"""Packet numbers and stream offsets stay below."""


class Kind(IntEnum):
    """Kinds of datagrams."""

    HELLO = 1
    RETRY = 2
    WELCOME = 3
    REFUSE = 4
    DATA = 5
    ACK = 6
    CLOSE = 7
    CLOSED = 8


class Reason(IntEnum):
    """Why a receiver refuses."""

    OTHER_VERSION = 1
    BUSY = 2
    BAD_COOKIE = 3
    FILE_REFUSED = 4


class Ending(IntEnum):
    """How a sender ends."""

    COMPLETE = 0
    """The measurement is over, or the whole file was acknowledged."""
    ABORTED = 1
    """The sender gives up; the receiver should throw away what it has."""


class Verdict(IntEnum):
    """What a receiver says of what it got."""

    INTACT = 0
    """A measurement's end is noted, or the file is whole and its SHA-256 is the sender's."""
    DIFFERENT = 1
    """The file's SHA-256 differs."""
    INCOMPLETE = 2
    """Parts of the file are missing."""
    FAILED = 3
    """The receiver could not store the file."""


class Hello(NamedTuple):
    """A sender asks for a session."""

    session: int
    """Random, 64 bit; every datagram of the session bears it."""
    nonce: bytes
    """`NONCE_BYTES` random bytes of the sender."""
    max_datagram: int
    """Largest UDP payload that the sender wants to send, bytes."""
    file_size: int | None = None
    """Bytes of the file; None asks for a measurement."""
    file_name: str = ""
    """The file's name: one path component of printable characters; empty for a measurement."""
    cookie: bytes = b""
    """Empty, or `COOKIE_BYTES` as they came in the RETRY."""


class Retry(NamedTuple):
    """A receiver wants its cookie back, which proves the sender's address."""

    session: int
    cookie: bytes


class Welcome(NamedTuple):
    """A receiver accepts."""

    session: int
    nonce: bytes
    """`NONCE_BYTES` of the receiver."""
    max_datagram: int
    """Largest UDP payload that the receiver takes, bytes; never above the sender's."""
    max_ack_delay_us: int
    """Longest time that the receiver means to hold an ACK back, microseconds."""
    idle_timeout_ms: int
    """The receiver forgets the session after this silence, ms."""


class Refuse(NamedTuple):
    """A receiver declines."""

    session: int
    reason: int
    """A `Reason`; a newer receiver may have others."""
    text: str = ""
    """For people; printable, cut to `MAX_TEXT_BYTES`."""


class Data(NamedTuple):
    """A packet that is counted, acknowledged and never repeated under the same number."""

    session: int
    number: int
    """From 0, in order of sending."""
    lowest: int
    """Least number that the sender still waits for: the receiver need not report any below."""
    offset: int = 0
    """Where the payload stands in the file."""
    payload: Buffer = b""
    """Bytes of the file; what follows up to the datagram's end is padding."""
    fin: bool = False
    """Whether the payload ends the file."""


class Acknowledgement(NamedTuple):
    """What a receiver has got."""

    session: int
    ranges: tuple[tuple[int, int], ...]
    """Packet numbers as half-open ranges, newest first: 1 to `MAX_RANGES`, with gaps between."""
    delay_us: int
    """Time between the arrival of the newest packet and this ACK, microseconds."""
    received_bytes: int
    """UDP payload bytes of all packets received so far, duplicates left out."""


class Close(NamedTuple):
    """A sender ends the session."""

    session: int
    ending: int
    """An `Ending`."""
    size: int = 0
    """Bytes of the file."""
    digest: bytes = bytes(32)
    """SHA-256 of the file; zeros after a measurement."""


class Closed(NamedTuple):
    """A receiver confirms the end."""

    session: int
    verdict: int
    """A `Verdict`."""
    received_packets: int = 0
    received_bytes: int = 0
    """As in `Acknowledgement`."""
    digest: bytes = bytes(32)
    """SHA-256 of the file as it was received; zeros after a measurement."""


Message = Hello | Retry | Welcome | Refuse | Data | Acknowledgement | Close | Closed
