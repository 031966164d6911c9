import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from distrlcc.config import from_toml, to_toml
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError, DistrlccError, TraceError
from distrlcc.net.emulator.link_config import load_scenario
from distrlcc.plugins import portable
from distrlcc.sim.families import HARD, SHARED, SPLITS, bdp_packets
from distrlcc.sim.mixed import policed
from distrlcc.sim.queues import parse_queue
from distrlcc.sim.scenario import JITTERS, MAX_POLICER_PACKETS, Change, Flow, Link, Scenario
from distrlcc.sim.suites import (
    SUITES,
    Suite,
    check_agents,
    load_suite,
    pinned_suite,
    scenario_by_id,
    trace_suite,
    with_scheme,
)
from distrlcc.sim.trace import load_trace


def test_the_same_id_is_the_same_link_everywhere() -> None:
    assert scenario_by_id("random/test/17") == SUITES["random"].scenario("test", 17)
    link = scenario_by_id("random/test/17").link
    assert (link.rate_mbps, link.delay_ms, link.queue_packets) == (10.158, 11.362, 13)
    assert scenario_by_id("indigo/22").link == Link(rate_mbps=100, delay_ms=10)
    assert scenario_by_id("indigo/20").link.queue_packets == 94
    assert len(SUITES["indigo"].scenarios("test")) == 30
    grid = SUITES["indigo-grid"].scenarios("test")
    assert (len(grid), grid[-1].link.delay_ms) == (27, 400)
    test, train = (SUITES["indigo"].scenario(split, 20) for split in ("test", "train"))
    assert (test.link, test.seed == train.seed) == (train.link, False)
    for bad in ("random", "random/9x", "random/tset/3", "indigo/30", "what/3"):
        with pytest.raises(ConfigError):
            scenario_by_id(bad)


@pytest.mark.parametrize("name", [name for name in SUITES if SUITES[name].held_out >= 24])
def test_training_has_as_many_links_as_it_wants(name: str) -> None:
    for index in np.random.default_rng(0).integers(0, 2**40, 300):
        assert SUITES[name].scenario("train", int(index)).name


def test_one_link_of_a_users_suite_has_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    house = f"{Path(__file__).parents[2]}/examples/plugins/suite.py:house"
    monkeypatch.setitem(SUITES.registered, "home", house)
    link = SUITES[house].scenario("test", 3).link
    for name in (house, "home"):
        for index in ("3", "test/3"):
            (scenario,) = load_suite(f"{name}/{index}").scenarios("test")
            assert scenario.link == link
        kept = pinned_suite(f"{name}/test/3")
        assert re.fullmatch(rf"{house}@[0-9a-f]{{16}}/test/3", kept)
        assert load_suite(kept).scenario("test", 0).link == link
        assert portable(f'"{kept}"').startswith('"suite.py:house@')
        # Where one link is asked for, the error names one that can be had.
        with pytest.raises(ConfigError, match=r"has 64 links") as refused:
            load_scenario(name)
        example = re.search(r"such as (\S+)", str(refused.value))
        assert example is not None
        assert load_scenario(example[1]).link == SUITES[house].scenario("test", 0).link
    with pytest.raises(ConfigError, match=r"unknown suite .*\(valid: random, .*, home\)"):
        load_suite("hone/test/3")


def test_random_links_stay_in_their_bounds_and_splits_differ() -> None:
    test = SUITES["random"].scenarios("test")
    links = [s.link for s in test]
    assert len(test) == 512
    assert all(5 <= (k.rate_mbps or 0) <= 100 and 5 <= k.delay_ms <= 50 for k in links)
    lossy = [k.loss for k in links if k.loss > 0]
    assert 0.2 < len(lossy) / 512 < 0.3
    assert max(lossy) <= 0.01
    for split in ("train", "validation"):
        assert not {s.link for s in SUITES["random"].scenarios(split, 512)} & set(links)


@pytest.mark.parametrize("name", SUITES)
def test_each_link_of_a_suite_may_be_made(name: str) -> None:
    for split in SPLITS:
        links = [SUITES[name].scenario(split, k) for k in range(64)]
        times = [[change.at_s for change in one.link.changes] for one in links]
        ends = [one.duration_s for one in links]
        assert all(max(at, default=0) < end for at, end in zip(times, ends, strict=True))


