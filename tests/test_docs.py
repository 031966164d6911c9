"""The documentation says what is true: its code runs, its names exist, nothing is left out."""

import re
from functools import cache
from pathlib import Path

import pytest

import distrlcc
from benchmarks.__main__ import COMMANDS as BENCHMARKS
from distrlcc.cli.main import COMMANDS, GROUPS, find, main
from distrlcc.config import from_toml, keys
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS
from distrlcc.evaluation.scores import METRICS
from distrlcc.policy import kernel_layout
from distrlcc.policy.policy_file import load_policy, shipped_policies
from distrlcc.recipes.registry import RECIPES
from distrlcc.recipes.result_row import shipped_rows
from distrlcc.recipes.results_page import results_page
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import SUITES, load_suite
from research.__main__ import COMMANDS as RESEARCH
from scripts import reference_pages

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCKS = [
    (page.name, number, code)
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=lambda v: str(v)[:20])
def test_python_on_a_page_runs(
    page: str, number: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_site_lists_each_page_once() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)


def test_every_key_is_on_its_page() -> None:
    text = "".join(reference_pages.keys())
    for config in (RunConfig, ImitateConfig):
        assert [key for key in keys(config) if f"| `{key}` | " not in text] == []
    assert "| `seed` | `0` | Seed of links, actions, weights and minibatches. |" in text
    assert "| `ppo.lr_schedule` | `none` | " in text
    assert re.findall(r"\| `held_out.every` \| `(\d+)` ", text) == ["100", "1"]  # imitate's


def test_the_results_are_those_of_the_result_files() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results_page(shipped_rows())


def test_what_one_is_not_for_has_the_figures_of_its_row() -> None:
    page, row = (ROOT / "docs" / "recipes" / "one.md").read_text(), shipped_rows()["one"]
    told = page.partition("## Where not to take it")[2].partition("##")[0]
    for line in (
        "| {wifi[utilisation]:.0%}, {noisy[utilisation]:.0%} | "
        "BBRv1 {peers[wifi][bbr][utilisation]:.0%}, {peers[noisy][bbr][utilisation]:.0%} |",
        "| {beside-bbr[tolerable]:.0%} | BBRv1 {peers[beside-bbr][bbr][tolerable]:.0%}, ",
        "| {beside-cubic[tolerable]:.0%} | CUBIC {peers[beside-cubic][cubic][tolerable]:.0%}, ",
        "| {flows-32[jain]:.2f}; {flows-32[excess_loss]:.1%} | ",
        "| {satellite[utilisation]:.0%} | Copa {peers[satellite][copa][utilisation]:.0%}, ",
        "| {dynamic[power]:.3f} | BBRv1 {peers[dynamic][bbr][power]:.3f} |",
    ):
        assert row.filled(line) in told


def test_every_toml_block_and_each_example_is_a_scenario() -> None:
    for name in ("commuter.toml", "suite.toml"):
        assert load_suite(str(ROOT / "examples" / name)).scenarios("test")
    blocks = [b for p in PAGES for b in re.findall(r"```toml\n(.*?)```", p.read_text(), re.S)]
    blocks = [block for block in blocks if not block.startswith("nodes =")]
    assert blocks
    for block in blocks:
        assert from_toml(Scenario, block).flows


GENERATED = {"results.md"}
FLAG = re.compile(r"--[a-z][a-z-]+")


