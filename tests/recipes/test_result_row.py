import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distrlcc.errors import DatasetError
from distrlcc.evaluation.scorecard import GATES
from distrlcc.recipes.result_row import ResultRow, shipped_rows
from distrlcc.recipes.results_page import gates_table, results_page

VALUES = (0.90, 0.93, 0.96)


def _row(values: tuple[float, ...] = VALUES, metric: str = "power") -> ResultRow:
    count = len(values)
    return ResultRow(
        recipe="gail",
        version="1",
        steps=1_000_000,
        seeds=tuple(range(count)),
        cpu_minutes=(3.0,) * count,
        shipped=1,
        scores={"random": {metric: values}},
        peers={"random": {"bbr": {metric: 0.44}}},
    )


def test_the_interval_is_students() -> None:
    # Here, since it takes 1.3 s to load.
    stats = pytest.importorskip("scipy.stats", reason="needs scipy")
    low, high = stats.t.interval(0.95, 2, np.mean(VALUES), stats.sem(VALUES))
    alone, beside = (_row().half_width("random", "power", k) for k in (0, 3))
    assert alone == pytest.approx((high - low) / 2, rel=1e-3)
    assert beside == pytest.approx(alone * 2**0.5)  # of the difference of two means
    assert np.isnan(_row((0.9,)).half_width("random", "power"))


def test_rows_agree_within_the_spread_and_not_outside() -> None:
    row = _row()
    bound = row.half_width("random", "power", 3)
    assert row.differences(row) == []
    assert row.differences(_row(tuple(v - 0.9 * bound for v in VALUES))) == []
    (line,) = row.differences(_row(tuple(v - 1.1 * bound for v in VALUES)))
    assert "random, power" in line
    assert f"{bound:.4f}" in line
    alike = _row((0.9, 0.9, 0.9))
    assert alike.differences(_row((0.9015,) * 3)) == []  # power is shown with three digits
    assert alike.differences(_row((0.9025,) * 3))
    assert row.differences(_row((float("nan"),) * 3))
    # One run has no spread: the others' counts.
    assert _row(VALUES[:1]).differences(row) == []
    assert _row((VALUES[0] - 0.3,)).differences(row)
    # What only the others measured is none of these scores, and does not differ.
    other = _row(metric="utilisation")
    assert row.differences(other) == ["random, power: it was not measured"]
    more = replace(row, scores={"random": row.scores["random"] | other.scores["random"]})
    assert row.differences(more) == []


def test_a_tenth_of_the_scores_may_differ() -> None:
    assert _row().tolerated == 1
    many = replace(_row(), scores={f"suite {k}": {"power": VALUES} for k in range(21)})
    assert many.tolerated == 3


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_never_happened_is_kept_as_json(tmp_path: Path, value: float) -> None:
    _row().save(tmp_path / "gail.json")
    assert ResultRow.load(tmp_path / "gail.json") == _row()
    row = _row((value,) * 3, "recovery_rtts")
    row.save(tmp_path / "row.json")
    json.loads((tmp_path / "row.json").read_text(), parse_constant=pytest.fail)
    assert ResultRow.load(tmp_path / "row.json").differences(row) == []


@pytest.mark.parametrize("text", ["", "[]", '{"recipe": "gail"}', "{"])
def test_a_damaged_row_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gail.json"
    path.write_text(text)
    with pytest.raises(DatasetError, match=r"gail\.json") as error:
        ResultRow.load(path)
    assert "\n" not in str(error.value)


def test_the_page_has_each_recipe_and_its_peers() -> None:
    page = results_page({"gail": _row(), "dagger": replace(_row((0.97,) * 3), recipe="dagger")})
    lines = page.splitlines()
    (first, second, peer) = (line for line in lines if line.count("|") == 3 and "0." in line)
    assert first == "| **dagger** | 0.970 ± 0.000 |"
    assert second == "| **gail** | 0.930 ± 0.075 |"
    assert peer == "| BBRv1 | 0.440 |"
    assert sum("distrlcc reproduce gail" in line for line in lines) == 1


def test_the_page_has_the_scorecards_gates_for_one() -> None:
    row = shipped_rows()["one"]
    three = {k: {m: v[:1] * 3 for m, v in each.items()} for k, each in row.scores.items()}
    row = replace(row, seeds=(0, 1, 2), shipped=0, refined={}, scores=three)
    row.scores["random"]["power"] = (0.98, *[0.9796] * (len(row.seeds) - 1))
    row.peers["flows-32"]["cubic"]["excess_loss"] = 0.5 * row.mean("flows-32", "excess_loss")
    lines = {cells[:2]: cells[2:] for cells in gates_table(row)}
    assert lines["random", "power"] == ("≥ 0.980", "0.980", "**0.980**")
    assert lines["flows-32", "excess loss (%)"][-2].startswith("**")
    assert lines["beside-cubic", "1/3 to 3 (%)"][0] == "≥ 85"
    assert len(lines) == len(GATES)
    del row.scores["beside-cubic"], row.scores["random"]["power"]  # it is said, not left out
    lines = {cells[:2]: cells[2:] for cells in gates_table(row)}
    assert lines["beside-cubic", "tolerable"] == ("", "not measured", "not measured")
    assert lines["random", "power"][1] == "not measured"
    assert len(lines) == len(GATES)


def test_what_ships_may_have_been_trained_further() -> None:
    row = replace(_row(), recipe="one", refined={"random": {"power": 0.99}})
    assert gates_table(row)[0] == ("random", "power", "≥ 0.980", "0.930", "**0.990**")
    page = results_page({"one": row})
    assert "| another, trained for longer |" in page
    assert "| **one**, shipped | 0.990 |" in page
