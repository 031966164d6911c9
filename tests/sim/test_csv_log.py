"""Tables of times and rates are read as their heads, flags and cells say, or refused."""

from __future__ import annotations

import codecs
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distrlcc.errors import ConfigError, TraceError
from distrlcc.sim.csv_log import _MISSING, _TIME_UNITS, given_units, read_csv
from distrlcc.sim.scenario import MAX_RATE_MBPS
from distrlcc.sim.throughput_log import _text, read_throughput

PREFIXES = {"": 1e-6, "k": 1e-3, "K": 1e-3, "M": 1.0, "m": 1.0, "G": 1e3, "g": 1e3}
WORDS = {"": 1e-6, "kilo": 1e-3, "mega": 1.0, "Giga": 1e3}
PERS = ("/s", "/sec", "_per_s", "_per_second", " per second", "ps")
RATES = {
    f"{p}{what}{per}": f for (p, f), what, per in product(PREFIXES.items(), ["bit", "bits"], PERS)
}
RATES |= {f"{p}b{per}": f for (p, f), per in product(PREFIXES.items(), ["/s", "ps"])}
RATES |= {f"{p}B{per}": 8 * f for (p, f), per in product(PREFIXES.items(), ["/s", "/sec", "ps"])}
RATES |= {
    f"{p}{w}{per}": 8 * f for (p, f), w, per in product(WORDS.items(), ["byte", "Bytes"], PERS)
}
RATES |= {f"{p}bits{per}": f for (p, f), per in product(WORDS.items(), PERS)}
RATES |= {
    "KBPS": 1e-3,
    "MBPS": 1.0,
    "MiB/s": 8 * 1.048576,
    "KiB/s": 8 * 1.024e-3,
    "Kibit/s": 1.024e-3,
}
"""Units of rates as they are written, and what one is in Mbit/s."""
STYLES = ("{} ({})", "{}[{}]", "{}_{}", "{}-{}", "{} {}", "{} / {}", '"{} in {}"')


def table(head: str, mark: str = ",", *, rate: float = 2.0) -> str:
    return head + "\n" + "".join(f"{t}{mark}{rate}\n" for t in (0, 1, 2))


@pytest.mark.parametrize("style", STYLES)
def test_a_head_says_the_units_of_its_columns(style: str) -> None:
    for (unit, mbps), name in product(RATES.items(), ["throughput", "DL rate"]):
        head = f"time_s,{style.format(name, unit)}"
        lengths, rates, notes = read_csv(table(head))
        assert rates == pytest.approx(2 * mbps, rel=1e-9), head
        assert "assumed" not in notes[-1], head
    for (unit, seconds), name in product(_TIME_UNITS.items(), ["time", "Timestamp"]):
        head = f"{style.format(name, unit)},mbps"
        lengths, _, notes = read_csv(table(head))
        assert lengths == pytest.approx(seconds, rel=1e-9), head
        assert "assumed" not in notes[-1], head


@pytest.mark.parametrize(
    ("head", "seconds", "mbps"),
    [
        ("time_ms,throughput_kbps", 1e-3, 2e-3),
        ("timeMs,throughputKbps", 1e-3, 2e-3),
        ("timems,throughputkbps", 1e-3, 2e-3),
        ("timestampUs,bitsPerSecond", 1e-6, 2e-6),
        ("ms,kbit", 1e-3, 2e-3),
        ("t,Mbps", 1, 2),
        ("times,rates", 1, 2),
        ("timestamps,bandwidths_kbps", 1, 2e-3),
        ("seq_num,Throughput", 1, 2),
        ("Timestamp,DL_bitrate", 1, 2e-3),
        ("x,y", 1, 2),
    ],
)
def test_heads_of_many_writers(head: str, seconds: float, mbps: float) -> None:
    lengths, rates, _ = read_csv(table(head))
    assert lengths == pytest.approx(seconds)
    assert rates == pytest.approx(mbps)
    swapped = ",".join(reversed(head.split(",")))
    rows = "".join(f"2,{t}\n" for t in (0, 1, 2))
    if head.split(",")[0] not in ("x", "seq_num"):
        assert read_csv(f"{swapped}\n{rows}")[0] == pytest.approx(seconds)