def test_hard_links_are_what_their_names_say() -> None:
    links = {name: [s.link for s in SUITES[name].scenarios("test")] for name in HARD}
    assert {len(each) for each in links.values()} == {64}
    for link in links["shallow"]:
        bdp = bdp_packets(link.rate_mbps or 0.0, 2 * link.delay_ms)
        assert 2 <= (link.queue_packets or 0) <= max(2, 0.3 * bdp + 0.5)
    assert all(0.2 <= (link.rate_mbps or 0.0) <= 2 for link in links["slow"])
    assert all(100 <= (link.rate_mbps or 0.0) <= 1000 for link in links["fast"])
    assert all(1 <= link.ack_jitter_ms <= 6 for link in links["jitter"])
    bunched, paired = (
        sum(map(bool, each))
        for each in zip(*((k.ack_tick_ms, k.delayed_acks) for k in links["jitter"]), strict=True)
    )
    assert 8 <= bunched <= 24
    assert 8 <= paired <= 24
    for link in links["silent"]:
        (begins,) = link.changes
        assert link.rate_mbps == 0
        assert 0.3 <= begins.at_s <= 2
        assert 5 <= (begins.rate_mbps or 0) <= 100
    for link in links["falls"]:
        (fall,) = link.changes
        assert 0.099 <= (fall.rate_mbps or 0) / (link.rate_mbps or 1) <= 0.251
    for link in links["whole-ms"]:
        trace = load_trace(link.trace or "")
        assert trace.period_ns <= 100_000_000
        assert (trace.times_ns % 1_000_000 == 0).all()
        assert 4.9 <= trace.mean_mbps <= 100.1
        assert link.trace == f"constant:{trace.mean_mbps:.5f}"
        assert link.ack_tick_ms in (0, 1)
        assert 0 <= link.ack_jitter_ms <= 1
    assert 20 <= sum(link.delayed_acks for link in links["whole-ms"]) <= 44
    assert max(link.ack_jitter_ms for link in links["whole-ms"]) > 0.8
    lossy = links["lossy"]
    assert all(0.001 <= link.loss <= 0.02 and 0.3 <= link.ack_jitter_ms <= 3 for link in lossy)
    assert 20 <= sum(link.trace is not None for link in lossy) <= 44
    ticking = [link.ack_tick_ms == 1 for link in (*links["whole-ms"], *lossy) if link.trace]
    assert 0.3 < sum(ticking) / len(ticking) < 0.7
    assert not any(link.ack_tick_ms for link in lossy if link.trace is None)
    jitters = [link.ack_jitter_ms for link in lossy if link.delayed_acks]
    assert min(jitters) < 0.9 < max(jitters)
    for link in links["noisy"]:
        scales = [scale for scale in (link.ack_jitter_ms, link.jitter_ms) if scale]
        assert scales
        assert all(2 <= scale <= 40 for scale in scales)
    assert {link.ack_jitter_kind for link in links["noisy"]} == {*JITTERS}
    for link in links["wifi"]:
        ways = (link.ack_jitter_kind, link.ack_jitter_ms), (link.jitter_kind, link.jitter_ms)
        pauses = [scale for kind, scale in ways if kind == "bursts"]
        assert pauses
        assert any(5 <= scale <= 250 for scale in pauses)
        assert all(0.5 <= scale <= 250 for _, scale in ways)
    for link in links["lan"]:
        assert 0.02 <= 2 * link.delay_ms <= 3
        assert 0.05 <= link.ack_jitter_ms <= 4
        assert (link.queue_packets or 0) >= 64
    rtts = [2 * link.delay_ms for link in links["long"]]
    assert 150 <= min(rtts) < 250 < 600 < max(rtts) <= 800
    assert all(1 <= (link.rate_mbps or 0) <= 100 for link in links["long"])
    assert 0.005 < max(link.loss for link in links["long"]) <= 0.01
    assert 20 <= sum(link.loss > 0 for link in links["long"]) <= 44
    for name, each in links.items():
        assert not {s.link for s in SUITES[name].scenarios("validation")} & set(each)


def test_a_suite_file_is_read_with_traces_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t.trace").write_text("1\n2\n")
    scenario = Scenario(
        "commuter",
        Link(trace="t.trace", delay_ms=5, changes=(Change(2.0, delay_ms=9),)),
        (Flow(), Flow("cubic", start_s=1.0)),
        duration_s=5.0,
    )
    (tmp_path / "one.toml").write_text(to_toml(scenario))
    read = load_suite(str(tmp_path / "one.toml")).scenarios("test")
    assert read[0].link.trace == str(tmp_path / "t.trace")
    assert read[0].flows == scenario.flows
    assert read[0].link.changes == scenario.link.changes
    assert with_scheme(read[0], "bbr").flows[0].scheme == "bbr"
    (tmp_path / "two.toml").write_text(
        'name = "pair"\n[[scenarios]]\nname = "a"\nlink = {rate_mbps = 5.0}\n'
        '[[scenarios]]\nname = "b"\nlink = {rate_mbps = 6.0}\n'
    )
    assert [s.name for s in load_suite(str(tmp_path / "two.toml")).scenarios("test")] == ["a", "b"]


