"""A group's ranks in one process, under a clock, a network and faults of their own.

Each rank runs `train_rank` as it is: membership, process group, sums over ranks, recorder, folder.
What it waits for is simulated: it runs in a greenlet, and every wait hands over to the next event.
So a trial of minutes takes a fraction of a second, and its seed replays it to the last message.

Faults: a process is killed, or its machine vanishes (nothing closes its connections), or it
freezes; messages to the master, from it, or from one rank to another are held back. Half of them
come with a second one. A launcher starts what has died again, as `Launcher` does. Some runs end by
their time, some as their user says so, and in some the master dies.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import itertools
import math
import os
import random
import shutil
import signal
import tempfile
import time
import uuid
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import greenlet
import numpy as np
import pytest
import torch

from distrlcc import files
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import DistrlccError, GroupError, NoGroupError
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.learn.rollout import Rollout
from distrlcc.limits import limits
from distrlcc.parallel import (
    admission,
    all_reduce,
    decentralized,
    membership,
    process_group,
    start,
    store,
)
from distrlcc.parallel.interface import Interface
from distrlcc.parallel.start import TrainJob, train_rank
from distrlcc.policy.spec import expected_shapes
from distrlcc.recipes.registry import recipe
from distrlcc.runs import checkpoint, metrics_log, recorder, run_directory, run_state, train
from distrlcc.runs.held_out import ACTINGS, HeldOutScore
from distrlcc.runs.identity import package_versions
from distrlcc.runs.leadership import FencedError
from distrlcc.runs.metrics_log import read_metrics
from distrlcc.runs.options import RankSpec
from distrlcc.runs.progress import RemoteProgress
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.source import EnvSource, policy_spec
from distrlcc.runs.stopper import Stopper

_ROWS, _MINIBATCHES, _TICK = 8, 2, 0.05
_LATEST_END = 5000.0
"""Seconds by which every trial has ended: a wait for a late process takes 600."""


# The world: events in order of time, and what waits for them


class _KilledError(BaseException):
    """Thrown into what is left of a trial once it has been judged."""


@dataclass
class _Process:
    """A rank's process: its threads live and die together."""

    slot: int
    pid: int
    fibers: list[_Fiber] = field(default_factory=list)
    alive: bool = True
    frozen_until: float = 0.0
    heard_until: float = 0.0
    """Until when nothing that the master sends arrives here."""
    sends_from: float = 0.0
    """From when what this sends arrives at the master."""
    stopper: Any = None
    groups: dict[str, Any] = field(default_factory=dict)
    group: Any = None
    doomed: tuple[int, str] = (-1, "")
    """After how many more waits which fault befalls it."""
    result: Any = None
    error: BaseException | None = None


class _Fiber(greenlet.greenlet):  # type: ignore[misc]
    """A thread of a simulated process."""

    process: _Process
    turn = 0  # of its newest wait: older events do not wake it


