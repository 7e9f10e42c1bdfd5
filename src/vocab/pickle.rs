//! A strict subset of pickle: what `torch.save` writes for tensors, lists and dicts of them, and nothing else.
//!
//! Nothing is executed: a global is a name, and only the names of tensor rebuilding mean something. Values live in one
//! arena and refer to each other by index, so memory is bounded by the length of the pickle (itself bounded by the
//! caller), and references to references cannot multiply it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// Index of a value in the arena.
pub(super) type Node = usize;

/// One value of a pickle.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Str(String),
    List(Vec<Node>),
    Tuple(Vec<Node>),
    /// Pairs in the order they were set.
    Dict(Vec<(Node, Node)>),
    /// `module.name`, not looked up.
    Global(String),
    /// What a persistent id names: a torch storage.
    Persistent(Node),
    /// The call of a global: function and arguments.
    Call(String, Node),
}

/// The values of a pickle; `root` is the result.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    pub(super) root: Node,
}

impl Pickle {
    pub(super) fn value(&self, node: Node) -> &Value {
        &self.values[node]
    }

    /// Reads a whole pickle (protocols 2 to 5).
    ///
    /// # Errors
    /// An opcode or a global outside the subset, a broken stream, or bytes after the end.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        Machine { bytes, at: 0, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: BTreeMap::new() }.run()
    }
}

/// The only names that may be called, and what is done with them is up to the reader of the result.
const CALLABLE: [&str; 2] = ["torch._utils._rebuild_tensor_v2", "collections.OrderedDict"];
/// The only names that may be mentioned: storage types, which say the dtype.
const STORAGES: &str = "torch.";

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Node>,
    /// Stack heights at which MARKs stand.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Node>,
}