def test_a_trace_with_a_colon_stands_beside_its_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "at-10:30.trace", "cellular", "constant.trace"
    for folder, text in (("beside", "10\n20\n"), ("here", "1\n2\n")):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    file = tmp_path / "beside" / "one.toml"
    for name in names:
        file.write_text(to_toml(Scenario("a", Link(trace=name))))
        (scenario,) = load_suite(str(file)).scenarios("test")
        assert load_trace(scenario.link.trace or "").period_ns == 20_000_000
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "constant:a.trace").write_text("7\n")
    assert load_trace("~/constant:a.trace").period_ns == 7_000_000
    for name, says in (("cellular:7", ""), ("celular:7", "did you mean"), ("at-1:2", "No such")):
        file.write_text(to_toml(Scenario("a", Link(trace=name))))
        (scenario,) = load_suite(str(file)).scenarios("test")
        with pytest.raises(TraceError, match=says) if says else nullcontext():
            load_trace(scenario.link.trace or "")


def test_hours_that_are_not_measured_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "day.trace").write_text("1\n86400000\n")
    assert trace_suite([str(tmp_path / "day.trace")]).scenarios("test")[0].duration_s == 4 * 3600
    assert "day.trace: 4 of its 24 hours are measured" in capsys.readouterr().err


def test_a_folder_of_traces_is_a_suite_and_training_starts_anywhere(tmp_path: Path) -> None:
    of = {"a": ("5\n40000\n", 40.0), "b": ("1\n", 30.0), "hour": ("1\n3600000\n", 3600.0)}
    for folder, (text, seconds) in of.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.trace").write_text(text)
        suite = load_suite(str(tmp_path / folder))
        assert suite.scenarios("test")[0].duration_s == seconds
        assert suite.scenario("test", 0).link.trace_start_s == 0.0
    suite = load_suite(str(tmp_path / "a"))
    starts = {suite.scenario("train", k).link.trace_start_s for k in range(20)}
    assert len(starts) == 20
    assert 20 < max(starts) < 40
    # Equal names are told apart.
    suite = trace_suite([str(tmp_path / name / "t.trace") for name in ("a", "b")])
    assert [s.name for s in suite.scenarios("test")] == ["trace/t.trace", "trace/t.trace (2)"]
    # Their queue reads as everywhere.
    for queue, expected in (
        ("60", "droptail:packets=60"),
        ("droptail:bytes=60000", "droptail:bytes=60000"),
        ("infinite", "infinite"),
        ("codel:packets=80,ecn=1", "codel:packets=80,ecn=1"),
    ):
        (link,) = trace_suite(["cellular:1"], queue=queue).scenarios("test")
        assert link.link.queue == parse_queue(expected)
    with pytest.raises(ConfigError, match="simulated links have droptail, codel, pie or infinite"):
        trace_suite(["cellular:1"], queue="drophead:packets=60")


@pytest.mark.parametrize(
    ("name", "says"),
    [("randon", "did you mean random"), ("{}/empty", "no trace"), ("{}/none.toml", "cannot be")],
)
def test_an_unknown_suite_is_one_clear_line(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=says):
        load_suite(name.format(tmp_path))


