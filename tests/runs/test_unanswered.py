"""A network's file system that does not answer for a while, for which a library stands."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from distrlcc.runs.checkpoint import load_checkpoint
from tests.parallel.commands import Command, updates

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler"),
]
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The file of FAULTS has how many of the next calls fail, with which error, on which file. */
static int fails(const char *path)
{
    int left = 0, number = 0;
    char name[64] = "", again[128];
    FILE *file = fopen(getenv("FAULTS"), "r");
    if (!file)
        return 0;
    int read = fscanf(file, "%d %d %63s", &left, &number, name);
    fclose(file);
    size_t length = strlen(path), wanted = strlen(name);
    if (read != 3 || left < 1 || length < wanted || strcmp(path + length - wanted, name))
        return 0;
    if ((file = fopen(getenv("FAULTS"), "w"))) {
        fprintf(file, "%d %d %s\n", left - 1, number, name);
        fclose(file);
    }
    errno = number;
    return 1;
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    return fails(to) ? -1 : real(from, to);
}

static int fails_on(int fd, const char *call)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 9);
    path[size < 0 ? 0 : size] = 0;
    return fails(strcat(path, call));
}

int fsync(int fd)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return fails_on(fd, "") ? -1 : real(fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return fails_on(fd, ":write") ? -1 : real(fd, data, size);
}
"""
TINY = """num_envs=6 checkpoint_every=2 held_out.every=1000 held_out.links=2 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[8] ppo.rollout_length=16 ppo.minibatch_size=64
    total_steps=1000000000"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("shim") / "shim.c"
    source.write_text(SHIM)
    library = source.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def _faults(place: Path, count: int, number: int, name: str) -> None:
    place.with_suffix(".new").write_text(f"{count} {number} {name}\n")
    place.with_suffix(".new").replace(place)


def _left(place: Path) -> int:
    return int((place.read_text() or "0").split()[0])


OTHERS = (errno.ESTALE, errno.ETIMEDOUT)
CASES = [
    (number, name)
    for number in (errno.EIO, *OTHERS)
    for name in ("latest.safetensors", "previous.safetensors", "metrics.jsonl", "checkpoints")
]


@pytest.mark.parametrize(
    ("number", "name"), [CASES[0], *(pytest.param(*c, marks=pytest.mark.long) for c in CASES[1:])]
)
def test_a_checkpoint_is_tried_again_and_then_left_out(
    tmp_path: Path, shim: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    out, faults = tmp_path / "run", tmp_path / "faults"
    faults.write_text("0 0 none\n")
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("FAULTS", str(faults))
    monkeypatch.setenv("DISTRLCC_LIMITS", "retry=0.2")
    # A process that is forked warm would load no library; with -P none is.
    words = [
        "-P",
        "-m",
        "distrlcc",
        "train",
        "quickstart",
        "--out",
        str(out),
        "--set",
        *TINY.split(),
    ]
    with Command(tmp_path, *words) as run:
        run.until_updates(out, 4)
        # Once: nobody hears of it.
        _faults(faults, 1, number, name)
        run.until_updates(out, len(updates(out)) + 6)
        assert _left(faults) == 0
        assert not [line for line in run.said if "warning" in line]
        # For two checkpoints: it is said once, training goes on, and the next ones are there.
        _faults(faults, 4, number, name)
        run.until_updates(out, len(updates(out)) + 12)
        assert _left(faults) == 0
        run.process.terminate()
        assert run.process.wait(60) == 143, run.said
        said = [line for line in run.said if "warning" in line]
    assert len(said) == 1, said
    assert f"cannot write {out}" in said[0]
    assert "; training goes on without this checkpoint" in said[0]
    assert len([line for line in run.said if line.endswith("saved again")]) == 1
    made = updates(out)
    assert made == list(range(1, len(made) + 1))
    assert load_checkpoint(out / "checkpoints/latest.safetensors")["counters"]["update"] == made[-1]


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.long) for n in (errno.EIO, *OTHERS)]
)
def test_a_row_is_written_once_all_the_same(
    tmp_path: Path, shim: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    out, faults = tmp_path / "run", tmp_path / "faults"
    _faults(faults, 1, number, "metrics.jsonl:write")
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("FAULTS", str(faults))
    monkeypatch.setenv("DISTRLCC_LIMITS", "retry=0.2")
    words = ["-P", "-m", "distrlcc", "train", "quickstart", "--out", str(out), "--set"]
    with Command(tmp_path, *words, *TINY.replace("1000000000", "960").split()) as run:
        assert run.process.wait(120) == 0, run.said
    assert _left(faults) == 0
    assert updates(out) == list(range(1, 11))
    words += [*TINY.replace("1000000000", "1920").split(), "--resume"]
    with Command(tmp_path, *words) as run:
        assert run.process.wait(120) == 0, run.said
        assert not [line for line in run.said if "warning" in line]
    assert updates(out) == list(range(1, 21))
