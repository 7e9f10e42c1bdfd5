//! The zip archives that `torch.save` writes: entries stored, not compressed, each payload aligned to 64 bytes by an
//! extra field `FB`. Written byte-reproducibly (date 1980-01-01); read through the central directory with every offset
//! checked. <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// torch maps storages from the file, hence the alignment.
const PAYLOAD_ALIGNMENT: usize = 64;
const LOCAL_HEADER: u32 = 0x0403_4b50;
const CENTRAL_HEADER: u32 = 0x0201_4b50;
const END_OF_DIRECTORY: u32 = 0x0605_4b50;
/// Names are UTF-8.
const FLAGS: u16 = 0x0800;
/// 1980-01-01, the zero of the format.
const DOS_DATE: u16 = 0x0021;
const MAX_ENTRIES: usize = 4096;

/// The archive with these entries, in this order.
pub(super) fn write(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for &(name, payload) in entries {
        let begin = archive.len() as u32;
        let crc = crc32fast::hash(payload);
        let unaligned = archive.len() + 30 + name.len() + 4;
        let padding = unaligned.next_multiple_of(PAYLOAD_ALIGNMENT) - unaligned;
        put_u32(&mut archive, LOCAL_HEADER);
        put_common(&mut archive, crc, payload.len() as u32, name.len() as u16, padding as u16 + 4);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(b"FB");
        put_u16(&mut archive, padding as u16);
        archive.resize(archive.len() + padding, b'Z');
        archive.extend_from_slice(payload);

        put_u32(&mut directory, CENTRAL_HEADER);
        put_u16(&mut directory, 0); // made by: MS-DOS, so that no file mode is implied
        put_common(&mut directory, crc, payload.len() as u32, name.len() as u16, 0);
        directory.extend_from_slice(&[0; 10]); // no comment, disk 0, no attributes
        put_u32(&mut directory, begin);
        directory.extend_from_slice(name.as_bytes());
    }
    let directory_begin = archive.len() as u32;
    archive.extend_from_slice(&directory);
    put_u32(&mut archive, END_OF_DIRECTORY);
    put_u32(&mut archive, 0); // disk 0 of 0
    put_u16(&mut archive, entries.len() as u16);
    put_u16(&mut archive, entries.len() as u16);
    put_u32(&mut archive, directory.len() as u32);
    put_u32(&mut archive, directory_begin);
    put_u16(&mut archive, 0); // no comment
    archive
}

/// The fields that a local header and a central one share: from "version needed" to the extra field's length.
fn put_common(out: &mut Vec<u8>, crc: u32, n_bytes: u32, n_name_bytes: u16, n_extra_bytes: u16) {
    for value in [0, FLAGS, 0, 0, DOS_DATE] {
        put_u16(out, value); // version needed, flags, stored, time, date
    }
    for value in [crc, n_bytes, n_bytes] {
        put_u32(out, value);
    }
    put_u16(out, n_name_bytes);
    put_u16(out, n_extra_bytes);
}

/// The entries of an archive by name, each payload checked against its CRC.
///
/// # Errors
/// Not a zip file, truncated, compressed or encrypted entries, a repeated name, offsets outside the file, a wrong CRC.
pub(super) fn read(archive: &[u8]) -> Result<BTreeMap<String, &[u8]>> {
    let end = find_end(archive)?;
    let n_entries = get_u16(archive, end + 10)? as usize;
    ensure!(n_entries <= MAX_ENTRIES, "the zip directory lists {n_entries} entries, more than {MAX_ENTRIES}");
    let mut at = get_u32(archive, end + 16)? as usize;
    let mut entries = BTreeMap::new();
    for _ in 0..n_entries {
        ensure!(get_u32(archive, at)? == CENTRAL_HEADER, "the zip directory is broken at byte {at}");
        let n_name_bytes = get_u16(archive, at + 28)? as usize;
        let n_after_bytes = get_u16(archive, at + 30)? as usize + get_u16(archive, at + 32)? as usize;
        let name =
            std::str::from_utf8(get(archive, at + 46, n_name_bytes)?).context("a zip entry's name is not UTF-8")?;
        let payload = payload(archive, at).with_context(|| format!("zip entry `{name}`"))?;
        ensure!(entries.insert(name.to_owned(), payload).is_none(), "the zip holds entry `{name}` twice");
        at += 46 + n_name_bytes + n_after_bytes;
    }
    Ok(entries)
}

/// The payload that the central header at `at` describes.
fn payload(archive: &[u8], at: usize) -> Result<&[u8]> {
    ensure!(get_u16(archive, at + 8)? & 1 == 0, "is encrypted");
    ensure!(get_u16(archive, at + 10)? == 0, "is compressed, which torch never does");
    let crc = get_u32(archive, at + 16)?;
    let n_bytes = get_u32(archive, at + 24)?;
    ensure!(n_bytes != u32::MAX && get_u32(archive, at + 20)? == n_bytes, "has sizes that no vocabulary has");
    let local = get_u32(archive, at + 42)? as usize;
    ensure!(get_u32(archive, local)? == LOCAL_HEADER, "has no local header at byte {local}");
    let begin = local + 30 + get_u16(archive, local + 26)? as usize + get_u16(archive, local + 28)? as usize;
    let payload = get(archive, begin, n_bytes as usize)?;
    ensure!(crc32fast::hash(payload) == crc, "does not match its CRC");
    Ok(payload)
}

/// Where the end-of-directory record is: the last 22 bytes, or before a comment of at most 65,535.
fn find_end(archive: &[u8]) -> Result<usize> {
    let first = archive.len().saturating_sub(22 + usize::from(u16::MAX));
    let found =
        (first..archive.len().saturating_sub(21)).rev().find(|&at| get_u32(archive, at).ok() == Some(END_OF_DIRECTORY));
    match found {
        Some(at) => Ok(at),
        None => bail!("not a whole zip archive (the directory at its end is missing)"),
    }
}

fn get(bytes: &[u8], at: usize, n: usize) -> Result<&[u8]> {
    let end = at.checked_add(n).filter(|&end| end <= bytes.len());
    match end {
        Some(end) => Ok(&bytes[at..end]),
        None => bail!("the zip points at bytes {at}..{at}+{n} of a file of {}", bytes.len()),
    }
}

fn get_u16(bytes: &[u8], at: usize) -> Result<u16> {
    let b = get(bytes, at, 2)?;
    Ok(u16::from_le_bytes([b[0], b[1]]))
}

fn get_u32(bytes: &[u8], at: usize) -> Result<u32> {
    let b = get(bytes, at, 4)?;
    Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_payloads_are_aligned() {
        let archive = write(&[("a/x", b"hello"), ("a/data/0", &[7; 100])]);
        let entries = read(&archive).unwrap();
        assert_eq!(entries["a/x"], b"hello");
        assert_eq!(entries["a/data/0"], [7; 100]);
        let at = entries["a/data/0"].as_ptr() as usize - archive.as_ptr() as usize;
        assert_eq!(at % PAYLOAD_ALIGNMENT, 0);
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_an_error_or_harmless() {
        let archive = write(&[("a/x", b"hello")]);
        for n in 0..archive.len() {
            assert!(read(&archive[..n]).is_err(), "cut at {n}");
        }
        for at in 0..archive.len() {
            let mut broken = archive.clone();
            broken[at] ^= 0xff;
            // Padding, dates and attributes may change; a payload may not.
            if let Ok(entries) = read(&broken) {
                assert!(entries.values().all(|payload| *payload == b"hello"), "byte {at}");
            }
        }
    }
}
