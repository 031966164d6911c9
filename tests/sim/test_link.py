"""Hand-computed fates of packets on the event-driven links, and replays of real logs."""

from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.errors import TraceError
from distrlcc.sim.link import NEVER, RateLink, TraceLink, read_log, replay
from distrlcc.sim.queues import DropTail, Packet
from distrlcc.sim.trace import load_trace, parse_trace

MS = 1_000_000


def _drain(link: RateLink | TraceLink, until: int) -> list[tuple[int, int]]:
    out = []
    while link.next_time() <= until:
        time = link.next_time()
        out += [(time, packet.seq) for packet in link.step()]
    return out


def test_a_rate_link_serves_back_to_back_and_drops_what_finds_no_room() -> None:
    link = RateLink([(0, 12_032_000)], DropTail(3))
    assert link.next_time() == NEVER
    dropped = [bool(link.arrive(Packet(1504, 0, seq=k))) for k in range(5)]
    assert dropped == [False, False, False, True, True]
    # A departing packet makes room for an arrival at the same time.
    assert _drain(link, MS) == [(MS, 0)]
    assert not link.arrive(Packet(1504, MS, seq=5))
    assert _drain(link, 10 * MS) == [(2 * MS, 1), (3 * MS, 2), (4 * MS, 5)]


@pytest.mark.parametrize(
    ("rates", "departs"),
    [
        # Half a packet by 0.5 ms, then at a tenth of the rate: 5 ms for the other half.
        ([(MS // 2, 1_203_200)], MS // 2 + 5 * MS),
        ([(MS // 2, 0), (7 * MS, 12_032_000)], 7 * MS + MS // 2),
    ],
)
def test_work_goes_on_at_the_new_rate_and_waits_in_an_outage(
    rates: list[tuple[int, int]], departs: int
) -> None:
    link = RateLink([(0, 12_032_000), *rates], DropTail())
    link.arrive(Packet(1504, 0))
    assert _drain(link, 20 * MS) == [(departs, 0)]


def test_opportunities_share_bytes_and_wrap() -> None:
    link = TraceLink([1, 3], DropTail())
    for k, size in enumerate((500, 500, 500, 1504)):
        link.arrive(Packet(size, 0, seq=k))
    # At 1: three small packets, and 4 bytes of the fourth, which ends at 3; then the period is 3.
    assert _drain(link, 3) == [(1, 0), (1, 1), (1, 2), (3, 3)]
    link.arrive(Packet(100, 3, seq=9))
    assert _drain(link, 20)[0] == (4, 9)


def test_skipping_is_stepping() -> None:
    for start in (0, 3, 7):
        for now in range(40):
            links = [TraceLink([0, 2, 2, 5], DropTail(), base=start) for _ in range(2)]
            for link in links:
                while link.next_time() <= min(now, 4):
                    link.step()
            while links[0].next_time() <= now:
                links[0].step()
            links[1].skip(now=now)
            for _ in range(9):
                assert links[0].next_time() == links[1].next_time()
                links[0].step()
                links[1].step()


def test_another_trace_keeps_what_waits_and_moves() -> None:
    link = TraceLink([1], DropTail())
    link.arrive(Packet(2000, 0, seq=0))
    link.arrive(Packet(1504, 0, seq=1))
    assert link.step() == []  # 496 bytes of the first are left
    assert link.queued
    link.follow([10], base=5)
    # At 15: those 496, and 1008 of the second, whose rest goes at 25.
    assert _drain(link, 30) == [(15, 0), (25, 1)]
    assert not link.queued


TRACES = {
    "att-2016-up.bbr.droptail-100.log": "ATT-LTE-driving-2016.up",
    "verizon-short-down.cubic.droptail-100.log": "Verizon-LTE-short.down",
    "const-12.cubic.droptail-40.log": None,
    "const-12.reno.drophead-60000.log": None,
}

LOG = """# mahimahi mm-link (Uplink) [t] > log
# queue: droptail [packets=1]
# base timestamp: 10
10 + 1504
10 + 100
10 d 1 100
11 # 1504
11 - 1504 1
"""


@pytest.mark.parametrize("name", TRACES)
def test_every_departure_and_drop_of_a_real_log(
    name: str, mahimahi_logs: Path, traces_folder: Path
) -> None:
    trace = TRACES[name]
    loaded = parse_trace(b"1\n", "12") if trace is None else load_trace(str(traces_folder / trace))
    result = replay(read_log(mahimahi_logs / name), loaded)
    assert result.mismatches == ()
    assert result.departures > 3000
    assert result.drops > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [("", ""), ("11 - 1504 1", "11 - 1504 2"), ("packets=1", "packets=2"), ("10 d 1 100\n", "")],
)
def test_a_small_log_is_replayed_and_a_difference_found(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "log"
    path.write_text(LOG.replace(old, new))
    assert (replay(read_log(path), parse_trace(b"1\n", "12")).mismatches == ()) == (old == new)


@pytest.mark.parametrize(("text", "says"), [("hello\n", "header"), (LOG + "12 ? 3\n", "line 9")])
def test_no_log_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_log(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_log(tmp_path / "none")


def test_a_log_of_another_queue_is_read_but_does_not_replay(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(LOG)
    (tmp_path / "log").write_text(LOG.replace("droptail", "codel"))
    plain, log = read_log(tmp_path / "plain"), read_log(tmp_path / "log")
    assert log == replace(plain, queue="codel")
    with pytest.raises(TraceError, match="'codel' does not replay"):
        replay(log, parse_trace(b"1\n", "12"))


def test_a_log_without_arrivals_compares_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG.partition("10 +")[0] + "11 # 1504\n")
    with pytest.raises(TraceError, match="no packet arrives in the log"):
        replay(read_log(tmp_path / "log"), parse_trace(b"1\n", "12"))


def test_what_a_command_line_holds_is_no_header(tmp_path: Path) -> None:
    line = b"# command line: 'sh' '# queue: codel [packets=1]\r\x85 # base timestamp: 7 \xff'\n"
    (tmp_path / "log").write_bytes(line + LOG.encode())
    log, plain = read_log(tmp_path / "log"), tmp_path / "plain"
    plain.write_text(LOG)
    assert log == read_log(plain)


@pytest.mark.parametrize("times", [(0, 10**13), (10**13, 0), (5, 10**13, 6)])
def test_a_far_time_anywhere_in_a_log_is_refused_at_once(
    times: tuple[int, ...], tmp_path: Path
) -> None:
    lines = ["# queue: infinite", "# base timestamp: 0", *(f"{time} + 1504" for time in times)]
    (tmp_path / "log").write_text("\n".join(lines))
    with pytest.raises(TraceError, match="expected a log of this trace"):
        replay(read_log(tmp_path / "log"), load_trace("cellular:1"))
