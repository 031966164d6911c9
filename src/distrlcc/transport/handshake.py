"""The handshake, one round trip: a sender's `Opening` and a receiver's `Admission`, sans-IO."""

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2s
from hmac import compare_digest
from typing import Any, NamedTuple

from distrlcc.errors import VersionError, WireError
from distrlcc.transport import wire
from distrlcc.transport.recovery import NEVER
from distrlcc.transport.wire import Answer, Buffer, Hello, Kind, authentic, session_key
from distrlcc.types import NANOSECONDS

Address = tuple[Any, ...]  # an address as the socket gives it, such as ``("127.0.0.1", 4000)``

_FIRST_WAIT = 250_000_000
_LONGEST_WAIT = 2 * NANOSECONDS


class Repeat:
    """When to send a datagram again that was not answered: waits that double, and an end."""

    def __init__(self, limit: int, *, now: int) -> None:
        self._wait = _FIRST_WAIT
        self._end = now + limit
        self._due = now

    def next_time(self) -> int:
        """Return when something is due: the next sending or the end, ns."""
        return min(self._due, self._end)

    def left(self, *, now: int) -> int:
        """Return how much of the limit is left, ns."""
        return self._end - now

    def expired(self, *, now: int) -> bool:
        """Return whether the limit has passed."""
        return now >= self._end

    def take(self, *, now: int) -> bool:
        """Return whether to send now; then the next repetition is planned."""
        if now < self._due or now >= self._end:
            return False
        self._due = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        return True


class Opening:
    """Sends HELLO until it is answered."""

    def __init__(self, hello: Hello, limit: int = 10 * NANOSECONDS, *, now: int) -> None:
        """Start, and fail after ``limit`` ns; session and nonce must be random and new."""
        self.hello = hello
        self.failure = ""  # why it was refused or got no answer: one line
        self.answer: Answer | None = None  # the receiver's parameters, once it has accepted
        self.key = b""  # the session's key then
        self.rtt = 0
        """Duration of the handshake, ns. If HELLO was sent again nobody knows which was answered:
        then it is 1 s at most. The timeout is then 3 s, as RFC 6298 has it for that case."""
        self._sent = list[int]()  # when each HELLO was
        self.ignored = 0  # datagrams that were malformed, forged, stray or late
        self._datagram = wire.encode_hello(hello)
        self._limit = limit
        self._repeat = Repeat(limit, now=now)

    @property
    def waiting(self) -> bool:
        """Whether it is neither accepted nor failed."""
        return self.answer is None and not self.failure

    def next_time(self) -> int:
        """Return when `datagram_to_send` should be asked, ns; `NEVER` at the end."""
        return self._repeat.next_time() if self.waiting else NEVER

    def datagram_to_send(self, *, now: int) -> bytes | None:
        """Return the HELLO if it is due; fail if the time limit has passed."""
        if self.waiting and self._repeat.expired(now=now):
            self.failure = (
                f"no answer within {self._limit / 1e9:g} s; is 'distrlcc receive' there, and UDP "
                "let through?"
            )
        if not (self.waiting and self._repeat.take(now=now)):
            return None
        self._sent.append(now)
        return self._datagram

    def on_datagram(self, datagram: Buffer, *, now: int) -> None:
        """Receive a datagram; what is not for this opening is counted."""
        session, nonce, max_datagram, cookie = self.hello
        answer = None
        try:
            answer = wire.decode(datagram)
        except VersionError as error:
            if self.waiting and (error.kind, error.session) == (Kind.ANSWER, session):
                self.failure = (
                    f"the receiver speaks version {error.version} of the protocol and this is "
                    f"version {wire.VERSION}; install the same version on both sides"
                )
                return
        except WireError:
            pass
        if (
            not self.waiting
            or not isinstance(answer, Answer)
            or not authentic(datagram, session_key(session, nonce))
            or answer.max_datagram > max_datagram
            or (answer.retry and any(cookie))
        ):
            self.ignored += 1
        elif answer.retry:
            self.hello = self.hello._replace(cookie=answer.nonce)
            self._datagram = wire.encode_hello(self.hello)
            self._repeat, self._sent = Repeat(self._repeat.left(now=now), now=now), []
        elif answer.refusal:
            self.failure = f"the receiver refuses: {answer.refusal}"
        else:
            self.answer, self.key = answer, session_key(session, nonce, answer.nonce)
            elapsed = now - self._sent[0] if self._sent else 0
            self.rtt = elapsed if len(self._sent) == 1 else min(elapsed, NANOSECONDS)


