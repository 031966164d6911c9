"""Membership of the group: heartbeats and one quorum per update, kept by torchft's lighthouse.

That server is beside the launcher, so that it does not die with a rank. Members ask it directly
(0.6 ms) and not through torchft's Manager (10 ms): one broadcast restores the group's state.
"""

import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import msgspec

from distrlcc.errors import GroupError, NoGroupError
from distrlcc.extras import missing
from distrlcc.limits import limits
from distrlcc.net.emulator.namespace import on_loopback
from distrlcc.runs.options import RankSpec

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Name = Annotated[str, msgspec.Meta(max_length=128)]


def _torchft() -> Any:
    os.environ.setdefault("RUST_LOG", "error")  # it logs every quorum otherwise
    try:
        from torchft import _torchft  # noqa: PLC0415  (only a group needs it, and it takes 0.5 s)
    except ImportError as error:
        why = f"cannot be used ({error}), as training on several processes must"
        raise missing("torchft", why) from None
    return _torchft


@dataclass(frozen=True, order=True)
class Member:
    """One process of the group, as it described itself for a quorum."""

    slot: _Count  # its planned rank; it owns that share of the environments
    name: _Name  # unique among all processes that ever joined
    address: _Name
    pid: _Count
    step: _Count = 0  # updates behind its weights
    ready: bool = False  # whether it has a rollout to learn from
    broken: bool = False  # whether a collective of its present group failed
    builds: _Count = 0  # groups that it has built so far
    attempt: _Count = 0  # how often its whole run was started again
    ends: bool = False  # whether the run has ended for it, and is to be saved
    group: _Name = ""  # key of its present group; empty if it has none

    def __str__(self) -> str:
        return f"rank {self.slot} (process {self.pid} on {self.address})"


def serve_lighthouse(address: str) -> Any:
    """Return torchft's server, which listens on any port of an address."""
    return _torchft().LighthouseServer(
        bind=f"{address}:0",
        min_replicas=1,
        join_timeout_ms=int(limits().patience * 1e3),
        quorum_tick_ms=50,
        heartbeat_timeout_ms=int(limits().silence * 1e3),
    )


