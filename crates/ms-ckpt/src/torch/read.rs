//! Conversion of pickled objects to plain values and tensors.

use std::collections::BTreeMap;

use ms_core::DType;
use serde_json::{Map, Value};

use super::pickle::{Id, Obj, Pickle};
use super::types::{storage_dtype, torch_dtype, type_name};

/// A value of a `.pt` file.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A plain value. Things that JSON has no form for (bytes, classes, calls) are null or their name as text.
    Plain(Value),
    /// A dictionary with text or integer keys, in the file's order.
    Dict(Vec<(String, Node)>),
    /// A list or tuple that holds more than plain values.
    List(Vec<Node>),
    /// A tensor.
    Tensor(TensorRef),
}

/// A tensor before its storage is looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRef {
    /// Key of the storage.
    pub(super) storage: String,
    /// Element type; `None` for types this toolchain does not compute with.
    pub(super) dtype: Option<DType>,
    pub(super) dtype_name: String,
    /// First element in the storage.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
    /// Elements of the storage.
    pub(super) storage_elements: usize,
}

impl Node {
    /// The entry of a dictionary.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Dict(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// As JSON; tensors become null.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Plain(v) => v.clone(),
            Self::Tensor(_) => Value::Null,
            Self::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Self::Dict(entries) => {
                Value::Object(entries.iter().map(|(k, v)| (k.clone(), v.to_json())).collect())
            }
        }
    }
}

/// Limits against structures that unfold to more than their stream: shared parts count each time, and texts and sizes by what
/// they hold. A short stream may have a few values for each of its bytes: what it shares is small, such as the settings of
/// parameters.
const MAX_NODES: usize = 4_000_000;
const NODES_OF_SHORT: (usize, usize) = (4096, 4);
const MAX_DEPTH: usize = 64;
/// Bytes of a text that count as a node.
const TEXT_NODE: usize = 32;
/// Most dimensions of a tensor: experts stacked over layers, as pieces of flattened fragments, have five.
pub(crate) const MAX_DIMS: usize = 8;

/// What makes a tensor of a storage, its first element, its sizes and strides. An Ascend processor's is stored row by row,
/// whatever its layout was there.
///
/// # Source
/// `torch/_utils.py`; `torch_npu/utils/storage.py`, whose releases differ in whether they save so.
const TENSORS: [&str; 3] = [
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch_npu.utils.storage._rebuild_npu_tensor",
];

struct Reader<'a> {
    pickle: &'a Pickle,
    left: usize,
}

/// A number; as text if JSON has no form for it.
fn float(x: f64) -> Value {
    serde_json::Number::from_f64(x).map_or_else(|| Value::String(x.to_string()), Value::Number)
}

/// Unfolds the root of a pickle.
pub(super) fn unfold(pickle: &Pickle) -> Result<Node, String> {
    let (some, each) = NODES_OF_SHORT;
    Reader { pickle, left: MAX_NODES.min(some + each * pickle.length) }.node(pickle.root, 0)
}

