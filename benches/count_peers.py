#!/usr/bin/env python3
"""Counting beside its peers, in one interleaved run: the table of docs/performance/counting.md.

    cargo build --release --example bench_count
    python3 benches/count_peers.py TOKENIZER_JSON[.gz] DIR_OF_DOMAIN.jsonl.zst [--threads 1 2] [--rounds 3] [--venv DIR]

Installs gigatoken and fastokens from PyPI into a virtual environment outside the checkout. Texts are in memory before
the clock starts; a peer encodes them and its ids are dropped, draftfast counts them. Every tool runs in a process of
its own, each round runs all of them, and the best of the rounds counts: the machine's noise only ever slows.
"""

import argparse
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

PEERS = ["gigatoken==0.10.0", "fastokens==0.3.5", "zstandard"]
ROOT = pathlib.Path(__file__).resolve().parent.parent

PEER = r"""
import json, os, sys, time
tool, tokenizer, n_threads, *files = sys.argv[1:]
for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ[name] = n_threads if name.startswith("RAYON") else "true"
import zstandard
started = time.perf_counter()
if tool == "gigatoken":
    import gigatoken
    encoder = gigatoken.Tokenizer(tokenizer)
    encode = lambda texts: encoder.encode_batch(texts, parallel=int(n_threads) > 1)
else:
    import fastokens
    encoder = fastokens.Tokenizer.from_file(tokenizer)
    encode = lambda texts: encoder.encode_batch(texts)
print("load", 0, f"{time.perf_counter() - started:.4f}", f"{time.process_time():.4f}", sep="\t")
for file in files:
    lines = zstandard.ZstdDecompressor().stream_reader(open(file, "rb")).read().split(b"\n")
    texts = [json.loads(line)["text"] for line in lines if line]
    n_bytes = sum(len(text.encode()) for text in texts)
    started, cpu = time.perf_counter(), time.process_time()
    encode(texts)
    print(file, n_bytes, f"{time.perf_counter() - started:.4f}", f"{time.process_time() - cpu:.4f}", sep="\t")
"""


def python(venv):
    """The interpreter of the virtual environment, made on first use."""
    interpreter = venv / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    return interpreter


def measure(command, n_threads):
    """The rows (file, bytes, wall seconds, CPU seconds) that a tool prints; None, after saying so, if it fails.

    The process gets as many processors as threads: fastokens uses all that it sees."""
    processors = sorted(os.sched_getaffinity(0))[:n_threads]
    pin = lambda: os.sched_setaffinity(0, processors)
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, preexec_fn=pin)
    if ran.returncode != 0:
        print(f"failed: {command[0]} {command[-1]}: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    return {pathlib.Path(row[0]).name.split(".")[0]: (int(row[1]), float(row[2]), float(row[3])) for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("corpora", type=pathlib.Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "draftfast-peers")
    args = parser.parse_args()
    interpreter = python(args.venv)
    files = sorted(args.corpora.glob("*.jsonl.zst"))
    scratch = tempfile.TemporaryDirectory()
    tokenizer = pathlib.Path(scratch.name) / "tokenizer.json"
    opened = gzip.open(args.tokenizer) if args.tokenizer.suffix == ".gz" else open(args.tokenizer, "rb")
    tokenizer.write_bytes(opened.read())
    binary = ROOT / "target" / "release" / "examples" / "bench_count"
    tools = {
        "draftfast": lambda n: [binary, tokenizer, n, *files],
        "gigatoken": lambda n: [interpreter, "-c", PEER, "gigatoken", tokenizer, n, *files],
        "fastokens": lambda n: [interpreter, "-c", PEER, "fastokens", tokenizer, n, *files],
    }
    for n_threads in args.threads:
        best = {}
        for _ in range(args.rounds):
            for tool, command in tools.items():
                for name, (n_bytes, *seconds) in (measure(command(n_threads), n_threads) or {}).items():
                    row = best.setdefault(tool, {})
                    before = row.get(name, (n_bytes, *seconds))
                    row[name] = (n_bytes, *map(min, before[1:], seconds))
        table(f"{n_threads} thread(s), MB/s", best, 1)
        table(f"{n_threads} thread(s), MB per CPU second", best, 2)


def table(title, best, clock):
    """Speed for each domain and for all together, and the ratio to the better peer, by wall (1) or CPU (2) seconds."""
    domains = [name for name in best["draftfast"] if name != "load"]
    print(f"\n| {title} | " + " | ".join(domains) + " | all | load s |")
    print("|---" * (len(domains) + 3) + "|")
    speeds = {}
    for tool, row in best.items():
        speed = [row[name][0] / max(row[name][clock], 1e-9) / 1e6 for name in domains]
        speed.append(sum(row[name][0] for name in domains) / max(sum(row[name][clock] for name in domains), 1e-9) / 1e6)
        speeds[tool] = speed
        print(f"| {tool} | " + " | ".join(f"{value:.1f}" for value in speed) + f" | {row['load'][clock]:.2f} |")
    ours = speeds.pop("draftfast")
    if speeds:
        ratios = [mine / max(peer) for mine, peer in zip(ours, zip(*speeds.values()))]
        print("| draftfast / better peer | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " | |")


if __name__ == "__main__":
    main()
