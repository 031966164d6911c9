"""Files that a user names: links, devices and pipes stay what they are, inputs too."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.errors import OutputError
from distrlcc.files import write_output


def test_a_links_target_is_written_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_output(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_what_is_no_regular_file_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert main(["policies", "--json", str(pipe)]) == 0
    reader.join(10)
    assert '"name": "one"' in read[0]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except OSError:
        pytest.skip("needs root: devices")
    assert main(["trace", "cellular:7", "--out", str(full)]) == 2
    assert "No space left" in capfd.readouterr().err
    assert stat.S_ISCHR(full.stat().st_mode)


@pytest.mark.parametrize(
    "command", ["export {} --onnx {}", "trace {} --out {}", "plot {} --out {}"]
)
def test_what_is_read_is_not_written_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "a.svg"
    path.write_text("precious")
    assert main(command.format(path, path).split()) == 2
    assert "is the file that is read" in capfd.readouterr().err
    assert path.read_text() == "precious"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        write_output(tmp_path, b"")
