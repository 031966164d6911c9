"""What an update measured is written once, as JSON and to TensorBoard, and goes with a rewind."""

import json
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from distrlcc.errors import OutputError
from distrlcc.runs.event_file import EventFile
from distrlcc.runs.metrics_log import MetricsLog, read_metrics
from tests.parallel.commands import rows, updates


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MetricsLog]:
    with closing(MetricsLog(tmp_path, tensorboard=False)) as made:
        yield made


def test_metrics_are_json_lines_with_numpy_and_without_nan(log: MetricsLog) -> None:
    log.log(1, {"return": np.float32(0.5), "n": np.int64(3), "text": "x", "a": np.arange(2)})
    log.log(2, {"return": float("nan"), "deep": {"x": [float("inf"), 1.0]}})
    assert rows(log.path.parent) == [  # before it is closed
        {"update": 1, "return": 0.5, "n": 3, "text": "x", "a": [0, 1]},
        {"update": 2, "return": None, "deep": {"x": [None, 1.0]}},
    ]


def test_what_is_known_later_of_an_update_completes_its_row(log: MetricsLog) -> None:
    log.log(1, {"reward": 0.25})
    log.log(2, {"reward": 0.5})
    before = log.path.read_bytes()
    log.log(2, {"held_out_reward": 0.75})
    log.log(3, {"reward": 1.0})
    assert log.path.read_bytes().startswith(before)
    with log.path.open("a") as file:
        file.write('{"update": 4, "rew')
    assert read_metrics(log.path) == [
        {"update": 1, "reward": 0.25},
        {"update": 2, "reward": 0.5, "held_out_reward": 0.75},
        {"update": 3, "reward": 1.0},
    ]


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with (
        closing(MetricsLog(tmp_path / "gone", tensorboard=False)) as log,
        pytest.raises(OutputError, match=r"cannot write .*gone.*: No such file"),
    ):
        log.log(1, {})


def test_tensorboard_shows_each_update_once_after_a_rewind(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with closing(MetricsLog(tmp_path)) as first:
        for update in (1, 2, 3):
            first.log(update, {"steps": 10.0 * update, "loss": float(update), "note": "text"})
    with closing(MetricsLog(tmp_path)) as again:
        again.begin_after(1)
        assert updates(tmp_path) == [1]
        again.log(2, {"steps": 20.0, "policy_loss": np.float32(20)})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    # In groups, over environment steps; what the rewind dropped is hidden.
    assert set(events.Tags()["scalars"]) == {"time/steps", "episodes/loss", "learning/policy_loss"}
    assert [(e.step, e.value) for e in events.Scalars("episodes/loss")] == [(10, 1.0)]
    assert [(e.step, e.value) for e in events.Scalars("learning/policy_loss")] == [(20, 20.0)]


def test_what_a_full_disk_broke_off_stands_once_there_is_room(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    file = EventFile(tmp_path, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = next(tmp_path.iterdir()).stat().st_size + 20  # part of a record
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write(1, {"steps": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.write(2, {"steps": 2.0})
    file.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [e.step for e in events.Scalars("time/steps")] == [1, 2]


def test_tensorboards_page_of_hyperparameters_has_the_configuration(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    settings = {"ppo.lr": 5e-4, "env.agents": 4, "normalise": True, "env.suites": ("random", "x")}
    folder = tmp_path / "mine" / "tensorboard"
    folder.parent.mkdir()
    EventFile(folder, settings).close()
    (path,) = folder.iterdir()
    values = [v for event in EventFileLoader(str(path)).Load() for v in event.summary.value]
    (start,) = [v for v in values if v.tag == metadata.SESSION_START_INFO_TAG]
    assert start.metadata.plugin_data.plugin_name == metadata.PLUGIN_NAME
    data = plugin_data_pb2.HParamsPluginData.FromString(start.metadata.plugin_data.content)
    found = {
        k: getattr(v, v.WhichOneof("kind")) for k, v in data.session_start_info.hparams.items()
    }
    assert found == {**settings, "env.suites": "('random', 'x')"}


@pytest.mark.parametrize("count", [0, 1, 5, 4000])
@pytest.mark.parametrize("torn", ["", '{"upd', '{"update": 1}', '{"update": 1e999}\n'])
def test_lines_up_to_an_update_are_kept(tmp_path: Path, count: int, torn: str) -> None:
    path = tmp_path / "log.jsonl"
    texts = ["x" * (200_000 if k == 1 else k % 90) for k in range(count)]
    lines = [json.dumps({"update": k // 2, "text": x}) + "\n" for k, x in enumerate(texts)]
    path.write_text("".join(lines) + torn)
    for update in sorted({10**9, count // 2, count // 4, 0, -1}, reverse=True):
        with closing(MetricsLog(tmp_path, path.name, tensorboard=False)) as log:
            log.begin_after(update)
            assert log.newest == max(0, min(update, (count - 1) // 2))
            assert path.read_text() == "".join(lines[: 2 * (update + 1)])