class World:
    """Clock, events, master and network of a trial."""

    newest: World

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.now, self.events, self.order = 100.0, list[Any](), 0
        self.hub = greenlet.getcurrent()
        self.closed = False
        self.master = True
        self.kept: dict[bytes, bytes] = {}
        self.watchers: list[tuple[_Fiber, int]] = []
        self.lighthouse = Lighthouse(self)
        self.meshes: dict[str, _Mesh] = {}
        self.cut: dict[tuple[int, int], float] = {}
        self.faults = Counter[str]()
        World.newest = self

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Have something happen."""
        self.order += 1
        heapq.heappush(self.events, (when, self.order, act))

    def run(self, until: Callable[[], bool]) -> None:
        """Let events happen, in order, until something is so."""
        while not until():
            if not self.events or self.now > _LATEST_END:
                raise AssertionError(f"at {self.now:.1f} s: {len(self.events)} events, no end")
            when, _, act = heapq.heappop(self.events)
            self.now = max(self.now, when)
            act()

    def spawn(self, process: _Process, target: Callable[[], Any]) -> None:
        """Start a thread of a process."""
        fiber = _Fiber(lambda _: target(), parent=self.hub)
        fiber.process = process
        process.fibers.append(fiber)
        self.wake(fiber, 0.0)

    def wake(self, fiber: _Fiber, delay: float, value: Any = None, turn: int | None = None) -> None:
        """End a fiber's wait after a while, if it lasts: the present one, or that of ``turn``."""
        turn = fiber.turn if turn is None else turn

        def resume() -> None:
            process = fiber.process
            if fiber.turn != turn or not process.alive or fiber.dead:
                return
            if process.frozen_until > self.now:
                self.at(process.frozen_until, resume)
                return
            fiber.turn += 1
            fiber.switch(value)

        self.at(self.now + delay, resume)

    def wait(self, seconds: float = float("inf")) -> Any:
        """Wait for `wake`, or so long; return what it gave, or None."""
        fiber = greenlet.getcurrent()
        if self.closed:
            raise _KilledError
        assert isinstance(fiber, _Fiber)
        process = fiber.process
        if process.doomed[0] >= 0:
            left, fault = process.doomed
            process.doomed = left - 1, fault
            if left == 0:
                self.befall(process, fault)
        if seconds < float("inf"):
            self.wake(fiber, seconds)
        return self.hub.switch()

    def latency(self) -> float:
        """Draw how long a message takes, s; one in fifty takes a thousand times as long."""
        usual = 2e-4 + 1e-3 * self.draws.random()
        return usual * (1000.0 if self.draws.random() < 0.02 else 1.0)

    def leave(self, process: _Process, *, closes: bool) -> None:
        """End a process at once; its machine closes its connections unless that is gone, too."""
        process.alive = False
        for mesh in process.groups.values():
            if closes:
                mesh.close(process)

    def befall(self, process: _Process, fault: str) -> None:
        """Have a fault befall a process now."""
        if not process.alive:
            return
        self.faults[fault] += 1
        seconds = self.draws.choice((0.3, 2.0, 6.0, 12.0, 60.0)) * self.draws.uniform(0.5, 1.5)
        if fault in ("kill", "vanish"):
            self.leave(process, closes=fault == "kill")
        elif fault == "freeze":
            process.frozen_until = self.now + seconds
        elif fault == "deaf":
            process.heard_until = self.now + seconds
        elif fault == "mute":
            process.sends_from = self.now + seconds
        elif fault == "cut":
            process.heard_until = process.sends_from = self.now + seconds
        elif fault == "stop":
            process.stopper.request(signal.SIGTERM)

    # What a process asks the master

    def call(self, limit: float, act: Callable[[], Any]) -> Any:
        """Have the master do something; raise RuntimeError where no answer comes in time."""
        fiber: Any = greenlet.getcurrent()
        process, turn = fiber.process, fiber.turn
        if not self.master:
            self.wait(1e-3)
            raise RuntimeError("Connection refused")

        def arrive() -> None:
            if self.master:
                found = act()
                back = max(process.heard_until - self.now, 0.0) + self.latency()
                self.at(self.now + back, lambda: answer(found))

        def answer(found: Any) -> None:
            if fiber.turn == turn:
                self.wake(fiber, 0.0, (found,))

        self.at(max(process.sends_from, self.now) + self.latency(), arrive)
        answered = self.wait(limit)
        if answered is None:
            raise RuntimeError("no answer in time")
        return answered[0]


