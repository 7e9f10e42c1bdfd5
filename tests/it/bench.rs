//! `bench` where there is no GPU: the plan, and one sentence.

use crate::{draftfast, stderr, stdout};

#[test]
fn a_dry_run_names_every_product_and_its_bytes() {
    let output = draftfast(&["bench", "--shape", "64064x5120", "--dry-run"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    // 64064 * 5120 weights: 2 bytes each, then 9/16 of a byte each
    assert!(text.contains("656,015,360") && text.matches("184,504,320").count() == 2, "{text}");
}

#[test]
fn a_shape_that_nvfp4_cannot_have_is_refused() {
    let output = draftfast(&["bench", "--shape", "64x100", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("64 x 100 is no NVFP4 matrix"), "{}", stderr(&output));
    assert_eq!(draftfast(&["bench", "--shape", "64", "--dry-run"]).status.code(), Some(2));
    assert_eq!(draftfast(&["bench", "--dry-run"]).status.code(), Some(2));
}

#[test]
fn the_cpu_has_nothing_to_time() {
    let output = draftfast(&["bench", "--shape", "64x256", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: `bench` times a GPU"), "{}", stderr(&output));
}
