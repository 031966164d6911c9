"""Figures: what they show, that labels can be read, and that equal input gives equal files."""

import io
import itertools
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from distrlcc.evaluation.figures import DARK, LIGHT, encode, looks
from distrlcc.evaluation.labels import common_areas, place_labels
from distrlcc.evaluation.plots import scatter, time_series
from distrlcc.evaluation.summary import Summary, summarise
from tests.evaluation.made import PROFILES, make_scores, make_series, with_figures


@pytest.fixture
def summary() -> Summary:
    return summarise([make_scores(s, links=30) for s in PROFILES])


def labels(figure: Figure) -> list[Text]:
    return [t for t in figure.axes[0].texts if not t.get_text().startswith("better")]


def test_scatter_reverses_the_delay_axis_and_labels_everyone(summary: Summary) -> None:
    figure = scatter(summary)
    (axes,) = figure.axes
    left, right = axes.get_xlim()
    assert left > right > 0
    assert axes.get_xscale() == "log"
    assert "p95 queueing delay (ms)" in axes.get_xlabel()
    assert axes.get_ylabel() == "throughput (Mbit/s)"
    texts = labels(figure)
    assert sorted(t.get_text() for t in texts) == sorted(PROFILES)
    bold = [t.get_text() for t in texts if t.get_weight() == "bold"]
    assert bold == ["quickstart"]


def test_labels_do_not_overlap_when_schemes_are_close() -> None:
    base = make_scores("quickstart", links=30)
    rng = np.random.default_rng(0)
    spread = {"p95_queueing_delay_ms": 0.05, "throughput_mbps": 0.02}
    close = []
    for i in range(6):
        moved = {key: base.figures[key] * (1 + by * rng.normal()) for key, by in spread.items()}
        close.append(replace(with_figures(base, **moved), scheme=f"policy-{i}"))
    figure = scatter(summarise([*close, make_scores("cubic", links=30)]))
    figure.canvas.draw()
    area = figure.axes[0].get_window_extent()
    boxes = [t.get_window_extent() for t in labels(figure)]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)
    assert all(area.x0 <= b.x0 and b.x1 <= area.x1 for b in boxes)
    assert all(area.y0 <= b.y0 and b.y1 <= area.y1 for b in boxes)


def test_close_delays_get_a_linear_axis_and_the_undefined_no_place() -> None:
    dead = with_figures(make_scores("bbr", 4), p95_queueing_delay_ms=np.full((4, 5), np.nan))
    figure = scatter(summarise([make_scores("copa", 4), make_scores("vegas", 4), dead]))
    assert figure.axes[0].get_xscale() == "linear"
    assert sorted(t.get_text() for t in labels(figure)) == ["copa", "vegas"]


def test_time_series_shows_capacity_rates_and_delays() -> None:
    figure = time_series([make_series(s) for s in ("cubic", "quickstart")])
    upper, lower = figure.axes
    assert upper.get_ylabel() == "rate (Mbit/s)"
    assert lower.get_ylabel() == "queueing delay (ms)"
    assert lower.get_xlabel() == "time (s)"
    assert len(upper.lines) == len(lower.lines) == 2
    names = [t.get_text() for t in figure.legends[0].get_texts()]
    assert names == ["quickstart", "capacity", "cubic"]
    assert upper.get_xlim() == pytest.approx((0.0, 30.0), abs=1e-9)
    widths = {line.get_label(): line.get_linewidth() for line in upper.lines}
    assert widths["quickstart"] > widths["cubic"]
    # Far delays are logarithmic and near ones linear.
    assert lower.get_yscale() == "linear"
    assert (
        time_series([make_series("oracle"), make_series("cubic")]).axes[1].get_yscale() == "symlog"
    )


