"""One direction without sockets: order, delay, loss, changes, and a log that replays."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distrlcc.config import from_toml
from distrlcc.errors import ConfigError
from distrlcc.net.emulator.direction import MILLISECOND, Direction
from distrlcc.net.emulator.link_config import (
    DirectionConfig,
    LinkChange,
    direction,
    downlink,
    opportunities,
    uplink,
)
from distrlcc.net.emulator.link_log import LinkLog
from distrlcc.sim.link import read_log, replay
from distrlcc.sim.queues import QueueSpec, parse_queue
from distrlcc.sim.reference import PACKET_BITS, capacity
from distrlcc.sim.scenario import JITTERS, Change, JitterKind, Link, Scenario, parse_jitter
from distrlcc.sim.trace import parse_trace

FULL = b"x" * 1500


def _drive(
    config: DirectionConfig, sends: list[tuple[int, bytes]], until: int, log: LinkLog | None = None
) -> list[tuple[int, bytes]]:
    """Send at times in ns; return what arrives when, looking at every moment it asks for."""
    way = Direction(config, random.Random("1/Uplink"), logs=() if log is None else [log])
    way.begin(0)
    got, sends, now = [], sorted(sends), 0
    while now <= until:
        way.advance(now=now)
        got += [(now, data) for data in way.arrivals(now=now)]
        while sends and sends[0][0] <= now:
            way.arrive(sends.pop(0)[1], now=now)
        later = way.next_time(now=now)
        now = max(now + 1, min(later, sends[0][0] if sends else later))
    return got


def test_a_packet_leaves_at_the_next_opportunity_and_arrives_after_the_delay() -> None:
    config = direction("12", queue=QueueSpec(), delay_ms=20.5)
    got = _drive(config, [(3_400_000, FULL), (3_500_000, FULL)], 40 * MILLISECOND)
    assert [time for time, _ in got] == [24_500_000, 25_500_000]
    # An idle link loses its opportunities, and without a bottleneck there is delay alone.
    config = direction("12", queue=QueueSpec(), delay_ms=0)
    got = _drive(config, [(400 * MILLISECOND + k, FULL) for k in range(3)], 500 * MILLISECOND)
    assert [time // MILLISECOND for time, _ in got] == [401, 402, 403]
    got = _drive(DirectionConfig(delay_ms=1.25), [(7, FULL), (9, b"y")], 2 * MILLISECOND)
    assert got == [(1_250_007, FULL), (1_250_009, b"y")]


def test_loss_is_drawn_from_the_seed() -> None:
    config = direction("1200", queue=QueueSpec(), delay_ms=0, loss=0.3)
    sends = [(k * 100_000, str(k).encode()) for k in range(2000)]
    got = [data for _, data in _drive(config, sends, 300 * MILLISECOND)]
    draw = random.Random("1/Uplink")
    assert got == [str(k).encode() for k in range(2000) if draw.random() >= 0.3]


def test_changes_of_rate_delay_and_loss() -> None:
    config = replace(
        direction("12", queue=QueueSpec(), delay_ms=10),
        changes=(
            LinkChange(100, times=(2,)),
            LinkChange(200, times=()),
            LinkChange(300, times=(1,), delay_ms=2.0),
            LinkChange(400, loss=1.0),
        ),
    )
    sends = [(k * MILLISECOND, b"%04d" % k + FULL[4:]) for k in range(500)]
    got = _drive(config, sends, 900 * MILLISECOND)
    times = [time // MILLISECOND for time, _ in got]
    # 100 packets depart until 100, then one per 2 ms, none after 200, one per ms from 301 on. Delay
    # and loss change before departures: what departs from 400 on is lost.
    assert times[:100] == [k + 11 for k in range(100)]
    assert times[100:150] == [112 + 2 * k for k in range(50)]
    # The delay falls by 8 ms while nothing departs.
    assert times[150:] == [303 + k for k in range(99)]
    assert [data[:4] for _, data in got] == [b"%04d" % k for k in range(len(got))]


@pytest.mark.parametrize(("mbps", "every_ms"), [(0.1, 50), (1, 20), (7, 1), (100, 20)])
def test_a_rate_that_changes_often_loses_nothing_of_a_packets_time(
    mbps: float, every_ms: int, tmp_path: Path
) -> None:
    rates = enumerate([mbps * 1.1, mbps] * 250, 1)
    link = Link(mbps, changes=tuple(Change(k * every_ms / 1e3, rate) for k, rate in rates))
    log, end = LinkLog(tmp_path / "log"), 501 * every_ms * MILLISECOND
    way = Direction(uplink(link), random.Random(), logs=[log])
    way.begin(0)
    way.advance(now=end)
    log.close()
    carried = capacity(link, 0, end) / PACKET_BITS
    assert (tmp_path / "log").read_text().count("#") == pytest.approx(carried, abs=1, rel=1e-4)


def test_a_link_that_begins_in_silence() -> None:
    link = Link(rate_mbps=0.0, delay_ms=5.0, changes=(Change(0.1, rate_mbps=12.032),))
    got = _drive(uplink(link), [(0, FULL), (0, FULL)], 200 * MILLISECOND)
    assert [now // MILLISECOND for now, _ in got] == [106, 107]


def test_a_falling_delay_overtakes_nothing() -> None:
    config = DirectionConfig(delay_ms=50, changes=(LinkChange(10, delay_ms=1.0),))
    got = _drive(config, [(9 * MILLISECOND, b"a"), (11 * MILLISECOND, b"b")], 99 * MILLISECOND)
    assert got == [(59 * MILLISECOND, b"a"), (59 * MILLISECOND, b"b")]


@pytest.mark.parametrize("queue", ["droptail:packets=20", "drophead:bytes=20000", "infinite"])
@pytest.mark.parametrize(
    ("source", "start_ms"),
    [("12", 0), ("1.3", 0), ("5.5", 0), ("cellular:7", 0), ("cellular:7", 43_261)],
)
def test_its_log_replays(source: str, start_ms: int, queue: str, tmp_path: Path) -> None:
    log = LinkLog(tmp_path / "log")
    config = replace(direction(source, queue=parse_queue(queue), delay_ms=3), start_ms=start_ms)
    log.header("Uplink", config, command_line=("distrlcc", "two words\nand lines"), base=0)
    draw = random.Random(5)
    sends, now = [], 0
    while now < 3_000 * MILLISECOND:
        now += draw.choice([0, 0, 0, 50_000, 700_000, 12_000_000])
        sends.append((now, FULL[: draw.choice([40, 576, 1500, 1500])]))
    got = _drive(config, sends, 3_200 * MILLISECOND, log)
    log.close()
    trace = parse_trace("".join(f"{t}\n" for t in opportunities(source)).encode(), source)
    result = replay(read_log(tmp_path / "log"), trace)
    assert result.mismatches == ()
    assert result.arrivals == len(sends)
    assert result.departures >= len(got) > 10
    assert (result.drops == 0) == (queue == "infinite")


def test_what_codel_drops_late_is_in_the_log(tmp_path: Path) -> None:
    log = LinkLog(tmp_path / "log")
    config = direction("12", queue=parse_queue("codel:packets=1000"), delay_ms=0)
    sends = [(k * MILLISECOND // 2, FULL) for k in range(2000)]
    got = _drive(config, sends, 1000 * MILLISECOND, log)
    log.close()
    drops = [line for line in (tmp_path / "log").read_text().splitlines() if " d " in line]
    assert len(drops) > 5
    assert len(got) <= 1000
    assert drops[0].endswith(" d 1 1504")


def _ipv4(tos: int, size: int = 1500) -> bytes:
    """Return a packet whose header's checksum is right."""
    header = bytearray.fromhex("4500000000014000401100000a0000010a000002")
    header[1], header[2:4] = tos, size.to_bytes(2)
    header[10:12] = (_sum(bytes(header)) ^ 0xFFFF).to_bytes(2)
    return bytes(header) + bytes(size - 20)


