"""Tables of times and rates: their separators, heads, units and dates.

A head names columns and their units: ``time_ms,throughput_kbps``, ``Time [s]``, ``bytes/s``.
A reader is told what was assumed, and a cell without meaning is refused.
"""

import csv
import re
from datetime import datetime

import numpy as np

from distrlcc.errors import ConfigError, listed, unknown_name
from distrlcc.sim.scenario import MAX_RATE_MBPS
from distrlcc.types import FloatArray

Unit = tuple[float, str]  # a factor to s or Mbit/s, and the unit's name
Units = tuple[Unit | None, Unit | None]  # of times and of rates

_ASSUMED_MBPS = 1000.0  # greater rates are not taken for Mbit/s unless a head or a user says so
_TIME_UNITS = {
    word: factor
    for factor, words in (
        (1.0, "s sec secs second seconds"),
        (1e-3, "ms msec msecs millis millisecond milliseconds"),
        (1e-6, "us µs μs usec usecs micros microsecond microseconds"),
        (1e-9, "ns nsec nsecs nanos nanosecond nanoseconds"),
        (60.0, "min mins minute minutes"),
        (3600.0, "h hour hours"),
    )
    for word in words.split()
}
_TIMES, _RATES, _NO_RATES, _LOGS, _AMOUNTS, _LENGTHS, _PARTS, _MISSING = (
    set(words.split())
    for words in (
        "time times timestamp timestamps ts t elapsed date datetime epoch unix clock",
        "throughput tput rate rates bitrate datarate bandwidth bw capacity goodput",
        "pps mpps packets pkts frames percent percentage ratio fraction frac util utilization loss "
        "error errors rtt latency delay len length size count hz khz mhz ghz kmh km mph k m g b",
        "log log10 ln db dbm ratio fraction",
        "cumulative total sum transfer transferred volume received sent",
        "diff delta gap iat interarrival dt duration",
        "direction dir flow flowid stream streamid run runid conn connid connection session socket "
        "client user interface iface id num",
        "na nan null none nil inf infinity unknown missing undefined",
    )
)
"""Words of columns' names that mean times, rates, neither, what no unit scales, sums, lengths of
time and what has rows of its own; words of cells without a value."""
_RATE_UNIT = re.compile(
    r"(?<![a-z])(?P<prefix>kilo|mega|giga|tera|[kmgt]?)(?P<binary>i?)[ _-]?"
    r"(?P<what>bits?|bytes?|octets?|b)"
    r"(?P<per>ps|[ _]?(?:/|per|p)?[ _]?s(?:ec(?:ond)?s?)?)?(?![a-z])",
    re.IGNORECASE,
)
_POWER = r"(?<![a-z0-9.^])x?(?:10\^-?\d+|1e-?\d+|10+)[ _*]*"  # before a unit, which it scales
_SCALED_TIME = re.compile(r"(?<![a-z])x?\d[ _*]*[munµ]?s(?![a-z])", re.IGNORECASE)
_KNOWN = {"DL_bitrate": "kbps", "UL_bitrate": "kbps"}
"""Columns of a known unit that their names lack: G-NetTrack's, in 4G and 5G data sets."""
_SHOWN_UNITS = ("s", "ms", "us", "ns", "bps", "kbps", "Mbps", "Gbps", "B/s", "kB/s", "MB/s")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_DATE = re.compile(
    r"(\d{4})[./-](\d\d?)[./-](\d\d?)(?:[T _]+(\d\d?)[:.](\d\d)(?:[:.](\d\d)([.,]\d+)?)?)?"
    r" ?(Z|UTC|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_CLOCK = re.compile(r"(\d\d?):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)
_DIGITS_ALONE = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?!\d)", re.ASCII)
"""A date of 14 digits, as iperf 2 writes it: no epoch has such a number, in whatever unit."""
_COMMENT = re.compile(r"(?:#(?!N/A|VALUE!|DIV/0!|REF!|NAME\?|NUM!|NULL!)|%|//)[#%/\s]*")


