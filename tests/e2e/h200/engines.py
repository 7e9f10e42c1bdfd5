"""Engines as processes: what each is, how it is asked, stopped and bound to processor cores.

A `Setting` is written `MODE@layers=20,k=7,gpus=0+1,processes=2`; what is left out is 20 layers, 7 draft tokens, GPU 0, and an
engine core in a process of its own. Several GPUs share a model's tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

HERE = Path(__file__).parent
ROUND_SECONDS = 60


@dataclass(frozen=True)
class Setting:
    """What an engine is."""

    mode: str
    layers: int = 20
    k: int = 7
    gpus: tuple[int, ...] = (0,)
    processes: int = 2
    """2: the engine core has its own, as under `vllm serve`; 1: it shares that of `LLM`."""

    @classmethod
    def parse(cls, text: str) -> Setting:
        mode, _, rest = text.partition("@")
        given = dict(part.split("=") for part in rest.split(",") if part)
        gpus = tuple(map(int, given.get("gpus", "0").split("+")))
        return cls(mode, *(int(given.get(key, default)) for key, default in (("layers", 20), ("k", 7))), gpus, int(given.get("processes", 2)))  # fmt: skip

    @property
    def group(self) -> dict[str, int]:
        """Engines with the same one are compared."""
        return {"layers": self.layers, "k": self.k, "n_gpus": len(self.gpus), "processes": self.processes}

    @property
    def name(self) -> str:
        return "-".join(map(str, [self.mode, self.layers, self.k, "+".join(map(str, self.gpus)), self.processes]))


class Engine:
    """A process with its children, and what it has answered."""

    def __init__(self, setting: Setting, work: Path) -> None:
        self.setting, self.rounds, self.said = setting, [], Queue()
        self.answer: dict[str, Any] = {"mode": setting.mode} | setting.group
        environment = os.environ | {
            "VLLM_CACHE_ROOT": str(work / f"cache-{setting.name}"),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, setting.gpus)),
            "K": str(setting.k),
            "TP": str(len(setting.gpus)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(setting.processes - 1),
        }
        with open(work / f"{setting.name}.log", "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), setting.mode, str(work / f"layers{setting.layers}")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, env=environment,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self.said.put(line)
        self.said.put(None)

    def hear(self, deadline: float) -> dict[str, Any] | None:
        """The next answer; None: the process died or is late, and is ended."""
        try:
            line = self.said.get(timeout=max(deadline - time.monotonic(), 0.01))
        except Empty:
            line = None
        if line is None:
            self.signal(signal.SIGKILL)
            self.answer["died"] = True
            return None
        return json.loads(line)

    def ask(self, what: str) -> dict[str, Any] | None:
        """One question, one answer; stopped before and after."""
        self.signal(signal.SIGCONT)
        try:
            print(what, file=self.process.stdin)
        except OSError:
            return None
        answer = self.hear(time.monotonic() + ROUND_SECONDS)
        self.signal(signal.SIGSTOP)
        return answer

    def signal(self, which: signal.Signals) -> None:
        """To all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)

    def bind(self, bound: bool) -> None:
        """The main thread of each process to a core of its own, its other threads to another; or all to all cores."""
        free, every = iter(lone_cores()), range(os.cpu_count() or 1)
        for process in group_members(self.process.pid):
            main, others = (next(free, every[0]), next(free, every[-1])) if bound else (None, None)
            for thread in threads(process):
                cores = every if not bound else {main if thread == process else others}
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, cores)

    @property
    def dead(self) -> bool:
        return "died" in self.answer


def lone_cores() -> list[int]:
    """One logical processor of each core, as far as the machine tells; the later ones first, which the system leaves alone."""
    found = {}
    for number in range(os.cpu_count() or 1):
        path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.setdefault(path.read_text() if path.is_file() else str(number // 2), number)
    # A virtual machine may call every thread of the host a core.
    cores = list(found.values()) if len(found) < (os.cpu_count() or 1) else list(range(0, os.cpu_count() or 1, 2))
    return cores[::-1]


def group_members(group: int) -> list[int]:
    """Processes of a group, those that have used the processor most first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                found.append((int(fields[11]) + int(fields[12]), int(path.parent.name)))
    return [process for _, process in sorted(found, reverse=True)]


def threads(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    return []
