"""Sums over ranks in as few messages as there can be, one after the other.

The gradients of small networks are bound by the number of messages and not by their size. The ring
of gloo sends 2 (n - 1) of them in a row, each with 1/n of the vector. Recursive doubling takes log2
n, each with the whole vector. Recursive halving and doubling (Rabenseifner,
https://doi.org/10.1007/978-3-540-24685-5_1) takes twice as many, of ever smaller parts, and is
quicker for more bytes. Either takes two more if n is no power of two. Neighbouring ranks exchange
first, and in halving the greatest parts: they are often on one machine.

Both add the same numbers in the same order, ``((0 + 1) + (2 + 3)) + …``. So all ranks get the same
bits, and the clock may choose between them.
"""

import time
from typing import Any

import torch
from torch import Tensor

_PROBES = 4
_PROBE_VALUES = 1, 16384
"""float32 values of the exchanges whose times tell a message's cost from a byte's."""
_MEASURED_FROM = 8  # ranks from which on halving can be the quicker way
_LEAST_HALVED = 4096  # bytes below which nothing is halved


class AllReduce:
    """Sums over the ranks of a gloo group."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        """Take the group's backend; all ranks make this at once; raises RuntimeError."""
        self._backend, self.rank, self.size = backend, rank, size
        self._power = 1 << (size.bit_length() - 1)
        self._spare = torch.zeros(0)
        self.halved_from = 2**62  # bytes of a vector from which on it is halved
        if size >= _MEASURED_FROM:
            self._measure()

    def _measure(self) -> None:
        """Find from how many bytes on halving is quicker, by the sum of all ranks' times."""
        tiny, large = (min(self._probe(k) for _ in range(_PROBES)) for k in _PROBE_VALUES)
        times = torch.tensor([tiny, max(large - tiny, 0.0)], dtype=torch.float64)
        self(times)
        message, bytes_ = times.tolist()
        levels = self._power.bit_length() - 1
        # Doubling takes levels * (message + whole), halving 2 * levels * message + 2 * whole.
        per_byte = bytes_ / levels / (4 * _PROBE_VALUES[1])
        self.halved_from = int(max(message / max(per_byte * (levels - 2), 1e-15), _LEAST_HALVED))

    def _probe(self, values: int) -> float:
        vector = torch.zeros(values)
        begin = time.perf_counter()
        self(vector)
        return time.perf_counter() - begin

    def __call__(self, vector: Tensor) -> None:
        """Replace ranks' equally long vectors by their sum; RuntimeError: one is gone or late."""
        rank, power = self.rank, self._power
        if self._spare.numel() < vector.numel() or self._spare.dtype != vector.dtype:
            self._spare = torch.empty_like(vector)
        other = self._spare[: vector.numel()]
        # Ranks beyond the power of two give theirs to a partner, and receive the sum at last.
        if rank >= power:
            self._send(vector, rank - power).wait()
            self._receive(vector, rank - power).wait()
            return
        beyond = rank + power < self.size
        if beyond:
            self._receive(other, rank + power).wait()
            vector.add_(other)
        if vector.numel() * vector.element_size() < self.halved_from:
            self._double(vector, other)
        else:
            self._halve(vector, other)
        if beyond:
            self._send(vector, rank + power).wait()

    def _double(self, vector: Tensor, other: Tensor) -> None:
        distance = 1
        while distance < self._power:
            self._swap(vector, other, self.rank ^ distance)
            vector.add_(other)
            distance *= 2

    def _halve(self, vector: Tensor, other: Tensor) -> None:
        parts, whole, distance = [], slice(0, vector.numel()), 1
        # Keep the sum of an ever smaller part,
        while distance < self._power:
            middle = (whole.start + whole.stop) // 2
            halves = slice(whole.start, middle), slice(middle, whole.stop)
            own, given = halves if not self.rank & distance else halves[::-1]
            self._swap(vector[given], other[own], self.rank ^ distance)
            vector[own].add_(other[own])
            parts.append((self.rank ^ distance, own, given))
            whole, distance = own, 2 * distance
        # and collect the other parts.
        for partner, own, given in reversed(parts):
            self._swap(vector[own], vector[given], partner)

    def _swap(self, given: Tensor, received: Tensor, partner: int) -> None:
        coming, going = self._receive(received, partner), self._send(given, partner)
        coming.wait()
        going.wait()

    def _send(self, vector: Tensor, rank: int) -> Any:
        return self._backend.send([vector], rank, 0)

    def _receive(self, vector: Tensor, rank: int) -> Any:
        return self._backend.recv([vector], rank, 0)