MARKS = {",": ",", ";": ";", "tab": "\t", "blank": " ", "blanks": "   ", ", ": ", "}
ENDS = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}
CODES = {"utf-8": b"", "utf-8-sig": b"", "utf-16": b"", "utf-16-le": codecs.BOM_UTF16_LE}
CODES |= {"utf-16-be": codecs.BOM_UTF16_BE, "utf-32": b""}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "head", ["", "time_ms,throughput_kbps", "# time_ms,throughput_kbps", "x,y"]
)
def test_marks_ends_codes_quotes_comments_and_heads(head: str, code: str) -> None:
    for mark, end, quote, comment in product(MARKS, ENDS, ["", '"', "'"], ["", "# said\n", "\n\n"]):
        cells = [[f"{quote}{cell}{quote}" for cell in row] for row in (("0", "5"), ("10", "6.5"))]
        lines = comment + (head.replace(",", MARKS[mark]) + "\n") * bool(head)
        lines += "".join(MARKS[mark].join(row) + "\n" for row in cells)
        data = CODES[code] + lines.replace("\n", ENDS[end]).encode(code)
        lengths, rates, _ = read_csv(_text(data))
        scale = 1e-3 if "ms" in head else 1.0
        assert lengths == pytest.approx(10 * scale), lines
        assert rates == pytest.approx([5 * scale, 6.5 * scale]), lines


def test_bytes_of_0_and_latin_1_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes that are not text"):
        _text(b"0,5\n1,6\0\n")
    with pytest.raises(ValueError, match="not text"):
        _text("Zeit,Débit\n0,5\n1,6\n".encode("latin-1"))


WITHOUT_MEANING = (
    *(form(word) for word in sorted(_MISSING) for form in (str, str.upper, str.title)),
    *("-", "", "--", "n/a", "#N/A", "#VALUE!", "?", "5 Mbps", "1,5", "5%", "0x10", "1_000", "٣"),
    *("2019-11-28", "07:27:58", "-5", "+inf", "<1", "1e999", "abc"),
)


@pytest.mark.parametrize("cell", WITHOUT_MEANING)
def test_a_cell_without_meaning_is_named_with_its_row(cell: str) -> None:
    for head, place, mark in product(["", "t,mbps\n", "# said\n"], range(3), ";\t"):
        rows = [["0", "5"], ["1", "6"], ["2", "7"]]
        rows[place][1] = cell
        text = head.replace(",", mark) + "".join(mark.join(row) + "\n" for row in rows)
        with pytest.raises(ValueError, match=f"row {place + 1 + bool(head)} has ") as caught:
            read_csv(text)
        assert repr(cell) in str(caught.value)
        assert "where a rate is expected" in str(caught.value)


@pytest.mark.parametrize(
    "cell", [c for c in WITHOUT_MEANING if c not in ("-5", "2019-11-28", "07:27:58")]
)
def test_a_time_without_meaning_is_named_with_its_row(cell: str) -> None:
    for head, place in product(["", "t;mbps\n"], range(3)):
        rows = [["0", "5"], ["1", "6"], ["2", "7"]]
        rows[place][0] = cell
        with pytest.raises(ValueError, match=f"row {place + 1 + bool(head)} has ") as caught:
            read_csv(head + "".join(";".join(row) + "\n" for row in rows))
        assert "where a time is expected" in str(caught.value)


@pytest.mark.parametrize("row", ["NA,NA", "NA,mbps", "time,NA", "-,-", "null,none", "2020-01-01,x"])
def test_a_first_row_is_a_head_only_with_names_and_no_values(row: str) -> None:
    with pytest.raises(ValueError, match="row 1 has"):
        read_csv(f"{row}\n0,5\n1,6\n2,7\n")


