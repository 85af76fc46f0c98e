"""Which errors of a provider would come again in the same way, so that waiting does not help."""

from collections.abc import Iterator

from devices.credentials import credentials_hint

_MISTAKES = (TypeError, ValueError, AttributeError, LookupError, NotImplementedError)
_PACKAGES = ("pennylane", "qiskit")
_REFUSALS = (400, 401, 403, 404, 405, 410, 413, 422)


def is_permanent(error: BaseException) -> bool:
    """Return whether an error is a mistake in what was asked, or a refusal of it, rather than a passing trouble.

    Missing credentials, HTTP statuses such as 401, and errors of PennyLane and Qiskit are; other HTTP statuses and
    errors of a connection are not. Where the error itself does not tell, its cause does; an unknown error is passing.

    Args:
        error: what a provider's package raised.
    """
    for each in _with_causes(error):
        status = _http_status(each)
        if status is not None:
            return status in _REFUSALS
        package = type(each).__module__.partition(".")[0]
        if isinstance(each, PermissionError) or package in _PACKAGES or credentials_hint(each):
            return True
        if isinstance(each, OSError):
            return False
        if isinstance(each, _MISTAKES):
            return True
    return False


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status that the error holds, in the manner of requests, botocore or qiskit-ibm-runtime."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) and status > 0 else None
