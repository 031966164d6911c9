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
import struct
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME_BYTES = 32
"""Process and descriptor of who created the memory, and a token that stands in it."""
_NAME = struct.Struct("!QQ16s")
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


class Memory:
    """The creator's hold on memory for some processes; it ends with the last who has opened it."""

    def __init__(self, size: int) -> None:
        """Create memory for ``size`` processes.

        Raises:
            OSError: That cannot be here.
        """
        if platform.machine() not in _ORDERED or size > MOST_PROCESSES:
            raise OSError(0, "members exchange by sockets")
        token = secrets.token_bytes(16)
        # It has no name in any folder, so nothing is left of it when its processes are killed.
        self._file = os.memfd_create("distrlcc-sum")
        try:
            # Room is taken at once: to write where there is none would kill the process.
            os.posix_fallocate(self._file, 0, _bytes(size))
            os.pwrite(self._file, token, 0)
        except OSError:
            self.close()
            raise
        self.name = _NAME.pack(os.getpid(), self._file, token)
        """How the others find it."""

    def close(self) -> None:
        """Let go of it, once all have opened it."""
        os.close(self._file)


def _open(name: bytes) -> int:
    """Open the memory that a process of this machine has created."""
    pid, number, token = _NAME.unpack(name)
    file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    if os.pread(file, 16, 0) != token:  # another container's process has that number here
        os.close(file)
        raise OSError(0, "the memory is another one")
    return file


def _bytes(size: int) -> int:
    return (size + 2) * _LINE * 8 + 2 * size * SLOT_BYTES


class SharedSum:
    """One process's hold on the memory."""

    def __init__(self, name: bytes, rank: int, pids: list[int], seconds: float) -> None:
        """Open the memory.

        Args:
            name: `Memory.name`.
            rank: This process's.
            pids: All members' processes, by rank.
            seconds: Time limit of an exchange, s.

        Raises:
            OSError: There is no such memory here.
        """
        self._rank, self._size, self._seconds = rank, len(pids), seconds
        self._turn = self._done = 0
        file = _open(name)
        try:
            memory = mmap.mmap(file, _bytes(self._size))  # ends with its last view
        finally:
            os.close(file)
        # A line for the token, one for each counter, one for the word of who gives up; then slots.
        numbers = np.frombuffer(memory, np.int64, (self._size + 1) * _LINE, 8 * _LINE)
        self._counters, self._given_up = numbers[:-_LINE:_LINE], numbers[-_LINE:]
        self._slots = np.frombuffer(memory, np.uint8, offset=8 * (self._size + 2) * _LINE).reshape(
            2, self._size, SLOT_BYTES
        )
        self._others = [
            handle for place, pid in enumerate(pids) if place != rank for handle in _handles(pid)
        ]
        self._ends = select.poll()
        for handle in self._others:
            self._ends.register(handle, select.POLLIN)

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
        self._done = self._turn
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
            self._check_given_up()
            if now - begin > self._seconds:
                raise SharedSumError(f"a member did not exchange within {self._seconds:g} s")
            if now - looked > _LOOK_SECONDS:
                looked = now
                if self._ends.poll(0):
                    raise SharedSumError("a member's process has ended")
            time.sleep(_SLEEP_SECONDS)
        self._check_given_up()  # who did will do this exchange again

    def _check_given_up(self) -> None:
        """Refuse an exchange that a member will not finish, or has not."""
        if 0 < self._given_up[0] <= self._turn:
            raise SharedSumError("a member has given the exchange up")

    def give_up(self) -> None:
        """Let nobody wait for this process, from the exchange on that it did not finish."""
        before, mine = int(self._given_up[0]), self._done + 1
        self._given_up[0] = min(before or mine, mine)

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
