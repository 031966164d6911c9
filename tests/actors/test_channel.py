"""The channel between a trainer and its workers: what crosses it, and who is let in."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from distrlcc.actors import channel
from distrlcc.actors.actor import AHEAD, Report, Segment
from distrlcc.actors.admission import Admission
from distrlcc.actors.channel import ChannelEngine, longest_frame
from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.parallel.gate import Gate, Tunnel
from distrlcc.parallel.interface import listen
from distrlcc.parallel.store import Master, connect
from distrlcc.policy.spec import expected_shapes
from distrlcc.recipes.registry import RECIPES, recipe
from distrlcc.runs.options import RankSpec
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.source import new_rollout, policy_spec
from tests.hosts import wait_until
from tests.parallel.strangers import garbage

LONG = 30.0
MOST = 1 << 22
WORKERS = {f"claim-{index}": Worker(index, "here", 7) for index in range(2)}
TRAINING = [name for name in RECIPES if isinstance(recipe(name), RunConfig)]


class Held:
    """What a worker holds: answers with what it was called with."""

    def __init__(self, index: int, first_step: int) -> None:
        if first_step == 13:
            raise ValueError("an unlucky step")
        self.index, self.stopped, self.weights = index, False, Weights(-1, {})
        self.newer = threading.Event()

    def set_weights(self, weights: Weights) -> int:
        self.weights = weights
        self.newer.set()
        return weights.version

    def report(self, most: int, seconds: float) -> Report:
        if seconds and not self.newer.wait(seconds):
            raise RuntimeError("no weights came")
        rollout = _segment(recipe("quickstart"), 1).rollout
        return Report("x", [Segment(self.index, n, rollout, CollectStats()) for n in range(most)])

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def spec() -> Iterator[RankSpec]:
    master = Master("127.0.0.1", 0, lighthouse=False)
    yield RankSpec("127.0.0.1", master.port, 0, 3, join_seconds=LONG, learners=1)
    master.close()


_CLOSED: list[socket.socket] = []
"""To be closed after a test."""


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _CLOSED:
        _CLOSED.pop().close()


@pytest.fixture
def engine(spec: RankSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChannelEngine]:
    """Return a trainer's engine; both workers are awaited."""
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=2")
    made = ChannelEngine(spec, _admission(spec, *WORKERS), MOST)
    yield made
    made.close()


def _admission(spec: RankSpec, *names: str) -> Admission:
    members = {name: WORKERS[name] for name in names}
    return Admission(0, list(members.values()), connect(spec, LONG), members)


def _worker(spec: RankSpec, name: str) -> channel._Channel:
    """Connect as a worker, in threads of this process."""
    _CLOSED.append(channel._connect(spec, _admission(spec, name)))
    own = channel._Channel(_CLOSED[-1], Held, MOST)
    own.send(0, channel._Hello(name, channel._proof(name)))
    own.begin()
    return own


def _place(spec: RankSpec) -> str:
    told = connect(spec, LONG).get("0/0/channel")
    return f"\0{msgspec.json.decode(told)[0]}"