def read_csv(
    text: str, columns: str = "", units: Units = (None, None)
) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """Read rows of a time and of the rate from then on; the last lasts as long as the one before.

    ``columns`` are names, or numbers from 1, of times and rates, as ``time,rate``; empty: as the
    head says, or the two that there are. ``units`` are a user's, see `given_units`; None: as the
    head says, else s and Mbit/s. Returns the intervals' lengths, s, and rates, Mbit/s, ``[K]``, and
    how they were read. Raises a ValueError that names the row.
    """
    rows, comment = _rows(text)
    if not rows:
        raise ValueError("it has no rows")
    # The head: names, and no value where one is needed; it may be the comment above the rows.
    first, width = rows[0][1], len(rows[0][1])
    numbered = all(each.strip().isdecimal() for each in columns.split(","))
    needed = [first[k] for k in _chosen(columns, [], width)] if numbered else first
    named, valued = sum(map(_is_name, needed)), any(map(_is_value, needed))
    is_head = named == len(needed) or (named >= 2 and not valued and width > 2)
    is_comment = not is_head and len(comment) == width and any(map(_is_rate, comment))
    names = first if is_head else comment if is_comment else []
    time_at, rate_at = _chosen(columns, names, width)
    # Units: the user's, else the head's.
    time_unit, rate_unit = _units(names[time_at], names[rate_at], units) if names else units
    notes = []
    if is_head and not any(_is_rate(name) or _is_time(name) for name in names):
        notes.append(f"row {rows[0][0]} is taken for a head: {', '.join(names)}")
    rows = rows[is_head:]
    if len(rows) < 2:
        raise ValueError("it has fewer than two rows, which give the length of the first")
    short = next(((number, len(row)) for number, row in rows if len(row) != width), None)
    if short is not None:
        raise ValueError(f"row {short[0]} has {short[1]} of {width} columns")
    _require_one_link([cells for _, cells in rows], names, (time_at, rate_at))
    # Times, which must increase; but rows may share a second that is written as a date.
    first_time = rows[0][1][time_at]
    is_uptime = time_unit and time_unit[0] < 1e-3 and _NUMBER.fullmatch(first_time)  # no date
    is_date = _seconds(first_time) is not None and not is_uptime
    values = [
        (_time(row[time_at], number, is_date), number_in(row[rate_at], number, "a rate", least=0))
        for number, row in rows
    ]
    zoned = [bool((date := _date(row[time_at])) and date[8]) for _, row in rows if is_date]
    if len(set(zoned)) > 1:
        without, having = (rows[zoned.index(which)][0] for which in (False, True))
        raise ValueError(f"the date of row {having} has a zone, that of row {without} has none")
    least = rate_unit[0] if rate_unit else 1e-6  # whatever its unit is
    for (number, row), (_, rate) in zip(rows, values, strict=True):
        if rate * least > MAX_RATE_MBPS:
            raise ValueError(
                f"row {number} has {row[rate_at][:40]!r}: no link has so high a rate; expected "
                f"{MAX_RATE_MBPS:.0f} Mbit/s at most"
            )
    times, rates = np.array(values).T
    steps = np.diff(times)
    falls = np.flatnonzero(steps < 0 if is_date else steps <= 0)
    if len(falls):
        raise ValueError(f"the time of row {rows[int(falls[0]) + 1][0]} is no later")
    if not steps.all():
        times, place, counts = np.unique(times, return_inverse=True, return_counts=True)
        rates = np.bincount(place, rates) / counts
        notes.append(f"{len(rows) - len(times)} rows have another's time: the mean rate is taken")
    # In s and Mbit/s.
    time_unit = (1.0, "dates") if is_date else time_unit or _epoch(float(times[0]))
    if rate_unit is None and rates.max() > _ASSUMED_MBPS:
        raise ValueError(
            f"it does not say the unit of its rates, up to {rates.max():g}: write --unit kbps, "
            "Mbps, bps or B/s"
        )
    rate_unit = rate_unit or (1.0, "Mbit/s (assumed)")
    said = f"times are read as {time_unit[1]}, rates as {rate_unit[1]}"
    notes.append(said + "; --unit ms,kbps would say otherwise" * ("assumed" in said))
    lengths = np.diff(times) * time_unit[0]
    if lengths.max() > 100 * np.median(lengths):
        notes.append(
            f"a gap of {lengths.max():g} s, where most rows last {np.median(lengths):g} s: its "
            "rate is that before it"
        )
    return np.append(lengths, lengths[-1:]), rates * rate_unit[0], tuple(notes)


def _require_one_link(rows: list[list[str]], names: list[str], chosen: tuple[int, int]) -> None:
    """Raise ValueError if rows are of several directions, flows or runs, as a column says."""
    for k, name in enumerate(names):
        words = set(_words(re.split(r"[(\[#]", name)[0])) - {""}
        is_kind = bool(words - {"id", "num"}) and words <= _PARTS and k not in chosen
        kinds = list(dict.fromkeys(cells[k] for cells in rows if is_kind))
        if len(kinds) > 1:
            raise ValueError(
                f"column {name!r} has {len(kinds)} values, as {kinds[0]!r} and {kinds[1]!r}: keep "
                "the rows of one, or leave out the column if all are of one link"
            )


