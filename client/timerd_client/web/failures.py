"""The error that a framework turns into a 500. Flask and Django send a signal. Other frameworks answer while Python
still handles the error, so `sys.exc_info()` has it.

No framework is imported here: listen() finds those that the application has imported.
"""

from __future__ import annotations

import sys
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


def error_of_500(request: Scope) -> BaseException | None:
    """The error that has left the view. An error that the view has handled does not count.

    If the framework shows no error, this is the last error of timerd that a caller got.
    """
    return request.failure or sys.exc_info()[1] or request.trouble


def cause_among(
    kinds: tuple[type[BaseException], ...], error: BaseException | None, seen: frozenset[int] = frozenset()
) -> BaseException | None:
    """The error, or else its nearest cause (`raise ... from error`), that is of these kinds. None if there is none.

    A group is of these kinds if all its errors are. Its first error is returned if that is RequestEnded, or if no error
    is in doubt. Otherwise the first error in doubt is returned: a repeat is safe only if no call is in doubt. `seen`
    are errors that were looked at, because an error may be its own cause.
    """
    while error is not None and id(error) not in seen:
        seen |= {id(error)}
        if isinstance(error, kinds):
            return error
        if isinstance(error, BaseExceptionGroup):
            found = [cause_among(kinds, one, seen) for one in error.exceptions]
            if None not in found:
                # max() gives the first of equal ones. RequestEnded has no `in_doubt`.
                is_ended = not hasattr(found[0], "in_doubt")
                return found[0] if is_ended else max(found, key=lambda one: getattr(one, "in_doubt", False))
        error = error.__cause__
    return None