def _stranger(place: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    _CLOSED.append(found)
    found.settimeout(LONG)
    found.connect(place)
    return found


def _joined(engine: ChannelEngine, count: int = 1) -> list[Worker]:
    seen: list[Worker] = []
    wait_until(lambda: len(seen.extend(engine.changes().joined) or seen) >= count, LONG, "joining")  # type: ignore[func-returns-value]
    return seen


def _frame(number: int, body: bytes, size: int | None = None) -> bytes:
    return struct.pack("!II", number, len(body) if size is None else size) + body


def _segment(config: RunConfig, seed: int) -> Segment:
    """Return a segment of a run's shape, full of numbers."""
    spec = policy_spec(config, LinkVectorEnv(config.env.unit, config.env))
    rollout = new_rollout(config, spec, config.actors.envs_per_worker)
    dice = np.random.default_rng(seed)
    arrays = {
        name: (255 * dice.random(array.shape)).astype(array.dtype)
        for name, array in rollout.arrays().items()
    }
    stats = CollectStats(*dice.random(len(fields(CollectStats))))
    rollout = replace(rollout, **arrays, steps=np.int64(len(rollout.rewards)), version=3)  # type: ignore[arg-type]
    return Segment(2, seed, rollout, stats)


@pytest.mark.parametrize("name", TRAINING)
def test_all_that_a_run_sends_comes_as_it_was_and_fits(name: str) -> None:
    config = recipe(name)
    segments = [_segment(config, seed) for seed in range(AHEAD)]
    report = Report("a link", segments, 3, 10**12, 0.5, 0.25, {"utilisation": np.float64(0.1)})
    body = channel._encode(channel._Answer(report))
    assert len(body) <= longest_frame(config)
    told = channel._answer.decode(body).value
    assert isinstance(told, Report)
    assert replace(told, segments=[]) == replace(report, segments=[])
    for sent, came in zip(segments, told.segments, strict=True):
        assert (came.worker, came.number, came.stats) == (sent.worker, sent.number, sent.stats)
        assert came.rollout.version == 3
        for key, array in sent.rollout.arrays().items():
            np.testing.assert_array_equal(getattr(came.rollout, key), array, strict=True)

    spec = policy_spec(config, LinkVectorEnv(config.env.unit, config.env))
    shapes = expected_shapes(spec).items()
    weights = Weights(7, {k: np.full(of, 0.1, np.float32) for k, of in shapes}, expert_acts=True)
    body = channel._encode(channel._SetWeights(weights))
    assert len(body) <= longest_frame(config)
    came = channel._call.decode(body).weights
    assert (came.version, came.expert_acts, list(came.arrays)) == (7, True, list(weights.arrays))
    for key, array in weights.arrays.items():
        np.testing.assert_array_equal(came.arrays[key], array, strict=True)


def test_segments_beyond_a_frame_are_refused_before_the_run() -> None:
    settings = ["actors.envs_per_worker=70000", "ppo.rollout_length=2048"]
    config = override(recipe("quickstart"), settings)
    with pytest.raises(ConfigError, match=r"GB at once, of 4\.29 at most: lower"):
        longest_frame(config)


def test_the_four_calls_are_answered_weights_while_a_report_waits(
    engine: ChannelEngine, spec: RankSpec
) -> None:
    workers = {name: _worker(spec, name) for name in WORKERS}
    assert set(_joined(engine, 2)) == set(WORKERS.values())
    assert engine.changes() == Changes()
    first, other = WORKERS.values()
    with pytest.raises(ActorError, match="ValueError: an unlucky step"):
        engine.start(first, Held, None, 0, 13).result(LONG)
    with pytest.raises(ActorError, match="AttributeError"):
        engine.call(first, "report", 1, 0.0).result(LONG)
    for worker in WORKERS.values():
        assert engine.start(worker, Held, None, worker.index, 5).result(LONG) is None
    waiting = engine.call(first, "report", 2, LONG)
    weights = Weights(4, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    both = [engine.call(worker, "set_weights", weights) for worker in WORKERS.values()]
    assert [sent.result(LONG) for sent in both] == [4, 4]
    assert [s.number for s in waiting.result(LONG).segments] == [0, 1]
    for own in workers.values():
        np.testing.assert_array_equal(own.holder.object.weights.arrays["w"], weights.arrays["w"])
    assert [s.worker for s in engine.call(other, "report", 1, 0.0).result(LONG).segments] == [1]
    assert engine.call(other, "report", 0, 0.0).result(LONG).segments == []

    # One that is dropped is not called again; one whose process dies is gone.
    engine.drop(first)
    with pytest.raises(WorkerGoneError):
        engine.call(first, "stop").result(LONG)
    waiting = engine.call(other, "report", 1, 0.0)
    waiting.result(LONG)
    workers["claim-1"].holder.object.newer.clear()
    waiting = engine.call(other, "report", 1, LONG)
    workers["claim-1"]._connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(WorkerGoneError, match="connection lost"):
        waiting.result(LONG)
    assert engine.changes().left == {other: "connection lost"}
    with pytest.raises(WorkerGoneError):
        engine.call(other, "stop").result(LONG)


def _hellos(proof: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return what one sends who knows the form, by name."""

    def hello(name: str, seal: bytes) -> bytes:
        return _frame(0, channel._encode(channel._Hello(name, seal)))

    extra = msgspec.msgpack.encode({"name": "claim-0", "proof": proof("claim-0"), "more": 1})
    return {
        "another token": hello("claim-0", b"\0" * 32),
        "an unknown name": hello("claim-9", proof("claim-9")),
        "a member's twice": hello("claim-1", proof("claim-1")),
        "a long name": hello("x" * 300, proof("x" * 300)),
        "more than is asked for": _frame(0, extra),
        "a frame too long": _frame(0, b"", 1 << 31),
        "a frame too long by one": _frame(0, b"", channel._ROOM + 1),
        "nested": _frame(0, b"\x91" * 100_000),
        "an answer": _frame(1, channel._encode(channel._Answer(1))),
        "a map of itself": _frame(0, b"\x81" * 4000),
        "half a frame": _frame(0, b"\x81", 4000),
        "nothing": b"",
        **{name: _frame(0, data) for name, data in garbage().items() if len(data) < channel._ROOM},
    }


def test_strangers_are_cut_off_and_told_of_and_a_member_goes_on(
    engine: ChannelEngine, spec: RankSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    _worker(spec, "claim-1")
    _joined(engine)
    member = WORKERS["claim-1"]
    engine.start(member, Held, None, 1, 0).result(LONG)
    told: list[str] = []
    monkeypatch.setattr("warnings.warn", lambda text, **_: told.append(text))
    kinds = _hellos(channel._proof)
    kinds |= {f"as it is: {name}": data for name, data in garbage().items()}
    strangers, place = {}, _place(spec)
    for name, data in kinds.items():
        strangers[name] = _stranger(place)
        try:
            strangers[name].sendall(data)
        except OSError:  # it is closed while much is still being sent
            assert name == "as it is: much"
    for name, stranger in strangers.items():
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b"", name
        stranger.close()
    assert len(told) == len(kinds)
    said = "what connected to the trainer's socket sent "
    assert all(line.startswith(said) and line.endswith("is closed") for line in told)
    assert all(len(line) < 250 for line in told)
    # Nobody joined or left, and who says nothing because it is gone is not spoken of.
    _stranger(place).close()
    assert engine.call(member, "report", 1, 0.0).result(LONG).segments
    assert engine.changes() == Changes()
    assert len(told) == len(kinds)
    _worker(spec, "claim-0")
    assert _joined(engine) == [WORKERS["claim-0"]]


_GOOD = ("<f4", (2,), bytes(8))
_BAD_ARRAYS: dict[str, Any] = {
    "objects": ("|O", (1,), bytes(8)),
    "of another type": ("<i8", (1,), bytes(8)),
    "of a type with code": ("f4,(2)f4", (1,), bytes(8)),
    "too short": ("<f4", (3,), bytes(8)),
    "too long": ("<f4", (1,), bytes(8)),
    "negative": ("<f4", (-1,), bytes(8)),
    "huge": ("<f4", (1 << 62, 4), bytes(8)),
    "of shape x": ("<f4", "x", bytes(8)),
    "text": "text",
    "nothing": None,
    "two": ("<f4", (2,)),
    "a map": {"<f4": 1},
    "a number for data": ("<f4", (2,), 8),
}


@pytest.mark.parametrize("name", _BAD_ARRAYS)
def test_arrays_are_what_they_should_be_or_refused(name: str) -> None:
    def call(array: Any) -> bytes:
        weights = {"version": 1, "arrays": {"w": array}, "expert_acts": False}
        return msgspec.msgpack.encode({"type": "set_weights", "weights": weights})

    assert channel._call.decode(call(_GOOD)).weights.arrays["w"].shape == (2,)
    with pytest.raises((ValueError, RecursionError)):
        channel._call.decode(call(_BAD_ARRAYS[name]))


_FROM_MEMBERS = {
    "an answer to nothing": _frame(77, channel._encode(channel._Answer(1))),
    "a call": _frame(1, channel._encode(channel._Stop())),
    "a hello": _frame(0, channel._encode(channel._Hello("claim-0", b""))),
    "a frame too long": _frame(1, b"", MOST + 1),
    "garbage": _frame(1, os.urandom(400)),
    "text for steps": _frame(1, msgspec.msgpack.encode({"value": {"link": "x", "steps": "y"}})),
}


@pytest.mark.parametrize("name", _FROM_MEMBERS)
def test_a_member_that_sends_something_else_is_gone_with_the_reason(
    name: str, engine: ChannelEngine, spec: RankSpec
) -> None:
    _CLOSED.append(channel._connect(spec, _admission(spec, "claim-0")))
    own = channel._Channel(_CLOSED[-1], Held, MOST)
    own.send(0, channel._Hello("claim-0", channel._proof("claim-0")))
    (worker,) = _joined(engine)
    waiting = engine.call(worker, "report", 0, 0.0)
    own._connection.sendall(_FROM_MEMBERS[name])
    left: dict[Worker, str] = {}
    wait_until(lambda: left.update(engine.changes().left) or bool(left), LONG, "its end")
    assert left[worker].startswith("it sent ")
    assert len(left[worker]) < 200
    # What waited for an answer does not wait on.
    with pytest.raises(WorkerGoneError):
        waiting.result(LONG)


def test_a_trainer_that_sends_something_else_ends_its_worker(
    engine: ChannelEngine, spec: RankSpec
) -> None:
    bad = {"a call of nothing": b"\x81\xa4type\xa3run", "much": bytes(9), "of no type": b"\x80"}
    for (what, body), name in zip(bad.items(), ["claim-0", "claim-1", ""], strict=True):
        ours, theirs = socket.socketpair()
        _CLOSED.extend((ours, theirs))
        own = channel._Channel(ours, Held, 8 if what == "much" else MOST)
        own.begin()
        theirs.sendall(_frame(1, body))
        wait_until(lambda c=own: bool(c.holder.problem), LONG, what)
        assert own.holder.problem.startswith("the trainer sent something else than expected (")
        assert own.holder.object is None, name


def test_another_user_of_this_machine_is_not_let_in(
    engine: ChannelEngine, spec: RankSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    told: list[str] = []
    monkeypatch.setattr("warnings.warn", lambda text, **_: told.append(text))
    place = _place(spec)
    if (child := os.fork()) == 0:
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(LONG)
                other.connect(place)
                os._exit(len(other.recv(1)))
        finally:
            os._exit(9)
    assert os.waitpid(child, 0)[1] == 0  # it read nothing
    assert told == [
        "what connected to the trainer's socket sent another user's process; its connection is "
        "closed"
    ]


def test_workers_that_do_not_connect_are_named_and_stay_away(
    engine: ChannelEngine, spec: RankSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("warnings.warn", lambda text, **_: told.append(text))
    _worker(spec, "claim-1")
    _joined(engine)
    assert 0.0 < engine._missed - time.monotonic() < 60.0
    engine._missed = 0.0  # as if that had passed
    engine.changes()
    engine.changes()  # it is said once
    assert told == ["worker 0 (process 7 on here) did not connect; going on without"]
    _worker(spec, "claim-0")
    wait_until(lambda: len(told) == 2, LONG, "the late one is refused")
    assert "its connection is closed" in told[1]
    assert not engine.changes().joined


def test_tunnels_lead_to_a_socket_that_was_registered_and_to_no_other() -> None:
    token = "a-token-of-this-test"
    tunnels = [Tunnel(listen(f"127.0.0.{k}", 0), token, {}) for k in (2, 3)]
    name = f"distrlcc-test-{os.getpid()}"
    try:
        with socket.socket(socket.AF_UNIX) as server, Gate(tunnels[0].name) as near:
            server.bind(f"\0{name}")
            server.listen()
            server.settimeout(LONG)
            with Gate(tunnels[1].name) as far:
                where = f"127.0.0.2:{tunnels[0].port}"
                with pytest.raises(OSError, match="nothing listens"):
                    far.way(where, name)  # it is not registered yet
                assert near.register(name) == where
                port = far.way(where, name)
                server.accept()[0].close()  # the way was tried
                with socket.create_connection(("127.0.0.1", port), LONG) as line:
                    line.sendall(b"hello")
                    with server.accept()[0] as inner:
                        assert inner.recv(5) == b"hello"
                        inner.sendall(b"answer")
                        assert line.recv(6, socket.MSG_WAITALL) == b"answer"
    finally:
        for tunnel in tunnels:
            tunnel.close()
