#!/usr/bin/env python3
"""Times NVFP4 quantizers side by side on one BF16 matrix, and prints a Markdown table.

    python3 benches/nvfp4_peers.py --venv DIR            # makes the environment (several GB), then measures
    python3 benches/nvfp4_peers.py --python PYTHON       # an environment that has torch and any of the peers
    python3 benches/nvfp4_peers.py --only modelopt,max   # some of them, where the machine is not yours for long

Peers quantize in memory and write nothing; those that cannot be imported are listed as missing, not skipped in silence.
draftfast runs as a whole command: from a model folder in the page cache, a few rows larger than the draft head so that rows
are gathered, to a synced sidecar. Each runs in a process of its own, so that its peak memory is its own; runs of all take
turns, so that they see the same machine. `cargo bench --bench nvfp4` measures draftfast in memory.
"""

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

PACKAGES = ["torch", "nvidia-modelopt", "torchao"]
PEERS = ["modelopt", "torchao"]
ROOT = Path(__file__).resolve().parent.parent
# The flags of each measured command.
COMMANDS = {"max": ["--scale", "max"], "four-six": ["--scale", "four-six"], "mse": ["--scale", "mse"], "importance": ["--importance", "importance.safetensors"]}  # fmt: skip
# Rows of the model's head that the draft head does not keep.
N_DROPPED = 128


def quantizer(peer):
    """The peer's function from a BF16 tensor to codes and scales."""
    if peer == "modelopt":
        from modelopt.torch.quantization.qtensor import NVFP4QTensor

        return lambda w: NVFP4QTensor.quantize(w, 16)
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    return lambda w: NVFP4Tensor.to_nvfp4(w, per_tensor_scale=per_tensor_amax_to_scale(w.abs().max()))


def gaussian(rows, columns):
    """BF16 weights of standard deviation 0.02."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)


def measure(peer, rows, columns, threads, runs):
    """Runs in a child process: seconds of each run, peak memory beyond the input."""
    import torch

    torch.set_num_threads(threads)
    weights = gaussian(rows, columns)
    quantize = quantizer(peer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        quantize(weights)
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": sorted(seconds), "peak_bytes": (after - before) * 1024}


def write_safetensors(path, tensors):
    """`tensors`: name, dtype, shape, bytes."""
    header, offset = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            file.write(data)


def make_model(folder, rows, columns):
    """Runs in a child process: a model whose head has a few rows more, the ids to keep, and an importance file."""
    import torch

    raw = lambda tensor: tensor.view(torch.int16).numpy().tobytes()  # noqa: E731
    config = {"model_type": "bench", "hidden_size": columns, "vocab_size": rows + N_DROPPED, "num_hidden_layers": 1}
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    head = ("lm_head.weight", "BF16", [rows + N_DROPPED, columns], raw(gaussian(rows + N_DROPPED, columns)))
    norm = ("mtp.norm.weight", "BF16", [columns], raw(torch.ones(columns, dtype=torch.bfloat16)))
    write_safetensors(folder / "model" / "model.safetensors", [head, norm])
    moments = struct.pack(f"<{columns}f", *(1.0 if i % 97 == 0 else 0.01 for i in range(columns)))
    write_safetensors(folder / "importance.safetensors", [("lm_head.weight", "F32", [columns], moments)])
    # Every (rows / dropped)-th id is left out.
    step = (rows + N_DROPPED) // N_DROPPED
    kept = [i for i in range(rows + N_DROPPED) if i % step != 0 or i >= step * N_DROPPED]
    (folder / "ids.txt").write_text("".join(f"{i}\n" for i in kept))


def command_seconds(draftfast, folder, flags, threads):
    """Wall seconds of one whole `quantize`."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    arguments = ["quantize", "model", "--vocab", "ids.txt", "-o", "out", "--quiet", "--no-progress", *flags]
    start = time.perf_counter()
    subprocess.run([draftfast, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "RAYON_NUM_THREADS": str(threads)})  # fmt: skip
    return time.perf_counter() - start


def make_environment(path):
    venv.create(path, with_pip=True)
    python = os.path.join(path, "bin", "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def child(python, args, *more):
    """Runs this file in another process; its last line, or why there is none."""
    shape = ["--rows", str(args.rows), "--columns", str(args.columns), "--threads", str(args.threads)]
    ran = subprocess.run([python, __file__, *shape, *more], capture_output=True, text=True)
    if ran.returncode != 0:
        return None, (ran.stderr.strip().splitlines() or ["no message"])[-1]
    return ran.stdout.strip().splitlines()[-1], None


def line(name, seconds, args, memory):
    best, median = sorted(seconds)[0], sorted(seconds)[len(seconds) // 2]
    speed = args.rows * args.columns * 2 / best / 1e9
    print(f"| {name} | {best:.3f} | {median:.3f} | {speed:.3f} | {memory} |", flush=True)


def compare(args, python, draftfast, folder):
    """Peers and commands take turns."""
    seconds, peak, missing = {}, {}, {}
    only = args.only.split(",") if args.only else [*PEERS, *COMMANDS]
    peers, commands = ([name for name in all_of if name in only] for all_of in (PEERS, COMMANDS))
    for _ in range(args.rounds):
        for peer in peers:
            found, reason = child(python, args, "--measure", peer, "--runs", str(args.runs))
            if found is None:
                missing[peer] = reason
                continue
            found = json.loads(found)
            seconds.setdefault(peer, []).extend(found["seconds"])
            peak[peer] = max(peak.get(peer, 0), found["peak_bytes"])
        for name in commands:
            for _ in range(args.runs):
                found = command_seconds(draftfast, folder, COMMANDS[name], args.threads)
                seconds.setdefault(name, []).append(found)
    print(f"BF16 [{args.rows}, {args.columns}], {args.threads} threads\n")
    print("| | best s | median s | GB/s of input | memory beyond the input, GB |\n|---|---|---|---|---|")
    for peer in peers:
        if peer in missing:
            print(f"| {peer} | missing: {missing[peer]} | | | |")
        else:
            line(f"{peer}, in memory", seconds[peer], args, f"{peak[peer] / 1e9:.2f}")
    for name in commands:
        line(f"draftfast, whole command, `{name}`", seconds[name], args, "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--venv", help="make a virtual environment here, outside the checkout, and install the peers")
    where.add_argument("--python", default=sys.executable, help="an interpreter that has torch and the peers")
    parser.add_argument("--draftfast", default=str(ROOT / "target" / "release" / "draftfast"))
    parser.add_argument("--folder", help="where the model and the sidecar are written (default: a temporary folder)")
    parser.add_argument("--rows", type=int, default=64064)
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", help=f"some of {', '.join([*PEERS, *COMMANDS])}; separated by commas, without spaces")
    parser.add_argument("--runs", type=int, default=3, help="of each, in a row")
    parser.add_argument("--rounds", type=int, default=1, help="how often all take turns")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--make-model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.rows, args.columns, args.threads, args.runs)))
    elif args.make_model:
        make_model(Path(args.make_model), args.rows, args.columns)
        print("made")
    else:
        python = make_environment(args.venv) if args.venv else args.python
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            folder = Path(scratch)
            made, reason = child(python, args, "--make-model", str(folder))
            if made is None:
                sys.exit(f"the model could not be made: {reason}")
            compare(args, python, args.draftfast, folder)


if __name__ == "__main__":
    main()
