"""Does vLLM start here at all? Its package, its kernels, and its NVFP4 product, whose code the driver compiles and keeps: `smoke.py`."""

from __future__ import annotations

import torch
from torch.nn import Module
from vllm import LLM
from vllm.platforms import current_platform

from draftfast_vllm import nvfp4
from draftfast_vllm.kernels import VllmKernel

assert current_platform.is_cuda(), current_platform
layer, kernel = Module(), VllmKernel()
layer.params_dtype, layer.output_size_per_partition, layer.input_size_per_partition = torch.bfloat16, 256, 512
weight, x = (torch.randn(n, 512, device="cuda", dtype=torch.bfloat16) for n in (256, 4))
codes, scales, global_scale = nvfp4.quantize(weight)
expected = x.float() @ nvfp4.decode(codes, scales, global_scale).T
kernel.prepare(layer, codes, scales, global_scale)
error = float((kernel.apply(layer, x).float() - expected).norm() / expected.norm())
assert error < 1e-2, error
print(f"{LLM.__module__}: {kernel.name} is right within {error:.1e}")
