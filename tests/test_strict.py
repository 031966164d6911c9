"""No input is read as something else: each key of each table, misspelled, in each kind of file."""

import json
import re
from argparse import _AppendAction
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import tomli_w
from safetensors import safe_open
from safetensors.numpy import save

import distrlcc
from distrlcc import config
from distrlcc.cli.main import NAMES, find, main
from distrlcc.data import manifest as data_manifest
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.errors import ConfigError, DatasetError, DistrlccError, listed
from distrlcc.policy.policy_file import _Header
from distrlcc.policy.spec import PolicySpec
from distrlcc.recipes.registry import RECIPES, recipe
from distrlcc.recipes.reproduction import SeedRun
from distrlcc.recipes.result_row import ResultRow, read_result
from distrlcc.runs.run_config import ImitateConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import Counters
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.suites import SuiteFile, load_suite
from distrlcc.storage import Manifest, StoredFile
from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig
from tests.trees import TINY

LINK = Link(12.0, changes=(Change(1.0, 3.0), Change(2.0, delay_ms=9.0)), queue_packets=40)
FLOWS = (Flow(), Flow("cubic", start_s=1.0))
SCENARIO = Scenario("x", LINK, FLOWS)
PPO = recipe("quickstart")
SPACE = ("ppo.lr=loguniform:1e-5:1e-2",)
SPACES = data_manifest.Spaces("aurora", 30, "rate", "continuous", 1)
ORIGIN = data_manifest.Origin("oracle", ("random",), "train", 0, 4, 0.0, "", {"python": "3"})
SHARD = data_manifest.Shard("a.arrow", 1, 1, "b.arrow", 1, 1)
SPEC = PolicySpec("aurora", 30, "rate", "continuous", 1)

WHOLE: dict[str, Any] = {
    "scenario": SCENARIO,
    "suite": SuiteFile((SCENARIO, replace(SCENARIO, name="y")), "s"),
    "PPO": PPO,
    "DAgger": recipe("imitation"),
    "GAIL": recipe("gail"),
    "imitate": ImitateConfig(),
    "tune pbt": TuneConfig(PPO, SPACE, pbt=PBTConfig()),
    "tune search": TuneConfig(PPO, SPACE, search=SearchConfig()),
    "environment": EnvConfig(),
    "policy": _Header(SPEC, "argmax", {}),
    "data set": data_manifest.Manifest(SPACES, ORIGIN, 1, 1, (SHARD, SHARD)),
    "storage": Manifest(1, "p", "f", (StoredFile("a", 1, "x"),)),
    "results": ResultRow("r", "0", 1, (1,), (1.0,), 1, {}, {}),
    "seed": SeedRun(1, []),
    "counters": Counters(),
}
"""Something of each kind that a file or a Python call becomes."""


