"""A sidecar by plain torch, until and beside `draftfast build`: `reference_sidecar.py MODEL OUT IDS.json`.

Max-rule NVFP4, nearest rounding, q/k/v and gate/up with one global scale. The second maker of the format, written from
its description alone, so that a misreading shared by builder and plugin shows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FUSED = ({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {"mlp.gate_proj", "mlp.up_proj"})
LINEARS = ("mtp.fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantize(weight: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and E4M3 scales: each block's largest magnitude becomes 6, each weight the nearest value, ties to even."""
    n, k = weight.shape
    blocks = weight.float().view(n, k // 16, 16)
    amax = blocks.abs().amax(-1)
    scale_bits = (amax / (6 * global_scale)).clamp(2**-9, 448).to(torch.float8_e4m3fn).view(torch.uint8).clamp(min=8)
    scales = torch.where(amax == 0, torch.tensor(0x38, dtype=torch.uint8), scale_bits).view(torch.float8_e4m3fn)
    x = blocks / (scales.float() * global_scale).unsqueeze(-1)
    distance = (x.abs().unsqueeze(-1) - MAGNITUDES).abs()
    # Even codes first among equals: a stable choice of the least (distance, oddness).
    code = (distance * 16 + (torch.arange(8) % 2) * 1e-6).argmin(-1).to(torch.uint8) | ((x < 0).to(torch.uint8) << 3)
    code = code.view(n, k // 2, 2)
    return code[..., 0] | (code[..., 1] << 4), scales


def build(model: Path, out: Path, ids: list[int], n_rows: int | None = None, linears: bool = True) -> None:
    """Writes `out`. `n_rows` beyond the ids repeats the first of them."""
    tensors = load_file(model / "model.safetensors")
    head = tensors["lm_head.weight"]
    rows = torch.tensor(ids + [ids[0]] * ((n_rows or len(ids)) - len(ids)))
    written: dict[str, torch.Tensor] = {"draft_head.token_ids": rows}
    pack(written, {"draft_head": head[rows]})
    mtp = {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}
    packed = {
        name.removesuffix(".weight"): t
        for name, t in mtp.items()
        if linears and name.removesuffix(".weight").endswith(LINEARS)
    }
    for names in groups(list(packed)):
        pack(written, {name: packed[name] for name in names})
    written |= {name: tensor for name, tensor in mtp.items() if name.removesuffix(".weight") not in packed}
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in written.items()},
        out / "drafter.safetensors",
        metadata={"format": "pt", "draftfast.format": "1"},
    )
    (out / "config.json").write_bytes((model / "config.json").read_bytes())
    manifest = {
        "format": 1,
        "target": {
            "family": "qwen3.5-dense", "target_rows": head.shape[0], "hidden_size": head.shape[1], "head_tensor": "lm_head.weight",
            "tied": False, "head_tree_sha256": tree_sha256(head.view(torch.uint8).numpy().tobytes()), "files": {},
        },
        "vocabulary": {"n_real_rows": len(ids), "n_rows": len(rows)},
        "recipe": {"rounding": "nearest"},
        "tensors": {name: {"to": "NVFP4"} for name in ("draft_head", *packed)},
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
    write_sums(out)


def tree_sha256(data: bytes) -> str:
    """The sha256 of the sha256 digests of the pieces of 1 MiB."""
    pieces = (hashlib.sha256(data[at : at + 2**20]) for at in range(0, len(data), 2**20))
    return hashlib.sha256(b"".join(piece.digest() for piece in pieces)).hexdigest()


def groups(names: list[str]) -> list[list[str]]:
    """Names that share a global scale."""
    found: dict[str, list[str]] = {}
    for name in names:
        key = next((min(group) for group in FUSED if any(name.endswith(part) for part in group)), name)
        found.setdefault(key, []).append(name)
    return list(found.values())


def pack(written: dict[str, torch.Tensor], parts: dict[str, torch.Tensor]) -> None:
    """Adds the three tensors of each part, with the global scale of all parts together."""
    amax = max(float(part.abs().max()) for part in parts.values())
    global_scale = torch.tensor(amax, dtype=torch.float32) / 2688
    for name, weight in parts.items():
        written[f"{name}.weight"], written[f"{name}.weight_scale"] = quantize(weight, global_scale)
        written[f"{name}.weight_scale_2"] = global_scale.clone()


def write_sums(out: Path) -> None:
    """`sha256sums.txt` over the other files."""
    names = sorted(path.name for path in out.iterdir() if path.name != "sha256sums.txt")
    lines = [f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (out / "sha256sums.txt").write_text("".join(lines))


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
