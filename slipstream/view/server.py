"""The web viewer's server: pages and JSON about runs, for this machine only.

A web page from elsewhere that is open in the same browser can send requests here too. So: requests must name this
machine as their host, nothing may be embedded or read by other origins, nothing but GET and HEAD is answered, runs have
names that are no paths, and sizes, times and numbers of everything a client can hold on to are bounded.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from slipstream.draw.page import STATIC as DRAW_STATIC
from slipstream.errors import RunFolderError, ScenarioError, SlipstreamError
from slipstream.view.answers import ANSWERS, Query
from slipstream.view.catalogue import Catalogue
from slipstream.worlds.world import tools_of, worlds

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn import Server

HOST = "127.0.0.1"
STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
ADDRESS_BYTES, REQUEST_BYTES = 8 * 1024, 16 * 1024  # path and query; request line and headers together
REQUEST_S, ANSWER_S, IDLE_S = 10.0, 60.0, 5.0  # to send a request, to take its answer, between two
CONNECTIONS = 32
GZIP_BYTES = 4096
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class ViewerError(SlipstreamError):
    """The viewer cannot be served."""


# --- the application ---


def make_app(catalogue: Catalogue) -> Starlette:
    """The application over a catalogue of runs."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    shown = [path for folder in (STATIC, DRAW_STATIC) for path in folder.iterdir() if path.suffix in TYPES]
    files = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in shown}

    def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        return _sent(request, *files[name]) if name in files else _missing("There is no such file.")

    def scene(request: Request) -> Response:
        kind = request.path_params["kind"]
        path = tools_of(kind).drawings.scene if kind in worlds() else None
        text = b"" if path is None else path.read_bytes()  # empty: the player shows numbers
        return _sent(request, text, TYPES[".js"])

    def answering(answer: Callable[[Catalogue, Query], Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                found = answer(catalogue, Query(request.path_params, request.query_params.getlist))
            except KeyError:
                return _missing("There is no such run.")
            except (RunFolderError, ScenarioError, ValueError, OSError) as error:
                return PlainTextResponse(str(error)[:1000], 400, HEADERS)
            if found is None:
                return Response(status_code=204, headers=HEADERS)
            text = found if isinstance(found, bytes) else msgspec.json.encode(found)
            return _sent(request, text, "application/json")

        return respond

    routes = [
        Route("/", file),
        Route("/static/{name}", file),
        Route("/scenes/{kind}.js", scene),
        *[Route(path, answering(answer)) for path, answer in ANSWERS.items()],
    ]
    refused = {404: lambda _, __: _missing("There is nothing here."), 405: _only_get}
    app = Starlette(routes=routes, middleware=[Middleware(Guard)], exception_handlers=cast(Any, refused))
    app.router.redirect_slashes = False
    return app


class Guard:
    """Refuses requests from other sites: by another host name for this machine, or from their pages."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests of our own page, and addresses that were typed."""
        from starlette.datastructures import Headers
        from starlette.responses import PlainTextResponse

        headers = Headers(scope=scope)
        answer: ASGIApp = self.app
        if headers.get("host", "").partition(":")[0] not in (HOST, "localhost"):
            answer = PlainTextResponse("This viewer answers only at 127.0.0.1.", 421, HEADERS)
        elif headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            answer = PlainTextResponse("Requests from other sites are refused.", 403, HEADERS)
        elif len(scope["raw_path"]) + len(scope["query_string"]) > ADDRESS_BYTES:
            answer = PlainTextResponse("The address is too long.", 414, HEADERS)
        await answer(scope, receive, send)


def _sent(request: Request, body: bytes, kind: str) -> Response:
    from starlette.responses import Response

    headers = dict(HEADERS)
    if len(body) > GZIP_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, 1)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(body, media_type=kind, headers=headers)


def _missing(text: str) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, 404, HEADERS)


def _only_get(request: Request, error: Exception) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse("Only GET and HEAD are allowed.", 405, HEADERS | {"Allow": "GET, HEAD"})


# --- serving ---


def make_server(catalogue: Catalogue) -> Server:
    """A server that drops slow clients, and connections beyond CONNECTIONS."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        """Closes a connection that does not send its request or read its answer in time."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > CONNECTIONS:
                transport.abort()
                return
            self._since, self._was = self.loop.time(), self._doing()
            self._look()

        def _doing(self) -> tuple[Literal["asks", "answered"], object]:
            unread = self.transport.get_write_buffer_size() > 0
            answering = unread or (self.cycle is not None and not self.cycle.response_complete)
            return ("answered" if answering else "asks"), self.cycle

        def _look(self) -> None:
            """Check every second what the connection does, and for how long."""
            if self.transport.is_closing():
                return
            doing = self._doing()
            if doing != self._was:
                self._since, self._was = self.loop.time(), doing
            if self.loop.time() - self._since > (ANSWER_S if doing[0] == "answered" else REQUEST_S):
                self.transport.abort()
            else:
                self.loop.call_later(1.0, self._look)

    config = uvicorn.Config(
        make_app(catalogue),
        http=Impatient,
        ws="none",
        lifespan="off",
        loop="asyncio",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=REQUEST_BYTES,
        server_header=False,
        proxy_headers=False,
        access_log=False,
        log_level="error",
    )
    return uvicorn.Server(config)


def listen(port: int) -> socket.socket:
    """A socket on the loopback interface: at this port, or at the next free one of the twenty after it."""
    for tried in range(port, min(port + 21, 65536)):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, tried))
            found.listen(128)
        except OSError:
            found.close()
            continue
        return found
    raise ViewerError(
        f"--port {port}: in use, and so are the twenty ports after it; try another, such as --port {port + 1000}"
    )


def serve(catalogue: Catalogue, listening: socket.socket) -> None:
    """Serve until Ctrl+C."""
    # Comparisons take a second to import: do it in the background.
    loading = threading.Timer(3.0, importlib.import_module, ["slipstream.view.compare"])
    loading.daemon = True
    loading.start()
    make_server(catalogue).run(sockets=[listening])
