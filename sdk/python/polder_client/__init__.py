"""Polder for Python: train inside a job, and submit jobs to a federation from a notebook."""

from .session import (
    Event,
    Failure,
    Job,
    JobFailed,
    LogLine,
    NotAuthorised,
    NotFound,
    PolderError,
    Session,
    Site,
    Unreachable,
    Worker,
)

__all__ = [
    "Event",
    "Failure",
    "Job",
    "JobFailed",
    "LogLine",
    "NotAuthorised",
    "NotFound",
    "PolderError",
    "Session",
    "Site",
    "Unreachable",
    "Worker",
]
