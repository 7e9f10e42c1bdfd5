#!/usr/bin/env python3
"""Times NVFP4 quantizers side by side on one BF16 matrix in memory, and prints a Markdown table.

    python3 benches/nvfp4_peers.py --venv DIR            # makes the environment (several GB), then measures
    python3 benches/nvfp4_peers.py --python PYTHON       # an environment that has torch and any of the peers

Peers that cannot be imported are listed as missing, not skipped in silence. draftfast itself is measured by
`cargo bench --bench nvfp4` on the same shape. Each peer runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import os
import subprocess
import sys
import venv

PACKAGES = ["torch", "nvidia-modelopt", "torchao"]
PEERS = ["modelopt", "torchao"]


def quantizer(peer):
    """The peer's function from a BF16 tensor to codes and scales."""
    if peer == "modelopt":
        from modelopt.torch.quantization.qtensor import NVFP4QTensor

        return lambda w: NVFP4QTensor.quantize(w, 16)
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    return lambda w: NVFP4Tensor.to_nvfp4(w, per_tensor_scale=per_tensor_amax_to_scale(w.abs().max()))


def measure(peer, rows, columns, threads, runs):
    """Runs in a child process: seconds of each run, peak memory beyond the input."""
    import resource
    import time

    import torch

    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    weights = (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)
    quantize = quantizer(peer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        quantize(weights)
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": sorted(seconds), "peak_bytes": (after - before) * 1024}


def make_environment(path):
    venv.create(path, with_pip=True)
    python = os.path.join(path, "bin", "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--venv", help="make a virtual environment here, outside the checkout, and install the peers")
    where.add_argument("--python", default=sys.executable, help="an interpreter that has the peers")
    parser.add_argument("--rows", type=int, default=64064)
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.rows, args.columns, args.threads, args.runs)))
        return
    python = make_environment(args.venv) if args.venv else args.python
    shape = ["--rows", str(args.rows), "--columns", str(args.columns), "--threads", str(args.threads)]
    print(f"BF16 [{args.rows}, {args.columns}], {args.threads} threads, in memory\n")
    print("| peer | best s | median s | GB/s of input | memory beyond the input, GB |\n|---|---|---|---|---|")
    for peer in PEERS:
        command = [python, __file__, "--measure", peer, *shape, "--runs", str(args.runs)]
        child = subprocess.run(command, capture_output=True, text=True)
        if child.returncode != 0:
            reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"| {peer} | missing: {reason} | | | |")
            continue
        found = json.loads(child.stdout.strip().splitlines()[-1])
        best, median = found["seconds"][0], found["seconds"][len(found["seconds"]) // 2]
        speed = args.rows * args.columns * 2 / best / 1e9
        print(f"| {peer} | {best:.2f} | {median:.2f} | {speed:.3f} | {found['peak_bytes'] / 1e9:.2f} |")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
    print("\ndraftfast:\n", flush=True)
    bench = ["cargo", "bench", "-q", "--bench", "nvfp4", "--", str(args.rows), str(args.columns)]
    subprocess.run(bench, cwd=root, env=environment, check=True)


if __name__ == "__main__":
    main()
