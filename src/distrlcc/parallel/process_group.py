"""The process group: the one context that joins, agrees, exchanges and leaves.

Once per update the members form a quorum, without those that died, froze or were cut off and with
those that joined, and build the group anew if it changed. Each collective between has a short
limit; where one fails, `PeerLostError`, the update is done again with the next quorum.
"""

import hashlib
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from distrlcc.errors import ConfigError, DistrlccError, GroupError
from distrlcc.learn.learner import Spread, checked
from distrlcc.limits import limits, wait_until
from distrlcc.net.emulator.namespace import on_loopback
from distrlcc.parallel import store as at_master
from distrlcc.parallel.admission import handshake, receive
from distrlcc.parallel.all_reduce import AllReduce
from distrlcc.parallel.gate import Gate, TunnelStore
from distrlcc.parallel.interface import LOOPBACK, check_private, interface_towards
from distrlcc.parallel.membership import Member, Membership
from distrlcc.processes import let_threads_preempt
from distrlcc.runs.options import RankSpec

_GREATEST = 1e30  # square of a norm; a gradient with a greater one may still be finite
_FAILURES = 5  # groups that may fail to form one after the other

_GLOO_PATIENCE, _LEAST = 5, 1.0
"""How many times its limit gloo waits for a connection; the least that it is given, s."""

T = TypeVar("T")


@dataclass(frozen=True)
class Quorum:
    """The members' agreement."""

    left: tuple[Member, ...]
    joined: tuple[Member, ...]
    source: int  # rank of a member that has the newest weights
    anew: bool  # whether this is another group than before: its rank 0 may be another one, too
    behind: bool  # whether a member's weights are older, so that the source's must be broadcast
    ready: bool  # whether a member has a rollout to learn from


class PeerLostError(Exception):
    """A collective failed: agree again, then do again what was not committed."""


class RunEndedError(GroupError):
    """The others have finished."""