@pytest.mark.parametrize(
    ("link", "more", "says"),
    [
        ("rate_mbps = 0.0", "", "last rate_mbps is 0"),
        ("rate_mbps = 0.0, changes = [{at_s = 20.0, rate_mbps = 1.0}]", "", "at_s is 20, when"),
        ("rate_mbps = -1.0", "", "rate_mbps is -1"),
        ("rate_mbps = nan", "", "rate_mbps is nan"),
        ("", "", "either rate_mbps or trace"),
        ("rate_mbps = 1.0, policer_mbps = 2.0", "", "both policer_mbps and policer_packets"),
        ("rate_mbps = 1.0, jitter_ms = -1.0", "", "jitter_ms"),
        ("rate_mbps = 1.0, aqm = 'droptail:packets=3'", "", "expected codel or pie"),
        ("rate_mbps = 1.0, aqm = 'codel'", "", "has no limit; say codel:packets=100"),
        ("rate_mbps = 1.0, aqm = 'pie:packets=3', queue_packets = 3", "", "aqm has the queue's"),
        ("rate_mbs = 3.0", "", "rate_mbps"),
        ("rate_mbps = 3.0, queue_packets = 0", "", "queue_packets is 0"),
        ("rate_mbps = 3.0", "duration_s = 0.0", "duration_s"),
        ("rate_mbps = 3.0, loss = 1.5", "", "loss is 1.5"),
        (
            "rate_mbps = 3.0, changes = [{at_s = 2.0, loss = 0.1}, {at_s = 1.0, loss = 0.2}]",
            "",
            "do not increase",
        ),
        ("rate_mbps = 3.0, changes = [{at_s = 2.0, rate_mbps = 0.0}]", "", "last rate_mbps is 0"),
        (
            "rate_mbps = 3.0",
            "flows = [{start_s = 50.0}]",
            "start_s is 50, when the scenario's 10 s",
        ),
        ("rate_mbps = 3.0", "other = [", "toml"),
    ],
)
def test_a_bad_scenario_is_one_clear_line(tmp_path: Path, link: str, more: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f'name = "a"\nlink = {{{link}}}\n{more}')
    with pytest.raises(DistrlccError) as caught:
        load_suite(str(path))
    assert says.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("extreme", [0.0, 1.0 - 1e-9])
def test_policers_of_the_widest_links_are_within_what_a_link_may_have(extreme: float) -> None:
    for rate, delay in ((0.2, 1.0), (1000.0, 1.0), (1000.0, 400.0)):
        link = policed(Link(rate_mbps=rate, delay_ms=delay), [extreme, extreme])
        assert 4 <= (link.policer_packets or 0) <= MAX_POLICER_PACKETS


def _falls(link: Link) -> bool:
    rates = [change.rate_mbps for change in link.changes]
    return len(rates) == 1 and 0 < (rates[0] or 0) < 0.5 * (link.rate_mbps or 0)


@pytest.mark.slow
def test_the_world_has_the_shares_that_it_documents() -> None:
    scenarios = [SUITES["world"].scenario("train", index) for index in range(2000)]
    agents = [sum(flow.scheme == "agent" for flow in s.flows) for s in scenarios]
    few = [count <= 2 for count in agents]
    alone = [s for s in scenarios if len(s.flows) == 1]
    changing = [s.link.trace is None and len(s.link.changes) > 1 for s in alone]
    shares = {
        "one": (np.mean(np.equal(agents, 1)), 0.6),
        "two": (np.mean(np.equal(agents, 2)), 0.18),
        "three or four": (np.mean(np.isin(agents, (3, 4))), 0.12),
        "up to eight": (np.mean(np.isin(agents, (5, 6, 7, 8))), 0.06),
        "up to sixteen": (np.mean(np.greater(agents, 8)), 0.04),
        "jitter": (np.mean([s.link.ack_jitter_ms > 0 for s in scenarios]), 0.435),
        "jitter before the queue": (np.mean([s.link.jitter_ms > 0 for s in scenarios]), 0.17),
        "CoDel": (np.mean(["codel" in str(s.link.aqm) for s in scenarios]), 0.05),
        "PIE": (np.mean(["pie" in str(s.link.aqm) for s in scenarios]), 0.05),
        "marks": (np.mean(["ecn=1" in str(s.link.aqm) for s in scenarios]), 0.05),
        "policers": (np.mean([s.link.policer_mbps is not None for s in alone]), 0.0225),
        "traces": (np.mean(["cellular" in str(s.link.trace) for s in alone]), 0.25),
        "whole ms": (np.mean(["constant" in str(s.link.trace) for s in alone]), 0.045),
        "changes": (np.mean(changing), 0.3),
        "silent": (np.mean([s.link.rate_mbps == 0 for s in alone]), 0.045),
        "falls": (np.mean([_falls(s.link) for s in alone]), 0.056),
        "random loss": (np.mean([s.link.loss > 0 for s in scenarios if not s.link.trace]), 0.2),
    }
    rivals = sum(len(s.flows) > a for s, a in zip(scenarios, agents, strict=True))
    assert rivals / sum(few) == pytest.approx(0.25, abs=0.04)
    beside = [s for s in scenarios if s.flows[-1].scheme != "agent"]
    sized = [s for s in beside if s.flows[-1].packets is not None]
    assert len(beside) == rivals
    assert len(sized) / rivals == pytest.approx(1 / 3, abs=0.1)
    assert all(s.flows[0].start_s == 0 for s in sized)
    marked = [s for s in beside if s.flows[-1].ecn]
    assert {(s.flows[-1].scheme, "ecn=1" in str(s.link.aqm)) for s in marked} == {("cubic", True)}
    assert min(s.link.rate_mbps or 9 for s in alone if s.link.trace is None) < 0.2
    for name, (found, said) in shares.items():
        assert found == pytest.approx(said, abs=max(0.1 * said, 0.015)), name
    assert 0.028 < max(s.link.loss for s in scenarios) <= 0.03
    assert max(s.link.loss for s in scenarios if s.link.trace) == 0
    kinds = [(s.link.jitter_kind, s.link.ack_jitter_kind) for s in scenarios]
    assert {kind for both in kinds for kind in both} == {*JITTERS}
    assert 100 < max(s.link.jitter_ms for s in scenarios) <= 250
    lans = [s for s in alone if 2 * s.link.delay_ms < 2]
    assert len(lans) / len(alone) == pytest.approx(0.025, abs=0.012)
    for s, count in zip(scenarios, agents, strict=True):
        check_agents(s, count)
        assert len(s.flows) <= SUITES["world"].most_flows
    flows = SUITES["flows"].scenarios("test")
    assert [len(s.flows) for s in flows[:3]] == [4, 16, 32]


