#!/usr/bin/env python3
"""Checksums beside sha256sum and openssl, in one interleaved run: the tables of docs/performance/checksums.md.

    cargo build --release
    python3 benches/checksum_peers.py DIR [--gigabytes 2] [--sparse 22] [--rounds 3]

DIR gets one file of --gigabytes random bytes and, beside it, four of a quarter. All tools hash them from the page cache
and then cold (every page dropped before each run; needs root, else the files' own pages are dropped with fadvise). With
--sparse, draftfast alone hashes three holes of that many gigabytes together: zeros cost as much to hash as anything. The
best of the rounds counts: the machine's noise only ever slows. What is written is removed at the end.
"""

import argparse
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
DRAFTFAST = ROOT / "target" / "release" / "draftfast"


def random_file(path, n_bytes):
    with open(path, "wb") as file:
        while n_bytes > 0:
            n_bytes -= file.write(os.urandom(min(n_bytes, 1 << 24)))
        os.fsync(file.fileno())


def drop_pages(files):
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        for file in files:
            with open(file, "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(command):
    """Wall seconds, CPU seconds, and the most resident memory in MB, by GNU time (a child of Python starts with its memory)."""
    timed = ["/usr/bin/time", "-f", "%e %U %S %M", *(str(word) for word in command)]
    ran = subprocess.run(timed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    wall, user, system, kilobytes = map(float, ran.stderr.split())
    return wall, user + system, kilobytes / 1000


def write_list(folder, files):
    lines = subprocess.run(["openssl", "dgst", "-sha256", "-r", *(file.name for file in files)], cwd=folder, check=True,
                           capture_output=True, text=True).stdout
    (folder / "sha256sums.txt").write_text(lines)


def row(layout, state, tool, n_bytes, runs):
    wall, cpu, resident = (min(values) for values in zip(*runs))
    print(f"| {layout} | {state} | {tool} | {n_bytes / wall / 1e9:.2f} | {n_bytes / cpu / 1e9:.2f} | {resident:.0f} |", flush=True)


def compare(folder, layout, files, rounds):
    n_bytes = sum(file.stat().st_size for file in files)
    write_list(folder, files)
    commands = {
        "sha256sum": ["sha256sum", *files],
        "openssl dgst": ["openssl", "dgst", "-sha256", *files],
        "draftfast verify-sha": [DRAFTFAST, "verify-sha", "--quiet", "--no-progress", folder],
    }
    for state in ("cached", "cold"):
        runs = {tool: [] for tool in commands}
        run(commands["openssl dgst"])
        for _ in range(rounds):
            for tool, command in commands.items():
                if state == "cold":
                    drop_pages(files)
                runs[tool].append(run(command))
        for tool in commands:
            row(layout, state, tool, n_bytes, runs[tool])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--sparse", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    n_bytes = int(args.gigabytes * 1e9)
    print("| files | pages | tool | GB/s | GB per CPU second | MB resident |\n|---|---|---|---|---|---|")
    for layout, n_files in (("one", 1), ("four", 4)):
        folder = args.dir / f"checksums-{layout}"
        folder.mkdir(parents=True)
        files = [folder / f"{i}.bin" for i in range(n_files)]
        for file in files:
            random_file(file, n_bytes // n_files)
        compare(folder, layout, files, args.rounds)
        shutil.rmtree(folder)
    if args.sparse:
        folder = args.dir / "checksums-sparse"
        folder.mkdir()
        for i in range(3):
            with open(folder / f"{i}.bin", "wb") as file:
                file.truncate(int(args.sparse * 1e9) // 3)
        sizes = sum(file.stat().st_size for file in folder.iterdir())
        runs = [run([DRAFTFAST, "verify-sha", "--write", "--no-progress", "-q", folder])]
        row("three holes", "cold", "draftfast verify-sha --write", sizes, runs)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
