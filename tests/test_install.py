"""The wheel alone, in a fresh environment: what it weighs, and that a sender's commands run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrlcc.net.emulator.namespace import is_privileged

ROOT = Path(__file__).parents[1]
MOST_MB = 350
NONE_OF = ("torch", "matplotlib", "ray", "pyarrow", "gymnasium")


def _run(program: str | Path, words: str, *more: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words.split(), *more],
        env={**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def _require(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_wheel_without_extras_is_light_and_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # An environment with nothing else than the wheel.
    _require(_run(sys.executable, "-m venv fresh"))
    python, command = (tmp_path / "fresh" / "bin" / name for name in ("python", "distrlcc"))
    if _run(python, "-m pip download --quiet --no-deps tomli-w").returncode:
        pytest.skip("no package index can be reached")
    _require(_run(python, "-m pip wheel --quiet --no-deps", ROOT))
    _require(_run(python, "-m pip install --quiet", next(tmp_path.glob("distrlcc-*.whl"))))
    packages = next(tmp_path.glob("fresh/lib/python*/site-packages"))
    files = (path for path in packages.rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) < MOST_MB * 1e6
    assert not [name for name in NONE_OF if (packages / name).exists()]
    # The commands of a sender.
    assert _require(_run(command, "--version")).startswith("distrlcc 0.")
    _require(_run(command, "evaluate one --against cubic --links 2 --seeds 1 --json e.json"))
    assert json.loads(Path("e.json").read_text())["ranking"] == ["one", "cubic"]
    _require(_run(command, "doctor --json doctor.json"))
    if is_privileged():
        link = ("--up", "12", "--down", "12", "--outside", f"{command} receive", "--")
        send = f"{command} send $MAHIMAHI_BASE --seconds 1 --wait 30 --json s.json"
        done = _run(command, "emulate", *link, "sh", "-c", send)
        if "too busy for these figures to count" not in done.stderr:
            _require(done)
        assert json.loads(Path("s.json").read_text())["mbps"] > 3
    # What it lacks has a name, and a command that installs it.
    lacking = _run(command, "train quickstart")
    assert lacking.returncode == 2
    assert "is not installed (extra 'train'): pip install " in lacking.stderr
    assert len(lacking.stderr.splitlines()) == 1
