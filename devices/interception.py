"""A plugin's own execution cut in two where it meets its provider: sending circuits, and reading results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Sent(BaseException):
    """Carries what was sent out of the plugin's execution."""

    def __init__(self, sent: Any) -> None:
        self.sent = sent


def sent_by(execute: Callable[[], Any], owner: Any, method: str, send: Callable[..., Any]) -> Any:
    """Return what `send` gives where the execution first calls the owner's method, and stop the execution there.

    Args:
        execute: prepares circuits and calls the method.
        owner: has the method.
        method: its name.
        send: takes the method's arguments.

    Raises:
        RuntimeError: if the execution never calls the method.
    """

    def send_and_stop(*args: Any, **kwargs: Any) -> None:
        raise _Sent(send(*args, **kwargs))

    with _replaced(owner, method, send_and_stop):
        try:
            execute()
        except _Sent as stop:
            return stop.sent
    raise RuntimeError(f"The plugin ran circuits without {method}: take the version of it that pyproject.toml names.")


def read_by(execute: Callable[[], Any], owner: Any, method: str, answer: Callable[..., Any]) -> Any:
    """Return what the execution gives where the owner's method is `answer`, which has what was sent before."""
    with _replaced(owner, method, answer):
        return execute()


@contextmanager
def _replaced(owner: Any, method: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Put the replacement before the method of the owner's class."""
    setattr(owner, method, replacement)
    try:
        yield
    finally:
        delattr(owner, method)
