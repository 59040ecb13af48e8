//! A pickle interpreter that builds plain data and executes nothing.
//!
//! Objects live in an arena and refer to each other by index, so that shared and even cyclic structures cost no more than the
//! stream. Every opcode makes at most one object, and what objects copy from others (names, arguments, pairs) is limited by
//! the stream's length, which bounds memory. The reader decides what may be called ([`Allowed`]).

use std::collections::BTreeMap;

/// Index of an object in the arena.
pub type Id = usize;

/// How many bytes objects may copy of other objects, for each byte of the stream and in all. A name, its arguments and the
/// opcodes that call it take a tenth of that at most where no name is meant to be long.
const COPIED: (usize, usize) = (64, 64 << 10);

/// A plain object.
#[derive(Clone, Debug, PartialEq)]
pub enum Obj {
    /// Python's `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of up to 64 bits.
    Int(i64),
    /// An integer of more than 64 bits, little-endian two's complement.
    Big(Vec<u8>),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes, or an array of them.
    Bytes(Vec<u8>),
    /// A list of objects, or those of a set as the stream has them.
    List(Vec<Id>),
    /// A tuple of objects.
    Tuple(Vec<Id>),
    /// Keys and values in the order in which they were set; a key may occur twice.
    Dict(Vec<(Id, Id)>),
    /// A class or function, by name only.
    Global(String),
    /// What a `BINPERSID` names: the tuple of a storage.
    Persistent(Id),
    /// An allowed call.
    Call {
        /// The name.
        function: String,
        /// The arguments.
        args: Vec<Id>,
        /// What `BUILD` added.
        state: Option<Id>,
    },
}

/// What a stream describes.
#[derive(Debug)]
pub struct Pickle {
    /// All objects.
    pub objects: Vec<Obj>,
    /// The one that the stream ends with.
    pub root: Id,
    /// Bytes of the stream.
    pub length: usize,
}

/// What a reader of pickles allows; the interpreter only notes calls.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Functions and classes that may be called, as `module.name`.
    pub calls: &'static [&'static str],
    /// Beginnings of the names of further ones.
    pub prefixes: &'static [&'static str],
    /// What the error about any other call ends with.
    pub hint: &'static str,
    /// Protocols; those below 2 are text, and a stream without a number is one of them.
    pub protocols: (u8, u8),
}

impl Allowed {
    fn call(&self, name: &str) -> bool {
        self.calls.contains(&name) || self.prefixes.iter().any(|p| name.starts_with(p))
    }

    fn text(&self) -> bool {
        self.protocols.0 < 2
    }
}

struct Machine<'a> {
    allowed: &'a Allowed,
    bytes: &'a [u8],
    at: usize,
    objects: Vec<Obj>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: BTreeMap<usize, Id>,
    /// Bytes that may still be copied.
    left: usize,
}

/// Interprets one pickle at the start of `bytes`.
///
/// # Errors
/// The byte offset and what is wrong there.
pub fn read(bytes: &[u8], allowed: &Allowed) -> Result<Pickle, (usize, String)> {
    let mut m = Machine {
        allowed,
        bytes,
        at: 0,
        objects: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
        left: COPIED.1.saturating_add(bytes.len().saturating_mul(COPIED.0)),
    };
    loop {
        let start = m.at;
        match m.step() {
            Ok(None) => {}
            Ok(Some(root)) => return Ok(Pickle { objects: m.objects, root, length: m.at }),
            Err(what) => return Err((start, what)),
        }
    }
}