def _time(cell: str, row: int, is_date: bool) -> float:
    found = _seconds(cell) if is_date else number_in(cell, row, "a time")
    if found is None:
        raise ValueError(f"row {row} has {cell[:40]!r} where a date is expected")
    return found


def _epoch(first: float) -> Unit:
    """Return the unit of times that nothing names: s, unless only an epoch is so great."""
    thousands = sum(abs(first) >= most for most in (1e11, 1e14, 1e17))
    return 1e-3**thousands, f"{('s', 'ms', 'us', 'ns')[thousands]} (assumed)"


def number_in(cell: str, row: int, what: str, least: float = -np.inf) -> float:
    """Return the number of a cell; raises ValueError if it has none, or one below ``least``."""
    value = float(cell) if _NUMBER.fullmatch(cell) else np.nan
    if not least <= value < np.inf:
        raise ValueError(f"row {row} has {cell[:40]!r} where {what} is expected")
    return value


def _rows(text: str) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Return rows of cells with the numbers of their lines, and the cells of the comment above."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip(" ")]
    given = re.fullmatch(r"sep=(.)\s*", lines[0][1]) if lines else None  # Excel's
    comment = ""
    kept: list[tuple[int, str]] = []
    for number, line in lines[given is not None :]:
        if found := _COMMENT.match(line.lstrip()):
            comment = comment if kept else line.lstrip()[found.end() :]
        else:
            kept.append((number, line))
    in_first = [m for m in "\t;," if kept and m in kept[0][1]]
    in_all = [m for m in in_first if all(m in line for _, line in kept)]
    mark = given[1] if given else (in_all or in_first or [" "])[0]

    def cells(line: str) -> list[str]:
        line = " ".join(line.split()) if mark == " " else line
        row = next(csv.reader([line], delimiter=mark, skipinitialspace=True))
        return [cell.strip().strip("'") for cell in row]

    return [(number, cells(line)) for number, line in kept], cells(comment) if comment else []


def _chosen(columns: str, names: list[str], width: int) -> tuple[int, int]:
    """Return the places of times and rates, as `read_csv` takes them."""
    if columns:
        wanted = [each.strip() for each in columns.split(",")]
        if len(wanted) != 2 or "" in wanted:
            raise ValueError(f"--columns {columns}: expected two, as in --columns time,rate")
        return _place(wanted[0], names, width), _place(wanted[1], names, width)
    rates = [k for k, name in enumerate(names) if _is_rate(name)]
    others = [k for k, name in enumerate(names) if not _NO_RATES & set(_words(name))]
    others = [k for k in others if k not in rates]
    times = [k for k in others if _is_time(names[k])]
    times = times or [k for k in others if _time_unit(names[k])]
    if len(times) == len(rates) == 1:
        return times[0], rates[0]
    if width == 2 and rates in ([], [1]) and times in ([], [0]):
        return 0, 1
    if width == 1:
        raise ValueError("it has one column")
    shown = f" ({', '.join(names)})" if names else ""
    raise ValueError(f"it has {width} columns{shown}: choose with --columns TIME,RATE")


def _place(wanted: str, names: list[str], width: int) -> int:
    found = [k for k, name in enumerate(names) if name == wanted]
    found = found or [k for k, name in enumerate(names) if name.lower() == wanted.lower()]
    if len(found) > 1:
        raise ValueError(f"--columns {wanted}: {len(found)} columns are called so; give a number")
    if found:
        return found[0]
    if wanted.isdecimal() and 1 <= int(wanted) <= width:
        return int(wanted) - 1
    if names and not wanted.isdecimal():
        raise ValueError(unknown_name("column", wanted, names))
    raise ValueError(f"--columns {wanted}: expected a number from 1 to {width}, or a head's name")


def _units(time: str, rate: str, units: Units) -> Units:
    """Return the user's units, else those that two columns' names have; raises ValueError."""
    rate = _KNOWN.get(rate, rate)
    time_unit, rate_unit = units[0] or _time_unit(time), units[1] or _rate_unit(rate)
    if units[0] is None and _SCALED_TIME.search(time):
        raise ValueError(f"column {time!r} has no known unit; say it with --unit")
    if _LENGTHS & set(_words(time)):
        raise ValueError(f"column {time!r} has lengths; expected times, their sums")
    if rate_unit is None and not _may_be_rates(rate):
        raise ValueError(
            f"column {rate!r} has no rates, or none of a known unit; choose with --columns "
            "TIME,RATE, or say --unit"
        )
    return time_unit, rate_unit


