"""Checkpoints: exact round trips, refusals in one line, and what a kill leaves behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from distrlcc.errors import CheckpointError, OutputError
from distrlcc.files import remove_temporary
from distrlcc.runs.checkpoint import DamagedCheckpointError, load_checkpoint, save_checkpoint
from tests.trees import same


def reloaded(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    save_checkpoint(folder / "c.safetensors", state)
    return load_checkpoint(folder / "c.safetensors")


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    state = {
        "arrays": {
            "uint64": np.array([0, 2**64 - 1, 2**63], dtype=np.uint64),
            "int64": np.array([[-(2**63), 2**63 - 1]], dtype=np.int64),
            "bool": np.array([True, False]),
            "float64": np.array([0.1, -0.0, np.nan, np.inf, 5e-324]),
            "0-d": np.array(7.25),
            "empty": np.zeros((0, 3), dtype=np.int32),
            "transposed": np.arange(6.0).reshape(2, 3).T,
            "reversed": np.arange(6.0)[::-1],
            "view": np.arange(24.0).reshape(4, 6)[::2, ::-2],
            "scalar": np.uint64(2**64 - 1),
        },
        "numbers": [1, True, None, 2**200, -(2**63) - 1, 0.1, -0.0, float("nan"), float("inf")],
        "texts": ("", "ünïcode", 'a "quoted"\nline'),
        "nothing": {"dict": {}, "list": [], "tuple": ()},
        "integer keys": {0: "a", 10**20: "b"},
        "numpy generator": generator.bit_generator.state,
    }
    again = reloaded(tmp_path, state)
    same(again, state)
    assert again["arrays"]["float64"].flags.writeable
    other = np.random.default_rng()
    other.bit_generator.state = again["numpy generator"]
    assert np.array_equal(other.random(5), generator.random(5))
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
    # Of a big-endian array the values count.
    assert reloaded(tmp_path, {"x": np.arange(4, dtype=">i8")})["x"].tolist() == [0, 1, 2, 3]


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    module(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    state = {
        "module": dict(module.state_dict()),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "0-d": torch.tensor(3),
        "empty": torch.zeros(0, 2),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
    }
    same(reloaded(tmp_path, state), state)


def test_a_state_of_arrays_loads_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"x": np.arange(3)})
    code = (
        "import sys, pathlib; from distrlcc.runs.checkpoint import load_checkpoint; "
        f"load_checkpoint(pathlib.Path({str(path)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "value", [object(), {1.5: 2}, {"a": [b"bytes"]}, np.array(["text"]), np.array([None])]
)
def test_what_cannot_be_stored_is_a_type_error(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match=r"state\.x.*cannot store"):
        save_checkpoint(tmp_path / "c.safetensors", {"x": value})
    assert list(tmp_path.iterdir()) == []


def refusal(path: Path, **arguments: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_truncation_and_flip_is_found_or_harmless(tmp_path: Path) -> None:
    path, state = tmp_path / "c.safetensors", {"x": np.arange(2), "n": 3}
    save_checkpoint(path, state)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpointError, match="truncated or corrupt"):
            load_checkpoint(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        try:
            same(load_checkpoint(path), state)  # a flip in the stored digest does no harm here
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017
    with pytest.raises(DamagedCheckpointError, match="checksum"):  # the last one was in a tensor
        load_checkpoint(path)


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {}, config_toml="seed = 0\n[ppo]\nlr = 0.001\n")
    assert load_checkpoint(path, config_toml="seed = 0\n[ppo]\nlr = 0.001\n") == {}
    text = refusal(path, config_toml="seed = 0\n[ppo]\nlr = 0.0003\n")
    assert "is from another config" in text
    assert "ppo.lr: 0.001 != 0.0003; put these back" in text


def test_missing_and_foreign_files_and_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    assert refusal(path).startswith("there is no checkpoint at /")
    safetensors.numpy.save_file({"w": np.zeros(2)}, path)
    assert "is not a distrlcc checkpoint" in refusal(path)
    save_checkpoint(path, {})
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size])["__metadata__"] | {"version": "99"}
    path.write_bytes(safetensors.numpy.save({}, metadata))
    assert "has format version 99, this distrlcc reads version 2" in refusal(path)
    assert "cannot be read" in refusal(tmp_path) or "corrupt" in refusal(tmp_path)


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "c.safetensors", tmp_path / "no" / "c.safetensors"):
        with pytest.raises(OutputError, match="cannot write") as caught:
            save_checkpoint(path, {})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_while_writing_leaves_the_last_good_file(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "c.safetensors"
    code = f"""
import os, pathlib, signal
import numpy as np
from distrlcc.runs.checkpoint import save_checkpoint
path = pathlib.Path({str(path)!r})
save_checkpoint(path, {{"update": 1, "x": np.ones(1000)}})
def die(*_):
    if {moment!r} == "fsync":
        os.truncate(next(path.parent.glob(".*.tmp")), 100)  # half of it reached the disk
    os.kill(os.getpid(), signal.SIGKILL)
if {moment!r} == "fsync":
    os.fsync = die
else:
    pathlib.Path.replace = die
save_checkpoint(path, {{"update": 2, "x": np.zeros(1000)}})
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".*.tmp"))
    assert load_checkpoint(path)["update"] == 1
    save_checkpoint(path, {"update": 3})
    remove_temporary(tmp_path)
    assert load_checkpoint(path)["update"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
