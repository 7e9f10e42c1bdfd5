//! The result of counting, and its file.
//!
//! A counts file is a safetensors file: one tensor `counts.DOMAIN` of `U64 [n_ids]` for each domain, and in
//! `__metadata__` one member `draftfast` with the provenance as JSON. Python reads it with
//! `safetensors.numpy.load_file`. With the extension .zst it is compressed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::Tokenizer;
use crate::{
    error::Hint,
    input::{read_at_most, read_file},
    output,
};

/// Vectors of a few hundred thousand counts a domain, and the records of files: gigabytes are something else.
/// What a counts file takes at most.
pub(super) const MAX_COUNTS_BYTES: u64 = 1 << 30;

/// What the metadata of a counts file call its format.
pub const FORMAT: &str = "draftfast-counts-1";
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Token counts of some corpora.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// sha256 of the tokenizer.json that counted.
    pub tokenizer_sha256: String,
    /// Length of every count vector: the tokenizer's largest id + 1.
    pub n_ids: usize,
    /// What counted, by name and version; several after a merge. Sorted.
    pub engines: Vec<String>,
    /// The domains, sorted by name, unweighted.
    pub domains: Vec<DomainCounts>,
    /// What a person should know about this run (skipped records, binary files); not kept in the file.
    pub warnings: Vec<String>,
}

/// The counts of one domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainCounts {
    /// The domain.
    pub domain: String,
    /// How often each id occurs.
    pub counts: Vec<u64>,
    /// What was taken from the documents: `each text`, `assistant texts`, ...
    pub texts: String,
    /// Documents counted.
    pub n_documents: u64,
    /// UTF-8 bytes of their texts.
    pub n_bytes: u64,
    /// The files, in reading order.
    pub files: Vec<FileRecord>,
}

/// Provenance of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// File name, relative to the folder that was named; never an absolute path.
    pub name: String,
    /// sha256 of the file itself; of what was read for stdin.
    pub sha256: String,
    /// Bytes of the file itself.
    pub n_bytes: u64,
    /// Documents counted.
    pub n_documents: u64,
    /// Records that could not be read.
    pub n_skipped: u64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    tokenizer_sha256: String,
    n_ids: usize,
    engines: Vec<String>,
    domains: Vec<HeaderDomain>,
}

#[derive(Serialize, Deserialize)]
struct HeaderDomain {
    domain: String,
    texts: String,
    n_tokens: u64,
    n_documents: u64,
    n_bytes: u64,
    files: Vec<FileRecord>,
}

impl Counts {
    /// Writes the file; the same counts give the same bytes.
    ///
    /// # Errors
    /// `path` exists (unless `force`) or cannot be written.
    pub fn write(&self, path: &Path, force: bool) -> Result<()> {
        let mut bytes = self.to_bytes()?;
        if path.extension().is_some_and(|e| e == "zst") {
            bytes = zstd::bulk::compress(&bytes, 19).context("cannot compress the counts")?;
        }
        output::write_file(path, &bytes, force)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Not a counts file, damaged, negative or overflowing counts, or vectors of another length.
    pub fn read(path: &Path) -> Result<Self> {
        let say = || format!("`{}`", path.display());
        let bytes = read_file(path, MAX_COUNTS_BYTES).with_context(say)?;
        Self::from_slice(&bytes).with_context(say)
    }

    /// Reads the content of a file, compressed or not.
    ///
    /// # Errors
    /// As [`Counts::read`].
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        if bytes.starts_with(&ZSTD_MAGIC) {
            let decoder = zstd::Decoder::new(bytes).context("damaged zstd")?;
            return Self::from_bytes(&read_at_most(decoder, MAX_COUNTS_BYTES).context("truncated or damaged zstd")?);
        }
        Self::from_bytes(bytes)
    }

    /// Reads a file and checks that it was counted with `tokenizer`.
    ///
    /// # Errors
    /// As [`Counts::read`], or another tokenizer.
    pub fn read_for(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let counts = Self::read(path)?;
        counts.check_tokenizer(tokenizer).with_context(|| format!("`{}`", path.display()))?;
        Ok(counts)
    }