def misspelled(thing: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield, for each key of each table, its place and the key; tables of lists included."""
    for field in fields(thing):
        if not field.init:
            continue
        yield place, field.name
        value = getattr(thing, field.name)
        several = isinstance(value, tuple | list) and value and is_dataclass(value[0])
        for number, one in enumerate(value if several else ()):
            yield from misspelled(one, f"{place}{field.name}[{number}].")
        if is_dataclass(value):
            yield from misspelled(value, f"{place}{field.name}.")


def table_at(data: Any, place: str) -> dict[str, Any]:
    for word in place.replace("[", ".").replace("]", "").split("."):
        if word:
            data = data[int(word) if word.isdigit() else word]
    assert isinstance(data, dict)
    return data


def wrong(key: str) -> list[str]:
    """Return a key as people misspell it: a letter left out, one too many, capitals, a dash."""
    found = [key[:-1], f"{key}s", key.upper(), key.capitalize(), key.replace("_", "-"), f"{key} "]
    return [each for each in dict.fromkeys(found) if each not in (key, "")]


@pytest.mark.parametrize("kind", WHOLE)
def test_each_key_of_each_table_is_refused_with_its_path_where_it_is_misspelled(kind: str) -> None:
    thing = WHOLE[kind]
    data = json.loads(json.dumps(config._plain(thing)))
    assert config.from_dict(type(thing), data, source="file") == thing
    names = list(misspelled(thing))
    assert len({place for place, _ in names}) >= 1
    for place, key in names:
        known = {field for where, field in names if where == place}
        for bad in wrong(key):
            if bad in known:
                continue
            broken = deepcopy(data)
            table = table_at(broken, place)
            table[bad] = table.pop(key, 0)
            with pytest.raises(ConfigError) as caught:
                config.from_dict(type(thing), broken, source="file")
            line = str(caught.value)
            assert line.startswith(f"file: unknown key {place + bad!r}"), line
            assert "\n" not in line
            if bad != key[:-1] or len(key) > 3:
                within = place.rpartition("].")[2]
                assert "did you mean" in line, line
                assert f"{within}{key}" in line.partition("did you mean")[2], line


LINKS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"link": {"los": 0.5}}, "link.los"),
    ({"link": {"changes": [{"at_s": 1, "rate": 3}]}}, "link.changes[0].rate"),
    ({"flows": [{"starts": 1}]}, "flows[0].starts"),
    ({"flows": [{}, {"SCHEME": "bbr"}]}, "flows[1].SCHEME"),
    ({"duration": 5}, "duration"),
)


@pytest.mark.parametrize("several", ["", "scenarios", "scenario", "Scenarios"])
@pytest.mark.parametrize(("more", "key"), LINKS)
def test_every_command_that_reads_links_refuses_what_it_does_not_know(
    more: dict[str, Any], key: str, several: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = {"rate_mbps": 12.0, "queue_packets": 40} | more.get("link", {})
    scenario = {"name": "x"} | more | {"link": link}
    path = tmp_path / "links.toml"
    path.write_text(tomli_w.dumps({several: [scenario]} if several else scenario))
    if several:
        key = f"scenarios[0].{key}" if several == "scenarios" else several
    for command in (
        f"evaluate cubic --seeds 1 --suite {path}",
        f"fairness cubic --suite {path}",
        f"recovery cubic --suite {path}",
        f"emulate --scenario {path} -- true",
        f"train quickstart --set env.suites=['{path}'] --out {tmp_path / 'run'}",
    ):
        assert main(command.split(" ")) == 2, command
        line = capsys.readouterr().err
        assert f"{path}: unknown key {key!r}" in line, (command, line)
        assert line.count("\n") == 1
    for call in (
        lambda: distrlcc.make_env(suites=(str(path),)),
        lambda: distrlcc.evaluate("cubic", suite=str(path)),
        lambda: load_suite(str(path)),
    ):
        with pytest.raises(ConfigError, match=r"unknown key"):
            call()
    assert not (tmp_path / "run").exists()


def test_each_key_of_a_configuration_is_refused_in_set_and_in_python(tmp_path: Path) -> None:
    out = tmp_path / "run"
    known = set(config.keys(type(PPO)))
    for key in sorted(known):
        for bad in {f"{key}s", key[:-1]} - known:
            with pytest.raises(ConfigError, match=f"unknown key '{bad}': did you mean"):
                config.override(PPO, [f"{bad}=1"])
    for key in ("ppo.lrs", "seeds", "env.reward.nam", "PPO.lr"):
        with pytest.raises(ConfigError, match="unknown key"):
            distrlcc.train("quickstart", out=out, **dict[str, Any]({key: 1}))
        assert main(["train", "quickstart", "--out", str(out), "--set", f"{key}=1"]) == 2
    for make in (distrlcc.make_env, distrlcc.make_vec):
        for field in fields(EnvConfig):
            with pytest.raises(ConfigError, match=f"unknown setting '{field.name}x': did you mean"):
                make(**dict[str, Any]({f"{field.name}x": 1}))
        with pytest.raises(ConfigError, match=r"unknown key 'reward\.nam'"):
            make(reward={"nam": "aurora"})
    assert not out.exists()


def wrong_values(hint: Any) -> list[Any]:
    """Return values that no file may give a field of a type."""
    options = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    found: list[Any] = [{"a": 1}, [[1]], {1}]
    if str not in options and get_origin(hint) is not Literal:
        found += ["", "word", b"12"]
    if not options & {int, float}:
        found.append(12)
    if float not in options:
        found.append(1.5)
    if bool not in options:
        found.append(True)
    if type(None) not in options:
        found.append(None)
    return found


@pytest.mark.parametrize(
    "made",
    [Change(1.0, 3.0), LINK, Flow(), SCENARIO, EnvConfig(), RewardConfig()],
    ids=lambda made: type(made).__name__,
)
def test_each_field_refuses_values_of_another_type_in_a_file_and_in_python(made: Any) -> None:
    for name, hint in get_type_hints(type(made)).items():
        if name not in {field.name for field in fields(made)}:
            continue
        for value in wrong_values(hint):
            with pytest.raises(ConfigError, match=f"^(unknown key ')?{name}"):
                replace(made, **{name: value})
            data = config._plain(made) | {name: value}
            with pytest.raises(ConfigError, match=f"^file: (unknown key ')?{name}"):
                config.from_dict(type(made), data, source="file")


def test_python_may_give_tables_lists_paths_and_numbers_of_numpy(tmp_path: Path) -> None:
    given: Any = {
        "link": {"rate_mbps": np.float32(12), "queue_packets": np.int64(40), "changes": []},
        "flows": [{"scheme": "agent"}, Flow("cubic")],
    }
    assert Scenario("x", **given) == Scenario(
        "x", Link(12.0, queue_packets=40), (Flow(), Flow("cubic"))
    )
    trace = tmp_path / "a.up"
    trace.write_text("1\n")
    assert Link(trace=trace).trace == str(trace)  # type: ignore[arg-type]
    bad: Any = [{"at_s": 1, "rate": 3}]
    with pytest.raises(
        ConfigError, match=r"unknown key 'changes\[0\].rate': did you mean rate_mbps"
    ):
        Link(12.0, changes=bad)
    bad = [{"scheme": "agent", "starts": 1}]
    with pytest.raises(ConfigError, match=r"unknown key 'flows\[0\].starts': did you mean start_s"):
        Scenario("x", LINK, bad)
    with pytest.raises(ConfigError, match=r"unknown key 'link.los': did you mean link.loss"):
        Scenario("x", {"rate_mbps": 12, "los": 0.5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[flows]\nscheme = 'bbr'", "flows = {'scheme': 'bbr'}: expected a list of tables"),
        ("flows = [['bbr']]", "flows[0] = ['bbr']: expected a section"),
        ("flows = ['bbr']", "flows[0] = 'bbr': expected a section"),
        ("flows = [[{scheme = 'bbr'}]]", "flows[0] = [{'scheme': 'bbr'}]: expected a section"),
        ("flows = []", "0 flows; expected 1 to 64"),
        ("flows = 'none'", "flows = 'none': expected a list"),
        ("flows = [{scheme = ''}]", "flows[0]: unknown scheme ''"),
        ("flows = [{scheme = 'cubic', cwnd = 9}]", "flows.cwnd is for agent and fixed"),
        ("flows = [{scheme = 'bbr', pacing_mbps = 9}]", "flows.pacing_mbps is for agent"),
        (
            "flows = [{start_s = 3, stop_s = 2}]",
            "flows.stop_s is 2: expected more than start_s (3)",
        ),
        (
            "flows = [{start_s = 3, stop_s = 3}]",
            "flows.stop_s is 3: expected more than start_s (3)",
        ),
        ("flows = [{start_s = 99}]", "flows[0].start_s is 99, when the scenario's 10 s are over"),
        ("flows = [{}, {start_s = 10}]", "flows[1].start_s is 10, when the scenario's 10 s"),
        ("link.changes = [{at_s = 1}]", "link.changes[0]: changes nothing; expected rate_mbps"),
        ("link.changes = [{at_s = 1, loss = 0}, {at_s = 2}]", "link.changes[1]: changes nothing"),
        ("link.changes = [{at_s = 10, loss = 0.1}]", "link.changes[0].at_s is 10, when the"),
        ("link.changes = [{at_s = 10, loss = 1}]\nduration_s = 9.0", "when the scenario's 9 s"),
        ("link.trace_start_s = 3", "trace_start_s is for a trace"),
        ("link.aqm = ''", "unknown queue ''"),
        ("link.aqm = 'codel:packets=9'\nlink.queue_packets = 9", "leave queue_packets"),
        ("link.policer_mbps = 3", "give both policer_mbps and policer_packets"),
        ("link.changes = {at_s = 1}", "link.changes = {'at_s': 1}: expected a list of tables"),
        ("link.changes = [{rate_mbps = 1}]", "key 'link.changes[0].at_s' is missing"),
        ("name = 'y'", "cannot be read as TOML"),
        ("link.rate_mbps = 3", "cannot be read as TOML"),
    ],
)
def test_what_a_scenario_would_not_read_is_refused(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"name = 'x'\nlink.rate_mbps = 12.0\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_suite(str(path))
    assert expected in str(caught.value)


def test_two_scenarios_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    one = "[[scenarios]]\nname = '{}'\nlink.rate_mbps = {}.0\n"
    for names, places in (("aa", (0, 1)), ("abcb", (1, 3)), ("abca", (0, 3))):
        path.write_text("".join(one.format(name, 9 + k) for k, name in enumerate(names)))
        with pytest.raises(ConfigError) as caught:
            load_suite(str(path))
        assert "scenarios[{}] and scenarios[{}] have one name".format(*places) in str(caught.value)
    path.write_text(one.format("a", 9) + one.format("b", 9))
    assert [s.name for s in load_suite(str(path)).scenarios("test")] == ["a", "b"]


def test_a_suite_without_scenarios_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for text, expected in (
        ("", "key 'name' is missing"),
        ("scenarios = []", "it has no scenarios"),
        ("scenarios = [[]]", "scenarios[0] = []: expected a section"),
        ("[scenarios]\nname = 'x'", "expected a list of tables"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_suite(str(path))
        assert expected in str(caught.value)


def test_files_of_ours_are_refused_by_their_own_errors(tmp_path: Path) -> None:
    data = config._plain(WHOLE["data set"]) | {"step": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(DatasetError, match="unknown key 'step'"):
        data_manifest.read_manifest(tmp_path)
    stored = config._plain(WHOLE["storage"]) | {"epochs": 1}
    with pytest.raises(ValueError, match="unknown key 'epochs'"):
        Manifest.decode(json.dumps(stored).encode())
    with pytest.raises(ValueError, match="version 99; this distrlcc reads"):
        Manifest.decode(json.dumps(stored | {"version": 99}).encode())
    row = tmp_path / "row.json"
    row.write_text(json.dumps(config._plain(WHOLE["results"]) | {"seed": 1}))
    with pytest.raises(DatasetError, match="unknown key 'seed'"):
        ResultRow.load(row)
    endless = replace(WHOLE["results"], scores={"s": {"power": (float("inf"), float("nan"))}})
    endless.save(row)
    assert repr(ResultRow.load(row)) == repr(endless)
    with pytest.raises(DatasetError, match="no row"):
        read_result(tmp_path / "none.json", SeedRun, "row", "")


TWICE = (
    ("train quickstart --set seed=1 --set seed=2", "seed is given twice"),
    ("train quickstart --set ppo.lr=1 ppo.lr=1", "ppo.lr is given twice"),
    ("train quickstart --seed 1 --set seed=2", "seed is given twice"),
    ("train quickstart --set ppo.lr=1 ppo={}", "ppo is given twice"),
    ("train quickstart --seed 1 --seed 2", "--seed is given twice"),
    (
        "train quickstart --engine ray --learner-resource a=1 --learner-resource a=2",
        "a is there twice",
    ),
    ("cluster start --resource a=1 --resource a=2", "--resource: a is there twice"),
    ("collect oracle,oracle --steps 9 --out D", "oracle is there twice"),
    ("collect oracle, --steps 9 --out D", "nothing stands before or after a comma"),
    ("evaluate --against ,", "nothing stands before or after a comma"),
    ("evaluate ,", "',' has a comma: give each policy and scheme by itself"),
    ("evaluate one,cubic", "'one,cubic' has a comma: give each policy and scheme by itself"),
    ("evaluate --against none", "nothing to evaluate"),
    ("trace --from csv x.csv --unit ms, --out D", "nothing stands before or after a comma"),
    ("evaluate --against cubic,,bbr", "nothing stands before or after a comma"),
    ("evaluate --against cubic,cubic", "cubic is there twice"),
    ("evaluate one one", "one is there twice"),
    ("evaluate cubic --suite slow --suite fast", "--suite is given twice: leave one out"),
    ("evaluate cubic --links 3 --links=4", "--links is given twice: leave one out"),
    ("evaluate cubic --trace cellular:1 cellular:1", "cellular:1 is there twice"),
    ("evaluate cubic --trace cellular:1 --trace cellular:1", "cellular:1 is there twice"),
    ("evaluate cubic --suite slow --series slow/test/0, --out D", "nothing stands before"),
    ("evaluate cubic --suite slow --series slow/test/0,slow/test/0 --out D", "is there twice"),
    ("evaluate preference --prefer 0.5,0.50", "0.5 is there twice"),
    ("evaluate preference --prefer ,", "nothing stands before or after a comma"),
    ("evaluate --world emulated --as kernel --flows 4,4", "4 is there twice"),
    ("evaluate --world emulated --as kernel --flows 4,", "nothing stands before"),
    ("fairness one --suite slow,slow", "slow is there twice"),
    ("fairness one --suite ,", "nothing stands before or after a comma"),
    ("fairness one --against cubic,cubic", "cubic is there twice"),
    ("recovery one --against ,", "nothing stands before or after a comma"),
    ("tune search quickstart --search ppo.lr=uniform:0:1 ppo.lr=uniform:0:1", "given twice"),
    ("tune pbt quickstart --mutate ppo.lr=choice:1,1", "two or more different"),
    ("tune pbt quickstart --mutate ppo.lr=uniform:0.1:1 --factors 1.2,", "expected two numbers"),
    (
        "emulate --up 12 --down 12 --queue codel:packets=9,packets=8 -- true",
        "packets is given twice",
    ),
    ("emulate --up 12 --down 12 --queue codel:packets=9, -- true", "no parameter ''"),
    ("send 127.0.0.1:9 one --seconds 1 --seconds 2", "--seconds is given twice"),
)


def flags_with_values() -> Iterator[tuple[list[str], str, bool]]:
    """Yield each command, its flags that take a value, and whether they may be given again."""
    for name in NAMES:
        for action in find(name)[0]._actions:
            if action.option_strings and action.help != "==SUPPRESS==" and action.nargs != 0:
                again = action.nargs == "+" or isinstance(action, _AppendAction)
                yield name.split("_"), action.option_strings[0], again


def test_no_flag_takes_an_empty_value_or_hides_that_it_may_be_given_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = 0
    for command, flag, again in flags_with_values():
        parser = find("_".join(command))[0]
        action = parser._option_string_actions[flag]
        assert not again or re.search("repeated|again", str(action.help)), (command, flag)
        if action.nargs in (None, "+"):
            assert main([*command, flag, ""]) == 2
            line = capsys.readouterr().err
            assert re.search(f"{flag}.*is empty; leave it out", line), line
            assert line.count("\n") == 1
            count += 1
    assert count > 150


@pytest.mark.parametrize(("words", "expected"), TWICE)
def test_nothing_is_given_twice_or_left_empty_in_a_list(
    words: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(words.replace(" D", f" {tmp_path / 'out'}").split(" ")) == 2
    line = capsys.readouterr().err
    assert expected in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_list_is_read_once_and_in_order() -> None:
    assert listed("", "x") == []
    assert listed(" a, b ", "x") == ["a", "b"]
    assert listed("1,2", "x", int) == [1, 2]
    for text in ("a,", ",a", "a,,b", ",", "a,b,a"):
        with pytest.raises(ConfigError, match=r"before or after a comma|a is there twice"):
            listed(text, "x")


def test_a_section_may_be_given_before_its_keys() -> None:
    found = config.override(PPO, ["env.reward={}", "env.reward.name=aurora"])
    assert found.env.reward == RewardConfig("aurora")


def _sections(cls: Any) -> Iterator[type[Any]]:
    yield cls
    for hint in config._hints(cls).values():
        if inner := config._section(hint):
            yield from _sections(inner)


HIDING = {"lr_schedule": "[[0, 1e-3]]", "entropy_coeff_schedule": "[[0, 1e-3]]"}
HIDING |= {"name": "orca", "delay_weights": "[0.1, 1]", "use_critic": "false use_gae=false"}
"""What hides a neighbour, where neither a default nor its opposite does."""
HIDDEN = [
    (cls, field, other, hides)
    for cls in dict.fromkeys((*_sections(type(PPO)), *_sections(ImitateConfig)))
    for field in fields(cls)
    for other, hides in field.metadata.get(config._HIDDEN_BY, {}).items()
]


def test_a_key_that_another_one_hides_is_refused() -> None:
    assert len(HIDDEN) > 20
    for cls, field, other, hides in HIDDEN:
        usual = getattr(cls(), other)
        word = HIDING.get(other) or (f"{usual if hides(usual) else not usual}".lower())
        settings = [*f"{other}={word}".replace(", ", ",").split(), f"{field.name}={field.default}"]
        says = f"^{field.name} has no effect while {other} is .*, too, or leave {field.name} out$"
        with pytest.raises(ConfigError, match=says):
            config.override(cls(), settings)
        # A file has all keys, and says of none that it was meant to have an effect.
        hidden = config.override(cls(), settings[:-1])
        assert config.from_toml(cls, config.to_toml(hidden)) == hidden
        config.check_shown(hidden)
        for value in _others(field.default):
            with suppress(ConfigError):
                hidden = replace(hidden, **{field.name: value})
        with pytest.raises(ConfigError, match=f"^{field.name} has no effect while"):
            config.check_shown(hidden)
    with pytest.raises(ConfigError, match=r"is 'shared': change distributed\.batch, too"):
        config.override(recipe("aurora"), ["distributed.warm_up=3"])
    with pytest.raises(ConfigError, match=r"set ppo\.lr_schedule=none, too, or leave ppo.lr out"):
        config.override(recipe("aurora"), ["ppo.lr=1e-4"])
    found = config.override(recipe("aurora"), ["ppo.lr=1e-4", "ppo.lr_schedule=none"])
    assert attrgetter("ppo.lr")(found) == 1e-4
    with pytest.raises(ConfigError, match=r"reward.loss_weight has no effect while reward.name"):
        distrlcc.make_vec(1, reward={"name": "aurora", "loss_weight": 3.0})
    with pytest.raises(ConfigError, match=r"reward.loss_weight has no effect while reward.name"):
        distrlcc.make_env(reward=RewardConfig("aurora", loss_weight=3.0))


def _others(value: Any) -> list[Any]:
    """Return other values of a field, of which one fits."""
    if isinstance(value, str):
        return ["linear"]
    return [value + 1] if isinstance(value, int) else [value + 1, value / 2]


def test_no_recipe_has_a_key_that_another_one_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in RECIPES:
        recipe(name)
    path = tmp_path / "mine.toml"
    path.write_text('recipe = "mine"\nenv.reward = {name = "aurora", loss_weight = 3}\nppo = {}')
    assert main(["train", str(path), "--print-config"]) == 2
    assert "env.reward.loss_weight has no effect while" in capsys.readouterr().err


@pytest.mark.parametrize(
    "whole", [*map(recipe, ("imitation", "quickstart", "aurora", "indigo")), ImitateConfig()]
)
def test_a_key_that_another_section_makes_idle_is_refused(whole: Any) -> None:
    assert whole.idle()
    for idle in whole.idle():
        known = [key for key in config.keys(type(whole)) if f"{key}.".startswith(f"{idle}.")]
        assert known, idle
        for key in known:
            value = config._plain(attrgetter(key)(whole))
            with pytest.raises(ConfigError, match=f"^{key} has no effect, as .*; leave it out$"):
                config.override(whole, [f"{key}={str(value).lower()}"])


def test_no_sequence_is_longer_than_a_rollout() -> None:
    words = ["ppo.rollout_length=8", "ppo.sequence_length=16"]
    with pytest.raises(ConfigError, match=r"sequence_length has no effect, as a rollout is short"):
        config.override(recipe("one"), words)
    assert config.override(recipe("one"), ["ppo.rollout_length=8"]).rollout_length == 8


def test_a_part_of_a_section_puts_no_other_key_to_its_default() -> None:
    for key, hint in config._hints(type(PPO)).items():  # type: ignore[arg-type]
        section = config._section(hint)
        if section and getattr(PPO, key) is not None:
            name = fields(section)[0].name
            with pytest.raises(ConfigError, match=rf"as in {key}.{name}=1, or {key}={{}} before"):
                config.override(PPO, [f"{key}={{{name} = 1}}"])


def test_a_recipe_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "quickstart", "--print-config", "--set", "recipe=one"]) == 2
    assert "recipe=one: the recipe's name; give it as RECIPE" in capsys.readouterr().err


def test_keys_that_a_saved_run_lacks_or_that_nobody_knows_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, path = tmp_path / "run", tmp_path / "run" / "config.toml"
    distrlcc.train("quickstart", out=out, show=False, **TINY | {"total_steps": 128})
    # As it would be had they not been known when it began, in its checkpoint, too.
    whole = path.read_text()
    gone = ("guard = 0.0\n", "stagger = true\n", "checkpoint_every = 50\n")
    older = whole
    for line in gone:
        assert line in older
        older = older.replace(line, "", 1)
    path.write_text(older)
    _without(out / "checkpoints" / "latest.safetensors", gone)
    notes: list[str] = []
    RunDirectory.read_config(out, type(PPO), notes.append)
    expected = "checkpoint_every = 50, env.guard = 0.0, env.stagger = True"
    assert notes == [f"{path} lacks keys that this distrlcc has; they are now {expected}"]
    capsys.readouterr()
    words = ["train", "--resume", "--out", str(out), "--set", "total_steps=256", "--no-tensorboard"]
    assert main(words) == 0
    assert capsys.readouterr().err.count(notes[0]) == 1
    assert path.read_text() == whole.replace("total_steps = 128", "total_steps = 256")
    # It has all keys now, so that nothing is told again.
    distrlcc.train(out=out, resume=True, show=False, total_steps=384)
    assert "lacks" not in capsys.readouterr().err
    # What nobody knows is refused.
    path.write_text(path.read_text().replace("num_envs = 4", "num_envs = 4\nnum_rooms = 3"))
    before = path.read_text()
    assert main([*words[:4], "--set", "total_steps=512"]) == 2
    line = capsys.readouterr().err
    assert f"{path}: unknown key 'num_rooms'" in line
    assert "use the distrlcc that wrote it, or begin anew from its policy" in line
    with pytest.raises(DistrlccError, match="unknown key 'num_rooms'"):
        distrlcc.train(out=out, resume=True, show=False, total_steps=512)
    assert path.read_text() == before


def _without(path: Path, lines: tuple[str, ...]) -> None:
    """Take lines out of the configuration that a checkpoint holds."""
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for line in lines:
        assert line in metadata["config_toml"]
        metadata["config_toml"] = metadata["config_toml"].replace(line, "", 1)
    path.write_bytes(save(arrays, metadata))
