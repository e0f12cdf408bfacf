"""Session against a live federation: the one `polder demo --keep` leaves up.

Needs the built programs; POLDER_BIN names `polder`, the others lie beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List

import pytest

import polder_client
from polder_client import JobFailed, NotAuthorised, NotFound, PolderError, Session


@dataclass
class Demo:
    """A federation that is up."""

    dir: Path
    kit: str
    study: str

    @property
    def job(self) -> Path:
        return self.dir / "job"

    def session(self) -> Session:
        return Session(study=self.study, kit=self.kit)


def polder(*words: str) -> List[dict]:
    program = os.environ.get("POLDER_BIN") or "polder"
    run = subprocess.run([program, "--json", *words], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name in ("POLDER_KIT", "POLDER_STUDY"):
            patch.delenv(name, raising=False)
        said = polder("demo", "--keep", "--rounds", "3")
        kept = next(line for line in said if line.get("event") == "kept")
        try:
            yield Demo(Path(kept["dir"]), kept["kit"], kept["study"])
        finally:
            polder("demo", "--stop")


def test_a_job_from_python_is_the_job_from_the_command_line(demo: Demo, tmp_path: Path) -> None:
    session = demo.session()
    job = session.submit(demo.job)
    rounds: List[int] = []

    def seen(event: polder_client.Event) -> None:
        if event["event"] == "round":
            rounds.append(event["round"])

    done = session.wait(job, on_event=seen)
    assert done.phase == "completed" and done.round == 3 and rounds == [1, 2, 3]
    assert 0.0 < done.metrics["accuracy"] <= 1.0
    files = session.download(done, tmp_path / "python")

    said = polder("submit", str(demo.job), "--wait", "--study", demo.study, "--kit", demo.kit)
    other = said[-1]["id"]
    assert other != done.id and said[-1]["phase"] == "completed"
    polder("download", other, "-o", str(tmp_path / "cli"), "--study", demo.study, "--kit", demo.kit)
    assert files["model.safetensors"].read_bytes() == (tmp_path / "cli/model.safetensors").read_bytes()

    again = session.wait(session.clone(done))
    assert again.id not in (done.id, other)
    model = session.download(again, tmp_path / "clone")["model.safetensors"]
    assert model.read_bytes() == files["model.safetensors"].read_bytes()
    assert {done.id, other, again.id} <= {job.id for job in session.jobs()}


def test_logs_say_which_site_wrote_them(demo: Demo) -> None:
    session = demo.session()
    done = session.wait(session.submit(demo.job))
    lines = session.logs(done, role="client")
    assert {line.site for line in lines} == {"hospital-a", "hospital-b", "university"}
    assert any("accuracy" in line.line for line in lines if line.site == "university")
    assert {line.site for line in session.logs(done, site="hospital-a")} == {"hospital-a"}


def test_a_trainer_that_fails_is_named_with_its_last_lines(demo: Demo, tmp_path: Path) -> None:
    job = tmp_path / "failing"
    shutil.copytree(demo.job, job)
    config = job / "app/job.yaml"
    text = json.loads(config.read_text())
    text["trainer"]["command"] = ["/bin/sh", "-c", "echo no such column: age >&2; exit 7"]
    config.write_text(json.dumps(text))
    session = demo.session()
    with pytest.raises(JobFailed) as caught:
        session.wait(session.submit(job))
    failure = caught.value.job.failure
    assert failure is not None and failure.kind == "user_code" and "7" in failure.cause
    assert failure.site in {"hospital-a", "hospital-b", "university"}
    assert "no such column: age" in failure.tail


def test_refusals(demo: Demo, tmp_path: Path) -> None:
    session = demo.session()
    with pytest.raises(NotFound):
        session.job("0" * 32)
    with pytest.raises(PolderError, match="meta"):
        session.submit(tmp_path)
    with pytest.raises((NotAuthorised, NotFound)):
        Session(study="cardiology", kit=demo.kit)
    assert {site.name for site in session.sites() if site.connected} == {"hospital-a", "hospital-b", "university"}


def test_an_aborted_job_is_over(demo: Demo, tmp_path: Path) -> None:
    job = tmp_path / "endless"
    shutil.copytree(demo.job, job)
    config = job / "app/job.yaml"
    text = json.loads(config.read_text())
    text["trainer"]["command"] = ["/bin/sleep", "600"]
    config.write_text(json.dumps(text))
    session = demo.session()
    submitted = session.submit(job)
    session.abort(submitted)
    assert session.wait(submitted, check=False, timeout=60).phase == "aborted"
    session.delete(submitted)
    with pytest.raises(NotFound):
        session.job(submitted)
