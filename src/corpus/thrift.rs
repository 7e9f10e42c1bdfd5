//! A walk over Thrift's compact protocol that believes no count: every step of it takes a byte.
//!
//! A struct is its members and a 0. A member is a byte, its id less the last one's in the high half and its type in the
//! low one (an id of its own follows when the high half is 0), and a value. A list begins with its length and type.

use std::io::{self, Read};

use anyhow::{Context, Result, bail, ensure};

/// How deep values nest at most: parquet's have eight levels.
const MAX_DEPTH: usize = 64;

/// What a member is.
#[derive(Debug, Clone, Copy)]
pub enum Type {
    Bool,
    I8,
    I16,
    I32,
    I64,
    Double,
    Binary,
    List(&'static Type),
    Struct(Shape),
}

/// Members of a struct by their ids, ascending; others may come, of any type but lists of booleans.
pub type Shape = &'static [(i16, Type)];

impl Type {
    /// The low half of a member's byte. A boolean is its own type: 1 is true, 2 is false.
    fn code(self) -> u8 {
        match self {
            Self::Bool => 1,
            Self::I8 => 3,
            Self::I16 => 4,
            Self::I32 => 5,
            Self::I64 => 6,
            Self::Double => 7,
            Self::Binary => 8,
            Self::List(_) => 9,
            Self::Struct(_) => 12,
        }
    }

    fn check(known: Option<Self>, code: u8) -> Result<()> {
        let Some(expected) = known.map(Self::code) else { return Ok(()) };
        ensure!(expected == code || (expected, code) == (1, 2), "it has type {code} where {expected} is expected");
        Ok(())
    }
}

/// Reads one struct to its end.
///
/// # Errors
/// It is cut off, claims more than is there, claims booleans in a list, nests too deep, or a member of `shape` is of
/// another type.
pub fn walk_struct(bytes: &mut impl Read, shape: Shape) -> Result<()> {
    members(bytes, shape, MAX_DEPTH)
}

fn members(bytes: &mut impl Read, shape: Shape, depth: usize) -> Result<()> {
    let mut last_id = 0_i16;
    loop {
        let head = byte(bytes)?;
        let (step, code) = (head >> 4, head & 15);
        if code == 0 {
            return Ok(());
        }
        let id = match step {
            0 => zigzag(varint(bytes)?),
            step => i64::from(last_id) + i64::from(step),
        };
        let id = i16::try_from(id).context("it has a member with an id of more than 16 bits")?;
        let known = shape.iter().find(|(known, _)| *known == id).map(|(_, of)| *of);
        Type::check(known, code).with_context(|| format!("member {id}"))?;
        if !matches!(code, 1 | 2) {
            value(bytes, code, known, depth)?;
        }
        last_id = id;
    }
}

/// Reads a value of a type that takes at least a byte.
fn value(bytes: &mut impl Read, code: u8, known: Option<Type>, depth: usize) -> Result<()> {
    let depth = depth.checked_sub(1).context("it nests too deep")?;
    match (code, known) {
        (3, _) => byte(bytes).map(drop),
        (4..=6, _) => varint(bytes).map(drop),
        (7, _) => skip(bytes, 8),
        (8, _) => varint(bytes).and_then(|n_bytes| skip(bytes, n_bytes)),
        (9 | 10, known) => list(bytes, known, depth),
        (11, _) => match varint(bytes)? {
            0 => Ok(()),
            n_pairs => byte(bytes).and_then(|codes| elements(bytes, n_pairs, &[codes >> 4, codes & 15], None, depth)),
        },
        (12, Some(Type::Struct(shape))) => members(bytes, shape, depth),
        (12, _) => members(bytes, &[], depth),
        (13, _) => skip(bytes, 16),
        (code, _) => bail!("it has a value of type {code}"),
    }
}

fn list(bytes: &mut impl Read, known: Option<Type>, depth: usize) -> Result<()> {
    let head = byte(bytes)?;
    let (n_elements, code) = (head >> 4, head & 15);
    let n_elements = if n_elements == 15 { varint(bytes)? } else { u64::from(n_elements) };
    let of = if let Some(Type::List(of)) = known { Some(*of) } else { None };
    if n_elements > 0 {
        Type::check(of, code).context("a list")?;
    }
    elements(bytes, n_elements, &[code], of, depth)
}

fn elements(bytes: &mut impl Read, n_elements: u64, codes: &[u8], of: Option<Type>, depth: usize) -> Result<()> {
    ensure!(n_elements == 0 || codes.iter().all(|code| *code > 2), "it claims {n_elements} booleans in a list");
    (0..n_elements).try_for_each(|_| codes.iter().try_for_each(|code| value(bytes, *code, of, depth)))
}

fn byte(bytes: &mut impl Read) -> Result<u8> {
    let mut one = [0];
    bytes.read_exact(&mut one).context("it is cut off")?;
    Ok(one[0])
}

/// Seven bits a byte, the lowest first; the last byte has no high bit.
fn varint(bytes: &mut impl Read) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(bytes)?;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    bail!("it has a number of more than ten bytes")
}

