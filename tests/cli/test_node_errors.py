"""Wrong flags of `node` and of several processes: one line, exit code 2, nothing written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from distrlcc.cli.main import main

NODE = ("node", "--topology", "decentralized", "--node-num", "2")
LOCAL = (*NODE, "--node-index", "0", "--ip", "127.0.0.1")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("node", "quickstart"), "--node-index"),
        ((*NODE, "--node-index", "0", "quickstart"), "--ip"),
        ((*NODE, "--ip", "127.0.0.1", "quickstart"), "--node-index"),
        (("node", "--topology", "ring", "--node-index", "0", "--node-num", "2", "--ip", "x"),
         "invalid choice: 'ring'"),
        ((*NODE, "--node-index", "2", "--ip", "127.0.0.1", "--no-elastic", "quickstart"),
         "--node-index 2: expected 0 to 1"),
        ((*NODE, "--node-index", "-1", "--ip", "127.0.0.1", "quickstart"), "whole number"),
        (("node", "--topology", "decentralized", "--node-index", "0", "--node-num", "0", "--ip",
          "127.0.0.1", "quickstart"), "whole number"),
        ((*LOCAL, "--port", "65535", "quickstart"), "from 1 to 65534"),
        ((*LOCAL, "--port", "0", "quickstart"), "from 1 to 65534"),
        ((*LOCAL, "--processes", "0", "quickstart"), "whole number"),
        ((*LOCAL, "--restarts", "-1", "quickstart"), "whole number"),
        ((*LOCAL, "--join-timeout", "nan", "quickstart"), "'nan' is not a number"),
        ((*LOCAL, "--join-timeout", "0", "quickstart"), "of 1 or more"),
        ((*LOCAL, "--node-indx", "1", "quickstart"), "did you mean --node-index"),
        ((*LOCAL,), "no recipe"),
        ((*LOCAL, "quikstart"), "did you mean quickstart"),
        ((*LOCAL, "quickstart", "--set", "num_envs=1"), "at least one for each of 2"),
        ((*LOCAL, "quickstart", "--gpu", "300"), "--gpu 300: this machine has"),
        ((*LOCAL, "quickstart", "--set", "distributed.straggler_share=2"), "expected 0 to 1"),
        ((*LOCAL, "quickstart", "--set", "distributed.timeout_s=0"), "expected 0.5 to 3600"),
        ((*LOCAL, "quickstart", "--resume"), "--resume needs --out"),
        ((*NODE, "--node-index", "1", "--ip", "127.0.0.1", "--resume", "--out", "{}/r"),
         "--resume is for node 0 alone"),
        (("train", "quickstart", "--processes", "0"), "whole number"),
        (("train", "quickstart", "--processes", "2", "--gpu", "300"), "--gpu 300"),
        (("train", "quickstart", "--gpu", "300"), "--gpu 300"),
        (("train", "quickstart", "--processes", "257"), "at least one for each of 257"),
        (("check", "parity", "--processes", "1"), "from 2 to 64"),
        (("check", "parity", "nope"), "unknown recipe 'nope'"),
        (("check", "parity", "--set", "num_envs=1"), "at least one for each of 2"),
    ],
    ids=lambda value: " ".join(value)[-60:] if isinstance(value, tuple) else None,
)  # fmt: skip
def test_bad_flags_are_one_line(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    line = _fails(capfd, *(word.format(tmp_path) for word in words))
    assert says in line
    assert not list(tmp_path.iterdir())


def _fails(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, err
    assert lines[0].startswith("distrlcc: error: ")
    assert out == ""
    return lines[0]


def test_a_node_without_its_master_or_its_port(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        tiny = ("quickstart", "--set", "num_envs=2", "ppo.rollout_length=2", "--port", port)
        line = _fails(capfd, *LOCAL, *tiny, "--out", f"{tmp_path}/taken")
        assert f"cannot listen on 127.0.0.1:{port}" in line
    line = _fails(
        capfd, *NODE, "--node-index", "1", "--ip", "127.0.0.1", "--join-timeout", "1", *tiny
    )
    assert f"127.0.0.1:{port} cannot be reached over lo (127.0.0.1): Connection refused" in line


def test_processes_belong_to_torchrun_where_it_starts_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    line = _fails(capfd, "train", "quickstart", "--processes", "2", "--out", f"{tmp_path}/r")
    assert "give torchrun --nproc-per-node instead" in line
    monkeypatch.setenv("RANK", "0")
    assert "--out DIR, the same for all ranks" in _fails(capfd, "train", "quickstart")
    assert not list(tmp_path.iterdir())