class Lighthouse:
    """torchft's server: the same rules as its ``quorum_compute``, which a test compares."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: dict[str, float] = {}
        self.asked: dict[str, tuple[float, Any]] = {}
        self.before: list[str] | None = None
        self.number = 0
        self.waiting: list[tuple[str, Any, Callable[[Any], None]]] = []
        self.ticking = False
        own = limits()
        self.silence, self.patience = int(own.silence * 1e3) / 1e3, int(own.patience * 1e3) / 1e3

    def ask(self, name: str, said: Any, answer: Callable[[Any], None]) -> None:
        """Take a request; ``answer`` hears of the quorum that it is in."""
        now = self.world.now
        self.heard[name] = now
        self.asked[name] = now, said
        self.waiting.append((name, said, answer))
        self.tick()
        self._look_again()

    def _look_again(self) -> None:
        """Look again at the tick at which one is silent or late, should nothing happen before."""
        if self.asked and not self.ticking:
            self.ticking = True
            silent = min(self.heard.values(), default=0.0) + self.silence
            late = min(joined for joined, _ in self.asked.values()) + self.patience
            ticks = math.ceil(max(min(silent, late) - self.world.now, 1e-6) / _TICK)
            self.world.at(self.world.now + ticks * _TICK, self._ticked)

    def _ticked(self) -> None:
        self.ticking = False
        self.tick()
        self._look_again()

    def tick(self) -> None:
        """Form a quorum if there is one."""
        now = self.world.now
        healthy = self.heard
        for name in [name for name, heard in healthy.items() if now - heard >= self.silence]:
            del healthy[name]
        here = {name: each for name, each in self.asked.items() if name in healthy}
        if self.before is None or not all(name in here for name in self.before):
            if not here or len(here) <= len(healthy) // 2:
                return
            first = min(joined for joined, _ in here.values())
            if len(here) != len(healthy) and now - first < self.patience:
                return
        names = sorted(here)
        if self.before is None or names != self.before:
            self.number += 1
        members = [here[name][1] for name in names]
        self.before, self.asked = names, {}
        told, self.waiting = self.waiting, []
        for name, said, answer in told:
            if name in names:
                answer(SimpleNamespace(quorum_id=self.number, participants=members))
            else:
                self.asked[name] = now, said
                self.waiting.append((name, said, answer))


class _LighthouseClient:
    """What `Membership` uses of torchft's."""

    def __init__(self, url: str, limit: timedelta) -> None:
        pass

    def heartbeat(self, name: str, limit: timedelta) -> None:
        world = World.newest
        heard = world.lighthouse.heard
        try:
            world.call(limit.total_seconds(), lambda: heard.__setitem__(name, world.now))
        except RuntimeError as error:
            raise (TimeoutError if world.master else RuntimeError)(str(error)) from None

    def quorum(self, name: str, limit: timedelta, **said: Any) -> Any:
        world, fiber = World.newest, greenlet.getcurrent()
        assert isinstance(fiber, _Fiber)
        process, turn = fiber.process, fiber.turn
        if not world.master:
            world.wait(1e-3)
            raise RuntimeError("Connection refused")
        request = SimpleNamespace(replica_id=name, **said)

        def answer(found: Any) -> None:
            back = max(process.heard_until - world.now, 0.0) + world.latency()
            world.at(world.now + back, lambda: deliver(found))

        def deliver(found: Any) -> None:
            if fiber.turn == turn:
                world.wake(fiber, 0.0, found)

        def arrive() -> None:
            if world.master:
                world.lighthouse.ask(name, request, answer)

        world.at(max(process.sends_from, world.now) + world.latency(), arrive)
        found = world.wait(limit.total_seconds())
        if found is None:
            raise TimeoutError("no quorum in time")
        return found


class _Store:
    """What the code uses of a client of torch's TCPStore; after one failure all calls fail."""

    def __init__(self) -> None:
        self.limit, self.lost = limits().call, False

    def _call(self, act: Callable[[dict[bytes, bytes]], Any]) -> Any:
        world = World.newest
        if self.lost:
            raise RuntimeError("connection lost")
        try:
            return world.call(self.limit, lambda: act(world.kept))
        except RuntimeError:
            self.lost = True
            raise

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else value

        def put(kept: dict[bytes, bytes]) -> None:
            kept[key.encode()] = data
            world = World.newest
            told, world.watchers = world.watchers, []
            for fiber, turn in told:
                world.wake(fiber, 0.0, turn=turn)

        self._call(put)

    def check(self, keys: list[str]) -> bool:
        return bool(self._call(lambda kept: all(key.encode() in kept for key in keys)))

    def get(self, key: str) -> bytes:
        self.wait([key], timedelta(seconds=self.limit))
        return bytes(self._call(lambda kept: kept.get(key.encode(), b"")))

    def add(self, key: str, amount: int) -> int:
        def added(kept: dict[bytes, bytes]) -> int:
            number = int(kept.get(key.encode(), b"0")) + amount
            kept[key.encode()] = str(number).encode()
            return number

        return int(self._call(added))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        def swap(kept: dict[bytes, bytes]) -> bytes:
            if kept.get(key.encode(), b"") == expected.encode():
                kept[key.encode()] = desired.encode()
            return kept.get(key.encode(), b"")

        return bytes(self._call(swap))

    def delete_key(self, key: str) -> None:
        self._call(lambda kept: kept.pop(key.encode(), None))

    def wait(self, keys: list[str], limit: timedelta) -> None:
        world, fiber = World.newest, greenlet.getcurrent()
        assert isinstance(fiber, _Fiber)
        deadline = world.now + limit.total_seconds()
        while not self.check(keys):
            if world.now >= deadline:
                raise RuntimeError(f"wait timeout for {keys}")
            world.watchers.append((fiber, fiber.turn))
            world.wait(min(deadline - world.now, 1.0))


