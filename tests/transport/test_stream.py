"""A file in pieces: what leaves again, what is put together."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrlcc.transport import stream as stream_module
from distrlcc.transport.messages import Buffer
from distrlcc.transport.stream import Chunk, StreamReceiver, StreamSender


class Memory:
    """A sink in memory."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.written = 0

    def write(self, offset: int, data: Buffer) -> None:
        self.data[offset : offset + len(data)] = data
        self.written += len(data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])


def test_new_then_lost_first_then_a_copy() -> None:
    stream = StreamSender(25, 10)
    assert stream.take(0) == Chunk(0, 10, False)
    assert stream.take(1) == Chunk(10, 10, False)
    stream.on_lost([0])
    assert stream.take(2) == Chunk(0, 10, False)
    assert stream.take(3) == Chunk(20, 5, True)
    assert not stream.has_data
    stream.on_acked([2])
    assert stream.take(4) == Chunk(10, 10, False)  # a probe repeats the oldest in flight
    stream.on_acked([4, 3])
    assert stream.complete
    stream.on_lost([1])
    assert not stream.has_data
    assert stream.take(5) == Chunk(25, 0, True)
    stream.on_acked([5])
    assert stream.acked_bytes == 25
    stream.take(6)
    stream.on_lost([6])
    assert not stream.has_data


def test_what_arrived_in_a_copy_does_not_leave_again() -> None:
    stream = StreamSender(20, 10)
    stream.take(0), stream.take(1)
    copy = stream.take(2)
    assert copy == Chunk(0, 10, False)
    stream.on_lost([0])
    assert stream.has_data
    stream.on_acked([2])
    assert not stream.has_data
    assert stream.take(3) == Chunk(10, 10, True)  # again a probe: nothing is lost


def test_a_lost_copy_of_what_arrived_does_not_leave_again() -> None:
    stream = StreamSender(30, 10)
    for number in range(3):
        stream.take(number)
    copies = [stream.take(number).offset for number in (3, 4)]
    assert copies == [0, 0]
    stream.on_acked([0])
    stream.on_lost([1, 3, 2, 4])
    assert [stream.take(number).offset for number in (5, 6)] == [10, 20]
    assert not stream.has_data
    stream.on_acked([5, 6])
    assert stream.complete


def test_an_empty_file_is_complete_at_once() -> None:
    assert StreamSender(0, 10).complete
    assert not StreamSender(0, 10).has_data
    receiver = StreamReceiver(0, Memory(0))
    assert receiver.complete
    assert receiver.digest() == hashlib.sha256().digest()


@given(st.integers(1, 400), st.integers(1, 30), st.randoms(use_true_random=False))
def test_any_order_and_overlap(size: int, chunk: int, rng: random.Random) -> None:
    data = rng.randbytes(size)
    sink = Memory(size)
    receiver = StreamReceiver(size, sink)
    spans = [(k, min(k + chunk, size)) for k in range(0, size, chunk)]
    spans += [tuple(sorted((rng.randrange(size), rng.randrange(size)))) for _ in range(10)]
    rng.shuffle(spans)
    for start, stop in spans:
        assert receiver.on_chunk(start, data[start:stop], stop == size)
    assert receiver.complete
    assert bytes(sink.data) == data
    assert sink.written == size
    assert receiver.digest() == hashlib.sha256(data).digest()


def test_a_chunk_that_contradicts_the_size_is_not_taken() -> None:
    receiver = StreamReceiver(10, Memory(10))
    assert not receiver.on_chunk(8, b"abc", False)
    assert not receiver.on_chunk(0, b"abc", True)
    assert receiver.on_chunk(7, b"abc", True)
    assert (receiver.refused, receiver.received_bytes) == (2, 3)


def test_memory_is_bounded_and_the_file_still_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_SPANS", 4)
    data = random.Random(1).randbytes(100)
    sink = Memory(100)
    receiver = StreamReceiver(100, sink)
    taken = [receiver.on_chunk(k, data[k : k + 1], False) for k in range(2, 100, 2)]
    assert taken == [True] * 4 + [False] * 45
    for k in range(100):
        assert receiver.on_chunk(k, data[k : k + 1], False)
    assert receiver.complete
    assert receiver.digest() == hashlib.sha256(data).digest()
