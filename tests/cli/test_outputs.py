"""Files that a user names for output, links and devices too, and what standard streams refuse."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distrlcc.cli.main import NAMES, find, main
from distrlcc.files import require_output, write_output
from distrlcc.net.emulator.link_log import LinkLog
from distrlcc.policy.policy_file import find_policy

INPUTS = {"--hosts", "--nodes", "--trace", "--scenario", "--autoscaling-config"}
"""Files that are read."""
ELSEWHERE = {"--log", "--log-down", "--log-port"}
"""Written by `LinkLog`."""


def _outputs() -> Iterator[tuple[str, argparse.Action]]:
    for name in NAMES:
        for action in find(name)[0]._actions:
            metavar = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
            if action.option_strings and "FILE" in metavar:
                yield name, action


def test_flags_are_told_apart() -> None:
    flags = {action.option_strings[0] for _, action in _outputs()}
    assert flags - INPUTS - ELSEWHERE == {"--json", "--out", "--plot", "--onnx"}


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_a_flag_takes_a_place_in_a_folder_that_is_missing(flag: str, tmp_path: Path) -> None:
    found = [(n, a) for n, a in _outputs() if a.option_strings[0] == flag]
    assert found
    for _, action in found:
        assert callable(action.type)
        action.type(str(tmp_path / "a" / "b" / "c.svg"))
        assert not (tmp_path / "a").exists()


def _commands(path: Path) -> list[list[str]]:
    """Return quick commands that write a file, one for each way of writing."""
    return [
        ["policies", "--json", str(path)],
        ["trace", "constant:1", "--out", str(path)],
        ["export", "one", "--onnx", str(path)],
    ]


@pytest.mark.parametrize("number", range(3))
def test_commands_make_folders(number: int, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    if number == 2:
        pytest.importorskip("onnx", reason="needs onnx")
    assert main(_commands(path)[number]) == 0
    assert path.stat().st_size
    # A file where a folder is expected is one line.
    assert main(_commands(path / "d")[number]) == 2


def test_what_is_refused_makes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    for words in (
        ["plot", str(tmp_path / "none.json"), "--out", str(out / "f.svg")],
        ["trace", "constant:0", "--out", str(out / "t")],
        ["evaluate", "nothing", "--json", str(out / "j")],
        ["export", "nothing", "--onnx", str(out / "o")],
    ):
        assert main(words) == 2
        assert not out.exists(), words
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_files_and_logs_make_folders(tmp_path: Path) -> None:
    path = tmp_path / "x" / "y"
    require_output(path)
    assert not path.parent.exists()
    write_output(path, b"data")
    assert path.read_bytes() == b"data"
    LinkLog(tmp_path / "logs" / "up.log").close()
    assert (tmp_path / "logs" / "up.log").exists()


def test_a_links_target_is_written_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_output(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_commands_own_words_are_not_looked_at(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    trace.write_text("1\n")
    words = ["emulate", "--up", str(trace), "--down=12", f"--log={tmp_path / 'l'}", "echo", "--log"]
    args = find("emulate")[0].read([*words[1:], str(trace), str(trace)])
    assert args.command == ["echo", "--log", str(trace), str(trace)]


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
    "command",
    [
        *("export {} --onnx {}", "trace {} --out {}", "plot {} --out {}"),
        *("evaluate cubic --trace {} --json={}", "emulate --up {} --down 12 --log {} true"),
        "emulate --up 12 --down {} --log-port 9 {} true",
        "emulate --up 12 --down 12 --log {} --log-down {} true",
    ],
)
def test_what_is_read_is_not_written_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "a.svg"
    path.write_text("precious")
    (tmp_path / "link").symlink_to("a.svg")
    assert main(command.format(path, tmp_path / "link").split()) == 2
    says = "cannot hold two logs" if "--log-down" in command else "is the file that is read"
    assert says in capfd.readouterr().err
    assert path.read_text() == "precious"


def test_a_name_that_is_no_text_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / os.fsdecode(b"r\xff"))
    assert main(["collect", "cubic", "--episodes", "1", "--num-envs", "1", "--out", out]) == 0
    assert main(["imitate", out, "--out", str(tmp_path / "imitated")]) == 2
    assert "(a name is no text in UTF-8: rename it)" in capsys.readouterr().err
    shutil.copy(find_policy("dagger"), f"{out}2")
    words = ["--start-from", f"{out}2", "--out", str(tmp_path / "trained")]
    assert main(["train", "quickstart", *words]) == 2
    assert "r\\udcff2' is no text in UTF-8; rename" in capsys.readouterr().err


def _shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell's line, with Python's streams as users have them: buffered."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    words = ["bash", "-c", line]
    return subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@pytest.mark.parametrize("words", ["list schemes", "policies", "train --help", "metrics --once"])
def test_output_that_cannot_be_written_is_told(words: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"steps": 1.0}\n')
    words = f"python -m distrlcc {words} {tmp_path if '--once' in words else ''}"
    full, gone = (_shell(f"{words} {to}; exit $PIPESTATUS") for to in ("> /dev/full", "| true"))
    assert (full.returncode, gone.returncode) == (2, 141)
    assert full.stderr == "distrlcc: error: standard output: No space left on device\n"
    assert gone.stderr == ""


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    line = f"mkdir {tmp_path}/gone && cd $_ && rmdir $PWD && python -m distrlcc doctor"
    done = _shell(line)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the folder that this runs in is gone" in done.stderr


def test_notes_that_cannot_be_written_end_nothing_and_stand_nowhere_else(tmp_path: Path) -> None:
    evaluate = "python -m distrlcc evaluate cubic --against none --links 1 --json - 2>"
    assert json.loads(_shell(f"{evaluate}&-").stdout) == json.loads(
        _shell(f"{evaluate}{tmp_path}/log").stdout
    )
    train = f"python -m distrlcc train quickstart --processes 2 --out {tmp_path / 'run'} --set "
    train += "num_envs=4 total_steps=256 held_out.links=2 2> /dev/full"
    assert _shell(train).returncode == 0
    assert (tmp_path / "run" / "policy.safetensors").exists()


INTERRUPTED = """
import signal, sys, time
from distrlcc.cli import main
def work(*_):
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL  # a fork may need it
    import sent
    print(sent.whole, flush=True)
    time.sleep(60)
main._run = work
sys.exit(main.main())
"""


FORKS = """
    import ctypes, functools, logging, os
    sends = functools.partial(ctypes.CDLL(None).kill, os.getpid(), 2)
    os.register_at_fork(before=sends)
    os.fork() or os._exit(0)
    print(True, flush=True)
"""


def test_ctrl_c_while_a_process_forks_is_not_lost() -> None:
    """Python ignores what logging's own functions raise then, whose lock may stay taken."""
    script = INTERRUPTED.replace("    import sent\n    print(sent.whole, flush=True)\n", FORKS)
    done = _shell(f"exec python -c '{script}'")
    assert (done.returncode, done.stdout, done.stderr) == (130, "True\n", "distrlcc: interrupted\n")


def test_ctrl_c_waits_until_what_is_being_imported_is_whole(tmp_path: Path) -> None:
    """Torch's import dies of it, by SIGABRT."""
    (tmp_path / "sent.py").write_text("import os; os.kill(os.getpid(), 2); whole = True")
    done = _shell(f"PYTHONPATH=$PYTHONPATH:{tmp_path} exec python -c '{INTERRUPTED}'")
    assert (done.returncode, done.stdout, done.stderr) == (130, "True\n", "distrlcc: interrupted\n")