def test_odd_values_and_names_can_be_drawn() -> None:
    one = replace(make_scores("oracle", links=1, seeds=1), scheme=r"$\frac{$")
    for delay in (0.0, np.nan):
        values = {"p95_queueing_delay_ms": np.full((1, 1), delay), "throughput_mbps": 0 * np.eye(1)}
        encode(scatter(summarise([with_figures(one, **values)])), "png")
    for buckets in (1, 3, 20):
        silent = {"rate_mbps": np.zeros(buckets), "queueing_delay_ms": np.full(buckets, np.nan)}
        drawn = replace(make_series("copa", buckets=buckets), scheme=r"$\frac{$", **silent)
        encode(time_series([drawn]), "svg")


def test_senders_that_say_something_get_panels_of_their_own() -> None:
    plain, said = make_series("copa"), make_series("cubic")
    whole = np.ones(len(said.time_s))
    window = {
        "mean_cwnd_packets": 30.0 * whole,
        "mean_smoothed_rtt_ms": 20.0 + said.time_s,
        "retransmitted_share": np.nan * whole,
    }
    figure = time_series([plain, replace(said, sender=window)])
    assert [axes.get_ylabel() for axes in figure.axes[2:]] == [
        "cwnd (packets)",
        "smoothed RTT (ms)",
    ]
    assert figure.axes[-1].get_xlabel() == "time (s)"
    shares = window | {"retransmitted_share": 0.02 * whole}
    figure = time_series([replace(plain, sender=window), replace(said, sender=shares)])
    *_, last = figure.axes
    assert last.get_ylabel() == "retransmitted (%)"
    assert np.nanmax(last.lines[1].get_ydata()) == pytest.approx(2.0)
    assert np.isnan(last.lines[0].get_ydata()).all()
    encode(figure, "png")


def test_png_has_200_dpi_and_equal_figures_are_equal_files(summary: Summary) -> None:
    before = dict(mpl.rcParams)
    png = encode(scatter(summary), "png")
    image = Image.open(io.BytesIO(png))
    assert image.width == 960
    assert image.info["dpi"] == pytest.approx((200, 200), abs=0.1)
    assert encode(scatter(summary), "png") == png
    svg = encode(scatter(summary, theme=DARK), "svg")
    assert encode(scatter(summary, theme=DARK), "svg") == svg
    assert DARK.background.encode() in svg
    assert b"<text" not in svg
    assert dict(mpl.rcParams) == before


def test_a_scheme_looks_the_same_everywhere_and_policies_differ() -> None:
    several = [("a", True), ("cubic", False), ("b", True), ("mine", False), ("yours", False)]
    together = looks(several, LIGHT)
    assert together["cubic"] == looks([("cubic", False)], LIGHT)["cubic"]
    assert len({look.color for look in together.values()}) == 5
    assert [name for name, look in together.items() if look.learned] == ["a", "b"]
    assert looks(several, DARK)["cubic"].color != together["cubic"].color
    figure = time_series([make_series("cubic")], schemes=several)
    assert figure.axes[0].lines[0].get_color() == together["cubic"].color


BOUNDS = np.array([0.0, 0.0, 400.0, 300.0])
NONE = np.zeros((0, 4))
LONE = np.array([[97.0, 97.0, 103.0, 103.0]])


def test_common_areas_by_hand() -> None:
    boxes = np.array([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 4.0], [2.0, 0.0, 3.0, 2.0]])
    assert common_areas(boxes, boxes).tolist() == [4.0 + 1.0, 1.0 + 6.0 + 1.0, 1.0 + 2.0]
    assert common_areas(boxes, NONE).tolist() == [0.0] * 3


def test_a_lone_label_stands_close_to_the_right() -> None:
    box = place_labels([(100, 100)], [(40, 10)], bounds=BOUNDS, hard=LONE, soft=NONE)
    assert box.tolist() == [[106, 95, 146, 105]]


def test_lines_are_avoided_where_there_is_room() -> None:
    line = np.array([[104.0, 90.0, 300.0, 110.0]])
    box = place_labels([(100, 100)], [(40, 10)], bounds=BOUNDS, hard=NONE, soft=line)
    assert common_areas(box, line) == 0
