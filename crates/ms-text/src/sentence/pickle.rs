//! The older form of a model: a pickled tokenizer of NLTK before 3.8.2, protocols 0 to 3.
//!
//! A pickle is a program that builds objects. This reads those that build a Punkt tokenizer: a name that is not in
//! [`ALLOWED`] is refused, and nothing is called; sets, dictionaries and objects become plain values.

use super::model::{Context, Trained};
use std::collections::HashMap;
use std::rc::Rc;

type Result<T> = std::result::Result<T, String>;

/// Everything that such a pickle may name.
const ALLOWED: [&str; 13] = [
    "nltk.tokenize.punkt PunktSentenceTokenizer",
    "nltk.tokenize.punkt PunktToken",
    "nltk.tokenize.punkt PunktLanguageVars",
    "nltk.tokenize.punkt PunktParameters",
    "builtins set",
    "__builtin__ set",
    "builtins int",
    "__builtin__ int",
    "__builtin__ long",
    "__builtin__ object",
    "collections defaultdict",
    "copy_reg _reconstructor",
    "copyreg _reconstructor",
];

#[derive(Clone)]
enum Value {
    None,
    Number(i64),
    Text(Rc<str>),
    /// Index into [`ALLOWED`].
    Name(usize),
    /// Index of a node.
    Node(usize),
}

/// What can be changed after it was made, or holds other values. An operation makes at most one and moves what it holds, so
/// memory is bounded by the file's length.
enum Node {
    /// Lists, tuples and sets.
    Items(Vec<Value>),
    Pairs(Vec<(Value, Value)>),
    Object(Option<Value>),
}

struct Machine<'a> {
    bytes: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    nodes: Vec<Node>,
}