/// The signed number that 0, 1, 2, 3, ... stand for: 0, -1, 1, -2, ...
fn zigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

fn skip(bytes: &mut impl Read, n_bytes: u64) -> Result<()> {
    let n_read = io::copy(&mut bytes.take(n_bytes), &mut io::sink())?;
    ensure!(n_read == n_bytes, "it claims {n_bytes} bytes where {n_read} are left");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(bytes: &[u8], shape: Shape) -> Result<usize> {
        let mut rest = bytes;
        walk_struct(&mut rest, shape)?;
        Ok(bytes.len() - rest.len())
    }

    #[test]
    fn a_struct_of_every_type_is_walked_to_its_last_byte() {
        let mut bytes = vec![0x11, 0x12, 0x13, 7, 0x15, 0x80, 1, 0x06, 24, 3]; // bools, byte, i32, i64 with its own id
        bytes.extend([0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0x18, 2, b'a', b'b']); // double, binary
        bytes.extend([0x19, 0x2c, 0x13, 1, 0, 0]); // a list of two structs
        bytes.extend([0x1b, 1, 0x38, 5, 0, 0x1b, 0]); // maps of one pair and of none
        bytes.extend([0x1a, 0x01, 0x1d]); // an empty set of booleans, a UUID
        bytes.extend([0; 16]);
        bytes.push(0);
        let n_bytes = bytes.len();
        bytes.extend(b"page");
        const INNER: Shape = &[(1, Type::I8)];
        const SHAPE: Shape = &[
            (1, Type::Bool),
            (2, Type::Bool),
            (3, Type::I8),
            (4, Type::I32),
            (12, Type::I64),
            (13, Type::Double),
            (14, Type::Binary),
            (15, Type::List(&Type::Struct(INNER))),
        ];
        for shape in [&[], SHAPE] {
            assert_eq!(walked(&bytes, shape).unwrap(), n_bytes);
            for end in 0..n_bytes {
                assert!(walked(&bytes[..end], shape).is_err(), "cut at {end}");
            }
        }
        for (id, of) in [(3, Type::I16), (4, Type::I64), (14, Type::Struct(&[])), (15, Type::List(&Type::I32))] {
            let other: Shape = vec![(id, of)].leak();
            assert!(format!("{:#}", walked(&bytes, other).unwrap_err()).contains("is expected"), "{id}");
        }
    }

    #[test]
    fn claims_that_cost_nothing_are_refused() {
        let said = |bytes: &[u8]| format!("{:#}", walked(bytes, &[]).unwrap_err());
        let most = [0xff, 0xff, 0xff, 0xff, 7];
        let claim = |head: &[u8], tail: &[u8]| said(&[head, &most, tail].concat());
        for code in [1, 2] {
            assert!(claim(&[0x19, 0xf0 | code], &[0]).contains("claims 2147483647 booleans"));
            assert!(claim(&[0x1b], &[code << 4 | 3, 0]).contains("claims 2147483647 booleans"));
        }
        assert!(claim(&[0x18], b"ab").contains("claims 2147483647 bytes where 2 are left"));
        assert!(said(&[0x19; 100]).contains("too deep"));
        assert!(said(&[0x1e]).contains("type 14"));
        assert!(said(&[[0x15].as_slice(), &[0x80; 10]].concat()).contains("more than ten bytes"));
        assert!(claim(&[0x05], &[]).contains("an id of more than 16 bits"));
    }
}
