from __future__ import annotations

import pytest

from distrlcc.errors import ConfigError
from distrlcc.tune.distribution import Distribution


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("uniform:0:0.02", (0.0, 0.02)),
        ("loguniform:1e-5:1e-2", (1e-5, 1e-2)),
        ("int:1:8", (1, 8)),
        ("choice:1,2,4", (1, 2, 4)),
        ("choice:relu, tanh", ("relu", "tanh")),
        ("choice:true,false", (True, False)),
        ("choice:[64,64],[128]", ("[64, 64]", "[128]")),
    ],
)
def test_forms(text: str, ends: tuple[object, ...]) -> None:
    found = Distribution.parse(text).ends()
    assert found == ends
    assert [type(v) for v in found] == [type(v) for v in ends]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected uniform:a:b"),
        ("normal:0:1", "expected uniform:a:b"),
        ("uniform:1", "two bounds"),
        ("uniform:a:b", "numbers, as in uniform"),
        ("int:1:2.5", "whole numbers"),
        ("uniform:2:1", "a below b"),
        ("uniform:0:inf", "finite"),
        ("uniform:nan:1", "finite"),
        ("loguniform:0:1", "bounds above 0"),
        ("choice:", "two or more"),
        ("choice:1", "two or more different"),
        ("choice:1,1", "two or more different"),
        ("choice:a,,b", "numbers, words or lists"),
    ],
)
def test_bad_ones_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Distribution.parse(text)
    assert "\n" not in str(caught.value)


def test_mutation_by_a_factor_stays_within_the_bounds() -> None:
    uniform, whole = Distribution.parse("uniform:0.9:0.99"), Distribution.parse("int:1:8")
    assert uniform.bounded(0.95 * 1.2) == 0.99
    assert uniform.bounded(0.95) == 0.95
    assert whole.bounded(9) == 8
    assert isinstance(whole.bounded(3.4), int)
    assert Distribution.parse("choice:a,b").bounded("a") == "a"
