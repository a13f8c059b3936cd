"""The error that a framework turns into a 500. Flask and Django send a signal. Other frameworks answer while Python
still handles the error, so `sys.exc_info()` has it.

No framework is imported here: listen() finds those that the application has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from timerd_client.scope import Scope, current_scope

SIGNALS: Final = (("flask.signals", "got_request_exception"), ("django.core.signals", "got_request_exception"))


def listen() -> None:
    """Let Flask and Django note, in the request's scope, an error that leaves a view. A second call changes nothing."""
    for module, name in SIGNALS:
        signal = getattr(sys.modules.get(module), name, None)
        if signal is not None:
            signal.connect(_note, weak=False)


def _note(sender: object = None, exception: BaseException | None = None, **more: Any) -> None:
    scope = current_scope()
    if scope is not None:
        scope.failure = exception or sys.exc_info()[1]


def causes_of_500(request: Scope) -> Iterator[BaseException]:
    """The error that has left the view, and its causes (`raise ... from error`).

    An error that the view has handled is none of them. If the framework does not show its error, the last error of
    timerd counts.
    """
    error = request.failure or sys.exc_info()[1] or request.trouble
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
