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

SOURCES = "".join(
    (Path(__file__).parents[2] / f"kernels/{name}").read_text() for name in ("gemv_mma.cu", "gemv_mma_layer.cu")
)
CARD = Card(132, 226 * 1024, 2, 15)


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
        for result in gemv.RESULTS
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
    (signature,) = re.findall(rf"NAME##_{kernel_suffix}\(WEIGHTS_AND_X,(.*?)\) \{{", SOURCES, re.S)
    return [part.split()[-1].lstrip("*") for part in signature.replace("\\", " ").split(",")]


def test_a_layer_gets_the_kernels_parameters(launches):
    packed, x = weights(64, 512), torch.zeros(2, 512, dtype=torch.bfloat16)
    y = torch.empty(2, 64, dtype=torch.bfloat16)
    gemv._run("layer", packed, x, [], [y])
    ((grid, block, _, stream, values),) = launches
    assert (grid, block, stream) == (2, 32 * make_plan(64, 512, 2, CARD).warps, 7)
    assert values[:4] == [tensor.data_ptr() for tensor in (*packed, x)]
    assert [value & 0xFFFFFFFF for value in values[4:7]] == [64, 512, 2]
    assert parameters("layer") == ["y"] and values[9:] == [y.data_ptr()]


def test_argmax_gets_the_ids_and_its_scratch(launches):
    packed, x = weights(64, 512), torch.zeros(1, 512, dtype=torch.bfloat16)
    token_ids, scratch = torch.arange(64, dtype=torch.int32), torch.zeros(8 * 264, dtype=torch.int64)
    best, ids = gemv.argmax._init_fn(*packed, x, token_ids, scratch)
    ((*_, values),) = launches
    assert parameters("argmax") == ["token_ids", "slots", "ids", "values"]
    assert values[9:] == [tensor.data_ptr() for tensor in (token_ids, scratch, ids, best)]


def test_more_vectors_than_a_launch_takes_take_several(launches):
    packed, x = weights(64, 512), torch.zeros(19, 512, dtype=torch.bfloat16)
    y = torch.empty(19, 64, dtype=torch.bfloat16)
    gemv._run("layer", packed, x, [], [y])
    assert [values[6] & 0xFFFFFFFF for *_, values in launches] == [8, 8, 3]
    assert [values[3] - x.data_ptr() for *_, values in launches] == [0, 8 * 1024, 16 * 1024]
    assert [values[9] - y.data_ptr() for *_, values in launches] == [0, 8 * 128, 16 * 128]


def test_a_vector_that_begins_between_sixteen_bytes_is_copied(launches):
    packed, buffer = weights(64, 512), torch.zeros(520, dtype=torch.bfloat16)
    gemv._run("layer", packed, buffer[4:516].view(1, 512), [], [torch.empty(1, 64, dtype=torch.bfloat16)])
    gemv._run("layer", packed, buffer[8:].view(1, 512), [], [torch.empty(1, 64, dtype=torch.bfloat16)])
    (*_, first), (*_, second) = launches
    assert first[3] % 16 == 0 and first[3] != buffer.data_ptr() + 8 and second[3] == buffer.data_ptr() + 16


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
