//! Shapes as the family tables write them: `"hq*(1+g)*d, H"`, evaluated with the numbers of a `config.json`.
//!
//! A shape is a list of dimensions; a dimension is sums and products of numbers, parentheses and symbols; a family says
//! which config key each symbol stands for. Text instead of closures, so that the same line is checked, printed by
//! `inspect` and used to synthesize.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

/// One symbol of a family's shapes.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// As the shapes write it, e.g. `hq`.
    pub symbol: &'static str,
    /// Config keys that may hold it, the usual one first.
    pub keys: &'static [&'static str],
    /// The value when no key is present; `None`: the key is required.
    pub default: Option<usize>,
}

/// A required number of the config.
pub const fn size(symbol: &'static str, keys: &'static [&'static str]) -> Size {
    Size { symbol, keys, default: None }
}

/// A number of the config that has a default.
pub const fn size_or(symbol: &'static str, keys: &'static [&'static str], default: usize) -> Size {
    Size { symbol, keys, default: Some(default) }
}

/// The values of a family's symbols in one config.
#[derive(Debug, Clone)]
pub struct Sizes {
    table: &'static [Size],
    values: BTreeMap<&'static str, usize>,
}

/// A value of `config.json`: text models nest theirs in `text_config`, which therefore comes first.
pub fn config_value<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    let nested = config.get("text_config").or_else(|| config.get("llm_config"));
    nested.and_then(|text| text.get(key)).or_else(|| config.get(key)).filter(|value| !value.is_null())
}

impl Sizes {
    /// Reads the symbols that are there; a missing one is an error only when a shape uses it.
    ///
    /// # Errors
    /// A key holds something that is neither a natural number nor a boolean.
    pub fn read(config: &Value, table: &'static [Size]) -> Result<Self> {
        let mut values = BTreeMap::new();
        for size in table {
            let found = size.keys.iter().find_map(|key| config_value(config, key).map(|value| (key, value)));
            let Some((key, value)) = found else {
                values.extend(size.default.map(|default| (size.symbol, default)));
                continue;
            };
            let number = value
                .as_u64()
                .or_else(|| value.as_bool().map(u64::from))
                .with_context(|| format!("`config.json`: `{key}` is {value}, expected a natural number"))?;
            values.insert(size.symbol, usize::try_from(number)?);
        }
        if let (None, Some(hidden), Some(heads @ 1..)) =
            (values.get("d"), values.get("H").copied(), values.get("hq").copied())
        {
            // The convention of Hugging Face configs without `head_dim`.
            values.insert("d", hidden / heads);
        }
        Ok(Self { table, values })
    }

    /// The value of one symbol.
    ///
    /// # Errors
    /// The config has none of its keys.
    pub fn get(&self, symbol: &str) -> Result<usize> {
        if let Some(&value) = self.values.get(symbol) {
            return Ok(value);
        }
        let size = self.table.iter().find(|size| size.symbol == symbol);
        let size = size.with_context(|| format!("no config key is known for `{symbol}`"))?;
        bail!("`config.json` has no `{}`", size.keys.join("` or `"))
    }

    /// The dimensions of a shape.
    ///
    /// # Errors
    /// A symbol has no value, or a dimension overflows.
    pub fn shape(&self, shape: &str) -> Result<Vec<usize>> {
        split_top(shape, ',').filter(|dimension| !dimension.is_empty()).map(|d| self.evaluate(d)).collect()
    }

    fn evaluate(&self, expression: &str) -> Result<usize> {
        let overflow = || anyhow!("`config.json`: dimension `{expression}` overflows");
        let terms: Vec<&str> = split_top(expression, '+').collect();
        if terms.len() > 1 {
            return terms
                .into_iter()
                .try_fold(0, |sum: usize, term| sum.checked_add(self.evaluate(term)?).ok_or_else(overflow));
        }
        let factors: Vec<&str> = split_top(expression, '*').collect();
        if factors.len() > 1 {
            return factors.into_iter().try_fold(1, |product: usize, factor| {
                product.checked_mul(self.evaluate(factor)?).ok_or_else(overflow)
            });
        }
        if let Some(inner) = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
            return self.evaluate(inner);
        }
        expression.parse().or_else(|_| self.get(expression))
    }
}

/// Splits at `separator` outside parentheses, trimmed.
fn split_top(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == separator && depth == 0
    })
    .map(str::trim)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &[Size] = &[
        size("H", &["hidden_size"]),
        size("hq", &["heads"]),
        size_or("g", &["gate"], 1),
        size("I", &["inner", "wide"]),
    ];

    #[test]
    fn shapes_are_evaluated_with_the_nested_config_first() {
        let config = json!({"hidden_size": 1, "gate": false, "text_config": {"hidden_size": 64, "heads": 3}});
        let sizes = Sizes::read(&config, TABLE).unwrap();
        assert_eq!(sizes.shape("hq*(1+g)*4 + 2*(H+1), 2*H").unwrap(), [142, 128]);
        assert_eq!(sizes.shape("").unwrap(), [0; 0]);
        assert_eq!(sizes.shape("I").unwrap_err().to_string(), "`config.json` has no `inner` or `wide`");
    }

    #[test]
    fn a_default_stands_in_for_an_absent_or_null_key() {
        let sizes = Sizes::read(&json!({"gate": null}), TABLE).unwrap();
        assert_eq!(sizes.get("g").unwrap(), 1);
    }

    #[test]
    fn nonsense_numbers_are_errors() {
        let error = Sizes::read(&json!({"hidden_size": -5}), TABLE).unwrap_err();
        assert_eq!(error.to_string(), "`config.json`: `hidden_size` is -5, expected a natural number");
        let sizes = Sizes::read(&json!({"hidden_size": u64::MAX}), TABLE).unwrap();
        assert!(sizes.shape("2*H").unwrap_err().to_string().contains("overflows"));
    }
}
