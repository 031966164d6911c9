"""Which processes become a trainer's workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from distrlcc.actors.admission import admit, join
from distrlcc.errors import GroupError
from distrlcc.parallel.store import Master
from distrlcc.runs.options import RankSpec

SAME = {"distrlcc": "any"}


@pytest.fixture
def specs() -> Iterator[list[RankSpec]]:
    """Serve the store of a run with two workers; return the specs of its slots."""
    master = Master("127.0.0.1", 0, lighthouse=False)
    master.begin(0)
    yield [
        RankSpec("127.0.0.1", master.port, slot, 3, join_seconds=20.0, learners=1)
        for slot in range(3)
    ]
    master.close()


@pytest.mark.filterwarnings("ignore:waiting at")
def test_of_two_processes_that_come_as_one_worker_one_is_admitted(specs: list[RankSpec]) -> None:
    with ThreadPoolExecutor(4) as threads:
        trainer = threads.submit(admit, specs[0], SAME)
        twice = [threads.submit(join, specs[1], SAME) for _ in range(2)]
        time.sleep(1.0)  # so that the run does not begin without one of them
        other = threads.submit(join, specs[2], SAME)
    assert [worker.index for worker in trainer.result().workers] == [0, 1]
    assert other.result().rank == 2
    (admitted,) = (future for future in twice if future.exception() is None)
    assert admitted.result().rank == 1
    twice.remove(admitted)
    with pytest.raises(GroupError, match=r"has begun|give each machine its own --node-index"):
        twice[0].result()
