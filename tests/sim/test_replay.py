from pathlib import Path

import pytest

from distrlcc.errors import TraceError
from distrlcc.sim.replay import read_log, replay
from distrlcc.sim.trace import load_trace, parse_trace

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


def test_a_small_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LOG)
    assert replay(read_log(path), parse_trace(b"1\n", "12")).mismatches == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [("11 - 1504 1", "11 - 1504 2"), ("packets=1", "packets=2"), ("10 d 1 100\n", "")],
)
def test_a_difference_is_found(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "log"
    path.write_text(LOG.replace(old, new))
    assert replay(read_log(path), parse_trace(b"1\n", "12")).mismatches


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello\n", "header"),
        (LOG + "12 ? 3\n", "line 9"),
        (LOG.replace("droptail", "codel"), "'codel' is not modelled"),
    ],
)
def test_no_log_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_log(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_log(tmp_path / "none")
