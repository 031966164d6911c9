"""Data sets on disk: what is written is read, mapped and not loaded; what is damaged is refused."""

import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from distrlcc.data.manifest import NAME, Origin, Spaces
from distrlcc.data.reader import StoredData
from distrlcc.data.writer import DatasetWriter, Episode
from distrlcc.errors import DatasetError, OutputError

SPACES = Spaces("toy", 3, "toy", "discrete", 4)
ORIGIN = Origin("oracle", ("random",), "train", 0, 1, 0.0, "", {})
LENGTHS = (5, 7, 1, 12, 3)


def _episode(number: int, length: int, actions: int = 0) -> Episode:
    rng = np.random.default_rng(number)
    taken = rng.normal(size=(2, length, actions)) if actions else rng.integers(0, 4, (2, length))
    columns = (rng.normal(size=shape).astype(np.float32) for shape in (length, (length, 3), 3))
    scores = {"return": 1.5 * number, "utilisation": 0.5, "queueing_delay": 0.25, "loss": 0.125}
    observations = rng.normal(size=(length, 3)).astype(np.float32)
    both = taken.astype(np.float32 if actions else np.int64)
    return Episode(f"toy/{number}", observations, *both, *columns, scores)  # type: ignore[call-arg]


def write_data(
    folder: Path, episodes: Iterable[Episode], spaces: Spaces = SPACES, shard_steps: int = 12
) -> StoredData:
    with DatasetWriter(folder, spaces, ORIGIN, shard_steps) as writer:
        for episode in episodes:
            writer.add(episode)
        manifest = writer.finish()
    data = StoredData(folder)
    assert data.manifest == manifest
    return data


EPISODES = [_episode(number, length) for number, length in enumerate(LENGTHS)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    data = write_data(tmp_path / "d", EPISODES)
    assert data.shard.tolist() == [0, 0, 1, 2, 3]  # whole episodes, 12 steps at most
    assert data.steps.tolist() == list(LENGTHS)
    assert data.first_row.tolist() == [0, 5, 0, 0, 0]
    for number, episode in enumerate(EPISODES):
        stored = data.episode(number)
        np.testing.assert_array_equal(stored.observations, episode.observations)
        np.testing.assert_array_equal(stored.expert_actions, episode.expert_actions)
        np.testing.assert_array_equal(stored.outcomes, episode.outcomes)
    steps = pa.Table.from_batches([data.read_steps(k) for k in range(4)]).to_pydict()
    assert steps["episode"] == np.repeat(np.arange(5), LENGTHS).tolist()
    assert steps["step"] == [t for length in LENGTHS for t in range(length)]
    assert steps["action"] == [a for episode in EPISODES for a in episode.actions]
    assert np.flatnonzero(steps["truncated"]).tolist() == (np.cumsum(LENGTHS) - 1).tolist()
    assert not any(steps["terminated"])
    episodes = pa.Table.from_batches([data.read_episodes(k) for k in range(4)]).to_pydict()
    assert episodes["link"] == [f"toy/{n}" for n in range(5)]
    assert episodes["return"] == [0.0, 1.5, 3.0, 4.5, 6.0]
    final = episodes["final_observation"][3]
    np.testing.assert_array_equal(final, EPISODES[3].final_observation)


def test_continuous_actions(tmp_path: Path) -> None:
    episode = _episode(0, 4, actions=2)
    data = write_data(tmp_path / "d", [episode], Spaces("toy", 3, "toy", "continuous", 2))
    np.testing.assert_array_equal(data.episode(0).expert_actions, episode.expert_actions)


def test_steps_are_mapped_and_not_loaded(tmp_path: Path) -> None:
    long = [_episode(number, 50_000) for number in range(4)]
    write_data(tmp_path / "d", long, shard_steps=50_000)
    before = pa.total_allocated_bytes()
    data = StoredData(tmp_path / "d")
    total = sum(float(data.episode(k).observations.sum()) for k in range(4))
    assert np.isfinite(total)
    assert pa.total_allocated_bytes() - before < 10_000  # of 2.4 MB of observations
    text = Path("/proc/self/maps").read_text()
    assert all(f"steps-0000{k}.arrow" in text for k in range(4))
    held = [str(p.readlink()) for p in Path("/proc/self/fd").iterdir() if p.exists()]
    assert not [name for name in held if name.endswith(".arrow")]  # thousands of shards open


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "d"

    def broken_off() -> Iterator[Episode]:
        yield from [_episode(0, 9)] * 9
        assert len(list(folder.iterdir())) > 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_data(folder, broken_off())
    assert not folder.exists()


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", tmp_path / "d"
    notes.write_text("mine")
    write_data(folder, EPISODES)
    cases = [(tmp_path, "not empty"), (notes, "is a file"), (folder, "already holds a data set")]
    for place, words in [*cases, (folder, "holds an unfinished data set; delete it")]:
        with pytest.raises(OutputError, match=words):
            DatasetWriter(place, SPACES, ORIGIN, 12)
        if place == folder:
            (folder / NAME).unlink(missing_ok=True)


def _refused(folder: Path, words: str) -> None:
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(DatasetError, match=words) as caught,
    ):
        StoredData(folder).episode(1)
    assert "\n" not in str(caught.value)


def test_damage_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    _refused(folder, "no data set at")
    write_data(folder, EPISODES)
    shard, manifest = folder / "steps-00000.arrow", folder / NAME
    values = json.loads(manifest.read_text())
    data = shard.read_bytes()
    shard.write_bytes(b"x" * len(data))
    _refused(folder, "its checksum is wrong")
    # An older data set has no checksums.
    unchecked = [{**each, "steps_crc": None, "episodes_crc": None} for each in values["shards"]]
    values |= {"version": 2, "crc": None, "shards": unchecked}
    text = json.dumps(values)
    manifest.write_text(text)
    shard.write_bytes(data[:-100])
    _refused(folder, "its manifest says")
    shard.write_bytes(b"x" * len(data))
    _refused(folder, "cannot be read")
    shard.write_bytes((folder / "episodes-00000.arrow").read_bytes())
    manifest.write_text(text.replace(str(len(data)), str(shard.stat().st_size), 1))
    _refused(folder, "the columns that its manifest says")
    shard.unlink()
    _refused(folder, "is missing")
    shard.write_bytes(data)
    for change, words in (
        ({"version": 1}, "has format version 1, this distrlcc reads version 3"),
        ({"format": "other"}, "not the manifest of a distrlcc data set"),
        ({"steps": 27}, "27 steps, and 28 in its shards"),
        ({"steps": "many"}, "is damaged"),
        ({"shards": [{**values["shards"][0], "steps_file": "../x"}]}, "a plain file name"),
    ):
        manifest.write_text(json.dumps({**values, **change}))
        _refused(folder, words)
    manifest.write_text(text[:-20])
    _refused(folder, "cannot be read")
    manifest.unlink()
    _refused(folder, "unfinished")
    for path in folder.iterdir():
        path.unlink()
    _refused(folder, "is no data set")
