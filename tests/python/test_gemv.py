"""Our GEMV up to the driver: what is compiled, kept and passed. No GPU: the driver is a list."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from draftfast_vllm import gemv, nvrtc  # noqa: E402
from draftfast_vllm.gemv_plan import Card, make_plan  # noqa: E402

KERNEL = (Path(__file__).parents[2] / "kernels/gemv_mma.cu").read_text()
CARD = Card(132, 226 * 1024, 2)


@pytest.fixture
def launches(monkeypatch):
    """Every `cuLaunchKernel`: grid, block, shared bytes, and the values that its parameters point at."""
    found = []

    def driver(name, *arguments):
        assert name == "cuLaunchKernel"
        _, grid, _, _, block, _, _, shared, stream, pointers, _ = arguments
        found.append((grid, block, shared, stream.value, [ctypes.c_uint64.from_address(p).value for p in pointers]))

    monkeypatch.setattr(nvrtc, "_driver", driver)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    functions = {
        f"{name}_{result}": nvrtc.Function(ctypes.c_void_p(1), result)
        for name in ("nvfp4_gemv_few", "nvfp4_mma")
        for result in ("logits", "argmax")
    }
    monkeypatch.setattr(gemv, "functions", lambda device: functions)
    monkeypatch.setattr(gemv, "plan", lambda n, k, m, device: make_plan(n, k, m, CARD))
    return found


def weights(n, k):
    return (
        torch.zeros(n, k // 2, dtype=torch.uint8),
        torch.zeros(n, k // 16, dtype=torch.uint8),
        torch.ones(1),
    )


def parameters(kernel_suffix):
    """Names of a kernel's parameters after those that all have, from its source."""
    (signature,) = re.findall(rf"NAME##_{kernel_suffix}\(WEIGHTS_AND_X,(.*?)\) \{{", KERNEL, re.S)
    return [part.split()[-1].lstrip("*") for part in signature.replace("\\", " ").split(",")]


def test_logits_get_the_kernels_parameters(launches):
    packed, x = weights(64, 512), torch.zeros(2, 512, dtype=torch.bfloat16)
    y = gemv.gemv_logits._init_fn(*packed, x)
    ((grid, block, _, stream, values),) = launches
    assert (grid, block, stream) == (2, 384, 7)
    assert values[:4] == [tensor.data_ptr() for tensor in (*packed, x)]
    assert [value & 0xFFFFFFFF for value in values[4:7]] == [64, 512, 2]
    assert parameters("logits") == ["y"] and values[9:] == [y.data_ptr()]


def test_argmax_gets_null_for_the_ids_and_its_scratch(launches):
    packed, x = weights(64, 512), torch.zeros(1, 512, dtype=torch.bfloat16)
    scratch = torch.zeros(8 * 264, dtype=torch.int64)
    best, rows = gemv.gemv_argmax._init_fn(*packed, x, scratch)
    ((*_, values),) = launches
    assert parameters("argmax") == ["token_ids", "slots", "ids", "values"]
    assert values[9:] == [
        0,
        scratch.data_ptr(),
        rows.data_ptr(),
        best.data_ptr(),
    ]


def test_a_cubin_is_compiled_once_for_the_same_source(monkeypatch, tmp_path):
    environment = SimpleNamespace(VLLM_CACHE_ROOT=str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(envs=environment))
    monkeypatch.setitem(sys.modules, "vllm.envs", environment)
    source, compiled = tmp_path / "k" / "gemv.cu", []
    source.parent.mkdir()
    source.write_text("one")
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda path, options: compiled.append(options) or b"cubin")
    for _ in range(2):
        assert nvrtc.cached_cubin(source, ["--gpu-architecture=sm_90"]) == b"cubin"
    assert len(compiled) == 1
    source.write_text("two")
    nvrtc.cached_cubin(source, ["--gpu-architecture=sm_90"])
    nvrtc.cached_cubin(source, ["--gpu-architecture=sm_80"])
    assert len(compiled) == 3