    /// # Errors
    /// The counts were made with another tokenizer.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<()> {
        let (found, expected) = (&self.tokenizer_sha256, tokenizer.sha256());
        if found == expected && self.n_ids == tokenizer.n_ids() {
            return Ok(());
        }
        let error = anyhow::anyhow!(
            "the counts are of a tokenizer with {} ids (sha256 `{}`), expected {} ids (sha256 `{expected}`)",
            self.n_ids,
            found,
            tokenizer.n_ids(),
        );
        Err(error).hint("count again with this tokenizer, or give the one that counted")
    }

    /// A domain by name.
    pub fn domain(&self, name: &str) -> Option<&DomainCounts> {
        self.domains.iter().find(|domain| domain.domain == name)
    }

    /// Adds the counts of another shard; domains of the same name add up. Returns the names of files that stand in
    /// both: their text is now counted twice.
    ///
    /// # Errors
    /// Another tokenizer, or a sum that overflows 64 bits.
    pub fn merge(&mut self, other: Self) -> Result<Vec<String>> {
        ensure!(
            self.tokenizer_sha256 == other.tokenizer_sha256 && self.n_ids == other.n_ids,
            "the counts are of different tokenizers: {} ids (sha256 `{}`) and {} ids (sha256 `{}`)",
            self.n_ids,
            self.tokenizer_sha256,
            other.n_ids,
            other.tokenizer_sha256
        );
        let mut repeated = Vec::new();
        for domain in other.domains {
            match self.domains.iter_mut().find(|d| d.domain == domain.domain) {
                Some(mine) => repeated.extend(mine.add(domain)?),
                None => self.domains.push(domain),
            }
        }
        self.domains.sort_by(|a, b| a.domain.cmp(&b.domain));
        self.engines.extend(other.engines);
        self.engines.sort();
        self.engines.dedup();
        self.warnings.extend(other.warnings);
        Ok(repeated)
    }

    /// The counts of all shards together, added as by [`Counts::merge`]; none of no shard. Files that stand in several
    /// are among the warnings.
    ///
    /// # Errors
    /// A shard's own, or as [`Counts::merge`].
    pub fn sum(shards: impl IntoIterator<Item = Result<Self>>) -> Result<Option<Self>> {
        let mut shards = shards.into_iter();
        let Some(mut sum) = shards.next().transpose()? else { return Ok(None) };
        for shard in shards {
            let twice = |name| format!("the file `{name}` stands in more than one of the counts, and counts again");
            let repeated = sum.merge(shard?)?.into_iter().map(twice);
            sum.warnings.extend(repeated);
        }
        Ok(Some(sum))
    }

    /// The file as bytes, uncompressed.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let domains = self.domains.iter().map(|d| {
            let n_tokens = d.n_tokens()?;
            let (domain, texts, files) = (d.domain.clone(), d.texts.clone(), d.files.clone());
            Ok(HeaderDomain { domain, texts, n_tokens, n_documents: d.n_documents, n_bytes: d.n_bytes, files })
        });
        let header = Header {
            format: FORMAT.to_owned(),
            tokenizer_sha256: self.tokenizer_sha256.clone(),
            n_ids: self.n_ids,
            engines: self.engines.clone(),
            domains: domains.collect::<Result<_>>()?,
        };
        let provenance = serde_json::to_string(&header)?;
        let mut members = BTreeMap::new();
        members.insert("__metadata__".to_owned(), serde_json::json!({ "draftfast": provenance }));
        let n_vector_bytes = self.n_ids * size_of::<u64>();
        for (i, domain) in self.domains.iter().enumerate() {
            let offsets = [i * n_vector_bytes, (i + 1) * n_vector_bytes];
            let tensor = serde_json::json!({ "dtype": "U64", "shape": [self.n_ids], "data_offsets": offsets });
            members.insert(format!("counts.{}", domain.domain), tensor);
        }
        let mut json = serde_json::to_vec(&members)?;
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json);
        for domain in &self.domains {
            bytes.extend(domain.counts.iter().flat_map(|count| count.to_le_bytes()));
        }
        Ok(bytes)
    }

    /// Reads an uncompressed file.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let not_ours = "not a counts file";
        let (_, metadata) = SafeTensors::read_metadata(bytes).context(not_ours)?;
        let tensors = SafeTensors::deserialize(bytes).context("the counts file is damaged")?;
        let provenance = metadata.metadata().as_ref().and_then(|m| m.get("draftfast")).context(not_ours)?;
        let header: Header = serde_json::from_str(provenance).context(not_ours)?;
        ensure!(header.format == FORMAT, "the format is `{}`, expected `{FORMAT}`", header.format);
        let mut domains = Vec::new();
        for domain in header.domains {
            let name = format!("counts.{}", domain.domain);
            let tensor = tensors.tensor(&name).with_context(|| format!("tensor `{name}` is missing"))?;
            ensure!(
                tensor.dtype() == Dtype::U64 && tensor.shape() == [header.n_ids],
                "tensor `{name}` is {:?} {:?}, expected U64 [{}]",
                tensor.dtype(),
                tensor.shape(),
                header.n_ids
            );
            let HeaderDomain { domain, texts, n_tokens, n_documents, n_bytes, files } = domain;
            let counts = tensor.data().as_chunks::<8>().0.iter().map(|count| u64::from_le_bytes(*count)).collect();
            let domain = DomainCounts { domain, counts, texts, n_documents, n_bytes, files };
            let sum = domain.n_tokens()?;
            ensure!(sum == n_tokens, "tensor `{name}` sums to {sum}, but its provenance says {n_tokens}");
            domains.push(domain);
        }
        if !domains.is_sorted_by(|a, b| a.domain < b.domain) {
            bail!("the domains are not in order");
        }
        let Header { tokenizer_sha256, n_ids, engines, .. } = header;
        Ok(Self { tokenizer_sha256, n_ids, engines, domains, warnings: Vec::new() })
    }
}

