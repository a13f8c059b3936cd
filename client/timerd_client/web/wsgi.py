"""Middleware for WSGI: the outermost layer, around the application that the server calls.

    application = WSGI(application)

The headers go to the server with the first bytes of the body. If the request ends before that, while its view waits,
the answer is 503, even if the body is made step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from timerd_client.errors import RequestEnded
from timerd_client.scope import Scope

from .answers import UNSERVED, answer_to, instead_of_500
from .disconnects import disconnects
from .failures import listen
from .requests import begin, finish

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
Application: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

SOCKETS = ("gunicorn.socket", "werkzeug.socket")  # the keys under which servers give the application its socket


class WSGI:
    """The application, wrapped: each request has a scope."""

    def __init__(self, application: Application) -> None:
        listen()
        self.application = application

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        exchange = _Exchange(environ, start_response)
        try:
            with exchange.request.entered():
                body = self.application(environ, exchange.start)
        except UNSERVED as error:
            exchange.end()
            return exchange.answer(error)
        except BaseException:
            exchange.end()
            raise
        if isinstance(body, list | tuple) or type(body) is environ.get("wsgi.file_wrapper"):  # no view runs any more
            exchange.end()
            exchange.send_headers()
            return body
        return _Body(exchange, body)


class _Exchange:
    """A request, and the headers of its answer."""

    def __init__(self, environ: Environ, start_response: StartResponse) -> None:
        self.request: Scope = begin()
        self._start_response = start_response
        self._headers: tuple[Any, ...] | None = None  # the arguments of start_response
        self._write: Callable[[bytes], object] | None = None
        self._descriptor = -1
        for name in SOCKETS:
            if (socket := environ.get(name)) is not None:
                self._descriptor = socket.fileno()
                disconnects().watch(self._descriptor, self.request)
                break

    @property
    def is_sent(self) -> bool:
        """Whether the server has the headers."""
        return self._write is not None

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        """The `start_response` that the application gets."""
        if self.is_sent:
            return self._start_response(status, headers, exc_info)  # type: ignore[no-any-return]  # which raises
        self._headers = (status, headers) if exc_info is None else (status, headers, exc_info)
        return self._write_now

    def _write_now(self, data: bytes) -> object:
        self.send_headers()
        assert self._write is not None
        return self._write(data)

    def send_headers(self) -> None:
        """Give the headers to the server, unless it has them."""
        if self.is_sent or self._headers is None:
            return
        status, headers, *more = self._headers
        instead = instead_of_500(self.request) if status.startswith("500") else None
        if instead is not None:
            own = instead.headers()
            names = {name.lower() for name, _ in own}
            status, headers = instead.line, [*(one for one in headers if one[0].lower() not in names), *own]
        self._write = self._start_response(status, headers, *more)

    def answer(self, error: BaseException) -> list[bytes]:
        """Answer in place of the view, which has raised `error`. Raises `error` if the view's own answer has begun."""
        if self.is_sent:
            raise error
        answer = answer_to(error, self.request)
        self._headers = (answer.line, answer.all_headers())
        self.send_headers()
        return [answer.body]

    def end(self) -> None:
        """End the request. A second call changes nothing."""
        if self._descriptor >= 0:
            disconnects().unwatch(self._descriptor, self.request)
            self._descriptor = -1
        finish(self.request)


class _Body:
    """A body that is made while it is sent. Waits of the body's iterator belong to the scope of the request."""

    def __init__(self, exchange: _Exchange, body: Iterable[bytes]) -> None:
        self._exchange = exchange
        self._body = body
        self._chunks: Iterator[bytes] = iter(body)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        exchange = self._exchange
        try:
            with exchange.request.entered():
                while not (chunk := next(self._chunks)):  # an empty chunk needs no headers yet
                    pass
        except StopIteration:
            exchange.send_headers()
            raise
        except UNSERVED as error:
            self._chunks = iter(())
            if exchange.is_sent and isinstance(error, RequestEnded):
                raise StopIteration from None  # a stream that has begun ends here
            return exchange.answer(error)[0]
        exchange.send_headers()
        return chunk

    def close(self) -> None:
        """Called by the server at the end."""
        self._exchange.end()
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