def test_a_head_of_unknown_words_is_said() -> None:
    _, rates, notes = read_csv("error,timeout\n0,5\n1,6\n")
    assert rates.tolist() == [5, 6]
    assert notes[0] == "row 1 is taken for a head: error, timeout"
    assert len(read_csv("time,what\n0,5\n1,6\n")[2]) == 1


@pytest.mark.parametrize(
    "dates",
    [
        "2019-11-28 07:27:58|2019-11-28 07:28:00",
        "2019-11-28T07:27:58Z|2019-11-28T07:28:00Z",
        "2019-11-28T07:27:58.5+01:00|2019-11-28T06:28:00.5+00:00",
        "2019.11.28_07.27.58|2019.11.28_07.28.00",
        "2019/11/28 07:27:58,250|2019/11/28 07:28:00,250",
        "2019-12-31 23:59:59|2020-01-01 00:00:01",
        "07:27:58|07:28:00",
        "07:27:58.75|07:28:00.75",
        "1574926078|1574926080",
        "1574926078000|1574926080000",
        "1574926078000000|1574926080000000",
        "1574926078000000000|1574926080000000000",
        "20191128072759|20191128072801",
        "20191231235959.5|20200101000001.5",
    ],
)
def test_dates_clocks_and_epochs_are_times(dates: str) -> None:
    for quote, head in product(["", '"'], ["", "Timestamp;Mbps\n"]):
        rows = "".join(f"{quote}{date}{quote};5\n" for date in dates.split("|"))
        lengths, rates, _ = read_csv(head + rows)
        assert lengths == pytest.approx([2.0, 2.0])
        assert rates.tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    "date", ["28/11/2019 07:27", "07:60:58", "2019-13-01", "2019-11-28 25:00:00", "Nov 28"]
)
def test_other_dates_are_refused_with_their_row(date: str) -> None:
    with pytest.raises(ValueError, match="row 2 has"):
        read_csv(f"2019-11-28 07:27:58;5\n{date};5\n")
    with pytest.raises(ValueError, match="row 1 has"):
        read_csv(f"{date};5\n2019-11-28 07:27:58;5\n")


def test_rows_of_one_second_are_averaged_and_said() -> None:
    text = "".join(f"2019.11.28_07.27.{s};{r}\n" for s, r in ((58, 1), (58, 3), (59, 4)))
    lengths, rates, notes = read_csv(text)
    assert lengths.tolist() == [1, 1]
    assert rates.tolist() == [2, 4]
    assert "1 rows have another's time" in notes[0]
    for rows in ("0,1\n0,2\n1,3\n", "0,1\n2,2\n1,3\n", "07:00:02;1\n07:00:01;1\n"):
        with pytest.raises(ValueError, match=r"the time of row \d is no later"):
            read_csv(rows)


FOUR = "Timestamp,Operator,DL_bitrate,UL_bitrate,PING\n" + "".join(
    f"2019.11.28_07.27.{50 + k},B,{1000 * (k + 1)},7,-\n" for k in range(3)
)


