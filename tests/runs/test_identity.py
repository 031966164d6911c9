"""What members must have in common, and the table where they have not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest

from distrlcc.errors import GroupError
from distrlcc.recipes.registry import recipe
from distrlcc.runs.identity import check_identity, identity


@dataclass(frozen=True)
class Part:
    lr: float = 1e-3
    name: str = "a = b: c != d"


@dataclass(frozen=True)
class Whole:
    seed: int = 0
    part: Part = field(default_factory=Part)
    other: Part | None = None


def _table(master: dict[str, str], own: dict[str, str]) -> dict[str, list[str]]:
    with pytest.raises(GroupError) as caught:
        check_identity(master, own)
    assert caught.value.exit_code == 2
    first, heads, *rows = str(caught.value).splitlines()
    assert "does not match the master" in first
    assert heads.split() == ["master", "here"]
    column = heads.index("here")
    assert all(row[column - 1] == " " and row[column] != " " for row in rows), "columns line up"
    return {row.split()[0]: row.split(maxsplit=1)[1].split("  ") for row in rows}


def test_equal_ones_pass_and_survive_json() -> None:
    for config in (Whole(), recipe("quickstart"), recipe("imitation")):
        own = identity(config, processes=2)
        check_identity(json.loads(json.dumps(own)), own)
    assert own.keys() == {"distrlcc", "code", "torch", "python", "processes", "config"}
    assert own["python"].count(".") == 1


def test_the_table_names_versions_values_and_config_keys() -> None:
    own = identity(Whole(seed=3, part=Part(lr=0.5)), processes=2, data="abc")
    master = identity(Whole(), processes=4, data="abc") | {"distrlcc": "0.0.1", "torch": "2.0.0"}
    table = _table(master, own)
    assert table.keys() == {"distrlcc", "torch", "processes", "seed", "part.lr"}
    assert [cell.strip() for cell in table["processes"] if cell] == ["4", "2"]
    assert [cell.strip() for cell in table["part.lr"] if cell] == ["0.001", "0.5"]


def test_what_one_side_lacks_is_absent() -> None:
    more = identity(Whole(other=Part()), data="abc")
    table = _table(identity(Whole()), more)
    assert table.keys() == {"data", "other.lr", "other.name"}
    assert table["data"][0] == "(absent)"
    assert _table(more, identity(Whole())).keys() == table.keys()
    assert {cells[0] for cells in _table({}, more).values()} == {"(absent)"}  # a foreign one


@pytest.mark.parametrize("name", ["x: y != z", "two\nlines", "", "ü" * 50, "q: 'quoted' != \"x\""])
def test_odd_values_are_shown_in_one_row(name: str) -> None:
    own = identity(replace(Whole(), part=Part(name=name)))
    assert _table(identity(Whole()), own).keys() == {"part.name"}
