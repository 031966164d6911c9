"""Bad input on the command line: one line, exit code 2, nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.ppo import PPO
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.policy.spec import PolicySpec


def _fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("distrlcc: error: ")
    lines = [line for line in captured.err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, captured.err
    assert captured.out == ""
    return lines[0]


ONE_SUITE = ("env.suite_weights=[1.0]",)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no command"),
        (("trian",), "did you mean train"),
        (("check", "sym"), "did you mean sim"),
        (("bench",), "no command"),
        (("train",), "no recipe"),
        (("train", "quikstart"), "did you mean quickstart"),
        (("train", "quickstart", "--set", "ppo.learning_rate=1"), "ppo.learning_rate"),
        (("train", "quickstart", "--set", "ppo.lrr=1"), "ppo.lr"),
        (("train", "quickstart", "--set", "ppo.lr=fast"), "ppo.lr"),
        (("train", "quickstart", "--set", "ppo.lr=-1"), "lr is -1"),
        (("train", "quickstart", "--set", "ppo.minibatch_size=0"), "minibatch_size is 0"),
        (("train", "quickstart", "--set", "ppo"), "ppo"),
        (("train", "quickstart", "--set", "dagger.lr=1"), "dagger"),
        (("train", "quickstart", "--set", "num_envs=0"), "num_envs is 0"),
        (
            ("train", "quickstart", "--out", "{}/r", "--set", *ONE_SUITE, "env.suites=['randm']"),
            "did you mean random",
        ),
        (
            (
                "train",
                "quickstart",
                "--out",
                "{}/r",
                "--set",
                *ONE_SUITE,
                "env.suites=['{}/empty.toml']",
            ),
            "no scenarios",
        ),
        (
            (
                "train",
                "quickstart",
                "--out",
                "{}/r",
                "--set",
                *ONE_SUITE,
                "env.suites=['{}/pair.toml']",
            ),
            "agent first",
        ),
        (("train", "quickstart", "--out", "{}/r", "--set", "network.hidden=[0]"), "hidden"),
        (("train", "quickstart", "--out", "{}/r", "--set", "held_out.seconds=0.01"), "episode_s"),
        (
            (
                "train",
                "quickstart",
                "--out",
                "{}/r",
                "--set",
                "network.kind=lstm",
                "ppo.minibatch_size=4",
            ),
            "minibatch",
        ),
        (("train", "quickstart", "--out", "{}/r", "--set", "seed=99999999999999999"), "seed"),
        (("train", "quickstart", "--set", "env.suite_weights=[nan,1,1]"), "suite_weights"),
        (("train", "quickstart", "--set", "env.reward.delay_weight=nan"), "delay_weight is nan"),
        (("evaluate", "--suite", "{}/empty.toml"), "no scenarios"),
        (("evaluate", "--suite", "{}/seed.toml"), "seed is"),
        (("evaluate", "--suite", "{}/pair.toml"), "agent first"),
        (("evaluate", "--suite", "{}/tiny.toml"), "changes.rate_mbps is 1e-07"),
        (("evaluate", "--suite", "random/tset/3"), "did you mean test"),
        (("evaluate", "--links", "1", "--json", "/proc/none/x"), "cannot write"),
        (("bench", "sim", "--json", "/proc/none/x"), "cannot write"),
        (("evaluate", "a\0b"), "no policy file"),
        (("train", "quickstart", "--ouut", "x"), "did you mean --out"),
        (("train", "--resume"), "--resume needs --out"),
        (("train", "--resume", "--out", "{}/none"), "holds no run"),
        (("train", "quickstart", "--out", "/proc/none/run"), "cannot write"),
        (("evaluate", "{}/none.safetensors"), "no policy file"),
        (("evaluate", "--against", "cubik"), "did you mean cubic"),
        (("evaluate", "--against", ""), "nothing to evaluate"),
        (("evaluate", "--against", "agent"), "unknown scheme 'agent'"),
        (("evaluate", "--suite", "rndom"), "did you mean random"),
        (("evaluate", "--seeds", "0"), "whole number of 1 or more"),
        (("evaluate", "--links", "-3"), "whole number of 1 or more"),
        (("evaluate", "--trace", "{}/none.trace"), "cannot be read"),
        (("evaluate", "--trace", "{}/empty.trace"), "empty"),
        (("evaluate", "--trace", "{}/falling.trace"), "comes after"),
        (("evaluate", "--trace", "{}/words.trace"), "line 1: 'twelve'"),
        (("evaluate", "--trace", "{}/far.trace"), "above the limit"),
        (("evaluate", "--suite", "{}/zero.toml"), "rate_mbps is 0.0"),
        (("evaluate", "--suite", "{}/negative.toml"), "rate_mbps is -1.0"),
        (("evaluate", "--suite", "{}/key.toml"), "rate_mbps"),
        (("evaluate", "--suite", "{}/scheme.toml"), "did you mean cubic"),
        (("evaluate", "--out", "/proc/none"), "cannot write"),
        (("evaluate", "--against", "cubic", "--series", "nope"), "no such link"),
        (("trace", "cellular:x", "--out", "{}/t"), "cellular:SEED"),
        (("trace", "/dev/zero", "--out", "{}/t"), "no regular file"),
        (("check", "link", "/dev/zero", "--trace", "cellular:1"), "no regular file"),
        (("trace", "cellular:1", "--out", "/proc/none/t"), "cannot write"),
        (("trace", "cellular:1"), "--out"),
        (("check", "sim", "--scenarios", "0"), "whole number"),
        (("check", "link", "{}/none", "--trace", "cellular:1"), "cannot be read"),
        (("bench", "sim", "--steps", "x"), "whole number"),
        (("list", "recipe"), "invalid choice"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "empty.trace").write_text("")
    (tmp_path / "falling.trace").write_text("3\n2\n")
    (tmp_path / "words.trace").write_text("twelve\n")
    (tmp_path / "far.trace").write_text("99999999999\n")
    (tmp_path / "empty.toml").write_text('name = "none"\nscenarios = []\n')
    pair = '[[scenarios]]\nname = "a"\nlink = {rate_mbps = 1.0}\n'
    pair += pair.replace('"a"', '"b"') + 'flows = [{scheme = "agent"}, {scheme = "agent"}]\n'
    (tmp_path / "pair.toml").write_text(pair)
    (tmp_path / "seed.toml").write_text(f'name = "z"\nseed = {2**62}\nlink = {{rate_mbps = 1.0}}\n')
    (tmp_path / "tiny.toml").write_text(
        'name = "z"\n[link]\nrate_mbps = 1.0\nchanges = [{at_s = 1.0, rate_mbps = 1e-7}]\n'
    )
    (tmp_path / "zero.toml").write_text('name = "z"\nlink = {rate_mbps = 0.0}\n')
    (tmp_path / "negative.toml").write_text('name = "z"\nlink = {rate_mbps = -1.0}\n')
    (tmp_path / "key.toml").write_text('name = "z"\nlink = {rate = 1.0}\n')
    (tmp_path / "scheme.toml").write_text(
        'name = "z"\nflows = [{scheme = "agent"}, {scheme = "cubix"}]\nlink = {rate_mbps = 1.0}\n'
    )
    before = sorted(tmp_path.iterdir())
    line = _fails(capsys, *(word.format(tmp_path) for word in words))
    assert says.lower() in line.lower()
    assert sorted(tmp_path.iterdir()) == before


def _policy(path: Path, observation: str = "scale-free") -> bytes:
    size = LinkBatch(1, EnvConfig(observation=observation)).observation_size
    spec = PolicySpec(observation, size, "multiplicative", "discrete", 6, hidden=(8,))
    arrays = PPO(PPOConfig(), spec).weights().arrays
    save_policy(path, PolicyFile(spec, arrays))
    return path.read_bytes()


def test_a_truncated_or_foreign_policy_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.safetensors"
    data = _policy(path)
    path.write_bytes(data[:-7])
    assert "truncated" in _fails(capsys, "evaluate", str(path))
    path.write_bytes(b"not a policy")
    assert "truncated or not a policy" in _fails(capsys, "evaluate", str(path))


def test_a_policy_of_another_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    spec = PolicySpec("scale-free", 11, "multiplicative", "discrete", 6, hidden=(8,))
    save_policy(path, PolicyFile(spec, PPO(PPOConfig(), spec).weights().arrays))
    assert "11" in _fails(capsys, "evaluate", str(path), "--links", "1")
    spec = PolicySpec("smell", 20, "multiplicative", "discrete", 6, hidden=(8,))
    save_policy(path, PolicyFile(spec, PPO(PPOConfig(), spec).weights().arrays))
    assert "unknown observation 'smell'" in _fails(capsys, "evaluate", str(path), "--links", "1")


def test_a_checkpoint_from_another_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = ("num_envs=4", "ppo.rollout_length=4", "total_steps=16", "held_out.links=2",
             "held_out.seconds=0.1")  # fmt: skip
    for name, more in (("a", ()), ("b", ("seed=3",))):
        out = str(tmp_path / name)
        assert main(("train", "quickstart", "--no-tensorboard", "--out", out, "--set", *small,
                     *more)) == 0  # fmt: skip
    capsys.readouterr()
    latest = Path("checkpoints") / "latest.safetensors"
    (tmp_path / "b" / latest).write_bytes((tmp_path / "a" / latest).read_bytes())
    assert "seed" in _fails(capsys, "train", "--resume", "--out", str(tmp_path / "b"))
    (tmp_path / "b" / latest).write_bytes(b"junk")
    line = _fails(capsys, "train", "--resume", "--out", str(tmp_path / "b"))
    assert "corrupt" in line


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--help",), ("train", "--help"), ("check", "--help"), ("check", "sim", "-h")):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        assert "usage: distrlcc" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(("--version",))
    assert capsys.readouterr().out.startswith("distrlcc 0.")