class _PrefixStore:
    """Another store's keys under a prefix."""

    def __init__(self, prefix: str, inner: _Store) -> None:
        self.prefix, self._inner = prefix, inner

    def set(self, key: str, value: str) -> None:
        self._inner.set(f"{self.prefix}/{key}", value)

    def wait(self, keys: list[str], limit: timedelta) -> None:
        self._inner.wait([f"{self.prefix}/{key}" for key in keys], limit)


class _Mesh:
    """The connections of a group: what was sent from one rank to another, in order."""

    def __init__(self) -> None:
        self.ranks: dict[int, _Process] = {}
        self.gone: set[int] = set()
        self.sent: dict[tuple[int, int], deque[Any]] = {}
        self.waiting: dict[tuple[int, int], tuple[_Fiber, int]] = {}  # who, and in which wait
        self.joining: list[tuple[_Fiber, int]] = []

    def close(self, process: _Process) -> None:
        """Have the others see, after what was sent, that a process has closed its connections."""
        world = World.newest
        rank = next(rank for rank, each in self.ranks.items() if each is process)
        if rank not in self.gone:
            self.gone.add(rank)
            for other in self.ranks:
                self._send(world, rank, other, None)
            for fiber, turn in self.joining:
                world.wake(fiber, world.latency(), turn=turn)

    def send(self, rank: int, other: int, data: torch.Tensor) -> None:
        self._send(World.newest, rank, other, data.clone())

    def _send(self, world: World, rank: int, other: int, data: Any) -> None:
        key = self.ranks[rank].slot, self.ranks[other].slot if other in self.ranks else -1
        when = max(world.now, world.cut.get(key, 0.0)) + world.latency()
        queue = self.sent.setdefault((rank, other), deque())
        when = max(when, queue[-1][0] if queue else 0.0)
        queue.append((when, data))
        waiting = self.waiting.get((rank, other))
        if waiting is not None:
            world.wake(waiting[0], when - world.now, turn=waiting[1])

    def receive(self, rank: int, other: int, limit: float) -> torch.Tensor:
        """Wait for what ``other`` has sent."""
        world, fiber = World.newest, greenlet.getcurrent()
        assert isinstance(fiber, _Fiber)
        deadline = world.now + limit
        queue = self.sent.setdefault((other, rank), deque())
        while not (queue and queue[0][0] <= world.now):
            if rank in self.gone or world.now >= deadline:
                raise RuntimeError("timed out" if world.now >= deadline else "closed")
            until = min(deadline, queue[0][0] if queue else deadline)
            self.waiting[other, rank] = fiber, fiber.turn
            world.wait(max(until - world.now, 1e-6))
        data: torch.Tensor | None = queue[0][1]
        if data is None:  # closed for good
            raise RuntimeError("connection closed by peer")
        queue.popleft()
        return data


class _Backend:
    """What `AllReduce` and `ProcessGroup` use of gloo's."""

    def __init__(self, mesh: _Mesh, rank: int, size: int, limit: float) -> None:
        self.mesh, self.rank, self.size, self.limit = mesh, rank, size, limit

    def _set_default_timeout(self, limit: timedelta) -> None:
        self.limit = limit.total_seconds()

    def _get_backend(self, device: torch.device) -> _Backend:
        return self

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        self.mesh.send(self.rank, rank, tensors[0])
        return SimpleNamespace(wait=lambda: None)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        def wait() -> None:
            tensors[0].copy_(self.mesh.receive(self.rank, rank, self.limit))

        return SimpleNamespace(wait=wait)


