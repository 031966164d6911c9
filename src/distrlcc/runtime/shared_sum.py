"""Sums of vectors over processes on one machine, through memory that they share.

A socket costs an exchange several changes of threads (0.4 ms on two cores), this costs some
microseconds and a wait for the slowest. Each process writes its vector into a slot of its own, says
so by a counter, waits for the others' counters and adds up all slots in order of rank, so that all
have the same bits. Two sets of slots take turns: when all have begun an exchange, the last one's
slots have been read.

What one process writes another sees in the same order on x86 alone; on other processors, and
between machines, members exchange by sockets.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path("/dev/shm")
NAME_BYTES = 16
SLOT_BYTES = 1 << 18
"""Largest vector, bytes: beyond, a ring over sockets moves less."""
MOST_PROCESSES = 16
"""As each adds up all slots."""
_LINE = 8
"""int64 values in a cache line: a counter has one for itself."""
_SPIN_SECONDS = 1e-3
_SLEEP_SECONDS = 5e-5
_LOOK_SECONDS = 0.02
_ORDERED = ("x86_64", "AMD64")


class SharedSumError(RuntimeError):
    """A member is gone, late or has given up."""


def create(size: int) -> bytes:
    """Create memory for ``size`` processes; return its name, or nothing where that cannot be."""
    if platform.machine() not in _ORDERED or size > MOST_PROCESSES:
        return b""
    name = secrets.token_bytes(NAME_BYTES)
    try:
        file = os.open(_path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return b""
    try:
        # Room is taken at once: to write where there is none would kill the process.
        os.posix_fallocate(file, 0, _bytes(size))
    except OSError:
        remove(name)
        return b""
    finally:
        os.close(file)
    return name


def remove(name: bytes) -> None:
    """Remove the name; who has opened the memory keeps it."""
    with suppress(OSError):
        _path(name).unlink()


def _path(name: bytes) -> Path:
    return FOLDER / f"distrlcc-{name.hex()}"


def _bytes(size: int) -> int:
    return (size + 1) * _LINE * 8 + 2 * size * SLOT_BYTES


class SharedSum:
    """One process's hold on the memory."""

    def __init__(self, name: bytes, rank: int, pids: list[int], seconds: float) -> None:
        """Open the memory.

        Args:
            name: As `create` returned it.
            rank: This process's.
            pids: All members' processes, by rank.
            seconds: Time limit of an exchange, s.

        Raises:
            OSError: There is no such memory here.
        """
        self._rank, self._size, self._seconds = rank, len(pids), seconds
        self._turn = 0
        file = os.open(_path(name), os.O_RDWR)
        try:
            memory = mmap.mmap(file, _bytes(self._size))  # ends with its last view
        finally:
            os.close(file)
        lines = (self._size + 1) * _LINE
        numbers = np.frombuffer(memory, np.int64, lines)
        self._counters, self._given_up = numbers[:-_LINE:_LINE], numbers[-_LINE:]
        self._slots = np.frombuffer(memory, np.uint8, offset=8 * lines).reshape(
            2, self._size, SLOT_BYTES
        )
        self._others = [
            handle for place, pid in enumerate(pids) if place != rank
            for handle in _handles(pid)
        ]  # fmt: skip

    def sum(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Return the members' sum of a vector ``[P]`` of the same type and size everywhere.

        Args:
            vector: At most `SLOT_BYTES`.

        Raises:
            SharedSumError: Not all have given theirs in time.
        """
        self._turn += 1
        slots = self._slots[self._turn % 2, :, : vector.nbytes].view(vector.dtype)
        slots[self._rank] = vector
        self._counters[self._rank] = self._turn
        self._wait()
        total: NDArray[Any] = slots.sum(axis=0, dtype=vector.dtype)
        return total

    def _wait(self) -> None:
        """Wait until all have written."""
        counters, turn = self._counters, self._turn
        begin = time.perf_counter()
        while counters.min() < turn:
            if time.perf_counter() - begin > _SPIN_SECONDS:
                break
            os.sched_yield()
        looked = 0.0
        while counters.min() < turn:
            now = time.perf_counter()
            if self._given_up[0]:
                raise SharedSumError("a member has given the exchange up")
            if now - begin > self._seconds:
                raise SharedSumError(f"a member did not exchange within {self._seconds:g} s")
            if now - looked > _LOOK_SECONDS:
                looked = now
                if self._others and select.select(self._others, [], [], 0.0)[0]:
                    raise SharedSumError("a member's process has ended")
            time.sleep(_SLEEP_SECONDS)

    def give_up(self) -> None:
        """Let nobody wait for this process any more."""
        self._given_up[0] = 1

    def close(self) -> None:
        """Let go of it, for good."""
        self.give_up()
        for handle in self._others:
            os.close(handle)
        self._others = []


def _handles(pid: int) -> list[int]:
    """Return what becomes readable when a process ends, if it can be seen from here."""
    try:
        return [os.pidfd_open(pid)]
    except OSError:
        return []
