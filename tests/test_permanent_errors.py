"""Which errors of providers a retry does not help against."""

import pytest

from devices.jobs import JobFailed
from devices.permanent_errors import is_permanent


def with_status(kind, **attributes):
    error = kind("x")
    vars(error).update(attributes)
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("?"), False),
        (ConnectionError("?"), False),
        (TimeoutError("?"), False),
        (with_status(RuntimeError, status_code=401), True),
        (with_status(RuntimeError, status_code=503), False),
        (with_status(RuntimeError, status_code=-1), False),
        (with_status(RuntimeError, response={"ResponseMetadata": {"HTTPStatusCode": 400}}), True),
        (with_status(RuntimeError, response={"ResponseMetadata": {"HTTPStatusCode": 429}}), False),
        (with_status(OSError, response=with_status(RuntimeError, status_code=404)), True),
        (caused(Exception("text"), with_status(OSError, response=with_status(RuntimeError, status_code=403))), True),
        (caused(ConnectionError("?"), ValueError("?")), False),
        (caused(JobFailed("?"), ValueError("?")), True),
        (type("JSONDecodeError", (OSError, ValueError), {})("?"), False),
    ],
)
def test_which_errors_are_permanent(error, expected):
    assert is_permanent(error) is expected
