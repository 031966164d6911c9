"""The page's server: it only reads, for any browser that may ask.

It answers a browser of this machine that asks by this server's own name. It refuses a ``Host`` of
another name, since a page elsewhere may let its name lead here (DNS rebinding), and requests from
other pages. At an address that others reach, a request needs the token, too. No file's path comes
from a request: runs, policies and the page's files are found by their names in tables.
"""

import asyncio
import hashlib
import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distrlcc import __version__
from distrlcc.board.listening import asked_for
from distrlcc.board.playground import (
    AXES,
    MEASURES,
    MOST_SENDERS,
    Question,
    answer,
    map_of,
    page_of,
)
from distrlcc.board.policies import gallery
from distrlcc.board.runs import Runs
from distrlcc.control.state import SCHEMES
from distrlcc.errors import ConfigError, DistrlccError, TraceError, unknown_name
from distrlcc.evaluation.contender import (
    Contender,
    contender_from_file,
    contender_from_scheme,
    distinct,
)
from distrlcc.evaluation.scores import shown
from distrlcc.policy.policy_file import shipped_policies
from distrlcc.runs.stopper import Stopper
from distrlcc.sim.trace import generate, kept_trace, parse_trace

T = TypeVar("T")

MOST_UPLOAD = 4_000_000  # bytes of a trace that is dropped on the page
_MOST_TRACES, _MOST_ANSWERS, _MOST_MAPS, _MOST_POLICIES = 8, 64, 16, 32
_TICK_S = 0.5  # how often runs are looked at
_MOST_QUERY = 4096
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_STATIC = resources.files("distrlcc").joinpath("board", "static")
FILES = {
    each.name: kind
    for each in _STATIC.iterdir()
    if (kind := _TYPES.get(each.name.rpartition(".")[2]))
}
"""The page's files with their types."""
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Lets only those requests through that this page's own make; see the module."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str) -> None:
        """Take where this server listens, and a token; empty: none is asked for."""
        self._app, self._where, self._token = app, (host, port), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on; each answer has the headers of safety."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        refused = self._refused(request)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = dict(_HEADERS)
                if self._token and request.query_params.get("token") and not refused:
                    more["set-cookie"] = f"token={self._token}; HttpOnly; SameSite=Strict; Path=/"
                head = [(k.encode(), v.encode()) for k, v in more.items()]
                message["headers"] = [*message["headers"], *head]
            await send(message)

        answer: ASGIApp = self._app
        if refused:
            answer = JSONResponse({"error": refused}, 403)
        await answer(scope, receive, with_headers)

    def _refused(self, request: Request) -> str:
        """Say why a request is not for this page; empty: it is."""
        host = request.headers.get("host", "")
        if not asked_for(host, *self._where):
            return f"this server is not {host[:80]!r}"
        if self._token:
            given = request.query_params.get("token") or request.cookies.get("token", "")
            if not secrets.compare_digest(given.encode(), self._token.encode()):
                return "the token is missing or wrong: open the address that distrlcc board printed"
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return "this request comes from another page"
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "this request comes from another site"
        if request.method not in ("GET", "HEAD") and (
            origin is None or request.headers.get("x-distrlcc") != "board"
        ):
            return "what changes something comes from the page alone"
        return "the address is too long" if len(request.url.query) > _MOST_QUERY else ""