class Membership:
    """A member's side: a heartbeat thread and its quorums."""

    def __init__(
        self, spec: RankSpec, lighthouse: str, address: str, attempt: Callable[[], int]
    ) -> None:
        """Join at ``lighthouse`` (address:port) under this process's own address.

        ``attempt`` asks the master for the newest one, which no member is believed to know. A first
        heartbeat goes out at once, so that no quorum forms without this member. Raises GroupError
        if the lighthouse is out of reach.
        """
        self._lighthouse, self._spec, self._address = lighthouse, spec, address
        self._attempt = attempt
        self._odd = set[str]()  # members that say of themselves what cannot be
        # Where the group is not elastic, the others have given this process up by then.
        self._absence = limits().absence if spec.elastic else 2 * limits().silence
        self.name = f"{spec.slot}-{uuid.uuid4().hex[:12]}"
        self.quorum = 0
        """Number of the last quorum, from 1: it grows whenever members leave or join."""
        self._client: Any = None
        self._unheard_since = 0.0  # 0 while the lighthouse hears the heartbeats
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        try:
            self._connect().heartbeat(self.name, timedelta(seconds=limits().call))
        except (TimeoutError, RuntimeError) as error:
            raise GroupError(
                f"the lighthouse of the master at {spec.address}:{spec.port} cannot be reached "
                f"({error})"
            ) from None
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join(2 * limits().call)

    def agree(self, step: int, **state: Any) -> list[Member]:
        """Wait for all living members; return them by rank, of one slot's the one that is further.

        ``state`` has more of this `Member`. GroupError: no lighthouse, or another has this slot.
        """
        own = {"slot": self._spec.slot, "pid": os.getpid(), "attempt": self._spec.attempt, **state}
        refused = 0.0
        while True:
            members = self._choose(self._quorum(step, own))
            if self.name in [member.name for member in members]:
                return members
            # The rival may be dead: this process, its successor, is here before that is noticed.
            refused = refused or time.monotonic()
            if time.monotonic() - refused > 1.5 * limits().silence:
                rival = next(member for member in members if member.slot == self._spec.slot)
                raise NoGroupError(f"{rival} has this place already; give another --node-index")
            time.sleep(limits().tick)

    def _quorum(self, step: int, data: dict[str, Any]) -> list[Member]:
        begin = time.monotonic()
        # Longer than a silence: a member that gave up asking when another counts as silent would
        # miss the quorum, in which the others then wait for it.
        limit = timedelta(seconds=2 * limits().silence)
        while True:
            # Ask; the answer comes once all living processes have asked.
            try:
                self._client = self._client or self._connect()
                answer = self._client.quorum(
                    self.name,
                    limit,
                    address=self._address,
                    store_address="",
                    step=step,
                    world_size=1,
                    shrink_only=False,
                    data=data,
                )
                self.quorum = int(answer.quorum_id) + 1
                found = [self._read(participant) for participant in answer.participants]
                return [member for member in found if member is not None]
            except TimeoutError:
                pass  # others are late, or the server is gone: the heartbeats show which
            except RuntimeError:
                time.sleep(limits().heartbeat)
            # Ask again over a new connection, but not forever.
            self._client = None
            if self._unheard_seconds() > self._absence:
                raise GroupError(self._no_answer())
            if time.monotonic() - begin > limits().patience + self._absence:
                raise GroupError("the other members did not reach the update's end; giving up")

    def _read(self, participant: Any) -> Member | None:
        """Return what a participant says of itself; None if that cannot be."""
        try:
            p, name = participant, participant.replica_id
            said = {**p.data, "name": name, "address": p.address, "step": p.step}
            return msgspec.convert(said, Member)
        except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
            if name not in self._odd:
                self._odd.add(name)
                line = f"{name[:64]!r} sent an invalid membership record ({error!s:.200})"
                warnings.warn(f"{line}; it is left out", stacklevel=2)
            return None

    def _choose(self, present: list[Member]) -> list[Member]:
        """Return one member for each slot, of the newest attempt."""
        own = self._spec.attempt
        attempt = max([own, *(member.attempt for member in present)])
        if own < attempt:
            attempt = max(own, min(attempt, self._attempt()))  # a member may say anything
        if own < attempt:
            raise GroupError("the run was started again without this process")
        # Of two that are as far, the one whose name comes first stays.
        ranked = sorted(present, key=lambda m: (-m.step, m.name), reverse=True)
        return sorted({m.slot: m for m in ranked if m.attempt == attempt}.values())

    def _connect(self) -> Any:
        limit = timedelta(seconds=limits().call)
        where = f"http://{self._lighthouse}"
        return on_loopback(_torchft().LighthouseClient, where, limit)

    def _unheard_seconds(self) -> float:
        since = self._unheard_since
        return time.monotonic() - since if since else 0.0

    def _no_answer(self) -> str:
        spec = self._spec
        return (
            f"node 0, the master at {spec.address}:{spec.port}, has not answered for "
            f"{self._unheard_seconds():.0f} s; see whether it runs and is reachable"
        )

    def _beat(self) -> None:
        """Send heartbeats; end the process, stuck in a call or not, if none is heard for long."""
        client: Any = None
        # One that is lost is sent again before its sender counts as silent.
        limit = timedelta(seconds=limits().silence / 2)
        while not self._stop.wait(limits().heartbeat):
            try:
                client = client or self._connect()
                client.heartbeat(self.name, limit)
                self._unheard_since = 0.0
            except (TimeoutError, RuntimeError):
                client = None  # a cut connection recovers later than a new one
                # Time for which this process itself was frozen does not count.
                self._unheard_since = self._unheard_since or time.monotonic()
                if self._unheard_seconds() > self._absence + 2 * limits().call:
                    sys.stderr.write(f"distrlcc: error: {self._no_answer()}\n")
                    os._exit(GroupError.exit_code)