def test_a_users_suite_has_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from distrlcc.sim.scenario import Flow, Link, Scenario\n"
        "from distrlcc.sim.suites import Suite\n"
        "def links(split, index):\n"
        "    schemes = ['cubic' if index % 4 == 2 else 'agent', *['cubic'] * (index == 1)]\n"
        "    return Scenario(str(index), Link(12.0), tuple(map(Flow, schemes)))\n"
        "none = lambda: Suite(links, 0)\n"
    )
    suite = load_suite(f"{tmp_path}/mine.py:links")
    with pytest.raises(ConfigError, match=r"it has 2 flows; give Suite\(..., most_flows=2\)"):
        suite.scenario("train", 1)
    with pytest.raises(ConfigError, match="held_out is 0"):
        Suite(suite.build, 0)
    env = LinkVectorEnv(64, EnvConfig(suites=(f"{tmp_path}/mine.py:links",)))
    with pytest.raises(ConfigError, match="expected agent first"):
        env.reset()


@pytest.mark.parametrize("name", ["genet", "aurora", "world", "flows", *SHARED])
def test_split_and_index_name_a_link(name: str) -> None:
    scenario = SUITES[name].scenario("test", 7)
    assert scenario == scenario_by_id(f"{name}/test/7")
    assert scenario.link != SUITES[name].scenario("train", 7).link
    assert scenario.link != SUITES[name].scenario("test", 8).link


@pytest.mark.parametrize("name", SHARED)
def test_links_that_are_shared(name: str) -> None:
    scenarios = SUITES[name].scenarios("test", 200)
    for scenario in scenarios:
        link, flows = scenario.link, scenario.flows
        bdp = (link.rate_mbps or 0) * 2 * link.delay_ms * 1e3 / (8 * 1504)
        assert bdp >= 4 * len(flows) - 0.1
        assert 5 <= (link.rate_mbps or 0) <= 100
        assert 0.4 * bdp <= (link.queue_packets or 0) <= 4.1 * bdp
        assert len(flows) <= SUITES[name].most_flows
        assert all(
            f.start_s < (scenario.duration_s if f.stop_s is None else f.stop_s) for f in flows
        )
        schemes = [flow.scheme for flow in flows]
        beside = name.partition("beside-")[2]
        assert schemes == (["agent", beside] if beside else ["agent"] * len(flows))
        rtts = [2 * link.delay_ms + flow.extra_rtt_ms for flow in flows]
        if name == "shared-rtt":
            assert max(rtts) == pytest.approx(4 * min(rtts), rel=1e-3)
        assert name in ("shared", "shared-rtt") or len(set(rtts)) == 1
    counts = {len(scenario.flows) for scenario in scenarios}
    assert counts == ({1, 2, 3, 4} if name == "shared" else counts)
    assert any(flow.stop_s for s in scenarios for flow in s.flows) == (
        name in ("shared", "shared-4")
    )