class _Dist:
    """What `ProcessGroup` uses of torch.distributed, for the process that runs."""

    def __init__(self) -> None:
        world = SimpleNamespace(group_count=0)
        self.distributed_c10d = SimpleNamespace(
            _world=world, _get_default_group=lambda: _own().group
        )

    def is_initialized(self) -> bool:
        return _own().group is not None

    def all_reduce(self, tensor: torch.Tensor) -> None:
        raise AssertionError("the group's own sum is used")

    def init_process_group(
        self, kind: str, *, store: Any, rank: int, world_size: int, timeout: timedelta
    ) -> None:
        world, process = World.newest, _own()
        mesh = world.meshes.setdefault(store.prefix, _Mesh())
        mesh.ranks[rank] = process
        process.groups[store.prefix] = mesh
        fiber: Any = greenlet.getcurrent()
        deadline = world.now + 5 * timeout.total_seconds()
        for other, turn in mesh.joining:
            world.wake(other, world.latency(), turn=turn)
        while len(mesh.ranks) < world_size and not mesh.gone:
            if world.now >= deadline:
                raise RuntimeError("connecting timed out")
            mesh.joining.append((fiber, fiber.turn))
            world.wait(deadline - world.now)
        if mesh.gone:
            raise RuntimeError("a peer is gone")
        process.group = _Backend(mesh, rank, world_size, timeout.total_seconds())

    def destroy_process_group(self) -> None:
        process = _own()
        backend, process.group = process.group, None
        backend.mesh.close(process)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        backend = _own().group
        if backend.rank != source:
            tensor.copy_(backend.mesh.receive(backend.rank, source, backend.limit))
            return
        for rank in range(backend.size):
            if rank != source:
                backend.mesh.send(source, rank, tensor)


def _own() -> _Process:
    fiber = greenlet.getcurrent()
    if not isinstance(fiber, _Fiber):
        raise _KilledError
    return fiber.process


class _Time:
    """The module ``time`` where a simulated process runs."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def monotonic(self) -> float:
        return World.newest.now

    perf_counter = monotonic

    def clock_gettime(self, which: int) -> float:
        return World.newest.now

    def sleep(self, seconds: float) -> None:
        World.newest.wait(seconds)


class _Event:
    """``threading.Event`` as a heartbeat uses it."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float) -> bool:
        World.newest.wait(seconds)
        return self._set


