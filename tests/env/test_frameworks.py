"""Gymnasium's and Stable-Baselines3's own ways to our links, and back with a policy."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from distrlcc.cli.main import main
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import PARTS
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import PolicyFileError
from distrlcc.library import evaluate, load_policy


def test_gymnasium_makes_our_vector_environment() -> None:
    env = gymnasium.make_vec("distrlcc.env:distrlcc/Link-v0", num_envs=6, suites=("slow",))
    assert isinstance(env.unwrapped, LinkVectorEnv)
    env.reset(seed=3)
    for _ in range(60):
        _, reward, _, _, info = env.step(np.full(6, 3))
    assert reward.shape == (6,)
    # What rewards are made of is enough to compute ours, where delays are below one RTT.
    assert {info[name].shape for name in PARTS} == {(6,)}
    batch = env.unwrapped.batch
    mean = batch.mean_rate * 8e-6 * 1504
    wasted = (1.0 - info["utilisation"]) * info["capacity_mbps"] / mean
    ours = 1.0 - wasted - 0.5 * info["queueing_delay_rtt"] - 10.0 * info["loss"]
    small = info["queueing_delay_rtt"] < 1.0
    assert small.any()
    np.testing.assert_allclose(ours[small], reward[small], rtol=1e-6)
    env.close()


def test_a_model_of_sb3_is_trained_on_many_links_and_becomes_a_policy(
    tmp_path: Path, receiver: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    from stable_baselines3.common import vec_env

    from distrlcc.sb3 import VecLink

    links = VecLink(16, EnvConfig(action="fine"), episode_s=0.5)
    kwargs = {"net_arch": [16, 8]}
    model = sb3.PPO("MlpPolicy", links, n_steps=60, batch_size=96, policy_kwargs=kwargs, seed=1)
    model.learn(16 * 120)
    own, read = tmp_path / "own.safetensors", tmp_path / "read.safetensors"
    links.save_policy(model, own)
    normalised = sb3.PPO("MlpPolicy", vec_env.VecNormalize(links), n_steps=4)
    with pytest.raises(PolicyFileError, match="train it with norm_obs=False"):
        links.save_policy(normalised, own)
    model.save(tmp_path / "model.zip")
    words = ["import", "sb3", str(tmp_path / "model.zip"), "--out", str(read)]
    assert main(words) == 2
    assert main([*words, "--set", "action=fine"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(r"model\.zip: \S+ has shape .* give --set with the observation", line)
    # It acts as the model does.
    observation = links.reset()
    for _ in range(30):
        expected, _ = model.predict(observation, deterministic=True)
        for path in (own, read):
            np.testing.assert_array_equal(load_policy(path).act(observation), expected)
        observation, _, ends, infos = links.step(expected)
    assert [bool(info) for info in infos] == list(ends)
    assert np.isfinite(evaluate(str(read), links=2)["power"]).all()
    sent = tmp_path / "sent.json"
    words = ["send", receiver, str(read), "--seconds", "0.5", "--json", str(sent)]
    assert main(words) in (0, 1)  # 1: on a busy machine
    assert json.loads(sent.read_text())["acked"] > 0


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("no zip", "is no model of Stable-Baselines3"),
        ("nothing", "check the path"),
        ("a pickle", "which was not run"),
        ("weights of nothing", "is not an MlpPolicy"),
        ("an extractor", "is not an MlpPolicy"),
        ("another action space", "shape"),
    ],
)
def test_what_is_no_model_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str, says: str
) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    path, out = tmp_path / "model.zip", tmp_path / "policy.safetensors"
    if wrong == "no zip":
        path.write_bytes(b"nothing")
    elif wrong in ("a pickle", "weights of nothing"):
        inner = io.BytesIO()
        held = {"x.mlp_extractor.policy_net.0.weight": torch.zeros(2)}
        torch.save(Evil(tmp_path / "run") if wrong == "a pickle" else held, inner)
        with zipfile.ZipFile(path, "w") as model:
            model.writestr("policy.pth", inner.getvalue())
    elif wrong == "an extractor":
        from stable_baselines3.common.torch_layers import FlattenExtractor

        class Mixed(FlattenExtractor):
            def __init__(self, space: gymnasium.Space[Any]) -> None:
                super().__init__(space)
                self.mix = torch.nn.Linear(4, 4)

        kwargs = {"features_extractor_class": Mixed}
        sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs=kwargs).save(path)
    elif wrong != "nothing":
        sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu").save(path)
    capfd.readouterr()
    assert main(["import", "sb3", str(path), "--out", str(out)]) == 2
    line = capfd.readouterr().err
    assert says in line
    assert line.count("\n") == 1
    assert not out.exists()
    assert not (tmp_path / "run").exists()