impl<'a> Machine<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.bytes.len());
        let end =
            end.ok_or_else(|| format!("{n} more bytes are needed, {} are left", self.bytes.len() - self.at))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, n: usize) -> Result<usize, String> {
        let mut wide = [0u8; 8];
        wide[..n].copy_from_slice(self.take(n)?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| "a length over the address space".to_owned())
    }

    fn raw_line(&mut self) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&b| b == b'\n').ok_or("a line without end")?;
        self.at += len + 1;
        Ok(&rest[..len])
    }

    /// A line of text; streams of protocol 0 may have been written with the line ends of Windows.
    fn line(&mut self) -> Result<&'a str, String> {
        let line =
            std::str::from_utf8(self.raw_line()?).map_err(|_| "a name that is not UTF-8".to_owned())?;
        Ok(line.strip_suffix('\r').unwrap_or(line))
    }

    fn line_number<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        self.line()?.parse().map_err(|_| "a number that is none".to_owned())
    }

    fn text(&mut self, n: usize) -> Result<String, String> {
        let bytes = self.take(n)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "text that is not UTF-8".to_owned())
    }

    fn push(&mut self, object: Obj) {
        self.stack.push(self.objects.len());
        self.objects.push(object);
    }

    /// Objects below the last mark stay: they belong to an outer structure.
    fn pop(&mut self) -> Result<Id, String> {
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err("the stack is empty".to_owned());
        }
        Ok(self.stack.pop().expect("checked above"))
    }

    fn top(&self) -> Result<Id, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.get(floor..).and_then(<[Id]>::last).copied().ok_or_else(|| "the stack is empty".to_owned())
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("no mark on the stack")?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, n: usize) -> Result<(), String> {
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Obj::Tuple(items));
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<(), String> {
        if !items.len().is_multiple_of(2) {
            return Err("a key without a value".to_owned());
        }
        let target = self.top()?;
        let pairs = items.chunks_exact(2).map(|p| (p[0], p[1]));
        match &mut self.objects[target] {
            Obj::Dict(entries) => entries.extend(pairs),
            _ => return Err("items are set on something that is not a dictionary".to_owned()),
        }
        Ok(())
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), String> {
        let target = self.top()?;
        match &mut self.objects[target] {
            Obj::List(list) => list.extend(items),
            _ => return Err("items are appended to something that is not a list".to_owned()),
        }
        Ok(())
    }

    /// Counts bytes that an object copies of others.
    fn copied(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or("its objects repeat more of each other than the stream is long")?;
        Ok(())
    }

    fn call(&mut self, function: Id, args: Id) -> Result<(), String> {
        let Obj::Global(name) = &self.objects[function] else {
            return Err("something is called that is not a function".to_owned());
        };
        if !self.allowed.call(name) {
            let hint = self.allowed.hint;
            return Err(format!("a call of {name} is refused: not on the list of allowed functions{hint}"));
        }
        let Obj::Tuple(args) = &self.objects[args] else {
            return Err("arguments that are not a tuple".to_owned());
        };
        let object = match (name.as_str(), &args[..]) {
            ("collections.defaultdict", _) | ("collections.OrderedDict", []) => Obj::Dict(Vec::new()),
            ("collections.OrderedDict", &[pairs]) => Obj::Dict(self.pairs(pairs)?),
            ("collections.OrderedDict", _) => {
                return Err("collections.OrderedDict takes one argument at most".to_owned());
            }
            _ => {
                let bytes = name.len() + size_of_val(&args[..]);
                let (function, args) = (name.clone(), args.clone());
                self.copied(bytes)?;
                Obj::Call { function, args, state: None }
            }
        };
        self.push(object);
        Ok(())
    }

    fn pairs(&mut self, list: Id) -> Result<Vec<(Id, Id)>, String> {
        let count = match &self.objects[list] {
            Obj::List(items) => items.len(),
            _ => return Err("expected a list of pairs".to_owned()),
        };
        self.copied(count * size_of::<(Id, Id)>())?;
        let Obj::List(items) = &self.objects[list] else { return Err("expected a list of pairs".to_owned()) };
        let pair = |id: &Id| match &self.objects[*id] {
            Obj::List(p) | Obj::Tuple(p) if p.len() == 2 => Ok((p[0], p[1])),
            _ => Err("expected a pair".to_owned()),
        };
        items.iter().map(pair).collect()
    }

    fn build(&mut self) -> Result<(), String> {
        let state_id = self.pop()?;
        let target = self.top()?;
        match &mut self.objects[target] {
            Obj::Call { state, .. } => *state = Some(state_id),
            // Attributes of a dictionary, such as `_metadata` of a module's state, are not data.
            Obj::Dict(_) => {}
            _ => return Err("state is given to something that has none".to_owned()),
        }
        Ok(())
    }

    fn memo_set(&mut self, key: usize) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn memo_get(&mut self, key: usize) -> Result<(), String> {
        let id = *self.memo.get(&key).ok_or_else(|| format!("memo {key} is empty"))?;
        self.stack.push(id);
        Ok(())
    }

    /// Executes one opcode; the root object at STOP.
    fn step(&mut self) -> Result<Option<Id>, String> {
        let op = self.take(1)?[0];
        match op {
            0x80 => {
                let (protocol, (least, most)) = (self.number(1)?, self.allowed.protocols);
                if !(usize::from(least)..=usize::from(most)).contains(&protocol) {
                    return Err(format!("protocol {protocol}, expected {least} to {most}"));
                }
            }
            0x95 => {
                self.take(8)?; // FRAME: a hint for readers of streams
            }
            b'}' => self.push(Obj::Dict(Vec::new())),
            b']' | 0x8f => self.push(Obj::List(Vec::new())),
            b')' => self.push(Obj::Tuple(Vec::new())),
            b'(' => self.marks.push(self.stack.len()),
            b'X' => {
                let n = self.number(4)?;
                let text = self.text(n)?;
                self.push(Obj::Str(text));
            }
            0x8c => {
                let n = self.number(1)?;
                let text = self.text(n)?;
                self.push(Obj::Str(text));
            }
            b'J' => {
                let n = i32::from_le_bytes(self.take(4)?.try_into().expect("four bytes"));
                self.push(Obj::Int(i64::from(n)));
            }
            b'K' => {
                let n = self.number(1)?;
                self.push(Obj::Int(n as i64));
            }
            b'M' => {
                let n = self.number(2)?;
                self.push(Obj::Int(n as i64));
            }
            0x8a => {
                let n = self.number(1)?;
                let bytes = self.take(n)?;
                self.push(long(bytes));
            }
            b'G' => {
                let bits = self.take(8)?.try_into().expect("eight bytes");
                self.push(Obj::Float(f64::from_be_bytes(bits)));
            }
            b'N' => self.push(Obj::None),
            0x88 => self.push(Obj::Bool(true)),
            0x89 => self.push(Obj::Bool(false)),
            b't' => {
                let items = self.since_mark()?;
                self.push(Obj::Tuple(items));
            }
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b'C' => {
                let n = self.number(1)?;
                let bytes = self.take(n)?.to_vec();
                self.push(Obj::Bytes(bytes));
            }
            b'B' => {
                let n = self.number(4)?;
                let bytes = self.take(n)?.to_vec();
                self.push(Obj::Bytes(bytes));
            }
            0x96 => {
                let n = self.number(8)?;
                let bytes = self.take(n)?.to_vec();
                self.push(Obj::Bytes(bytes));
            }
            0x91 => {
                let items = self.since_mark()?;
                self.push(Obj::List(items));
            }
            b'q' => {
                let key = self.number(1)?;
                self.memo_set(key)?;
            }
            b'r' => {
                let key = self.number(4)?;
                self.memo_set(key)?;
            }
            0x94 => self.memo_set(self.memo.len())?,
            b'h' => {
                let key = self.number(1)?;
                self.memo_get(key)?;
            }
            b'j' => {
                let key = self.number(4)?;
                self.memo_get(key)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Obj::Global(format!("{module}.{name}")));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Obj::Str(module), Obj::Str(name)) = (&self.objects[module], &self.objects[name]) else {
                    return Err("a global whose name is not a string".to_owned());
                };
                let (bytes, global) = (module.len() + name.len(), format!("{module}.{name}"));
                self.copied(bytes)?;
                self.push(Obj::Global(global));
            }
            b'R' | 0x81 => {
                let (args, function) = (self.pop()?, self.pop()?);
                self.call(function, args)?;
            }
            b'b' => self.build()?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set_items(&items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.append(items)?;
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Obj::Persistent(id));
            }
            b'.' => return self.pop().map(Some),
            op if self.allowed.text() => self.text_step(op)?,
            other => return Err(format!("opcode {} ({other:#04x}) is not allowed", name_of(other))),
        }
        Ok(None)
    }
}