impl Machine<'_> {
    fn run(mut self) -> Result<Pickle> {
        loop {
            let at = self.at;
            let opcode = self.take(1)?[0];
            if opcode == b'.' {
                let root = self.pop()?;
                ensure!(self.at == self.bytes.len(), "the pickle goes on after its end");
                ensure!(self.stack.is_empty(), "the pickle leaves values behind");
                return Ok(Pickle { values: self.values, root });
            }
            self.step(opcode).with_context(|| format!("pickle opcode `{opcode:#04x}` at byte {at}"))?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            0x80 => self.take(1).map(drop), // PROTO
            0x95 => self.take(8).map(drop), // FRAME: its length is a hint only
            b'(' => self.mark(),            // MARK
            b'N' => self.push(Value::None), // NONE
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' | b'K' | b'M' | 0x8a => self.integer(opcode),
            b'X' | 0x8c => self.string(opcode),
            b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b')' => self.push(Value::Tuple(Vec::new())),
            0x85..=0x87 => self.short_tuple(usize::from(opcode - 0x84)),
            b't' => self.pop_to_mark().and_then(|items| self.push(Value::Tuple(items))),
            b'a' | b'e' => self.append(opcode),
            b's' | b'u' => self.set_items(opcode),
            b'c' | 0x93 => self.global(opcode),
            b'Q' => self.pop().and_then(|id| self.push(Value::Persistent(id))), // BINPERSID
            b'R' => self.reduce(),
            b'q' | b'r' | 0x94 => self.memoize(opcode),
            b'h' | b'j' => self.recall(opcode),
            _ => bail!("is not one that a vocabulary file needs, and is refused"),
        }
    }

    fn integer(&mut self, opcode: u8) -> Result<()> {
        let value = match opcode {
            b'J' => i64::from(i32::from_le_bytes(self.take_array()?)),
            b'K' => i64::from(self.take(1)?[0]),
            b'M' => i64::from(u16::from_le_bytes(self.take_array()?)),
            _ => {
                let n = usize::from(self.take(1)?[0]);
                ensure!(n <= 8, "an integer of {n} bytes is refused");
                let digits = self.take(n)?;
                let fill = if digits.last().is_some_and(|top| top & 0x80 != 0) { 0xff } else { 0 };
                let mut whole = [fill; 8];
                whole[..n].copy_from_slice(digits);
                i64::from_le_bytes(whole)
            }
        };
        self.push(Value::Int(value))
    }

    fn string(&mut self, opcode: u8) -> Result<()> {
        let n = if opcode == b'X' { self.take_u32()? as usize } else { usize::from(self.take(1)?[0]) };
        let text = std::str::from_utf8(self.take(n)?).context("a string is not UTF-8")?.to_owned();
        self.push(Value::Str(text))
    }

    fn short_tuple(&mut self, n: usize) -> Result<()> {
        let floor = self.floor();
        ensure!(self.stack.len() >= floor + n, "the stack is too short");
        let items = self.stack.split_off(self.stack.len() - n);
        self.push(Value::Tuple(items))
    }

    fn append(&mut self, opcode: u8) -> Result<()> {
        let items = if opcode == b'a' { vec![self.pop()?] } else { self.pop_to_mark()? };
        let list = self.top()?;
        let Value::List(existing) = &mut self.values[list] else { bail!("appends to something that is no list") };
        existing.extend(items);
        Ok(())
    }

    fn set_items(&mut self, opcode: u8) -> Result<()> {
        let items = if opcode == b's' {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.pop_to_mark()?
        };
        ensure!(items.len().is_multiple_of(2), "a key without a value");
        let dict = self.top()?;
        let Value::Dict(existing) = &mut self.values[dict] else { bail!("sets a key of something that is no dict") };
        existing.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<()> {
        let name = if opcode == b'c' {
            format!("{}.{}", self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (&self.values[module], &self.values[name]) {
                (Value::Str(module), Value::Str(name)) => format!("{module}.{name}"),
                _ => bail!("names a global by something that is no string"),
            }
        };
        let storage = name.strip_prefix(STORAGES).is_some_and(|rest| rest.ends_with("Storage") && !rest.contains('.'));
        ensure!(storage || CALLABLE.contains(&name.as_str()), "names `{name}`, which is refused");
        self.push(Value::Global(name))
    }

    fn reduce(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Value::Global(name) = &self.values[function] else { bail!("calls something that is no function") };
        ensure!(CALLABLE.contains(&name.as_str()), "calls `{name}`, which is refused");
        let call = Value::Call(name.clone(), arguments);
        self.push(call)
    }

    fn memoize(&mut self, opcode: u8) -> Result<()> {
        let key = match opcode {
            b'q' => u32::from(self.take(1)?[0]),
            b'r' => self.take_u32()?,
            _ => self.memo.len() as u32,
        };
        let node = self.top()?;
        self.memo.insert(key, node);
        Ok(())
    }

    fn recall(&mut self, opcode: u8) -> Result<()> {
        let key = if opcode == b'h' { u32::from(self.take(1)?[0]) } else { self.take_u32()? };
        let node = *self.memo.get(&key).context("recalls what was never memoized")?;
        self.stack.push(node);
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
        Ok(())
    }

    /// Stack entries below the last MARK are out of reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Node> {
        ensure!(self.stack.len() > self.floor(), "the stack is empty");
        self.stack.last().copied().context("the stack is empty")
    }

    fn pop(&mut self) -> Result<Node> {
        let node = self.top()?;
        self.stack.pop();
        Ok(node)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Node>> {
        let height = self.marks.pop().context("there is no mark")?;
        Ok(self.stack.split_off(height))
    }

    fn take(&mut self, n: usize) -> Result<&[u8]> {
        let rest = self.bytes.len() - self.at;
        ensure!(n <= rest, "the pickle ends too early");
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into()?)
    }

    fn take_u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take_array()?))
    }

    fn line(&mut self) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let n = rest.iter().position(|&byte| byte == b'\n').context("a name without an end")?;
        let line = std::str::from_utf8(&rest[..n]).context("a name is not UTF-8")?.to_owned();
        self.at += n + 1;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_dicts_and_memos_are_read() {
        // Python's own pickle.dumps({"a": [1, 300, -1, 70000]}, 2), written out by hand from the opcode table.
        let bytes = b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01M\x2c\x01J\xff\xff\xff\xffJ\x70\x11\x01\x00es.";
        let pickle = Pickle::read(bytes).unwrap();
        let Value::Dict(pairs) = pickle.value(pickle.root) else { panic!() };
        let Value::List(items) = pickle.value(pairs[0].1) else { panic!() };
        let ints: Vec<_> = items.iter().map(|&item| pickle.value(item).clone()).collect();
        assert_eq!(ints, [1, 300, -1, 70000].map(Value::Int));
    }

    #[test]
    fn code_is_refused_and_named() {
        let error = Pickle::read(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.").unwrap_err();
        assert!(format!("{error:#}").contains("`os.system`"), "{error:#}");
        for bytes in
            [&b"\x80\x02i."[..], b"\x80\x02}b.", b"\x80\x02N\x81.", b"ctorch\nload\n.", b"ctorch.x\nAStorage\n."]
        {
            assert!(Pickle::read(bytes).is_err());
        }
    }

    #[test]
    fn references_to_references_do_not_multiply() {
        // Thirty levels of (x, x): 2^30 leaves if references were copied.
        let mut bytes = b"\x80\x02N".to_vec();
        for level in 0..30 {
            bytes.extend([b'q', level, b'h', level, 0x86]);
        }
        bytes.push(b'.');
        assert_eq!(Pickle::read(&bytes).unwrap().values.len(), 31);
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = b"\x80\x02]q\x00(K\x01M\x2c\x01X\x02\x00\x00\x00ab\x8a\x01\x05e.";
        for n in 0..bytes.len() {
            assert!(Pickle::read(&bytes[..n]).is_err(), "cut at {n}");
        }
        assert!(Pickle::read(bytes).is_ok());
    }
}
