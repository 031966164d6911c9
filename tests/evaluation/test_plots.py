"""Figures: what they show, that names can be read, and that equal input gives equal files."""

import io
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.scale import get_scale_names
from PIL import Image

from distrlcc.evaluation.figures import DPI, STYLE, encode
from distrlcc.evaluation.looks import BACKGROUND, looks
from distrlcc.evaluation.plots import drawn, over_time, scatter
from distrlcc.evaluation.scores import shown
from distrlcc.evaluation.summary import Summary, summarise
from tests.evaluation.made import PROFILES, make_scores, make_series, with_figures


@pytest.fixture
def summary() -> Summary:
    return summarise([make_scores(s, links=30) for s in PROFILES])


def names(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_scatter_reverses_the_delay_axis_and_names_everyone(summary: Summary) -> None:
    figure = scatter(summary)
    (axes,) = figure.axes
    left, right = axes.get_xlim()
    assert left > right > 0
    assert axes.get_xscale() == "log"
    assert "p95 queueing delay (ms)" in axes.get_xlabel()
    assert axes.get_ylabel() == "throughput (Mbit/s)"
    assert names(figure) == list(map(shown, summary.ranking()))


@pytest.mark.parametrize("name", ["p", "policy", "a-policy-with-a-long-name"])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_a_legend_fits_above_the_plot(name: str, count: int) -> None:
    scores = make_scores("quickstart", links=4)
    figure = scatter(summarise([replace(scores, scheme=f"{name}-{k}") for k in range(count)]))
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    box, plot = legend.get_window_extent(), axes.get_tightbbox()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert plot.y1 <= box.y0  # type: ignore[union-attr]
    assert box.y1 <= figure.bbox.y1
    assert axes.get_window_extent().height > 2.0 * DPI


def test_close_delays_get_a_linear_axis_and_the_undefined_no_place() -> None:
    dead = with_figures(make_scores("bbr", 4), p95_queueing_delay_ms=np.full((4, 5), np.nan))
    figure = scatter(summarise([make_scores("copa", 4), make_scores("vegas", 4), dead]))
    assert figure.axes[0].get_xscale() == "linear"
    assert sorted(names(figure)) == ["copa", "vegas"]


def test_time_series_shows_capacity_rates_and_delays() -> None:
    figure = drawn(over_time("one", [make_series(s) for s in ("cubic", "quickstart")]))
    upper, lower = figure.axes
    assert upper.get_ylabel() == "rate (Mbit/s)"
    assert lower.get_ylabel() == "queueing delay (ms)"
    assert lower.get_xlabel() == "time (s)"
    assert len(upper.lines) == len(lower.lines) == 2
    assert names(figure) == ["quickstart", "capacity", "cubic"]
    assert upper.get_xlim() == pytest.approx((0.0, 30.0), abs=1e-9)
    widths = {line.get_label(): line.get_linewidth() for line in upper.lines}
    assert widths["quickstart"] > widths["cubic"]
    # Far delays are logarithmic and near ones linear.
    assert lower.get_yscale() == "linear"
    far = drawn(over_time("one", [make_series("oracle"), make_series("cubic")]))
    assert far.axes[1].get_yscale() == "symlog"


def test_odd_values_and_names_can_be_drawn() -> None:
    one = replace(make_scores("oracle", links=1, seeds=1), scheme=r"$\frac{$")
    for delay in (0.0, np.nan):
        values = {"p95_queueing_delay_ms": np.full((1, 1), delay), "throughput_mbps": 0 * np.eye(1)}
        encode(scatter(summarise([with_figures(one, **values)])), "png")
    for buckets in (1, 3, 20):
        still, unknown = np.zeros(buckets), np.full(buckets, np.nan)
        named = replace(make_series("copa", buckets=buckets), scheme=r"$\frac{$")
        silent = replace(named, rate_mbps=still, queueing_delay_ms=unknown)
        encode(drawn(over_time("one", [silent])), "svg")


def test_senders_that_say_something_get_panels_of_their_own() -> None:
    plain, said = make_series("copa"), make_series("cubic")
    whole = np.ones(len(said.time_s))
    window = {
        "mean_cwnd_packets": 30.0 * whole,
        "mean_smoothed_rtt_ms": 20.0 + said.time_s,
        "retransmitted_share": np.nan * whole,
    }
    figure = drawn(over_time("one", [plain, replace(said, sender=window)]))
    assert [axes.get_ylabel() for axes in figure.axes[2:]] == [
        "cwnd (packets)",
        "smoothed RTT (ms)",
    ]
    assert figure.axes[-1].get_xlabel() == "time (s)"
    shares = window | {"retransmitted_share": 0.02 * whole}
    figure = drawn(over_time("one", [replace(plain, sender=window), replace(said, sender=shares)]))
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
    svg = encode(scatter(summary), "svg")
    assert encode(scatter(summary), "svg") == svg
    assert BACKGROUND.encode() in svg
    assert b"<text" not in svg
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("scale", ["linear", "log", "symlog", "asinh", "logit"])
def test_ticks_are_plain_numbers(scale: str) -> None:
    """No math is parsed, so that a policy may be named ``$x$``."""
    assert {*get_scale_names()} - {"function", "functionlog", "mercator"} <= {
        *("linear", "log", "symlog", "asinh", "logit")
    }
    with mpl.rc_context(STYLE):
        figure = Figure()
        axes = figure.subplots()
        axes.set(xscale=scale, yscale=scale, xlim=(1e-4, 0.9), ylim=(1e-4, 0.9))
        encode(figure, "png")
        for axis in (axes.xaxis, axes.yaxis):
            texts = [
                label.get_text()
                for which in ("major", "minor")
                for label in axis.get_ticklabels(which=which)
            ]
            texts.append(axis.get_offset_text().get_text())
            assert any(texts)
            assert not any(mark in text for text in texts for mark in "$\\{"), texts


def test_a_scheme_looks_the_same_everywhere_and_policies_differ() -> None:
    several = [("a", True), ("cubic", False), ("b", True), ("mine", False), ("yours", False)]
    together = looks(several)
    assert together["cubic"] == looks([("cubic", False)])["cubic"]
    assert len({look.color for look in together.values()}) == 5
    assert [name for name, look in together.items() if look.learned] == ["a", "b"]
    assert together["cubic"].dark != together["cubic"].color
    figure = drawn(over_time("one", [make_series("cubic")], several))
    assert figure.axes[0].lines[0].get_color() == together["cubic"].color
