"""Flows between real sockets, with strangers about."""

import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import pytest

from distrlcc.control.schemes import SchemeController
from distrlcc.errors import LinkError
from distrlcc.net.flow_record import Sent, Step
from distrlcc.net.receiving import Received, ReceiveServer
from distrlcc.net.sending import Request, send
from distrlcc.net.udp_socket import UdpSocket
from distrlcc.transport import wire
from distrlcc.transport.handshake import Admission, Session
from distrlcc.transport.wire import Answer, Hello, Kind
from tests.evaluation.made import make_policy, policy_contender
from tests.hosts import wait_until

WINDOW = 32.0


@dataclass
class Served:
    """A receiver that runs in a thread."""

    socket: UdpSocket
    server: ReceiveServer
    ended: list[Received]
    sessions: list[Session]

    def first(self) -> Received:
        """Return how the first flow went, once it is over."""
        wait_until(lambda: bool(self.ended), 30.0, "the flow's end")
        return self.ended[0]


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A receiver with the options that a test is parametrized with."""
    stop, ended, sessions = threading.Event(), list[Received](), list[Session]()
    with UdpSocket(bind=("127.0.0.1", 0)) as socket:
        calls: dict[str, Any] = {"on_begin": sessions.append, "on_end": ended.append}
        server = ReceiveServer(socket, **calls, **getattr(request, "param", {}))
        thread = threading.Thread(target=server.run, args=(stop.is_set,))
        thread.start()
        yield Served(socket, server, ended, sessions)
        stop.set()
        thread.join(10.0)


def _send(served: Served, request: Request, **words: Callable[..., object]) -> Sent:
    controller = SchemeController("fixed", parameter=WINDOW)
    return send(served.socket.address, controller, request, **words)  # type: ignore[arg-type]


def test_a_flow_lasts_as_long_as_it_shall(served: Served) -> None:
    steps: list[Step] = []
    sent = _send(served, Request(0.6), on_step=steps.append)
    assert sent.failure == ""
    assert sent.seconds >= 0.6
    assert 0 < len(steps) == sent.steps <= 100 * sent.seconds + 1
    assert sent.packets >= served.first().packets >= sent.acked > 0
    assert 0.0 < sent.min_rtt_ms <= sent.mean_rtt_ms
    assert sum(step.acked for step in steps) <= sent.acked
    assert all(step.cwnd == WINDOW for step in steps)


def test_steps_tell_where_a_policys_guard_acts(served: Served) -> None:
    policy = make_policy(action="fine", guard=0.05)
    policy.arrays["policy_head.bias"][8] = 1e6  # it doubles the window in each step
    steps: list[Step] = []
    controller = policy_contender(policy).controller()
    sent = send(served.socket.address, controller, Request(0.5), on_step=steps.append)
    assert sent.failure == ""
    assert max(step.guarded for step in steps) == 1.0


def _ask(client: UdpSocket, datagram: bytes) -> bytes:
    client.send([datagram])
    assert client.wait(monotonic_ns() + 5_000_000_000), "no answer"
    ((answer, _),) = client.receive()
    return answer


def _hello(number: int, cookie: bytes = bytes(wire.NONCE_BYTES)) -> bytes:
    return wire.encode_hello(Hello(number, bytes(wire.NONCE_BYTES), 1472, cookie))


def _data(session: int, number: int = 5, *, fin: bool = False) -> bytes:
    return wire.data_header(session, number, 0, fin=fin).ljust(wire.MIN_DATAGRAM, b"\0")


@pytest.mark.parametrize("served", [{"silence_s": 0.5}], indirect=True)
def test_a_silent_sender_is_given_up(served: Served) -> None:
    with UdpSocket(connect=served.socket.address) as client:
        _ask(client, _hello(7))
        assert "has said nothing" in served.first().failure


def _answer(client: UdpSocket, number: int) -> str:
    """Say HELLO; return why it was refused."""
    client.send([_hello(number)])
    while client.wait(monotonic_ns() + 5_000_000_000):
        for datagram, _ in client.receive():  # ACKs may be among them
            answer = wire.decode(datagram)
            if isinstance(answer, Answer) and answer.session == number:
                if not answer.retry:
                    return answer.refusal
                client.send([_hello(number, answer.nonce)])
    raise AssertionError("no answer")


def test_one_host_has_few_places_and_who_makes_no_progress_gives_its_own_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=60")  # nobody is given up while they come
    with ExitStack() as stack:

        def client(host: str) -> UdpSocket:
            place = served.socket.address
            return stack.enter_context(UdpSocket(bind=(host, 0), connect=place))

        # Four hosts hold all places: three say the same again and again, one goes on.
        hosts = [client(f"127.0.0.{2 + host}") for host in range(4)]
        for number in range(64):
            assert _answer(hosts[number // 16], number) == ""
        assert _answer(hosts[0], 100) == "it is busy (16 sessions of yours are open)"
        late = client("127.0.0.9")
        assert _answer(late, 101) == "it is busy (64 sessions are open)"
        begin = monotonic_ns()
        for number in range(64):
            hosts[number // 16].send([_data(number, 5)])
        monkeypatch.setenv("DISTRLCC_LIMITS", "call=1")
        for turn in range(6, 400):
            for number in range(64):
                busy = number >= 48
                hosts[number // 16].send([_data(number, turn if busy else 5)])
            if not _answer(late, 102 + turn):
                break
            time.sleep(0.05)
        # A place is free once one of the three was quiet for as long as an answer may take.
        assert 1.0 <= (monotonic_ns() - begin) * 1e-9 < 20.0
        (given_up,) = served.ended
        assert "the sender has said nothing new for 1 s" in given_up.failure
        assert given_up.address[0] in ("127.0.0.2", "127.0.0.3", "127.0.0.4")
        # So it is for one of the host's own, and nobody had to wait for 30 s.
        full = next(h for h in hosts[:3] if h.address[0] != given_up.address[0])
        assert _answer(full, 300) == ""
        assert served.ended[1].address[0] == full.address[0]
        monkeypatch.setenv("DISTRLCC_LIMITS", "call=60")
        assert _answer(hosts[3], 301) == "it is busy (16 sessions of yours are open)"


def test_strangers_are_ignored_and_counted(served: Served) -> None:
    address = served.socket.address
    with UdpSocket(connect=address) as stranger:
        other = bytearray(_hello(99))
        other[4] = wire.VERSION + 1
        told = _ask(stranger, bytes(other))
        assert (told[5], len(told) < len(other)) == (Kind.ANSWER, True)

        def disturb(step: Step) -> None:
            (session,) = served.sessions
            fin, stray = _data(session.number, fin=True), _data(session.number)
            stranger.send([fin, stray, stray[:20], b"", b"x" * 100, stray[:-3]])

        sent = _send(served, Request(0.3), on_step=disturb)
    assert sent.failure == ""
    received = served.first()
    assert received.failure == ""
    assert received.packets >= sent.acked
    counts = served.server.counts
    assert counts["other_version"] == 1
    assert counts["stray"] > 0
    assert counts["malformed"] > 0


def test_a_sender_believes_its_receiver_alone(served: Served) -> None:
    """Forged answers do not end, refuse or steer a session."""
    forged: list[bytes] = []

    def disturb(step: Step) -> None:
        (session,) = served.sessions
        ack = wire.Acknowledgement(session.number, ((0, 10**6),))
        forged[:] = [
            wire.encode_ack(ack, bytes(32)),
            wire.encode_answer(Answer(session.number, refusal="x"), bytes(32)),
        ]
        served.socket.send(forged, session.address)

    sent = _send(served, Request(0.3), on_step=disturb)
    assert forged
    assert sent.failure == ""
    assert sent.ignored >= len(forged)
    assert sent.acked <= sent.packets


def test_all_of_a_batch_with_many_gaps_is_acknowledged() -> None:
    with UdpSocket(bind=("127.0.0.1", 0)) as socket, UdpSocket(connect=socket.address) as client:
        server, numbers = ReceiveServer(socket), set(range(0, 400, 2))  # the others were lost
        server._receive([(_hello(7), client.address)], monotonic_ns())
        server._receive([(_data(7, n), client.address) for n in sorted(numbers)], monotonic_ns())
        told = set[int]()
        for datagram, _ in client.receive():
            ack = wire.decode(datagram)
            if isinstance(ack, wire.Acknowledgement):
                told |= {n for start, stop in ack.ranges for n in range(start, stop)}
    assert told == numbers


@pytest.mark.parametrize("answers", [True, False])
def test_a_receiver_that_still_acknowledges_is_there_though_the_end_comes_late(
    answers: bool,
) -> None:
    """As behind a queue that is longer than the sender's patience."""
    admission, stop = Admission(), threading.Event()

    def be_the_receiver(socket: UdpSocket) -> None:
        acked, last = -1, monotonic_ns() + 500_000_000
        while not stop.wait(0.02):
            for datagram, address in socket.receive():
                reply, session = admission.on_datagram(datagram, address)
                if reply is not None:
                    socket.send([reply], address)
                if session is not None:
                    key = session.key
            if admission.sessions and (answers or monotonic_ns() < last):
                acked += 1  # one packet each 20 ms
                ack = wire.Acknowledgement(max(admission.sessions), ((acked, acked + 1),))
                socket.send([wire.encode_ack(ack, key)], address)

    with UdpSocket(bind=("127.0.0.1", 0)) as socket:
        thread = threading.Thread(target=be_the_receiver, args=(socket,))
        thread.start()
        controller = SchemeController("fixed", parameter=1000.0)
        try:
            sent = send(socket.address, controller, Request(0.3, timeout_s=1.0, wait_s=10.0))
        finally:
            stop.set()
            thread.join(10.0)
    assert sent.failure == ("" if answers else "the other end did not confirm the end")