def _sum(header: bytes) -> int:
    """Return the ones' complement sum of a header's words; 0xFFFF if its checksum is right."""
    total = sum(int.from_bytes(header[k : k + 2]) for k in range(0, 20, 2))
    return (total & 0xFFFF) + (total >> 16)


@pytest.mark.parametrize("queue", ["codel:packets=1000,ecn=1", "droptail:packets=1000,mark=9"])
@pytest.mark.parametrize("tos", [0xB8, 0xB9, 0xBA, 0xBB, 0x02])
def test_a_queue_marks_packets_that_can_be(queue: str, tos: int) -> None:
    config = direction("12", queue=parse_queue(queue), delay_ms=0)
    sends = [(k * MILLISECOND // 2, _ipv4(tos)) for k in range(800)]
    got = [data for _, data in _drive(config, sends, 900 * MILLISECOND)]
    assert all(_sum(data[:20]) == 0xFFFF for data in got)
    assert all(data[1] in (tos, tos | 3) and data[20:] == bytes(1480) for data in got)
    marks = sum(data[1] == tos | 3 != tos for data in got)
    capable = tos & 3 > 0
    assert (marks > 3) == (tos & 3 in (1, 2))
    assert (len(got) == 800) == (capable or queue.startswith("droptail"))


TOML = """
name = "tunnel"
duration_s = 5.0
[link]
rate_mbps = 12.032
delay_ms = 20.0
queue_packets = 7
changes = [
  {at_s = 1.5, rate_mbps = 0.0},
  {at_s = 2.0, rate_mbps = 6.016, delay_ms = 5.0, loss = 0.5},
]
[[flows]]
"""


def test_a_scenarios_link_has_its_packets_per_second_and_its_changes() -> None:
    link = from_toml(Scenario, TOML).link
    up = uplink(link)
    assert (up.times, up.delay_ms, up.queue) == ((1,), 20.0, QueueSpec("droptail", 7))
    assert up.changes == (LinkChange(1500, ()), LinkChange(2000, (2,), 5.0, 0.5))
    down = downlink(link)
    assert (down.times, down.delay_ms) == (None, 20.0)
    assert down.changes == (LinkChange(2000, delay_ms=5.0),)


def test_jitter_and_ticks_delay_and_reorder_nothing() -> None:
    sends = [(k * 100_000, bytes([k])) for k in range(200)]
    config = DirectionConfig(delay_ms=2.0, jitter_ms=3.0)
    got = _drive(config, sends, 99 * MILLISECOND)
    assert [data for _, data in got] == [data for _, data in sends]
    waits = [time - sent - 2 * MILLISECOND for (time, _), (sent, _) in zip(got, sends, strict=True)]
    assert 0 <= min(waits) < 2 * MILLISECOND
    assert 2 * MILLISECOND < max(waits) <= 3 * MILLISECOND
    assert got == _drive(config, sends, 99 * MILLISECOND)  # the same seed
    got = _drive(replace(config, tick_ms=4.0), sends, 99 * MILLISECOND)
    assert {time % (4 * MILLISECOND) for time, _ in got} == {0}
    # A scenario's ACKs are shaped on their way back.
    down = downlink(Link(rate_mbps=12.0, ack_jitter_ms=3.0, ack_tick_ms=4.0))
    assert (down.jitter_ms, down.tick_ms) == (3.0, 4.0)


@pytest.mark.parametrize("kind", JITTERS)
def test_jitter_of_each_kind_is_within_its_bounds(kind: JitterKind) -> None:
    sends = [(k * 100_000, bytes([k % 256])) for k in range(4000)]
    config = DirectionConfig(delay_ms=2.0, jitter_ms=20.0, jitter_kind=kind)
    got = _drive(config, sends, 999 * MILLISECOND)
    waits = [time - sent - 2 * MILLISECOND for (time, _), (sent, _) in zip(got, sends, strict=True)]
    assert min(waits) >= 0
    assert 10 * MILLISECOND < max(waits) <= (75 if kind == "exponential" else 20) * MILLISECOND
    times = [time for time, _ in got]
    assert times == sorted(times)
    # In a pause nothing comes, and then all at once.
    at_once = len(times) - len(set(times))
    assert (at_once > 300) == (kind != "correlated")
    assert (waits.count(0) > 2000) == (kind == "bursts")


@pytest.mark.parametrize(
    "text", ["burst:5", "bursts", "bursts:", "-1", "1001", "uniform:nan", "5:6", ":5", "normal:0"]
)
def test_jitter_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"jitter is .*expected MS or KIND:MS"):
        parse_jitter(text)


def test_jitter_is_read_as_it_is_written() -> None:
    assert parse_jitter(None) == ("uniform", 0.0)
    assert parse_jitter("8") == ("uniform", 8.0)
    assert {parse_jitter(f"{kind}:0.5") for kind in JITTERS} == {(kind, 0.5) for kind in JITTERS}


def test_a_log_that_begins_with_data_replays_where_its_trace_begins_with_opportunities(
    tmp_path: Path,
) -> None:
    text = b"0\n0\n5\n9\n"
    (tmp_path / "trace").write_bytes(text)
    log = LinkLog(tmp_path / "log")
    config = direction(str(tmp_path / "trace"), queue=QueueSpec(), delay_ms=1)
    way = Direction(config, random.Random(1), logs=[log])

    def begin(milliseconds: int) -> None:
        log.header("Uplink", config, command_line=("mine",), base=milliseconds)
        way.begin(milliseconds)

    way.on_full = begin
    for milliseconds in (20, 20, 21, 26):
        way.advance(now=milliseconds * MILLISECOND)
        way.arrive(FULL, now=milliseconds * MILLISECOND)
        way.on_full = None
    way.advance(now=60 * MILLISECOND)
    log.close()
    result = replay(read_log(tmp_path / "log"), parse_trace(text, "trace"))
    assert result.mismatches == ()
    assert (result.arrivals, result.departures) == (4, 4)


def test_a_scenarios_codel_is_the_emulators_and_what_stands_before_it_is_refused() -> None:
    link = Link(rate_mbps=12.0, aqm="codel:packets=50,target=7")
    assert uplink(link).queue == parse_queue("codel:packets=50,target=7")
    for more in ({"jitter_ms": 1.0}, {"policer_mbps": 1.0, "policer_packets": 3}):
        with pytest.raises(ConfigError, match="has its queue at its beginning") as caught:
            uplink(replace(link, **dict[str, Any](more)))
        assert "\n" not in str(caught.value)


def test_until_it_begins_there_are_a_delay_and_an_opportunity_each_millisecond() -> None:
    change = LinkChange(5, delay_ms=4.0)
    config = replace(
        direction("12", queue=QueueSpec(), delay_ms=1, loss=1.0), start_ms=3, changes=(change,)
    )
    way = Direction(config, random.Random("1/Uplink"))
    seen: list[int] = []
    way.on_full = seen.append
    way.arrive(b"hello", now=20 * MILLISECOND + 7)
    assert (seen, way.next_time(now=0)) == ([], 22 * MILLISECOND)
    assert list(way.arrivals(now=22 * MILLISECOND)) == [b"hello"]
    way.on_full = lambda milliseconds: way.begin(milliseconds)
    way.arrive(FULL, now=30 * MILLISECOND + 7)
    assert way.next_time(now=30 * MILLISECOND) == 31 * MILLISECOND
    way.advance(now=34 * MILLISECOND)
    assert list(way.arrivals(now=10**12)) == []  # it is lost at the bottleneck's other end
    assert way.next_time(now=34 * MILLISECOND) == 35 * MILLISECOND  # when the delay changes


def test_packets_that_come_late_are_overtaken() -> None:
    link = Link(rate_mbps=100, delay_ms=5, reorder="0.2:6")
    sends = [(k * MILLISECOND, k.to_bytes(2, "big")) for k in range(500)]
    config = replace(uplink(link), times=None)
    got = _drive(config, sends, 600 * MILLISECOND)
    waits = {int.from_bytes(data, "big"): time for time, data in got}
    late = [number for number, time in waits.items() if time == (number + 11) * MILLISECOND]
    on_time = [number for number, time in waits.items() if time == (number + 5) * MILLISECOND]
    assert len(late) + len(on_time) == len(got) == 500
    assert 60 < len(late) < 140
    assert [time for time, _ in got] == sorted(time for time, _ in got)
    assert _drive(config, sends, 600 * MILLISECOND) == got
    # The ACKs of a scenario's link keep their order: it is its packets that are late.
    assert downlink(link).late_share == 0.0
