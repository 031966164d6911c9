"""The page on imitation explains every key, with the code's defaults."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from distrlcc.data.manifest import Spaces, episode_schema, step_schema
from distrlcc.learn.config import ImitationConfig
from distrlcc.runs.run_config import ImitateConfig

PAGE = (Path(__file__).parents[2] / "docs" / "imitation.md").read_text()


@pytest.mark.parametrize(
    ("prefix", "section"), [("", ImitateConfig), ("imitation.", ImitationConfig)]
)
def test_every_key_and_default(prefix: str, section: type) -> None:
    said = dict(re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", PAGE, re.M))
    for field in fields(section):
        key = prefix + field.name
        assert f"`{key}`" in PAGE or key == "imitation"
        if key in said and field.default is not MISSING:
            assert said[key] == str(field.default), key


def test_every_column() -> None:
    spaces = Spaces("toy", 3, "toy", "discrete", 4)
    for schema in (step_schema(spaces), episode_schema(spaces)):
        assert [name for name in schema.names if f"`{name}`" not in PAGE] == []
