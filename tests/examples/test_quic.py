"""Bytes cross loopback encrypted, whole, under schemes and policies."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import random
import runpy
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.env.controller import PolicyController
from distrlcc.errors import DistrlccError
from distrlcc.evaluation.contender import contender_from_file
from distrlcc.policy.policy_file import find_policy
from distrlcc.types import Ack, IntervalStats

pytestmark = [
    pytest.mark.net,
    pytest.mark.skipif(
        importlib.util.find_spec("aioquic") is None,
        reason="needs aioquic",
    ),
]
ROOT = Path(__file__).parents[2]
DATA = random.Random(3).randbytes(1_000_000)
QUIC = ROOT / "examples" / "quic.py"


class Witness:
    """Passes everything on to another controller, and keeps what it saw."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.acks: list[Ack] = []
        self.windows: list[float] = []
        self.steps: list[IntervalStats] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.controller, name)

    def on_ack(self, ack: Ack, *, now: int) -> None:
        self.acks.append(ack)
        self.controller.on_ack(ack, now=now)
        self.windows.append(self.controller.cwnd)

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        self.steps.append(stats)
        self.controller.on_interval(stats, now=now)


def _policy() -> PolicyController:
    file = ROOT / "src" / "distrlcc" / "policies" / "dagger.safetensors"
    return contender_from_file(str(file), None).controller()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["reno", "cubic", "bbr", "copa", "policy"])
def test_bytes_arrive_whole_under_our_controller(name: str) -> None:
    controller = _policy() if name == "policy" else SchemeController(name, now=time.monotonic_ns())
    witness = Witness(controller)
    quic = runpy.run_path(str(QUIC))
    quic["register"](lambda: witness)
    _, digest = asyncio.run(quic["transfer"](DATA))
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


@pytest.mark.parametrize("words", [(), ("cubic", "--megabytes", "0.5")])
def test_the_example_says_how_fast_bytes_arrived(words: tuple[str, ...]) -> None:
    command = [sys.executable, str(QUIC), *(words or ("--megabytes", "0.2"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert " MB, intact, " in done.stdout


def test_a_sender_is_read_when_it_is_registered(tmp_path: Path) -> None:
    quic = pytest.importorskip("distrlcc.quic")
    for name, why in (
        ("cubik", "unknown policy or scheme 'cubik'"),
        (tmp_path / "none", "no policy file"),
        ("oracle", "unknown scheme 'oracle'"),
    ):
        with pytest.raises(DistrlccError, match=why):
            quic.register(name, "mine")
    quic.register(find_policy("aurora"), "mine")
    from aioquic.quic.congestion.base import create_congestion_control

    made = create_congestion_control("mine", max_datagram_size=1200)
    assert made.congestion_window >= 2 * 1200


class Relay(asyncio.DatagramProtocol):
    """Passes datagrams on, but for one in so many of the sender's."""

    def __init__(self, server: int, every: int) -> None:
        self.server, self.every, self.count = server, every, 0
        self.sender: tuple[str, int] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if address[1] == self.server:
            self.transport.sendto(data, self.sender)
            return
        self.sender, self.count = address, self.count + 1
        if self.count % self.every:
            self.transport.sendto(data, ("127.0.0.1", self.server))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["reno", "policy"])
def test_losses_are_told_and_repaired(name: str) -> None:
    witness = Witness(
        _policy() if name == "policy" else SchemeController(name, now=time.monotonic_ns())
    )
    quic = runpy.run_path(str(QUIC))
    quic["register"](lambda: witness)
    connect = quic["connect"]

    @asynccontextmanager
    async def through_relay(host: str, port: int, **words: Any) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        relay, _ = await loop.create_datagram_endpoint(
            lambda: Relay(port, 50), local_addr=("127.0.0.1", 0)
        )
        async with connect(host, relay.get_extra_info("sockname")[1], **words) as client:
            yield client
        relay.close()

    quic["transfer"].__globals__["connect"] = through_relay
    _, digest = asyncio.run(quic["transfer"](DATA))
    assert digest == hashlib.sha256(DATA).hexdigest()
    packets = len(DATA) / 1200
    lost = sum(ack.lost for ack in witness.acks)
    assert 0.5 < lost / (packets / 50) < 2.0
    assert sum(float(stats.lost[0]) for stats in witness.steps) <= lost
    if name == "reno":
        assert any(b < 0.6 * a for a, b in zip(witness.windows, witness.windows[1:], strict=False))
