"""Files that are written whole, and places that are looked at first."""

from pathlib import Path

import pytest

from distrlcc.errors import OutputError, writing
from distrlcc.files import remove_temporary, write_atomically, write_output
from distrlcc.runs.leadership import FencedError


def test_a_place_that_is_none_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file/d", "none/d", "."):
        with pytest.raises(OutputError, match="cannot write"):
            (write_output if place == "." else write_atomically)(tmp_path / place, b"x")


def test_what_cannot_be_written_is_named_with_the_reason() -> None:
    for error, why in ((OSError(28, "No space left"), "No space left"), (OSError("odd"), "odd")):
        said = pytest.raises(OutputError, match=f"cannot write here: {why}; do this")
        with said, writing("here", "; do this"):
            raise error


def test_who_is_replaced_between_its_look_and_its_rename_hears_that(tmp_path: Path) -> None:
    looks = 0

    def before_rename() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise FencedError("replaced")
        remove_temporary(tmp_path, epoch=2)  # as its successor does

    with pytest.raises(FencedError):
        write_atomically(tmp_path / "d", b"x", before_rename=before_rename, epoch=1)
    assert not list(tmp_path.iterdir())


def test_names_that_only_look_like_a_writers_are_no_error(tmp_path: Path) -> None:
    for name in (
        ".latest.\N{SUPERSCRIPT TWO}-1-0.tmp",
        ".latest.1-\N{SUPERSCRIPT TWO}-0.tmp",
        ".tmp",
    ):
        (tmp_path / name).touch()
    remove_temporary(tmp_path, epoch=2)
    remove_temporary(tmp_path)
