"""The board as a person and as an attacker meet it: a server, and a real browser on its pages."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from distrlcc.board.runs import Runs
from distrlcc.board.server import FILES, MOST_UPLOAD, Board, _reads
from distrlcc.policy.policy_file import shipped_policies
from tests.board.made import Member, finished_run
from tests.hosts import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VIEWS = ("runs", "playground", "policies")
WAIT_MS = 90_000


@dataclass
class Site:
    """A board that runs."""

    address: str
    runs: Path
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(re.findall(r":(\d+)/", self.address)[0])

    def ask(self, path: str, method: str = "GET", body: bytes = b"", /, **headers: str) -> Any:
        """Return the status and the answer; a name's ``_`` is a header's ``-``."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            link.request(method, path, body=body or None, headers=named)
            answer = link.getresponse()
            data = answer.read()
        finally:
            link.close()
        is_json = "json" in (answer.headers["content-type"] or "")
        return answer.status, json.loads(data) if is_json else data

    def own(self) -> dict[str, str]:
        """Return what the page itself sends with an upload."""
        return {"Origin": f"http://127.0.0.1:{self.port}", "X_Distrlcc": "board"}


@contextmanager
def _board(runs: Path, *words: str) -> Iterator[Site]:
    """Serve runs until Ctrl-C, which must end it."""
    command = [sys.executable, "-m", "distrlcc", "board", str(runs), "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("board: http://")
            yield Site(line.split()[1], runs, process)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
    assert code in (0, 130, 128 + signal.SIGTERM, 128 + signal.SIGHUP)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    runs = tmp_path_factory.mktemp("board") / "runs"
    finished_run(runs / "alpha", lr=1e-3)
    finished_run(runs / "deep" / "beta", lr=3e-4, alarm="entropy fell")
    with _board(runs) as found:
        yield found


def test_it_lists_runs_their_curves_and_what_differs(site: Site) -> None:
    _, runs = site.ask("/api/runs")
    assert {run["key"] for run in runs} == {"alpha", "deep/beta"}
    by_key = {run["key"]: run for run in runs}
    assert by_key["alpha"]["best"] == pytest.approx(0.9)
    assert by_key["deep/beta"]["alarms"] == 1
    keys = "alpha\ndeep/beta"
    _, curves = site.ask("/api/curves?" + urlencode({"keys": keys, "metric": "episode_return"}))
    assert [len(one["value"]) for one in curves] == [20, 20]
    _, differ = site.ask("/api/differences?" + urlencode({"keys": keys}))
    assert next(row for row in differ["rows"] if row["key"] == "ppo.lr")["values"] == [
        "0.001",
        "0.0003",
    ]
    _, one = site.ask("/api/run?key=alpha")
    assert [event["kind"] for event in one["events"]] == ["joined", "left"]


def test_a_question_is_answered_and_what_is_wrong_is_one_line(site: Site) -> None:
    status, found = site.ask("/api/play?" + urlencode({"queue": 30, "senders": "cubic\nbbr"}))
    assert status == 200
    assert [one["name"] for one in found["senders"]] == ["cubic", "BBRv1"]
    assert all(len(one["window"]) == len(found["time"]) for one in found["senders"])
    assert found["command"] == "distrlcc try --queue=30 cubic bbr"
    for query in (
        {"rate": "-1"},
        {"rate": "nan"},
        {"queue": "2.5"},
        {"colour": "red"},
        {"trace": "/etc/passwd"},
        {"trace": "../alpha/config.toml"},
        {"senders": "/etc/passwd"},
        {"senders": f"{site.runs}/alpha/policy.safetensors"},
        {"senders": "run:../alpha"},
        {"senders": "os:getcwd"},
        {"senders": "cubic\n" * 7 + "bbr\nreno\nvegas\ncopa\nledbat\noracle"},
        {"senders": ""},
        {"rate": "1000", "seconds": "60"},
        {"change_at": "5"},
        {"beside": "cubic", "beside_at": "50"},
    ):
        status, found = site.ask("/api/play?" + urlencode({"senders": "cubic", **query}))
        assert (status, "error" in found, "\n" in str(found)) == (400, True, False), query


def test_nothing_beyond_the_page_and_the_runs_is_reached(site: Site) -> None:
    for path in (
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/alpha/config.toml",
        "/static/",
        "/.env",
        "/etc/passwd",
        "//etc/passwd",
    ):
        assert site.ask(path)[0] in (404, 405), path
    for key in ("../alpha", "/etc", str(site.runs / "alpha"), "alpha/checkpoints", ""):
        assert site.ask("/api/run?" + urlencode({"key": key}))[0] == 400
    for name in FILES:
        assert site.ask(f"/static/{name}")[0] == 200


def test_requests_of_others_do_nothing(site: Site) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{site.port}"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[evil"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert site.ask("/api/runs", **headers)[0] == 403, headers
    # What is not a read comes from the page alone; other methods have nothing to do.
    trace = b"1\n2\n3\n"
    for headers in ({}, {"Origin": site.own()["Origin"]}, {"X_Distrlcc": "board"}):
        assert site.ask("/api/trace", "POST", trace, **headers)[0] == 403
    for method in ("PUT", "DELETE", "POST"):
        assert site.ask("/api/runs", method, b"x", **site.own())[0] in (404, 405)


def test_long_answers_keep_no_other_waiting() -> None:
    over = threading.Event()
    long, short = _reads(lambda _: over.wait(60)), _reads(lambda _: "here")
    request = Request({"type": "http", "query_string": b"", "headers": []})

    async def ask() -> None:
        waiting = [asyncio.create_task(long(request)) for _ in range(100)]
        try:
            await asyncio.sleep(0.1)
            answer = await asyncio.wait_for(short(request), 20)
            assert (answer.body, any(each.done() for each in waiting)) == (b'"here"', False)
            waiting[0].cancel()  # as the server does when it ends
            assert (await asyncio.wait_for(waiting[0], 20)).status_code == 503
        finally:
            over.set()
            await asyncio.gather(*waiting)

    asyncio.run(ask())


def test_runs_of_one_name_can_be_told_apart_and_tried_again(tmp_path: Path) -> None:
    for place in ("e1", "e2"):
        Member(tmp_path / place / "one")
        shutil.copy(shipped_policies()["one"], tmp_path / place / "one" / "policy.safetensors")
    board = Board(Runs([tmp_path]), tmp_path)
    found = board.play({"senders": "one\nrun:e1/one\nrun:e2/one", "seconds": "2"})
    assert [one["name"] for one in found["senders"]] == ["one", "e1/one", "e2/one"]
    assert f" {tmp_path}/e1/one {tmp_path}/e2/one" in found["command"]


def test_a_trace_is_bounded_and_read_strictly(site: Site) -> None:
    status, found = site.ask("/api/trace?name=mine", "POST", b"1\n2\n3\n", **site.own())
    assert (status, found["mbps"]) == (200, pytest.approx(12.032, rel=0.01))
    query = urlencode({"trace": found["key"], "senders": "cubic", "seconds": 2})
    assert site.ask(f"/api/play?{query}")[0] == 200
    for data in (b"", b"\x00\x01", b"5\n3\n", b"time,rate\n1,2\n", b"1\n" * MOST_UPLOAD):
        status, found = site.ask("/api/trace", "POST", data, **site.own())
        assert (status, "\n" in found["error"]) == (400, False)


def test_another_address_takes_a_token(tmp_path: Path) -> None:
    with _board(tmp_path, "--host", "0.0.0.0") as site:
        token = site.address.partition("?token=")[2]
        assert len(token) >= 32
        host = f"127.0.0.1:{site.port}"
        assert site.ask("/api/runs", Host=host)[0] == 403
        assert site.ask("/api/runs?token=wrong", Host=host)[0] == 403
        assert site.ask(f"/api/runs?token={token}", Host=host)[0] == 200
        for others in ("", "a/b{=1; ", 'x="y; '):  # cookies of this address are all ports'
            assert site.ask("/api/runs", Host=host, Cookie=f"{others}token={token}")[0] == 200
        assert site.ask("/api/runs", Host=f"evil:{site.port}", Cookie=f"token={token}")[0] == 403


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with _board(tmp_path) as site:
        assert site.ask("/api/runs") == (200, [])
        assert list((tmp_path / "tmp").iterdir())
        site.process.send_signal(number)
        assert site.process.wait(60) == 128 + number
    assert not list((tmp_path / "tmp").glob("distrlcc-board-*"))


def test_a_busy_port_and_a_wrong_folder_are_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, said in (
            ((str(tmp_path), "--port", port), "take another port"),
            ((str(tmp_path / "none"),), "no such folder"),
            ((f"file://{tmp_path}/none",), "holds no run"),
            (("floppy://a/b",), "unknown scheme"),
            ((str(tmp_path), "--host", "no such host"), "no such address"),
        ):
            command = [sys.executable, "-m", "distrlcc", "board", *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 2
            assert said in done.stderr
            assert done.stderr.count("\n") == 1 + ("://" in words[0])  # that it is asked


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs chromium: scripts/install-test-tools")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    switches = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    switches += " --disable-background-networking --disable-component-update"
    with playwright.sync_playwright() as drivers:
        found = drivers.chromium.launch(executable_path=CHROMIUM, args=switches.split())
        yield found
        found.close()


def _axe() -> Path | None:
    """Return the accessibility checks that scripts/install-test-tools brings."""
    for root in ("/usr/local/lib/node_modules", "/usr/lib/node_modules"):
        if (path := Path(root) / "axe-core" / "axe.min.js").exists():
            return path
    return None


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A tab whose console must stay without an error."""
    width, scheme = getattr(request, "param", (1280, "light"))
    size = {"width": width, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)
    found = context.new_page()
    found.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    found.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    yield found
    context.close()
    assert wrong == []


def _settled(page: Any, view: str) -> None:
    page.wait_for_selector("[data-answered]" if view == "playground" else "h1")
    page.wait_for_selector({"runs": "table", "playground": "canvas", "policies": ".card"}[view])


def _violations(page: Any, axe: Path) -> list[str]:
    page.evaluate(axe.read_text("utf-8"))
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    return [f"{v['id']}: {n['html'][:200]}" for v in found["violations"] for n in v["nodes"]]


@pytest.mark.parametrize("page", [(1280, "light"), (390, "dark")], indirect=True)
def test_each_view_fits_its_width_and_can_be_read_by_all(page: Any, site: Site) -> None:
    axe = _axe()
    for view in VIEWS:
        page.goto(f"{site.address}#{view}")
        _settled(page, view)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= page.viewport_size["width"], view
        assert axe is None or _violations(page, axe) == [], view
    if axe is None:
        pytest.skip("widths are right; axe-core is not here (scripts/install-test-tools brings it)")


def test_a_table_sorts_and_a_slider_moves_the_curve(page: Any, site: Site) -> None:
    page.goto(f"{site.address}#runs")
    _settled(page, "runs")
    heads = page.locator("section[aria-label=Runs] thead th")
    heads.first.locator("button").click()
    names = page.locator("section[aria-label=Runs] tbody th a")
    first = names.all_inner_texts()
    assert heads.first.get_attribute("aria-sort") == "ascending"
    heads.first.locator("button").click()
    assert names.all_inner_texts() == first[::-1]

    page.goto(f"{site.address}#playground?senders=cubic&seconds=2")
    _settled(page, "playground")
    drawn = page.locator(".chart canvas").first.evaluate("it => it.toDataURL()")
    scores = page.locator("table[aria-label=Scores]").inner_text()
    # Many moves at once: the newest is answered last.
    slider = page.locator("#s-rate")
    for place in range(100, 300, 8):
        slider.evaluate(
            "(it, place) => { it.value = place; it.dispatchEvent(new Event('input')); }", place
        )
    page.wait_for_function("document.querySelector('[data-answered]').dataset.answered >= 26")
    assert page.locator(".chart canvas").first.evaluate("it => it.toDataURL()") != drawn
    assert page.locator("table[aria-label=Scores]").inner_text() != scores
    rate = re.findall(r"rate=([\d.]+)", page.evaluate("location.hash"))[0]
    assert f"--rate={rate}" in page.locator("pre").nth(0).inner_text()
    assert float(rate) == pytest.approx(0.1 * 1e4 ** (292 / 400), rel=0.01)


def test_a_worker_that_is_gone_is_named(page: Any, site: Site) -> None:
    member = Member(site.runs / "live")
    member.write(0.0, "a", "b", "c")
    page.goto(f"{site.address}#runs")
    page.wait_for_selector("a:has-text('live')")
    page.locator("a:has-text('live')").first.click()
    workers = page.locator("[data-part=workers]")
    workers.wait_for()
    for second in (1.0, 2.0):
        member.write(second, "a", "c")
    page.wait_for_function(
        "document.querySelector('[data-part=workers]').innerText.includes('gone: 1 b (4001)')"
    )
    assert "2 of 3 are here" in workers.inner_text()
    # The list says the same, though the link that was clicked has the focus.
    row = page.locator("section[aria-label=Runs] tbody tr", has_text="live")
    row.locator("td:nth-child(9):text-is('2')").wait_for()
    assert page.evaluate("document.activeElement.innerText") == "live"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_worker_of_a_training_is_named_within_seconds(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.actors.shared import SMALL, STOP_SECONDS, acting
    from tests.hosts import rank_processes
    from tests.parallel.commands import Command

    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.toml").write_text("nodes = [[0, 1, 'random']]")
    words = "node --node-index 0 --node-num 1 --IP 127.0.0.1 --port 29534 --nodes nodes.toml"
    keys = ("--set", *SMALL.split(), "actors.segments_per_update=2")
    out = Path("runs/first")
    with Command(Path(), "-m", "distrlcc", *words.split(), "--out", str(out), *keys) as run:
        wait_until(acting(out, 3), 120.0, "all workers act")
        with _board(Path("runs")) as site:
            page.goto(f"{site.address}#runs")
            page.wait_for_function("document.body.innerText.includes('3 of 3 are here')")
            os.kill(rank_processes(run.process.pid)[1], signal.SIGKILL)
            page.wait_for_function("document.body.innerText.includes('gone: ')", timeout=20_000)
            page.goto("about:blank")  # before its server ends
        run.process.send_signal(signal.SIGINT)
        run.process.wait(STOP_SECONDS)