class Board:
    """The endpoints of the page."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        """Show runs; traces that are dropped on the page are kept in a folder."""
        self.runs, self._folder = runs, folder
        self._traces: OrderedDict[str, tuple[str, Path]] = OrderedDict()
        # Policies by path and date, and what is asked of them; each endpoint has one caller.
        self._loaded = lru_cache(_MOST_POLICIES)(lambda path, stamp: contender_from_file(path))
        self._answer, self._map = lru_cache(_MOST_ANSWERS)(answer), lru_cache(_MOST_MAPS)(map_of)
        self._gallery = lru_cache(1)(lambda found: gallery({key: path for key, path, _ in found}))
        self._news = 0
        self.ending: Callable[[], bool] = lambda: False
        """Says whether the server ends, so that no page keeps it."""
        self._changed: dict[str, int] = {}
        self.runs.refresh()

    # Who sends

    def sender(self, name: str) -> Contender:
        """Return a name's contender: a scheme, a shipped policy, or ``run:KEY``.

        Raises ConfigError at others: plug-ins and files are not reached from here.
        """
        key = name.removeprefix("run:")
        if key == name and name not in shipped_policies():
            known = self._schemes()
            if name not in known:
                raise unknown_name("policy or scheme", name, (*shipped_policies(), *known))
            return contender_from_scheme(name)
        path = shipped_policies()[name] if key == name else self.runs[key].path
        stamp = 0  # what is missing is refused as it is loaded
        with suppress(OSError):
            stamp = (path if key == name else path / _POLICY).stat().st_mtime_ns
        found: Contender = self._loaded(str(path), stamp)
        return found if key == name else replace(found, name=key)

    def _schemes(self) -> list[str]:
        return [name for name in SCHEMES if name not in ("agent", "fixed")]

    def _question(self, texts: Mapping[str, str]) -> Question:
        """Return the question of an address; its trace is generated, or one that was dropped."""
        texts = {name: text for name, text in texts.items() if name != "token"}
        trace = texts.get("trace", "")
        if trace in self._traces:
            return Question.read({**texts, "trace": str(self._traces[trace][1])})
        question = Question.read({**texts, "trace": ""} if trace else texts)
        if trace:
            if "/" in trace or generate(trace) is None:
                raise TraceError(
                    f"{trace[:60]!r} is no trace here: drop its file on the page, or take "
                    "cellular:SEED, poisson:MBPS:SEED or constant:MBPS"
                )
            question = Question.read(texts)
        return question

    # What is asked

    def about(self, query: Mapping[str, str]) -> Any:
        """Return what the page's controls show."""
        sliders = [
            {"name": each.name, "default": asdict(Question())[each.name], **each.metadata}
            for each in fields(Question)
        ]
        keys = [key for key, run in list(self.runs.runs.items()) if (run.path / _POLICY).exists()]
        return {
            "version": __version__,
            "sliders": sliders,
            "policies": [*shipped_policies()],
            "runs": [f"run:{key}" for key in keys],
            "schemes": [{"name": name, "shown": shown(name)} for name in self._schemes()],
            "axes": AXES,
            "measures": MEASURES,
            "most": MOST_SENDERS,
            "traces": {key: name for key, (name, _) in list(self._traces.items())},
        }

    def list_runs(self, query: Mapping[str, str]) -> Any:
        """Return all runs, the newest first."""
        with self.runs.lock:
            found = [run.summary() for run in self.runs.runs.values()]
        return sorted(found, key=lambda run: run["date"], reverse=True)

    def run(self, query: Mapping[str, str]) -> Any:
        """Return one run."""
        with self.runs.lock:
            return self.runs[query.get("key", "")].detail()

    def curves(self, query: Mapping[str, str]) -> Any:
        """Return a metric of some runs."""
        keys = query.get("keys", "").split("\n")[:12]
        of = query.get("metric", "")
        with self.runs.lock:
            runs = [self.runs[key] for key in keys if key]
            return [{"key": run.key, **run.curve(of or run.score_key())} for run in runs]

    def differences(self, query: Mapping[str, str]) -> Any:
        """Return in which settings some runs differ."""
        keys = query.get("keys", "").split("\n")[:12]
        with self.runs.lock:
            return {"keys": keys, "rows": self.runs.differences(keys)}

    def play(self, query: Mapping[str, str]) -> Any:
        """Return what senders do on a link."""
        texts = dict(query)
        names = [name for name in texts.pop("senders", "").split("\n") if name]
        if not 1 <= len(names) <= MOST_SENDERS:
            raise ConfigError(f"{len(names)} senders; expected 1 to {MOST_SENDERS}")
        question = self._question(texts)
        names = list(dict.fromkeys(names))
        found = [self._answer(one, question) for one in distinct(map(self.sender, names))]
        words = [
            str(self.runs[name[4:]].path) if name.startswith("run:") else name for name in names
        ]
        return page_of(question, found, words)

    def map(self, query: Mapping[str, str]) -> Any:
        """Return a map of two senders over two settings."""
        texts = dict(query)
        x, y, of = texts.pop("x", "rate"), texts.pop("y", "rtt"), texts.pop("measure", "power")
        names = texts.pop("own", "one"), texts.pop("other", "cubic")
        return self._map(self._question(texts), x, y, of, *distinct(map(self.sender, names)))

    def policies(self, query: Mapping[str, str]) -> Any:
        """Return the gallery."""
        paths = {key: run.path / _POLICY for key, run in list(self.runs.runs.items())}
        here = [(key, path) for key, path in paths.items() if path.exists()]
        return self._gallery(tuple((key, path, path.stat().st_mtime_ns) for key, path in here))

    async def upload(self, request: Request) -> Response:
        """Take a trace: a file of times in ms, of `MOST_UPLOAD` bytes at most."""
        name = Path(request.query_params.get("name", "") or "trace").name[:80]
        data = bytearray()
        try:
            async for piece in request.stream():
                data += piece
                if len(data) > MOST_UPLOAD:
                    raise TraceError(
                        f"{name} has more than {MOST_UPLOAD / 1e6:.0f} MB: cut out a part"
                    )
            name = name if name.isprintable() else "trace"
            trace = await asyncio.to_thread(parse_trace, bytes(data), name)
        except ClientDisconnect:
            return Response(status_code=400)
        except DistrlccError as error:
            return JSONResponse({"error": str(error)}, 400)
        # Known by its contents: what was shared before means the same.
        key = f"dropped:{hashlib.sha256(data).hexdigest()[:16]}"
        path = self._folder / key.partition(":")[2]
        try:
            path.write_bytes(data)
        except OSError as error:
            return JSONResponse({"error": f"{path}: {error.strerror}"}, 400)
        self._traces[key] = (name, path)
        while len(self._traces) > _MOST_TRACES:
            self._traces.popitem(last=False)[1][1].unlink(missing_ok=True)
            kept_trace.cache_clear()
        return JSONResponse({"key": key, "name": name, "mbps": trace.mean_mbps})

    async def watch(self) -> None:
        """Read what runs write, until cancelled."""
        while True:
            for key in await asyncio.to_thread(self.runs.refresh):
                self._news += 1
                self._changed[key] = self._news
            await asyncio.sleep(_TICK_S)

    async def events(self, request: Request) -> Response:
        """Tell a page which runs have something new, as server-sent events."""

        async def told() -> AsyncIterator[str]:
            seen, beats = self._news, 0
            yield "retry: 1000\n\n"
            while not (self.ending() or await request.is_disconnected()):
                changed = [key for key, at in self._changed.items() if at > seen]
                seen, beats = self._news, beats + 1
                if changed:
                    yield f"event: runs\ndata: {json.dumps(changed)}\n\n"
                elif beats % 20 == 0:
                    yield ": still here\n\n"
                await asyncio.sleep(_TICK_S)

        return StreamingResponse(told(), media_type="text/event-stream")


