"""A study, from a notebook: submit jobs, wait for them, read logs, download models.

A :class:`Session` runs the ``polder`` program with ``--json``. Checking, packing, signing and verifying are
therefore done by one implementation, whoever asks, and this module needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

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

_FINAL = frozenset({"completed", "failed", "aborted", "rejected"})
Event = Dict[str, Any]
"""What happened to a job: ``n``, ``at`` (milliseconds since 1970), ``event`` (``phase``, ``round``, ``worker``)."""


class PolderError(Exception):
    """A refusal: what is wrong, where, what stands there and what is allowed."""

    def __init__(self, message: str, *, code: str = "internal", **details: Optional[str]) -> None:
        self.code = code
        self.message = message
        self.file = details.get("file")
        self.at = details.get("at")
        self.found = details.get("found")
        self.allowed = details.get("allowed")
        self.hint = details.get("hint")
        text = ": ".join(part for part in (self.file, self.at, message) if part)
        if self.found:
            text += f"; found {self.found}"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.hint:
            text += f" ({self.hint})"
        super().__init__(text)


class NotAuthorised(PolderError):
    """No session, no right, or a certificate that is not accepted."""


class NotFound(PolderError):
    """It does not exist, or not for this study."""


class Unreachable(PolderError):
    """The server does not answer or is too busy; trying again later may help."""


class JobFailed(PolderError):
    """A job was waited for and did not complete. :attr:`job` is its last state."""

    def __init__(self, job: "Job") -> None:
        why = job.failure or job.reason or "no reason was given"
        super().__init__(f"job {job.id[:12]} {job.phase}: {why}", code="job_failed")
        self.job = job


_KINDS = {
    "unauthenticated": NotAuthorised,
    "forbidden": NotAuthorised,
    "not_found": NotFound,
    "unreachable": Unreachable,
    "busy": Unreachable,
}


def _error(document: Mapping[str, Any]) -> PolderError:
    code = str(document.get("code", "internal"))
    details = {key: document.get(key) for key in ("file", "at", "found", "allowed", "hint")}
    return _KINDS.get(code, PolderError)(str(document.get("message", "")), code=code, **details)


@dataclass(frozen=True)
class Failure:
    """Why a job failed."""

    site: str
    """Where; ``server`` for the server's worker."""
    kind: str
    """One word: ``user_code``, ``config``, ``policy``, ``timeout``, ..."""
    cause: str
    """The native cause, such as ``exit 7``."""
    tail: str
    """The last lines of the log, as far as the site lets them out."""

    def __str__(self) -> str:
        text = f"site {self.site}: {self.kind}: {self.cause}"
        return f"{text}\n{self.tail.rstrip()}" if self.tail.strip() else text


@dataclass(frozen=True)
class Worker:
    """One worker of a job."""

    site: str
    role: str
    attempt: int
    phase: str
    reason: Optional[str] = None


@dataclass(frozen=True)
class Job:
    """A job as it was when it was asked for."""

    id: str
    name: str
    study: str
    submitter: str
    phase: str
    round: int
    total_rounds: int
    priority: str
    submitted: int
    """Milliseconds since 1970."""
    started: Optional[int] = None
    finished: Optional[int] = None
    reason: Optional[str] = None
    failure: Optional[Failure] = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The latest aggregated metrics."""
    workers: Sequence[Worker] = ()

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.phase in _FINAL

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> "Job":
        failure = data.get("failure")
        return cls(
            id=data["id"],
            name=data["name"],
            study=data["study"],
            submitter=data["submitter"],
            phase=data["phase"],
            round=data["round"],
            total_rounds=data["total_rounds"],
            priority=data["priority"],
            submitted=data["submitted"],
            started=data.get("started"),
            finished=data.get("finished"),
            reason=data.get("reason"),
            failure=failure
            and Failure(failure["site"], failure["class"], failure["cause"], failure.get("tail", "")),
            metrics=dict(data.get("metrics", {})),
            workers=tuple(
                Worker(w["site"], w["role"], w["attempt"], w["phase"], w.get("reason"))
                for w in data.get("workers", ())
            ),
        )


@dataclass(frozen=True)
class Site:
    """One site of the study."""

    name: str
    org: str
    connected: bool
    mode: Optional[str]
    """What it launches with: ``process``, ``docker``, ``k8s``, ``slurm``."""
    isolation: Optional[str]
    running: int
    """Workers it runs now."""
    offer: Optional[Mapping[str, Any]]
    """Free and all: ``gpus``, ``cpus``, ``memory_mib``."""


@dataclass(frozen=True)
class LogLine:
    """A line of a worker's log."""

    site: str
    role: str
    line: str


