//! The quantizer on a real head and real hidden states (`../shared/data/real_head`, README there): the figures that other
//! people's code measured, and the bars of rounding with error feedback. Fitted on the calibration half, judged on the
//! test half.

use draftfast::{
    nvfp4::{self, GptqConfig, GptqPlan, Hessian, QuantizeConfig, ScaleRule, quality},
    report::Progress,
};
use half::bf16;
use safetensors::SafeTensors;

use crate::nvfp4::{bf16s, shared};

const K: usize = 576;

struct Fixture {
    head: Vec<bf16>,
    calibration: Vec<bf16>,
    test: Vec<bf16>,
}

fn fixture() -> Option<Fixture> {
    let bytes = shared("real_head/smollm2_head_fixture.safetensors")?;
    let file = SafeTensors::deserialize(&bytes).unwrap();
    Some(Fixture {
        head: bf16s(&file, "lm_head.weight"),
        calibration: bf16s(&file, "hidden.calibration"),
        test: bf16s(&file, "hidden.test"),
    })
}

struct Quantized {
    codes: Vec<u8>,
    block_scales: Vec<u8>,
    global_scale: f32,
}

impl Quantized {
    fn of(head: &[bf16], rule: ScaleRule, importance: Option<&[f32]>, kernel_safe: bool) -> Self {
        let global_scale = rule.global_scale(nvfp4::amax(head));
        let (mut codes, mut block_scales) = (vec![0; head.len() / 2], vec![0; head.len() / 16]);
        let config = QuantizeConfig { rule, importance, kernel_safe };
        nvfp4::quantize_rows(head, K, global_scale, &config, &mut codes, &mut block_scales);
        Self { codes, block_scales, global_scale }
    }

    fn gptq<W: nvfp4::Weight>(head: &[W], states: &[bf16], config: &GptqConfig) -> Self {
        let global_scale = nvfp4::global_scale(nvfp4::amax(head));
        let (mut codes, mut block_scales) = (vec![0; head.len() / 2], vec![0; head.len() / 16]);
        let hessian = Hessian::from_states(states, K).unwrap();
        let plan = GptqPlan::new(&hessian, config, &Progress::silent()).unwrap();
        nvfp4::gptq_rows(head, K, global_scale, &plan, &mut codes, &mut block_scales);
        Self { codes, block_scales, global_scale }
    }

    fn quality(&self, head: &[bf16], states: &[bf16]) -> quality::Quality {
        let Self { codes, block_scales, global_scale } = self;
        let quantized = quality::Head::Nvfp4 { codes, block_scales, global_scale: *global_scale };
        quality::compare(quality::Head::Bf16(head), quantized, K, states, |head, k, states| {
            Ok(quality::logits(head, k, states))
        })
        .unwrap()
    }

    fn relative(&self, head: &[bf16]) -> f64 {
        nvfp4::error_stats(head, &self.codes, &self.block_scales, K, self.global_scale, None).relative()
    }
}

/// relF, centred error, top-1 %, top-4 %, KL: the figures of the fixture's README and their tolerances.
fn assert_figures(name: &str, quantized: &Quantized, fixture: &Fixture, expected: [f64; 5]) {
    let q = quantized.quality(&fixture.head, &fixture.test);
    let found =
        [quantized.relative(&fixture.head), q.centred_error, q.top1_agreement * 100.0, q.top4_agreement * 100.0, q.kl];
    let tolerances = [1e-4, 1e-4, 0.3, 0.3, 0.02 * expected[4]];
    for ((found, expected), tolerance) in found.iter().zip(expected).zip(tolerances) {
        assert!((found - expected).abs() <= tolerance, "{name}: {found} instead of {expected}: {q:?}");
    }
}

#[test]
fn scale_rules_err_on_a_real_head_as_measured_elsewhere() {
    let Some(fixture) = fixture() else { return };
    let head = &fixture.head;
    let importance = nvfp4::importance_of_states(&fixture.calibration, K);
    let max = Quantized::of(head, ScaleRule::Max, None, false);
    assert_figures("max", &max, &fixture, [0.09293, 0.19026, 85.16, 99.32, 0.08287]);
    let four_six = Quantized::of(head, ScaleRule::FourSix1536, None, false);
    assert_figures("four-six, 1536", &four_six, &fixture, [0.08646, 0.17072, 83.40, 99.32, 0.07733]);
    let four_six = Quantized::of(head, ScaleRule::FourSix, None, true);
    let q = four_six.quality(head, &fixture.test);
    assert!(q.centred_error <= 0.172 && q.kl <= 0.0704, "four-six: {q:?}");
    let mse = Quantized::of(head, ScaleRule::Mse, None, false);
    assert_figures("mse", &mse, &fixture, [0.08169, 0.19557, 81.93, 98.73, 0.10571]);
    let weighted = Quantized::of(head, ScaleRule::Mse, Some(&importance), true);
    assert_figures("mse, E[x^2]", &weighted, &fixture, [0.08804, 0.11749, 90.04, 99.51, 0.04377]);
}

#[test]
fn error_feedback_drafts_better_than_any_scale_rule() {
    let Some(fixture) = fixture() else { return };
    let gptq = Quantized::gptq(&fixture.head, &fixture.calibration, &GptqConfig::default());
    let q = gptq.quality(&fixture.head, &fixture.test);
    assert!(q.centred_error <= 0.0670 && q.kl <= 0.0138, "{q:?}");
}

#[test]
fn a_row_shift_takes_more_off_the_divergence() {
    let Some(fixture) = fixture() else { return };
    let shift = nvfp4::row_shift(&fixture.head, K, &fixture.calibration);
    let shifted: Vec<f32> = fixture
        .head
        .chunks_exact(K)
        .flat_map(|row| row.iter().zip(&shift).map(|(w, shift)| w.to_f32() - shift))
        .collect();
    let gptq = Quantized::gptq(&shifted, &fixture.calibration, &GptqConfig::default());
    let q = gptq.quality(&fixture.head, &fixture.test);
    assert!(q.kl <= 0.0127, "{q:?}");
}

#[test]
fn error_feedback_gives_the_same_bytes_for_any_thread_count_and_division_into_tiles() {
    let Some(fixture) = fixture() else { return };
    let (head, states) = (&fixture.head[..100 * K], &fixture.calibration[..200 * K]);
    let bytes = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        let quantized = pool.install(|| Quantized::gptq(head, states, &GptqConfig::default()));
        (quantized.codes, quantized.block_scales)
    };
    let (codes, block_scales) = bytes(1);
    assert!((codes.clone(), block_scales.clone()) == bytes(3));
    assert!(block_scales.iter().all(|code| (8..=126).contains(code)), "every scale is kernel-safe");
    let plan =
        GptqPlan::new(&Hessian::from_states(states, K).unwrap(), &GptqConfig::default(), &Progress::silent()).unwrap();
    let (mut tile_codes, mut tile_scales) = (vec![0; 7 * K / 2], vec![0; 7 * K / 16]);
    let global_scale = nvfp4::global_scale(nvfp4::amax(head));
    nvfp4::gptq_rows(&head[40 * K..47 * K], K, global_scale, &plan, &mut tile_codes, &mut tile_scales);
    assert!(tile_codes == codes[40 * K / 2..47 * K / 2] && tile_scales == block_scales[40 * K / 16..47 * K / 16]);
}
