//! `DOMAIN=NUMBER`, as people write weights and floors.

use std::str::FromStr;

use anyhow::{Context, Result};

/// A number for one domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainValue {
    /// The domain.
    pub domain: String,
    /// The number.
    pub value: f64,
}

impl FromStr for DomainValue {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (domain, value) = text.split_once('=').with_context(|| format!("`{text}` is not `DOMAIN=NUMBER`"))?;
        let value = value.parse().with_context(|| format!("`{value}` in `{text}` is no number"))?;
        Ok(Self { domain: domain.to_owned(), value })
    }
}
