"""The limits of waits: one place, one page, and a variable that changes them."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from distrlcc.errors import ConfigError
from distrlcc.limits import Limits, limits


def test_the_page_lists_each_limit_with_its_value() -> None:
    page = (Path(__file__).parents[1] / "docs" / "limits.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE)
    assert {name: float(value) for name, value in rows} == asdict(Limits())


def test_the_variable_changes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=2.5, start=180")
    assert limits() == Limits(silence=2.5, start=180.0)
    monkeypatch.delenv("DISTRLCC_LIMITS")
    assert limits() == Limits()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("silense=2", "did you mean silence"),
        ("silence", "expected silence=SECONDS"),
        ("silence=2,", "nothing stands before or after a comma"),
        ("silence=0", "above 0"),
        ("silence=inf", "above 0"),
        ("silence=nan", "above 0"),
    ],
)
def test_what_is_no_limit_is_refused(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", text)
    with pytest.raises(ConfigError, match=said):
        limits()
