"""Every bit and every cut of a file that is read back: the same as undamaged, or a line says it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.data.reader import StoredData
from distrlcc.errors import DistrlccError
from distrlcc.policy.policy_file import load_policy, save_policy
from distrlcc.runs.run_directory import RunDirectory
from tests.data.test_stored_data import EPISODES, write_data
from tests.policy.random_policies import make_policy
from tests.runs.test_run_directory import Config, create

Read = Callable[[], Any]


def _policy(folder: Path) -> Read:
    path = folder / "policy.safetensors"
    save_policy(path, make_policy())

    def read() -> Any:
        policy = load_policy(path)
        arrays = {name: array.tobytes() for name, array in policy.arrays.items()}
        return repr(policy.spec), policy.acting, policy.notes, arrays

    return read


def _data(folder: Path) -> Read:
    write_data(folder / "data", EPISODES)

    def read() -> Any:
        data = StoredData(folder / "data")
        shards = range(len(data.manifest.shards))
        steps = [data.read_steps(k).to_pydict() for k in shards]
        return repr((data.manifest, steps, [data.read_episodes(k).to_pydict() for k in shards]))

    return read


def _run(folder: Path) -> Read:
    with create(folder / "run") as run:
        for update in range(1, 9):
            run.metrics.log(update, {"steps": 100 * update, "loss": 1 / 3, "what": "a name"})
            if update in (6, 8):
                run.save({"update": update, "weights": np.arange(40.0)})

    def read() -> Any:
        said = list[str]()
        with RunDirectory(folder / "run", Config(), tensorboard=False) as run:
            state = run.load(said.append)
            rows = run.metrics.path.read_bytes() if run.metrics.path.exists() else b""
        for line in said:
            warnings.warn(line, stacklevel=1)
        return repr(state), rows

    return read


KINDS = {"policy": _policy, "data": _data, "run": _run}
LEFT_OUT = {"versions.json", "config.toml"}
"""Files for people, and one that is compared with what a checkpoint holds."""


def _silent(read: Read, whole: Any) -> bool:
    """Tell whether another result comes without a word, or with more than a line."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = read()
        except DistrlccError as error:
            return "\n" in str(error)
    return bool(found != whole and not told)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [250, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_bit_and_no_cut_goes_unsaid(kind: str, count: int, tmp_path: Path) -> None:
    read, rng = KINDS[kind](tmp_path), np.random.default_rng(5)
    whole = read()
    files = [p for p in sorted(tmp_path.rglob("*")) if p.is_file() and p.name not in LEFT_OUT]
    silent = list[str]()
    for _ in range(count):
        path = files[rng.integers(len(files))]
        data = path.read_bytes()
        if rng.random() < 0.2:
            cut = int(rng.integers(len(data)))
            path.write_bytes(data[:cut])
            what = f"{path.name} cut at {cut} of {len(data)}"
        else:
            bit = int(rng.integers(8 * len(data)))
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            what = f"{path.name}, bit {bit} of {8 * len(data)}"
        if _silent(read, whole):
            silent.append(what)
        path.write_bytes(data)
    assert read() == whole
    assert not silent


@pytest.mark.parametrize("kind", ["policy", "run", "data"])
def test_a_file_that_is_gone_is_said(kind: str, tmp_path: Path) -> None:
    read = KINDS[kind](tmp_path)
    whole = read()
    for path in [p for p in sorted(tmp_path.rglob("*")) if p.is_file() and p.name not in LEFT_OUT]:
        data = path.read_bytes()
        path.unlink()
        # Only the older of two checkpoints is nobody's loss.
        assert not _silent(read, whole) or path.name == "previous.safetensors", path.name
        path.write_bytes(data)


def test_a_shard_that_is_cut_while_it_is_mapped_is_said(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", EPISODES)
    data.episode(0)
    shard = tmp_path / "data" / data.manifest.shards[0].steps_file
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(DistrlccError, match="has 100 bytes, its manifest says"):
        data.episode(0)


def test_rows_that_a_resume_finds_changed_are_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    read = _run(tmp_path)
    read()
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], b"\x00" + lines[3][1:], *lines[4:]]))
    said = list[str]()
    with RunDirectory(tmp_path / "run", Config(), tensorboard=False) as run:
        state = run.load(said.append)
        assert state is not None
        run.rewind(state["update"])
    assert [line for line in said if "rows are changed; what is whole is kept" in line]
    assert log.read_bytes() == b"".join([*lines[:3], *lines[4:]])
