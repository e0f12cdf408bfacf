"""The trainer's half against a worker that the test plays."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import numpy
import pytest

import polder_client as polder
from polder_client import trainer
from polder_client._safetensors import FormatError, load, save


class FakeWorker:
    """Answers as a worker does; `tasks` are given one by one, then `done`."""

    def __init__(self, folder: Path, tasks: List[Dict[str, Any]]) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        self.asked: List[Dict[str, Any]] = []
        self.sent: List[Dict[str, Any]] = []
        self.refuse: Optional[str] = None
        self.tasks = iter(tasks)
        self.path = folder / "t"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        stream, _ = self.listener.accept()
        for line in stream.makefile("rb"):
            request = json.loads(line)
            self.asked.append(request)
            stream.sendall(json.dumps(self.answer(request)).encode() + b"\n")

    def answer(self, request: Dict[str, Any]) -> Dict[str, Any]:
        op = request["op"]
        if op == "init":
            return {
                "is": "welcome", "site": "hospital-a", "study": "pathology", "job": "1" * 32,
                "total_rounds": 2, "out": str(self.out),
            }  # fmt: skip
        if op == "receive":
            return next(self.tasks, {"is": "done"})
        if op == "send":
            if self.refuse:
                return {"is": "error", "message": self.refuse}
            arrays, types = load(request["path"])
            self.sent.append({**request, "arrays": arrays, "types": types})
        return {"is": "ok"}


def task(round: int, path: Optional[Path]) -> Dict[str, Any]:
    found = {"is": "task", "round": round, "total_rounds": 2, "kind": "train" if path else "init", "params": {}}
    if path:
        found["path"] = str(path)
    return found


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trainer, "_worker", None)
    monkeypatch.delenv("POLDER_SOCKET", raising=False)
    yield


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: List[Dict[str, Any]]) -> FakeWorker:
    worker = FakeWorker(tmp_path, tasks)
    monkeypatch.setenv("POLDER_SOCKET", str(worker.path))
    return worker


def test_a_job_from_its_first_model_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.safetensors"
    save(str(model), {"w": numpy.arange(3, dtype=numpy.float32)})
    worker = play(tmp_path, monkeypatch, [task(0, None), task(1, model), task(2, model)])
    context = polder.init()
    assert (context.site, context.study, context.total_rounds) == ("hospital-a", "pathology", 2)
    rounds = []
    while polder.is_running():
        assert polder.is_running(), "asking twice changes nothing"
        received = polder.receive()
        rounds.append((received.round, received.total_rounds, received.kind))
        params = received.params or {"w": numpy.zeros(3, numpy.float32)}
        # Computed in float64, as numpy likes to; sent as what the federation has.
        trained = {name: value + numpy.float64(0.5) * numpy.ones(3) for name, value in params.items()}
        polder.send(polder.Model(trained, metrics={"loss": 0.25, "bad": float("nan")}, weight=12))
    assert rounds == [(0, 2, "init"), (1, 2, "train"), (2, 2, "train")]
    assert [list(sent["arrays"]["w"]) for sent in worker.sent] == [[0.5] * 3, [0.5, 1.5, 2.5], [0.5, 1.5, 2.5]]
    assert [sent["types"]["w"] for sent in worker.sent] == ["F64", "F32", "F32"]
    assert all(sent["weight"] == 12.0 and sent["metrics"] == {"loss": 0.25} for sent in worker.sent)
    assert not polder.is_running()
    with pytest.raises(polder.TrainerError, match="the job is over"):
        polder.receive()


def test_the_order_of_calls_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.safetensors"
    save(str(model), {"w": numpy.zeros(1)})
    play(tmp_path, monkeypatch, [task(1, model)])
    with pytest.raises(polder.TrainerError, match="receive.. comes first"):
        polder.send({"w": numpy.zeros(1)})
    polder.receive()
    with pytest.raises(polder.TrainerError, match="was not sent back yet"):
        polder.receive()
    with pytest.raises(ValueError, match="weight 0"):
        polder.send({"w": numpy.zeros(1)}, weight=0)


def test_a_refusal_of_the_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.safetensors"
    save(str(model), {"w": numpy.zeros(1)})
    worker = play(tmp_path, monkeypatch, [task(1, model)])
    worker.refuse = 'tensor "w" holds NaN at position 0'
    polder.receive()
    with pytest.raises(polder.TrainerError, match="holds NaN"):
        polder.send({"w": numpy.array([numpy.nan])})


def test_lines_and_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = play(tmp_path, monkeypatch, [])
    polder.log("halfway")
    polder.log({"loss": numpy.float32(0.5)}, step=7)
    assert worker.asked[1:] == [
        {"op": "log", "text": "halfway"},
        {"op": "metrics", "step": 7, "metrics": {"loss": 0.5}},
    ]


def test_outside_of_a_job() -> None:
    with pytest.raises(polder.TrainerError, match="POLDER_SOCKET is not set"):
        polder.init()


def test_every_type_goes_through_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    arrays = {
        name: numpy.array([[0, 1], [1, 0]], dtype=kind)
        for name, kind in [("a", "bool"), ("b", "u1"), ("c", "i2"), ("d", "<u4"), ("e", "i8"), ("f", "f2"), ("g", "f4"), ("h", "f8")]
    }  # fmt: skip
    arrays["scalar"] = numpy.array(3.5)
    arrays["empty"] = numpy.zeros((0, 4), numpy.float32)
    arrays["big endian"] = numpy.array([1.5], ">f4")
    arrays["strided"] = numpy.arange(8, dtype=numpy.int32)[::2]
    save(path, arrays)
    back, _ = load(path)
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert back[name].shape == array.shape and (back[name] == array).all(), name
    with pytest.raises(FormatError, match="tensor 'x' has numpy type complex128"):
        save(path, {"x": numpy.zeros(1, complex)})


def test_bf16_is_rounded_to_nearest_even(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    values = numpy.array([1.0, 1.00390625, 1.01171875, -2.5, numpy.inf, 1e-40], numpy.float32)
    save(path, {"w": values}, {"w": "BF16"})
    back, types = load(path)
    assert types == {"w": "BF16"}
    assert list(back["w"][:5]) == [1.0, 1.0, 1.015625, -2.5, numpy.inf]


def test_large_models_are_mapped_and_may_be_changed(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    save(path, {"w": numpy.ones(1 << 20, numpy.float32)})
    first, _ = load(path)
    first["w"] += 1
    second, _ = load(path)
    assert first["w"][0] == 2 and second["w"][0] == 1
    # A new file under the old name leaves what was received as it is.
    save(path, {"w": numpy.zeros(1 << 20, numpy.float32)})
    assert second["w"][-1] == 1


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 16, (1 << 40).to_bytes(8, "little")])
def test_what_is_not_a_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        load(str(path))


def test_the_reference_reads_what_is_written(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    path = str(tmp_path / "m.safetensors")
    arrays = {"w": numpy.random.default_rng(0).normal(size=(3, 5)).astype("f4"), "n": numpy.array([1], "i8")}
    save(path, arrays)
    back = reference.load_file(path)
    assert all((back[name] == array).all() for name, array in arrays.items())
    reference.save_file(arrays, path)
    ours, _ = load(path)
    assert all((ours[name] == array).all() for name, array in arrays.items())


def test_torch_in_and_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    model = tmp_path / "model.safetensors"
    save(str(model), {"w": numpy.arange(3, dtype="f4"), "h": numpy.ones(2, "f4")}, {"h": "BF16"})
    worker = play(tmp_path, monkeypatch, [task(1, model)])
    polder.init("torch")
    received = polder.receive()
    assert received.params["h"].dtype == torch.bfloat16
    polder.send({name: value.requires_grad_() * 2 for name, value in received.params.items()})
    assert list(worker.sent[0]["arrays"]["w"]) == [0, 2, 4] and worker.sent[0]["types"]["h"] == "BF16"


def test_importing_loads_neither_numpy_nor_what_notebooks_need() -> None:
    code = "import polder_client, sys; print(sorted({'numpy', 'torch', 'subprocess', 'dataclasses'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
