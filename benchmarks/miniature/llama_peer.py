"""llama.cpp's logits of a GGUF, by llama-cpp-python's plain functions, with what it computes on the way."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

INSTALL = "pip install llama-cpp-python==0.3.36, which builds llama.cpp: some minutes on two cores"
_KEPT = re.compile(r"(l_out|ffn_moe_topk|ffn_moe_probs|ffn_moe_probs_biased)-(\d+)")
_EVAL_NAMES = 128


def missing() -> str | None:
    """Why it cannot be used; None where it can."""
    return None if importlib.util.find_spec("llama_cpp") else f"there is no llama_cpp: {INSTALL}"


@define(eq=False)
class Observed:
    """What the graph gave by name and layer, in order of the calls; each [rows of the call, ...]."""

    values: dict[tuple[str, int], list[NDArray[Any]]] = field(factory=dict)

    def whole(self, name: str, layers: Sequence[int]) -> NDArray[Any]:
        """[tokens, layers, ...]"""
        return np.stack([np.concatenate(self.values[name, layer]) for layer in layers], axis=1)


class Peer:
    """A loaded GGUF with one sequence. `close` it.

    `threads`: of both kinds of evaluation. `cache`: the type of the cache of attention, "f32" or "f16".
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        context: int = 512,
        cache: str = "f32",
        observe: bool = False,
        repack: bool = True,
    ) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(_log)
        self._troubles: list[str] = _TROUBLES
        _TROUBLES.clear()
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.use_mmap, model.n_gpu_layers, model.use_extra_bufts = False, 0, repack
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model)
        if not self._model:
            raise ValueError(f"llama.cpp refuses {path}: {' '.join(_TROUBLES)[-300:]}")
        told = llama_cpp.llama_context_default_params()
        told.n_ctx, told.n_batch, told.n_ubatch, told.n_seq_max = context, context, context, 1
        told.n_threads = told.n_threads_batch = threads
        kind = {"f32": 0, "f16": 1}[cache]
        told.type_k = told.type_v = kind
        told.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.observed = Observed()
        if observe:
            self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._see)
            told.cb_eval = self._callback
        self._context = llama_cpp.llama_init_from_model(self._model, told)
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise ValueError(f"llama.cpp gives no context for {path}: {' '.join(_TROUBLES)[-300:]}")
        self.vocabulary = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))
        self._length = 0

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[tokens, vocabulary] of the next tokens of the sequence, all in one batch."""
        library = self._library
        batch = library.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for at, token in enumerate(tokens):
                batch.token[at], batch.pos[at] = token, self._length + at
                batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, 0, True
            status = library.llama_decode(self._context, batch)
        finally:
            library.llama_batch_free(batch)
        if status != 0:
            raise ValueError(f"llama.cpp's evaluation ended with {status}")
        self._length += len(tokens)
        found = library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(found, (len(tokens), self.vocabulary)).copy()

    def forget(self) -> None:
        """Start the sequence anew."""
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_clear(memory, True)
        self._length = 0

    def close(self) -> None:
        """Free all."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _see(self, tensor: int, ask: bool, _: Any) -> bool:
        """Called for each node: whether to look at it, then with its data."""
        found = _KEPT.fullmatch(_name(tensor))
        if found is None:
            return not ask
        if not ask:
            self.observed.values.setdefault((found[1], int(found[2])), []).append(_read(tensor))
        return True


_TROUBLES: list[str] = []


def _log(_: int, text: bytes, __: Any) -> None:
    _TROUBLES.append(text.decode(errors="replace").strip())
    del _TROUBLES[:-20]


class _Tensor(ctypes.Structure):
    """The start of ggml_tensor, as of ggml 0.25."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


def _base() -> ctypes.CDLL:
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    library = ctypes.CDLL(str(folder / "libggml-base.so"))
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    library.ggml_backend_tensor_get.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
    ]  # fmt: skip
    library.ggml_backend_tensor_get.restype = None
    return library


_LIBRARY: list[ctypes.CDLL] = []


def _ggml() -> ctypes.CDLL:
    if not _LIBRARY:
        _LIBRARY.append(_base())
    return _LIBRARY[0]


def _name(tensor: int) -> str:
    return (_ggml().ggml_get_name(tensor) or b"").decode(errors="replace")


def _read(tensor: int) -> NDArray[Any]:
    """[tokens, numbers]: of one row after the other, whatever lies between them."""
    told = _Tensor.from_address(tensor)
    kind = {0: np.float32, 26: np.int32}[told.type]
    rows = []
    width = told.ne[0]
    for row in range(told.ne[1] * told.ne[2] * told.ne[3]):
        taken = np.empty(width, kind)
        at = row * told.nb[1]
        _ggml().ggml_backend_tensor_get(tensor, taken.ctypes.data, at, taken.nbytes)
        rows.append(taken)
    return np.stack(rows)


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Peer]:
    """A `Peer`, closed in the end."""
    peer = Peer(path, **options)
    try:
        yield peer
    finally:
        peer.close()
