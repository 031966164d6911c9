"""The report: self-contained, complete, escaped, and written whole or not at all."""

import json
import re
import resource
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.errors import OutputError
from distrlcc.evaluation import published
from distrlcc.evaluation.report import ReportInfo, render, write_report
from distrlcc.evaluation.scores import METRICS, SENDER_METRICS
from distrlcc.evaluation.summary import summarise
from tests.evaluation.made import failed_on, make_scores, make_series, with_figures

INFO = ReportInfo(
    suite="random (test split)",
    command="distrlcc evaluate policy.safetensors --seeds 2",
    versions={"distrlcc": "0.1.0"},
    notes=("Each link ran for 10 s.",),
)

VOID = {"meta", "source", "img", "link", "br"}


@dataclass
class Page:
    """A page's tags and its text."""

    tags: list[str]
    text: str


def read(html: str) -> Page:
    """Return what a page holds, and require that every element is closed."""
    html = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    tags, closed = (re.findall(pattern, html) for pattern in (r"<(\w+)", r"</(\w+)>"))
    assert sorted(closed) == sorted(tag for tag in tags if tag not in VOID)
    return Page(tags, re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", "", html))))


def data(html: str) -> dict[str, Any]:
    """Return what a page's figures are drawn from."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return dict(json.loads(found))


def test_the_report_is_whole_and_self_contained(tmp_path: Path) -> None:
    names = ("quickstart", "cubic", "oracle")
    scores = [make_scores(s, links=8, seeds=2) for s in names]
    series = [make_series(s, link) for link in ("LTE a/b", "LTE a b") for s in names]
    path = write_report(tmp_path / "new" / "report", scores, series, INFO)
    assert path == tmp_path / "new" / "report" / "report.html"
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "report.html",
        "scatter.png",
        "series-LTE-a-b-2.png",
        "series-LTE-a-b.png",
        "summary.json",
        "table.csv",
        "table.tex",
    ]
    page = read(path.read_text())
    assert not {"link", "iframe", "object", "img"} & set(page.tags)
    html = path.read_text()
    assert re.findall(r'(?:src|srcset|href)="([^"]*)"', html) == []
    assert "url(" not in html
    assert "@import" not in html
    assert len(html) < 3_000_000
    kinds = [one["kind"] for one in data(html).values()]
    assert kinds == ["scatter", "lines", "lines", "links"]
    table = (path.parent / "table.csv").read_text().splitlines()
    assert table[0].startswith("scheme,")
    assert len(table) == 4
    assert (path.parent / "table.tex").read_text().count(r"\\") == 4
    for text in (
        "policiesquickstart seeds0, 1",
        "3 schemes on 8 links of random (test split), 2 seeds each",
        "quickstart ranks 1 of 2 by power, the oracle apart",
        "distrlcc evaluate policy.safetensors --seeds 2",
        "distrlcc 0.1.0",
        "Each link ran for 10 s.",
        "LTE a/b",
    ):
        assert text in page.text
    for metric in METRICS:
        assert metric.definition.replace("  ", " ") in page.text
    summary = summarise(scores)
    for scheme in summary.schemes:
        assert f"{scheme.overall['power'].mean:.3f}" in page.text
    stored = json.loads((path.parent / "summary.json").read_text())
    assert stored["ranking"] == [s.scheme for s in summary.schemes]
    assert (stored["command"], stored["versions"]) == (INFO.command, INFO.versions)
    assert published.read(path.parent)[0].ranking() == stored["ranking"]


def test_what_senders_say_is_drawn_tabled_and_defined(tmp_path: Path) -> None:
    shape = (2, 1)
    said = {"mean_cwnd_packets": np.full(shape, 41.5), "mean_smoothed_rtt_ms": np.full(shape, 77.7)}
    kernels, ours = (
        with_figures(make_scores(name, *shape), **said, retransmitted_share=np.full(shape, share))
        for name, share in (("cubic", 0.0123), ("bbr", np.nan))
    )
    line = make_series("cubic", kernels.links[0])
    line = replace(line, sender={m.key: np.ones(len(line.time_s)) for m in SENDER_METRICS})
    path = write_report(tmp_path / "r", [kernels, ours], [line], INFO)
    html = path.read_text()
    text = read(html).text + json.dumps(data(html))
    titles = ("mean cwnd (packets)", "mean smoothed RTT (ms)", "retransmitted (%)")
    for words in (*titles, "41.5", "77.7", "1.23", "asked each 10 ms (TCP_INFO)"):
        assert words in text
    stored = json.loads((path.parent / "summary.json").read_text())
    assert stored["metrics"]["mean_cwnd_packets"]["better"] is None
    assert stored["schemes"]["cubic"]["overall"]["retransmitted_share"]["mean"] == 0.0123
    assert stored["schemes"]["bbr"]["overall"]["retransmitted_share"]["mean"] is None
    assert list(stored["schemes"]["bbr"]["scenarios"][ours.links[1]])[-3:] == [
        m.key for m in SENDER_METRICS
    ]


def test_the_best_of_a_column_is_marked_without_the_oracle() -> None:
    summary = summarise([make_scores(s, links=8) for s in ("cubic", "bbr", "oracle")])
    html = render(summary, [], INFO)
    assert "ranks" not in html  # there is no policy
    assert ">Over time<" not in html
    ranked = html[html.index('<table class="ranked"') :].split("</table>")[0]
    rows = re.findall(r'scope="row".*?</i>(\w+)</th>(.*?)</tr>', ranked, re.DOTALL)
    best = {name: 'class="best"' in cells for name, cells in rows}
    assert best == {"oracle": False, "BBRv1": True, "cubic": True}
    powers = {name: re.findall(r"<td[^>]*>", cells)[0] for name, cells in rows}
    assert "best" in powers["BBRv1"]
    assert "best" not in powers["cubic"]


def test_a_page_has_all_links_of_a_long_suite() -> None:
    scores = [make_scores(s, links=512, seeds=1) for s in ("quickstart", "cubic")]
    scores[0] = failed_on(scores[0], 42)
    summary = summarise(scores)
    html = render(summary, [], INFO)
    assert len(html) < 3_000_000
    table = data(html)["per-link"]
    assert table["links"] == list(summary.links)
    power = table["metrics"][0]
    ours = table["schemes"].index("quickstart")
    assert power["title"] == "power"
    assert power["numbers"][42][ours] is None
    mean = summary.schemes[ours].scenarios[summary.links[7]]["power"].mean
    assert power["numbers"][7][ours] == pytest.approx(mean, abs=6e-4)


def test_failed_runs_and_the_links_that_they_leave_out_are_named() -> None:
    good, bad = make_scores("quickstart", 3, 1), make_scores("cubic", 3, 1)
    text = read(render(summarise([good, failed_on(bad, 0)]), [], INFO)).text
    assert "Means over links on which every scheme has a run that counts (2 of 3);" in text
    said = "leave out 1 of 3 links, on which not every scheme has a run that counts"
    assert f"{said}: {good.links[0]}" in text
    assert "quickstart ranks 1 of 2" in text
    text = read(render(summarise([failed_on(good, 1, 2), failed_on(bad, 0)]), [], INFO)).text
    assert "No link has a run of every scheme" in text
    assert "Some runs do not count, and the schemes' links differ." in text
    assert "All schemes ran on the same links" not in text
    text = read(render(summarise([failed_on(good, 0, 1, 2), bad]), [], INFO)).text
    assert "quickstart: 3 of 3 runs do not count (such as" in text
    assert "quickstart has no run that counts and is not ranked; no link is left out" in text
    assert "nan" not in text
    assert "ranks" not in text


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    scores = replace(make_scores("copa", 2), scheme=evil, links=(evil, "../../etc/x"), learned=True)
    series = [replace(make_series("copa"), scheme=evil, link=link) for link in (evil, "../../x")]
    info = replace(INFO, suite=evil, command=evil, notes=(evil,))
    path = write_report(tmp_path / "r", [scores], series, info)
    page = read(path.read_text())
    assert "script" not in page.tags
    assert evil in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    # A table for papers, too; CSV has our schemes' names, as JSON has.
    names = ("bbr", "[a]\\b^c~d_&")
    odd = [replace(make_scores("bbr", 2), scheme=name) for name in names]
    write_report(tmp_path / "r", odd, [], info)
    tex, table = ((path.parent / f"table.{kind}").read_text() for kind in ("tex", "csv"))
    assert r"{[}a]\textbackslash{}b\textasciicircum{}c\textasciitilde{}d\_\& &" in tex
    assert "BBRv1 &" in tex
    assert [line.partition(",")[0] for line in table.splitlines()[1:]] == [*names]
    assert (path.parent / "series-x.png").exists()


def test_an_unwritable_place_is_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(OutputError, match=r"^cannot write .*$"):
            write_report(folder, [make_scores("cubic", 2)], [], INFO)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_page_that_does_not_fit_leaves_no_figures_and_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = [make_scores("cubic", 2)], ()
    page = write_report(tmp_path / "r", *report, INFO)
    before = {path: path.read_bytes() for path in page.parent.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[page]) - 1, limits[1]))
    try:
        for folder in ("r", "full"):
            with pytest.raises(OutputError, match=r"cannot write .*report\.html: File too large"):
                write_report(tmp_path / folder, *report, INFO)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "full").iterdir()) == []
    monkeypatch.setattr(Path, "replace", lambda self, target: self.rename(self / "none"))
    with pytest.raises(OutputError, match="cannot write"):
        write_report(tmp_path / "r", *report, replace(INFO, suite="new"))
    assert {path: path.read_bytes() for path in page.parent.iterdir()} == before
