"""Figures for papers are drawn from what an evaluation wrote, with their numbers beside them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.evaluation.published import by_links, read
from distrlcc.evaluation.scores import metric
from distrlcc.library import evaluate, report


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The summary of a small evaluation."""
    folder = tmp_path_factory.mktemp("report")
    report(evaluate("cubic", "copa", links=4), folder / "out")
    return folder / "out" / "summary.json"


@pytest.mark.parametrize("kind", ["scatter", "cdf", "box", "time"])
@pytest.mark.parametrize("ending", ["pdf", "svg"])
def test_each_kind_is_drawn_with_its_numbers(
    summary: Path, tmp_path: Path, kind: str, ending: str
) -> None:
    out = tmp_path / f"figure.{ending}"
    assert main(["plot", str(summary), "--kind", kind, "--out", str(out)]) == 0
    assert out.read_bytes()[:5] in (b"%PDF-", b"<?xml")
    head, *rows = csv.reader((tmp_path / f"figure.{ending}.csv").read_text().splitlines())
    assert {row[0] for row in rows} == {"cubic", "copa"}
    assert len(rows) == {"scatter": 2, "cdf": 8, "box": 8}.get(kind, len(rows))
    assert {len(row) for row in rows} == {len(head)}
    if kind in ("cdf", "box"):
        stored = json.loads(summary.read_text())["schemes"]["copa"]["scenarios"]
        powers = {link: values["power"]["mean"] for link, values in stored.items()}
        shown = {row[1]: float(row[2]) for row in rows if row[0] == "copa"}
        assert shown == pytest.approx(powers)
    else:
        assert np.array([row[1:] for row in rows], float).shape[1] == len(head) - 1


def _refused(path: Path, text: str, says: str = "is no summary of an evaluation") -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read(path)


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where tables are, one of each kind: of a table or list of alike ones the first."""
    if isinstance(data, dict):
        yield path
        alike = path[-1:] in [("schemes",), ("scenarios",), ("overall",), ("metrics",)]
        for key in list(data)[:1] if alike else data:
            yield from _places(data[key], (*path, key))
    elif isinstance(data, list) and data:
        yield from _places(data[0], (*path, 0))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def test_no_key_of_a_report_is_dropped_or_read_twice(summary: Path, tmp_path: Path) -> None:
    """Each key of each kind of table, misspelled, and twice."""
    text = summary.read_text()
    by_name = {("schemes",), ("metrics",), ("digests",), ("versions",)}  # whose keys are names
    tried = 0
    for path in _places(json.loads(text)):
        if path[-1:] in by_name | {("scenarios",), ("overall",)} or path[:1] == ("metrics",):
            continue
        for key in _at(json.loads(text), path):
            if isinstance(key, str) and not (key in ("low", "high") and "overall" not in path):
                data = json.loads(text)
                table = _at(data, path)
                table[f"{key}x"] = table.pop(key)
                _refused(tmp_path / "s.json", json.dumps(data))
                tried += 1
    assert tried > 30
    twice = text.replace('"seeds": 1', '"seeds": 1, "seeds": 2', 1)
    assert twice != text
    _refused(tmp_path / "s.json", twice, "key 'seeds' is there twice")


def test_a_report_of_another_version_is_refused(summary: Path, tmp_path: Path) -> None:
    for change in ({"version": 2}, {"format": "distrlcc-fairness"}):
        text = json.dumps(json.loads(summary.read_text()) | change)
        _refused(tmp_path / "s.json", text, "this distrlcc reads version 1 of distrlcc-summary")
    data = json.loads(summary.read_text())
    data["series"][0]["edges_s"].reverse()
    _refused(tmp_path / "s.json", json.dumps(data), "edges_s do not increase")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-0.5", "1e999", '"0.5"', "true"])
def test_a_score_that_is_none_is_refused(summary: Path, tmp_path: Path, value: str) -> None:
    text = re.sub(r'"mean": [0-9.e-]+', f'"mean": {value}', summary.read_text(), count=1)
    _refused(tmp_path / "s.json", text)


def test_what_was_written_is_read_again(summary: Path) -> None:
    found, series = read(summary)
    assert {one.scheme for one in found.schemes} == {"cubic", "copa"}
    assert {one.link for one in series} == set(found.links[:2])
    assert len(by_links(found, metric("power"))["cubic"]) == 4


def _without_metric(data: dict[str, Any]) -> None:
    for values in data["schemes"]["cubic"]["scenarios"].values():
        del values["guarded"]


def _torn(data: dict[str, Any]) -> None:
    data["series"][0]["capacity_mbps"].pop()
    data["series"][0]["rate_mbps"].append(1.0)


def _without_scheme(data: dict[str, Any]) -> None:
    del data["schemes"]["copa"]


def _failed(data: dict[str, Any]) -> None:
    for scheme in data["schemes"].values():
        for values in scheme["scenarios"].values():
            values["power"] = {"mean": None, "low": None, "high": None}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("SUMMARY --out fig.gif", ".pdf, .png or .svg"),
        ("SUMMARY --out fig.pdf --kind cdf --metric speed", "unknown metric 'speed'"),
        ("SUMMARY --out fig.pdf --kind time --link none", "was not drawn over time"),
        ("none.json --out fig.pdf", "none.json"),
        ("BAD --out fig.pdf", "is no summary of an evaluation"),
        ("LESS --out fig.pdf", "cubic has no guarded"),
        ("TORN --out fig.pdf --kind time", "series"),
        ("up.log --out up.html --kind cdf", "a log or a trace has one page"),
        ("FEWER --out fig.pdf --kind time", "is of 'copa', a scheme that is not here"),
        ("FAILED --out fig.pdf --kind box", "no link of this summary has one"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    summary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"format": "distrlcc-summary", "seeds": "x"}')
    names = {"SUMMARY": str(summary), "BAD": "bad.json"}
    # A metric, a value of a series, a scheme, and every run are missing.
    spoilt = {"LESS": _without_metric, "TORN": _torn, "FEWER": _without_scheme, "FAILED": _failed}
    for name, spoil in spoilt.items():
        data = json.loads(summary.read_text())
        spoil(data)
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
        names[name] = f"{name}.json"
    assert main(["plot", *(names.get(word, word) for word in words.split())]) == 2
    line = capfd.readouterr().err
    assert says in line
    assert line.count("\n") == 1