class Session(NamedTuple):
    """A sender that was admitted."""

    number: int
    address: Address
    key: bytes  # authenticates its ACKs
    hello: Hello
    reply: bytes  # the ANSWER, for a sender that has lost it


Reply = tuple[bytes | None, Session | None]
"""The answer to a datagram's sender, and the session that the datagram has just opened."""

MAX_SESSIONS = 64  # sessions at one time; further senders are refused
MAX_HOST_SESSIONS = 16  # of these, from one host
MAX_UNPROVEN = 8
"""Greatest number of sessions whose senders have not proved their address. With so many open the
next senders must prove theirs, so that forged addresses take no more places."""
_MAX_DATAGRAM = 1472


class Admission:
    """Answers HELLOs, and knows the open sessions."""

    def __init__(self, make_room: Callable[[Sequence[Session]], bool] = lambda _: False) -> None:
        """Begin without a session; ``make_room`` may drop one with `leave`, and says if it has."""
        self._make_room = make_room
        self.counts: Counter[str] = Counter()
        """``hellos``, of these ``accepted``, ``repeated``, ``retried`` and ``refused``; and
        what else came without a session: ``other_version``, ``malformed``, ``stray``."""
        self.sessions: dict[int, Session] = {}
        self.ending = False  # whether new senders are refused
        self._secret = secrets.token_bytes(32)

    def on_datagram(self, datagram: Buffer, address: Address) -> Reply:
        """Receive a datagram that belongs to no session."""
        try:
            hello = wire.decode(datagram)
        except VersionError as error:
            return self._other_version(error, len(datagram))
        except WireError:
            self.counts["malformed"] += 1
            return None, None
        if not isinstance(hello, Hello):
            self.counts["stray"] += 1
            return None, None
        self.counts["hellos"] += 1
        known = self.sessions.get(hello.session)
        if known is not None:
            again = (known.address, known.hello[:3]) == (address, hello[:3])
            self.counts["repeated" if again else "stray"] += 1
            return known.reply if again else None, None
        key = session_key(hello.session, hello.nonce)
        # Only a receiver at that address knows this cookie of the HELLO; nothing is kept.
        said = repr((address, *hello[:3])).encode()
        cookie = blake2s(said, key=self._secret, digest_size=wire.NONCE_BYTES).digest()
        unproven = sum(not any(session.hello.cookie) for session in self.sessions.values())
        if not compare_digest(hello.cookie, cookie):
            if unproven >= MAX_UNPROVEN:
                self.counts["retried"] += 1
                return wire.encode_answer(Answer(hello.session, cookie, retry=True), key), None
            hello = hello._replace(cookie=bytes(wire.NONCE_BYTES))
        refusal = self._refusal(address)
        if not refusal:
            return self._admit(hello, address)
        self.counts["refused"] += 1
        return wire.encode_answer(Answer(hello.session, refusal=refusal), key), None

    def leave(self, number: int) -> None:
        """Drop a session; call it late, as a late copy of its HELLO would open it anew."""
        self.sessions.pop(number, None)

    def _refusal(self, address: Address) -> str:
        every = list(self.sessions.values())
        of_host = [session for session in every if session.address[0] == address[0]]
        if self.ending:
            return "it is busy (it is about to end)"
        if len(of_host) >= MAX_HOST_SESSIONS and not self._make_room(of_host):
            return f"it is busy ({len(of_host)} sessions of yours are open)"
        if len(self.sessions) >= MAX_SESSIONS and not self._make_room(every):
            return f"it is busy ({len(every)} sessions are open)"
        return ""

    def _admit(self, hello: Hello, address: Address) -> Reply:
        number, nonce = hello.session, secrets.token_bytes(wire.NONCE_BYTES)
        answer = Answer(number, nonce, min(hello.max_datagram, _MAX_DATAGRAM))
        reply = wire.encode_answer(answer, session_key(number, hello.nonce))
        key = session_key(number, hello.nonce, nonce)
        session = self.sessions[number] = Session(number, address, key, hello, reply)
        self.counts["accepted"] += 1
        return reply, session

    def _other_version(self, error: VersionError, size: int) -> Reply:
        """Tell a HELLO of another version which this is; the key is of its session alone."""
        self.counts["other_version"] += 1
        answer = Answer(error.session, refusal=f"expected version {wire.VERSION}")
        reply = wire.encode_answer(answer, session_key(error.session, b""))
        if error.kind != Kind.HELLO or size < len(reply):
            return None, None
        self.counts["refused"] += 1
        return reply, None
