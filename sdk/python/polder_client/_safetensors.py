"""Safetensors files over numpy: a strict reader and a writer, and nothing else.

A model is a mapping of names to arrays. ``BF16``, which numpy does not know, is read as ``float32`` and written
from it, rounded to nearest, ties to even.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

if TYPE_CHECKING:
    import numpy

# Larger files are mapped: what is not looked at is not read.
_MAP_ABOVE = 1 << 20
_HEADER_LIMIT = 100_000_000

_NUMPY = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_NAMES = {code: name for name, code in _NUMPY.items() if name != "BF16"}


class FormatError(ValueError):
    """A file that is not safetensors, or an array that cannot stand in one."""


def load(path: str) -> Tuple[Dict[str, "numpy.ndarray[Any, Any]"], Dict[str, str]]:
    """Read a file. Returns the arrays, writable and private, and the file's type of each."""
    import numpy

    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > _HEADER_LIMIT or 8 + length > size:
            raise FormatError(f"{path}: not a safetensors file")
        header = json.loads(file.read(length))
        data: Any
        if size > _MAP_ABOVE:
            # Copy on write: an array may be changed, the file stays as it is.
            data = numpy.memmap(path, mode="c", dtype=numpy.uint8)[8 + length :]
        else:
            data = numpy.frombuffer(bytearray(file.read()), dtype=numpy.uint8)
    arrays: Dict[str, Any] = {}
    types: Dict[str, str] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind = entry["dtype"]
        if kind not in _NUMPY:
            raise FormatError(f"{path}: tensor {name!r} has type {kind}; allowed are {', '.join(_NUMPY)}")
        first, last = entry["data_offsets"]
        array = data[first:last].view(_NUMPY[kind]).reshape(entry["shape"])
        if kind == "BF16":
            array = (array.astype(numpy.uint32) << 16).view(numpy.float32)
        # Plain arrays: a memmap as type would follow the values everywhere.
        arrays[name] = array.view(numpy.ndarray)
        types[name] = kind
    return arrays, types


def save(path: str, arrays: Mapping[str, Any], types: Optional[Mapping[str, str]] = None) -> None:
    """Write arrays to a file, which appears complete or not at all.

    ``types`` names the type a tensor should have; a floating-point array is converted to it.
    """
    import numpy

    # The widest first, so that every tensor lies aligned.
    ready: List[Tuple[str, str, Tuple[int, ...], Any]] = []
    for name, value in arrays.items():
        array = numpy.asarray(value)
        kind = _kind(name, array, (types or {}).get(name))
        shape = array.shape
        if kind == "BF16":
            array = _to_bf16(array)
        ready.append((name, kind, shape, numpy.ascontiguousarray(array, dtype=_NUMPY[kind])))
    ready.sort(key=lambda one: -one[3].itemsize)
    header: Dict[str, Any] = {}
    at = 0
    for name, kind, shape, array in ready:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path + ".part"
    with open(partial, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, array in ready:
            file.write(array.reshape(-1).view(numpy.uint8).data)
    os.replace(partial, path)


def _kind(name: str, array: Any, wanted: Optional[str]) -> str:
    code = array.dtype.newbyteorder("<").str
    code = code.replace("=", "<")
    found = _NAMES.get(code)
    if found is None:
        raise FormatError(f"tensor {name!r} has numpy type {array.dtype}; allowed are {', '.join(_NUMPY)}")
    if wanted is not None and found != wanted and found[0] == "F" and wanted in ("BF16", "F16", "F32", "F64"):
        return wanted
    return found


def _to_bf16(array: Any) -> Any:
    import numpy

    bits = numpy.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    # A NaN must not be rounded to infinity.
    quiet = ((bits >> 16) | 0x40).astype("<u2")
    return numpy.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, rounded)
