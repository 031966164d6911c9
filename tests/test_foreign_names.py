"""Names of other projects: each is answered with ours, ours exist, and theirs are real."""

import ast
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import distrlcc
from distrlcc.cli.main import COMMANDS, GROUPS, find, main
from distrlcc.config import from_toml, keys, override
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.errors import ConfigError, foreign_names
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.sim.suites import SUITES
from scripts import reference_pages

KEYS = {*keys(RunConfig), *keys(ImitateConfig)}
PROJECTS = foreign_names()
NAMES = [
    (project, word.split()[0], ours)
    for project, names in PROJECTS.items()
    for theirs, ours in names.items()
    for word in theirs.split(", ")
    if theirs != "about"
]
OURS = {key.rpartition(".")[2] for key in KEYS}
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
PLACES = {"ray start": "cluster_start", "Ray Tune": "tune_pbt", "DistRLCC": "node"}
"""Commands at which a project's users type its flags; elsewhere it is train."""


def plain(ours: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", ours)


@cache
def flags(command: str) -> dict[str, Any]:
    parser, _ = find(command)
    known = parser._option_string_actions
    return {flag: action for flag, action in known.items() if action.help != "==SUPPRESS=="}


def exists(token: str) -> bool:
    """Say whether what stands in backticks is a key, a command line, or a name of ours."""
    words = token.split()
    if words[0] in COMMANDS:
        command = "_".join(words[:2]) if words[0] in GROUPS and words[1:] else words[0]
        if words[0] in GROUPS and words[1:] and words[1] not in GROUPS[words[0]]:
            return False
        given = [word for word in words if word.startswith("--")]
        return all(flag in flags(command) for flag in given)
    if token.startswith("distrlcc.") and ":" not in token:
        home, _, name = token.rpartition(".")
        return hasattr(pkgutil.resolve_name(home), name)
    key, equals, value = token.partition("=")
    if key in KEYS and equals:
        settings = [token] if value else []
        override(recipe("quickstart"), settings)
        return True
    return key in KEYS or token in {*SUITES, *OBSERVATIONS, *ACTIONS}


def test_all_of_ours_exists() -> None:
    for project, name, ours in NAMES:
        for token in re.findall("`([^`]*)`", ours):
            assert exists(token) or token.startswith("RAY_"), (project, name, token)
        assert "`" in ours or ours.startswith("nothing: "), (project, name)
    for project, names in PROJECTS.items():
        for token in re.findall("`([^`]*)`", names["about"]):
            if token.split()[0] in COMMANDS or token.startswith(("distrlcc.sb3", "env.")):
                assert exists(token), (project, token)


def refused(ask: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        ask()
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("project", PROJECTS)
def test_each_is_answered_with_ours(project: str) -> None:
    config = recipe("quickstart")
    command = PLACES.get(project, "train")
    parser, known = find(command)[0], flags(command)
    needed = ["--node-index=0", "--node-num=1", "--ip=127.0.0.1"] if command == "node" else []
    for name, ours in ((name, ours) for owner, name, ours in NAMES if owner == project):
        lines = []
        # As a key, in a section and in none, and in a file.
        key = name.lstrip("-").replace("-", "_")
        is_word = re.fullmatch(r"\w+", key) and key not in SECTIONS
        if is_word and key not in KEYS:
            lines.append(refused(partial(override, config, [f"{key}=1"])))
        if is_word and f"ppo.{key}" not in KEYS:
            lines.append(refused(partial(override, config, [f"ppo.{key}=1"])))
            text = f'recipe = "x"\n[ppo]\n{key} = 1\n'
            lines.append(refused(partial(from_toml, RunConfig, text)))
        for line in lines:
            assert "unknown key" in line
            if f"it is {plain(ours)}" not in line:  # ours, in another place or in small letters
                assert key.lower() in OURS
                assert key.lower() in line.partition("did you mean")[2]
            else:
                assert f"{project}'s" in line
        # As a flag.
        flag = f"--{name}" if name[0] == "_" else f"--{name.lstrip('-').replace('_', '-')}"
        if is_word and flag not in known and project != "ray":  # which has commands
            line = refused(partial(parser.parse_args, [*needed, flag, "1"]))
            assert f"{project}'s" in line
            assert f"it is {plain(ours)}" in line


@pytest.mark.parametrize(
    "name",
    [
        *(name for _, name, _ in NAMES if name.endswith(".py")),
        *(name.removesuffix(".py") for _, name, _ in NAMES if name.startswith("run_s")),
        *("pccclient", "pccserver", "ditask", "ding"),
        *(name for project, name, _ in NAMES if project == "ray"),
    ],
)
def test_scripts_are_commands_of_ours(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--gpu", "0"]) == 2
    line = capsys.readouterr().err
    assert f"unknown command '{name}': " in line
    assert any(plain(ours) in line for _, theirs, ours in NAMES if theirs in (name, f"{name}.py"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("send 127.0.0.1 9000", "receiver: its port stands behind a colon, as in HOST:9000"),
        ("send 127.0.0.1 9000 Vivace", "receiver: its port stands behind a colon"),
        ("send 9000", "receiver '9000': expected HOST:PORT"),
        ("receive --listen 9000", "--listen '9000': expected HOST:PORT"),
        ("receive 127.0.0.1 9000", "there is no address: name it by --listen"),
        ("dagger/run_sender.py 9000", "as Indigo's it is send"),
        ("habitat_baselines.run --run-type train", "run': as DD-PPO's it is train, evaluate ("),
        ("train DDPPO", "'DDPPO': as DD-PPO's it is train --processes ("),
        (
            "train quickstart --arch 9 --gamma 1",
            "as Aurora's it is network.hidden; --gamma: it",
        ),
        ("train quickstart --gamma 1", "--gamma: it is ppo.gamma (keys by --set KEY=VALUE)"),
        ("imitate data --gradient-penalty 1 --l2 1", "--l2: it is imitation.l2 (keys"),
        ("train quickstart --ps-hosts a --worker-hosts b", "; --ps-hosts, --worker-hosts: as "),
        ("train quickstart rl.ppo.sync_frac=0.6", "rl.ppo.sync_frac: as DD-PPO's it is distrib"),
        ("train quickstart total_steps=9", "total_steps: it is total_steps (keys by --set"),
        ("train quickstart --stop 9", "--stop: as RLlib's it is total_steps"),
        ("train quickstart -s 9", "-s: as DI-engine's it is seed"),
        ("train quickstart --wat 9 --rank", "--wat 9 --rank; --rank: as PyTorch's it is node --no"),
        ("cluster join --address=auto", "--address: as ray start's it is cluster join, which"),
    ],
)
def test_lines_of_others_are_answered(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert says in capsys.readouterr().err


def test_what_counts_otherwise_there_is_said() -> None:
    """The squared error of values is halved, as in a2c_ppo_acktr; time and episodes are others."""
    said = {(project, name): ours for project, name, ours in NAMES}
    for project, name in (
        ("CleanRL", "vf_coef"),
        ("rsl_rl and rl_games", "critic_coef"),
        ("DD-PPO", "value_loss_coef"),
        ("DI-engine", "value_weight"),
        ("DistRLCC", "value_loss_coef"),
    ):
        assert said[project, name].startswith("`ppo.vf_loss_coeff`, half of it"), project
    assert "3600 for each hour" in said["DistRLCC", "run_hours"]
    assert "1000 for each episode" in said["Indigo", "max_eps"]


def test_flags_of_torchrun_are_real() -> None:
    parser = pkgutil.resolve_name("torch.distributed.run:get_args_parser")()
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert theirs("torchrun") <= {flag.lstrip("-").replace("-", "_") for flag in flags}


def test_points_lead_to_the_schedule_and_none_does_not_clip(tmp_path: Path) -> None:
    config = recipe("quickstart")
    for name in ("lr", "entropy_coeff"):
        says = rf"ppo\.{name} is a number: points \(step, value\) are ppo\.{name}_schedule"
        with pytest.raises(ConfigError, match=says):
            override(config, [f"ppo.{name}=[[0, 1e-3], [1000, 1e-4]]"])
        points: Any = {f"ppo.{name}": [[0, 1e-3], [1000, 1e-4]]}
        with pytest.raises(ConfigError, match=says):
            distrlcc.train(out=tmp_path / "run", **points)
        found = override(config, [f"ppo.{name}_schedule=[[0, 1e-3], [1000, 1e-4]]"])
        assert attrgetter(f"ppo.{name}_schedule")(found) == ((0, 1e-3), (1000, 1e-4))
    ppo = override(config, ["ppo.grad_clip=none"]).ppo
    assert ppo is not None
    assert ppo.grad_clip is None
    with pytest.raises(ConfigError, match="as Stable-Baselines3's it is num_envs"):
        distrlcc.make_vec(n_envs=3)


@pytest.mark.parametrize("named", ["nodes", "NODES"])
def test_the_lists_of_distrlcc_are_read(named: str, tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text(f"# a comment\n{named} = [\n    [0, 1], # master\n    [4],\n]\n")
    words = ["--node-index=0", "--node-num=2", "--ip=127.0.0.1", f"--nodes={path}"]
    assert find("node")[0].parse_args(words).nodes == [[0, 1], [4]]
    path.write_text(f"{named} = {{0: [], 1: list(range(23))}}\n")
    with pytest.raises(ConfigError, match=r"; expected a file of nodes = \[\[0, 1\], \[2\]\], "):
        find("node")[0].parse_args(words)


def test_the_page_has_the_tables() -> None:
    page = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text()
    assert page == reference_pages.coming_from(), "run python -m scripts.reference_pages"


def theirs(project: str) -> set[str]:
    return {name for owner, name, _ in NAMES if owner == project}


@cache
def ray_folder() -> Path:
    spec = find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("Ray is not installed")
    return Path(spec.origin).parent


def function(path: str, name: str) -> ast.FunctionDef:
    nodes = ast.walk(ast.parse((ray_folder() / path).read_text()))
    return next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name)


def test_flags_of_ray_start_are_all_there_and_real() -> None:
    shown, hidden = set[str](), set[str]()
    for option in function("scripts/scripts.py", "start").decorator_list:
        if not isinstance(option, ast.Call):
            continue
        words = {v.value for v in option.args if isinstance(v, ast.Constant)}
        flags = {str(word) for word in words if str(word).startswith("--")}
        (hidden if any(each.arg == "hidden" for each in option.keywords) else shown).update(flags)
    common = {"--log-style", "--log-color", "--verbose"}  # of all of its commands
    assert len(shown) > 20
    assert shown - theirs("ray start") == set()
    assert theirs("ray start") - shown - hidden - common == set()


def test_names_of_rllib_are_real() -> None:
    files = """algorithms/algorithm_config.py algorithms/ppo/ppo.py algorithms/impala/impala.py
    models/catalog.py core/rl_module/default_model_config.py utils/metrics/__init__.py"""
    text = "".join((ray_folder() / "rllib" / path).read_text() for path in files.split())
    # Gone from the newest, but in what people bring.
    gone = {"shuffle_sequences", "num_workers", "horizon", "lambda", "num_sgd_iter"}
    gone |= {"timesteps_total", "time_total_s", "ray_num_cpus", "ray_num_gpus", "ray_address"}
    gone |= {"scaling_config"}  # of Ray Train
    known = set(re.findall(r"\w+", text))
    assert theirs("RLlib") - gone - known == set()
    training = function("rllib/algorithms/ppo/ppo.py", "training").args.kwonlyargs
    assert len(training) > 10
    assert {argument.arg for argument in training} - theirs("RLlib") - OURS == set()


def test_arguments_of_sb3s_ppo_are_all_there() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    arguments = {name for name in inspect.signature(sb3.PPO).parameters if name[0] != "_"}
    left_out = {"policy", "env", "rollout_buffer_class", "rollout_buffer_kwargs"}
    left_out |= {"stats_window_size"}
    assert arguments - left_out - theirs("Stable-Baselines3") - OURS == set()