@cache
def _flags(command: str, package: str = "distrlcc.cli.") -> set[str]:
    parser, _ = find(command, package=package)
    return set(FLAG.findall(parser.format_help()))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_commands_and_flags_exist(page: Path) -> None:
    text = page.read_text()
    text = re.sub(r"```python\n.*?```", "", text, flags=re.S)
    if page.name == "coming-from.md":  # what stands on the left is others'
        text = re.sub(r"^\|[^|\n]*\|", "|", text, flags=re.M)
    code = "\n".join(re.findall(r"```(?:\w*)\n.*?```|`[^`\n]+`", text, re.S))
    known = set().union(
        *(_flags(c) for c in COMMANDS if c not in GROUPS),
        *(_flags(f"{g}_{c}") for g, choices in GROUPS.items() for c in choices),
        *(_flags(c, "benchmarks.bench_") for c in BENCHMARKS),
        *(_flags(c, "research.") for c in RESEARCH),
    )
    others = {"--uplink-log", "--nproc-per-node", "--nnodes", "--max-restarts", "--rdzv-backend"}
    others |= {"--rdzv-endpoint", "--rdzv-conf", "--local-addr", "--schemes"}
    others |= {"--node-rank", "--master-addr", "--block", "--index-url", "--no-deps"}
    others |= {"--now", "--user", "--collect"}  # systemd's
    others |= {"--bidir", "--json-stream", "--get-server-output"}  # iperf3's
    assert set(FLAG.findall(code)) <= known | others | {"--help", "--version"}
    for rest in re.findall(r"\bdistrlcc ([a-z](?:(?!\bdistrlcc )[^`\n#])*)", code):
        command, *words = rest.replace("'", " ").split()
        assert command in COMMANDS, rest
        name = command
        if command in GROUPS:
            assert words[0] in GROUPS[command], rest
            name = f"{command}_{words[0]}"
        assert set(FLAG.findall(rest)) <= _flags(name) | {"--help"}, rest
    packages = {"benchmarks": "benchmarks.bench_", "research": "research."}
    for room, command, rest in re.findall(r"python -m (benchmarks|research) (\w+)([^`\n#]*)", code):
        known = _flags(command, packages[room])
        assert set(FLAG.findall(rest)) <= known, rest


def test_pages_say_how_policies_act_as_their_files_do() -> None:
    likeliest, drawn = reference_pages.acting().split(";")
    for name, path in shipped_policies().items():
        assert f"`{name}`" in (drawn if load_policy(path).acting == "sample" else likeliest)
    for page in PAGES:  # and no page says it by hand
        assert not re.search(r"acting=\w+`, as `", page.read_text())


@pytest.mark.parametrize("recipe", ["quickstart", "imitation"])
def test_every_logged_key_is_explained(recipe: str, tmp_path: Path) -> None:
    small = ["num_envs=8", "total_steps=3000", "env.episode_s=0.3"]
    small += ["held_out.every=1", "held_out.links=2", "held_out.seconds=0.2"]
    out = tmp_path / "run"
    assert main(["train", recipe, "--out", str(out), "--no-tensorboard", "--set", *small]) == 0
    logged = set(re.findall(r'"(\w+)":', (out / "metrics.jsonl").read_text()))
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert [key for key in logged if f"`{key}`" not in text] == []
    assert len(logged) > 20


def test_every_name_is_on_its_page() -> None:
    pages = {
        "environment": (*OBSERVATIONS, *ACTIONS, *REWARDS),
        "simulator": SUITES,
        "metrics": (metric.key for metric in METRICS),
        "training": RECIPES,
        "kernel": kernel_layout.SPACES,
    }
    for page, names in pages.items():
        text = (ROOT / "docs" / f"{page}.md").read_text()
        assert [name for name in names if f"`{name}`" not in text] == [], page


def test_the_sizes_of_networks_in_the_kernel_are_on_its_page() -> None:
    text = " ".join((ROOT / "docs" / "kernel.md").read_text().split())
    rows = kernel_layout.MAX_ROWS  # of four gates, or two
    assert rows == kernel_layout.MAX_COLUMNS
    assert f"an LSTM of up to {rows // 4} cells or a minGRU of up to {rows // 2}," in text
    assert f"{kernel_layout.MAX_WEIGHTS:,} weights, {kernel_layout.MAX_ACTIONS} actions" in text
    assert f"A layer reads and gives at most {rows} numbers" in text


def test_every_name_of_the_library_is_on_its_page() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    rendered = set(re.findall(r"^::: (\S+)$", text, re.M))
    homes = {name: getattr(distrlcc, name).__module__ for name in distrlcc.__all__}  # type: ignore[attr-defined]
    assert [n for n, home in homes.items() if not {home, f"distrlcc.{n}"} & rendered] == []
    others = {"sb3.VecLink", "quic.register"}
    assert {f"distrlcc.{name}" for name in (*others, "env.config.EnvConfig")} <= rendered


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_opens_with_what_when_an_example_and_limits(page: Path) -> None:
    if page.name in GENERATED:
        return
    opening = re.split(r"^## |^\|", page.read_text(), maxsplit=1, flags=re.M)[0]
    title, what = opening.split("\n\n")[:2]
    assert title.startswith("# ")
    assert re.search(r"\b(use|take|read|look)\b", what, re.I), "when to use it"
    assert "`" in opening, "an example"
    assert re.search(
        r"\b(not?|none|never|cannot|only|alone|limits?|needs?|must|fails)\b", opening
    ), "limits"
