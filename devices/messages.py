"""Sentences that errors have in common."""

import difflib
from collections.abc import Iterable


def unknown(what: str, given: object, allowed: Iterable[str]) -> str:
    """Return the sentence that there is no `what` of the given name, what there is, and which name is close.

    Args:
        what: the kind of thing, in the singular.
        given: the name that was given.
        allowed: the names that there are.
    """
    names = sorted(allowed)
    close = difflib.get_close_matches(str(given), names, n=1)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    return f"There is no {what} {given!r}{guess}: take one of {', '.join(names)}."


def one_line(error: BaseException) -> str:
    """Return what the error says, on one line and without its full stop.

    Args:
        error: any exception.
    """
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
