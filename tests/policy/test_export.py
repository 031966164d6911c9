"""A policy as an ONNX model gives the actions that it gives itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.policy.numpy_policy import NumpyPolicy, log_softmax, sample_categorical
from distrlcc.policy.policy_file import find_policy, save_policy
from distrlcc.policy.spec import NETWORKS
from tests.policy.random_policies import make_policy


@pytest.mark.parametrize("name", ["one", "indigo", "dagger", "aurora", "layers behind", "draws"])
def test_onnxruntime_acts_as_the_policy(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnx", reason="needs onnx")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    if name == "layers behind":  # those that are shipped are a minGRU, an LSTM and MLPs
        name = str(tmp_path / "policy.safetensors")
        save_policy(Path(name), make_policy(kind="lstm", hidden=(8,), post_hidden=4))
    if name == "draws":
        name = str(tmp_path / "policy.safetensors")
        save_policy(
            Path(name),
            replace(make_policy(action_kind="continuous", action_size=1), acting="sample"),
        )
    path = tmp_path / "policy.onnx"
    assert main(["export", name, "--onnx", str(path)]) == 0
    session = runtime.InferenceSession(str(path))
    policy = NumpyPolicy.load(find_policy(name))
    state = policy.initial_state(5)
    given = state
    rng, discrete = np.random.default_rng(1), policy.spec.action_kind == "discrete"
    for _ in range(20):
        observation = rng.normal(size=(5, policy.spec.observation_size)).astype(np.float32)
        head, _, after = policy.step(observation, state)
        draws, normal = rng.random(5), rng.normal(size=(5, 1))
        actions, _ = policy.act(observation, state, draws if discrete else normal)
        state = after
        inputs = {"observation": observation}
        if policy.spec.kind != "mlp":
            inputs["state"] = given
        found = session.run(None, inputs)
        np.testing.assert_allclose(found[0], head, atol=1e-4, rtol=1e-4)
        if policy.acting == "argmax":
            chosen = found[0].argmax(axis=-1) if discrete else found[0]
            np.testing.assert_allclose(chosen, actions, atol=1e-4, rtol=1e-4)
        elif discrete:
            assert np.array_equal(sample_categorical(log_softmax(found[0]), draws), actions)
        else:
            std = np.exp(json.loads(session.get_modelmeta().custom_metadata_map["log_std"]))
            np.testing.assert_allclose(found[0] + std * normal, actions, atol=1e-4, rtol=1e-4)
        given = found[-1] if policy.spec.kind != "mlp" else given
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["spec"])["observation"] == policy.spec.observation
    assert said["acting"] == policy.acting


def test_a_users_network_has_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gated = Path(__file__).parents[2] / "examples" / "plugins" / "network.py"
    policy, model = tmp_path / "policy.safetensors", tmp_path / "policy.onnx"
    save_policy(policy, make_policy(kind=NETWORKS.pinned(f"{gated}:Gated")))
    assert main(["export", str(policy), "--onnx", str(model)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "network.py:Gated is a plug-in network" in line
    assert not model.exists()
