"""Errors of the parser and of the project in one sentence."""

import re

_PARSERS = ("jsonargparse", "argparse")
_PROJECT = ("hybrid_attention", "devices", "datamodules", "lightning_modules")


def sentence(error: BaseException) -> str:
    """Return what went wrong on one line: the first error of the chain that the parser did not raise itself.

    Where the parser raised them all, the last one says what, and the ones before it where.
    """
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for link in chain:
        if _raised_by(link) not in (None, *_PARSERS):
            return _one_line(link)
    keys = dict.fromkeys(re.findall(r'Parser key "([^"]+)"', str(error)))
    classes = re.findall(r"Problem with given class_path '([^']+)'", str(error))
    place = ".".join(keys) + (f" ({classes[-1]})" if classes else "")
    return f"{place}: {_one_line(chain[-1])}; see --help for what is allowed." if place else _one_line(chain[-1])


def is_of_the_project(error: BaseException) -> bool:
    """Return whether a line of this project raised the error, so that its message says what to do."""
    return _raised_by(error) in _PROJECT


def _raised_by(error: BaseException) -> str | None:
    """Return the top-level package whose line raised an error, or None if it was not raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
