"""NVFP4 in torch: decode, the codes that a weight must have, and quantization at load for the seed's mask.

The Rust `nvfp4` module is the specification; these functions give the same bits on CPU and on CUDA.
"""

from __future__ import annotations

import torch

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
# The smallest block scale code that every kernel reads as it is: Marlin flushes the subnormal codes 1..7 to zero.
KERNEL_SAFE_MIN_CODE = 8
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(codes: torch.Tensor, block_scales: torch.Tensor, global_scale: torch.Tensor | float) -> torch.Tensor:
    """F32 [n, k] from codes U8 [n, k/2] and E4M3 scales [n, k/16]."""
    values = torch.tensor(MAGNITUDES + tuple(-m for m in MAGNITUDES), device=codes.device)
    nibbles = torch.stack((codes & 0xF, codes >> 4), dim=-1).flatten(1)
    n, k = nibbles.shape
    blocks = values[nibbles.long()].view(n, k // BLOCK, BLOCK)
    return (blocks * block_scales.float().unsqueeze(-1) * global_scale).view(n, k)


def decode_bf16(
    codes: torch.Tensor, block_scales: torch.Tensor, global_scale: float, dtype: torch.dtype
) -> torch.Tensor:
    """`decode`, rounded to `dtype`, a slab of rows at a time: the F32 form of a whole matrix is never in memory."""
    n, half_k = codes.shape
    out = torch.empty(n, 2 * half_k, dtype=dtype, device=codes.device)
    for begin in range(0, n, 4096):
        rows = slice(begin, begin + 4096)
        out[rows] = decode(codes[rows], block_scales[rows], global_scale)
    return out


def nearest_codes(weights: torch.Tensor, block_scales: torch.Tensor, global_scale: float) -> torch.Tensor:
    """U8 [n, k/2]: the codes that rounding to nearest, ties to even, gives these weights under these scales."""
    n, k = weights.shape
    step = block_scales.float() * torch.tensor(global_scale, dtype=torch.float32, device=weights.device)
    scaled = weights.float().view(n, k // BLOCK, BLOCK) / step.unsqueeze(-1)
    a = scaled.abs()
    # Half-way points go to the even code, so every second one belongs to the upper code.
    index = (a > 0.25).to(torch.uint8)
    for above in (a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0):
        index += above
    nibbles = (((scaled < 0).to(torch.uint8) << 3) | index).view(n, k // 2, 2)
    return nibbles[..., 0] | (nibbles[..., 1] << 4)


def quantize(weights: torch.Tensor, global_scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Max-rule NVFP4 of [n, k] weights: codes, E4M3 block scales, global scale (amax / 2688 when not given)."""
    n, k = weights.shape
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("weights hold NaN or infinity")
    if global_scale is None:
        amax = float(weights.abs().max())
        tiny = torch.finfo(torch.float32).tiny
        global_scale = 1.0 if amax == 0.0 else max(float(torch.tensor(amax) / (E2M1_MAX * E4M3_MAX)), tiny)
    gs = torch.tensor(global_scale, dtype=torch.float32, device=weights.device)
    codes = torch.empty(n, k // 2, dtype=torch.uint8, device=weights.device)
    scales = torch.empty(n, k // BLOCK, dtype=torch.float8_e4m3fn, device=weights.device)
    for begin in range(0, n, 4096):
        rows = slice(begin, begin + 4096)
        slab = weights[rows].float()
        amax = slab.view(-1, k // BLOCK, BLOCK).abs().amax(-1)
        bits = (amax / (E2M1_MAX * gs)).clamp(2.0**-9, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
        bits = torch.where(amax == 0, 0x38, bits.clamp(min=KERNEL_SAFE_MIN_CODE)).to(torch.uint8)
        scales[rows] = bits.view(torch.float8_e4m3fn)
        codes[rows] = nearest_codes(slab, scales[rows], global_scale)
    return codes, scales, global_scale