@pytest.mark.parametrize("served", [{"count": 1}], indirect=True)
def test_an_end_is_acknowledged_again_and_then_forgotten(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "kill=0.3")
    with UdpSocket(connect=served.socket.address) as client:
        _ask(client, _hello(1))
        for _ in range(2):
            ack = wire.decode(_ask(client, _data(1, 0, fin=True)))
            assert isinstance(ack, wire.Acknowledgement)
            assert ack.ranges == ((0, 1),)
    assert served.first().packets == 0  # a FIN is none
    assert len(served.ended) == 1


def test_a_sender_that_gives_up_has_no_good_end(served: Served) -> None:
    with UdpSocket(connect=served.socket.address) as client:
        _ask(client, _hello(1))
        _ask(client, _data(1, 0))
        client.send([_data(1, 0, fin=True)])
        assert served.first().failure == "the sender gave up"


@pytest.mark.parametrize("served", [{"count": 1}], indirect=True)
def test_more_flows_than_were_asked_for_end_it_as_well(served: Served) -> None:
    with (
        UdpSocket(connect=served.socket.address) as one,
        UdpSocket(connect=served.socket.address) as other,
    ):
        for number, client in ((1, one), (2, other)):
            _ask(client, _hello(number))
        for number, client in ((1, one), (2, other)):
            _ask(client, _data(number, 0, fin=True))
        assert _answer(one, 3)
    assert len(served.ended) == 2


