"""NVFP4 in torch against the definition, value by value."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the plugin's tensor code needs torch")

from draftfast_vllm import identity, nvfp4  # noqa: E402

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES += [-value for value in VALUES]


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 0xF, code & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if code & 0x80 else value


def test_every_code_under_every_scale_decodes_by_the_definition():
    codes = torch.tensor([low | high << 4 for low in range(16) for high in (low, 15 - low)], dtype=torch.uint8).view(
        4, 8
    )
    for scale_code in [*range(0x7F), *range(0x80, 0xFF)]:
        scales = torch.full((4, 1), scale_code, dtype=torch.uint8).view(torch.float8_e4m3fn)
        decoded = nvfp4.decode(codes, scales, 0.37)
        gs = torch.tensor(0.37, dtype=torch.float32)
        for row in range(4):
            for k in range(16):
                code = int(codes[row, k // 2]) >> (4 * (k % 2)) & 0xF
                expected = torch.tensor(VALUES[code] * e4m3(scale_code), dtype=torch.float32) * gs
                assert decoded[row, k] == expected


def test_slabs_of_rows_decode_as_the_whole():
    codes = torch.randint(0, 256, (5000, 16), dtype=torch.uint8)
    scales = torch.randint(0, 0x7F, (5000, 2), dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(
        nvfp4.decode_bf16(codes, scales, 0.01, torch.bfloat16), nvfp4.decode(codes, scales, 0.01).to(torch.bfloat16)
    )


def test_half_way_points_go_to_the_even_code():
    ties = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6}
    weights = torch.tensor([*ties, 0.0, -0.0, 6.0, 7.0, 100.0, -1e-30, 0.26, -0.74, -5.1])
    expected = [*ties.values(), 0, 0, 7, 7, 7, 8, 1, 9, 15]
    one = torch.full((1, 1), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    packed = nvfp4.nearest_codes(weights.view(1, 16), one, 1.0)[0]
    assert [int(packed[k // 2]) >> (4 * (k % 2)) & 0xF for k in range(16)] == expected


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-38, 3e4])
def test_quantizing_keeps_values_that_the_format_holds_and_its_codes_are_the_nearest(scale):
    weights = (torch.randn(64, 64) * scale).to(torch.bfloat16)
    weights[3] = 0
    codes, scales, gs = nvfp4.quantize(weights)
    assert not torch.isnan(scales.float()).any()
    assert torch.equal(nvfp4.nearest_codes(weights, scales, gs), codes)
    decoded = nvfp4.decode(codes, scales, gs)
    assert (decoded[3] == 0).all()
    if scale != 1e-38:
        error = (decoded - weights.float()).norm() / weights.float().norm()
        assert error < 0.11


def test_blocks_never_get_a_scale_that_marlin_flushes():
    weights = torch.full((2, 32), 1e-9)
    weights[0, 0] = 100.0
    _, scales, _ = nvfp4.quantize(weights.to(torch.bfloat16))
    assert int(scales.view(torch.uint8).min()) >= nvfp4.KERNEL_SAFE_MIN_CODE


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        nvfp4.quantize(torch.tensor([[float("nan")] * 16]))


def test_differing_codes_are_counted_and_zeros_of_both_signs_are_one():
    a = torch.tensor([[0x00, 0x21, 0x80]], dtype=torch.uint8)
    b = torch.tensor([[0x88, 0x2F, 0x90]], dtype=torch.uint8)
    assert int(identity._count_differing(a, a)) == 0
    assert int(identity._count_differing(a, b)) == 2
