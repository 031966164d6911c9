"""The sender's side of the handshake; the receiver's is `distrlcc.transport.door`.

Use::

    opening = Opening(Hello(session, nonce, max_datagram), now=now)
    while opening.state is State.WAITING:
        datagram = opening.datagram_to_send(now=now)     # None: nothing is due
        ...                                              # send; wait until next_time()
        opening.on_datagram(received, now=now)
    opening.welcome, opening.key                         # State.OPEN
    opening.failure                                      # any other state: one line
"""

from __future__ import annotations

from enum import Enum, auto

from distrlcc.errors import VersionError, WireError
from distrlcc.transport import wire
from distrlcc.transport.keys import authentic, session_key
from distrlcc.transport.messages import (
    Buffer,
    Close,
    Closed,
    Hello,
    Kind,
    Reason,
    Refuse,
    Retry,
    Verdict,
    Welcome,
)
from distrlcc.transport.repeat import Repeat, RepeatOptions

MAX_RETRIES = 3
"""Cookies that a sender takes before it goes on with the one it has."""


class State(Enum):
    """Where an opening or a closing stands."""

    WAITING = auto()
    OPEN = auto()
    """Accepted."""
    REFUSED = auto()
    CLOSED = auto()
    """The other end confirmed the end."""
    SILENT = auto()
    """The time limit passed without an answer."""


class Opening:
    """Sends HELLO until it is answered, carries the cookie back, takes WELCOME or REFUSE."""

    def __init__(self, hello: Hello, options: RepeatOptions | None = None, *, now: int) -> None:
        """Start; the first HELLO is due at once.

        Args:
            hello: The request without a cookie; session and nonce must be random and new.
            options: Waiting times; the defaults if None.
            now: Time, ns.

        Raises:
            WireError: The request does not fit into a HELLO.
        """
        options = options or RepeatOptions()
        self.hello = hello
        """The request, with the newest cookie."""
        self.state = State.WAITING
        self.failure = ""
        """Why the state is REFUSED or SILENT: one line."""
        self.welcome: Welcome | None = None
        """The receiver's parameters once the state is OPEN."""
        self.key = b""
        """The session's key once the state is OPEN."""
        self.ignored = 0
        """Datagrams that were malformed, forged, stray or late."""
        self._key = session_key(hello.session, hello.nonce)
        self._datagram = wire.encode_hello(hello)
        self._limit = options.limit_ns
        self._repeat = Repeat(options, now=now)
        self._retries = 0

    def next_time(self) -> int:
        """Return when `datagram_to_send` should be asked, ns; `NEVER` at the end."""
        return self._repeat.next_time()

    def datagram_to_send(self, *, now: int) -> bytes | None:
        """Return the HELLO if it is due; find out that the time limit passed."""
        if self.state is State.WAITING and self._repeat.expired(now=now):
            self._end(State.SILENT, f"no answer within {self._limit / 1e9:g} s")
        return self._datagram if self._repeat.take(now=now) else None

    def on_datagram(self, datagram: Buffer, *, now: int) -> None:
        """Take a datagram from the receiver; what is not for this opening is counted."""
        try:
            message = wire.decode(datagram)
        except VersionError as error:
            refused = error.kind == Kind.REFUSE and error.session == self.hello.session
            if refused and self.state is State.WAITING:
                self._other_version(error.version)
            else:
                self.ignored += 1
            return
        except WireError:
            self.ignored += 1
            return
        known = isinstance(message, Retry | Welcome | Refuse)
        mine = known and message.session == self.hello.session
        if self.state is not State.WAITING or not (mine and authentic(datagram, self._key)):
            self.ignored += 1
        elif isinstance(message, Retry):
            self._on_retry(message.cookie, now)
        elif isinstance(message, Refuse):
            self._on_refuse(message)
        elif isinstance(message, Welcome):
            if message.max_datagram > self.hello.max_datagram:
                self.ignored += 1
                return
            self.welcome = message
            self.key = session_key(self.hello.session, self.hello.nonce, message.nonce)
            self._end(State.OPEN, "")

    def _on_retry(self, cookie: bytes, now: int) -> None:
        if self._retries == MAX_RETRIES or cookie == self.hello.cookie:
            self.ignored += 1
            return
        self._retries += 1
        self.hello = self.hello._replace(cookie=cookie)
        self._datagram = wire.encode_hello(self.hello)
        self._repeat.restart(now=now)

    def _on_refuse(self, refuse: Refuse) -> None:
        reasons = {
            Reason.OTHER_VERSION: "it speaks another version",
            Reason.BUSY: "it is busy",
            Reason.BAD_COOKIE: "the address changed during the handshake",
            Reason.FILE_REFUSED: "it does not want the file",
        }
        why = reasons.get(Reason(refuse.reason)) if refuse.reason in tuple(Reason) else None
        why = why or f"reason {refuse.reason}"
        self._end(
            State.REFUSED,
            f"the receiver refuses: {why}" + (f" ({refuse.text})" if refuse.text else ""),
        )

    def _other_version(self, version: int) -> None:
        self._end(
            State.REFUSED,
            f"the receiver speaks version {version} of the protocol and this is version "
            f"{wire.VERSION}; install the same version on both sides",
        )

    def _end(self, state: State, failure: str) -> None:
        self.state, self.failure = state, failure
        self._repeat.stop()


class Closing:
    """Sends CLOSE until CLOSED comes; used as `Opening` is."""

    def __init__(
        self, close: Close, key: bytes, options: RepeatOptions | None = None, *, now: int
    ) -> None:
        """Start; the first CLOSE is due at once.

        Args:
            close: What to say.
            key: The session's key.
            options: Waiting times; the defaults if None.
            now: Time, ns.
        """
        self.state = State.WAITING
        self.closed: Closed | None = None
        """The receiver's answer once the state is CLOSED."""
        self.ignored = 0
        """Datagrams that were malformed, forged, stray or late; ACKs are among them."""
        self._close, self._key = close, key
        self._repeat = Repeat(options or RepeatOptions(), now=now)

    @property
    def intact(self) -> bool:
        """Whether the receiver said that all is well."""
        return self.closed is not None and self.closed.verdict == Verdict.INTACT

    def next_time(self) -> int:
        """Return when `datagram_to_send` should be asked, ns; `NEVER` at the end."""
        return self._repeat.next_time()

    def datagram_to_send(self, *, now: int) -> bytes | None:
        """Return the CLOSE if it is due; find out that the time limit passed."""
        if self.state is State.WAITING and self._repeat.expired(now=now):
            self.state = State.SILENT
            self._repeat.stop()
        if not self._repeat.take(now=now):
            return None
        return wire.encode_close(self._close, self._key)

    def on_datagram(self, datagram: Buffer, *, now: int) -> None:
        """Take a datagram from the receiver; what is no answer to the CLOSE is counted."""
        try:
            message = wire.decode(datagram)
        except WireError:
            self.ignored += 1
            return
        mine = isinstance(message, Closed) and message.session == self._close.session
        if not (mine and self.state is State.WAITING and authentic(datagram, self._key)):
            self.ignored += 1
            return
        assert isinstance(message, Closed)
        self.closed, self.state = message, State.CLOSED
        self._repeat.stop()