class ProcessGroup:
    """A member of a group; also the `distrlcc.learn.learner.Reducer` of its learner."""

    def __init__(self, spec: RankSpec, identity: Mapping[str, str], run: str = "") -> None:
        """Prepare to join in the context; all get slot 0's ``run``; ConfigError: device, route."""
        self.spec, self._identity, self.run = spec, identity, run
        self.sync_every = spec.sync_every
        self.device = checked_device(spec.device)
        self.interface = interface_towards(spec.address, spec.interface)
        if self.device.type == "cuda":
            check_private(self.interface, named=bool(spec.interface))
        self.rank, self.size, self.members = 0, 0, list[Member]()
        # See `distrlcc.runs.recorder.Leader`.
        self.leads, self.key, self.epoch = True, "", 0
        self.exchange_seconds = 0.0  # time spent in collectives since the start, s
        self._broken, self._builds, self._rounds, self._quorum = False, 0, 0, 0
        self._asked = 0.0
        self._gate: Gate | None = None
        self._all_reduce: Callable[[Tensor], Any] = dist.all_reduce
        self._buffer = self._given = torch.zeros(0)

    # Joining and leaving

    def __enter__(self) -> "ProcessGroup":
        # Both of torch's transports would otherwise take what the host's name resolves to.
        inside = interface_towards(LOOPBACK) if self.spec.gate else self.interface
        os.environ["GLOO_SOCKET_IFNAME"] = inside.name
        os.environ["NCCL_SOCKET_IFNAME"] = self.interface.name
        let_threads_preempt(True)
        self._store = at_master.connect(self.spec, self.spec.join_seconds)
        try:
            with at_master.master_needed(self.spec):
                self.run = handshake(self._store, self.spec, self._identity, self.run)
                if self.spec.gate:
                    host, port = at_master.reach(self.spec, "lighthouse", self.spec.join_seconds)
                    lighthouse = f"{host}:{port}"
                else:
                    lighthouse = receive(self._store, self.spec, "lighthouse").decode()
                self._membership = Membership(
                    self.spec,
                    lighthouse,
                    self.interface.address,
                    lambda: self._from_store(at_master.number_in, self.spec.attempt, "attempt"),
                )
                self._wait_for_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._tear_down()
        let_threads_preempt(False)
        if hasattr(self, "_membership"):
            self._membership.stop()

    def _wait_for_all(self) -> None:
        """Wait until every planned member is there; one that joins later does not wait."""
        spec, store, begun = self.spec, self._store, f"{self.spec.attempt}/begun"
        keys = [f"{spec.attempt}/here/{slot}" for slot in range(spec.size)]
        store.set(f"{spec.attempt}/here/{spec.slot}", "")
        if not wait_until(lambda: store.check([begun]) or store.check(keys), spec.join_seconds):
            late = [str(slot) for slot, key in enumerate(keys) if not store.check([key])]
            ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(late)}"
            line = f"{ranks} did not come within {spec.join_seconds:.0f} s"
            if not spec.elastic:
                raise GroupError(f"{line}; start it, or give a longer --join-timeout")
            warnings.warn(f"{line}; going on without, it may join later", stacklevel=2)
        store.set(begun, "")

    # Agreeing

    def agree(self, step: int, *, ready: bool, ends: bool = False) -> Quorum:
        """Wait for living members; rebuild a changed group; GroupError: a rank or master gone."""
        failures = 0
        while True:
            # Wait for all living members: which left and which joined since the last time?
            self._asked = time.clock_gettime(time.CLOCK_BOOTTIME)
            own = {"broken": self._broken, "builds": self._builds, "group": self.key}
            members = self._membership.agree(step, ready=ready, ends=ends, **own)
            before, now = ({m.name for m in some} for some in (self.members, members))
            left = tuple(member for member in self.members if member.name not in now)
            joined = tuple(member for member in members if member.name not in before)
            # May the run go on?
            if left and not self.spec.elastic:
                raise GroupError(f"{', '.join(map(str, left))} is gone")
            # Build the group anew unless all are in the same one and it is whole.
            quorum, groups = self._membership.quorum, Counter(member.group for member in members)
            anew = quorum != self._quorum or len(groups) > 1 or any(m.broken for m in members)
            self._quorum = quorum
            # Others may have come and gone while this member was frozen.
            if anew and self._from_store(at_master.has_ended, False, self.spec.attempt):
                raise RunEndedError("the run has ended; there is nothing to join")
            if anew:
                try:
                    self._build(members)
                except PeerLostError as error:  # one more was lost while building
                    failures += 1
                    if failures >= _FAILURES:
                        raise GroupError(
                            f"the group cannot be built though no rank is gone: {error}"
                        ) from None
                    continue
            self.members, self.size = members, len(members)
            # Whose weights are the newest? Of two groups that each went on alone the greater one's;
            # a newcomer does not know what was recorded.
            ranking = [
                (member.step, member.group != "", groups[member.group]) for member in members
            ]
            return Quorum(
                left=left,
                joined=joined if before else (),
                source=ranking.index(max(ranking)),
                anew=anew,
                behind=min(ranking)[0] < max(ranking)[0] or len(groups) > 1,
                ready=any(member.ready for member in members),
            )

    def _build(self, members: list[Member]) -> None:
        # Leave the old group, and name the new one: its key is like no other's, as builds count up.
        self._tear_down()
        self.key = ""
        self.rank = [member.name for member in members].index(self._membership.name)
        self.leads = self.rank == 0
        text = "/".join(f"{member.name}:{member.builds}" for member in members)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        with self._collective():
            if self._broken:
                self._store = at_master.connect(self.spec, limits().call)
            self._builds += 1
            if len(members) > 1:
                self._connect(key, len(members))
            # Rank 0 has a new epoch where it was not rank 0; see `distrlcc.runs.leadership`.
            if self.leads and not 0 < self.epoch == at_master.raise_to(self._store, self.epoch):
                self.epoch = self._membership.quorum
                at_master.raise_to(self._store, self.epoch)
        self._broken, self._rounds, self.key = False, 0, key

    def _connect(self, key: str, size: int) -> None:
        store, cuda = self._store, self.device.type == "cuda"
        if self.spec.gate and not cuda:
            self._gate = Gate(self.spec.gate)
            store = TunnelStore(store, self._gate)
        # Wait until all are here.
        shared, seconds = at_master.PrefixStore(key, store), self.spec.timeout_seconds
        limit = timedelta(seconds=seconds)
        shared.set(f"here/{self.rank}", "")
        shared.wait([f"here/{rank}" for rank in range(size)], limit)
        # Connect: gloo gives each member five times its limit, which is set right afterwards.
        shorter = timedelta(seconds=max(seconds / _GLOO_PATIENCE, min(seconds, _LEAST)))
        more = {"store": shared, "rank": self.rank, "world_size": size}
        if cuda:
            dist.init_process_group("nccl", timeout=limit, **more)
        else:
            on_loopback(dist.init_process_group, "gloo", timeout=shorter, **more)
            found = dist.distributed_c10d._get_default_group()._get_backend(self.device)
            gloo = getattr(found, "wrapped_pg", found)
            gloo._set_default_timeout(limit)
            self._all_reduce = AllReduce(gloo, self.rank, size)

    # Notes in the master's store, for launchers and for the next rank 0

    def note_record(self, update: int) -> None:
        """Note that an update's row of metrics is written; for rank 0."""
        key = f"{self.spec.attempt}/recorded"
        self._from_store(lambda store: store.set(key, str(update)), None)

    def note_end(self) -> None:
        """Note that the run has ended and is saved; for rank 0."""
        self._from_store(at_master.note_end, None, self.spec.attempt, self.epoch)

    def still_leads(self) -> bool:
        """Say whether rank 0 was not replaced while it was frozen, before it writes anything."""
        if not self.leads:
            return False
        # A clock that goes on while the machine is suspended.
        if time.clock_gettime(time.CLOCK_BOOTTIME) - self._asked < limits().silence / 2:
            return True  # it was not silent for long enough to be replaced; asking takes 1 ms
        # Cut off from the master, epochs in the folder and the storage tell.
        return self._from_store(at_master.raise_to, self.epoch, self.epoch) == self.epoch

    def _from_store(self, ask: Callable[..., T], otherwise: T, *words: Any) -> T:
        """Ask the master's store; one that is gone is seen at the next quorum."""
        with suppress(RuntimeError):
            return ask(self._store, *words)
        return otherwise

    def _tear_down(self) -> None:
        self._all_reduce = dist.all_reduce  # else the group's connections would stay open
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        # A group that failed to form leaves torch's count of groups raised, which would make the
        # next one's keys in the store differ from those of members that were not there.
        dist.distributed_c10d._world.group_count = 0

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Turn the failure of a collective into `PeerLostError`; count its time."""
        begin = time.perf_counter()
        try:
            yield
        except (RuntimeError, DistrlccError) as error:  # torch's DistError is a RuntimeError
            self._broken = True
            if self.device.type == "cpu":
                with suppress(RuntimeError):
                    self._tear_down()  # else who waits for this one's part waits in vain
            raise PeerLostError(str(error)) from None
        finally:
            self.exchange_seconds += time.perf_counter() - begin

    # Collectives: every member calls the same ones in the same order

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the members' sum of a small float64 array; all raise NotFiniteError alike."""
        if self.size == 1:
            return checked(values)
        tensor = torch.from_numpy(np.array(values, np.float64)).to(self.device)
        self._given = tensor.sum()
        with self._collective():
            self._all_reduce(tensor.view(-1))
            total = tensor.cpu().numpy()
        return checked(total)

    def mean_gradient(self, gradient: Tensor, weight: float) -> Spread | None:
        """Replace the flat gradient ``[P]`` by the members' weighted mean, in one exchange."""
        if self.size == 1:
            return None
        count, more = gradient.numel(), 3
        if self._buffer.numel() != count + more or self._buffer.device != gradient.device:
            self._buffer = torch.empty(count + more, device=gradient.device)
        square = min(float(gradient.square().sum()), _GREATEST)
        torch.mul(gradient, weight, out=self._buffer[:count])
        self._buffer[count:] = torch.tensor([weight, weight * square, float(weight > 0)])
        self._given = self._buffer.sum(dtype=torch.float64)  # finite ones overflow no double
        with self._collective():
            self._all_reduce(self._buffer)
        samples, squares, ranks = self._buffer[count:].tolist()
        samples = max(samples, 1e-9)
        torch.div(self._buffer[:count], samples, out=gradient)
        return Spread(squares / samples, ranks, samples)

    @property
    def gave_finite(self) -> bool:
        """Whether what this member gave to the last sum or mean was finite."""
        return bool(self._given.isfinite().all())

    def broadcast(self, payload: bytes, source: int) -> bytes:
        """Return the bytes that rank ``source`` gave; the others' are not looked at."""
        if self.size == 1:
            return payload
        size = torch.tensor([len(payload)], device=self.device)
        with self._collective():
            dist.broadcast(size, source)
            data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
            if self.rank == source:
                data = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(self.device)
            dist.broadcast(data, source)
        return data.cpu().numpy().tobytes()

    # The side channel: a count in the master's store, which is no collective

    def count_finished(self) -> None:
        """Count this member's rollout as finished."""
        if self.size > 1:
            self._rounds += 1
            self._add(1)

    def others_finished(self) -> int:
        """Return how many others have finished the rollout that this member is at."""
        return self._add(0) - self._rounds * self.size if self.size > 1 else 0

    def _add(self, amount: int) -> int:
        # Without the master no rank is cut short.
        return self._from_store(lambda store: int(store.add(f"{self.key}/rollouts", amount)), 0)


def checked_device(name: str) -> torch.device:
    """Return a device; raises ConfigError if this machine does not have it."""
    kind, _, number = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if int(number) >= count:  # torch.device keeps 8 bits of it
            have = f"has GPUs 0 to {count - 1}" if count else "has no GPU that torch can use"
            raise ConfigError(
                f"--gpu {number}: this machine {have}; give another index, or -1 for the CPU"
            )
    return torch.device(name)