_POLICY = "policy.safetensors"


def _reads(
    function: Callable[[Mapping[str, str]], Any],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return an endpoint: what a function says of an address, or the line of its error."""
    turn = asyncio.Semaphore(1)  # long answers must not take all threads that others need

    async def endpoint(request: Request) -> Response:
        def run() -> Response:
            try:
                return JSONResponse(function(request.query_params))
            except DistrlccError as error:
                return JSONResponse({"error": str(error)}, 400)
            except OSError as error:
                return JSONResponse({"error": error.strerror or "it cannot be read"}, 400)

        try:
            async with turn:
                return await asyncio.to_thread(run)
        except asyncio.CancelledError:  # the server has waited for long enough
            return JSONResponse({"error": "the board ends"}, 503)

    return endpoint


def application(board: Board, host: str, port: int, token: str = "") -> ASGIApp:
    """Return the page's application; for the rest see `Guard`."""

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in FILES:
            return JSONResponse({"error": "no such page"}, 404)
        return Response(_STATIC.joinpath(name).read_bytes(), media_type=FILES[name])

    routes = [Route("/", file), Route("/static/{name}", file), Route("/api/events", board.events)]
    reads = [board.about, board.run, board.curves, board.differences, board.play, board.map]
    routes += [Route(f"/api/{each.__name__}", _reads(each)) for each in (*reads, board.policies)]
    routes += [Route("/api/runs", _reads(board.list_runs))]
    routes += [Route("/api/trace", board.upload, methods=["POST"])]
    return Guard(Starlette(routes=routes), host, port, token)


def serve(
    board: Board, sock: socket.socket, host: str, token: str, *, ready: Callable[[], None]
) -> int:
    """Serve until a signal, and return it; the socket listens already."""
    app = application(board, host, sock.getsockname()[1], token)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
        server_header=False,
        h11_max_incomplete_event_size=16_384,
        limit_concurrency=64,
    )
    server = uvicorn.Server(config)
    board.ending = lambda: server.should_exit

    def warm() -> None:  # what is compiled is loaded before the first slider moves
        with suppress(DistrlccError):
            for name in ("cubic", "one"):
                board.play({"senders": name})

    # uvicorn sends itself once more what it heard: without a handler that would kill this process.
    stopper = Stopper()

    async def end() -> None:
        while not stopper.signal:  # SIGHUP, which uvicorn does not hear
            await asyncio.sleep(_TICK_S)

    async def run() -> None:
        tasks = [asyncio.create_task(each) for each in (board.watch(), end())]
        for task in tasks:
            task.add_done_callback(lambda _: setattr(server, "should_exit", True))
        threading.Thread(target=warm, name="warm", daemon=True).start()
        ready()
        try:
            await server.serve(sockets=[sock])
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)  # raises what one of them died of

    with stopper:
        asyncio.run(run())
    return stopper.signal