impl Reader<'_> {
    fn spend(&mut self, nodes: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(nodes).ok_or("the objects unfold to too many values")?;
        Ok(())
    }

    fn copy(&mut self, text: &str) -> Result<String, String> {
        self.spend(text.len() / TEXT_NODE)?;
        Ok(text.to_owned())
    }

    fn node(&mut self, id: Id, depth: usize) -> Result<Node, String> {
        self.spend(1)?;
        if depth > MAX_DEPTH {
            return Err(format!("objects are nested more than {MAX_DEPTH} deep"));
        }
        let pickle = self.pickle;
        Ok(match &pickle.objects[id] {
            Obj::None | Obj::Bytes(_) | Obj::Persistent(_) => Node::Plain(Value::Null),
            Obj::Bool(b) => Node::Plain(Value::Bool(*b)),
            Obj::Int(i) => Node::Plain(Value::from(*i)),
            Obj::Big(bytes) => Node::Plain(Value::String(format!("an integer of {} bytes", bytes.len()))),
            Obj::Float(x) => Node::Plain(float(*x)),
            Obj::Str(s) | Obj::Global(s) => Node::Plain(Value::String(self.copy(s)?)),
            Obj::List(items) | Obj::Tuple(items) => {
                let nodes = items.iter().map(|&i| self.node(i, depth + 1)).collect::<Result<Vec<_>, _>>()?;
                if nodes.iter().all(|n| matches!(n, Node::Plain(_))) {
                    Node::Plain(Value::Array(nodes.iter().map(Node::to_json).collect()))
                } else {
                    Node::List(nodes)
                }
            }
            Obj::Dict(entries) => self.dict(entries, depth)?,
            Obj::Call { function, args, state } => self.called(function, args, *state, depth)?,
        })
    }

    /// Later entries win, at the place of the first, as in Python.
    fn dict(&mut self, entries: &[(Id, Id)], depth: usize) -> Result<Node, String> {
        // Not with room for all: one that holds itself would have it once for each level.
        let mut out: Vec<(String, Node)> = Vec::new();
        let mut place = BTreeMap::new();
        for &(key, value) in entries {
            let key = self.key(key)?;
            let value = self.node(value, depth + 1)?;
            match place.get(&key) {
                Some(&i) => out[i] = (key, value),
                None => {
                    place.insert(key.clone(), out.len());
                    out.push((key, value));
                }
            }
        }
        Ok(Node::Dict(out))
    }

    fn key(&mut self, id: Id) -> Result<String, String> {
        let pickle = self.pickle;
        Ok(match &pickle.objects[id] {
            Obj::Str(s) | Obj::Global(s) => self.copy(s)?,
            Obj::Int(i) => i.to_string(),
            other @ (Obj::None | Obj::Bool(_) | Obj::Float(_)) => format!("{other:?}"),
            Obj::Tuple(items) => {
                let part = |&i: &Id| match &pickle.objects[i] {
                    Obj::Str(s) | Obj::Global(s) => self.copy(s),
                    Obj::Int(i) => Ok(i.to_string()),
                    _ => Ok("?".to_owned()),
                };
                let parts = items.iter().take(8).map(part).collect::<Result<Vec<_>, _>>()?;
                format!("({})", parts.join(", "))
            }
            _ => format!("object {id}"),
        })
    }

    fn called(
        &mut self,
        function: &str,
        args: &[Id],
        state: Option<Id>,
        depth: usize,
    ) -> Result<Node, String> {
        match function {
            builder if TENSORS.contains(&builder) => self.tensor(builder, args).map(Node::Tensor),
            "torch._tensor._rebuild_from_type_v2" => {
                let pickle = self.pickle;
                let object = |i: usize| args.get(i).map(|&id| &pickle.objects[id]);
                match (object(0), object(2)) {
                    (Some(Obj::Global(builder)), Some(Obj::Tuple(args)))
                        if TENSORS.contains(&builder.as_str()) =>
                    {
                        self.tensor(builder, args).map(Node::Tensor)
                    }
                    _ => Err("an object with attributes that is not made as a tensor".to_owned()),
                }
            }
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                let inner = *args.first().ok_or("a parameter without a tensor")?;
                self.node(inner, depth + 1)
            }
            "torch.Size" => args.first().map_or(Ok(Node::Plain(Value::Null)), |&a| self.node(a, depth + 1)),
            "builtins.set" | "__builtin__.set" | "builtins.frozenset" | "__builtin__.frozenset" => match args
            {
                [] => Ok(Node::Plain(Value::Array(Vec::new()))),
                [list] => self.node(*list, depth + 1),
                _ => Err("a set of other than one list".to_owned()),
            },
            "argparse.Namespace" => match state {
                Some(state) => self.node(state, depth + 1),
                None => Ok(Node::Dict(Vec::new())),
            },
            other => {
                if let ("numpy.core.multiarray.scalar" | "numpy._core.multiarray.scalar", &[dtype, bytes]) =
                    (other, args)
                    && let Some(value) = self.scalar(dtype, bytes)
                {
                    return Ok(Node::Plain(value));
                }
                // An object that is only kept: its class and its plain arguments, for a reader of `args`.
                let mut object = Map::new();
                object.insert("class".to_owned(), Value::String(self.copy(other)?));
                if !other.starts_with("numpy") && other != "_codecs.encode" {
                    let args = args.iter().map(|&a| self.node(a, depth + 1).map(|n| n.to_json()));
                    object.insert("args".to_owned(), Value::Array(args.collect::<Result<_, _>>()?));
                }
                Ok(Node::Plain(Value::Object(object)))
            }
        }
    }

    /// The value of an array library's scalar of a plain numeric type.
    fn scalar(&self, dtype: Id, bytes: Id) -> Option<Value> {
        let object = |id: Id| &self.pickle.objects[id];
        let Obj::Call { function, args, state } = object(dtype) else { return None };
        let Obj::Str(kind) = object(*args.first().filter(|_| function == "numpy.dtype")?) else {
            return None;
        };
        // A long one is none of them, and would be read for every reference to it.
        let kind = Some(kind).filter(|kind| kind.len() == 2)?;
        let mut bytes: Vec<u8> = match object(bytes) {
            Obj::Bytes(bytes) => bytes.get(..9).unwrap_or(bytes).to_vec(),
            // Bytes in protocol 2: the text that they are in Latin-1.
            Obj::Call { function, args, .. } if function == "_codecs.encode" => {
                let Obj::Str(text) = object(*args.first()?) else { return None };
                text.chars().take(9).map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<_>>()?
            }
            _ => return None,
        };
        if let Obj::Tuple(state) = object((*state)?)
            && matches!(object(*state.get(1)?), Obj::Str(order) if order == ">")
        {
            bytes.reverse();
        }
        let (sign, size) = kind.split_at_checked(1)?;
        if size.parse() != Ok(bytes.len()) || !(1..=8).contains(&bytes.len()) {
            return None;
        }
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(&bytes);
        let unsigned = u64::from_le_bytes(wide);
        let unused = 64 - 8 * bytes.len();
        Some(match (sign, bytes.len()) {
            ("b", 1) => Value::Bool(unsigned != 0),
            ("i", _) => Value::from((unsigned << unused).cast_signed() >> unused),
            ("u", _) => Value::from(unsigned),
            ("f", 2) => float(f64::from(half::f16::from_bits(unsigned as u16))),
            ("f", 4) => float(f64::from(f32::from_bits(unsigned as u32))),
            ("f", 8) => float(f64::from_bits(unsigned)),
            _ => return None,
        })
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>, String> {
        let list = |id: Id| match &self.pickle.objects[id] {
            Obj::Tuple(items) | Obj::List(items) => Some(items),
            _ => None,
        };
        let items = match &self.pickle.objects[id] {
            Obj::Call { function, args, .. } if function == "torch.Size" && args.len() == 1 => list(args[0]),
            _ => list(id),
        };
        let items = items.ok_or("a tensor's sizes are not a tuple")?;
        if items.len() > MAX_DIMS {
            return Err(format!("a tensor of {} dimensions, expected at most {MAX_DIMS}", items.len()));
        }
        items.iter().map(|&i| self.size(i)).collect()
    }

    fn size(&self, id: Id) -> Result<usize, String> {
        match self.pickle.objects[id] {
            Obj::Int(i) => usize::try_from(i).map_err(|_| format!("a negative size {i} in a tensor")),
            _ => Err("a size of a tensor is not an integer".to_owned()),
        }
    }

    fn tensor(&mut self, function: &str, args: &[Id]) -> Result<TensorRef, String> {
        let v3 = function.ends_with("_v3");
        let &[persistent, offset, shape, strides, ..] = args else {
            return Err(format!("a tensor of {} parts, expected at least 4", args.len()));
        };
        let Obj::Persistent(tuple) = self.pickle.objects[persistent] else {
            return Err("a tensor without a storage".to_owned());
        };
        let Obj::Tuple(parts) = &self.pickle.objects[tuple] else {
            return Err("a storage that is not a tuple".to_owned());
        };
        // Five parts, six in the old format.
        let &[word, class, key, _device, elements, ..] = &parts[..] else {
            return Err(format!("a storage of {} parts, expected 5", parts.len()));
        };
        let pickle = self.pickle;
        let text = |id: Id| match &pickle.objects[id] {
            Obj::Str(s) | Obj::Global(s) => Ok(s.as_str()),
            _ => Err("a storage whose parts are not a string".to_owned()),
        };
        if text(word)? != "storage" {
            return Err(format!("expected a storage, got {}", text(word)?));
        }
        let class = text(class)?;
        let (dtype, dtype_name) = if v3 {
            let id = *args.get(6).ok_or("a tensor without a dtype")?;
            let name = text(id)?;
            (torch_dtype(name), name)
        } else {
            let dtype = storage_dtype(class).ok_or_else(|| format!("unknown storage {class}"))?;
            (Some(dtype), type_name(dtype))
        };
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("a tensor with {} sizes and {} strides", shape.len(), strides.len()));
        }
        let mut storage_elements = self.size(elements)?;
        if v3 {
            storage_elements /= dtype.map_or(1, DType::size); // an untyped storage counts bytes
        }
        let offset = self.size(offset)?;
        let last = shape
            .iter()
            .zip(&strides)
            .try_fold(offset, |last, (&n, &s)| n.saturating_sub(1).checked_mul(s)?.checked_add(last));
        // An expanded tensor has more elements than its storage; what is read of it must still be bounded. One without elements
        // has a place and sizes, too.
        let numel = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
        let fits = if shape.contains(&0) {
            offset <= storage_elements
        } else {
            last.is_some_and(|l| l < storage_elements)
        };
        if !fits || numel.is_none_or(|n| n > (1 << 40)) {
            return Err(format!(
                "a tensor of shape {shape:?} at {offset} is outside its storage of {storage_elements} elements"
            ));
        }
        Ok(TensorRef {
            storage: self.copy(text(key)?)?,
            dtype,
            dtype_name: self.copy(dtype_name)?,
            offset,
            shape,
            strides,
            storage_elements,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::pickle;
    use super::*;

    fn refused(parts: &[&[u8]]) -> String {
        unfold(&pickle::read(&[b"\x80\x02", &parts.concat()[..], b"."].concat()).unwrap()).unwrap_err()
    }

    #[test]
    fn values_that_are_shared_count_each_time() {
        let text = [&b"X\x00\x00\x10\x00"[..], &b"t".repeat(1 << 20), b"q\x00"].concat();
        // A list of the same long text, and a dictionary with it as a part of each key.
        let list = [&text, &b"]("[..], &b"h\x00".repeat(1000), b"e\x86"];
        assert_eq!(refused(&list), "the objects unfold to too many values");
        let keys = [&text, &b"}("[..], &b"h\x00h\x00\x86K\x01".repeat(1000), b"u\x86"];
        assert_eq!(refused(&keys), "the objects unfold to too many values");
        // Lists of twice the one before, as deep as 150 bytes describe.
        let twice: Vec<u8> = (0..16).flat_map(|i| [b'h', i, b'h', i, 0x86, b'q', i + 1]).collect();
        assert_eq!(refused(&[b"]q\x00", &twice]), "the objects unfold to too many values");
    }

    #[test]
    fn tensors_with_attributes_and_those_of_ascend_processors_are_tensors() {
        let storage = b"((X\x07\x00\x00\x00storagectorch\nBFloat16Storage\nX\x01\x00\x00\x004X\x05\x00\x00\x00npu:0K\x0ctQ\
                        K\x02K\x05K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)R";
        let v2 = b"ctorch._utils\n_rebuild_tensor_v2\n";
        let npu = b"ctorch_npu.utils.storage\n_rebuild_npu_tensor\n";
        let format = b"ctorch_npu.npu._format\nFormat\nK\x02\x85R";
        let plain = [&v2[..], storage, b"tR"].concat();
        let typed = b"ctorch._tensor\n_rebuild_from_type_v2\n(";
        let state = b"}X\x0d\x00\x00\x00partition_dimK\x00s";
        let read = |stream: Vec<u8>| {
            unfold(&pickle::read(&[&b"\x80\x02"[..], &stream, b"."].concat()).unwrap()).unwrap()
        };
        let want = read(plain.clone());
        let Node::Tensor(tensor) = &want else { panic!("{want:?}") };
        assert_eq!((&tensor.storage[..], tensor.offset, &tensor.shape[..]), ("4", 2, &[5, 2][..]));
        for stream in [
            [&npu[..], storage, format, b"tR"].concat(),
            [&npu[..], storage, b"K\x02tR"].concat(),
            [&typed[..], v2, b"ctorch\nTensor\n", storage, b"t", state, b"tR"].concat(),
            [b"ctorch._utils\n_rebuild_parameter_with_state\n(", &plain[..], b"\x89}", state, b"tR"].concat(),
        ] {
            assert_eq!(read(stream), want);
        }
        let other = [&typed[..], b"ctorch\nSize\nctorch\nTensor\n(K\x01t", state, b"t"].concat();
        assert_eq!(refused(&[&other, b"R"]), "an object with attributes that is not made as a tensor");
    }

    /// The stream of a text.
    fn text(s: &str) -> Vec<u8> {
        [&b"X"[..], &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat()
    }

    fn json(stream: &[&[u8]]) -> Value {
        let stream = [b"\x80\x02", &stream.concat()[..], b"."].concat();
        unfold(&pickle::read(&stream).unwrap()).unwrap().to_json()
    }

    #[test]
    fn scalars_of_numpy_are_numbers() {
        let scalar = |module: &str, kind: &str, order: &str, bytes: &[u8]| {
            let dtype =
                [b"cnumpy\ndtype\n", &text(kind)[..], b"\x89\x88\x87R(K\x03", &text(order), b"NNNK\0tb"];
            json(&[
                format!("cnumpy.{module}.multiarray\nscalar\n").as_bytes(),
                &dtype.concat(),
                bytes,
                b"\x86R",
            ])
        };
        let binary = |bytes: &[u8]| [&[b'C', bytes.len() as u8], bytes].concat();
        for (kind, order, bytes, want) in [
            ("f8", "<", &2.5f64.to_le_bytes()[..], Value::from(2.5)),
            ("f4", "<", &1.5f32.to_le_bytes(), Value::from(1.5)),
            ("f4", "<", &f32::NAN.to_le_bytes(), Value::from("NaN")),
            ("f2", "<", &[0, 0x38], Value::from(0.5)),
            ("i8", "<", &(-7i64).to_le_bytes(), Value::from(-7)),
            ("i4", ">", &(-70_000i32).to_be_bytes(), Value::from(-70_000)),
            ("u1", "|", &[200], Value::from(200)),
            ("u8", "<", &u64::MAX.to_le_bytes(), Value::from(u64::MAX)),
            ("b1", "|", &[1], Value::from(true)),
        ] {
            // As bytes, and as protocol 2 has them: text that is made bytes.
            let latin: String = bytes.iter().map(|&b| char::from(b)).collect();
            let encoded = [b"c_codecs\nencode\n", &text(&latin)[..], &text("latin1"), b"\x86R"].concat();
            for module in ["core", "_core"] {
                assert_eq!(scalar(module, kind, order, &binary(bytes)), want, "{kind}");
                assert_eq!(scalar(module, kind, order, &encoded), want, "{kind}");
            }
        }
        // Of other types, and of other lengths than their types have, they are kept by name.
        let kept = serde_json::json!({ "class": "numpy.core.multiarray.scalar" });
        for (kind, bytes) in
            [("M8", &[0; 8][..]), ("c16", &[0; 16]), ("i9", &[0; 9]), ("i0", &[]), ("f8", &[0; 9])]
        {
            assert_eq!(scalar("core", kind, "<", &binary(bytes)), kept, "{kind}");
        }
        for kind in ["", "\u{e9}8"] {
            assert_eq!(scalar("core", kind, "<", &binary(&[0; 8])), kept, "{kind}");
        }
    }

    #[test]
    fn harmless_objects_are_kept_by_name() {
        let kept = |class: &str, args: Value| serde_json::json!({ "class": class, "args": args });
        // io.BytesIO(b"zz") as protocol 2 has it, complex(1, 2), range(3).
        let encoded = [b"c_codecs\nencode\n", &text("zz")[..], &text("latin1"), b"\x86R"].concat();
        let buffer = json(&[b"c_io\nBytesIO\n)\x81", &encoded, b"K\0N\x87b"]);
        assert_eq!(buffer, kept("_io.BytesIO", serde_json::json!([])));
        let complex = json(&[b"c__builtin__\ncomplex\nK\x01K\x02\x86R"]);
        assert_eq!(complex, kept("__builtin__.complex", serde_json::json!([1, 2])));
        let range = json(&[b"c__builtin__\nxrange\nK\0K\x03K\x01\x87R"]);
        assert_eq!(range, kept("__builtin__.xrange", serde_json::json!([0, 3, 1])));
        // A name alone does nothing; one that is called has to be known.
        assert_eq!(json(&[b"c__builtin__\nEllipsis\n"]), Value::from("__builtin__.Ellipsis"));
        for name in
            ["builtins\ngetattr", "functools\npartial", "torch.storage\n_load_from_bytes", "x\nUnknown"]
        {
            for call in ["R", "\u{81}"] {
                let stream =
                    [b"\x80\x02c", name.as_bytes(), b"\n)", &[call.chars().next().unwrap() as u8], b"."];
                let (_, what) = pickle::read(&stream.concat()).unwrap_err();
                let (name, said) =
                    (name.replace('\n', "."), "is refused: not on the list of allowed functions");
                assert!(what.starts_with(&format!("a call of {name} {said}\nhint: if you trust")), "{what}");
            }
        }
    }

    #[test]
    fn a_set_is_a_list() {
        let stream = b"\x80\x02]q\x00(c__builtin__\nset\n](K\x03K\x01e\x85Rcbuiltins\nfrozenset\n)Re.";
        let node = unfold(&pickle::read(stream).unwrap()).unwrap();
        assert_eq!(node.to_json(), serde_json::json!([[3, 1], []]));
    }

    #[test]
    fn a_tensor_without_elements_has_a_place_in_its_storage_and_sizes_too() {
        let start = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000\
                      X\x03\x00\x00\x00cpuK\x01tQ";
        let (one, far) = (&b"K\x01"[..], &b"\x8a\x08\0\0\0\0\0\0\0\x40"[..]);
        let tensor = |offset: &[u8], rows: &[u8]| {
            let parts = [&b"\x80\x02"[..], start, offset, rows, b"K\0\x86K\x01K\x01\x86\x89)tR."];
            unfold(&pickle::read(&parts.concat()).unwrap())
        };
        assert!(tensor(one, one).is_ok());
        // Past the end of the storage; rows that could not be counted in bytes.
        for (offset, rows) in [(far, one), (one, far)] {
            let refused = tensor(offset, rows).unwrap_err();
            assert!(refused.contains("is outside its storage of 1 elements"), "{refused}");
        }
    }

    #[test]
    fn sizes_of_sizes_and_of_many_dimensions_are_refused() {
        // A tensor whose sizes are a size of a size, and so on.
        let start = b"ctorch\nSize\nq\x00ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n\
                      X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQK\x00";
        let nested = [b"h\x00".repeat(100_000), b")".to_vec(), b"\x85R".repeat(100_000)].concat();
        assert_eq!(refused(&[start, &nested, b")\x89)tR\x86"]), "a tensor's sizes are not a tuple");
        let many = [&b"("[..], &b"K\x01".repeat(9), b"t"].concat();
        assert_eq!(refused(&[start, &many, b")\x89)tR\x86"]), "a tensor of 9 dimensions, expected at most 8");
    }
}
