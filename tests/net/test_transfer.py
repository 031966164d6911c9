"""Files and measurements between real sockets, with strangers about."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from distrlcc.control.schemes import SchemeController
from distrlcc.errors import LinkError, OutputError
from distrlcc.net.file_sink import FileSink, sweep
from distrlcc.net.incoming import Received
from distrlcc.net.receiving import ReceiveOptions, ReceiveServer
from distrlcc.net.sending import Request, send
from distrlcc.net.sent import Sent, Step
from distrlcc.net.udp_socket import UdpSocket, monotonic_ns
from distrlcc.transport import wire
from distrlcc.transport.messages import NONCE_BYTES, Close, Data, Hello, Kind, Refuse, Retry

WINDOW = 32.0


@dataclass
class Served:
    """A receiver that runs in a thread."""

    socket: UdpSocket
    server: ReceiveServer
    ended: list[Received] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)

    def first(self) -> Received:
        """Return how the first session went, once it is over."""
        deadline = monotonic_ns() + 30_000_000_000
        while not self.ended and monotonic_ns() < deadline:
            time.sleep(0.01)
        return self.ended[0]


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    stop, made = threading.Event(), []

    def begin(folder: Path | None = None, **options: object) -> Served:
        socket = UdpSocket(bind=("127.0.0.1", 0))
        served = Served(socket, None)  # type: ignore[arg-type]
        try:
            served.server = ReceiveServer(
                socket,
                ReceiveOptions(folder, **options),  # type: ignore[arg-type]
                on_begin=lambda incoming: served.sessions.append(incoming.session.number),
                on_end=served.ended.append,
            )
        except OutputError:
            socket.__exit__()
            raise
        thread = threading.Thread(target=served.server.run, args=(stop.is_set,))
        thread.start()
        made.append((thread, socket))
        return served

    yield begin
    stop.set()
    for thread, socket in made:
        thread.join(10.0)
        socket.__exit__()


def _send(served: Served, request: Request, **words: Callable[..., object]) -> Sent:
    controller = SchemeController("fixed", parameter=WINDOW)
    return send(served.socket.address, controller, request, **words)  # type: ignore[arg-type]


def _file(folder: Path, size: int) -> Path:
    path = folder / "a file.bin"
    path.write_bytes(secrets.token_bytes(size))
    return path


@pytest.mark.parametrize("size", [0, 1, 1_431, 3_000_000])
def test_a_file_arrives_whole(serve: Callable[..., Served], tmp_path: Path, size: int) -> None:
    target = tmp_path / "in"
    target.mkdir()
    served, path = serve(target), _file(tmp_path, size)
    sent = _send(served, Request(0.0, path))
    assert sent.failure == ""
    assert sent.file_bytes == size
    assert (target / path.name).read_bytes() == path.read_bytes()
    assert [each.name for each in target.iterdir()] == [path.name]  # and nothing else
    assert served.first().file == target / path.name
    with pytest.raises(LinkError, match="is there already; transfers are not resumed"):
        _send(served, Request(0.0, path))


def test_a_measurement_lasts_as_long_as_it_shall(
    serve: Callable[..., Served], thrice: Callable[..., None]
) -> None:
    def once() -> None:
        served = serve()
        steps: list[Step] = []
        sent = _send(served, Request(0.6), on_step=steps.append)
        assert sent.failure == ""
        assert 0.6 <= sent.seconds < 2.0
        assert 10 < len(steps) == sent.steps <= 61
        assert sent.acked > 100
        assert sent.packets >= served.first().packets >= sent.acked
        assert 0.0 < sent.min_rtt_ms <= sent.mean_rtt_ms
        assert sum(step.acked for step in steps) <= sent.acked
        assert all(step.cwnd == WINDOW for step in steps)

    thrice(once)


def test_files_are_refused_with_the_reason(serve: Callable[..., Served], tmp_path: Path) -> None:
    path = _file(tmp_path, 10)
    with pytest.raises(LinkError, match="no files are taken here; start it with --folder DIR"):
        _send(serve(), Request(0.0, path))
    with pytest.raises(LinkError, match="is no regular file"):
        _send(serve(), Request(0.0, tmp_path))
    with pytest.raises(LinkError, match="cannot be read"):
        _send(serve(), Request(0.0, tmp_path / "none"))
    with pytest.raises(OutputError, match="there is no such folder"):
        serve(tmp_path / "none")


def test_a_file_that_is_not_done_in_time_leaves_nothing(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    target = tmp_path / "in"
    target.mkdir()
    served = serve(target)
    path = _file(tmp_path, 500_000)
    controller = SchemeController("fixed", parameter=1.0)
    sent = send(served.socket.address, controller, Request(0.01, path))
    assert sent.failure == "not done within 0.01 s"
    assert served.first().failure == "the sender gave up"
    assert list(target.iterdir()) == []


def test_a_silent_sender_is_given_up(serve: Callable[..., Served], tmp_path: Path) -> None:
    target = tmp_path / "in"
    target.mkdir()
    served = serve(target, silence_s=0.5)
    hello = Hello(7, bytes(NONCE_BYTES), 1472, 100_000, "x")
    with UdpSocket(connect=served.socket.address) as client:
        _open(client, hello)
        assert len(list(target.iterdir())) == 1
        assert "has said nothing" in served.first().failure
    assert list(target.iterdir()) == []


def _ask(client: UdpSocket, datagram: bytes) -> bytes:
    client.send([datagram])
    assert client.wait(monotonic_ns() + 5_000_000_000), "no answer"
    ((answer, _),) = client.receive()
    return answer


def _open(client: UdpSocket, hello: Hello) -> bytes:
    retry = wire.decode(_ask(client, wire.encode_hello(hello)))
    assert isinstance(retry, Retry)
    return _ask(client, wire.encode_hello(hello._replace(cookie=retry.cookie)))


def test_strangers_are_ignored_and_counted(serve: Callable[..., Served], tmp_path: Path) -> None:
    target = tmp_path / "in"
    target.mkdir()
    served, path = serve(target), _file(tmp_path, 2_000_000)
    address = served.socket.address
    with UdpSocket(connect=address) as stranger:
        hello = Hello(99, bytes(NONCE_BYTES), 1472)
        first = wire.encode_hello(hello)
        answer = _ask(stranger, first)
        assert isinstance(wire.decode(answer), Retry)
        assert len(answer) < len(first)  # nobody is flooded by way of us
        refused = wire.decode(_ask(stranger, wire.encode_hello(hello._replace(cookie=bytes(20)))))
        assert isinstance(refused, Refuse)
        other = bytearray(first)
        other[4] = 2
        told = _ask(stranger, bytes(other))
        assert (told[5], len(told) < len(first)) == (Kind.REFUSE, True)

        def disturb(step: Step) -> None:
            (session,) = served.sessions
            forged = wire.encode_close(Close(session, 1), bytes(32))
            stray = wire.encode_data(Data(session, 5, 0, 0, b"forged"))
            stranger.send([forged, stray, stray[:20], b"", b"x" * 100, stray[:-3] + b"zzz"])

        slow = SchemeController("fixed", parameter=4.0)
        sent = send(address, slow, Request(0.0, path), on_step=disturb)
    assert sent.failure == ""
    assert (target / path.name).read_bytes() == path.read_bytes()
    counts = served.server.counts
    assert counts.forged == 1  # the cookie
    assert counts.other_version == 1
    assert counts.stray > 0
    assert counts.malformed > 0


def test_a_sender_believes_nobody_but_its_receiver(serve: Callable[..., Served]) -> None:
    """Forged answers do not end, refuse or steer a session."""
    served = serve()
    answered: list[bool] = []

    def disturb(step: Step) -> None:
        (session,) = served.sessions
        (each,) = served.server._incoming.values()
        fake = wire.encode_ack(wire.Acknowledgement(session, ((0, 10**6),), 0, 0), bytes(32))
        served.socket.send([fake, wire.encode_refuse(Refuse(session, 2, ""), bytes(32))],
                           each.session.address)  # fmt: skip
        answered.append(True)

    sent = _send(served, Request(0.3), on_step=disturb)
    assert answered
    assert sent.failure == ""
    assert sent.ignored >= len(answered)
    assert sent.acked <= sent.packets


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "x", 1, 6)
    sink.write(3, b"def")
    sink.write(0, b"abc")
    assert sink.read(1, 4) == b"bcde"
    (tmp_path / "x").write_text("mine")
    assert sweep(tmp_path) == 0  # its receiver lives
    with pytest.raises(FileExistsError):
        sink.keep()
    assert (tmp_path / "x").read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]
    left = tmp_path / ".0000000000000001.distrlcc-part"
    left.touch()
    named_so = tmp_path / ".mine.distrlcc-part"
    named_so.touch()
    assert sweep(tmp_path) == 1
    assert not left.exists()
    assert named_so.exists()


def test_what_was_not_stored_whole_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sink = FileSink(tmp_path, "x", 1, 6)
    real = os.pwrite

    def few(file: int, data: memoryview, offset: int) -> int:
        if offset >= 4:
            raise OSError(28, "No space left on device")
        return real(file, data[:2], offset)  # as a disk that is nearly full does

    monkeypatch.setattr(os, "pwrite", few)
    sink.write(0, b"abcd")
    assert sink.read(0, 10) == b"abcd"
    with pytest.raises(OSError, match="No space"):
        sink.write(3, b"def")
    with pytest.raises(OSError, match="5 of 6 bytes were stored"):
        sink.keep()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_hangs_does_not_keep_the_receiver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang(file: int) -> None:
        asked.set()
        released.wait(20.0)

    monkeypatch.setattr(os, "fsync", hang)
    monkeypatch.setattr("distrlcc.net.incoming._STORE_SECONDS", 0.3)
    target = tmp_path / "in"
    target.mkdir()
    ended: list[Received] = []
    with UdpSocket(bind=("127.0.0.1", 0)) as socket:
        server = ReceiveServer(socket, ReceiveOptions(target), on_end=ended.append)
        thread = threading.Thread(target=server.run, args=(asked.is_set,))
        thread.start()
        controller = SchemeController("fixed", parameter=WINDOW)
        sent = send(
            socket.address, controller, Request(0.0, _file(tmp_path, 5000), handshake_s=1.0)
        )
        thread.join(20.0)
        assert not thread.is_alive()
    released.set()
    assert sent.failure
    assert ended[0].failure == "it was not stored within 0.3 s"


def test_a_full_disk_ends_the_transfer_at_once(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "in"
    target.mkdir()
    served, path = serve(target), _file(tmp_path, 3_000_000)

    def full(file: int, data: memoryview, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    sent = _send(served, Request(0.0, path))
    assert sent.failure == "the other end could not store it; is its disk full?"
    assert sent.packets < 1000
    assert served.first().failure == "the file cannot be written (No space left on device)"
    assert list(target.iterdir()) == []


def test_a_folder_that_vanishes_refuses_and_the_server_lives(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    target = tmp_path / "in"
    target.mkdir()
    served, path = serve(target), _file(tmp_path, 10)
    target.rmdir()
    with pytest.raises(LinkError, match=r"the folder cannot be used|cannot be created"):
        _send(served, Request(0.0, path))
    assert _send(served, Request(0.2)).failure == ""


def test_one_host_does_not_lock_the_others_out(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(tmp_path, host_sessions=2, max_file_bytes=100)
    with UdpSocket(connect=served.socket.address) as client:
        for number in (1, 2):
            _open(client, Hello(number, bytes(NONCE_BYTES), 1472))
        refused = wire.decode(_open(client, Hello(3, bytes(NONCE_BYTES), 1472)))
    assert isinstance(refused, Refuse)
    assert "2 sessions of yours are open" in refused.text
    for name, size, says in ((".bashrc", 1, "begin with a dot"), ("x", 101, "up to 100 bytes")):
        why = served.server._refusal(name, size)
        assert says in why


def test_a_session_that_is_over_frees_its_name_and_its_place(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("distrlcc.net.receiving._LINGER_NS", 300_000_000)
    target = tmp_path / "in"
    target.mkdir()
    served, path = serve(target), _file(tmp_path, 500_000)
    one = SchemeController("fixed", parameter=1.0)
    assert send(served.socket.address, one, Request(0.01, path)).failure
    served.first()
    again = _send(served, Request(0.0, path))  # while the first still lingers
    assert again.failure == ""
    deadline = time.monotonic() + 5.0
    with UdpSocket(connect=served.socket.address) as client:
        while served.server._incoming and time.monotonic() < deadline:
            for session in served.sessions:
                client.send([wire.encode_data(Data(session, 1, 0))])
            time.sleep(0.02)
    assert not served.server._incoming


def test_a_user_who_stops_is_heard_in_the_handshake() -> None:
    with UdpSocket(bind=("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        controller = SchemeController("fixed", parameter=1.0)
        with pytest.raises(LinkError, match="stopped before"):
            send(silent.address, controller, Request(1.0, handshake_s=60.0),
                 stopping=lambda: time.monotonic() - begin > 0.3)  # fmt: skip
        assert time.monotonic() - begin < 5.0
