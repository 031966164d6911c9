"""Summaries: means by hand, ranking, JSON's keys and the table."""

import json
import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from distrlcc.evaluation.scores import (
    MAX_BUCKETS,
    METRICS,
    SENDER_METRICS,
    SchemeScores,
    bucket_edges,
    bucket_sums,
    metric,
)
from distrlcc.evaluation.summary import MeanInterval, print_table, summarise, to_json
from tests.evaluation.made import PROFILES, failed_on, make_scores, with_figures


def small(scheme: str, power: list[list[float]], *, learned: bool = False) -> SchemeScores:
    array = np.array(power)
    scores = make_scores("cubic", links=array.shape[0], seeds=array.shape[1])
    return replace(with_figures(scores, power=array), scheme=scheme, learned=learned)


def test_means_are_over_links_and_the_best_power_comes_first() -> None:
    slow = small("slow", [[0.1, 0.3], [0.6, 0.6]])
    fast = small("fast", [[0.9, 0.9], [0.5, 0.7]])
    dead = small("dead", [[np.nan] * 2] * 2)
    summary = summarise([slow, dead, fast])
    assert [s.scheme for s in summary.schemes] == ["fast", "slow", "dead"]
    power = summary.schemes[1].overall["power"]
    assert power.mean == pytest.approx(0.4)  # links have 0.2 and 0.6
    assert (power.low, power.high) == pytest.approx((0.2, 0.6))
    first = summary.schemes[1].scenarios[summary.links[0]]["power"]
    assert (first.mean, first.low, first.high) == pytest.approx((0.2, 0.1, 0.3))


def test_one_link_of_many_is_not_rounded_away() -> None:
    ours, theirs = ([[0.9]] * 299 + [[last]] for last in (0.2, 0.5))
    answer = summarise([small("ours", ours, learned=True), small("theirs", theirs)]).answer()
    assert "ahead of theirs on 0 of 300 links, and has less than half of its power on 1." in answer
    answer = summarise([small("ours", theirs, learned=True), small("theirs", ours)]).answer()
    assert answer.endswith("ahead of theirs on 1 of 300 links.")


def test_json_keeps_its_keys() -> None:
    dead = small("dead", [[np.nan], [np.nan]])
    good = small("good", [[0.5], [0.5]], learned=True)
    data = json.loads(json.dumps(to_json(summarise([dead, good])), allow_nan=False))
    assert (data["format"], data["version"], data["confidence"]) == ("distrlcc-summary", 1, 0.95)
    assert (data["links"], data["seeds"]) == (2, 1)
    assert (data["common_scenarios"], data["left_out_scenarios"]) == (2, [])
    assert data["without_runs"] == ["dead"]
    assert data["ranking"] == ["good"]
    assert [run["scheme"] for run in data["void_runs"]] == ["dead", "dead"]
    assert list(data["metrics"]) == [m.key for m in METRICS]
    assert data["metrics"]["loss"]["unit"] == "share"
    scheme = data["schemes"]["good"]
    assert scheme["learned"] is True
    tails = {"p10": 0.5, "worst": 0.5}
    assert scheme["overall"]["power"] == {"mean": 0.5, "low": 0.5, "high": 0.5} | tails
    alone = scheme["scenarios"][good.links[0]]["power"]  # one seed: no interval
    assert alone == {"mean": 0.5, "low": None, "high": None}
    assert list(scheme["scenarios"]) == list(good.links)
    assert set(scheme["scenarios"][good.links[0]]) == set(data["metrics"])
    none = {"mean": None, "low": None, "high": None}
    assert data["schemes"]["dead"]["overall"]["power"] == none | dict.fromkeys(tails)


def test_runs_that_failed_are_left_out_and_counted() -> None:
    good, bad = make_scores("bbr", 3, 1), make_scores("cubic", 3, 1)
    bad = failed_on(bad, 0)
    summary = summarise([good, bad])
    (found,) = [s for s in summary.schemes if s.scheme == "cubic"]
    assert found.failed == 1
    assert found.overall["power"].mean == pytest.approx(bad.figures["power"][1:].mean())
    said = f"cubic: 1 of 3 runs does not count ({bad.links[0]}: a score is not a number)."
    left_out = (
        "Means over links, and so the ranking, leave out 1 of 3 links, on which not every scheme "
        f"has a run that counts: {bad.links[0]} (cubic)."
    )
    assert summary.notes() == (said, left_out)
    # The other's run there does not count either: both are compared over the same links.
    (other,) = [s for s in summary.schemes if s.scheme == "bbr"]
    power = good.figures["power"]
    assert other.overall["power"].mean == pytest.approx(power[1:].mean())
    assert other.scenarios[good.links[0]]["power"].mean == pytest.approx(power[0, 0])
    data = json.loads(json.dumps(to_json(summary), allow_nan=False))
    assert {name: s["failed_runs"] for name, s in data["schemes"].items()} == {"bbr": 0, "cubic": 1}
    assert data["schemes"]["cubic"]["scenarios"][bad.links[0]]["power"]["mean"] is None
    out = StringIO()
    print_table(summary, Console(file=out, width=80))
    text = re.sub(r"\s+", " ", out.getvalue()).strip()
    assert text.startswith("3 links, means over 2 of them, 1 seed each; mean")
    assert text.endswith(f"{said} {left_out}")
    assert data["common_scenarios"] == 2
    assert data["left_out_scenarios"] == [{"scenario": bad.links[0], "schemes": ["cubic"]}]


