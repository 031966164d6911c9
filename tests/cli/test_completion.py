"""The completion script, run by a shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from distrlcc.cli.main import main


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("distrlcc eval", {"evaluate"}),
        ("distrlcc kernel lo", {"load"}),
        ("distrlcc train --start", {"--start-from"}),
        ("distrlcc evaluate --wor", {"--world"}),
    ],
)
def test_bash_completes_commands_and_flags(
    words: str, found: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _completed(words, capsys) == found


def _completed(words: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = (
        f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _shtab_distrlcc; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    result = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=30, check=True
    )
    return set(result.stdout.split())


def test_bash_completes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "summary.json").touch()
    for words in ("distrlcc plot summ", "distrlcc evaluate --trace summ"):
        assert _completed(words, capsys) == {"summary.json"}


def test_an_unknown_shell_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish-and-chips"]) == 2
    assert "invalid choice" in capfd.readouterr().err
