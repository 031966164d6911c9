"""Real packets on loopback through emulated links; bounds are for a busy machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import pytest

from distrlcc.errors import ConfigError, LinkError
from distrlcc.net.udp_socket import UdpSocket
from distrlcc.net.worlds.emulated_world import EmulatedWorld, StepResult, WorldProcess
from distrlcc.net.worlds.flows import DATAGRAM_BYTES, RelayLink, Timers
from distrlcc.processes import find_process
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.transport import wire
from distrlcc.transport.handshake import Address
from distrlcc.transport.wire import Acknowledgement
from tests.hosts import wait_until

pytestmark = pytest.mark.net

STEP = 10_000_000


def _scenario(seed: int = 0, flows: tuple[Flow, ...] = (Flow(),), **link: float) -> Scenario:
    return Scenario("test", Link(**link), flows, seed=seed)  # type: ignore[arg-type]


@contextmanager
def _world(*scenarios: Scenario) -> Iterator[WorldProcess]:
    world = WorldProcess(len(scenarios))
    for n, scenario in enumerate(scenarios):
        world.load(n, scenario)
    yield world
    world.close()


def _run(world: WorldProcess, windows: list[float], steps: int) -> list[StepResult]:
    cwnd = np.array(windows)
    return [world.step(cwnd, np.zeros(len(cwnd)), step=STEP) for _ in range(steps)]


def _sum(results: list[StepResult], name: str) -> np.ndarray:
    return np.asarray(np.sum([getattr(result.stats, name) for result in results], axis=0))


def test_a_link_has_its_rate_and_its_delay() -> None:
    with _world(_scenario(rate_mbps=12.0, delay_ms=20.0)) as world:
        results = _run(world, [100.0], 150)
    capacity = sum(result.truth.capacity[0] for result in results[20:])
    used = sum(result.truth.used[0] for result in results[20:])
    seconds = _sum(results[20:], "duration")[0]
    assert capacity == pytest.approx(seconds * 12e6 / (8 * 1504), rel=1e-3)
    assert 0.5 * capacity < used < 1.001 * capacity
    assert 0.5 * capacity < _sum(results[20:], "acked")[0] < 1.2 * capacity
    assert 0.0409 < results[-1].stats.min_rtt[0] < 0.1
    assert results[-1].truth.base_rtt[0] == pytest.approx(0.041003, rel=1e-3)
    rtt = _sum(results[50:], "rtt_sum")[0] / _sum(results[50:], "acked")[0]
    assert 0.09 < rtt < 0.3  # 100 packets of 1.003 ms
    assert _sum(results, "lost")[0] == 0


def test_links_differ_and_do_not_disturb_each_other() -> None:
    small = _scenario(rate_mbps=12.0, delay_ms=20.0, queue_packets=10)
    lossy = _scenario(rate_mbps=12.0, delay_ms=10.0, loss=0.05, seed=4)
    full, slow = _scenario(rate_mbps=12.0, delay_ms=20.0), _scenario(rate_mbps=3.0, delay_ms=5.0)
    with _world(small, lossy, full, slow) as world:
        results = _run(world, [80.0, 40.0, 250.0, 3.0], 150)
    lost, acked = _sum(results, "lost"), _sum(results, "acked")
    assert lost[0] > 5
    # Of the steps' mean round trips, as one stall lengthens the longest.
    trips = [r.stats.rtt_sum[0] / r.stats.acked[0] for r in results if r.stats.acked[0]]
    assert 0.041 < np.median(trips) < 0.041 + 0.010 + 0.05
    assert 0.02 < lost[1] / (lost[1] + acked[1]) < 0.1
    rtt = _sum(results[40:], "rtt_sum") / _sum(results[40:], "acked")
    assert rtt[2] > 0.15
    assert 0.0139 < rtt[3] < 0.12


def test_rivals_share_a_link_and_start_when_they_say() -> None:
    flows = (Flow(), Flow("cubic", start_s=0.5))

    with _world(_scenario(rate_mbps=12.0, delay_ms=10.0, queue_packets=100, flows=flows)) as world:
        results = _run(world, [60.0], 250)
    alone = _sum(results[20:48], "acked")[0] / 28
    together = _sum(results[150:], "acked")[0] / 100
    assert alone > 5.0
    assert together < 0.9 * alone


@pytest.mark.parametrize("start_s", [0.0, 0.05])
def test_a_rival_that_cannot_begin_is_named_at_once(start_s: float, tmp_path: Path) -> None:
    source = Path("examples/plugins/scheme.py").read_text()
    (tmp_path / "mine.py").write_text(source)
    flows = (Flow(), Flow(f"{tmp_path}/mine.py:near", start_s=start_s))
    scenario = _scenario(rate_mbps=12.0, flows=flows)
    (tmp_path / "mine.py").write_text(f"{source}# another\n")
    with _world(scenario) as world, pytest.raises(ConfigError, match="has changed"):
        _run(world, [10.0], 20)


def test_a_pause_belongs_to_no_step_and_traffic_goes_on() -> None:
    with _world(_scenario(rate_mbps=12.0, delay_ms=10.0)) as world:
        _run(world, [40.0], 30)
        time.sleep(0.6)
        after = _run(world, [40.0], 1)[0]
        results = _run(world, [40.0], 20)
    assert after.action_delay > 0.58e9
    assert after.stats.duration[0] < 0.6
    # The window was kept full during the pause: no packet waited for the action.
    assert after.stats.rtt_max[0] < 0.6
    assert _sum(results, "acked")[0] > 50


def test_senders_rest_when_no_action_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=0.05")
    send, sent = UdpSocket.send, list[bytes]()

    def noted(self: UdpSocket, datagrams: Sequence[bytes], *address: Address) -> None:
        sent.extend(each for each in datagrams if len(each) == DATAGRAM_BYTES)
        send(self, datagrams, *address)

    monkeypatch.setattr(UdpSocket, "send", noted)
    with closing(EmulatedWorld(1)) as world:
        world.load(0, _scenario(rate_mbps=12.0, delay_ms=5.0, flows=(Flow(), Flow("cubic"))))
        world.act(np.array([20.0]), np.zeros(1), step=STEP)
        end = monotonic_ns() + 400_000_000
        while monotonic_ns() < end:
            world.turn()
        before = len(sent)
        assert before > 20
        end = monotonic_ns() + 100_000_000
        while monotonic_ns() < end:
            world.turn()
        assert len(sent) == before
        agents = 0.0
        for _ in range(500):
            world.act(np.array([20.0]), np.zeros(1), step=STEP)
            while not world.turn():
                pass
            agents += StepResult.of(*world.take()).stats.sent[0]
            if len(sent) - before > agents > 0:
                break  # the rival sends again as well
        else:
            pytest.fail("the senders or the rival sleep on")


def test_a_flow_whose_start_falls_into_a_rest_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=0.05")
    flows = Flow(), Flow("cubic", start_s=0.15)

    def rest(world: EmulatedWorld) -> None:
        end = monotonic_ns() + 200_000_000
        while monotonic_ns() < end:
            world.turn()

    with closing(EmulatedWorld(1)) as world:
        world.load(0, _scenario(rate_mbps=12.0, delay_ms=5.0, flows=flows))
        rest(world)  # before the agent's first action, and then over the rival's start
        for _ in range(2):
            world.act(np.array([5.0]), np.zeros(1), step=STEP)
            place: Any = world._places[0]
            agent, rival = place.flows
            # The first window is the one that was chosen.
            assert agent.sender is not None
            assert agent.sender.inflight <= 5
            rest(world)
        world.act(np.array([5.0]), np.zeros(1), step=STEP)
        assert rival.sender is not None


def test_an_ack_to_a_closed_port_is_ignored() -> None:
    timers = Timers()
    link = RelayLink(_scenario(rate_mbps=12.0, delay_ms=0.0), timers)
    link.begin(now=monotonic_ns())
    flow: Any = link.flows[0]
    packets = [wire.data_header(flow.session, k, 0) + bytes(1422) for k in range(3)]
    with UdpSocket(connect=flow.socket.address) as sender:
        for number in range(2):
            sender.send([packets[number], b"no datagram of ours"])
            link.receive(flow, monotonic_ns())
            link.receive(flow, monotonic_ns())
    assert flow.expected == 2
    for _ in range(3):  # the first ACK finds a closed port, the second one hears of it
        time.sleep(0.01)
        timers.run(now=monotonic_ns())
    assert flow.receiver.packets == 2
    with UdpSocket(connect=flow.socket.address) as sender:
        sender.send(packets[2:])
        if not sender.wait(monotonic_ns() + 100_000_000):
            time.sleep(0.01)
        link.receive(flow, monotonic_ns())
        link.receive(flow, monotonic_ns())
        time.sleep(0.01)
        timers.run(now=monotonic_ns())
        timers.run(now=monotonic_ns() + 10_000_000)
        assert sender.wait(monotonic_ns() + 1_000_000_000)
        ack = wire.decode(sender.receive()[0][0])
    assert isinstance(ack, Acknowledgement)
    assert ack.ranges[0] == (0, 3)
    link.close()


def test_the_links_end_with_their_owner() -> None:
    program = (
        "import sys, time, numpy as np\n"
        "from distrlcc.net.worlds.emulated_world import WorldProcess\n"
        "from distrlcc.sim.scenario import Link, Scenario\n"
        "world = WorldProcess(1)\n"
        "world.load(0, Scenario('x', Link(rate_mbps=12.0)))\n"
        "world.step(np.array([40.0]), np.zeros(1), step=10_000_000)\n"
        "print(world.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert find_process(pid) is not None
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    wait_until(lambda: find_process(pid) is None, 30.0, "the links' end")


def test_links_whose_process_is_gone_say_so() -> None:
    with _world(_scenario(rate_mbps=12.0)) as world:
        _run(world, [10.0], 2)
        os.kill(world.pid, signal.SIGKILL)
        with pytest.raises(LinkError, match="has ended \\(signal 9\\)"):
            _run(world, [10.0], 3)
