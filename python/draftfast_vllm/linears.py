"""The MTP linears: found in the drafter by their checkpoint names, filled through vLLM's own shard loaders.

vLLM fuses q, k, v and gate, up into one module each; the parts of a sidecar share one global scale for that reason.
The BF16 original goes before the packed parameters come, so memory falls.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.nn import Module

from draftfast_vllm import kernels
from draftfast_vllm.backend import fill_linear
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.nvfp4 import BLOCK
from draftfast_vllm.sidecar import Packed, Sidecar

# Part of a checkpoint -> (module that vLLM fuses it into, its shard there).
FUSED = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "q_a_proj": ("fused_qkv_a_proj", 0),
    "kv_a_proj_with_mqa": ("fused_qkv_a_proj", 1),
}
KEEP_HINT = 'leave linears as the target ships them with `"keep_bf16": ["GLOB"]`'


@dataclass
class Group:
    """One vLLM module and the sidecar linears that fill it, by shard; the shard is None when it is not fused."""

    name: str
    module: Module
    parts: dict[str | int | None, Packed] = field(default_factory=dict)


class Nvfp4Method:
    """Stands where the linear's `quant_method` stood."""

    def __init__(self, kernel: kernels.Kernel) -> None:
        self.kernel = kernel

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """What vLLM's linear modules call in `forward`."""
        return self.kernel.apply(layer, x, bias)


class PlainLinear(Module):
    """Replaces a `torch.nn.Linear` (the `eh_proj` of the DeepSeek and GLM families), which has no quant_method."""

    kernel: kernels.Kernel

    def __init__(self, original: torch.nn.Linear) -> None:
        super().__init__()
        self.params_dtype, self.bias = original.weight.dtype, original.bias
        self.output_size_per_partition, self.input_size_per_partition = original.weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, N]."""
        return self.kernel.apply(self, x, self.bias)


def wanted(sidecar: Sidecar, keep_bf16: Iterable[str]) -> list[Packed]:
    """The sidecar's linears but for those that a glob of the settings keeps."""
    globs = tuple(keep_bf16)
    return [linear for linear in sidecar.linears if not any(fnmatch.fnmatchcase(linear.name, glob) for glob in globs)]


def group(drafter: Module, linears: Iterable[Packed]) -> list[Group]:
    """Each linear in its module; an error names a linear without one, and a module with parts missing."""
    modules = dict(drafter.named_modules())
    groups: dict[str, Group] = {}
    for linear in linears:
        name, shard = _locate(linear.name, modules)
        groups.setdefault(name, Group(name, modules[name])).parts[shard] = linear
    for found in groups.values():
        _check_group(found)
    return list(groups.values())


def candidates(name: str) -> list[tuple[str, str | int | None]]:
    """Module names and shards that a checkpoint name can mean in vLLM's draft models, the likeliest first."""
    inner = name.removeprefix("model.").removeprefix("mtp.") if name.startswith(("mtp.", "model.mtp.")) else None
    paths = [f"model.{inner}"] if inner is not None else [name]
    if name.startswith("model.layers."):
        # DeepSeek and GLM: model.layers.L.X lives in model.layers.L.mtp_block.X, but for eh_proj and the norms.
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        paths.append(f"model.layers.{layer}.mtp_block.{rest}")
    found: list[tuple[str, str | int | None]] = []
    for path in paths:
        parent, _, leaf = path.rpartition(".")
        if leaf in FUSED:
            fused, shard = FUSED[leaf]
            found.append((f"{parent}.{fused}", shard))
        found.append((path, None))
    return found


def _locate(name: str, modules: dict[str, Module]) -> tuple[str, str | int | None]:
    for path, shard in candidates(name):
        module = modules.get(path)
        if module is not None and (hasattr(module, "quant_method") or isinstance(module, torch.nn.Linear)):
            return path, shard
    tried = ", ".join(f"`{path}`" for path, _ in candidates(name))
    raise DraftfastError(
        f"tensor `{name}.weight` of the sidecar has no linear in the drafter: looked for {tried}",
        f"vLLM may have fused it into the experts; {KEEP_HINT}",
    )


def _check_group(found: Group) -> None:
    expected: set[str | int | None] = {None}
    if None not in found.parts:
        sizes = getattr(found.module, "output_sizes", None)
        expected = {"q", "k", "v"} if "q" in found.parts else set(range(len(sizes or ())))
        if "q" in found.parts and "Indexer" in type(found.module).__name__:
            expected |= {"index_q", "index_k"}
    if set(found.parts) != expected:
        missing = ", ".join(f"`{shard}`" for shard in sorted(expected - set(found.parts), key=str))
        raise DraftfastError(
            f"module `{found.name}` of the drafter needs its shard {missing} quantized too, and the sidecar has it not",
            KEEP_HINT,
        )
    scales = {part.global_scale for part in found.parts.values()}
    if len(scales) > 1:
        raise DraftfastError(
            f"the parts of module `{found.name}` have the global scales {sorted(scales)}, expected one for all"
        )
    for shard, part in found.parts.items():
        _check_shape(part.name, (part.n, part.k), _whole_shape(found.module, shard))
    if getattr(found.module, "bias", None) is not None and not isinstance(found.module, torch.nn.Linear):
        raise DraftfastError(f"module `{found.name}` of the drafter has a bias, and the sidecar has none", KEEP_HINT)


