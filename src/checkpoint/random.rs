//! Random weights that depend on nothing but a seed, a tensor name and a position, so that tiles can be made in any
//! order by any number of threads.
//!
//! A 64-bit hash of the position gives four 16-bit numbers, and each picks one of 65,536 quantiles of the normal
//! distribution, already rounded to BF16: up to 4.2 standard deviations, and as fast as memory.

use half::bf16;

/// A stream of random numbers: one a tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of tensor `name`.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: any fixed hash of the name will do.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(mix(seed).wrapping_add(hash))
    }

    /// The number at `position`.
    pub fn at(self, position: u64) -> u64 {
        mix(self.0.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// The finalizer of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A normal distribution, as BF16 quantiles.
pub(super) struct Normal(Vec<u16>);

impl Normal {
    /// Tabulates the distribution.
    pub fn new(mean: f64, standard_deviation: f64) -> Self {
        let value = |i: u32| mean + standard_deviation * normal_quantile((f64::from(i) + 0.5) / 65_536.0);
        Self((0..65_536).map(|i| bf16::from_f64(value(i)).to_bits()).collect())
    }

    /// Fills `bytes` with elements `first..`, little-endian; `first` is a multiple of 4.
    pub fn fill(&self, stream: Stream, first: u64, bytes: &mut [u8]) {
        for (position, quad) in (first / 4..).zip(bytes.chunks_mut(8)) {
            let mut random = stream.at(position);
            for element in quad.chunks_mut(2) {
                element.copy_from_slice(&self.0[random as u16 as usize].to_le_bytes());
                random >>= 16;
            }
        }
    }
}

/// The inverse of the normal distribution function, to about 1e-9 relative (P. J. Acklam's rational approximation).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] =
        [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416, 1.0];
    let polynomial = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    if p < 0.024_25 {
        let q = (-2.0 * p.ln()).sqrt();
        return polynomial(&C, q) / polynomial(&D, q);
    }
    let q = p - 0.5;
    q * polynomial(&A, q * q) / polynomial(&B, q * q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        // From standard tables.
        for (p, expected) in [(0.5, 0.0), (0.841_344_746, 1.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306)] {
            assert!((normal_quantile(p) - expected).abs() < 1e-7, "{p}");
        }
    }

    #[test]
    fn a_tile_does_not_depend_on_where_it_starts() {
        let normal = Normal::new(0.0, 0.02);
        let stream = Stream::new(7, "mtp.fc.weight");
        let mut whole = vec![0; 4096];
        normal.fill(stream, 0, &mut whole);
        let mut tail = vec![0; 2048];
        normal.fill(stream, 1024, &mut tail);
        assert_eq!(whole[2048..], tail);
    }

    #[test]
    fn samples_have_the_mean_and_deviation_asked_for_and_names_differ() {
        let normal = Normal::new(0.0, 0.02);
        let draw = |name| {
            let mut bytes = vec![0; 200_000];
            normal.fill(Stream::new(0, name), 0, &mut bytes);
            bytes
        };
        let bytes = draw("a");
        let values: Vec<f64> = bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 3e-4, "{mean}");
        assert!((variance.sqrt() / 0.02 - 1.0).abs() < 0.01, "{variance}");
        assert_ne!(bytes, draw("b"));
    }
}
