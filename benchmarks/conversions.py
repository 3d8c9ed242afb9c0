"""`k3gate quant` on a repack of MXFP4 experts: bytes of the source per second and core, and memory.

python benchmarks/conversions.py [--runs 15] [--experts 16]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
import pairs
import psutil

from k3gate.model import k3
from k3gate.model.checkpoint import files
from k3gate.model.conversion import comparison
from k3gate.model.formats import mxfp4

GOAL = 400e6
MOST_BYTES = 512e6


def write(folder: Path, experts: int) -> int:
    """Experts of true size with random codes and scales, as a checkpoint and as GGUF; bytes of the checkpoint."""
    rng = np.random.default_rng(5)
    at = "language_model.model.layers.1.block_sparse_moe.experts"
    header, position = {}, 0
    parts: list[bytes] = []
    writer = gguf.GGUFWriter(folder / "converted.gguf", "kimi-k3")
    for name, ours, rows, columns in (
        ("w1", "gate", k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH),
        ("w3", "up", k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH),
        ("w2", "down", k3.EXPERT_WIDTH, k3.EXPERT_INTERMEDIATE),
    ):
        stacked = np.empty((experts, rows, columns // mxfp4.BLOCK * mxfp4.GGML_BYTES), np.uint8)
        for expert in range(experts):
            codes = rng.integers(0, 256, (rows, columns // 2), np.uint8)
            scales = rng.integers(110, 124, (rows, columns // mxfp4.BLOCK), np.uint8)
            stacked[expert] = mxfp4.to_ggml(codes, scales).reshape(rows, -1)
            for ending, array in (("packed", codes), ("scale", scales)):
                header[f"{at}.{expert}.{name}.weight_{ending}"] = {
                    "dtype": "U8",
                    "shape": list(array.shape),
                    "data_offsets": [position, position + array.nbytes],
                }
                position += array.nbytes
                parts.append(array.tobytes())
        writer.add_tensor(f"blk.1.ffn_{ours}_exps.weight", stacked, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.writelines(parts)
    return position


def main() -> None:
    """Print two lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--experts", type=int, default=16, help="of 17.5 MB each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder, arguments.experts)
        task = comparison.prepare(
            files.find(folder / "model.safetensors"), files.find(folder / "converted.gguf")
        )

        def rate() -> float:
            begun = time.perf_counter()
            found = comparison.compare(task, 1, lambda _: None)
            taken = time.perf_counter() - begun
            if not found.lossless:
                raise SystemExit("the repack was not found lossless: no figure")
            return size / taken

        taken = pairs.measure(rate, lambda: GOAL, arguments.runs, "quant", "MB/s", 1e6)
        print(pairs.line(f"quant, one core / {GOAL / 1e6:.0f} MB/s of source", pairs.ratio(taken), 1.0))
        peak = memory(folder)
    held = "held" if peak <= MOST_BYTES else "not held"
    print(f"k3gate quant, peak memory of all its processes: {peak / 1e6:.0f} MB, goal 512 MB: {held}")


def memory(folder: Path) -> float:
    """The largest memory that the command and its processes held together, each shared page counted once; bytes."""
    command = [sys.executable, "-m", "k3gate", "quant", "model.safetensors", "converted.gguf", "--no-store"]
    process = psutil.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        held = 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                held += one.memory_full_info().pss
        peak = max(peak, held)
        time.sleep(0.02)
    return peak


if __name__ == "__main__":
    main()
