"""Whatever befalls ranks, and whenever: one history of a run, each row once, and an end."""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import greenlet
import pytest

from distrlcc.limits import limits
from distrlcc.parallel.membership import _torchft, serve_lighthouse
from distrlcc.runs.recorder import Recorder
from tests.parallel.simulation import World, simulated, trial

FAULTS = int(os.environ.get("DISTRLCC_FAULTS", "20000"))
"""As many befall the ranks in a long run."""


def _explore(faults: int, first: int) -> None:
    """Make trials from a seed on until so many faults have befallen the ranks."""
    found, seed, updates, begin = Counter[str](), first, 0, time.monotonic()
    with simulated():
        while sum(found.values()) < faults:
            one = trial(seed)
            found, updates, seed = found + one.faults, updates + one.updates, seed + 1
    print(  # noqa: T201
        f"{seed - first} runs, {sum(found.values())} faults in {time.monotonic() - begin:.0f} s, "
        f"{updates} updates: {dict(sorted(found.items()))}"
    )


def test_a_thousand_faults_two_at_a_time() -> None:
    _explore(1000, 0)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_very_many_faults() -> None:
    _explore(FAULTS, 1_000_000)


def test_a_rank_that_was_frozen_waits_for_the_others_no_longer_than_told() -> None:
    with simulated():
        assert trial(9_001_556).updates == 1


def test_a_seed_replays_a_trial() -> None:
    with simulated():
        assert trial(7) == trial(7) != trial(8)


SCRIPTS = {
    "two": [(0.0, "a", 1), (0.1, "b", 1), (0.3, "b", 1), (0.4, "a", 1)],
    "one falls silent": [(0.0, "a", 1), (0.1, "b", 1), (0.3, "a", 1)],
    "one comes": [(0.0, "a", 1), (0.1, "b", 1), (0.3, "c", 1), (0.4, "a", 1), (0.5, "b", 1)],
    "one beats and never asks": [(0.0, "b", 0), (0.1, "a", 1), (0.5, "b", 0), (0.9, "b", 0)],
    "all but one": [(0.0, "a", 1), (0.0, "b", 0), (0.1, "c", 1), (0.4, "b", 0), (0.8, "b", 0)],
    "one asks twice": [(0.0, "a", 1), (0.2, "a", 1), (0.3, "b", 1), (0.5, "b", 1), (0.6, "a", 1)],
}
"""When (s) who asks for a quorum (1), or says that it lives (0)."""


def _real(script: list[tuple[float, str, int]], address: str) -> list[Any]:
    begin = time.monotonic()

    def play(step: tuple[float, str, int]) -> Any:
        when, name, asks = step
        client = _torchft().LighthouseClient(f"http://{address}", timedelta(seconds=5))
        time.sleep(max(begin + when - time.monotonic(), 0.0))
        if not asks:
            client.heartbeat(name, timedelta(seconds=5))
            return None
        more = {"address": "", "store_address": "", "step": 0, "world_size": 1}
        try:
            found = client.quorum(name, timedelta(seconds=4), shrink_only=False, data={}, **more)
        except TimeoutError:
            return "late"
        return found.quorum_id, [each.replica_id for each in found.participants]

    with ThreadPoolExecutor(len(script)) as threads:
        return list(threads.map(play, script))


def _simulated(script: list[tuple[float, str, int]]) -> list[Any]:
    world, told = World(0), dict[int, Any]()
    world.hub = greenlet.getcurrent()
    start = world.now
    for number, (when, name, asks) in enumerate(script):

        def act(number: int = number, name: str = name, asks: int = asks) -> None:
            if not asks:
                world.lighthouse.heard[name] = world.now
                told[number] = None
                return

            def answer(found: Any) -> None:
                told.setdefault(
                    number, (found.quorum_id, [each.replica_id for each in found.participants])
                )

            world.lighthouse.ask(name, SimpleNamespace(replica_id=name), answer)
            world.at(world.now + 4.0, lambda: told.setdefault(number, "late"))

        world.at(start + when, act)
    world.run(lambda: len(told) == len(script))
    return [told[number] for number in range(len(script))]


@pytest.mark.net
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_simulated_lighthouse_forms_the_quorums_of_the_real_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=1.5,patience=1")
    assert limits().silence == 1.5
    found, tries = list[Any](), 0
    while found != (expected := _simulated(SCRIPTS[name])):  # a busy machine may be late
        assert (tries := tries + 1) <= 5, (found, expected)
        server = serve_lighthouse("127.0.0.1")
        try:
            found = _real(SCRIPTS[name], server.address().removeprefix("http://"))
        finally:
            server.shutdown()


def test_histories_that_mix_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "_others", lambda *_: None)  # a new rank 0 looks at nothing
    with simulated(), pytest.raises(AssertionError, match=r"of others. weights|rows"):  # noqa: PT012
        for seed in range(100):
            trial(seed)
