"""Logs of throughput become traces whose link carries what the log says, when it says it."""

import json
import shutil
import socket
import subprocess
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrlcc.cli import trace
from distrlcc.cli.main import main
from distrlcc.errors import TraceError
from distrlcc.sim.scenario import Change
from distrlcc.sim.suites import load_suite
from distrlcc.sim.throughput_log import KINDS, ThroughputLog, read_throughput
from distrlcc.sim.trace import PACKETS_PER_MBIT, load_trace
from distrlcc.types import PACKET_BYTES

MBPS = PACKET_BYTES * 8e-3
"""A packet in each ms."""


def _distrlcc(words: str) -> int:
    return main(words.split())


def _interval(seconds: float, mbps: float, *, omitted: bool = False) -> dict[str, object]:
    one = {"start": 0, "seconds": seconds, "bits_per_second": mbps * 1e6, "omitted": omitted}
    return {"streams": [], "sum": one}


LOGS = {
    "csv": f"time,mbps\n0,{MBPS}\n2,{2 * MBPS}\n3.5,0\n4,{MBPS}\n",
    "hsdpa": "".join(
        f"{1289406399 + k} {549893 + k} 59.851754 10.781778 {packets * PACKET_BYTES} {ms}\n"
        for k, (packets, ms) in enumerate([(2000, 2000), (3000, 1500), (0, 500), (500, 500)])
    ),
    "iperf3": json.dumps(
        {
            "intervals": [
                _interval(1.0, 99.0, omitted=True),
                _interval(2.0, MBPS),
                _interval(1.5, 2 * MBPS),
                _interval(0.5, 0.0),
                _interval(0.5, MBPS),
            ]
        }
    ),
}


@pytest.mark.parametrize("kind", LOGS)
def test_each_rate_holds_for_its_interval(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOGS[kind])
    times = read_throughput(str(tmp_path / "a.log"), kind).trace("a").times_ns // 1_000_000
    assert times[-1] == 4500
    counts = np.bincount(times, minlength=4501)
    assert counts[0] == 0
    assert (counts[1:2001] == 1).all()
    assert (counts[2001:3501] == 2).all()
    assert (counts[3501:4001] == 0).all()
    assert (counts[4001:] == 1).all()