def test_the_ranking_is_over_the_links_that_all_have() -> None:
    """By its own links the first, which failed on the hard one, would be the better."""
    lucky = failed_on(small("lucky", [[0.9], [0.7], [0.1]]), 2)
    steady = small("steady", [[0.95], [0.75], [0.2]])
    gone = failed_on(small("gone", [[0.9], [0.9], [0.9]]), 0, 1, 2)
    summary = summarise([lucky, gone, steady])
    assert summary.ranking() == ["steady", "lucky"]
    powers = {s.scheme: s.overall["power"].mean for s in summary.schemes}
    assert powers["steady"] == pytest.approx(0.85)
    assert powers["lucky"] == pytest.approx(0.8)
    assert np.isnan(powers["gone"])
    data = to_json(summary)
    assert data["ranking"] == ["steady", "lucky"]
    assert list(data["schemes"]) == ["steady", "lucky", "gone"]
    assert data["without_runs"] == ["gone"]
    assert data["left_out_scenarios"] == [{"scenario": steady.links[2], "schemes": ["lucky"]}]


def test_without_a_common_link_each_has_its_own_and_it_is_said() -> None:
    first = failed_on(small("first", [[0.4], [0.0]]), 1)
    whole = small("whole", [[0.4], [0.0]])
    assert not summarise([first, whole]).has_intervals  # one common link of one seed
    second = failed_on(small("second", [[0.0], [0.6]]), 0)
    summary = summarise([first, second])
    assert [s.overall["power"].mean for s in summary.schemes] == [0.6, 0.4]
    assert summary.notes()[-1].startswith("No link has a run of every scheme that counts: each")
    data = to_json(summary)
    assert data["common_scenarios"] == 0
    assert [one["schemes"] for one in data["left_out_scenarios"]] == [["second"], ["first"]]


def test_a_link_counts_if_one_of_its_seeds_ran() -> None:
    bad = small("bad", [[0.2, 0.4], [0.5, 0.5]])
    for key in ("throughput_mbps", "power"):
        bad.figures[key][0, 1] = np.nan
    summary = summarise([bad, small("good", [[0.9, 0.9], [0.9, 0.9]])])
    assert summary.left_out == {}
    assert summary.schemes[1].overall["power"].mean == pytest.approx((0.2 + 0.5) / 2)
    # Links of one name do not hide each other.
    scores = replace(small("a", [[0.1], [0.2], [0.3]]), links=("x", "y", "x"))
    assert summarise([scores]).links == ("x", "y", "x (2)")


def test_a_sentence_names_ten_links_and_counts_the_rest() -> None:
    bad = failed_on(make_scores("cubic", 20, 1), *range(12))
    (said,) = summarise([bad, make_scores("bbr", 20, 1)]).link_notes()
    assert "leave out 12 of 20 links" in said
    assert said.count("(cubic)") == 10
    assert said.endswith("(cubic) and 2 more, which JSON names.")


def test_an_interval_is_written_with_its_metric_s_digits() -> None:
    assert metric("excess_loss").text(-4e-5) == "0.00"  # a minus would be of nothing that is shown
    assert MeanInterval(0.0123, 0.01, 0.016).texts(metric("loss")) == ("1.23", "0.30")
    assert MeanInterval(0.95, 0.94, 0.96).texts(metric("power")) == ("0.950", "0.010")
    assert MeanInterval(*[float("nan")] * 3).texts(metric("power")) == ("-", "")
    assert MeanInterval(0.95, *[float("nan")] * 2).texts(metric("power")) == ("0.950", "")


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_fits_and_ranks(width: int) -> None:
    out = StringIO()
    summary = summarise([make_scores(s, links=20) for s in PROFILES])
    print_table(summary, Console(file=out, width=width))
    text = out.getvalue()
    assert "…" not in text
    assert "20 links, 5 seeds each" in text
    rows = [line.split()[0] for line in text.splitlines() if line and line[0].isalpha()][1:]
    assert rows == [s.shown for s in summary.schemes]
    assert all(len(line) <= width for line in text.splitlines())
    out = StringIO()
    print_table(summarise([make_scores("bbr", 1, 1)]), Console(file=out, width=width))
    assert "±" not in out.getvalue()
    assert out.getvalue().splitlines()[0].strip() == "1 link, 1 seed each"


def test_values_stand_in_the_order_of_the_metrics_and_what_is_not_said_is_nan() -> None:
    windows = np.arange(6.0).reshape(3, 2)
    scores = with_figures(make_scores("cubic", links=3, seeds=2), mean_cwnd_packets=windows)
    values = scores.values(METRICS + SENDER_METRICS)
    assert values.shape == (len(METRICS + SENDER_METRICS), 3, 2)
    assert np.array_equal(values[0], scores.figures["power"])
    assert np.array_equal(values[len(METRICS)], windows)
    assert np.isnan(values[len(METRICS) + 1 :]).all()


def test_buckets_are_a_tenth_of_a_second_and_longer_where_there_would_be_many() -> None:
    assert bucket_edges(0.25) == pytest.approx([0.0, 0.1, 0.2, 0.25])
    edges = bucket_edges(300.0)
    assert len(edges) == MAX_BUCKETS + 1
    assert edges[1] == 2.0


def test_a_step_is_spread_over_the_buckets_in_which_it_lies() -> None:
    edges, ends = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.0])
    # 4 lies in two buckets by halves; after the last step there is nothing.
    assert bucket_sums(edges, ends, np.array([1.0, 4.0, 2.0])) == pytest.approx([3.0, 4.0, 0.0])
