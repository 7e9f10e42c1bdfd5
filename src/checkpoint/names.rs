//! Tensor names: the patterns of the family tables, and the wrappers that checkpoints put before them.

/// What multimodal and text-only exports put before the names of a family table.
pub(super) const WRAPPERS: &[&str] =
    &["", "model.", "language_model.", "model.language_model.", "language_model.model."];

/// Endings of the tensors that accompany a quantized `X.weight`, after `X.`.
const COMPANIONS: &[&str] = &[
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "input_scale",
    "input_global_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
];

/// The numbers that a pattern's placeholders stood for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Indices {
    /// `{i}`: the MTP layer.
    pub layer: Option<usize>,
    /// `{e}`: the expert.
    pub expert: Option<usize>,
}

/// Matches the beginning of a name against a pattern, where `{L}` starts at `n_layers`; returns the rest.
pub(super) fn match_start<'n>(pattern: &str, name: &'n str, n_layers: usize) -> Option<(Indices, &'n str)> {
    let mut indices = Indices::default();
    let (mut pattern, mut name) = (pattern, name);
    while let Some((literal, rest)) = pattern.split_once('{') {
        let (placeholder, after) = rest.split_once('}')?;
        name = name.strip_prefix(literal)?;
        let n_digits = name.bytes().take_while(u8::is_ascii_digit).count();
        let number: usize = name[..n_digits].parse().ok()?;
        match placeholder {
            "i" => indices.layer = Some(number),
            "L" => indices.layer = Some(number.checked_sub(n_layers)?),
            "e" => indices.expert = Some(number),
            _ => return None,
        }
        (pattern, name) = (after, &name[n_digits..]);
    }
    Some((indices, name.strip_prefix(pattern)?))
}

/// Matches a whole name.
pub(super) fn matches(pattern: &str, name: &str, n_layers: usize) -> Option<Indices> {
    match_start(pattern, name, n_layers).and_then(|(indices, rest)| rest.is_empty().then_some(indices))
}

/// The name of a pattern with its placeholders filled.
pub(super) fn fill(pattern: &str, layer: usize, n_layers: usize, expert: usize) -> String {
    pattern
        .replace("{i}", &layer.to_string())
        .replace("{L}", &(n_layers + layer).to_string())
        .replace("{e}", &expert.to_string())
}

/// `X.weight`, if the name is that of a scale or another companion of it.
pub(super) fn owner(name: &str) -> Option<String> {
    let (stem, last) = name.rsplit_once('.')?;
    COMPANIONS.contains(&last).then(|| format!("{stem}.weight"))
}

/// `A.B.FUSED` for part `A.B.q_proj.weight`.
pub(super) fn fused_name(name: &str, fused: &str) -> String {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let parent = module.rsplit_once('.').map_or("", |(parent, _)| parent);
    format!("{parent}.{fused}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_match_digits_only_and_target_layers_are_not_mtp_layers() {
        let pattern = "model.layers.{L}.mlp.experts.{e}.up_proj.weight";
        let matched = matches(pattern, "model.layers.61.mlp.experts.7.up_proj.weight", 61).unwrap();
        assert_eq!(matched, Indices { layer: Some(0), expert: Some(7) });
        assert_eq!(matches(pattern, "model.layers.60.mlp.experts.7.up_proj.weight", 61), None);
        assert_eq!(matches(pattern, "model.layers.61.mlp.experts.x.up_proj.weight", 61), None);
        assert_eq!(matches(pattern, "model.layers.61.mlp.experts.7.up_proj.weight_scale", 61), None);
        assert_eq!(fill(pattern, 0, 61, 7), "model.layers.61.mlp.experts.7.up_proj.weight");
    }

    #[test]
    fn scales_belong_to_their_weight_and_parts_to_their_module() {
        assert_eq!(owner("a.b.weight_scale_2").unwrap(), "a.b.weight");
        assert_eq!(owner("a.b.weight"), None);
        assert_eq!(fused_name("a.self_attn.q_proj.weight", "qkv_proj"), "a.self_attn.qkv_proj");
    }
}
