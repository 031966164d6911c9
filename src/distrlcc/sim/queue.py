"""Queues of a bottleneck, with mahimahi's rules: packets that are in transit no longer count."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Packet:
    """A packet at the bottleneck."""

    size: int
    """Bytes on the wire."""
    arrival: int
    """When it reached the queue."""
    flow: int = 0
    seq: int = 0


class Queue(Protocol):
    """Holds packets between arrival and transmission."""

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival; return the packets that are dropped for it."""

    def pop(self, *, now: int) -> Packet | None:
        """Give the next packet to transmit at a time, or None."""

    def __len__(self) -> int:
        """Count the packets held."""


class Limited:
    """Packets in order of arrival, and whether more fit; without limits, all do."""

    def __init__(self, packets: int | None = None, bytes_: int | None = None) -> None:
        """Start empty, with limits in packets and bytes; None is no limit."""
        self._packets: deque[Packet] = deque()
        self._bytes = 0
        self._packet_limit = packets
        self._byte_limit = bytes_

    def _fits(self, packets: int, size: int) -> bool:
        return (self._packet_limit is None or packets <= self._packet_limit) and (
            self._byte_limit is None or size <= self._byte_limit
        )

    def _add(self, packet: Packet) -> None:
        self._packets.append(packet)
        self._bytes += packet.size

    def _take(self) -> Packet | None:
        if not self._packets:
            return None
        packet = self._packets.popleft()
        self._bytes -= packet.size
        return packet

    def pop(self, *, now: int) -> Packet | None:
        """Give the oldest packet, or None; the time does not matter."""
        return self._take()

    def __len__(self) -> int:
        return len(self._packets)


class DropTail(Limited):
    """Refuses an arrival that does not fit; without limits, infinite."""

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival, or drop it."""
        if not self._fits(len(self) + 1, self._bytes + packet.size):
            return [packet]
        self._add(packet)
        return []


class DropHead(Limited):
    """Takes every arrival and drops the oldest packets until the rest fits."""

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival, dropping from the head."""
        self._add(packet)
        dropped = []
        while not self._fits(len(self), self._bytes):
            oldest = self._take()
            assert oldest is not None
            dropped.append(oldest)
        return dropped