JobLike = Union[Job, str]


def _id(job: JobLike) -> str:
    return job.id if isinstance(job, Job) else job


class Session:
    """Works in one study, as the user a kit belongs to.

    :param study: the study; without one, the study of the last ``polder login``.
    :param kit: the folder the operator of the federation gave you; without one, ``POLDER_KIT`` or the kit of the
        last ``polder login``.
    :param binary: the ``polder`` program; without one, ``POLDER_BIN``, else the one on ``PATH``.
    :raises NotAuthorised: when the server does not accept the kit or the user is no member of the study.
    :raises Unreachable: when the server does not answer.
    """

    def __init__(
        self,
        study: Optional[str] = None,
        kit: Union[str, "os.PathLike[str]", None] = None,
        *,
        binary: Union[str, "os.PathLike[str]", None] = None,
    ) -> None:
        found = os.fspath(binary) if binary else os.environ.get("POLDER_BIN") or shutil.which("polder")
        if not found:
            raise PolderError("the program `polder` is not on PATH", code="usage", hint="set POLDER_BIN")
        self._binary = found
        self._connect: List[str] = []
        if study is not None:
            self._connect += ["--study", study]
        if kit is not None:
            self._connect += ["--kit", os.path.abspath(os.path.expanduser(os.fspath(kit)))]
        # Asking for the sites proves at once that kit, server and membership are well.
        self.sites()

    def submit(self, job: Union[str, "os.PathLike[str]"], *, sites: Sequence[str] = ()) -> Job:
        """Checks, packs, signs and submits a job's folder.

        :param sites: send it to these only, instead of what its ``deploy_map`` says.
        :raises PolderError: names file, place, value and what is allowed when the job is refused.
        """
        words = [word for site in sites for word in ("--site", site)]
        answer = self._one("submit", os.path.expanduser(os.fspath(job)), *words)
        return self.job(answer["job"])

    def jobs(self, *, active: bool = False) -> List[Job]:
        """The study's jobs, newest first.

        :param active: only those that have not ended.
        """
        answer = self._one("jobs", *(["--active"] if active else []))
        return [Job._read(job) for job in answer["jobs"]]

    def job(self, job: JobLike) -> Job:
        """One job as it is now, by its id or the first digits of it."""
        return Job._read(self._one("show", _id(job)))

    def watch(self, job: JobLike) -> Iterator[Event]:
        """What happened to a job, from its beginning, and what happens, until it ends.

        Leaving the loop early ends the watching, not the job.
        """
        for document in self._stream("watch", _id(job)):
            if "event" in document:
                yield document

    def wait(
        self,
        job: JobLike,
        *,
        timeout: Optional[float] = None,
        on_event: Optional[Callable[[Event], object]] = None,
        check: bool = True,
    ) -> Job:
        """Waits until a job ends and returns its last state. The server may restart meanwhile.

        :param timeout: seconds after which :class:`TimeoutError` is raised; the job goes on.
        :param on_event: called with each event, such as every round's metrics.
        :param check: raise :class:`JobFailed` when it did not complete.
        """
        last: Optional[Job] = None
        for document in self._stream("watch", _id(job), timeout=timeout):
            if "event" not in document:
                last = Job._read(document)
            elif on_event is not None:
                on_event(document)
        if last is None:
            raise PolderError("the watching ended without a result")
        if check and last.phase != "completed":
            raise JobFailed(last)
        return last

    def logs(self, job: JobLike, *, site: Optional[str] = None, role: Optional[str] = None) -> List[LogLine]:
        """The logs of a job's workers so far, as far as the sites let them out."""
        return list(self._lines(job, site, role, follow=False))

    def follow_logs(
        self, job: JobLike, *, site: Optional[str] = None, role: Optional[str] = None
    ) -> Iterator[LogLine]:
        """The same as they grow, until the job ends."""
        return self._lines(job, site, role, follow=True)

    def download(self, job: JobLike, out: Union[str, "os.PathLike[str]", None] = None) -> Dict[str, Path]:
        """Fetches what a job left, verified: name to path, such as ``model.safetensors``.

        An interrupted download goes on where it stopped.

        :param out: the folder; without one, a new one named after the job.
        """
        words = [] if out is None else ["--out", os.path.expanduser(os.fspath(out))]
        answer = self._one("download", _id(job), *words)
        return {name: Path(file["path"]) for name, file in answer["files"].items()}

    def clone(self, job: JobLike) -> Job:
        """Submits a job again, as it is."""
        return self.job(self._one("clone", _id(job))["job"])

    def abort(self, job: JobLike) -> Job:
        """Ends a job."""
        return Job._read(self._one("abort", _id(job)))

    def delete(self, job: JobLike) -> None:
        """Removes a finished job and what it left."""
        self._one("delete", _id(job))

    def sites(self) -> List[Site]:
        """The sites of the study."""
        return [
            Site(
                name=site["name"],
                org=site["org"],
                connected=site["connected"],
                mode=site.get("mode"),
                isolation=site.get("isolation"),
                running=site["running"],
                offer=site.get("offer"),
            )
            for site in self._one("sites")["sites"]
        ]

    def _lines(
        self, job: JobLike, site: Optional[str], role: Optional[str], *, follow: bool
    ) -> Iterator[LogLine]:
        words = ["--follow"] if follow else []
        words += ["--site", site] if site else []
        words += ["--role", role] if role else []
        for line in self._stream("logs", _id(job), *words):
            yield LogLine(line["site"], line["role"], line["line"])

    def _command(self, words: Sequence[str]) -> List[str]:
        return [self._binary, "--json", words[0], *self._connect, *words[1:]]

    def _one(self, *words: str) -> Dict[str, Any]:
        documents = list(self._stream(*words))
        if not documents:
            raise PolderError(f"`polder {words[0]}` printed nothing")
        return documents[-1]

    def _stream(self, *words: str, timeout: Optional[float] = None) -> Iterator[Dict[str, Any]]:
        """Runs the program and gives each document it prints; its error becomes an exception."""
        process = subprocess.Popen(
            self._command(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert process.stdout is not None and process.stderr is not None
        # Read beside, so that a program that says much there never waits for us.
        said: List[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
        reader.start()
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.terminate()

        timer = threading.Timer(timeout, expire) if timeout is not None else None
        if timer:
            timer.start()
        failed: Optional[Dict[str, Any]] = None
        count = 0
        try:
            for line in process.stdout:
                document = json.loads(line)
                if "error" in document and "version" not in document:
                    failed = document["error"]
                    continue
                count += 1
                yield document
            code = process.wait()
        finally:
            if timer:
                timer.cancel()
            if process.poll() is None:
                process.terminate()
                process.wait()
            reader.join()
            process.stdout.close()
            process.stderr.close()
        if expired.is_set():
            raise TimeoutError(f"job {words[1] if len(words) > 1 else ''} has not ended after {timeout} s; it goes on")
        if failed is not None:
            raise _error(failed)
        if code != 0 and count == 0:
            raise PolderError(f"`polder {words[0]}` ended with {code}: {''.join(said).strip()}")
