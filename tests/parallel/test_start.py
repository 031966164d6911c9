"""How a rank finds its master under torchrun."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from distrlcc.errors import GroupError
from distrlcc.parallel.start import _MASTER, TrainJob, _launched_spec
from distrlcc.parallel.store import TCPStore
from distrlcc.recipes.registry import recipe
from distrlcc.runs.options import GroupOptions


def test_a_rank_that_leads_again_finds_its_folder_again(tmp_path: Path) -> None:
    out, config = tmp_path / "quickstart-node1", recipe("quickstart")
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    job = TrainJob(config, out, tensorboard=False)
    for _ in range(2):
        with job.directory("f00df00d0000") as run:
            assert run.path == out.with_name("quickstart-node1-f00df00d") == job.folder(run._run)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\x80\xff",
        b'[0, "10.0.0.1"]',
        b'[0, "10.0.0.1", "x"]',
        b'[0, "10.0.0.1", 0]',
        b'[0, "10.0.0.1", 70000]',
        b'[0, "here", 29500]',
        b'[0, "10.0.0.1\\n", 29500]',
        b'[-1, "10.0.0.1", 29500]',
        b"[" + b"9" * 5000 + b', "10.0.0.1", 29500]',
        b'[0, "10.0.0.1", 29500]' + b"x" * 100_000,
        b"[" * 100_000,
    ],
)
def test_what_a_stranger_leaves_in_torchruns_store_is_one_line(
    told: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5.0)
    )
    store.set(_MASTER, told)
    words = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": "1"}
    words |= {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(GroupError, match="where rank 0's address belongs") as caught:
        _launched_spec(recipe("quickstart"), GroupOptions(join_seconds=60.0), words)
    assert len(str(caught.value).splitlines()) == 1
