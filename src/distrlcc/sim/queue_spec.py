"""A queue's specification: ``droptail:packets=100``, ``codel:packets=1000,target=5,interval=100``.

| kind | parameters (limits: at least one of packets, bytes) |
|---|---|
| `infinite` | none |
| `droptail`, `drophead` | limits |
| `codel` | limits; `target` (5), `interval` (100), ms |
| `pie` | limits; `qdelay_ref` (15), `max_burst` (150), ms |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from distrlcc.errors import ConfigError, unknown_name
from distrlcc.sim.active_queue import PIE, CoDel
from distrlcc.sim.queue import DropHead, DropTail, Packet, Queue
from distrlcc.types import PACKET_BYTES

_LIMITS = ("packets", "bytes")
_TIMES = {"codel": {"target": 5, "interval": 100}, "pie": {"qdelay_ref": 15, "max_burst": 150}}
_PIE_UPDATE_MS = 15
_MAXIMUM = 10**12
KINDS = ("droptail", "drophead", "codel", "pie", "infinite")


@dataclass(frozen=True)
class QueueSpec:
    """Which queue, and its parameters."""

    kind: str = "infinite"
    """One of `KINDS`."""
    packets: int | None = None
    """Limit in packets; None: none."""
    bytes: int | None = None
    """Limit in bytes, a packet counting its 4 bytes of TUN header; None: none."""
    times_ms: tuple[tuple[str, int], ...] = ()
    """The other parameters' names and values, ms."""

    @property
    def arguments(self) -> str:
        """Return the parameters as mahimahi's ``--uplink-queue-args`` takes them."""
        limits = [("bytes", self.bytes), ("packets", self.packets)]
        return ", ".join(
            f"{name}={value}" for name, value in (*limits, *self.times_ms) if value is not None
        )

    def build(
        self,
        *,
        unit: int,
        generator: random.Random,
        on_drop: Callable[[int, Packet], None] | None = None,
    ) -> Queue:
        """Make an empty queue.

        Args:
            unit: One millisecond in the link's unit of time.
            generator: Draws PIE's lottery.
            on_drop: Told the time and the packet of every drop that is not an arrival's.
        """
        times = {name: value * unit for name, value in self.times_ms}
        if self.kind == "drophead":
            return DropHead(self.packets, self.bytes)
        if self.kind == "codel":
            return CoDel(times["target"], times["interval"], self.packets, self.bytes, on_drop)
        if self.kind == "pie":
            return PIE(
                times["qdelay_ref"], times["max_burst"], _PIE_UPDATE_MS * unit, 1000 * unit,
                generator, self.packets, self.bytes,
            )  # fmt: skip
        return DropTail(self.packets, self.bytes)


def parse_queue(text: str) -> QueueSpec:
    """Read a specification.

    Raises:
        ConfigError: Its kind or a parameter does not exist or fit.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise unknown_name("queue", kind, KINDS)
    times = dict(_TIMES.get(kind, {}))
    names = () if kind == "infinite" else (*_LIMITS, *times)
    given: dict[str, int] = {}
    for part in rest.split(",") if rest else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in names:
            expected = f"expected {', '.join(names)}" if names else "it takes none"
            raise ConfigError(f"queue {text!r}: no parameter {name!r}; {expected}")
        if name in given:
            raise ConfigError(f"queue {text!r}: {name} is given twice")
        if not (value.isascii() and value.isdigit() and 1 <= int(value[:20]) <= _MAXIMUM):
            raise ConfigError(
                f"queue {text!r}: {name} is {value!r}; expected a whole number of 1 or more"
            )
        given[name] = int(value)
    if names and not any(limit in given for limit in _LIMITS):
        raise ConfigError(
            f"queue {text!r} has no limit; say {kind}:packets=100 or {kind}:bytes=150000, "
            "or infinite"
        )
    if given.get("bytes", PACKET_BYTES) < PACKET_BYTES:
        raise ConfigError(
            f"queue {text!r}: bytes is {given['bytes']}; expected {PACKET_BYTES} or more, "
            "else no full packet fits"
        )
    return QueueSpec(
        kind,
        given.get("packets"),
        given.get("bytes"),
        tuple((name, given.get(name, default)) for name, default in times.items()),
    )
