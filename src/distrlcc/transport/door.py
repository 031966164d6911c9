"""The receiver's side of the handshake: stateless until a sender's address is proved.

Use::

    door = Door(secret, options, admit)
    reply, session = door.on_datagram(datagram, address, now=now)
    if reply is not None: ...        # send it to the address
    if session is not None: ...      # new: set up a `Receiver` under session.number
    door.leave(session.number, now=now)  # after CLOSE or silence

A first HELLO is answered with a cookie and forgotten. A HELLO that brings its cookie back comes
from where it says; only then is something stored, for at most ``max_sessions`` senders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from distrlcc.errors import VersionError, WireError
from distrlcc.transport import wire
from distrlcc.transport.keys import cookie_age, make_cookie, server_nonce, session_key
from distrlcc.transport.messages import Buffer, Hello, Kind, Reason, Refuse, Retry, Welcome
from distrlcc.types import NANOSECONDS

Address = tuple[Any, ...]
"""An address as the socket gives it, such as ``("127.0.0.1", 4000)``."""


@dataclass(frozen=True)
class DoorOptions:
    """What a receiver offers."""

    max_sessions: int = 64
    """Sessions at one time; others are told that it is busy."""
    max_datagram: int = 1472
    """Largest UDP payload that the receiver takes, bytes."""
    max_ack_delay_us: int = 1000
    idle_timeout_ms: int = 30_000
    """Sessions that are silent for so long are forgotten (by the owner), ms."""
    max_cookie_age_s: int = 10
    """Seconds after which a cookie must be fetched again."""


@dataclass(slots=True)
class DoorCounts:
    """What came to the door so far."""

    hellos: int = 0
    """Well-formed HELLOs, with and without cookies."""
    retries: int = 0
    """Cookies handed out."""
    accepted: int = 0
    refused: int = 0
    forged: int = 0
    """Cookies that were not made for the HELLO that brought them."""
    expired: int = 0
    """Cookies that were too old; new ones were handed out."""
    repeated: int = 0
    """HELLOs of sessions that are open; the WELCOME was sent again."""
    replayed: int = 0
    """HELLOs of sessions that are over, or of another's session number; no answer."""
    other_version: int = 0
    malformed: int = 0
    stray: int = 0
    """Datagrams of other kinds, without a session."""


@dataclass(frozen=True, slots=True)
class Session:
    """A sender that was let in."""

    number: int
    address: Address
    hello: Hello
    key: bytes
    """Authenticates ACK, CLOSE and CLOSED."""
    max_datagram: int


class Answer(NamedTuple):
    """What to do about a datagram."""

    reply: bytes | None = None
    """To be sent to where the datagram came from."""
    session: Session | None = None
    """A session that has just been opened."""


class Door:
    """Answers HELLOs and knows who is in."""

    def __init__(
        self,
        secret: bytes,
        options: DoorOptions | None = None,
        admit: Callable[[Hello, Address], Refuse | None] | None = None,
    ) -> None:
        """Open the door.

        Args:
            secret: 32 random bytes that only this receiver knows.
            options: The defaults if None.
            admit: Asked once an address is proved; returns None, or why it is refused.
        """
        self.options = options or DoorOptions()
        self.counts = DoorCounts()
        self.sessions: dict[int, Session] = {}
        """Those who are in, by session number."""
        self._secret = secret
        self._admit = admit
        self._left: dict[int, int] = {}  # sessions that are over, and since when

    def on_datagram(self, datagram: Buffer, address: Address, *, now: int) -> Answer:
        """Take a datagram that belongs to no session.

        Args:
            datagram: Its bytes.
            address: Where it came from.
            now: Time, ns.
        """
        try:
            message = wire.decode(datagram)
        except VersionError as error:
            return self._other_version(error, len(datagram))
        except WireError:
            self.counts.malformed += 1
            return Answer()
        if not isinstance(message, Hello):
            self.counts.stray += 1
            return Answer()
        self.counts.hellos += 1
        return self._on_hello(message, address, now)

    def leave(self, number: int, *, now: int) -> None:
        """Forget a session that is over; copies of its HELLO will not open it again."""
        if self.sessions.pop(number, None) is not None:
            self._left[number] = now

    def _on_hello(self, hello: Hello, address: Address, now: int) -> Answer:
        key = session_key(hello.session, hello.nonce)
        if not hello.cookie:
            return self._retry(hello, address, key, now)
        age = cookie_age(hello.cookie, self._secret, address, hello.session, hello.nonce, now=now)
        if age is None:
            self.counts.forged += 1
            return self._refuse(hello.session, Reason.BAD_COOKIE, "", key)
        self._forget(now)
        known = self.sessions.get(hello.session)
        # A sender whose WELCOME was lost may have fetched another cookie meanwhile.
        if known is not None and (known.address, known.hello.nonce) == (address, hello.nonce):
            self.counts.repeated += 1
            return Answer(self._welcome(known, key))
        if known is not None or hello.session in self._left:
            self.counts.replayed += 1
            return Answer()
        if age > self.options.max_cookie_age_s:
            self.counts.expired += 1
            return self._retry(hello, address, key, now)
        return self._enter(hello, address, key)

    def _enter(self, hello: Hello, address: Address, key: bytes) -> Answer:
        if len(self.sessions) >= self.options.max_sessions:
            text = f"{len(self.sessions)} sessions are open"
            return self._refuse(hello.session, Reason.BUSY, text, key)
        refuse = self._admit(hello, address) if self._admit is not None else None
        if refuse is not None:
            return self._refuse(hello.session, refuse.reason, refuse.text, key)
        nonce = server_nonce(self._secret, hello.cookie, hello.nonce)
        session = Session(
            hello.session,
            address,
            hello,
            session_key(hello.session, hello.nonce, nonce),
            min(hello.max_datagram, self.options.max_datagram),
        )
        self.sessions[hello.session] = session
        self.counts.accepted += 1
        return Answer(self._welcome(session, key), session)

    def _welcome(self, session: Session, key: bytes) -> bytes:
        hello = session.hello
        welcome = Welcome(
            session.number,
            server_nonce(self._secret, hello.cookie, hello.nonce),
            session.max_datagram,
            self.options.max_ack_delay_us,
            self.options.idle_timeout_ms,
        )
        return wire.encode_welcome(welcome, key)

    def _retry(self, hello: Hello, address: Address, key: bytes, now: int) -> Answer:
        self.counts.retries += 1
        cookie = make_cookie(self._secret, address, hello.session, hello.nonce, now=now)
        return Answer(wire.encode_retry(Retry(hello.session, cookie), key))

    def _refuse(self, session: int, reason: int, text: str, key: bytes) -> Answer:
        self.counts.refused += 1
        return Answer(wire.encode_refuse(Refuse(session, reason, text), key))

    def _other_version(self, error: VersionError, size: int) -> Answer:
        """Tell a HELLO of another version which one this is.

        Its nonce cannot be read, so the key is derived from the session number alone; never more
        bytes go back than came.
        """
        self.counts.other_version += 1
        key = session_key(error.session, b"")
        refuse = Refuse(error.session, Reason.OTHER_VERSION, f"expected version {wire.VERSION}")
        reply = wire.encode_refuse(refuse, key)
        if error.kind != Kind.HELLO or size < len(reply):
            return Answer()
        self.counts.refused += 1
        return Answer(reply)

    def _forget(self, now: int) -> None:
        """Forget sessions whose cookies are too old to open them again."""
        longest = (self.options.max_cookie_age_s + 2) * NANOSECONDS
        for number in list(self._left):
            if now - self._left[number] < longest:
                break
            del self._left[number]