def test_a_user_who_stops_is_heard_in_the_handshake() -> None:
    stop = monotonic_ns() + 300_000_000
    request, controller = Request(1.0, timeout_s=60.0), SchemeController("fixed", parameter=1.0)
    with UdpSocket(bind=("127.0.0.1", 0)) as silent, pytest.raises(LinkError, match="stopped bef"):
        send(silent.address, controller, request, stopping=lambda: monotonic_ns() > stop)
    assert monotonic_ns() - stop < 30e9


@contextmanager
def _narrow_path(
    served: Served, most: int = 800, delay_s: float = 0.0
) -> Iterator[tuple[str, int]]:
    """Relay datagrams of up to so many bytes to a receiver, and all of its answers, later."""
    stop = threading.Event()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as near,
        socket.socket(type=socket.SOCK_DGRAM) as far,
    ):
        near.bind(("127.0.0.1", 0))
        far.connect(served.socket.address)
        sender: list[Any] = []
        answers: list[tuple[float, bytes]] = []

        def relay() -> None:
            while not stop.is_set():
                while answers and answers[0][0] <= time.monotonic():
                    near.sendto(answers.pop(0)[1], sender[0])
                for ready in select.select([near, far], [], [], 0.01)[0]:
                    datagram, address = ready.recvfrom(65536)
                    if ready is far:
                        answers.append((time.monotonic() + delay_s, datagram))
                        continue
                    sender[:] = [address]
                    if len(datagram) <= most:
                        far.send(datagram)

        thread = threading.Thread(target=relay)
        thread.start()
        try:
            yield near.getsockname()
        finally:
            stop.set()
            thread.join(10.0)


@pytest.mark.parametrize(
    ("request_", "way", "hint"),
    [
        (Request(0.6), {}, "1200"),
        (Request(30.0, timeout_s=1.5), {}, "1200"),
        (Request(0.6, 900), {}, "512"),
        (Request(0.6, 700), {}, ""),  # which fit
        (Request(0.2), {"most": 1472, "delay_s": 0.5}, ""),  # over before an answer comes
    ],
)
def test_a_path_that_swallows_full_packets_is_told_and_no_other(
    served: Served, request_: Request, way: Any, hint: str
) -> None:
    with _narrow_path(served, **way) as remote:
        sent = send(remote, SchemeController("fixed", parameter=WINDOW), request_)
    assert (f"try --datagram {hint}" in sent.failure) == bool(hint) == bool(sent.failure)
    assert (sent.acked > 0) == (request_.datagram == 700)
    assert sent.loss == 1.0 if hint else sent.lost == 0
    assert math.isnan(sent.loss) == bool(way)  # of none the fate is known