/// The model in a pickle's bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Trained> {
    let mut machine =
        Machine { bytes, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), nodes: Vec::new() };
    let top = machine.run()?;
    machine.trained(&top)
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Value> {
        loop {
            let op = self.take(1)?[0];
            match op {
                b'.' => return self.pop(),
                0x80 => {
                    let version = self.take(1)?[0];
                    if version > 3 {
                        return Err(format!("pickle protocol {version}; expected at most 3"));
                    }
                }
                b'(' => self.marks.push(self.stack.len()),
                b'N' => self.stack.push(Value::None),
                b'K' => {
                    let byte = self.take(1)?[0];
                    self.stack.push(Value::Number(byte.into()));
                }
                b'M' => {
                    let bytes = self.take(2)?;
                    self.stack.push(Value::Number(u16::from_le_bytes([bytes[0], bytes[1]]).into()));
                }
                b'J' => {
                    let number = self.u32()?.cast_signed();
                    self.stack.push(Value::Number(number.into()));
                }
                b'I' => {
                    let number = self.line()?.parse().map_err(|_| "a number that is none")?;
                    self.stack.push(Value::Number(number));
                }
                b'X' => {
                    let length = self.u32()? as usize;
                    let text = std::str::from_utf8(self.take(length)?).map_err(|e| e.to_string())?;
                    self.stack.push(Value::Text(text.into()));
                }
                b'V' => {
                    let text = unescaped(self.raw_line()?)?;
                    self.stack.push(Value::Text(text.into()));
                }
                b'S' => {
                    let quoted = self.line()?;
                    let text = ['\'', '"'].iter().find_map(|q| quoted.strip_prefix(*q)?.strip_suffix(*q));
                    let text = text.filter(|text| !text.contains('\\')).ok_or("a string with escapes")?;
                    self.stack.push(Value::Text(text.into()));
                }
                b'c' => {
                    let name = format!("{} {}", self.line()?, self.line()?);
                    let known = ALLOWED.iter().position(|allowed| *allowed == name);
                    self.stack.push(Value::Name(
                        known.ok_or_else(|| format!("it names {name:?}, which no sentence model needs"))?,
                    ));
                }
                b'p' => {
                    let key = self.line()?.parse().map_err(|_| "a broken memo")?;
                    self.put(key)?;
                }
                b'q' => {
                    let key = self.take(1)?[0];
                    self.put(key.into())?;
                }
                b'r' => {
                    let key = self.u32()?;
                    self.put(key)?;
                }
                b'g' => {
                    let key = self.line()?.parse().map_err(|_| "a broken memo")?;
                    self.get(key)?;
                }
                b'h' => {
                    let key = self.take(1)?[0];
                    self.get(key.into())?;
                }
                b'j' => {
                    let key = self.u32()?;
                    self.get(key)?;
                }
                b')' | b']' => self.push(Node::Items(Vec::new())),
                b'}' => self.push(Node::Pairs(Vec::new())),
                b't' | b'l' => {
                    let items = self.since_mark()?;
                    self.push(Node::Items(items));
                }
                b'd' => {
                    let pairs = paired(self.since_mark()?)?;
                    self.push(Node::Pairs(pairs));
                }
                0x85..=0x87 => {
                    let first =
                        self.stack.len().checked_sub(usize::from(op - 0x84)).ok_or("an empty stack")?;
                    let items = self.stack.split_off(first);
                    self.push(Node::Items(items));
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.since_mark()?;
                    self.append(items)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(vec![(key, value)])?;
                }
                b'u' => {
                    let pairs = paired(self.since_mark()?)?;
                    self.set(pairs)?;
                }
                b'R' | 0x81 => self.make()?,
                b'b' => {
                    let state = self.pop()?;
                    match self.top_node()? {
                        Node::Object(slot) => *slot = Some(state),
                        _ => return Err("a state for what is no object".into()),
                    }
                }
                _ => return Err(format!("operation {op:#04x}, which no sentence model needs")),
            }
            if self.marks.last().is_some_and(|mark| *mark > self.stack.len()) {
                return Err("a mark above the stack".into());
            }
        }
    }

    /// Stands for a call: of `set` the list that it is made of, of a dictionary with a default an empty one, of a class an
    /// empty object.
    fn make(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Value::Name(name) = callee else { return Err("a call of what is no name".into()) };
        match ALLOWED[name] {
            "builtins set" | "__builtin__ set" => {
                let [list] = self.items(&arguments)? else {
                    return Err("a set of other than one list".into());
                };
                let list = list.clone();
                self.stack.push(list);
            }
            "collections defaultdict" => self.push(Node::Pairs(Vec::new())),
            _ => self.push(Node::Object(None)),
        }
        Ok(())
    }

    /// The parameters of the tokenizer that was built.
    fn trained(&self, top: &Value) -> Result<Trained> {
        let parameters = self.field(top, "_params")?;
        let mut trained = Trained::default();
        for item in self.items(self.field(parameters, "collocations")?)? {
            let [first, second] = self.items(item)? else {
                return Err("a collocation of other than two words".into());
            };
            trained.together.entry(text(first)?.into()).or_default().insert(text(second)?.into());
        }
        for (name, words) in
            [("sent_starters", &mut trained.starters), ("abbrev_types", &mut trained.abbreviations)]
        {
            for word in self.items(self.field(parameters, name)?)? {
                words.insert(text(word)?.into());
            }
        }
        let Some(Node::Pairs(pairs)) = self.node(self.field(parameters, "ortho_context")?) else {
            return Err("ortho_context is no dictionary".into());
        };
        for (word, bits) in pairs {
            let Value::Number(bits) = bits else { return Err("a context that is no number".into()) };
            trained.contexts.insert(text(word)?.into(), Context(*bits));
        }
        Ok(trained)
    }

    /// A field of an object's state.
    fn field(&self, object: &Value, name: &str) -> Result<&Value> {
        let state = match self.node(object) {
            Some(Node::Object(Some(state))) => self.node(state),
            _ => None,
        };
        let Some(Node::Pairs(pairs)) = state else { return Err(format!("no object with a field {name}")) };
        let found = pairs.iter().rfind(|(key, _)| matches!(key, Value::Text(key) if **key == *name));
        found.map(|(_, value)| value).ok_or_else(|| format!("no field {name}"))
    }

    fn node(&self, value: &Value) -> Option<&Node> {
        match value {
            Value::Node(index) => self.nodes.get(*index),
            _ => None,
        }
    }

    fn items(&self, value: &Value) -> Result<&[Value]> {
        match self.node(value) {
            Some(Node::Items(items)) => Ok(items),
            _ => Err("expected a list of values".into()),
        }
    }

    fn push(&mut self, node: Node) {
        self.stack.push(Value::Node(self.nodes.len()));
        self.nodes.push(node);
    }

    fn top_node(&mut self) -> Result<&mut Node> {
        match self.stack.last() {
            Some(Value::Node(index)) => self.nodes.get_mut(*index).ok_or_else(|| "a lost value".into()),
            _ => Err("expected an object on the stack".into()),
        }
    }

    fn append(&mut self, items: Vec<Value>) -> Result<()> {
        match self.top_node()? {
            Node::Items(all) => all.extend(items),
            _ => return Err("an item for what is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, pairs: Vec<(Value, Value)>) -> Result<()> {
        match self.top_node()? {
            Node::Pairs(all) => all.extend(pairs),
            _ => return Err("a pair for what is no dictionary".into()),
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Value> {
        self.stack.pop().ok_or_else(|| "an empty stack".into())
    }

    fn since_mark(&mut self) -> Result<Vec<Value>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or("no mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn put(&mut self, key: u32) -> Result<()> {
        let top = self.stack.last().ok_or("an empty stack")?.clone();
        self.memo.insert(key, top);
        Ok(())
    }

    fn get(&mut self, key: u32) -> Result<()> {
        self.stack.push(self.memo.get(&key).ok_or("a memo that was not made")?.clone());
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or("it ends too early")?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn raw_line(&mut self) -> Result<&'a [u8]> {
        let length = self.bytes.iter().position(|b| *b == b'\n').ok_or("it ends too early")?;
        let line = self.take(length)?;
        self.take(1)?;
        Ok(line)
    }

    fn line(&mut self) -> Result<&'a str> {
        let line = std::str::from_utf8(self.raw_line()?).map_err(|e| e.to_string())?;
        Ok(line.strip_suffix('\r').unwrap_or(line))
    }
}

fn text(value: &Value) -> Result<&str> {
    match value {
        Value::Text(text) => Ok(text),
        _ => Err("expected a text".into()),
    }
}

fn paired(items: Vec<Value>) -> Result<Vec<(Value, Value)>> {
    if items.len() % 2 == 1 {
        return Err("a key without a value".into());
    }
    let mut items = items.into_iter();
    Ok(std::iter::from_fn(|| items.next().zip(items.next())).collect())
}

/// Python's raw-unicode-escape: bytes are Latin-1 characters, `\uXXXX` and `\UXXXXXXXX` any others.
fn unescaped(bytes: &[u8]) -> Result<String> {
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
