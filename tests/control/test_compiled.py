"""What is compiled is kept on the disk where that can be, and never needed from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from distrlcc.control.compiled import njit
@njit
def one_more(x):
    return x + 1
print(one_more(1), len(one_more.stats.cache_hits))
"""


def _run(folder: Path, *prefix: str) -> tuple[str, str]:
    """Return what the code printed, with its cache below a folder."""
    (path := folder.with_suffix(".py")).write_text(CODE)
    words = [*prefix, sys.executable, str(path)]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["cut", *(pytest.param(d, marks=pytest.mark.long) for d in ("garbage", "zeros"))]
)
def test_damage_costs_time_alone(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "cache"
    assert [_run(folder)[0] for _ in range(2)] == ["2 0", "2 1"]
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        data = path.read_bytes()
        made = {"cut": data[: len(data) // 2], "garbage": os.urandom(64), "zeros": bytes(len(data))}
        path.write_bytes(made[damage])
    assert [_run(folder) for _ in range(2)] == [("2 0", ""), ("2 1", "")]


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("unshare") or os.getuid() != 0, reason="needs root and unshare"
)
def test_a_full_disk_is_told_and_nothing_ends(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=4k,nr_inodes=8 none "{folder}" && exec "$0" "$@"'
    out, said = _run(folder, "unshare", "-m", "sh", "-c", mount)
    assert out == "2 0"
    assert said.count("cannot be kept in") == 1
    assert f"{folder}" in said
    assert "set XDG_CACHE_HOME to another folder" in said