class _Thread:
    """``threading.Thread`` as a heartbeat uses it."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        World.newest.spawn(_own(), self._target)

    def join(self, seconds: float) -> None:
        pass


def _exit(code: int) -> None:
    world, process = World.newest, _own()
    process.error = GroupError("ended by its heartbeat", exit_code=code)
    world.leave(process, closes=True)
    world.wait()


def _fsync(number: int) -> None:
    """Take a while, in which a process may be killed or freeze."""
    if isinstance(greenlet.getcurrent(), _Fiber):
        World.newest.wait(World.newest.draws.choice((1e-3, 1e-2)))


# What is trained: small weights whose every change tells what it was made from


class _Learner:
    """Weights that gradients of all ranks change; a row tells what they were, and what they are."""

    def __init__(self, spec: Any, reducer: Any) -> None:
        self.shapes, self.reducer = expected_shapes(spec), reducer
        self.flat = torch.zeros(sum(int(np.prod(shape)) for shape in self.shapes.values()))
        self.version = 0

    def update(self, batch: Rollout) -> dict[str, float]:
        before = self.mark()
        for number in range(_MINIBATCHES):
            gradient = torch.full_like(self.flat, float(batch.version % 97 + number))
            self.reducer.mean_gradient(gradient, float(batch.steps))
            self.flat += 0.01 * gradient + 1e-3
        self.version += 1
        return {"before": before, "after": self.mark()}

    def mark(self) -> float:
        return float(zlib.crc32(self.flat.numpy().tobytes()))

    def weights(self) -> Weights:
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        parts = np.split(self.flat.numpy().copy(), np.cumsum(sizes)[:-1])
        arrays = {
            n: part.reshape(shape)
            for (n, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        arrays["normalizer.std"] = np.ones_like(arrays["normalizer.std"])
        return Weights(self.version, arrays)

    def shared_state(self) -> dict[str, Any]:
        return {"flat": self.flat.numpy().copy(), "version": self.version}

    state_dict = shared_state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flat, self.version = torch.from_numpy(state["flat"].copy()), int(state["version"])

    def undo_update(self, before: dict[str, Any]) -> None:
        self.load_state_dict(before)

    def pass_over(self, steps: int) -> None:
        self.version += 1


class _Source(EnvSource):
    """Batches that take time."""

    def __init__(self, spec: Any) -> None:
        self.spec, self._own = spec, CollectStats()
        self.rollout = Rollout.allocate(spec, _ROWS, 1)
        self._number = 0

    def next(self, weights: Weights, stop: Any = None) -> tuple[Rollout, CollectStats]:
        world, rollout = World.newest, self.rollout
        pace = world.draws.choice((0.01, 0.02, 0.1))
        rollout.steps = 0
        while rollout.steps < _ROWS:
            world.wait(pace)
            rollout.steps += 1
            if stop is not None and stop(rollout.steps):
                break
        self._number += 1
        rollout.version = self._number
        return rollout, CollectStats(steps=float(rollout.steps), reward=1.0, entropy=99.0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        return True


class _HeldOut:
    """A scoring, for which the others wait."""

    def __init__(self, config: Any, spec: Any) -> None:
        pass

    def score(self, weights: Weights) -> dict[Any, HeldOutScore]:
        World.newest.wait(World.newest.draws.choice((0.5, 3.0, 9.0)))
        return dict.fromkeys(ACTINGS, HeldOutScore(float(weights.version), 0.5, 0.5, 0.0))


class _Stopper(Stopper):
    def __enter__(self) -> _Stopper:
        return self

    def request(self, number: int) -> None:  # `Stopper.newest` would be all processes'
        self.signal = self.signal or number


# A trial


_CONFIG = override(recipe("quickstart"), ["network.hidden=[2]", "max_seconds=0"])
_SPEC = policy_spec(_CONFIG, LinkVectorEnv(1, _CONFIG.env))


@dataclass
class Trial:
    """How a run of several ranks under faults went."""

    seed: int
    faults: Counter[str]
    seconds: float
    """Simulated."""
    updates: int


class _Run:
    """The ranks of a run, their launcher, and what befalls them."""

    def __init__(self, seed: int, folder: Path, *, updates: int, size: int = 0) -> None:
        self.world = world = World(seed)
        self.draws, self.seed, self.folder = world.draws, seed, folder
        self.size = size or self.draws.choice((2, 2, 3, 3, 4, 5))
        steps = updates * _ROWS * self.size
        self.config = replace(
            _CONFIG,
            total_steps=steps,
            max_seconds=self.draws.choice((0.0, 0.0, 60.0)),
            seed=0,
            checkpoint_every=self.draws.choice((2, 5, 1000)),
            held_out=replace(_CONFIG.held_out, every=self.draws.choice((3, 7, 1000))),
        )
        self.out = folder / "run"
        run = RunDirectory.create(self.out, self.config, tensorboard=False)
        run.belong_to("simulated")
        run.close()
        self.job = TrainJob(self.config, self.out, False, False, "simulated", None, here=True)
        self.newest: dict[int, _Process] = {}
        self.all: list[_Process] = []
        self.over = self.asked = False
        self.begun = 0.0  # when the newest process was started, s
        self.named: list[tuple[float, int]] = []
        world.kept[b"attempt"] = b"0"
        world.kept[b"lighthouse"] = b"127.0.0.1:1"

    def start(self, slot: int, *, resume: bool) -> None:
        """Start a process, as a launcher does."""
        world, self.begun = self.world, self.world.now
        process = _Process(slot, 1000 + len(self.all), stopper=_Stopper())
        self.newest[slot] = process
        self.all.append(process)
        spec = RankSpec("127.0.0.1", 1, slot, self.size)
        feed: Any = RemoteProgress()
        job = replace(self.job, resume=resume)

        def main() -> None:
            try:
                process.result = train_rank(spec, job, feed, process.stopper)
            except _KilledError:
                raise
            except Exception as error:
                process.error = error
            finally:
                if process.alive and not world.closed:
                    world.leave(process, closes=True)
                    self.ended(process)

        world.spawn(process, main)

    def ended(self, process: _Process) -> None:
        """Judge the end of a process as `Launcher` does: start it again, or end the run."""
        error = process.error
        if error is None and process.result == 0:
            self.over = True
        elif error is not None and not isinstance(error, DistrlccError):
            raise error
        elif error is not None:
            self.world.faults[f"gave up: {type(error).__name__} {error.exit_code}"] += 1
            if not isinstance(error, GroupError | FencedError) or error.exit_code == 1:
                raise AssertionError(f"seed {self.seed}: {error}") from error
        self.again(process)

    def again(self, process: _Process) -> None:
        """Start a process again after a while, unless the run is over or it was asked to leave."""
        if self.over or process.stopper.signal or not self.world.master:
            return

        def begin() -> None:
            if not self.over and self.newest[process.slot] is process:
                self.start(process.slot, resume=True)

        self.world.at(self.world.now + self.draws.uniform(0.5, 8.0), begin)

    def trouble(self, mean: float) -> None:
        """Have faults befall the ranks from now and then on, about every ``mean`` seconds."""
        world, draws = self.world, self.draws
        if self.over or world.now > 1500.0:
            return
        for _ in range(1 + (draws.random() < 0.5)):
            living = [p for p in self.newest.values() if p.alive]
            if not living:
                break
            process = draws.choice(living)
            fault = draws.choice(
                ("kill", "kill", "vanish", "freeze", "freeze", "deaf", "mute", "cut", "peer")
            )
            if fault == "peer":
                pair = draws.randrange(self.size), draws.randrange(self.size)
                world.faults["peer"] += 1
                world.cut[pair] = world.now + draws.choice((0.2, 3.0, 9.0, 30.0))
            else:
                process.doomed = draws.randrange(40), fault
        world.at(world.now + draws.expovariate(1.0 / mean), lambda: self.trouble(mean))

    def watch(self) -> None:
        """See who was killed, whom a launcher starts again, and whether the run is over."""
        kept = self.world.kept
        self.over |= kept.get(b"0/finished", b"none") == kept.get(b"epoch")  # as `RunWatch` hears
        for process in self.newest.values():
            if not process.alive and process.result is None and not process.groups.get("seen"):
                process.groups["seen"] = _Mesh()
                if process.error is None or process.error.args == ("ended by its heartbeat",):
                    self.again(process)
        if not self.over:
            self.world.at(self.world.now + 0.5, self.watch)

    def run(self) -> Trial:
        """Run until every process has ended, and judge what is left."""
        world = self.world
        for slot in range(self.size):
            self.start(slot, resume=False)
        self.watch()
        mean = self.draws.choice((1.0, 1.5, 5.0, 25.0))
        world.at(world.now + self.draws.uniform(0.0, 3.0), lambda: self.trouble(mean))
        if self.draws.random() < 0.2:
            end = self.stop if self.draws.random() < 0.5 else self.lose_the_master
            world.at(world.now + self.draws.uniform(0.0, 60.0), end)
        world.run(lambda: self.over)
        # The others hear of the end by themselves, or are killed by their launcher in the end.
        for process in self.newest.values():
            process.heard_until = process.sends_from = 0.0
            process.doomed = -1, ""
        last = max(world.now, *(process.frozen_until for process in self.newest.values()))
        # Who has not met the others waits for them as long as it was told.
        met = self.begun + RankSpec.join_seconds
        limit = max(last + limits().absence, met) + limits().stop
        world.run(lambda: world.now > limit or not any(p.alive for p in self.all))
        late = [p.slot for p in self.all if p.alive]
        assert not late, f"seed {self.seed}: ranks {late} did not hear of the end"
        updates = self.judge(whole=world.master and not self.asked)
        world.closed = True
        return Trial(self.seed, world.faults, world.now - 100.0, updates)

    def stop(self) -> None:
        """Ask all ranks to stop, as their user does."""
        self.over = self.asked = True
        self.world.faults["stop"] += 1
        for process in self.newest.values():
            process.stopper.request(signal.SIGTERM)

    def lose_the_master(self) -> None:
        """Have the master die, with which node 0 does."""
        self.over, self.world.master = True, False
        self.world.faults["master"] += 1
        for process in self.newest.values():
            if not process.slot and process.alive:
                self.world.leave(process, closes=True)

    def judge(self, *, whole: bool) -> int:
        """See that rows stand once each, in order, of one history, and that the end is saved."""
        where = f"seed {self.seed}"
        if not (self.out / "metrics.jsonl").exists():
            assert not whole, where
            return 0
        rows = read_metrics(self.out / "metrics.jsonl")
        numbers = [row["update"] for row in rows]
        assert numbers == list(range(1, len(rows) + 1)), f"{where}: rows {numbers}"
        steps = [row["steps"] for row in rows]
        assert steps == sorted(steps), f"{where}: steps {steps}"
        for one, two in itertools.pairwise(row for row in rows if "after" in row):
            assert one["after"] == two["before"], (
                f"{where}: row {two['update']} is of others' weights"
            )
        if whole:
            saved = checkpoint.load_checkpoint(self.out / "checkpoints" / "latest.safetensors")
            counters = saved["counters"]
            assert (counters["update"], counters["steps"]) == (len(rows), steps[-1]), where
            enough = self.config.max_seconds or steps[-1] >= self.config.total_steps
            assert enough, f"{where}: it ended after {steps[-1]} steps"
            assert (self.out / "policy.safetensors").exists(), where
        return len(rows)

    def close(self) -> None:
        """End what is left of all processes."""
        self.world.closed = True
        for process in self.all:
            for fiber in process.fibers:
                if not fiber.dead:
                    with contextlib.suppress(BaseException):
                        fiber.throw(_KilledError)


def trial(seed: int, *, updates: int = 30, size: int = 0) -> Trial:
    """Run a trial within `simulated`, of a few ranks or ``size``; its seed replays it."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=memory))
    run = _Run(seed, folder, updates=updates, size=size)
    try:
        return run.run()
    finally:
        run.close()
        shutil.rmtree(folder)


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Have the ranks' modules use the simulated clock, network and master."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clock = _Time()
        for module in (
            membership, store, process_group, decentralized, train, recorder, run_state,
            metrics_log, all_reduce,
        ):  # fmt: skip
            if hasattr(module, "time"):
                patch.setattr(module, "time", clock)
        patch.setattr(admission, "monotonic", clock.monotonic)
        for name in ("monotonic", "sleep"):
            patch.setattr(f"distrlcc.limits.{name}", getattr(clock, name))
        torchft = SimpleNamespace(LighthouseClient=_LighthouseClient)
        patch.setattr(membership, "_torchft", lambda: torchft)
        patch.setattr(membership, "threading", SimpleNamespace(Thread=_Thread, Event=_Event))
        shim = SimpleNamespace(getpid=lambda: _own().pid, _exit=_exit)
        patch.setattr(membership, "os", shim)
        patch.setattr(membership, "sys", SimpleNamespace(stderr=io.StringIO()))
        names = SimpleNamespace(uuid4=lambda: uuid.UUID(int=World.newest.draws.getrandbits(128)))
        patch.setattr(membership, "uuid", names)
        patch.setattr(store, "connect", lambda spec, wait: _connect())
        patch.setattr(store, "PrefixStore", _PrefixStore)
        patch.setattr(process_group, "dist", _Dist())
        patch.setattr(process_group, "let_threads_preempt", lambda on: None)
        patch.setattr(process_group, "interface_towards", lambda *_: Interface("lo", "127.0.0.1"))
        patch.setattr(run_state, "HeldOut", _HeldOut)
        patch.setattr(start, "identity", lambda *_, **__: {"version": "1"})
        patch.setattr(start, "env_run", _env_run)
        patch.setattr(files, "os", _Os())
        # What takes time and is the same in all processes.
        known = package_versions()
        patch.setattr(run_directory, "package_versions", lambda: known)
        patch.setattr(run_directory, "versions", lambda: {"versions": known})
        identities, identity = dict[int, tuple[Any, str]](), run_directory._identity

        def identified(config: Any) -> str:
            if identities.get(id(config), (None,))[0] is not config:
                identities[id(config)] = config, identity(config)
            return identities[id(config)][1]

        patch.setattr(run_directory, "_identity", identified)
        yield


class _Os:
    """The module ``os`` where files are written: a sync takes a while."""

    fsync = staticmethod(_fsync)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def _connect() -> _Store:
    found = _Store()
    try:
        found.check([])
    except RuntimeError as error:
        raise NoGroupError(str(error)) from None
    return found


def _env_run(config: RunConfig, share: Any, reducer: Any, device: str) -> run_state.RunState:
    learner: Any = _Learner(_SPEC, reducer)
    return run_state.RunState(config, _Source(_SPEC), learner, total_steps=config.total_steps)
