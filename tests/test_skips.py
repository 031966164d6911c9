"""What a run of the tests says at its end of those that it skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.mark.parametrize("k", range(5))
@pytest.mark.skipif(True, reason="needs ccx-14")
def test_compile(k): pass

def test_rights(): pytest.skip("needs root: devices")
def test_index(): pytest.skip("nobody answers: needs a network")

@pytest.mark.long
def test_long(): pass

@pytest.mark.xfail(reason="needs ccx-14")
def test_wrong(): raise AssertionError
def test_right(): pass
"""


def _ends(folder: Path, needs: str, *more: str) -> tuple[int, str]:
    (folder / "test_some.py").write_text(TESTS)
    module = 'import pytest\npytest.importorskip("nix", reason="needs nix")\n'
    (folder / "test_more.py").write_text(module)
    words = "-q -c /dev/null --rootdir . -p no:cacheprovider -p xdist -p tests.support.skips"
    alone = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words.split(), *more],
        cwd=folder,
        env=os.environ | alone | {"DISTRLCC_NEEDS": needs},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one", "two"])
def test_the_last_lines_say_what_was_lacking(tmp_path: Path, processes: tuple[str, ...]) -> None:
    code, said = _ends(tmp_path, "", *processes)
    assert code == 0
    *_, first, second, third, fourth, tool, last = said.splitlines()
    assert first == "skipped, 5: needs ccx-14 (test_some.py)"
    assert {second, third, fourth} == {
        "skipped, 1: needs nix (test_more.py)",
        "skipped, 1: needs root (test_some.py)",
        "skipped, 1: nobody answers: needs a network (test_some.py)",
    }
    assert tool == "sudo scripts/install-test-tools installs Debian's packages for them"
    assert last == "left out, 1: long (make test-long runs them)"


@pytest.mark.parametrize(
    ("needs", "failed"),
    [("ccx,ROOT", 6), ("nix,", 1), ("cc,long", 0)],
)
def test_what_this_machine_should_have_is_a_failure(
    tmp_path: Path, needs: str, failed: int
) -> None:
    code, said = _ends(tmp_path, needs)
    assert (code != 0) == bool(failed)
    assert sum(line.startswith("DISTRLCC_NEEDS has") for line in said.splitlines()) == failed