def test_fccs_measurements_count_for_five_seconds_each(tmp_path: Path) -> None:
    log = tmp_path / "fcc.csv"
    head = "unit_id,dtime,target,address,fetch_time,bytes_total,bytes_sec,objects\n"
    rows = [f"7,2016-08-0{k} 01:00:00,www.a.b,1.2.3.4,9,9,{k * 1e5},1\n" for k in (1, 2)]
    log.write_text(head + "".join(rows))
    trace = read_throughput(str(log), "fcc").trace("fcc")
    assert trace.period_ns == 10_000_000_000
    assert trace.mean_mbps == pytest.approx(1.2, rel=1e-3)
    log.write_text(head + "".join(rows) + rows[0].replace("www.a.b", "www.c.d"))
    with pytest.raises(TraceError, match="2 pairs of unit_id and target; cut out the lines of one"):
        read_throughput(str(log), "fcc")
    log.write_text(head + rows[0] + rows[0].replace("100000.0", ""))
    with pytest.raises(TraceError, match="row 3 has '' where bytes_sec is expected"):
        read_throughput(str(log), "fcc")


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("csv", "", "cannot be read as csv (it is empty)"),
        ("csv", "0 1\n", "fewer than two rows"),
        ("csv", "0 1\n0 1\n", "the time of row 2 is no later"),
        ("csv", "0 0\n1 0\n", "not all of them 0"),
        ("csv", "s rate\n0 1\n1 nan\n", "row 3 has 'nan' where a rate is expected"),
        ("csv", "0 1\n9000 1\n", "5.0 hours"),
        ("csv", "us Mbps\n0 90\n5000 90\n", "it lasts 0.01 s, 0.0 hours; expected 0.1 s to 4"),
        ("csv", "0 1e-300\n1 0\n", "it carries less than one packet in all"),
        ("csv", "1\n2\n", "it has one column"),
        ("csv", '{"intervals": []}', "distrlcc trace --from iperf3"),
        ("hsdpa", "1 2 3\n", "row 1 has 3 columns"),
        ("hsdpa", "1 2 3 4 5 x\n", "row 1 has 'x' where a time is expected"),
        ("hsdpa", "1 2 3 4 5 0\n", "row 1 has '0' where a time is expected"),
        ("hsdpa", "5 4000 3 4 5 9\n1 0 3 4 5 9\n", "row 2 has '0' where a later time"),
        ("hsdpa", "1 2 3 4 -5 9\n", "row 1 has '-5' where a number of bytes is expected"),
        ("iperf3", "{}", "it has no 'intervals'"),
        ("iperf3", "0,5\n1,6\n", "distrlcc trace --from csv"),
        ("iperf3", '{"error": "unable to connect"}', "iperf3 says: unable to connect"),
        ("iperf3", '{"intervals": []}', "it has no intervals"),
        ("iperf3", '{"intervals": [{"sum": {"seconds": 1}}]}', "it has no 'bits_per_second'"),
        ("iperf3", '{"intervals": [{"sum": {"seconds": 1, "bits', "Unterminated string"),
        ("iperf3", '{"intervals": 5}', "its parts are of other types; expected what iperf3"),
        ("iperf3", '{"intervals": [{"sum": 5}]}', "its parts are of other types"),
        ("iperf3", '{"intervals": [{"sum": {"seconds": null}}]}', "seconds is None"),
        ("alphartc", '{"uplink": [1]}', "its parts are of other types; expected AlphaRTC"),
        ("genet", '{"timestamps": [0], "bandwidths": {"a": 1}}', "its parts are of other types"),
        ("fcc", "a,b\n1,2\n", "it has no 'unit_id'"),
        ("genet", "{}", "it has no 'timestamps'"),
        ("genet", '{"timestamps": [0, 1, 2, 3], "bandwidths": [5, 6]}', "4 timestamps and 2"),
        ("genet", '{"timestamps": [0, 1, 1], "bandwidths": [5, 6, 7]}', "times must increase"),
        ("genet", '{"timestamps": [0, 1], "bandwidths": [5, "x"]}', "'x'"),
        ("genet", '{"timestamps": [0, 1], "bandwidths": [5, 6], "loss": 5}', "a loss is not"),
        ("genet", '{"timestamps": [0, 1], "bandwidths": [5], "delays": [-1]}', "a delay is not"),
        ("genet", '{"timestamps": [0, 1], "bandwidths": [5, 6], "loss": [0, 1]}', "other types"),
        ("genet", '{"timestamps": [0, 1], "bandwidths": [5], "delays": [[1]]}', "other types"),
        ("genet", 2 * '{"timestamps": [0, 1], "bandwidths": [5, 6]}\n', "2 traces; keep one"),
        ("alphartc", '{"uplink": {}}', "neither uplink nor downlink"),
        ("alphartc", '{"uplink": {"trace_pattern": [{"capacity": 1}]}}', "it has no 'duration'"),
    ],
)
def test_no_log_is_one_clear_line(kind: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.log").write_text(text)
    with pytest.raises(TraceError) as caught:
        read_throughput(str(tmp_path / "bad.log"), kind)
    assert says in str(caught.value)
    assert "bad.log" in str(caught.value)
    assert "\n" not in str(caught.value)


def _log(tmp_path: Path, text: str, kind: str, *more: str) -> ThroughputLog:
    (tmp_path / "log").write_text(text)
    return read_throughput(str(tmp_path / "log"), kind, *more)


def _sums(*senders: bool | None, omitted: bool = False) -> dict[str, object]:
    """Return the sums of an interval: 50 Mbit/s sent, 3 received, by what each says of itself."""
    keys = ("sum", "sum_bidir_reverse")
    sums = {
        key: _interval(1, 3 if s is False else 50)["sum"]
        for key, s in zip(keys, senders, strict=False)
    }
    for found, sender in zip(sums.values(), senders, strict=True):
        assert isinstance(found, dict)
        found["omitted"] = omitted
        if sender is not None:
            found["sender"] = sender
    return {"streams": [], **sums}


def _start(key: str = "connecting_to", **more: int) -> dict[str, object]:
    return {"version": "iperf 3.7", key: {}, "test_start": {"protocol": "TCP", **more}}


RECEIVED: dict[str, list[dict[str, Any]]] = {
    "reverse": [{"intervals": [_sums(False)]}],
    "bidir": [{"intervals": [_sums(True, False)]}],
    "bidir of a server": [{"intervals": [_sums(False, True)]}],
    "two tests": [{"intervals": [_sums(False)]}, {"intervals": [_sums(True, False)]}],
    "omitted": [{"intervals": [_sums(True, False, omitted=True), _sums(True, False)]}],
    "of the server": [
        {"intervals": [_sums(True)], "server_output_json": {"intervals": [_sums(False)]}}
    ],
    "cut off": [{"intervals": [_sums(False)], "error": "interrupt - the client has terminated"}],
    "stream": [
        {"event": "start", "data": _start(reverse=1)},
        {"event": "interval", "data": _sums(False)},
        {"event": "end", "data": {}},
        {"event": "start", "data": _start(reverse=1)},
        {"event": "interval", "data": _sums(False)},
    ],
}
TWO = ("two tests", "stream", "stream and all at its end")
SENT: dict[str, list[dict[str, Any]]] = {
    "normal": [{"intervals": [_sums(True)]}],
    "second": [{"intervals": [_sums(False)]}, {"intervals": [_sums(True)]}],
    "stream": [{"event": "start", "data": {}}, {"event": "interval", "data": _sums(True)}],
    "old client": [{"start": _start(reverse=0), "intervals": [_sums(None)]}],
    "old server": [{"start": _start("accepted_connection", reverse=1), "intervals": [_sums(None)]}],
}


RECEIVED["stream and server"] = [
    {"event": "start", "data": _start(reverse=0)},
    {"event": "interval", "data": _sums(True)},
    {"event": "server_output_json", "data": {"intervals": [_sums(False)]}},
]
RECEIVED["stream and all at its end"] = [
    *RECEIVED["stream"],
    {"start": _start(reverse=1), "intervals": [_sums(False)], "end": {}},
]


@pytest.mark.parametrize("case", RECEIVED)
def test_iperf3_is_read_at_the_receiver_alone(case: str, tmp_path: Path) -> None:
    for join in ("\n", "\n\n", " ", ","):
        text = join.join(json.dumps(each) for each in RECEIVED[case])
        log = _log(tmp_path, text, "iperf3")
        assert set(log.mbps) == {3.0}
        assert len(log.mbps) == (2 if case in TWO else 1)
        assert ("iperf3 says: interrupt" in "".join(log.notes)) == (case == "cut off")
    old = text.replace("sum_bidir_reverse", "sum")  # iperf3 before 3.8: the same key twice
    assert set(_log(tmp_path, old, "iperf3").mbps) == {3.0}


@pytest.mark.parametrize("case", SENT)
def test_a_senders_iperf3_is_refused(case: str, tmp_path: Path) -> None:
    text = "\n".join(json.dumps(each) for each in SENT[case])
    with pytest.raises(TraceError, match=r"is the sender's.*server's log.*-R"):
        _log(tmp_path, text, "iperf3")


def test_an_old_iperf3_that_says_no_sender(tmp_path: Path) -> None:
    for start in ({}, _start(reverse=1), _start("accepted_connection", reverse=0)):
        text = json.dumps({"start": start, "intervals": [_sums(None)]})
        assert set(_log(tmp_path, text, "iperf3").mbps) == {50.0}
    with pytest.raises(TraceError, match="use -R, not --bidir"):
        _log(tmp_path, json.dumps({"intervals": [_sums(None, None)]}), "iperf3")


@pytest.mark.parametrize("value", ["nan", "-nan", "NaN", "inf", "-Infinity", "+nan", "null", '"x"'])
def test_fields_that_are_not_used_may_be_anything(value: str, tmp_path: Path) -> None:
    found = '{"seconds": 1, "bits_per_second": 5e6, "lost_percent":%s, "a": [%s,%s]}'
    text = '{"intervals": [{"sum": %s}]}' % (found % (value, value, value))
    assert _log(tmp_path, text, "iperf3").mbps.tolist() == [5.0]
    for field in ("seconds", "bits_per_second"):
        with pytest.raises(TraceError):
            _log(tmp_path, text.replace(f'"{field}": ', f'"{field}": {value}, "old": '), "iperf3")


@pytest.fixture(scope="module")
def real_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run iperf3 over loopback in many ways; each leaves the client's log and the server's."""
    program = shutil.which("iperf3")
    if program is None:
        pytest.skip("needs iperf3")
    folder = tmp_path_factory.mktemp("iperf3")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ways = {
        "normal": "",
        "reverse": "-R",
        "bidir": "--bidir",
        "udp": "-u -b 9M",
        "udp-reverse": "-u -b 9M -R",
        "parallel": "-P 4 -R -O 0.1 -i 0.1",
        "output": "--get-server-output",
    }
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=20)
    if "--json-stream" in help_text.stdout + help_text.stderr:
        ways["stream"] = "-R --json-stream"
    for name, flags in ways.items():
        server = subprocess.Popen(
            [program, "-s", "-1", "-J", "-p", port, "--logfile", str(folder / f"{name}.server")]
        )
        try:
            client = [program, "-c", "127.0.0.1", "-p", port, "-t", "1", "-J", *flags.split()]
            for _ in range(100):  # until the server listens
                done = subprocess.run(client, capture_output=True, timeout=60)
                if b"unable to connect" not in done.stdout:
                    break
                (folder / "failed.client").write_bytes(done.stdout)
                time.sleep(0.1)
            (folder / f"{name}.client").write_bytes(done.stdout)
            server.wait(20)
        finally:
            server.kill()
            server.wait()
    failed = subprocess.run(
        [program, "-c", "127.0.0.1", "-p", port, "-J"], capture_output=True, timeout=60
    )
    (folder / "failed.client").write_bytes(failed.stdout)
    return folder


@pytest.mark.net
def test_logs_of_a_real_iperf3(real_logs: Path) -> None:
    logs = sorted(path.name for path in real_logs.iterdir())
    receivers = {"normal.server", "reverse.client", "bidir.client", "bidir.server", "udp.server"}
    receivers |= {"udp-reverse.client", "parallel.client", "output.client", "output.server"}
    receivers |= {"stream.client"} & set(logs)
    assert receivers < set(logs)
    for name in logs:
        path = str(real_logs / name)
        if name in receivers:
            log = read_throughput(path, "iperf3")
            assert 0.5 < log.lengths.sum() < 3
            assert log.mbps.max() > 1
            if "udp" in name:
                assert np.average(log.mbps, weights=log.lengths) == pytest.approx(9, rel=0.3)
            continue
        says = "iperf3 says: unable to connect" if "failed" in name else "is the sender's"
        with pytest.raises(TraceError, match=says):
            read_throughput(path, "iperf3")


GENET: dict[str, Any] = {"timestamps": [0, 1, 3], "bandwidths": [5, 6, 7], "delays": [20, 30, 30]}
GENET |= {"loss": 0.01, "queue": 30, "delay_noise": 2}


def test_time_between_the_rows_of_hsdpa_is_said(tmp_path: Path) -> None:
    rows = ("1 0 59.8 10.7 100000 1000\n", "2 1000 59.8 10.7 100000 1000\n")
    assert _log(tmp_path, "".join(rows), "hsdpa").notes == ()
    late = rows[1].replace("2 1000 ", "90 99000 ")
    assert _log(tmp_path, rows[0] + late, "hsdpa").notes == ("97 s between rows are left out",)


def test_genets_traces(tmp_path: Path) -> None:
    log = _log(tmp_path, json.dumps(GENET), "genet")
    assert (log.lengths.tolist(), log.mbps.tolist()) == ([1, 2], [5, 6])  # the last time is the end
    assert log.flags() == " --delay 26.6667 --queue 30 --loss 0.01"
    assert log.unsaid() == "delay_ms from 20 to 30, jitter_ms up to 2"
    scenario = log.scenario("x")
    assert scenario.duration_s == 3
    assert scenario.link.changes == (Change(1, rate_mbps=6, delay_ms=30),)
    assert (scenario.link.rate_mbps, scenario.link.delay_ms) == (5, 20)
    assert (scenario.link.loss, scenario.link.queue_packets) == (0.01, 30)
    assert scenario.link.jitter_ms == 2
    constant = {"timestamps": [30], "bandwidths": [8], "delays": [10], "loss": 0, "queue": 9}
    log = _log(tmp_path, json.dumps(constant), "genet")
    assert (log.lengths.tolist(), log.mbps.tolist()) == ([30], [8])
    assert (log.flags(), log.unsaid()) == (" --delay 10 --queue 9 --loss 0", "")


def test_alphartcs_traces(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"duration": 500, "capacity": 3000, "loss": 0, "rtt": 100}]
    rows += [{"duration": "1500", "capacity": "1000", "loss": "0.1", "rtt": "60"}]
    for tree in (
        {"uplink": {"trace_pattern": rows}},
        {"uplink": {}, "downlink": {"trace_pattern": rows}},
    ):
        log = _log(tmp_path, json.dumps({"type": "video", **tree}), "alphartc")
        assert (log.lengths.tolist(), log.mbps.tolist()) == ([0.5, 1.5], [3, 1])
        assert log.flags() == " --delay 35 --loss 0.075"
        assert log.unsaid() == "delay_ms from 30 to 50, loss from 0 to 0.1"
        assert log.scenario("x").link.changes == (Change(0.5, rate_mbps=1, delay_ms=30, loss=0.1),)
        assert log.notes == ()
    both = {"uplink": {"trace_pattern": rows}, "downlink": {"trace_pattern": rows[:1]}}
    log = _log(tmp_path, json.dumps(both), "alphartc")
    assert log.notes == ("of two directions the uplink is taken",)
    assert _log(
        tmp_path, json.dumps({"uplink": {"trace_pattern": [{**rows[0], "rtt": 4}]}}), "alphartc"
    ).delay_ms == [2]


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 5), st.sampled_from([0.0, 0.0, 0.3, 12.032, 70.0])),
        min_size=1,
        max_size=20,
    )
)
def test_a_trace_carries_at_each_time_what_the_log_does(pairs: list[tuple[float, float]]) -> None:
    lengths, mbps = np.array(pairs).T
    times = ThroughputLog(lengths, mbps).trace("x").times_ns // 1_000_000
    assert (np.diff(times) >= 0).all()
    ends, sums = np.cumsum(lengths) * 1e3, np.cumsum(lengths * mbps) * PACKETS_PER_MBIT
    assert times[-1] == max(round(ends[-1]), 1)
    at = np.arange(1, times[-1])
    carried = np.interp(at, np.append(0, ends), np.append(0, sums))
    assert np.abs(np.searchsorted(times, at, side="right") - carried).max(initial=0) <= 1 + 1e-5


def test_memory_is_taken_for_packets_alone_and_asked_for_before(tmp_path: Path) -> None:
    tracemalloc.start()
    log = _log(tmp_path, "1 1 0 0 90000 100\n1 1 0 0 1000 14000000\n", "hsdpa")
    assert log.trace("x").period_ns == 14_000_100_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    count = 10_000_000  # more than there were allowed
    rate = count / 20 / PACKETS_PER_MBIT
    trace = ThroughputLog(np.full(2, 10.0), np.full(2, rate)).trace("x")
    assert len(trace.times_ns) == count
    _, great = tracemalloc.get_traced_memory()
    assert sum(map(len, trace.lines())) > 5 * count
    _, written = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4e6
    assert great < 16 * count
    assert written - 8 * count < 64e6
    for mbps in (1e12, 1e300):
        with pytest.raises(TraceError, match=r"needs \S+ GB of memory and"):
            ThroughputLog(np.full(2, 10.0), np.full(2, mbps)).trace("x")


def test_the_command_writes_a_trace_that_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert f"{{{'|'.join(KINDS)}}}" in (trace.__doc__ or "")
    Path("log.json").write_text(LOGS["iperf3"])
    assert _distrlcc("trace --from iperf3 ~/log.json --out made.txt") == 0
    assert capsys.readouterr().out.startswith("made.txt: 4.5 s, 5500 opportunities")
    assert load_trace("~/made.txt").period_ns == 4_500_000_000
    link = "--delay 5 --queue 40 --loss 0.01 --seeds 1 --json e.json"
    assert _distrlcc(f"evaluate --against cubic --trace ~/made.txt {link}") == 0
    cubic = json.loads(Path("e.json").read_text())["schemes"]["cubic"]["overall"]
    assert 10 < cubic["mean_rtt_ms"]["mean"] < 80
    assert cubic["loss"]["mean"] > 0.005
    assert _distrlcc("evaluate --against cubic --suite ~/ --seeds 1 --json e.json") == 0
    assert list(json.loads(Path("e.json").read_text())["schemes"]["cubic"]["scenarios"]) == [
        "trace/made.txt"
    ]
    left_out = capsys.readouterr().err
    assert ": traces: 1; left out:\n  e.json: it is JSON of no known kind" in left_out
    assert "\n  log.json: distrlcc trace --from iperf3" in left_out
    assert _distrlcc("evaluate --against cubic --suite random --loss 0.1") == 2
    assert "--loss is for --trace FILE" in capsys.readouterr().err


def test_what_a_trace_cannot_say_is_said_as_flags_or_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_text(json.dumps(GENET))
    assert _distrlcc("trace --from genet g.json --out g.trace") == 0
    out = capsys.readouterr().out.splitlines()
    command = "distrlcc evaluate one --trace g.trace --delay 26.6667 --queue 30 --loss 0.01"
    assert out[1] == f"evaluate it with: {command}"
    assert out[2].startswith("these flags leave out: delay_ms from 20 to 30, jitter_ms up to 2")
    shared = "--against cubic --seeds 1 --json e.json"
    assert _distrlcc(f"evaluate {shared} {command.removeprefix('distrlcc evaluate one')}") == 0
    assert _distrlcc("trace --from genet g.json --out g.toml") == 0
    assert "distrlcc evaluate one --suite g.toml" in capsys.readouterr().out
    assert load_suite("g.toml").scenarios("test") == [
        replace(read_throughput("g.json", "genet").scenario("g"), name="g")
    ]
    # Units and columns are a CSV's; what was assumed is said.
    Path("c.csv").write_text("a,t,b\n1,0,5000\n1,100,6000\n")
    flags = "--columns t,b --unit ms,kbps --out c.trace"
    assert _distrlcc(f"trace --from csv c.csv {flags}") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("c.trace: 0.2 s")
    assert "times are read as ms, rates as kbps" in shown.err
    assert "assumed" not in shown.err
    for words in (
        "trace --from genet g.json --unit ms --out x",
        "trace c.csv --columns 1,2 --out x",
    ):
        assert _distrlcc(words) == 2
        assert "--columns" in capsys.readouterr().err
    assert not Path("x").exists()
