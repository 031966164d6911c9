"""Files that are written whole, and places that are looked at first."""

from pathlib import Path

import pytest

from distrlcc.errors import OutputError
from distrlcc.files import check_writable, write_atomically


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "kept").mkdir()
    check_writable(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose a place you may write to"):
        check_writable(tmp_path / "file" / "below")


def test_a_place_that_is_none_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "none"):
        with pytest.raises(OutputError, match="cannot write"):
            write_atomically(tmp_path / folder / "d", b"x")