impl Machine<'_> {
    /// Executes an opcode that only protocols below 2 have.
    fn text_step(&mut self, op: u8) -> Result<(), String> {
        match op {
            b'I' => {
                let n = self.line_number()?;
                self.push(Obj::Int(n));
            }
            b'V' => {
                let text = unescaped(self.raw_line()?)?;
                self.push(Obj::Str(text));
            }
            b'S' => {
                let quoted = self.line()?;
                let text = ['\'', '"'].iter().find_map(|q| quoted.strip_prefix(*q)?.strip_suffix(*q));
                let text = text.filter(|text| !text.contains('\\')).ok_or("a string with escapes")?;
                self.push(Obj::Str(text.to_owned()));
            }
            b'p' => {
                let key = self.line_number()?;
                self.memo_set(key)?;
            }
            b'g' => {
                let key = self.line_number()?;
                self.memo_get(key)?;
            }
            b'l' => {
                let items = self.since_mark()?;
                self.push(Obj::List(items));
            }
            b'd' => {
                let items = self.since_mark()?;
                self.push(Obj::Dict(Vec::new()));
                self.set_items(&items)?;
            }
            other => return Err(format!("opcode {} ({other:#04x}) is not allowed", name_of(other))),
        }
        Ok(())
    }
}

/// Python's raw-unicode-escape: bytes are Latin-1 characters, `\uXXXX` and `\UXXXXXXXX` any others.
fn unescaped(bytes: &[u8]) -> Result<String, String> {
    let mut out = String::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = match (byte, bytes.get(at + 1)) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                out.push(char::from(byte));
                at += 1;
                continue;
            }
        };
        let code = bytes.get(at + 2..at + 2 + digits).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        out.push(code.ok_or("a broken character")?);
        at += 2 + digits;
    }
    Ok(out)
}

/// A little-endian two's complement integer of any length.
fn long(bytes: &[u8]) -> Obj {
    if bytes.len() > 8 {
        return Obj::Big(bytes.to_vec());
    }
    let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [fill; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Obj::Int(i64::from_le_bytes(wide))
}

/// Names of the opcodes that exist and are not allowed.
fn name_of(op: u8) -> &'static str {
    match op {
        b'i' => "INST",
        b'o' => "OBJ",
        b'0' => "POP",
        b'1' => "POP_MARK",
        b'2' => "DUP",
        b'F' => "FLOAT",
        b'I' => "INT",
        b'L' => "LONG",
        b'P' => "PERSID",
        b'S' => "STRING",
        b'T' => "BINSTRING",
        b'U' => "SHORT_BINSTRING",
        b'V' => "UNICODE",
        b'd' => "DICT",
        b'l' => "LIST",
        b'g' => "GET",
        b'p' => "PUT",
        0x82..=0x84 => "EXT",
        0x8b => "LONG4",
        0x8d => "BINUNICODE8",
        0x8e => "BINBYTES8",
        0x92 => "NEWOBJ_EX",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests;