def _whole_shape(layer: Module, shard: str | int | None) -> tuple[int, int]:
    """[N, K] of the checkpoint's tensor, over all ranks."""
    if isinstance(layer, torch.nn.Linear):
        return layer.out_features, layer.in_features
    if shard is None:
        return layer.output_size, layer.input_size
    if isinstance(shard, int):
        return layer.output_sizes[shard], layer.input_size
    if shard == "q":
        return layer.total_num_heads * layer.head_size, layer.input_size
    if shard in ("k", "v"):
        head_size = layer.head_size if shard == "k" else getattr(layer, "v_head_size", layer.head_size)
        return layer.total_num_kv_heads * head_size, layer.input_size
    raise DraftfastError(f"shard `{shard}` of `{type(layer).__name__}` cannot be filled from a sidecar", KEEP_HINT)


def load(drafter: Module, found: Group, sidecar: Sidecar, device: torch.device, backend: str) -> str:
    """Replaces the module's weight by the sidecar's; returns the name of the kernel."""
    layer = found.module
    global_scale = next(iter(found.parts.values())).global_scale
    if isinstance(layer, torch.nn.Linear):
        replacement = PlainLinear(layer)
        (part,) = found.parts.values()
        parent, _, leaf = found.name.rpartition(".")
        setattr(drafter.get_submodule(parent), leaf, replacement)
        packed = (*_whole(sidecar, part, device), global_scale)
        replacement.kernel = fill_linear(backend, found.name, replacement, *packed)
        return replacement.kernel.name
    n, k = partition_shape(layer)
    if k % BLOCK:
        raise DraftfastError(
            f"module `{found.name}` has {k} columns on this rank, expected a multiple of {BLOCK}",
            "use a smaller tensor parallel size",
        )
    free_original(layer)
    codes = _sharded(found, sidecar, "weight", torch.empty(n, k // 2, dtype=torch.uint8, device=device))
    scales = torch.empty(n, k // BLOCK, dtype=torch.uint8, device=device)
    scales = _sharded(found, sidecar, "weight_scale", scales).view(torch.float8_e4m3fn)
    kernel = fill_linear(backend, found.name, layer, codes, scales, global_scale)
    layer.quant_method = Nvfp4Method(kernel)
    return kernel.name


def tensor(sidecar: Sidecar, name: str) -> torch.Tensor:
    """A sidecar tensor as bytes or its dtype, over the file's memory map."""
    entry = sidecar.file.entries[name]
    dtype = {"I64": torch.int64}.get(entry.dtype, torch.uint8)
    with warnings.catch_warnings():
        # The map is read-only, of which torch warns; nothing here writes to it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(sidecar.file.bytes_of(name), dtype=dtype).view(entry.shape)


def _whole(sidecar: Sidecar, part: Packed, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    codes = tensor(sidecar, f"{part.name}.weight").to(device, copy=True)
    return codes, tensor(sidecar, f"{part.name}.weight_scale").to(device, copy=True).view(torch.float8_e4m3fn)


def partition_shape(layer: Module) -> tuple[int, int]:
    """Rows and columns on this rank, which kernels read from the layer: a ReplicatedLinear has only the whole sizes."""
    sizes = getattr(layer, "output_partition_sizes", None)
    n = sum(sizes) if sizes else getattr(layer, "output_size_per_partition", None) or layer.output_size
    k = getattr(layer, "input_size_per_partition", None) or layer.input_size
    layer.output_size_per_partition, layer.input_size_per_partition = n, k
    return n, k


def free_original(layer: Module) -> None:
    """Lets go of the linear's weight, and of every reference that vLLM keeps to it."""
    for name in [name for name, _ in layer.named_parameters(recurse=False) if name != "bias"]:
        delattr(layer, name)
    # vLLM's CPU linear keeps the packed original in a closure.
    if hasattr(layer, "cpu_linear"):
        del layer.cpu_linear


def _sharded(found: Group, sidecar: Sidecar, suffix: str, empty: torch.Tensor) -> torch.Tensor:
    """Fills `empty`, this rank's share, by the module's own loader, which knows how its shards lie."""
    from vllm.model_executor.parameter import ModelWeightParameter

    layer = found.module
    if not hasattr(layer, "weight_loader_v2"):
        (part,) = found.parts.values()
        return empty.copy_(tensor(sidecar, f"{part.name}.{suffix}"))
    parameter = ModelWeightParameter(data=empty, input_dim=1, output_dim=0, weight_loader=layer.weight_loader_v2)
    # A linear may be replicated (`disable_tp`) in a tensor parallel engine.
    parameter.tp_rank, parameter.tp_size = layer.tp_rank, layer.tp_size
    for shard, part in found.parts.items():
        source = tensor(sidecar, f"{part.name}.{suffix}")
        if shard is None:
            layer.weight_loader_v2(parameter, source)
        else:
            layer.weight_loader_v2(parameter, source, shard)
    return parameter.data


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(found) != tuple(expected):
        raise DraftfastError(
            f"tensor `{name}.weight` of the sidecar has shape {list(found)}, and the drafter's has {list(expected)}"
        )
