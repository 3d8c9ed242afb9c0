"""llama.cpp's logits of a GGUF, by llama-cpp-python's plain functions, with what it computes on the way."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

INSTALL = "pip install llama-cpp-python==0.3.36, which builds llama.cpp: some minutes on two cores"
_KEPT = re.compile(r"(l_out|ffn_moe_topk|ffn_moe_probs|ffn_moe_probs_biased)-(\d+)")


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

    `threads`: of both kinds of evaluation. `cache_type`: of the cache of attention, "f32" or "f16". `repack`: whether
    weights may be stored anew in an order that suits the CPU. `direct`: read past the page cache.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        context: int = 64,
        cache_type: str = "f32",
        observe: bool = False,
        repack: bool = True,
        direct: bool = False,
    ) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        llama_cpp.llama_log_set(_silence(), ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        _set(
            model,
            # Into memory of its own, not mapped.
            load_mode=llama_cpp.LLAMA_LOAD_MODE_DIRECT_IO if direct else llama_cpp.LLAMA_LOAD_MODE_NONE,
            n_gpu_layers=0,
            use_extra_bufts=repack,
        )
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model)
        if not self._model:
            raise ValueError(f"llama.cpp refuses {path}: {_said()}")
        kind = {"f32": 0, "f16": 1}[cache_type]
        self._settings = {
            **dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), context),
            **dict.fromkeys(("n_threads", "n_threads_batch"), threads),
            **dict.fromkeys(("type_k", "type_v"), kind),
            "n_seq_max": 1,
            "flash_attn_type": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocabulary = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self._see_all = llama_cpp.ggml_backend_sched_eval_callback(self._see)
        self._context: Any = None
        self.begin(observe)

    def begin(self, observe: bool) -> None:
        """A new context, whose sequence is empty; `observe`: whether `observed` shall be filled, which takes time."""
        library = self._library
        if self._context:
            library.llama_free(self._context)
        told = library.llama_context_default_params()
        _set(told, **self._settings)
        if observe:
            told.cb_eval = self._see_all
        self.observed = Observed()
        self._length = 0
        self._context = library.llama_init_from_model(self._model, told)
        if not self._context:
            library.llama_model_free(self._model)
            raise ValueError(f"llama.cpp gives no context: {_said()}")

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


def _set(settings: Any, **values: Any) -> None:
    """`AttributeError` for a field that this version does not have: ctypes would take it silently."""
    for name, value in values.items():
        getattr(settings, name)
        setattr(settings, name, value)


_SAID: list[str] = []


def _hear(_: int, text: bytes, __: Any) -> None:
    _SAID.append(text.decode(errors="replace").strip())
    del _SAID[:-20]


def _said() -> str:
    return " ".join(_SAID)[-300:]


@cache
def _silence() -> Any:
    """Of the whole process, as the library keeps it."""
    import llama_cpp

    return llama_cpp.llama_log_callback(_hear)


class _Tensor(ctypes.Structure):
    """The start of ggml_tensor, as of ggml 0.25."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


@cache
def _ggml() -> ctypes.CDLL:
    import llama_cpp

    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.ggml_backend_tensor_get.argtypes = [pointer, pointer, size, size]
    library.ggml_backend_tensor_get.restype = None
    return library


def _name(tensor: int) -> str:
    return (_ggml().ggml_get_name(tensor) or b"").decode(errors="replace")


def _read(tensor: int) -> NDArray[Any]:
    """[tokens, numbers]: of one row after the other, whatever lies between them."""
    told = _Tensor.from_address(tensor)
    kind = {0: np.float32, 26: np.int32}[told.type]
    rows = np.empty((told.ne[1] * told.ne[2] * told.ne[3], told.ne[0]), kind)
    for number, row in enumerate(rows):
        _ggml().ggml_backend_tensor_get(tensor, row.ctypes.data, number * told.nb[1], row.nbytes)
    return rows


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Peer]:
    """A `Peer`, closed in the end."""
    peer = Peer(path, **options)
    try:
        yield peer
    finally:
        peer.close()