def given_units(unit: str) -> Units:
    """Return the units that a user names, as ``kbps`` or ``ms,kbps``; raises ConfigError."""
    units: list[Unit | None] = [None, None]
    for word in listed(unit, "--unit"):
        is_rate = word.lower() not in _TIME_UNITS
        found = _time_unit(word)
        if is_rate:
            found = _rate_unit(f"rate {word}") if _RATE_UNIT.fullmatch(word) else None
        if found is None:
            raise unknown_name("unit", word, _SHOWN_UNITS)
        if units[is_rate] is not None:
            raise ConfigError(f"--unit {unit}: expected one unit of times and one of rates")
        units[is_rate] = found
    return units[0], units[1]


def _parted(name: str) -> str:
    """Part words that meet without a mark: ``timeMs``, ``throughputkbps``."""
    name = re.sub(r"(?<=[a-z]{2})(?=[A-Z])", "_", name)
    words = r"(?i)(throughput|bandwidth|bitrate|timestamp|time|rate|tput)(?=[a-z]+s$)"
    return re.sub(words, r"\1_", name)


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9µμ]+", _parted(name).lower())


def _time_unit(name: str) -> Unit | None:
    found = next((word for word in reversed(_words(name)) if word in _TIME_UNITS), None)
    return None if found is None else (_TIME_UNITS[found], found)


def _rate_unit(name: str) -> Unit | None:
    """Return the unit that a column's name has: per second, or for short in the name of a rate."""
    parted, words = _parted(name), set(_words(name))
    for match in _RATE_UNIT.finditer(parted):
        what, per, prefix = match["what"], match["per"], match["prefix"][:1].lower()
        is_word = len(what) > 1
        is_bit = what.lower().startswith("bit") and not words & _AMOUNTS
        is_rate = _RATES & words or (prefix and is_bit)
        # Hundreds of it, its logarithm, or in another time than a second.
        is_other = re.search(f"{_POWER}$", parted[: match.start()], re.I) or words & _LOGS
        if is_other or (not per and re.match(r"\W*(/|per)", parted[match.end() :].lstrip(" _"))):
            continue
        if per or (is_rate and (is_word or prefix)):
            is_bits = what.lower().startswith("bit") or what == "b" or per == "PS"
            base = 1024.0 if match["binary"] else 1000.0
            factor = base ** " kmgt".index(prefix or " ") * (1 if is_bits else 8) * 1e-6
            return factor, match[0].strip(" _")
    return None


def _is_time(name: str) -> bool:
    return bool(_TIMES & set(_words(name)))


def _is_rate(name: str) -> bool:
    return bool(_RATES & set(_words(name))) or _rate_unit(name) is not None


def _may_be_rates(name: str) -> bool:
    """Say whether a column without a unit may hold rates, and not amounts, times or delays."""
    amount = _RATE_UNIT.search(name)
    is_amount = amount is not None and (amount["prefix"] != "" or len(amount["what"]) > 1)
    is_amount |= re.search(r"[%(\[]", name) is not None  # a unit in brackets, which is not known
    return not (is_amount or set(_words(name)) & (_NO_RATES | _LOGS | _TIMES | {*_TIME_UNITS}))


def _is_value(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None or _seconds(cell) is not None


def _is_name(cell: str) -> bool:
    letters = "".join(filter(str.isalpha, cell.lower()))
    return letters != "" and letters not in _MISSING and not _is_value(cell)


def _date(cell: str) -> re.Match[str] | None:
    return _DATE.fullmatch(_DIGITS_ALONE.sub(r"\1-\2-\3 \4:\5:\6", cell))


def _seconds(cell: str) -> float | None:
    """Return the time of a date or clock, s; None for any other cell."""
    if clock := _CLOCK.fullmatch(cell):
        return 3600.0 * int(clock[1]) + 60.0 * int(clock[2]) + float(clock[3])
    if not (date := _date(cell)):
        return None
    year, month, day, *clock_parts = (f"{int(part or 0):02d}" for part in date.groups()[:6])
    zone = (date[8] or "Z").replace("UTC", "Z")
    try:
        whole = datetime.fromisoformat(f"{year}-{month}-{day}T{':'.join(clock_parts)}{zone}")
    except ValueError:
        return None
    return whole.timestamp() + float((date[7] or "0").replace(",", "."))
