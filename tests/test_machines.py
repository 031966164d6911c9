"""Sequences of what may befall storages, run directories and receivers, drawn and compared.

Of what is kept a model says what must come back: the newest whole one, with a line for each newer
one that is not. Of a receiver it says who is admitted.
"""

import shutil
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from distrlcc.errors import CheckpointError, DistrlccError, OutputError
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.storage import LATEST, MANIFEST, Storage, StorageLostError
from distrlcc.transport import wire
from distrlcc.transport.handshake import MAX_HOST_SESSIONS, MAX_SESSIONS, MAX_UNPROVEN, Admission

DAMAGES = st.sampled_from(["bit", "cut", "gone"])


def _harm(path: Path, how: str, place: float) -> None:
    """Flip a bit of a file, cut it, or remove it.

    Bits are of the last bytes, which are weights: test_damage.py flips those that say nothing, too.
    """
    data = bytearray(path.read_bytes())
    if how == "gone" or not data:
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: int(place * len(data))])
    else:
        data[-1 - int(place * min(len(data), 32))] ^= 1
        path.write_bytes(data)


class _Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # syncs take no time there
        self.root = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))

    def teardown(self) -> None:
        self.stack.close()


@dataclass
class Generation:
    """What a push stored, as the model has it."""

    number: int
    content: bytes
    whole: bool = True


class StorageMachine(_Machine):
    """Pushes, some of them cut off, owners, leaders, damage and pulls."""

    storage: Storage

    @initialize()
    def begin(self) -> None:
        self.run, self.there = self.root / "run", self.root / "store"
        (self.run / "checkpoints").mkdir(parents=True)
        self.content, self.epoch, self.attempt = b"0", 1, 0
        self.generations = list[Generation]()
        self.claims = ExitStack()
        self.stack.callback(self.claims.close)
        self.earlier = list[Storage]()
        self.take_over()
        self.train(b"begun")

    @rule(content=st.binary(min_size=1, max_size=40))
    def train(self, content: bytes) -> None:
        self.content = content
        (self.run / LATEST).write_bytes(content)
        (self.run / "metrics.jsonl").write_bytes(content[::-1])

    @rule()
    def take_over(self) -> None:
        """A later attempt of the same run takes the name at once."""
        if self.attempt:
            self.earlier.append(self.storage)
        self.attempt += 1
        self.storage = Storage(str(self.there), "one", f"id#{self.attempt}")
        self.claims.enter_context(self.storage.claim())

    @precondition(lambda self: self.earlier)
    @rule()
    def earlier_owner_pushes(self) -> None:
        with pytest.raises(StorageLostError):
            self.earlier[-1].push(self.run)

    @rule(later=st.booleans())
    def push(self, later: bool) -> None:
        self.epoch += later
        found = self.storage.push(self.run, leader=("run", self.epoch))
        assert all(found.generation > old.number for old in self.generations)
        self.generations = [*self.generations[-1:], Generation(found.generation, self.content)]

    @precondition(lambda self: self.epoch > 1 and any(g.whole for g in self.generations[-1:]))
    @rule()
    def earlier_leader_pushes(self) -> None:
        self.push(later=True)
        with pytest.raises(StorageLostError):
            self.storage.push(self.run, leader=("run", self.epoch - 1))

    @rule(after=st.integers(0, 2))
    def push_is_cut_off(self, after: int) -> None:
        left, write = [after], self.storage.write

        def failing(name: str, data: bytes) -> None:
            if not left[0]:
                raise OutputError("the cable is pulled")
            left[0] -= 1
            write(name, data)

        self.storage.write = failing  # type: ignore[method-assign]
        try:
            with pytest.raises(OutputError, match="cable"):
                self.storage.push(self.run, leader=("run", self.epoch))
        finally:
            del self.storage.write

    @precondition(lambda self: any(old.whole for old in self.generations))
    @rule(
        which=st.integers(0, 1),
        name=st.sampled_from([LATEST, "metrics.jsonl", MANIFEST]),
        how=DAMAGES,
        place=st.floats(0, 0.9),
    )
    def harm(self, which: int, name: str, how: str, place: float) -> None:
        whole = [old for old in self.generations if old.whole]  # twice the same bit is no harm
        old = whole[which % len(whole)]
        (folder,) = (self.there / "one").glob(f"{old.number:06d}-*/{MANIFEST}")
        path = folder.parent / name
        if not path.exists():
            return
        before = path.read_bytes()
        # A generation without a manifest is none; what a manifest tells people may change.
        _harm(path, "cut" if name == MANIFEST else how, place)
        changed = not path.exists() or path.read_bytes() != before
        old.whole = old.whole and not changed

    @rule()
    def pull(self) -> None:
        out = self.root / "pulled"
        shutil.rmtree(out, ignore_errors=True)
        whole = [old for old in self.generations if old.whole]
        if not whole:
            with pytest.raises(CheckpointError if self.generations else OutputError):
                self.storage.pull(out)
            assert not out.exists()
            return
        found, damage = self.storage.pull(out)
        newest = whole[-1]
        assert found.generation == newest.number
        assert (out / LATEST).read_bytes() == newest.content
        assert (out / "metrics.jsonl").read_bytes() == newest.content[::-1]
        assert len(damage) == sum(old.number > newest.number for old in self.generations)


