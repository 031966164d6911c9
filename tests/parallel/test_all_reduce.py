"""Sums over ranks: right, the same bits on all ranks and in both ways, in few messages."""

from __future__ import annotations

import queue
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distrlcc.parallel.all_reduce import AllReduce

_FOREVER = 2**62


class _Work:
    def __init__(self, wait: Any) -> None:
        self.wait = wait


class _Post:
    """What a gloo group's backend does, between threads; counts each rank's turns."""

    def __init__(self, size: int) -> None:
        self.boxes = {(a, b): queue.Queue[Tensor]() for a in range(size) for b in range(size)}
        self.received = [0] * size
        self.bytes = [0] * size

    def backend(self, rank: int) -> Any:
        post = self

        class Backend:
            def send(self, tensors: list[Tensor], to: int, tag: int) -> _Work:
                post.boxes[rank, to].put(tensors[0].clone())
                return _Work(lambda: None)

            def recv(self, tensors: list[Tensor], source: int, tag: int) -> _Work:
                def wait() -> None:
                    tensors[0].copy_(post.boxes[source, rank].get(timeout=30))
                    post.received[rank] += 1
                    post.bytes[rank] += tensors[0].numel() * tensors[0].element_size()

                return _Work(wait)

        return Backend()


def _sums(vectors: list[Tensor], halved_from: int) -> tuple[list[Tensor], _Post]:
    size = len(vectors)
    post, results = _Post(size), [vector.clone() for vector in vectors]

    def run(rank: int) -> None:
        reduce = AllReduce(post.backend(rank), rank, size)
        post.received[rank] = post.bytes[rank] = 0
        reduce.halved_from = halved_from
        reduce(results[rank])

    threads = [Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results, post


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 11, 16, 33])
def test_all_ranks_get_the_same_bits_in_few_messages(size: int) -> None:
    rng = np.random.default_rng(size)
    for kind, values in (("float32", 1037), ("float64", 64)):
        vectors = [torch.from_numpy(rng.normal(size=values).astype(kind)) for _ in range(size)]
        exact = np.sum([vector.numpy().astype(np.float64) for vector in vectors], axis=0)
        doubled, post = _sums(vectors, _FOREVER)
        halved, parts = _sums(vectors, 0)
        for found in (*doubled, *halved):
            assert torch.equal(found, doubled[0])
        assert np.allclose(doubled[0].numpy(), exact, rtol=0, atol=1e-6 * np.abs(exact).max())
        # One message after the other: log2, and two more where it is no power of two.
        levels, rest = size.bit_length() - 1, int(size & (size - 1) > 0)
        assert max(post.received) <= levels + rest
        assert max(parts.received) <= 2 * levels + rest
        # Halving moves less than twice the vector; beside it goes a partner's.
        whole = vectors[0].numel() * vectors[0].element_size()
        assert max(parts.bytes) <= (2 + rest) * whole
        assert max(post.bytes) == (levels + rest) * whole


def test_the_way_is_chosen_alike_by_what_was_measured() -> None:
    post, found = _Post(8), dict[int, int]()

    def run(rank: int) -> None:
        found[rank] = AllReduce(post.backend(rank), rank, 8).halved_from

    threads = [Thread(target=run, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(found.values())) == 1
    assert found[0] >= 4096
