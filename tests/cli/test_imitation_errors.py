"""Bad input to ``collect`` and ``imitate``: one line, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli import main as cli
from distrlcc.data.manifest import NAME, Origin, Spaces
from distrlcc.data.writer import DatasetWriter, Episode

COLLECT = ("collect", "--out", "{}/d", "--scheme")


def _fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, captured.err
    assert captured.out == ""
    return lines[0]


def _stored(
    folder: Path, *, observation_size: int = 20, value: float = 0.0, action: int = 2, env: str = ""
) -> None:
    spaces = Spaces("scale-free", observation_size, "multiplicative", "discrete", 6)
    origin = Origin("oracle", ("random",), "train", 0, 1, 0.0, env, {})
    obs = np.full((9, observation_size), value, np.float32)
    actions = np.full(9, action)
    scores = dict.fromkeys(("return", "utilisation", "queueing_delay", "loss"), 0.0)
    with DatasetWriter(folder, spaces, origin, 100) as writer:
        for _ in range(3):
            writer.add(Episode("", obs, actions, actions, obs[:, 0], obs[:, :3], obs[0], scores))
        writer.finish()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("collect", "--scheme", "oracle"), "--out"),
        (("collect", "--out", "{}/d"), "--scheme"),
        ((*COLLECT, "cubik"), "did you mean cubic"),
        ((*COLLECT, "agent"), "unknown scheme 'agent'"),
        ((*COLLECT, "cubic", "--suite", "randm"), "did you mean random"),
        ((*COLLECT, "cubic", "--recipe", "quikstart"), "did you mean quickstart"),
        ((*COLLECT, "cubic", "--set", "env.actoin=rate"), "did you mean env.action"),
        ((*COLLECT, "cubic", "--set", "env.action=rat"), "did you mean rate"),
        ((*COLLECT, "cubic", "--steps", "0"), "whole number of 1 or more"),
        ((*COLLECT, "cubic", "--steps", "5", "--episodes", "5"), "not allowed with"),
        ((*COLLECT, "cubic", "--num-envs", "99999999"), "num_envs is 99999999"),
        ((*COLLECT, "cubic", "--shard-steps", "100"), "expected 1001 or more"),
        ((*COLLECT, "cubic", "--disturb", "0.1"), "cubic drives the link itself"),
        ((*COLLECT, "oracle", "--disturb", "0.9"), "from 0 to 0.5"),
        ((*COLLECT, "oracle", "--split", "tset"), "invalid choice"),
        (("collect", "--scheme", "oracle", "--out", "/proc/none/d"), "cannot write"),
        (("collect", "--scheme", "oracle", "--out", "{}"), "not empty"),
        (("collect", "--scheme", "oracle", "--out", "{}/file"), "is a file"),
        (("imitate",), "no data set; expected a folder"),
        (("imitate", "{}/none"), "no data set at"),
        (("imitate", "{}/good", "--epochs", "0"), "whole number of 1 or more"),
        (("imitate", "{}/good", "--set", "imitation.lrr=1"), "did you mean imitation.lr"),
        (("imitate", "{}/good", "--set", "imitation.lr=0"), "lr is 0.0"),
        (("imitate", "{}/good", "--set", "imitation.minibatch_size=8"), "one sequence"),
        (("imitate", "{}/good", "--set", "imitation.validation_share=1"), "expected 0 to 0.9"),
        (("imitate", "{}/good", "--set", "env.action=rate"), "was collected with"),
        (("imitate", "{}/good", "--set", "network.hidden=[0]"), "hidden"),
        (("imitate", "{}/good", "--out", "{}"), "not empty"),
        (("imitate", "{}/wide", "--out", "{}/r"), "have 31 elements, this distrlcc's have 20"),
        (("imitate", "{}/foreign", "--out", "{}/r"), "collect again"),
        (("imitate", "--resume"), "--resume needs --out"),
        (("imitate", "--resume", "--out", "{}/none"), "holds no run"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "file").write_text("")
    if words[0] == "imitate":
        _stored(tmp_path / "good")
        _stored(tmp_path / "wide", observation_size=31)
        _stored(tmp_path / "foreign", env='observation = "smell"')
    before = sorted(tmp_path.rglob("*"))
    line = _fails(capsys, *(word.format(tmp_path) for word in words))
    assert says.lower() in line.lower()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"value": np.nan}, "an observation is not finite"),
        ({"action": 6}, "an action is not of the action space"),
        ({"action": -1}, "an action is not of the action space"),
    ],
)
def test_values_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, float], says: str
) -> None:
    _stored(tmp_path / "d", **changes)  # type: ignore[arg-type]
    line = _fails(capsys, "imitate", f"{tmp_path}/d", "--out", f"{tmp_path}/r")
    assert says in line


def test_a_truncated_shard(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _stored(tmp_path / "d")
    shard = tmp_path / "d" / "steps-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "its manifest says" in _fails(capsys, "imitate", f"{tmp_path}/d")
    (tmp_path / "d" / NAME).unlink()
    assert "unfinished" in _fails(capsys, "imitate", f"{tmp_path}/d")


def test_printing_the_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _stored(tmp_path / "d")
    assert cli.main(("imitate", f"{tmp_path}/d", "--print-config")) == 0
    assert "[imitation]" in capsys.readouterr().out
