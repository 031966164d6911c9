"""Logs of throughput become traces whose link carries what the log says, when it says it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.cli.trace import KINDS as OFFERED
from distrlcc.errors import TraceError
from distrlcc.sim.throughput_log import KINDS, read_throughput
from distrlcc.sim.trace import load_trace
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
    times = read_throughput(str(tmp_path / "a.log"), kind).times_ns // 1_000_000
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
    trace = read_throughput(str(log), "fcc")
    assert trace.period_ns == 10_000_000_000
    assert trace.mean_mbps == pytest.approx(1.2, rel=1e-3)
    log.write_text(head + "".join(rows) + rows[0].replace("www.a.b", "www.c.d"))
    with pytest.raises(TraceError, match="2 pairs of unit_id and target; cut out the lines of one"):
        read_throughput(str(log), "fcc")


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("csv", "", "is no csv log (it is empty)"),
        ("csv", "0 1\n", "two rows say how long"),
        ("csv", "0 1\n0 1\n", "the time of row 2 is no later"),
        ("csv", "0;5,5\n1;6,5\n", "row 1 has 3 numbers"),
        ("csv", "0 0\n1 0\n", "not all of them 0"),
        ("csv", "s rate\n0 1\n1 nan\n", "row 3 has 'nan'"),
        ("csv", "0 1\n1 inf\n", "row 2 has 'inf'"),
        ("csv", "0 1\n1 many\n", "expected lines of two numbers"),
        ("csv", "0 1\n9000 1\n", "5.0 hours"),
        ("csv", "0 1e6\n9 1e6\n", "cut out a part"),
        ("hsdpa", "1 2 3\n", "expected lines of six numbers"),
        ("iperf3", "{}", "expected what iperf3 -J writes"),
        ("iperf3", '{"error": "unable to connect to server"}', "is no iperf3 log"),
        ("fcc", "a,b\n1,2\n", "expected lines of FCC's"),
    ],
)
def test_no_log_is_one_clear_line(kind: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.log").write_text(text)
    with pytest.raises(TraceError) as caught:
        read_throughput(str(tmp_path / "bad.log"), kind)
    assert says in str(caught.value)
    assert "bad.log" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_writes_a_trace_that_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert tuple(KINDS) == OFFERED
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
    capsys.readouterr()
    assert _distrlcc("evaluate --against cubic --suite random --loss 0.1") == 2
    assert "--delay, --queue and --loss are for --trace" in capsys.readouterr().err
