"""Jobs of a provider: circuits that are sent to it together, and what comes back."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from pennylane.tape import QuantumScript


class JobFailed(Exception):  # noqa: N818
    """A job ended without results, so that its circuits have to be sent again."""


class Job(Protocol):
    """Circuits that a provider has accepted."""

    @property
    def job_id(self) -> str:
        """The provider's name for the job."""

    def results(self) -> Sequence[Any]:
        """Wait for the job, and return a result for each of its circuits, in their order, None for one that is lost.

        Raises:
            JobFailed: if the job ended without results. After any other exception the job counts as still running, and
                is asked again.
        """


class Provider(Protocol):
    """Where circuits are sent to."""

    @property
    def circuits_per_job(self) -> int | None:
        """How many circuits a job may hold; None for any number."""

    def start(self, groups: Sequence[Sequence[QuantumScript]]) -> Generator[Job, None, None]:
        """Send each group of circuits as one job, in turn, without waiting for results; a group has shots in common."""
