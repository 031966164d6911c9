"""What a machine needs that runs distrlcc for weeks: units, figures for Prometheus, caches."""

import http.client
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from distrlcc.cli.main import find, main
from distrlcc.cli.metrics import read_runs
from distrlcc.cli.output import exposition
from tests.hosts import wait_until

ROOT = Path(__file__).parents[1]
UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
INSTALLED = "/opt/distrlcc/bin/distrlcc"


def _now() -> float:
    return datetime.now().timestamp()


def _commands(unit: Path) -> list[list[str]]:
    lines = re.findall(r"^Exec\w+=(.*)$", unit.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_are_systemds_and_their_lines_are_commands(unit: Path, tmp_path: Path) -> None:
    for program, *words in _commands(unit):
        assert program == INSTALLED
        name = "_".join(words[:2]) if words[0] == "kernel" else words[0]
        find(name)[0].read(words[2:] if words[0] == "kernel" else words[1:])
    assert f"`{unit.stem}`" in (ROOT / "docs" / "operations.md").read_text()
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    (own := tmp_path / "distrlcc").write_text("#!/bin/sh\n")
    own.chmod(0o755)
    (copy := tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, str(own)))
    words = ["systemd-analyze", "verify", "--man=no", str(copy)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def _started(*words: str) -> tuple[Any, str]:
    """Start a command; return it and its first line."""
    line = [sys.executable, "-m", "distrlcc", *words]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline()


def test_the_receivers_end_is_one_that_its_unit_takes_for_success() -> None:
    (unit,) = (path for path in UNITS if path.stem == "distrlcc-receive")
    ((_, *words),) = _commands(unit)
    process, said = _started(*words, "--listen", "127.0.0.1:0")
    assert said.startswith("listening on ")
    status = Path(f"/proc/{process.pid}/status")
    caught = re.compile(r"^SigCgt:\t(\w+)$", re.MULTILINE)
    wait_until(
        lambda: int(caught.findall(status.read_text())[0], 16) >> (signal.SIGTERM - 1) & 1 == 1,
        60.0,
        "that it hears SIGTERM",
    )
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert f"\nSuccessExitStatus={process.returncode}\n" in unit.read_text()


def _parsed(text: str) -> dict[str, dict[str, tuple[str, float]]]:
    """Return what Prometheus' own parser reads: type and value by name, by the first label."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client")
    found: dict[str, dict[str, tuple[str, float]]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            of = found.setdefault(next(iter(sample.labels.values())), {})
            assert sample.name not in of
            of[sample.name] = family.type, sample.value
    return found


ODD = 'a "name"\\with\nall', "plain"


def test_prometheus_reads_whatever_figures_and_labels_there_are() -> None:
    figures: dict[str, Any] = {"a b-c": 1, "big": 10**30, "nan": math.nan, "up": math.inf}
    figures |= {"down": -math.inf, "yes": True, "text": "x", "list": [1], "none": None, "grows": 7}
    things = [({"run": name, "kind": "é"}, figures) for name in ODD]
    for of in _parsed(exposition("x", things, {"grows"})).values():
        assert set(of) == {"x_a_b_c", "x_big", "x_nan", "x_up", "x_down", "x_yes", "x_grows_total"}
        assert of["x_grows_total"] == ("counter", 7.0)
        assert of["x_big"] == ("gauge", 1e30)
        assert math.isnan(of["x_nan"][1])
        assert (of["x_up"][1], of["x_down"][1]) == (math.inf, -math.inf)
    assert set(_parsed(exposition("x", things))) == set(ODD)
    # Nothing but a number is changed, and one that is none leaves the others.
    things = [({"run": "info"}, {"inf": 1, "huge": 10**400}), ({"run": "a\udcff"}, {"inf": 2})]
    assert exposition("x", things).encode().decode() == (
        '# TYPE x_inf gauge\nx_inf{run="info"} 1.0\nx_inf{run="a?"} 2.0\n'
    )
    many = exposition("x", [({"run": "info"}, {"größe": 1, "延迟": 2, "损失": 3})])
    assert 'x_gr_xf6_xdfe{run="info"} 1.0' in many
    assert len({line.partition("{")[0] for line in many.splitlines()}) == 6  # none has another's
    assert exposition("x", []) == ""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a run, one that writes, a damaged one and one without figures."""
    monkeypatch.chdir(tmp_path)
    rows = [{"update": n, "steps": 10 * n, "seconds": 0.5 * n, "events": ["x"]} for n in range(9)]
    rows[3] |= {"held_out_reward": 0.25}
    whole = "".join(json.dumps(row) + "\n" for row in rows)
    texts = {
        "first": whole,
        "writes": f'{whole}{{"upd',
        "odd": '\0\xff\n[1]\n"x"\n7\n',
        "empty": "",
    }
    for name, text in texts.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").write_text(text, "latin-1")
    return tmp_path / "runs"


def test_figures_of_runs_are_served(runs: Path) -> None:
    process, said = _started("metrics", "--listen", "127.0.0.1:0")
    try:
        where = said.split()[1]
        with urllib.request.urlopen(where, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = _parsed(answer.read().decode())
        assert set(found) == {f"runs/{name}" for name in ("first", "writes", "odd", "empty")}
        for name in ("first", "writes"):
            figures = found[f"runs/{name}"].items()
            of = {key.removeprefix("distrlcc_run_"): value for key, (_, value) in figures}
            assert abs(of.pop("updated_timestamp_seconds") - _now()) < 600
            assert of == {"update": 8, "steps": 80, "seconds": 4, "held_out_reward": 0.25}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(where.replace("/metrics", "/"), timeout=30)
        # Strangers do not end it.
        port = int(where.split(":")[2].partition("/")[0])
        for data in (
            b"\0" * 999,
            b"GET",
            b"POST /metrics HTTP/1.1\r\n\r\n",
            b"GET /metrics\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), 10) as stranger:
                stranger.sendall(data)
        with urllib.request.urlopen(where, timeout=30) as answer:
            assert len(_parsed(answer.read().decode())) == 4
    finally:
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "")


@pytest.mark.parametrize("after", [0, 10, 900, 5000])
def test_scores_stay_however_long_ago_they_were(tmp_path: Path, after: int) -> None:
    rows = [{"update": 1, "steps": 1}, {"update": 1, "held_out_reward_sample": 0.25}]
    rows += [{"update": 2 + n, "steps": n, "text": "x" * 900} for n in range(after)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "distrlcc_run_held_out_reward_sample" in read_runs([tmp_path])


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0", "[::1]", "localhost"])
def test_metrics_are_not_for_pages_elsewhere(listen: str, runs: Path) -> None:
    process, said = _started("metrics", "--listen", f"{listen}:0")
    try:
        port = int(said.split()[1].rpartition(":")[2].partition("/")[0])
        asked = {f"{name}:{port}": 200 for name in (listen, "localhost", "127.0.0.1", "[::1]")}
        # A page's own name may lead here (DNS rebinding); an address is nobody else's.
        asked |= {f"evil.example:{port}": 403, "evil.example": 403, "": 403, "localhost": 403}
        asked |= {f"localhost.evil.example:{port}": 403, f"localhost:{port}.evil.example": 403}
        asked |= {f"{name}:{port}": 200 if listen == "0.0.0.0" else 403 for name in ("192.0.2.7",)}
        for host, expected in asked.items():
            link = http.client.HTTPConnection(listen.strip("[]"), port, timeout=30)
            link.request("GET", "/metrics", headers={"Host": host})
            answer = link.getresponse()
            assert (host, answer.status) == (host, expected)
            assert ("distrlcc_run" in answer.read().decode()) == (expected == 200)
            link.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_metrics_once_and_bad_places(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "runs/first", "--once"]) == 0
    assert set(_parsed(capsys.readouterr().out)) == {"runs/first"}
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = f"127.0.0.1:{other.getsockname()[1]}"
        for listen in (busy, "9464", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.7:9464"):
            assert main(["metrics", "--listen", listen]) == 2
            error = capsys.readouterr().err
            assert error.startswith("distrlcc: error: ")
            assert error.count("\n") == 1
            assert listen in error
    assert main(["metrics", "nowhere"]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err


CODE = """
import sys
from distrlcc.control.compiled import CACHE_FOLDER, njit
print(CACHE_FOLDER, flush=True)
"""


def _folder(cache: Path, **more: str) -> Path:
    """Return the folder of compiled code of a process with a cache."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **more}
    words = [sys.executable, "-c", CODE]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=True)
    return Path(done.stdout.strip())


def test_old_folders_of_compiled_code_go_and_cache_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "distrlcc"
    month = 31 * 86400
    for name, age in (("numba-aaaa", month), ("numba-bbbb", month / 2), ("other", month)):
        (home / name / "sim").mkdir(parents=True)
        (home / name / "sim" / "x.nbi").write_bytes(bytes(2_000_000))
        os.utime(home / name, (_now() - age,) * 2)
    own = _folder(tmp_path)
    # What nobody used for a month is gone; the own folder is marked as used.
    assert {path.name for path in home.iterdir()} == {"numba-bbbb", "other", own.name}
    os.utime(own, (_now() - 2 * month,) * 2)
    assert _folder(tmp_path) == own
    assert _now() - own.stat().st_mtime < 600

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("distrlcc.control.compiled.CACHE_FOLDER", own)
    assert main(["cache"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert said[0].startswith("     2.0 MB  last used ")
    assert said[1].endswith(f"{own}  of this version")
    assert said[2] == (
        "2.0 MB in all; 'distrlcc cache --clean' removes what this version does not use"
    )
    assert main(["cache", "--clean", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["removed"] for row in rows] == [True, False]
    assert {path.name for path in home.iterdir()} == {"other", own.name}
    assert main(["cache", "--clean", "--all"]) == 0
    assert {path.name for path in home.iterdir()} == {"other"}
    assert main(["cache", "--all"]) == 2
    assert capsys.readouterr().err == "distrlcc: error: --all needs --clean\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_without_a_home_nothing_is_left_in_tmp(tmp_path: Path, number: signal.Signals) -> None:
    env = os.environ | {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/none"}
    env |= {"TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", f"{CODE}\nsys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "None\n"
        process.send_signal(number)
        process.wait(60)
    wait_until(lambda: not list(tmp_path.iterdir()), 10.0, "nothing in TMPDIR")
