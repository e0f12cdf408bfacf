"""Session against a stand-in for the program: how answers and refusals are understood."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable, List

import pytest

import polder_client

JOB = {
    "version": 1,
    "id": "3f2a0c11d2e3f405162738495a6b7c8d",
    "name": "breast-cancer",
    "study": "pathology",
    "submitter": "lead@org_a.com",
    "phase": "completed",
    "round": 2,
    "total_rounds": 2,
    "metrics": {"accuracy": 0.95},
    "workers": [{"site": "uni", "role": "client", "attempt": 1, "phase": "exited"}],
    "submitted": 1,
    "started": 2,
    "finished": 3,
    "priority": "normal",
}
SITES = {"version": 1, "sites": [{"name": "uni", "org": "org_b", "connected": True, "running": 0, "mode": "process"}]}

Program = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a `polder` of a few lines of Python; `words` is what it was called with."""

    def make(body: str) -> Path:
        path = tmp_path / "polder"
        sites = repr(json.dumps(SITES))
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time\nwords = sys.argv[1:]\n"
            f"with open({str(tmp_path / 'calls')!r}, 'a') as calls: calls.write(json.dumps(words) + '\\n')\n"
            f"if words[1] == 'sites':\n    print({sites}); sys.exit(0)\n" + textwrap.dedent(body)
        )
        path.chmod(0o755)
        return path

    return make


def calls(program: Path) -> List[List[str]]:
    return [json.loads(line) for line in (program.parent / "calls").read_text().splitlines()]


def say(*documents: Any) -> str:
    return "\n".join(f"print({json.dumps(json.dumps(document))}, flush=True)" for document in documents) + "\n"


def test_it_asks_as_the_command_line_would(program: Program) -> None:
    path = program(say(JOB))
    session = polder_client.Session(study="pathology", kit="~/kit", binary=path)
    job = session.job("3f2a")
    assert job.metrics == {"accuracy": 0.95} and job.is_final and job.workers[0].site == "uni"
    kit = os.path.join(os.path.expanduser("~"), "kit")
    assert calls(path) == [
        ["--json", "sites", "--study", "pathology", "--kit", kit],
        ["--json", "show", "--study", "pathology", "--kit", kit, "3f2a"],
    ]


def test_submit_gives_the_job(program: Program) -> None:
    path = program(
        f"if words[1] == 'submit':\n    print(json.dumps({{'version': 1, 'job': {JOB['id']!r}}}))\nelse:\n    "
        + say(JOB)
    )
    job = polder_client.Session(binary=path).submit("job", sites=["uni"])
    assert job.id == JOB["id"]
    assert calls(path)[1] == ["--json", "submit", "job", "--site", "uni"]


def test_wait_reports_events_and_the_last_state(program: Program) -> None:
    event = {"version": 1, "job": JOB["id"], "n": 1, "at": 1, "event": "round", "round": 1}
    path = program(say(event, JOB))
    seen: List[polder_client.Event] = []
    job = polder_client.Session(binary=path).wait("3f2a", on_event=seen.append)
    assert job.phase == "completed" and [event["round"] for event in seen] == [1]


def test_a_job_that_failed_says_where_and_why(program: Program) -> None:
    failure = {"site": "uni", "class": "user_code", "cause": "exit 7", "tail": "KeyError: 'age'\n"}
    path = program(say({**JOB, "phase": "failed", "failure": failure}) + "sys.exit(1)\n")
    session = polder_client.Session(binary=path)
    with pytest.raises(polder_client.JobFailed, match="(?s)uni: user_code: exit 7.*KeyError") as caught:
        session.wait("3f2a")
    assert caught.value.job.failure is not None and caught.value.job.failure.site == "uni"
    assert session.wait("3f2a", check=False).phase == "failed"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unauthenticated", polder_client.NotAuthorised),
        ("forbidden", polder_client.NotAuthorised),
        ("not_found", polder_client.NotFound),
        ("unreachable", polder_client.Unreachable),
        ("invalid", polder_client.PolderError),
    ],
)
def test_refusals_keep_file_place_value_and_rule(program: Program, code: str, kind: type) -> None:
    error = {"code": code, "message": "is not an integer", "file": "meta.json", "at": "min_clients", "found": "x",
             "allowed": "an integer from 1", "hint": None}
    path = program(say({"error": error}) + "sys.exit(1)\n")
    session = polder_client.Session(binary=path)
    with pytest.raises(polder_client.PolderError) as caught:
        session.submit("job")
    assert type(caught.value) is kind
    assert str(caught.value) == "meta.json: min_clients: is not an integer; found x; allowed: an integer from 1"


def test_waiting_may_be_limited_and_leaves_no_process(program: Program) -> None:
    path = program("time.sleep(600)\n")
    session = polder_client.Session(binary=path)
    with pytest.raises(TimeoutError, match="it goes on"):
        session.wait("3f2a", timeout=0.5)


def test_a_program_that_dies_is_an_error_with_its_last_words(program: Program) -> None:
    path = program("sys.stderr.write('thread panicked\\n' * 20000); sys.exit(101)\n")
    session = polder_client.Session(binary=path)
    with pytest.raises(polder_client.PolderError, match="ended with 101: thread panicked"):
        session.jobs()


def test_without_the_program_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("POLDER_BIN", raising=False)
    with pytest.raises(polder_client.PolderError, match="POLDER_BIN"):
        polder_client.Session(study="pathology")
