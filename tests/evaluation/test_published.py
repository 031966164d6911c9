"""Figures for papers are drawn from what an evaluation wrote, with their numbers beside them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
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
        ("SUMMARY --out fig.pdf --metric power", "--metric is for"),
        ("SUMMARY --out fig.pdf --kind cdf --link x", "--link is for"),
        ("BAD --out fig.pdf", "is no summary of an evaluation"),
        ("LESS --out fig.pdf", "cubic has no guarded"),
        ("TORN --out fig.pdf --kind time", "series"),
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