@dataclass(frozen=True)
class Settings:
    """A run's configuration."""

    width: int = 3


class RunDirectoryMachine(_Machine):
    """Updates, checkpoints, ends without a word, damage and resumes."""

    @initialize()
    def begin(self) -> None:
        self.path, self.said = self.root / "run", list[str]()
        self.update, self.saved = 0, dict[str, int]()
        self.harmed = set[str]()
        self.directory = RunDirectory.create(self.path, Settings(), tensorboard=False)
        self.stack.callback(lambda: self.directory.close())

    def _state(self) -> dict[str, Any]:
        return {"update": self.update, "weights": np.full(8, self.update, np.float32)}

    @rule(rows=st.integers(1, 3))
    def train(self, rows: int) -> None:
        for _ in range(rows):
            self.update += 1
            self.directory.metrics.log(self.update, {"steps": float(self.update)})

    @rule()
    def save(self) -> None:
        self.directory.save(self._state())
        if "latest" in self.saved and "latest" not in self.harmed:
            self.saved["previous"] = self.saved["latest"]
            self.harmed.discard("previous")
        self.saved["latest"] = self.update
        self.harmed.discard("latest")

    @precondition(lambda self: self.saved)
    @rule(name=st.sampled_from(["latest", "previous"]), how=DAMAGES, place=st.floats(0, 0.9))
    def harm_and_resume(self, name: str, how: str, place: float) -> None:
        path = self.directory.checkpoint_path(name)
        if path.exists():
            _harm(path, how, place)
            self.harmed.add(name)
        self.resume()

    @rule()
    def resume(self) -> None:
        """The process ends without a word, and another goes on."""
        self.directory.close()
        self.directory = RunDirectory.resume(self.path, Settings(), tensorboard=False)
        self.said.clear()
        whole = [name for name in ("latest", "previous") if name in self.saved]
        whole = [name for name in whole if name not in self.harmed]
        if self.saved and not whole:
            with suppress(DistrlccError):
                assert self.directory.load(self.said.append) is None
                assert self.said
            self.begin_anew()
            return
        state = self.directory.load(self.said.append)
        if not self.saved:
            assert state is None
            assert "begins anew" in self.said[0]
            kept = 0
        else:
            assert state is not None
            kept = self.saved[whole[0]]
            assert state["update"] == kept
            assert (state["weights"] == kept).all()
            assert bool(self.said) == (whole[0] != "latest"), self.said
        self.update = kept
        self.directory.rewind(kept)
        rows = self.directory.metrics.path.read_text().splitlines()
        assert len(rows) == kept

    def begin_anew(self) -> None:
        self.directory.close()
        shutil.rmtree(self.path)
        self.update, self.saved, self.harmed = 0, {}, set()
        self.directory = RunDirectory.create(self.path, Settings(), tensorboard=False)


