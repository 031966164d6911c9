"""Files from a stranger: one short line that a terminal can show, exit code 2, and no long wait."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from distrlcc.cli.main import main
from distrlcc.data.manifest import NAME, Spaces
from distrlcc.files import write_atomically
from distrlcc.policy.spec import PolicySpec, expected_shapes
from distrlcc.recipes.registry import recipe
from distrlcc.runs.checkpoint import FORMAT, VERSION, pack
from distrlcc.runs.run_directory import RunDirectory, _identity
from tests.learn.toys import store

DIGITS, DEEP, LONG, ESCAPE = "9" * 5000, "[" * 100_000, "x" * 100_000, "\x1b[31mred\x9b"
HEADER = "# queue: infinite\n# base timestamp: 0\n"
LINK = 'name = "z"\nlink = {rate_mbps = 1.0}\n'
LOG = "check link FILE --trace cellular:1"
NODES = "node indigo --node-index 0 --node-num 1 --ip 127.0.0.1 --nodes"
TEXTS = {
    # A mahimahi log.
    f"{HEADER}1 + 1500\n100000000000 + 1500": (LOG, "100000000000 ms"),
    f"{HEADER}{DIGITS} + 1500": (LOG, "line 3"),
    f"{HEADER}1 - 1500 {DIGITS}": (LOG, "line 3"),
    f"{HEADER}# port: {DIGITS}\n": (LOG, "too many digits"),
    f"# queue: infinite\n# base timestamp: {DIGITS}": (LOG, "too many digits"),
    f"# queue: droptail [packets={DIGITS}]\n# base timestamp: 0": (LOG, "too many digits"),
    # TOML.
    f"{LINK}seed = {DIGITS}": ("evaluate --suite FILE.toml", "cannot be read as TOML"),
    f"{LINK}seed = {DEEP}": ("evaluate --suite FILE.toml", "nested too deeply"),
    f"{LINK}seed = '{LONG}'": ("evaluate --suite FILE.toml", "seed = 'xxx"),
    f"{LINK}{LONG} = 1": ("evaluate --suite FILE.toml", "unknown key"),
    f"{LINK}'{' '.join(LONG)}' = 1": ("evaluate --suite FILE.toml", "unknown key"),
    LINK.replace("z", "\\u001b[31m\\n"): ("evaluate --suite FILE.toml --links 1", "name is"),
    f"seed = {DIGITS}\n": ("train FILE.toml", "cannot be read as TOML"),
    f"ppo = {DEEP}": ("train FILE.toml", "nested too deeply"),
    f"nodes = {DEEP}": (f"{NODES} FILE.toml", "nested too deeply"),
    f"nodes = [[{DIGITS}]]": (f"{NODES} FILE.toml", "cannot be read as TOML"),
    # What a user types.
    "1": (f"train quickstart --set ppo.hidden={DEEP}", "ppo.hidden"),
    "2": (f"train quickstart --set seed={DIGITS}", "seed"),
    "3": (f"train quickstart --set ppo.lr='{ESCAPE}'", "ppo.lr"),
    "4": (f"train {LONG}", "unknown recipe"),
    "5": (f"train quickstart --{ESCAPE}", "unrecognized"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _line(capfd: pytest.CaptureFixture[str], words: str) -> str:
    """Return the one line that a command fails with, which is short, plain and soon there."""
    begin = time.monotonic()
    assert main(words.split(" ")) == 2
    assert time.monotonic() - begin < 20
    lines = [line for line in capfd.readouterr().err.split("\n")[:-1] if "compiling" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("distrlcc: error: ")
    assert lines[0].isprintable()
    assert len(lines[0]) < 1000
    return lines[0]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{TEXTS[text][1]}-{text[:40]!r}")
def test_a_text(capfd: pytest.CaptureFixture[str], text: str) -> None:
    words, says = TEXTS[text]
    for name in ("FILE", "FILE.toml"):
        Path(name).write_text(text)
    assert says in _line(capfd, words)


def test_a_log_that_begins_late_is_not_stepped_through() -> None:
    Path("FILE").write_text(f"{HEADER}100000000000 + 1500\n".replace(": 0", ": -100000000000"))
    begin = time.monotonic()
    assert main(["check", "link", "FILE", "--trace", "cellular:1"]) in (0, 1)
    assert time.monotonic() - begin < 20


SPEC = PolicySpec("scale-free", 20, "multiplicative", "discrete", 6, hidden=(8,))


WHOLE = {"spec": asdict(SPEC), "acting": "argmax", "notes": {}}
HEADERS = {
    "deep": DEEP,
    "digits": DIGITS,
    "acting": json.dumps(WHOLE | {"acting": ["argmax"]}),
    "notes": json.dumps(WHOLE | {"notes": [1]}),
    **{
        f"{key} {str(value)[:30]!r}": json.dumps(WHOLE | {"spec": asdict(SPEC) | {key: value}})
        for key, value in [
            ("options", ["a"]),
            ("options", "ab"),
            ("options", {"preference": 0.5}),
            ("options", {"preference": "0", "delay_weights": 3}),
            ("observation_size", 10**30),
            ("observation", LONG),
            ("action", ESCAPE),
        ]
    },
}


@pytest.mark.filterwarnings("ignore:.*has no checksum")
@pytest.mark.parametrize("name", HEADERS)
def test_a_policy(capfd: pytest.CaptureFixture[str], name: str) -> None:
    arrays = {name: np.ones(shape, np.float32) for name, shape in expected_shapes(SPEC).items()}
    metadata = {"format": "distrlcc-policy", "format_version": "1", "policy": HEADERS[name]}
    Path("p.safetensors").write_bytes(save(arrays, metadata))
    _line(capfd, "evaluate p.safetensors --suite random --links 1")


TREES: dict[str, Any] = {
    "no dictionary": 7,
    "kind alone": ["dict"],
    "pairs": ["dict", [[1]]],
    "a list as key": ["dict", [[["list", []], 1]]],
    "a number as kind": [1, 2],
    "place": ["dict", [["learner", ["array", "x"]]]],
    "no learner": ["dict", [["learner", 1], ["counters", ["dict", []]]]],
    "counters": ["dict", [["counters", ["dict", [["update", "x"]]]]]],
}


@pytest.mark.parametrize("tree", [*map(json.dumps, TREES.values()), DEEP], ids=[*TREES, "deep"])
def test_a_checkpoint(capfd: pytest.CaptureFixture[str], tree: str) -> None:
    _run(b"", tree)
    _line(capfd, "train --resume --out run")


def _run(data: bytes, tree: str = "") -> RunDirectory:
    config = recipe("quickstart")
    with RunDirectory.create(Path("run"), config, tensorboard=False) as run:
        if tree:
            known = {"format": FORMAT, "version": VERSION, "config_toml": _identity(config)}
            data = _with_tree(pack({}, **known), tree)
        write_atomically(run.checkpoint_path("latest"), data)
    return run


def _with_tree(packed: bytes, tree: str) -> bytes:
    """Put another tree, with its checksum, into a packed state without arrays."""
    from distrlcc.files import crc32

    size = int.from_bytes(packed[:8], "little")
    metadata = json.loads(packed[8 : 8 + size])["__metadata__"]
    return save({}, metadata | {"state": tree, "checksum": str(crc32(tree, []))})


def test_no_checkpoint_is_whole(capfd: pytest.CaptureFixture[str]) -> None:
    _run(b"torn")
    line = _line(capfd, "train --resume --out run")
    assert "latest.safetensors is truncated or corrupt" in line
    assert "copy one back, or begin a new run" in line


FOREIGN = '{"format": "distrlcc-trajectories", "version": 2}'


@pytest.mark.parametrize(
    "spoiled", [DEEP, DIGITS, FOREIGN, ("steps_file", "a\0b"), ("", 2**64 - 1)]
)
def test_a_manifest(capfd: pytest.CaptureFixture[str], spoiled: Any) -> None:
    _stored()
    manifest = json.loads(Path("d", NAME).read_text())
    if isinstance(spoiled, tuple):
        name, value = spoiled
        part = manifest["shards"][0] if name else manifest["spaces"]
        part[name or "observation_size"] = value
        spoiled = json.dumps(manifest)
    Path("d", NAME).write_text(spoiled)
    _line(capfd, "imitate d --out r")


def _stored() -> None:
    spaces = Spaces("scale-free", 20, "multiplicative", "discrete", 6)
    store(Path("d"), spaces, [(np.zeros((9, 20)), np.full(9, 2))] * 3)


def test_a_shard_that_claims_nulls(capfd: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa

    _stored()
    manifest = json.loads(Path("d", NAME).read_text())
    path = Path("d", manifest["shards"][0]["episodes_file"])
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    place = batch.schema.get_field_index("first_row")
    rows = pa.array([None, *batch.column(place).to_pylist()[1:]], pa.int64())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch.set_column(place, "first_row", rows))
    manifest["shards"][0]["episodes_bytes"] = path.stat().st_size
    Path("d", NAME).write_text(json.dumps(manifest))
    _line(capfd, "imitate d --out r")


@pytest.mark.parametrize("text", [DEEP, '{"generation": ' + DIGITS + "}", "[1]"])
def test_a_manifest_in_a_storage(capfd: pytest.CaptureFixture[str], text: str) -> None:
    place = Path("store", "run", "000001-00000000")
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(text)
    assert "is damaged" in _line(capfd, "train --resume --out run --storage store")


LINKS = "config.toml metrics.jsonl .lock .run policy.safetensors checkpoints/latest.safetensors"


@pytest.mark.parametrize("name", [*LINKS.split(), "checkpoints", "checkpoints/.x.tmp"])
def test_a_run_directory_with_a_link(capfd: pytest.CaptureFixture[str], name: str) -> None:
    _run(b"torn")
    victim = Path("victim")
    victim.write_text("mine")
    place = Path("run", name)
    if place.is_dir():
        place.rename("elsewhere")
    place.unlink(missing_ok=True)
    place.symlink_to(victim.resolve())
    assert f"run/{name} is a link" in _line(capfd, "train --resume --out run")
    assert victim.read_text() == "mine"


def test_a_run_directory_whose_lock_is_another_file_as_well_or_a_pipe(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _run(b"torn")
    victim, lock = Path("victim"), Path("run/.lock")
    victim.write_text("mine")
    lock.unlink(missing_ok=True)
    lock.hardlink_to(victim)
    _line(capfd, "train --resume --out run")
    assert victim.read_text() == "mine"
    lock.unlink()
    os.mkfifo(lock)
    assert "run/.lock is not a regular file" in _line(capfd, "train --resume --out run")