def test_agents_stand_first_and_are_not_too_many() -> None:
    two = SUITES["shared-2"].scenario("test", 0)
    check_agents(two, 2)
    assert [flow.scheme for flow in with_scheme(two, "cubic").flows] == ["cubic", "cubic"]
    with pytest.raises(ConfigError, match="has 2 agents; expected one agent first"):
        check_agents(two)
    with pytest.raises(ConfigError, match="agent first"):
        check_agents(Scenario("late", two.link, (Flow("cubic"), Flow())), 2)


def test_genets_links_fill_its_papers_ranges() -> None:
    scenarios = [SUITES["genet"].scenario("train", index) for index in range(400)]
    assert from_toml(Scenario, to_toml(scenarios[7])) == scenarios[7]
    links = [scenario.link for scenario in scenarios]
    rates = [[e.rate_mbps, *(c.rate_mbps for c in e.changes)] for e in links]
    flat = np.array([rate for of_link in rates for rate in of_link], float)
    assert 0.1 <= flat.min() < 0.2
    assert 60.0 < flat.max() <= 100.0
    rtts = np.array([2 * e.delay_ms for e in links])
    assert 4.0 <= rtts.min() < 8.0
    assert 390.0 < rtts.max() <= 400.0
    losses = np.array([e.loss for e in links])
    assert ((losses == 0.0) | ((losses >= 1e-4) & (losses <= 0.05))).all()
    assert 0.1 < (losses == 0.0).mean() < 0.5  # log-uniform from 1e-5, and none below 1e-4
    gaps = [e.changes[0].at_s for e in links if e.changes]
    assert 1.0 <= min(gaps) < 1.5
    assert 25.0 < max(gaps) < 30.0
    for link, of_link in zip(links, rates, strict=True):
        bdp = bdp_packets(100.0, 2 * link.delay_ms)
        assert 2 <= (link.queue_packets or 0) <= max(2, 3.0 * bdp + 1)
        assert len(set(of_link)) == len(of_link)


def test_a_folder_has_traces_of_any_name_and_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["wired12-2x-d", "trace-1553-walking", "a.up", "b.down", "c.trace", "d.txt", "e.log"]
    for number, name in enumerate([*names, "Wi-Fi 5.0 GHz", "12.5"], 1):
        (tmp_path / name).write_text(f"1\n{number + 1}\n")
    others = {
        "README.md": (b"# Traces\n\nOf two cities.\n", "line 1: '# Traces' is not a time"),
        "log.csv": (b"0,5\n1,6\n", "distrlcc trace --from csv"),
        "g.json": (b'{"timestamps": [0, 1]}', "distrlcc trace --from genet"),
        "x.pcap": (b"\xd4\xc3\xb2\xa1\0\0", "a capture of packets"),
        "empty": (b"", "the trace is empty"),
        ".c.trace.1.tmp": (b"1\n2\n", "is hidden"),
    }
    for name, (data, _) in others.items():
        (tmp_path / name).write_bytes(data)
    suite = load_suite(str(tmp_path))
    found = [Path(scenario.link.trace or "").name for scenario in suite.scenarios("test")]
    assert found == sorted([*names, "Wi-Fi 5.0 GHz", "12.5"])
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path}: traces: {len(found)}; left out:\n")
    shown = sorted(others)[:5]
    for name in shown:
        reason = others[name][1]
        line = next(line for line in said.splitlines() if line.startswith(f"  {name}: "))
        assert reason in line
    # It is said once, what has no room is counted, and a folder within is none.
    load_suite(str(tmp_path))
    assert capsys.readouterr().err == ""
    (tmp_path / "A").mkdir()
    load_suite(str(tmp_path))
    said = capsys.readouterr().err
    assert "\n  A: is a folder\n" in said
    assert said.endswith("\n  and 2 more\n")
    # What bears a trace's name must be one; a folder without any is refused.
    (tmp_path / "c.trace").write_text("x\n")
    with pytest.raises(TraceError, match=r"c\.trace, line 1"):
        load_suite(str(tmp_path))
    with pytest.raises(ConfigError, match=r"no trace stands in this folder$"):
        load_suite(str(tmp_path / "A"))
    with pytest.raises(ConfigError, match="give a trace as a trace"):
        load_suite(str(tmp_path / "b.down"))
    (tmp_path / "A" / "notes").write_text("x\n")
    with pytest.raises(ConfigError, match="no trace stands in this folder; notes: line 1: 'x'"):
        load_suite(str(tmp_path / "A"))