class AdmissionMachine(RuleBasedStateMachine):
    """Senders of some hosts say HELLO, prove their address or another's, repeat it and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission()
        self.open: dict[int, tuple[tuple[str, int], bool]] = {}  # address, and whether it is proven
        self.replies: dict[int, bytes | None] = {}
        self.cookies: dict[tuple[tuple[str, int], int], bytes] = {}

    @rule(
        host=st.integers(0, 5),
        number=st.integers(1, 90),
        cookie=st.sampled_from(["none", "own", "another's", "forged"]),
    )
    def hello(self, host: int, number: int, cookie: str) -> None:
        address, nonce = (f"10.0.0.{host}", 4000 + number), bytes(wire.NONCE_BYTES)
        said = {"none": bytes(wire.NONCE_BYTES), "forged": b"x" * wire.NONCE_BYTES}
        said["own"] = self.cookies.get((address, number), said["none"])
        others = [value for key, value in self.cookies.items() if key != (address, number)]
        said["another's"] = others[0] if others else said["none"]
        datagram = wire.encode_hello(wire.Hello(number, nonce, 1472, said[cookie]))
        reply, session = self.admission.on_datagram(datagram, address)
        assert reply is None or len(reply) < len(datagram)
        # A session has one sender, which gets the same answer again.
        if number in self.open:
            own = self.open[number][0] == address
            assert (reply, session) == (self.replies[number] if own else None, None)
            return
        assert reply is not None
        answer = wire.decode(reply)
        assert isinstance(answer, wire.Answer)
        # With many unproven ones open a newcomer proves its address, and no other's.
        proven = cookie == "own" and (address, number) in self.cookies
        if not proven and sum(not each for _, each in self.open.values()) >= MAX_UNPROVEN:
            assert (answer.retry, session) == (True, None)
            self.cookies[address, number] = answer.nonce
            return
        assert not answer.retry
        # Else it has a place, if one is free.
        of_host = sum(place[0] == address[0] for place, _ in self.open.values())
        full = len(self.open) >= MAX_SESSIONS or of_host >= MAX_HOST_SESSIONS
        assert full == bool(answer.refusal) == (session is None)
        if not full:
            self.open[number], self.replies[number] = (address, proven), reply

    @precondition(lambda self: self.open)
    @rule(place=st.floats(0, 0.99))
    def leave(self, place: float) -> None:
        number = [*self.open][int(place * len(self.open))]
        self.admission.leave(number)
        del self.open[number]

    @invariant()
    def it_adds_up(self) -> None:
        assert {n: s.address for n, s in self.admission.sessions.items()} == {
            number: address for number, (address, _) in self.open.items()
        }
        counts = self.admission.counts
        ends = ("accepted", "repeated", "retried", "refused", "stray")
        assert counts["hellos"] == sum(counts[end] for end in ends)


@pytest.mark.parametrize("count", [3, pytest.param(25, marks=pytest.mark.long)])
def test_a_receiver_admits_whom_the_model_admits(count: int) -> None:
    many = settings(
        max_examples=count, stateful_step_count=120, suppress_health_check=[*HealthCheck]
    )
    run_state_machine_as_test(AdmissionMachine, settings=many)


@pytest.mark.parametrize("machine", [StorageMachine, RunDirectoryMachine])
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.long)])
def test_what_comes_back_is_what_the_model_says(
    machine: type[RuleBasedStateMachine], count: int
) -> None:
    few = settings(
        max_examples=count,
        stateful_step_count=25,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=few)