impl DomainCounts {
    /// All tokens of the domain.
    ///
    /// # Errors
    /// The sum overflows 64 bits, which no honest count does (a negative one, read as unsigned, does).
    pub fn n_tokens(&self) -> Result<u64> {
        let sum = self.counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        sum.with_context(|| format!("the counts of domain `{}` are negative or overflow 64 bits", self.domain))
    }

    /// Adds another shard; returns the names of files that stand in both.
    fn add(&mut self, other: Self) -> Result<Vec<String>> {
        for (mine, more) in self.counts.iter_mut().zip(&other.counts) {
            let sum = mine.checked_add(*more);
            *mine = sum.with_context(|| format!("the counts of domain `{}` overflow 64 bits", self.domain))?;
        }
        self.n_tokens()?;
        let mine: BTreeSet<&str> = self.files.iter().map(|file| file.sha256.as_str()).collect();
        // An empty file adds nothing, however often.
        let is_mine = |file: &&FileRecord| file.n_bytes > 0 && mine.contains(file.sha256.as_str());
        let repeated = other.files.iter().filter(is_mine).map(|file| file.name.clone()).collect();
        let add = |a: u64, b: u64, what: &str| {
            let sum = a.checked_add(b);
            sum.with_context(|| format!("the {what} of domain `{}` overflow 64 bits", self.domain))
        };
        (self.n_documents, self.n_bytes) =
            (add(self.n_documents, other.n_documents, "documents")?, add(self.n_bytes, other.n_bytes, "bytes")?);
        self.files.extend(other.files);
        // Shards may be merged in any order: the result must not show it.
        self.files.sort_by(|a, b| (&a.name, &a.sha256).cmp(&(&b.name, &b.sha256)));
        if self.texts != other.texts {
            let mut texts: Vec<&str> = self.texts.split(" + ").chain(other.texts.split(" + ")).collect();
            texts.sort_unstable();
            texts.dedup();
            self.texts = texts.join(" + ");
        }
        Ok(repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(domain: &str, values: &[u64]) -> Counts {
        let file = FileRecord {
            name: format!("{domain}.txt"),
            sha256: format!("{values:?}"),
            n_bytes: 1,
            n_documents: 1,
            n_skipped: 0,
        };
        let domain = DomainCounts {
            domain: domain.into(),
            counts: values.to_vec(),
            texts: "each text".into(),
            n_documents: 1,
            n_bytes: 1,
            files: vec![file],
        };
        Counts {
            tokenizer_sha256: "ab".into(),
            n_ids: values.len(),
            engines: vec!["e".into()],
            domains: vec![domain],
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_file_round_trips_and_merging_commutes() {
        let (a, b, c) = (counts("zh", &[1, 2, 3]), counts("en", &[4, 0, 0]), counts("zh", &[0, 0, 7]));
        let merged = |parts: [&Counts; 3]| {
            let mut sum = parts[0].clone();
            assert!(sum.merge(parts[1].clone()).unwrap().is_empty());
            assert!(sum.merge(parts[2].clone()).unwrap().is_empty());
            sum
        };
        let sum = merged([&a, &b, &c]);
        assert_eq!(sum.to_bytes().unwrap(), merged([&c, &a, &b]).to_bytes().unwrap());
        assert_eq!(sum.domain("zh").unwrap().counts, [1, 2, 10]);
        assert_eq!(Counts::from_bytes(&sum.to_bytes().unwrap()).unwrap(), sum);
        assert_eq!(sum.clone().merge(c).unwrap(), ["zh.txt"]);
    }

    #[test]
    fn other_tokenizers_and_overflows_are_refused() {
        let mut a = counts("zh", &[u64::MAX, 0]);
        assert!(a.merge(counts("zh", &[1, 0])).unwrap_err().to_string().contains("overflow"));
        assert!(a.merge(counts("zh", &[1, 0, 0])).unwrap_err().to_string().contains("different tokenizers"));
        let negative = counts("zh", &[u64::MAX, 2]);
        assert!(negative.to_bytes().unwrap_err().to_string().contains("negative or overflow"));
        let mut many = counts("zh", &[1, 0]);
        many.domains[0].n_documents = u64::MAX;
        assert!(
            many.merge(counts("zh", &[1, 0]))
                .unwrap_err()
                .to_string()
                .contains("the documents of domain `zh` overflow")
        );
    }

    #[test]
    fn damaged_files_are_refused() {
        let bytes = counts("zh", &[1, 2, 3]).to_bytes().unwrap();
        for n in 0..bytes.len() {
            assert!(Counts::from_bytes(&bytes[..n]).is_err(), "cut to {n} bytes");
        }
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() = 1;
        assert!(Counts::from_bytes(&changed).unwrap_err().to_string().contains("sums to"));
    }
}
