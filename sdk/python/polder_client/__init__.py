"""Polder for Python: train inside a job, and submit jobs to a federation from a notebook.

The halves load when they are first used: a trainer starts without what a notebook needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .trainer import Context, Model, TrainerError, init, is_running, log, receive, send

if TYPE_CHECKING:
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
    "Context",
    "Event",
    "Failure",
    "Job",
    "JobFailed",
    "LogLine",
    "Model",
    "NotAuthorised",
    "NotFound",
    "PolderError",
    "Session",
    "Site",
    "TrainerError",
    "Unreachable",
    "Worker",
    "init",
    "is_running",
    "log",
    "receive",
    "send",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
