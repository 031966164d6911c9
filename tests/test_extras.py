"""What needs an extra says so in one line; what a sender does needs none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.extras import install_command, missing, require
from distrlcc.net.emulator.namespace import is_privileged

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HEAVY = (
    *("torch", "torchft", "gymnasium", "pyarrow", "tensorboard", "cryptography", "matplotlib"),
    *("jinja2", "ray", "optuna", "pettingzoo", "scipy", "pandas", "pylibbpf", "aioquic"),
    *("wandb", "mlflow", "sqlalchemy", "stable_baselines3", "starlette", "uvicorn"),
)
RUN = "import sys; from distrlcc.cli.main import main; sys.exit(main())"
SENDERS = """
list
policies --json policies.json
trace cellular:7 --out seven.txt
evaluate one --against cubic --links 2 --seeds 1 --json evaluated.json
evaluate --against copa --trace seven.txt --delay 5 --queue 50 --loss 0.001 --seeds 1 --json t.json
evaluate --against reno,cubic --suite . --links 1 --seeds 1
fairness --against cubic --suite shared-2 --links 1
recovery --against cubic --links 1
check sim --scenarios 1
doctor --json doctor.json
results
results --markdown
metrics --once
cache
"""
ANYTHING_ELSE = {
    "train quickstart --out r": "(extra 'train'): pip install '.[train]' in a clone, or ",
    "train quickstart --engine ray": "(extra 'train'): pip install ",
    "collect cubic --steps 9 --out d": "(extra 'train')",
    "imitate d": "(extra 'train'): pip install ",
    "node --node-index 0 --node-num 1 --ip 127.0.0.1": "(extra 'train')",
    "tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2": "(extra 'train')",
    "cluster start --listen 127.0.0.1": "ray is not installed (extra 'ray'): pip install ",
    "evaluate --out report": "jinja2 is not installed (extra 'report'): pip install '.[report]' in",
    "board": "starlette is not installed (extra 'board'): pip install ",
    "compare one cubic": "scipy is not installed (extra 'report')",
    "stress one --out report": "jinja2 is not installed (extra 'report')",
    "fairness --out report": "jinja2 is not installed (extra 'report')",
    "send 127.0.0.1 --plot flow.png": "jinja2 is not installed (extra 'report')",
}


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start processes in a folder, which find no package that an extra brings."""
    first = tmp_path / "first"
    first.mkdir()
    hide = f"import sys; sys.modules.update(dict.fromkeys({HEAVY}))"
    (first / "sitecustomize.py").write_text(hide)
    monkeypatch.setenv("PYTHONPATH", f"{first}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "plugins" / "scheme.py", tmp_path)
    return tmp_path


def _run(code: str, *words: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def test_a_sender_needs_no_extra(light: Path) -> None:
    all_of_them = (
        "import sys; from distrlcc.cli.main import main; "
        "codes = {line: main(line.split()) for line in sys.argv[1:]}; "
        "print(codes, file=sys.stderr); "
        f"assert not [m for m in {HEAVY} if sys.modules[m]]; "
        "sys.exit(any(codes.values()))"
    )
    done = _run(all_of_them, *SENDERS.strip().splitlines())
    assert done.returncode == 0, done.stdout + done.stderr
    ranking = json.loads((light / "evaluated.json").read_text())["ranking"]
    assert ranking == ["one", "cubic"]
    version = _run(RUN, "--version").stdout.splitlines()
    assert version[0].startswith("distrlcc 0.")
    assert version[1] == f"python {sys.version.split()[0]}"
    assert "numba" in "".join(version)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_scheme_of_ones_own_is_checked_without_extras(light: Path) -> None:
    done = _run(RUN, "check", "plugin", "./scheme.py:near", seconds=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("scheme ./scheme.py:near: ok; ")


@pytest.mark.net
@pytest.mark.skipif(not is_privileged(), reason="needs root")
def test_a_sender_sends_receives_and_emulates_without_extras(light: Path) -> None:
    start = f"{sys.executable} -c '{RUN}'"
    (light / "receive").write_text(f'#!/bin/sh\nexec {start} receive "$@"\n')
    (light / "send").write_text(f'#!/bin/sh\nexec {start} send $MAHIMAHI_BASE "$@"\n')
    for name in ("receive", "send"):
        (light / name).chmod(0o755)
    link = "emulate --up 12 --down 12 --delay 5 --outside ./receive --"
    sender = "./send --seconds 1 --wait 30 --json sent.json"
    done = _run(RUN, *f"{link} {sender}".split())
    assert done.returncode in (0, 1), done.stderr  # 1: on a busy machine
    assert json.loads((light / "sent.json").read_text())["mbps"] > 3


@pytest.mark.usefixtures("light")
def test_whatever_needs_an_extra_says_so_in_one_line() -> None:
    code = (
        "import sys; from distrlcc.cli.main import main; "
        "[print(main(line.split()), file=sys.stderr) for line in sys.argv[1:]]"
    )
    done = _run(code, *ANYTHING_ELSE)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(ANYTHING_ELSE), done.stderr
    for (words, says), line, status in zip(
        ANYTHING_ELSE.items(), lines[::2], lines[1::2], strict=True
    ):
        assert line.startswith("distrlcc: error: "), (words, line)
        assert says in line, words
        assert status == "2", words


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("import distrlcc.sb3", "stable_baselines3"),
        ("import distrlcc.quic", "aioquic"),
        ("import distrlcc; distrlcc.make_vec()", "gymnasium"),
    ],
)
def test_the_library_names_the_extra_that_it_lacks(code: str, needs: str) -> None:
    last = _run(code).stderr.splitlines()[-1]
    assert last.startswith(f"distrlcc.errors.ConfigError: {needs} is not installed (extra '")


def test_the_command_installs_all_that_the_extra_has() -> None:
    assert str(missing("ray")).startswith("ray is not installed (extra 'ray'): pip install ")
    for module, extra in {"torch": "train", "gymnasium": "train", "matplotlib": "report"}.items():
        words = install_command(module).replace("'", "").split()
        named = {word.split("<")[0].split(">")[0] for word in words[2:]}
        assert named == {wanted.split("<")[0].split(">")[0] for wanted in EXTRAS[extra]}
    assert install_command("stable_baselines3") == "pip install 'stable-baselines3>=2.6'"
    assert install_command("cmaes") == "pip install cmaes"


def test_a_foreign_module_is_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("numpy")
    with pytest.raises(ConfigError, match="no_such_module is not installed: pip install no-such"):
        require("no_such_module")
    monkeypatch.setitem(sys.modules, "distrlcc.cli.trace", None)
    with pytest.raises(ModuleNotFoundError):
        main(["trace", "cellular:7", "--out", "x"])
