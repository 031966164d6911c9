"""Traces: read, generated, constant."""

import bz2
import gzip
import lzma
import re
import shlex
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrlcc.errors import TraceError
from distrlcc.sim.throughput_log import read_throughput
from distrlcc.sim.trace import constant_times, kept_trace, load_trace, parse_trace


def test_a_trace_is_read_in_milliseconds() -> None:
    read = parse_trace(b"0\n1\n1\n4\n", "t")
    assert read.times_ns.tolist() == [0, 1_000_000, 1_000_000, 4_000_000]
    assert read.period_ns == 4_000_000
    assert read.mean_mbps == pytest.approx(4 * 1504 * 8 / 4000)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"1\ntwo\n3\n", "line 2: 'two'"),
        (b"5\n3\n", "entry 2: time 3 comes after 5"),
        (b"-1\n3\n", "line 1: '-1'"),
        (b"1\r\n+5\r\n", "line 2: '+5'"),
        (b"0\n0\n", "no period"),
        (b"1\n" * 40_000 + b"2 3\n", "line 40001: '2 3'"),
        (b"1\n99999999999999999999999\n", "line 2: '99999999999999999999999'"),
        (b"1\n99999999999\n", "above the limit"),
        (b"\xff\xfe\x00\x01\n", "line 1"),
        (b"1\n18446744073709551617\n", "line 2: '18446744073709551617'"),
        (b"\n\n", "empty"),
    ],
)
def test_a_bad_trace_is_one_clear_line(data: bytes, says: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(data, "bad.trace")
    assert says in str(caught.value)
    assert "bad.trace" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_trace_or_a_trace_error(data: bytes) -> None:
    try:
        read = parse_trace(data, "fuzz")
    except TraceError:
        return
    assert read.period_ns > 0
    assert (np.diff(read.times_ns) >= 0).all()


def test_missing_folder_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(str(tmp_path / "none"))
    with pytest.raises(TraceError, match="is a folder"):
        load_trace(str(tmp_path))
    with (tmp_path / "huge").open("wb") as file:
        file.write(b"1\n" * 4096)
        file.truncate(2**43)  # a hole: no disk has it
    with pytest.raises(TraceError, match=r"needs \S+ GB of memory and [\d.]+ GB are free"):
        load_trace(str(tmp_path / "huge"))


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.up"
    for text in ("1\n2\n", "1\n3\n", "1\n1\n4\n"):
        path.write_text(text)
        assert [t // 10**6 for t in load_trace(str(path)).times_ns] == [*map(int, text.split())]
    assert load_trace(str(path)) is load_trace(str(path))
    path.unlink()
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(str(path))


def test_generators_are_seeded_and_of_the_rate_asked_for() -> None:
    assert load_trace("poisson:12:3").mean_mbps == pytest.approx(12, rel=0.02)
    kept_trace.cache_clear()
    first = load_trace("cellular:5").times_ns.copy()
    kept_trace.cache_clear()
    assert np.array_equal(first, load_trace("cellular:5").times_ns)
    assert not np.array_equal(first, load_trace("cellular:6").times_ns)
    rates = [load_trace(f"cellular:{k}").mean_mbps for k in range(40)]
    assert 0.3 < min(rates) < 2 < 10 < max(rates) < 60
    assert load_trace("constant:12.032").times_ns.tolist() == [1_000_000]
    assert load_trace("constant:120.32").times_ns.tolist() == [1_000_000] * 10
    assert load_trace("constant:0.1").mean_mbps == pytest.approx(0.1, rel=1e-6)
    wrong = "cellular:x poisson:12:a poisson:-3:1 poisson:nan:1 constant:x constant:0 constant:1/3"
    for bad in wrong.split():
        with pytest.raises(TraceError):
            load_trace(bad)


def test_a_generator_that_is_misspelled_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("cellular:SEED", "poisson:MBPS:SEED", "constant:MBPS"):
        name = form.partition(":")[0]
        values = ":".join(["5"] * form.count(":"))
        for wrong in (name.upper(), name.capitalize(), name[:-1], f"{name}s"):
            with pytest.raises(TraceError) as caught:
                load_trace(f"{wrong}:{values}")
            assert f"did you mean {name}:{values}? expected {form}, or a file" in str(caught.value)
        with pytest.raises(TraceError, match="did you mean"):  # longer than a file's name may be
            load_trace(f"{name.upper()}:{'9' * 5000}")
        for values in ("5:5:5", "", "x"):
            with pytest.raises(TraceError, match=f"expected {form}"):
                load_trace(f"{name}:{values}")
    with pytest.raises(TraceError, match="expected poisson:MBPS:SEED, or a file"):
        load_trace("poisson:5")
    monkeypatch.chdir(tmp_path)  # a file of such a name is a file
    Path("poisson:5").write_text("1\n")
    assert load_trace("poisson:5").period_ns == 1_000_000


@pytest.mark.parametrize("kind", ["csv", "iperf3", "genet", "fcc", "hsdpa", "alphartc"])
def test_no_text_and_folders_are_one_line(kind: str, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    for data in (bytes(range(256)) * 9, bytes(range(128, 256)) * 9):
        binary.write_bytes(data)
        with pytest.raises(TraceError, match="not text"):
            read_throughput(str(binary), kind)
    with pytest.raises(TraceError, match="is a folder; expected a file; 'distrlcc evaluate --su"):
        read_throughput(str(tmp_path), kind)


def test_a_suggested_command_writes_here_and_not_beside_its_input(tmp_path: Path) -> None:
    path = tmp_path / "a b.csv"
    path.write_text("time_s,rate_kbps\n0,5\n")
    says = f"{shlex.quote(str(path))} --out 'a b.csv.trace' makes a trace of it"
    with pytest.raises(TraceError, match=re.escape(says)):
        load_trace(str(path))


def test_recorded_traces_have_their_published_rates(traces_folder: Path) -> None:
    for name, mbps in (("Verizon-LTE-short.down", 5.04), ("ATT-LTE-driving-2016.up", 1.92)):
        assert load_trace(str(traces_folder / name)).mean_mbps == pytest.approx(mbps, abs=0.01)


def test_a_packet_per_millisecond_is_one_line() -> None:
    assert constant_times(Fraction(2)).tolist() == [1, 1]
    assert constant_times(Fraction(3, 2)).tolist() == [1, 2, 2]
    assert constant_times(Fraction(1, 10)).tolist() == [10]


@pytest.mark.parametrize(
    "rate", ["1/12000", "0.0417", "4.99987", "200/12", "8000", "12000000/12032000", "3.14159"]
)
def test_the_rate_is_kept_over_a_period(rate: str) -> None:
    times = constant_times(Fraction(rate))
    assert len(times) / times[-1] == pytest.approx(float(Fraction(rate)), rel=2e-7)
    assert (np.diff(times) >= 0).all()
    # Evenly: never more than one packet ahead or behind.
    ideal = np.arange(1, len(times) + 1) * (times[-1] / len(times))
    assert np.abs(times - ideal).max() < 1.000001


PCAP, JSON = b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00", b'{"start": {}, "intervals": []}'
OTHERS = {
    "two columns": (b"0,5\n1,6\n", "distrlcc trace --from csv"),
    "a head": (b"time_s mbps\n0 5\n1 6\n", "distrlcc trace --from csv"),
    "lost": (b"NA;5\n1;6\n", "distrlcc trace --from csv"),
    "fcc": (b"unit_id,dtime,target,bytes_sec\n7,2016,a,9\n", "distrlcc trace --from fcc"),
    "hsdpa": (b"1289406399 549893 59.8 10.7 248456 1188\n", "distrlcc trace --from hsdpa"),
    "iperf3": (JSON, "distrlcc trace --from iperf3"),
    "stream": (b'{"event":"start","data":{}}\n', "distrlcc trace --from iperf3"),
    "iperf3 as text": (b"Connecting to host 10.0.0.2, port 5201\n", "run iperf3 with -J"),
    "genet": (b'{"timestamps": [0, 1],\n "bandwidths": [5, 6]}', "distrlcc trace --from genet"),
    "alphartc": (b'{"uplink": {\n"trace_pattern": []}}', "distrlcc trace --from alphartc"),
    "json": (b'{"a": 1}', "JSON of no known kind"),
    "mm-link": (b"# mahimahi mm-link\n# queue: infinite\n", "distrlcc check link"),
    "no head": (b"12 + 1504\n12 # 1504\n", "distrlcc check link"),
    "toml": (b'name = "x"\n[link]\nrate_mbps = 3\n', "--suite takes it"),
    "pcap": (PCAP, "a capture of packets"),
    "pcapng": (b"\n\r\r\n\x1c\x00", "a capture of packets"),
    "png": (b"\x89PNG\r\n\x1a\n\0", "an image"),
    "jpeg": (b"\xff\xd8\xff\xe0\x00", "an image"),
    "gzip": (gzip.compress(b"1\n2\n"), "gunzip"),
    "bzip2": (bz2.compress(b"1\n2\n"), "bunzip2"),
    "xz": (lzma.compress(b"1\n2\n"), "unxz"),
    "xlsx": (b"PK\x03\x04\x14\x00", "spreadsheet"),
    "elf": (b"\x7fELF\x02\x00", "binary"),
}


@pytest.mark.parametrize("form", OTHERS)
def test_a_file_of_another_form_is_told_its_command(form: str, tmp_path: Path) -> None:
    data, says = OTHERS[form]
    path = tmp_path / "my file.dat"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        load_trace(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    if "trace --from" in says:  # the command is one that a shell takes
        words = shlex.split(str(caught.value)[str(caught.value).index("distrlcc trace") :])
        assert words[4] == str(path)


def test_a_trace_may_have_a_mark_of_utf8_and_any_ends_of_lines() -> None:
    for data in (b"\xef\xbb\xbf1\n2\n", b"1\r\n2\r\n", b"1\r2", b" 1 \n\t2", b"\n1\n\n2 \n\n\n"):
        assert parse_trace(data, "t").times_ns.tolist() == [1_000_000, 2_000_000]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=50).map(sorted))
def test_lines_are_what_is_read(times: list[int]) -> None:
    data = "".join(f"{time}\n" for time in times).encode()
    assert b"".join(parse_trace(data, "t").lines()) == data
