"""Which kernel multiplies by packed weights, and the parameters it keeps on a module.

`vllm` is vLLM's own W4A16 choice for the GPU (Marlin, CuTe-DSL, Humming, B12x). `draftfast` is our GEMV (`gemv`). A CPU has
no NVFP4 kernel: weights are decoded to the model's dtype once, `decoded`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import Module, Parameter

from draftfast_vllm import nvfp4


class Kernel(Protocol):
    """`prepare` takes codes, scales and the global scale to the kernel's own layout on `layer`; `apply` multiplies."""

    @property
    def name(self) -> str: ...

    def prepare(self, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> None: ...

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor: ...

    def top(self, layer: Module, x: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


class TopOfLogits:
    """`top` for kernels that have none of their own: the largest logit of each vector, and the id of its first row."""

    def top(self, layer: Module, x: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M] values and I32 [M] ids, of I32 [N] `token_ids`."""
        values, rows = self.apply(layer, x).max(dim=-1)  # type: ignore[attr-defined]
        return values, token_ids[rows]


class DecodedKernel(TopOfLogits):
    """The reference: weights decoded to the model's dtype, multiplied by torch."""

    name = "decoded"

    def prepare(self, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> None:
        weight = nvfp4.decode_bf16(codes, scales, global_scale, layer.params_dtype)
        layer.register_parameter("weight", Parameter(weight, requires_grad=False))

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


class VllmKernel(TopOfLogits):
    """vLLM's W4A16 kernel, by the same steps as its own online lm_head quantization."""

    def __init__(self) -> None:
        from vllm.model_executor.kernels.linear import init_nvfp4_linear_kernel

        self._kernel = init_nvfp4_linear_kernel(use_a16=True)
        self.name = type(self._kernel).__name__

    def prepare(self, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> None:
        """Expects `params_dtype`, `output_size_per_partition` and `input_size_per_partition` on the layer."""
        layer.register_parameter("weight", Parameter(codes, requires_grad=False))
        layer.register_parameter("weight_scale", Parameter(scales, requires_grad=False))
        scale = torch.tensor(global_scale, dtype=torch.float32, device=codes.device)
        layer.register_parameter("weight_global_scale", Parameter(scale, requires_grad=False))
        self._kernel.process_weights_after_loading(layer)

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self._kernel.apply_weights(layer, x, bias)
