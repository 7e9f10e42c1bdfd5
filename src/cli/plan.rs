//! `draftfast plan`, and the flags of a machine and its traffic that `build` shares.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::build_vocab::EvidenceFlags;
use crate::plan::MOST_DRAFTED;

/// Predict how many rows and draft tokens serve best, and what they earn, before anyone serves it
///
/// Reads headers, not weights. Tokens a second follow from the bytes of a draft step and of a target step, the machine's
/// bandwidth, the acceptance of each draft position and the coverage of the draft vocabulary. What is not given is
/// assumed, and said loudly.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("machine").required(true).multiple(true).args(["hardware", "bandwidth"])),
    after_help = "Examples:\n  draftfast plan model/ --hardware gb10 --counts own.counts --vllm-metrics metrics.txt\n  \
                  draftfast plan model/ --bandwidth 1008 --acceptance 0.8 --k 3 --baseline 41"
)]
pub struct Plan {
    /// A model folder
    pub model: PathBuf,
    /// The folder to take the MTP tensors from, when MODEL has lost them
    #[arg(long, value_name = "MODEL")]
    pub mtp_from: Option<PathBuf>,
    /// A coverage curve: a vocabulary.json of `build-vocab`, or lines of `ROWS SHARE`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["corpus", "counts", "mixture", "heldout"])]
    pub coverage: Option<PathBuf>,
    /// Consider numbers of rows that are multiples of this
    #[arg(long, value_name = "ROWS", default_value_t = 128, value_parser = super::rows_of_a_tile)]
    pub pad_to: usize,
    /// Text or counts to rank ids by and to measure coverage on
    #[command(flatten)]
    pub evidence: EvidenceFlags,
    /// The machine and its traffic
    #[command(flatten)]
    pub serving: ServingFlags,
}

/// The machine and its traffic.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Serving")]
pub struct ServingFlags {
    /// gb10, rtx5090, rtx-pro-6000, b200, h200, or a NAME.toml with at least `bandwidth_gb_s`
    #[arg(long, value_name = "NAME")]
    pub hardware: Option<String>,
    /// A machine of which only the memory bandwidth is known
    #[arg(long, value_name = "GB/S", conflicts_with = "hardware", allow_negative_numbers = true)]
    pub bandwidth: Option<f64>,
    /// What `draftfast bench --json` measured on that machine: replaces its stated BF16 and NVFP4 shares
    #[arg(long, value_name = "FILE")]
    pub bench: Option<PathBuf>,
    /// One acceptance rate for every draft position
    #[arg(long, value_name = "RATE", group = "accepted", allow_negative_numbers = true)]
    pub acceptance: Option<f64>,
    /// Acceptance rates, the first position first: a JSON list, or one a line
    #[arg(long, value_name = "FILE", group = "accepted")]
    pub acceptance_curve: Option<PathBuf>,
    /// A dump of vLLM's /metrics with the spec_decode counters
    #[arg(long, value_name = "FILE", group = "accepted")]
    pub vllm_metrics: Option<PathBuf>,
    /// A log of SGLang with its accept lengths
    #[arg(long, value_name = "FILE", group = "accepted")]
    pub sglang_log: Option<PathBuf>,
    /// Draft tokens a step in that log, where it does not say so itself
    #[arg(long, value_name = "K", requires = "sglang_log")]
    pub logged_k: Option<usize>,
    /// Draft tokens a step to consider: a number or a range
    #[arg(long, value_name = "FROM..TO", default_value = "1..12", value_parser = drafted)]
    pub k: Drafted,
    /// Requests decoded together
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub batch: u16,
    /// Tokens of context of each request, whose keys and values are read
    #[arg(long, value_name = "TOKENS", default_value_t = 1_024)]
    pub context: usize,
    /// The measured tokens a second of one request without speculation: replaces the predicted target step
    #[arg(long, value_name = "TOK/S", allow_negative_numbers = true)]
    pub baseline: Option<f64>,
}

/// The numbers of draft tokens to consider.
#[derive(Debug, Clone)]
pub struct Drafted(pub Vec<usize>);

/// `7`, `1..12` or `1..=12`: both ends count.
fn drafted(text: &str) -> Result<Drafted, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("`{text}` is not a number"));
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (number(from)?, number(to.trim_start_matches('='))?),
        None => (number(text)?, number(text)?),
    };
    if from == 0 || from > to || to > MOST_DRAFTED {
        return Err(format!("expected numbers from 1 to {MOST_DRAFTED}, the smaller first"));
    }
    Ok(Drafted((from..=to).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_of_draft_tokens_are_read() {
        assert_eq!(drafted("3").unwrap().0, [3]);
        assert_eq!(drafted("1..3").unwrap().0, [1, 2, 3]);
        assert_eq!(drafted("1..=3").unwrap().0, [1, 2, 3]);
        for text in ["", "0", "3..1", "1..99", "x", "1..x"] {
            assert!(drafted(text).is_err(), "{text}");
        }
    }
}
