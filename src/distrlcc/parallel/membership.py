"""Who is in the group: heartbeats and one quorum per update, kept by torchft's lighthouse.

The lighthouse is one small server beside the launcher, so that it does not die with a trainer. A
quorum is asked of it directly (0.6 ms) and not through torchft's Manager (10 ms): the group's state
is a few vectors, which one broadcast heals.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.place import Place

HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 5.0
"""Whoever sent no heartbeat for this long has left."""
ABSENCE_SECONDS = 45.0
"""Whoever cannot reach the lighthouse for this long gives up."""
_STATIC_ABSENCE_SECONDS = 12.0
"""The same where nobody waits for anybody."""
PATIENCE_SECONDS = 600.0
"""How long the others wait for a member that lives but does not come, as one that scores."""
_CALL_SECONDS = 5.0


def _torchft() -> Any:
    os.environ.setdefault("RUST_LOG", "error")  # it logs every quorum otherwise
    try:
        from torchft import _torchft  # noqa: PLC0415  (only a group needs it, and it takes 0.5 s)
    except ImportError as error:
        raise ConfigError(
            f"training on several processes needs torchft ({error}): pip install 'torchft>=0.2'"
        ) from None
    return _torchft


@dataclass(frozen=True, order=True)
class Member:
    """One process of the group, as it described itself at a meeting."""

    slot: int
    """Its planned rank; it owns that share of the environments."""
    name: str
    """Unique among all processes that ever joined."""
    address: str
    pid: int
    step: int = 0
    """Updates behind its weights."""
    ready: bool = False
    """Whether it has a rollout to learn from."""
    broken: bool = False
    """Whether a collective of its present group failed."""
    builds: int = 0
    """Groups that it has built so far."""
    attempt: int = 0
    """How often its whole run was started again."""
    group: str = ""
    """Key of its present group; empty if it has none."""

    def __str__(self) -> str:
        return f"rank {self.slot} (process {self.pid} on {self.address})"


class Lighthouse:
    """The server; close it when the run is over."""

    def __init__(self, address: str, port: int = 0) -> None:
        """Listen on an address; port 0 takes any.

        Raises:
            GroupError: The port is taken.
        """
        try:
            self._server = _torchft().LighthouseServer(
                bind=f"{address}:{port}",
                min_replicas=1,
                join_timeout_ms=int(PATIENCE_SECONDS * 1e3),
                quorum_tick_ms=50,
                heartbeat_timeout_ms=int(SILENCE_SECONDS * 1e3),
            )
        except RuntimeError as error:
            raise GroupError(
                f"cannot listen on {address}:{port} ({error}); choose another --port",
                exit_code=2,
            ) from None
        self.port = int(self._server.address().rsplit(":", 1)[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()


class Membership:
    """A member's side: a heartbeat thread and the quorum at each meeting."""

    def __init__(self, place: Place, lighthouse: str, address: str) -> None:
        """Prepare; introduce oneself with :meth:`start`.

        Args:
            place: Where this process stands.
            lighthouse: ``address:port``.
            address: This process's own, for the others to read.
        """
        self._lighthouse, self._place, self._address = lighthouse, place, address
        self._absence = ABSENCE_SECONDS if place.elastic else _STATIC_ABSENCE_SECONDS
        self.name = f"{place.slot}-{uuid.uuid4().hex[:12]}"
        self._client: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Send a first heartbeat, so that nobody meets without this member, and go on sending.

        Raises:
            GroupError: The lighthouse is out of reach.
        """
        try:
            self._connect().heartbeat(self.name, timedelta(seconds=_CALL_SECONDS))
        except (TimeoutError, RuntimeError) as error:
            raise GroupError(
                f"{self._lighthouse}, which the master named, cannot be reached ({error}); open "
                "this port too"
            ) from None
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _CALL_SECONDS)

    def meet(
        self, step: int, *, ready: bool, broken: bool, builds: int, group: str
    ) -> list[Member]:
        """Wait for all living members and return them in order of rank.

        Of two with one slot the one that is further stays.

        Raises:
            GroupError: The lighthouse is out of reach, or another process has this slot.
        """
        data = {
            "slot": self._place.slot,
            "pid": os.getpid(),
            "ready": ready,
            "broken": broken,
            "builds": builds,
            "attempt": self._place.attempt,
            "group": group,
        }
        refused = 0.0
        while True:
            members = self._choose(self._quorum(step, data))
            if self.name in [member.name for member in members]:
                return members
            # It may be dead: who is started again comes before its silence is noticed.
            refused = refused or time.monotonic()
            if time.monotonic() - refused > SILENCE_SECONDS + 2.0:
                rival = next(member for member in members if member.slot == self._place.slot)
                raise GroupError(
                    f"{rival} has this place already; give another --node-index", exit_code=2
                )
            time.sleep(0.1)

    def _quorum(self, step: int, data: dict[str, Any]) -> list[Member]:
        """Wait for all living processes."""
        begin = reached = time.monotonic()
        while True:
            try:
                self._client = self._client or self._connect()
                quorum = self._client.quorum(
                    self.name,
                    timedelta(seconds=_CALL_SECONDS),
                    address=self._address,
                    store_address="",
                    step=step,
                    world_size=1,
                    shrink_only=False,
                    data=data,
                )
                return [
                    Member(name=p.replica_id, address=p.address, step=p.step, **p.data)
                    for p in quorum.participants
                ]
            except TimeoutError:
                # The others are late, or nobody answers; a heartbeat tells the two apart.
                with suppress(TimeoutError, RuntimeError):
                    self._connect().heartbeat(self.name, timedelta(seconds=2))
                    reached = time.monotonic()
            except RuntimeError:
                time.sleep(0.5)
            self._client = None
            if time.monotonic() - reached > self._absence:
                raise GroupError(self._no_answer(time.monotonic() - reached))
            if time.monotonic() - begin > PATIENCE_SECONDS + self._absence:
                raise GroupError("the other members did not come to the update's end; giving up")

    def _choose(self, present: list[Member]) -> list[Member]:
        """Return one member for each slot, of the newest attempt."""
        by_slot: dict[int, Member] = {}
        attempt = max(member.attempt for member in present)
        for member in present:
            if member.attempt < attempt:
                continue
            rival = by_slot.get(member.slot)
            if rival is None or (member.step, rival.name) > (rival.step, member.name):
                by_slot[member.slot] = member
        if self._place.attempt < attempt:
            raise GroupError("the run was started again without this process")
        return sorted(by_slot.values())

    def _connect(self) -> Any:
        return _torchft().LighthouseClient(
            f"http://{self._lighthouse}", timedelta(seconds=_CALL_SECONDS)
        )

    def _no_answer(self, seconds: float) -> str:
        place = self._place
        return (
            f"node 0, the master at {place.address}:{place.port}, has not answered for "
            f"{seconds:.0f} s; see whether it runs and is reachable"
        )

    def _beat(self) -> None:
        """Send heartbeats; end the process when nobody has heard them for too long.

        The main thread may by then wait in a call to a machine that is gone, where nothing else
        would end it.
        """
        client: Any = None
        heard = time.monotonic()
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                client = client or self._connect()
                client.heartbeat(self.name, timedelta(seconds=2))
                heard = time.monotonic()
            except (TimeoutError, RuntimeError):
                client = None  # a cut connection recovers later than a new one
                if time.monotonic() - heard > self._absence + 2 * _CALL_SECONDS:
                    line = self._no_answer(time.monotonic() - heard)
                    sys.stderr.write(f"distrlcc: error: {line}\n")
                    os._exit(GroupError.exit_code)