def test_columns_are_chosen_by_name_or_number() -> None:
    for columns in ("Timestamp,DL_bitrate", "timestamp, dl_bitrate", "1,3", "Timestamp,3"):
        lengths, rates, _ = read_csv(FOUR, columns)
        assert lengths.tolist() == [1, 1, 1]
        assert rates == pytest.approx([1, 2, 3])
    assert read_csv(FOUR, "1,3", given_units("bps"))[1] == pytest.approx([1e-3, 2e-3, 3e-3])
    assert read_csv(",time,mbps,rtt_ms\n0,0,5,9\n1,1,6,9\n")[1].tolist() == [5, 6]
    lumos = "run_num,seq_num,Throughput\n1,1,1500\n1,2,20\n"
    assert read_csv(lumos, "seq_num,Throughput", given_units("Mbps"))[1].tolist() == [1500, 20]


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        (FOUR, "", "5 columns (Timestamp, Operator, DL_bitrate, UL_bitrate, PING): choose with"),
        (FOUR, "Timestamp,DLbitrate", "did you mean DL_bitrate"),
        (FOUR, "1,6", "expected a number from 1 to 5"),
        (FOUR, "0,3", "expected a number from 1 to 5"),
        (FOUR, "1", "expected two"),
        (FOUR, "1,5", "row 2 has '-' where a rate is expected"),
        (FOUR, "3,2", "row 2 has 'B' where a rate is expected"),
        ("0,1,5\n1,1,6\n", "", "3 columns: choose with --columns TIME,RATE"),
        ("0,5\n1,6\n", "time,rate", "or a head's name"),
        ("time,time\n0,5\n1,6\n", "time,2", "2 columns are called so"),
        ("throughput_kbps,rtt_ms\n0,5\n1,6\n", "", "choose with --columns"),
        ("frame.time_relative,frame.len\n0,66\n1,90\n", "", "column 'frame.len' has no rates"),
        ("time,bandwidth_MHz\n0,20\n1,20\n", "", "column 'bandwidth_MHz' has no rates"),
        ("time,bandwidth (furlong)\n0,20\n1,20\n", "", "has no rates, or none of a known unit"),
        ("time,speed_kmh\n0,20\n1,20\n", "", "column 'speed_kmh' has no rates"),
        ("time,lat,Speed\n0,20,3\n1,20,4\n", "", "choose with --columns"),
        ("time,bandwidth_util\n0,1\n1,0.5\n", "", "column 'bandwidth_util' has no rates"),
        ("time,rate_B\n0,20\n1,20\n", "", "column 'rate_B' has no rates"),
        ("time,rtt_ms\n0,5\n1,6\n", "", "choose with --columns"),
        ("time,loss\n0,5\n1,6\n", "", "column 'loss' has no rates"),
        ("time,bytes\n0,5\n1,6\n", "", "column 'bytes' has no rates"),
        ("time_s,transferred_MB\n0,5\n1,6\n", "", "column 'transferred_MB' has no rates"),
        ("time,packets\n0,5\n1,6\n", "", "column 'packets' has no rates"),
        ("0,5\n1\n", "", "row 2 has 1 of 2 columns"),
        ("0;5,5\n1;6,5\n", "", "row 1 has '5,5' where a rate is expected"),
        ("0,1\n", "", "two rows"),
        ("t,mbps\n", "", "two rows"),
        ("1\n2\n3\n", "", "it has one column"),
        ("# nothing\n", "", "it has no rows"),
        ("0\t5\n\t\n1\t6\n", "", "row 2 has '' where a time is expected"),
        ("0,5\n,\n1,6\n", "", "row 2 has '' where a time is expected"),
        ("0 5\n\t\n1 6\n", "", "row 2 has 0 of 2 columns"),
        ("0 1500\n1 20\n", "", "does not say the unit of its rates, up to 1500: write --unit"),
        ("time,rate\n0,1500\n1,20\n", "", "does not say the unit of its rates"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, columns: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        read_csv(text, columns)


UNKNOWN_UNITS = """bytes/100ms|Mb/min|kbit/ms|kbit per ms|bytes per interval|MB / tick
x10 Mbps|10 kbps|100kbps|1e6 bit/s|10^6 bit/s|1000 * bit/s|log10 Mbps|ratio of Mbps|k|M|%"""


@pytest.mark.parametrize("unit", re.split(r"[|\n]", UNKNOWN_UNITS))
@pytest.mark.parametrize("name", ["throughput ({})", "rate [{}]", "bitrate {}"])
def test_a_unit_that_is_not_known_is_asked_for(unit: str, name: str) -> None:
    name = "bitrate ({})" if len(unit) == 1 else name
    text = f"time_s,{name.format(unit)}\n0,5\n1,6\n"
    with pytest.raises(
        ValueError, match=r"has no rates, or none of a known unit; .* or say --unit"
    ):
        read_csv(text)
    assert read_csv(text, units=given_units("kbps"))[1] == pytest.approx([5e-3, 6e-3])


@pytest.mark.parametrize("word", ["cumulative", "total", "sum", "transfer", "received", "sent"])
def test_a_sum_is_no_rate(word: str) -> None:
    for unit in ("mbit", "kbit", "MB", "Mbits"):
        with pytest.raises(ValueError, match="has no rates"):
            read_csv(f"time_s,{word}_{unit}\n0,5\n1,6\n")
        assert len(read_csv(f"time_s,{word}_rate_{unit}\n0,5\n1,6\n")[1]) == 2


def test_times_of_a_scale_and_lengths_are_no_times_and_a_gap_is_told() -> None:
    for scaled in ("time (10 ms)", "time_100us", "t x10^3 s", "time [1000 ns]", "t [0.5 s]"):
        with pytest.raises(ValueError, match="has no known unit; say it with --unit"):
            read_csv(f"{scaled},mbps\n0,5\n1,6\n")
    for lengths in ("duration_s", "time_diff", "delta", "dt", "iat_ms", "gap"):
        with pytest.raises(ValueError, match="has lengths; expected times, their sums"):
            read_csv(f"{lengths},mbps\n1,5\n2,6\n")
    rows = "".join(f"{k},5\n" for k in (*range(9), 1000))
    assert "a gap of 992 s, where most rows last 1 s" in read_csv(rows)[2][-1]
    assert "gap" not in "".join(read_csv(rows[:-7])[2])


def test_a_comment_is_a_head_only_if_it_names_rates() -> None:
    for comment in ("# packet loss", "# my log", "# two, parts", "#1,2", "# time rtt"):
        assert read_csv(f"{comment}\n0 5\n1 6\n")[1].tolist() == [5, 6]
    lengths, rates, _ = read_csv("# by hand\n# ms kbps\n0 5000\n100 6000\n# end\n")
    assert (lengths.tolist(), rates.tolist()) == ([0.1, 0.1], [5, 6])


def test_units_of_the_user_come_first() -> None:
    assert read_csv("0 5\n100 6\n", units=given_units("ms"))[0].tolist() == [0.1, 0.1]
    head = "time_ms,throughput_kbps\n0,5\n100,6\n"
    lengths, rates, _ = read_csv(head, units=given_units("s,Mbit/s"))
    assert (lengths.tolist(), rates.tolist()) == ([100, 100], [5, 6])
    for unit, mbps in RATES.items():
        assert given_units(unit)[1][0] == pytest.approx(mbps), unit  # type: ignore[index]
    for unit in ("ms,s", "kbps,ms,Mbps"):
        with pytest.raises(ConfigError, match="one unit of times and one of rates"):
            given_units(unit)
    for unit in ("furlong", "kbps,x", "packets", "b", "%"):
        with pytest.raises(ConfigError, match="unknown unit"):
            given_units(unit)


@given(
    st.lists(st.floats(0, 999, allow_subnormal=False), min_size=2, max_size=9),
    st.sampled_from(sorted(RATES)),
    st.sampled_from(sorted(set(_TIME_UNITS))),
    st.sampled_from(",;\t "),
)
def test_any_numbers_come_back(rates: list[float], unit: str, time: str, mark: str) -> None:
    assume(max(rates) * RATES[unit] <= MAX_RATE_MBPS)
    head = mark.join([f"time_{time}", f"rate_{unit}".replace(" ", "_")])
    rows = "".join(f"{k}{mark}{rate!r}\n" for k, rate in enumerate(rates))
    lengths, mbps, _ = read_csv(f"{head}\n{rows}")
    assert lengths == pytest.approx(_TIME_UNITS[time])
    assert mbps == pytest.approx(np.array(rates) * RATES[unit])


@pytest.mark.parametrize("unit", ["", *(f"_{each}" for each in ("kbps", "Mbps", "Gbps", "bps"))])
def test_a_rate_that_no_link_has_is_refused_with_its_row(unit: str) -> None:
    for rate, row in (("1e300", 3), ("9e99", 2)):
        rows = [f"{k},{rate if k + 2 == row else 5}" for k in range(3)]
        with pytest.raises(ValueError, match=f"row {row} has '{rate}': no link has so high a rate"):
            read_csv("\n".join([f"time_s,rate{unit}", *rows]))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("genet", '{"timestamps": [0, 1, 2], "bandwidths": [5, 1e300, 4]}'),
        ("alphartc", '{"uplink": {"trace_pattern": [{"duration": 9, "capacity": 1e300}]}}'),
        ("hsdpa", "1 0 1 1 5 1000\n1 0 1 1 1e300 1000\n"),
        ("fcc", "unit_id,target,bytes_sec\n1,a,1e300\n"),
        ("iperf3", '{"intervals": [{"sum": {"seconds": 1, "bits_per_second": 1e300}}]}'),
    ],
)
def test_a_log_of_a_rate_that_no_link_has_is_refused(kind: str, data: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(data)
    with pytest.raises(TraceError, match=r"interval \d has .* Mbit/s: no link has so high a rate"):
        read_throughput(str(path), kind)


CELLS = [
    "0",
    "1",
    "2.5",
    "3e0",
    "",
    "-",
    "NA",
    "time",
    "kbps",
    "rate",
    "2019-11-28",
    "07:00:00",
    "#1",
]


@given(st.lists(st.lists(st.sampled_from(CELLS), min_size=2, max_size=2), max_size=6))
def test_no_row_is_dropped(rows: list[list[str]]) -> None:
    try:
        lengths, _, notes = read_csv("".join(f"{time};{rate}\n" for time, rate in rows))
    except ValueError:
        return
    kept = [row for row in rows if row[0] != "#1"]
    has_head = kept[0][0] in ("time", "kbps", "rate")
    shared = sum(int(note.split()[0]) for note in notes if "another's time" in note)
    assert len(lengths) == len(kept) - has_head - shared


@pytest.mark.parametrize(
    "column",
    ["direction", "flow_id", "run", "Stream ID", "Flow #", "Direction (UL/DL)", "connid", "socket"],
)
def test_rows_of_several_directions_flows_or_runs_are_no_link(column: str) -> None:
    rows = [("00:00:00", "a", "50"), ("00:00:00", "b", "2"), ("00:00:01", "a", "50")]
    text = f"time,{column},mbps\n" + "".join(",".join(row) + "\n" for row in rows)
    with pytest.raises(ValueError, match="has 2 values, as 'a' and 'b': keep the rows of one, or"):
        read_csv(text)
    assert read_csv(text.replace("00,b", "00,a"))[1].tolist() == [26, 50]
    compass = text.replace(column, "compassDirection").replace("a", "10").replace("b", "20")
    assert len(read_csv(compass.replace("m10", "ma").replace("m20ps", "mbps"), "1,3")[1]) == 2


def test_dates_with_a_zone_and_without_are_hours_apart() -> None:
    rows = "time,mbps\n2019-11-28 07:27:58{},5\n2019-11-28 07:27:59{},6\n"
    for zones in (("", ""), ("Z", "UTC"), ("+0100", "+01:00")):
        assert read_csv(rows.format(*zones))[0].tolist() == [1, 1]
    for zones, having, without in ((("+01:00", ""), 2, 3), (("", "Z"), 3, 2)):
        with pytest.raises(ValueError, match=f"row {having} has a zone, that of row {without} has"):
            read_csv(rows.format(*zones))
    with pytest.raises(ValueError, match="row 3 has 'Nov 28' where a date is expected"):
        read_csv("time,mbps\n2019-11-28 07:27:58Z,5\nNov 28,6\n")


def test_an_uptime_of_14_digits_is_no_date() -> None:
    times = "{},mbps\n20010112103000,5\n20010113103000,6\n"
    assert read_csv(times.format("time_us"))[0].tolist() == [1, 1]
    assert read_csv(times.format("time"))[0].tolist() == [86400, 86400]
