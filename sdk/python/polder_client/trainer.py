"""Inside a job: take a model, train, hand it back.

::

    import polder_client as polder

    polder.init()
    while polder.is_running():
        model = polder.receive()
        params, accuracy = train(model.params or start())
        polder.send(polder.Model(params, metrics={"accuracy": accuracy}, weight=len(rows)))

The worker that started this program is asked over the socket named by ``POLDER_SOCKET``, a line of JSON at a time.
Nothing is imported before it is needed, so that a program starts as fast as its own imports allow.
"""

from __future__ import annotations

import _thread
import json
import math
import os
import socket
import sys
from typing import Any, Dict, Mapping, Optional, Union

__all__ = ["Context", "Model", "TrainerError", "init", "is_running", "log", "receive", "send"]

_SOCKET = "POLDER_SOCKET"


class TrainerError(RuntimeError):
    """The worker refuses, or is not there."""


class Model:
    """A model on its way between the federation and this program.

    ``params`` maps names to numpy arrays, or to torch tensors (see :func:`init`); it is empty when the federation
    has no model yet and asks for the first. ``weight`` is what the model counts for, usually the number of samples.
    """

    def __init__(
        self,
        params: Optional[Mapping[str, Any]] = None,
        metrics: Optional[Mapping[str, float]] = None,
        weight: Optional[float] = None,
        round: int = 0,
        total_rounds: int = 0,
        kind: str = "train",
        settings: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.params: Dict[str, Any] = dict(params or {})
        self.metrics: Dict[str, float] = dict(metrics or {})
        self.weight = weight
        self.round = round
        self.total_rounds = total_rounds
        self.kind = kind
        self.settings: Dict[str, Any] = dict(settings or {})

    def __repr__(self) -> str:
        return (
            f"Model({len(self.params)} tensors, round {self.round} of {self.total_rounds}, "
            f"weight={self.weight}, metrics={self.metrics})"
        )


class Context:
    """Where this program runs, and for which job."""

    def __init__(self, site: str, study: str, job: str, total_rounds: int, out: str) -> None:
        self.site = site
        self.study = study
        self.job = job
        self.total_rounds = total_rounds
        self.out = out

    def __repr__(self) -> str:
        return f"Context({self.site!r}, study={self.study!r}, job={self.job!r}, total_rounds={self.total_rounds})"


class _Worker:
    """The line to the worker."""

    def __init__(self, path: str, framework: Optional[str]) -> None:
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.stream.connect(path)
        except OSError as error:
            raise TrainerError(f"the worker does not answer at {path}: {error}") from error
        self.lines = self.stream.makefile("rb")
        self.lock = _thread.allocate_lock()
        self.framework = framework
        self.next: Optional[Model] = None
        self.open = False
        self.over = False
        self.types: Dict[str, str] = {}
        welcome = self.ask({"op": "init"})
        self.context = Context(
            welcome["site"], welcome["study"], welcome["job"], welcome["total_rounds"], welcome["out"]
        )

    def ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        with self.lock:
            try:
                self.stream.sendall(json.dumps(request, allow_nan=False).encode() + b"\n")
                line = self.lines.readline()
            except OSError as error:
                raise TrainerError(f"the worker is gone: {error}") from error
        if not line:
            raise TrainerError("the worker is gone")
        reply: Dict[str, Any] = json.loads(line)
        if reply["is"] == "error":
            raise TrainerError(reply["message"])
        return reply

    def look_ahead(self) -> None:
        """Wait for the next task, unless there is one that was not answered yet."""
        if self.over or self.open or self.next is not None:
            return
        reply = self.ask({"op": "receive"})
        if reply["is"] == "done":
            self.over = True
            return
        params: Dict[str, Any] = {}
        self.types = {}
        if reply.get("path"):
            from ._safetensors import load

            params, self.types = load(reply["path"])
            if self.use_torch():
                params = {name: _to_torch(array, self.types[name]) for name, array in params.items()}
        self.next = Model(
            params,
            round=reply["round"],
            total_rounds=reply["total_rounds"],
            kind=reply["kind"],
            settings=reply.get("params"),
        )

    def use_torch(self) -> bool:
        return self.framework == "torch" or (self.framework is None and "torch" in sys.modules)


_worker: Optional[_Worker] = None


def init(framework: Optional[str] = None) -> Context:
    """Greet the worker. Further calls answer the same.

    ``framework`` says what :func:`receive` gives: ``"numpy"`` or ``"torch"``; by default torch where the program has
    imported it, else numpy. :func:`send` takes either.
    """
    global _worker
    if framework not in (None, "numpy", "torch"):
        raise ValueError(f"framework {framework!r}; allowed are 'numpy' and 'torch'")
    if _worker is None:
        path = os.environ.get(_SOCKET)
        if not path:
            raise TrainerError(
                f"{_SOCKET} is not set: this program was not started by a Polder worker (try `polder simulate`)"
            )
        _worker = _Worker(path, framework)
    elif framework is not None:
        _worker.framework = framework
    return _worker.context


def _line() -> _Worker:
    init()
    assert _worker is not None
    return _worker


def is_running() -> bool:
    """Whether there is a model to be trained: waits for one, or for the end of the job."""
    worker = _line()
    worker.look_ahead()
    return not worker.over


def receive() -> Model:
    """Take the next model, and wait for it if need be.

    Raises :class:`TrainerError` when the job is over; a loop over :func:`is_running` never sees that.
    """
    worker = _line()
    if worker.open:
        raise TrainerError("the model received last was not sent back yet")
    worker.look_ahead()
    if worker.next is None:
        raise TrainerError("the job is over: there are no more models")
    model, worker.next, worker.open = worker.next, None, True
    return model


def send(
    model: Union[Model, Mapping[str, Any]],
    metrics: Optional[Mapping[str, float]] = None,
    weight: Optional[float] = None,
) -> None:
    """Hand back the model received last, trained: a :class:`Model`, or its parameters alone."""
    worker = _line()
    if not worker.open:
        raise TrainerError("there is nothing to be sent: receive() comes first")
    if not isinstance(model, Model):
        model = Model(model)
    from ._safetensors import save

    # Written under a name of its own and then moved: who still reads the last one keeps it.
    path = os.path.join(worker.context.out, "update.safetensors")
    save(path, {name: _to_numpy(value) for name, value in model.params.items()}, _types_for(worker, model))
    request: Dict[str, Any] = {"op": "send", "path": path, "metrics": _finite({**model.metrics, **(metrics or {})})}
    weight = model.weight if weight is None else weight
    if weight is not None:
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight {weight}; allowed is a finite number above 0")
        request["weight"] = float(weight)
    try:
        worker.ask(request)
    finally:
        worker.open = False


def log(what: Union[str, Mapping[str, float]], step: int = 0) -> None:
    """Write a line to the job's log, or measurements of a step to its metrics."""
    worker = _line()
    if isinstance(what, str):
        worker.ask({"op": "log", "text": what})
    else:
        worker.ask({"op": "metrics", "step": int(step), "metrics": _finite(what)})


def _finite(metrics: Mapping[str, float]) -> Dict[str, float]:
    """JSON has no word for NaN, and a mean of it says nothing."""
    numbers = {str(name): float(value) for name, value in metrics.items()}
    left_out = sorted(name for name, value in numbers.items() if not math.isfinite(value))
    if left_out:
        print(f"polder: metrics that are not finite are left out: {', '.join(left_out)}", file=sys.stderr)
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _types_for(worker: _Worker, model: Model) -> Dict[str, str]:
    """The received model's types, and BF16 where torch says so."""
    types = dict(worker.types)
    for name, value in model.params.items():
        if name not in types and str(getattr(value, "dtype", "")) == "torch.bfloat16":
            types[name] = "BF16"
    return types


def _to_numpy(value: Any) -> Any:
    if type(value).__module__.split(".")[0] == "torch" or hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return value.numpy()
    return value


def _to_torch(array: Any, kind: str) -> Any:
    import numpy
    import torch

    # torch has no arrays of 16 to 64 unsigned bits everywhere; such counters fit the signed ones.
    if kind in ("U16", "U32", "U64"):
        array = array.astype(numpy.int64)
    # Aligned, native and writable, as torch wants it; no copy where the file's bytes are so already.
    tensor = torch.from_numpy(numpy.require(array, requirements=["A", "W"]))
    return tensor.to(torch.bfloat16) if kind == "BF16" else tensor
