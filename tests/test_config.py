"""Configurations: TOML round trips, overrides, and the one line that each mistake gets."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pytest

from distrlcc import config
from distrlcc.errors import ConfigError


@dataclass(frozen=True)
class Gail:
    reward_scale: float = 1.0
    hidden: tuple[int, ...] = (64, 64)


@dataclass(frozen=True)
class Ppo:
    lr: float = 1e-3
    epochs: int = 4
    kl: float | None = None
    clip: float | None = 0.2
    schedule: tuple[tuple[float, float], ...] = ((0.0, 1.0), (1e6, 0.1))
    steps: tuple[tuple[int, float], ...] | None = None
    kind: Literal["mlp", "lstm"] = "mlp"
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ConfigError(f"lr must be positive, not {self.lr}")


@dataclass(frozen=True)
class Train:
    recipe: str
    seed: int = 0
    updates: int = 10
    span: tuple[float, float] = (5.0, 100.0)
    names: tuple[str, ...] = ()
    ppo: Ppo = field(default_factory=Ppo)
    gail: Gail | None = None


@pytest.mark.parametrize(
    "value",
    [
        Train("quickstart"),
        Train("a 'quoted' \"name\"\nand a line", seed=2**63 + 1, names=("x", "none", "")),
        Train("x", ppo=Ppo(lr=1e-300, kl=0.01, clip=None, schedule=()), gail=Gail(hidden=())),
        Train("a = [", names=("[", "]", "],", "a,", " = [", "[]", "b\n,")),
        Train("x", span=(float("inf"), -0.0), ppo=Ppo(lr=0.1 + 0.2)),
    ],
)
def test_toml_round_trip(value: Train) -> None:
    text = config.to_toml(value)
    again = config.from_toml(Train, text)
    assert again == value
    assert config.to_toml(again) == text


def test_arrays_stand_on_one_line_and_none_is_left_out_unless_that_means_something_else() -> None:
    text = config.to_toml(Train("x", names=("a", "b,"), ppo=Ppo(clip=None), gail=Gail(hidden=())))
    lines = ('names = ["a", "b,"]', "schedule = [[0.0, 1.0], [1000000.0, 0.1]]", "hidden = []")
    assert {*lines, 'clip = "none"'} <= set(text.splitlines())
    assert "kl" not in text
    assert "gail" not in config.to_toml(Train("x"))


def test_equal_values_give_equal_texts_and_differences_name_dotted_keys() -> None:
    a = Train("x", ppo=Ppo(lr=1, schedule=((0, 1),)))
    b = Train("x", ppo=Ppo(lr=1.0, schedule=((0.0, 1.0),)))
    c = replace(b, ppo=replace(b.ppo, lr=float(np.float64(1.0)), epochs=5), gail=Gail())
    one, same, other = map(config.to_toml, (a, b, c))
    assert one == same != other
    assert config.toml_differences(one, other) == [
        "ppo.epochs: 4 != 5",
        "gail.reward_scale: (absent) != 1.0",
        "gail.hidden: (absent) != [64, 64]",
    ]


def test_override_sets_each_type() -> None:
    before = Train("x", gail=Gail())
    top = ["recipe=2024-01-02", "seed = 7", "updates=1e3", "span=[1, 2.5]", "names=['a', \"b\", 3]"]
    ppo = ["lr=1", "kl=3e-2", "clip=none", "schedule=[[0, 1], [10, 0.5]]", "kind=lstm"]
    ppo += ["steps=[[0, 1], [1e6, 1e-4]]", "shuffle=False"]
    dotted = [f"ppo.{each}" for each in ppo]
    after = config.override(before, [*top, *dotted, "gail.hidden=[8]"])
    assert after == Train(
        "2024-01-02",
        seed=7,
        updates=1000,
        span=(1.0, 2.5),
        names=("a", "b", "3"),
        ppo=Ppo(
            1.0,
            kl=0.03,
            clip=None,
            schedule=((0, 1), (10, 0.5)),
            steps=((0, 1), (1_000_000, 1e-4)),
            kind="lstm",
            shuffle=False,
        ),
        gail=Gail(hidden=(8,)),
    )
    numbers = (after.updates, after.ppo.lr, *after.ppo.schedule[0], *(after.ppo.steps or ())[1])
    assert [type(each) for each in numbers] == [int, float, float, float, int, float]
    assert before == Train("x", gail=Gail())


def test_override_makes_and_removes_an_optional_section() -> None:
    with_section = config.override(Train("x"), ["gail={reward_scale = 2}", "gail.hidden=[4]"])
    assert with_section.gail == Gail(2.0, (4,))
    assert config.override(with_section, ["gail=none"]) == Train("x")
    assert config.override(Train("x"), ["gail={}"]).gail == Gail()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("seed", "bad setting 'seed': expected key=value, as in seed=7"),
        ("=3", "bad setting '=3': expected key=value"),
        ("ppo.lrr=3", "unknown key 'ppo.lrr': did you mean ppo.lr"),
        ("sead=3", "unknown key 'sead': did you mean seed"),
        ("seed.x=3", "unknown key 'seed.x'"),
        ("ppo=3", "ppo = 3: expected a section with keys of its own"),
        ("seed=one", "seed = 'one': expected int, got str"),
        ("seed=1.5", "seed = 1.5: expected int, got float"),
        ("seed=true", "seed = True: expected int, got bool"),
        ("seed=", "seed = '': expected int, got str"),
        ("seed=3\nupdates=4", "seed = '3\\nupdates=4': expected int, got str"),
        ("ppo.kl=fast", "ppo.kl = 'fast': expected float | none, got str"),
        ("ppo.kind=lst", "ppo.kind = 'lst': expected one of 'mlp', 'lstm'; did you mean lstm?"),
        (
            "ppo.schedule=[[0, 1], [5]]",
            "ppo.schedule = [[0, 1], [5]]: expected tuple[tuple[float, float], ...] "
            "(expected array of length 2, got 1 at [1])",
        ),
        ("ppo.steps=[[1e6, 1, 2]]", "ppo.steps = [[1000000.0, 1, 2]]: "),
        ("ppo.lr=-1", "ppo: lr must be positive, not -1.0"),
        ("gail.hidden=[1]", "cannot set gail.hidden: this configuration has no section [gail]"),
        ("gail.hiden=[1]", "unknown key 'gail.hiden': did you mean gail.hidden"),
        # whole files
        ("recipe = ", "run.toml is not TOML ("),
        ("seed = 1", "run.toml: key 'recipe' is missing"),
        ("recipe = 'x'\npppo.lr = 1", "run.toml: unknown key 'pppo': "),
        ("recipe = 'x'\nppo.lrr = 1", "run.toml: unknown key 'ppo.lrr': did you mean ppo.lr"),
        ("recipe = 'x'\nppo.lr = 0", "run.toml: ppo: lr must be positive, not 0.0"),
        ("recipe = 3", "run.toml: recipe = 3: expected str, got int"),
        ("recipe = 'x'\ngail = 3", "run.toml: gail = 3: expected a section"),
    ],
)
def test_a_bad_override_and_a_bad_file_are_one_line(words: str, expected: str) -> None:
    def read() -> object:
        if expected.startswith("run.toml"):
            return config.from_toml(Train, words, source="run.toml")
        return config.override(Train("x"), [words])

    with pytest.raises(ConfigError) as caught:
        read()
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_wrong_type_set_in_python_is_found_when_written() -> None:
    with pytest.raises(ConfigError, match="seed = 'seven': expected int"):
        config.to_toml(replace(Train("x"), seed="seven"))  # type: ignore[arg-type]


def test_the_import_is_light() -> None:
    heavy = "{'torch', 'numpy', 'matplotlib'}"
    code = f"import sys, distrlcc.config; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
