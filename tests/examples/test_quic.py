"""Bytes cross loopback encrypted, whole, under schemes and policies."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import random
import time
from pathlib import Path
from types import ModuleType

import pytest

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.evaluate.contender import PolicyController, contender_from_file
from distrlcc.types import Ack, IntervalStats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(
        importlib.util.find_spec("aioquic") is None,
        reason="aioquic is missing: pip install aioquic",
    ),
]
ROOT = Path(__file__).parents[2]
DATA = random.Random(3).randbytes(1_000_000)


@pytest.fixture(scope="module")
def quic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quic", ROOT / "examples" / "quic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Witness:
    """Passes everything on to another controller, and keeps what it saw."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.acks: list[Ack] = []
        self.windows: list[float] = []
        self.steps: list[IntervalStats] = []

    @property
    def cwnd(self) -> float:
        self.windows.append(self.controller.cwnd)
        return self.windows[-1]

    @property
    def pacing_rate(self) -> float:
        return self.controller.pacing_rate

    def on_ack(self, ack: Ack, *, now: int) -> None:
        self.acks.append(ack)
        self.controller.on_ack(ack, now=now)

    def on_timeout(self, *, now: int, sent: int) -> None:
        self.controller.on_timeout(now=now, sent=sent)

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        self.steps.append(stats)
        self.controller.on_interval(stats, now=now)


def _policy() -> PolicyController:
    file = ROOT / "src" / "distrlcc" / "policies" / "dagger.safetensors"
    return PolicyController(contender_from_file(str(file), set(), None))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["reno", "cubic", "bbr", "copa", "policy"])
def test_bytes_arrive_whole_under_our_controller(quic: ModuleType, name: str) -> None:
    controller = _policy() if name == "policy" else SchemeController(name, now=time.monotonic_ns())
    witness = Witness(controller)
    _, digest = asyncio.run(quic.transfer(DATA, quic.register(witness)))
    assert digest == hashlib.sha256(DATA).hexdigest()
    # The controller learned of every packet, and its window moved.
    packets = len(DATA) / 1200
    assert len(witness.acks) > 0.9 * packets
    assert all(ack.rtt_ns > 0 and ack.inflight >= 0 for ack in witness.acks)
    assert witness.acks[-1].delivered == len(witness.acks)
    assert len(set(witness.windows)) > 1
    assert witness.steps
    acked = sum(float(stats.acked[0]) for stats in witness.steps)
    assert 0.0 < acked <= len(witness.acks)
