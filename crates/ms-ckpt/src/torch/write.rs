//! Writing `.pt` files as `torch.save` does: stored entries, payloads at multiples of 64 bytes, protocol 2.

use std::io::Write;

use ms_core::DType;
use serde_json::{Map, Value};

use super::types::{storage_class, type_name};

/// A value to be pickled.
#[derive(Clone, Debug)]
pub(crate) enum Object {
    /// A plain value.
    Plain(Value),
    /// `collections.OrderedDict`.
    Ordered(Vec<(String, Object)>),
    /// `dict`.
    Dict(Vec<(String, Object)>),
    /// `list`.
    List(Vec<Object>),
    /// `dict` with keys that are not text.
    Keyed(Vec<(Key, Object)>),
    /// `argparse.Namespace`.
    Namespace(Map<String, Value>),
    /// The tensor whose storage is entry `data/N`.
    Tensor { storage: usize, dtype: DType, shape: Vec<usize> },
    /// A float32 tensor of one element, with a storage of its own after those of other tensors.
    Scalar(f32),
}

impl Object {
    /// What it is made of.
    fn parts(&mut self) -> Vec<&mut Object> {
        match self {
            Self::Ordered(entries) | Self::Dict(entries) => entries.iter_mut().map(|e| &mut e.1).collect(),
            Self::Keyed(entries) => entries.iter_mut().map(|e| &mut e.1).collect(),
            Self::List(items) => items.iter_mut().collect(),
            Self::Plain(_) | Self::Namespace(_) | Self::Tensor { .. } | Self::Scalar(_) => Vec::new(),
        }
    }

    /// The first number after those of all storages that it uses.
    fn storages(&mut self) -> usize {
        match self {
            Self::Tensor { storage, .. } => *storage + 1,
            _ => self.parts().into_iter().map(Self::storages).max().unwrap_or(0),
        }
    }

    /// Gives scalars storages from number `next` on, and their values to `values`.
    fn place_scalars(&mut self, next: usize, values: &mut Vec<f32>) {
        if let Self::Scalar(value) = *self {
            *self = Self::Tensor { storage: next + values.len(), dtype: DType::F32, shape: vec![1] };
            return values.push(value);
        }
        self.parts().into_iter().for_each(|part| part.place_scalars(next, values));
    }
}

/// A key that is not a text.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    /// A text among others.
    Text(&'static str),
    /// A number.
    Int(usize),
    /// The types of a parameter and of its gradient.
    Types(DType, DType),
}

/// The pickle of an object.
pub(super) fn pickle(object: &Object) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(&mut out, object);
    out.push(b'.');
    out
}

pub(crate) fn text(out: &mut Vec<u8>, s: &str) {
    out.push(b'X');
    out.extend_from_slice(&(s.len() as u32).to_le_bytes());
    out.extend_from_slice(s.as_bytes());
}

pub(crate) fn int(out: &mut Vec<u8>, i: i64) {
    match i {
        0..=0xff => out.extend_from_slice(&[b'K', i as u8]),
        0x100..=0xffff => {
            out.push(b'M');
            out.extend_from_slice(&(i as u16).to_le_bytes());
        }
        _ if i32::try_from(i).is_ok() => {
            out.push(b'J');
            out.extend_from_slice(&(i as i32).to_le_bytes());
        }
        _ => {
            out.extend_from_slice(&[0x8a, 8]);
            out.extend_from_slice(&i.to_le_bytes());
        }
    }
}

fn global(out: &mut Vec<u8>, module: &str, name: &str) {
    out.push(b'c');
    out.extend_from_slice(module.as_bytes());
    out.push(b'\n');
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
}

fn plain(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(b) => out.push(if *b { 0x88 } else { 0x89 }),
        Value::Number(n) => match n.as_i64() {
            Some(i) => int(out, i),
            None => {
                out.push(b'G');
                out.extend_from_slice(
                    &n.as_f64().expect("a JSON number is an i64, a u64 or a float").to_be_bytes(),
                );
            }
        },
        Value::String(s) => text(out, s),
        Value::Array(items) => {
            out.extend_from_slice(b"](");
            items.iter().for_each(|v| plain(out, v));
            out.push(b'e');
        }
        Value::Object(map) => {
            out.extend_from_slice(b"}(");
            for (key, value) in map {
                text(out, key);
                plain(out, value);
            }
            out.push(b'u');
        }
    }
}

fn items(out: &mut Vec<u8>, entries: &[(String, Object)]) {
    out.push(b'(');
    for (key, value) in entries {
        text(out, key);
        put(out, value);
    }
    out.push(b'u');
}

fn put(out: &mut Vec<u8>, object: &Object) {
    match object {
        Object::Plain(value) => plain(out, value),
        Object::Dict(entries) => {
            out.push(b'}');
            items(out, entries);
        }
        Object::Ordered(entries) => {
            global(out, "collections", "OrderedDict");
            out.extend_from_slice(b")R");
            items(out, entries);
        }
        Object::Namespace(fields) => {
            global(out, "argparse", "Namespace");
            out.extend_from_slice(b")\x81");
            plain(out, &Value::Object(fields.clone()));
            out.push(b'b');
        }
        Object::List(objects) => {
            out.extend_from_slice(b"](");
            objects.iter().for_each(|o| put(out, o));
            out.push(b'e');
        }
        Object::Keyed(entries) => {
            out.extend_from_slice(b"}(");
            for (key, value) in entries {
                match key {
                    Key::Text(name) => text(out, name),
                    Key::Int(n) => int(out, *n as i64),
                    Key::Types(a, b) => {
                        global(out, "torch", type_name(*a));
                        global(out, "torch", type_name(*b));
                        out.push(0x86);
                    }
                }
                put(out, value);
            }
            out.push(b'u');
        }
        Object::Tensor { storage, dtype, shape } => tensor(out, *storage, *dtype, shape),
        Object::Scalar(_) => unreachable!("scalars have storages before they are written"),
    }
}

fn tensor(out: &mut Vec<u8>, storage: usize, dtype: DType, shape: &[usize]) {
    let tuple = |out: &mut Vec<u8>, sizes: &[usize]| {
        out.push(b'(');
        sizes.iter().for_each(|&n| int(out, n as i64));
        out.push(b't');
    };
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    global(out, "torch._utils", "_rebuild_tensor_v2");
    out.extend_from_slice(b"((");
    text(out, "storage");
    global(out, "torch", storage_class(dtype));
    text(out, &storage.to_string());
    text(out, "cpu");
    int(out, shape.iter().product::<usize>() as i64);
    out.extend_from_slice(b"tQ");
    int(out, 0);
    tuple(out, shape);
    tuple(out, &strides);
    out.push(0x89);
    global(out, "collections", "OrderedDict");
    out.extend_from_slice(b")Rt");
    out.push(b'R');
}

/// Hands the bytes of an entry to the sink that it is given.
type Feed<'a, E> = &'a mut dyn FnMut(Sink<'_, E>) -> Result<(), E>;
type Sink<'a, E> = &'a mut dyn FnMut(&[u8]) -> Result<(), E>;

struct Done {
    name: String,
    crc: u32,
    size: u64,
    offset: u64,
}

/// Writes the entries of one archive in order.
pub(crate) struct Writer<W: Write> {
    out: W,
    at: u64,
    prefix: &'static str,
    done: Vec<Done>,
}

/// Sizes from here on need the zip64 form.
const WIDE: u64 = 0xffff_ffff;

impl<W: Write> Writer<W> {
    /// Starts an archive whose entries are called `PREFIX/…` with the object's pickle.
    pub(crate) fn start(out: W, prefix: &'static str, object: &Object) -> std::io::Result<Self> {
        let mut w = Self { out, at: 0, prefix, done: Vec::new() };
        let (mut object, mut scalars) = (object.clone(), Vec::new());
        let next = object.storages();
        object.place_scalars(next, &mut scalars);
        w.small("data.pkl", &pickle(&object))?;
        w.small(".format_version", b"1")?;
        w.small(".storage_alignment", b"64")?;
        w.small("byteorder", b"little")?;
        for (i, value) in scalars.into_iter().enumerate() {
            w.small(&format!("data/{}", next + i), &value.to_le_bytes())?;
        }
        Ok(w)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn small(&mut self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        self.entry(name, bytes.len() as u64, &mut |sink| sink(bytes))
    }

    /// Writes storage `index` of `size` bytes; `feed` hands over exactly those.
    pub(crate) fn storage<E: From<std::io::Error>>(
        &mut self,
        index: usize,
        size: u64,
        feed: Feed<'_, E>,
    ) -> Result<(), E> {
        self.entry(&format!("data/{index}"), size, feed)
    }

    fn entry<E: From<std::io::Error>>(&mut self, name: &str, size: u64, feed: Feed<'_, E>) -> Result<(), E> {
        let (name, offset) = self.begin(name)?;
        let mut crc = crc32fast::Hasher::new();
        let mut written = 0u64;
        feed(&mut |bytes| {
            crc.update(bytes);
            written += bytes.len() as u64;
            self.at += bytes.len() as u64;
            Ok(self.out.write_all(bytes)?)
        })?;
        assert_eq!(written, size, "{name}: bytes of its shape");
        Ok(self.end(name, offset, size, crc.finalize())?)
    }

    /// The local header of an entry: its whole name and where it begins.
    fn begin(&mut self, name: &str) -> std::io::Result<(String, u64)> {
        let name = format!("{}/{name}", self.prefix);
        let offset = self.at;
        // The payload starts at a multiple of 64: an extra field "FB" filled with Z, as torch pads.
        let unpadded = offset + 30 + name.len() as u64 + 4;
        let padding = (unpadded.next_multiple_of(64) - unpadded) as usize;
        let mut header = Vec::with_capacity(64 + name.len() + padding);
        header.extend_from_slice(&0x0403_4b50u32.to_le_bytes());
        header.extend_from_slice(&[0, 0, 0x08, 0x08, 0, 0]); // version, flags: descriptor and UTF-8, stored
        header.extend_from_slice(&[0; 4]); // no time: the same input gives the same bytes
        header.extend_from_slice(&[0; 12]); // checksum and sizes follow the payload
        header.extend_from_slice(&(name.len() as u16).to_le_bytes());
        header.extend_from_slice(&(padding as u16 + 4).to_le_bytes());
        header.extend_from_slice(name.as_bytes());
        header.extend_from_slice(b"FB");
        header.extend_from_slice(&(padding as u16).to_le_bytes());
        header.resize(header.len() + padding, b'Z');
        self.write(&header)?;
        Ok((name, offset))
    }

    /// What follows the payload of an entry.
    fn end(&mut self, name: String, offset: u64, size: u64, crc: u32) -> std::io::Result<()> {
        let mut descriptor = 0x0807_4b50u32.to_le_bytes().to_vec();
        descriptor.extend_from_slice(&crc.to_le_bytes());
        if size >= WIDE {
            descriptor.extend_from_slice(&size.to_le_bytes());
            descriptor.extend_from_slice(&size.to_le_bytes());
        } else {
            descriptor.extend_from_slice(&(size as u32).to_le_bytes());
            descriptor.extend_from_slice(&(size as u32).to_le_bytes());
        }
        self.write(&descriptor)?;
        self.done.push(Done { name, crc, size, offset });
        Ok(())
    }

    /// Writes the closing entries and the directory; gives back the writer beneath.
    pub(crate) fn finish(mut self) -> std::io::Result<W> {
        self.close()?;
        Ok(self.out)
    }

    fn close(&mut self) -> std::io::Result<()> {
        self.small("version", b"3\n")?;
        // torch derives the id from names and checksums; so do we, by another sum.
        let mut id = crc32fast::Hasher::new();
        for d in &self.done {
            id.update(d.name.as_bytes());
            id.update(&d.crc.to_le_bytes());
        }
        let id = format!("{:020}{:020}", id.finalize(), self.done.len());
        self.small(".data/serialization_id", id.as_bytes())?;
        let start = self.at;
        let mut directory = Vec::new();
        for d in &self.done {
            let mut wide = Vec::new();
            let narrow = |v: u64| if v >= WIDE { WIDE as u32 } else { v as u32 };
            if d.size >= WIDE {
                wide.extend_from_slice(&d.size.to_le_bytes());
                wide.extend_from_slice(&d.size.to_le_bytes());
            }
            if d.offset >= WIDE {
                wide.extend_from_slice(&d.offset.to_le_bytes());
            }
            directory.extend_from_slice(&0x0201_4b50u32.to_le_bytes());
            directory.extend_from_slice(&[0, 0, 45, 0, 0x08, 0x08, 0, 0, 0, 0, 0, 0]);
            directory.extend_from_slice(&d.crc.to_le_bytes());
            directory.extend_from_slice(&narrow(d.size).to_le_bytes());
            directory.extend_from_slice(&narrow(d.size).to_le_bytes());
            directory.extend_from_slice(&(d.name.len() as u16).to_le_bytes());
            let extra = if wide.is_empty() { 0 } else { wide.len() as u16 + 4 };
            directory.extend_from_slice(&extra.to_le_bytes());
            directory.extend_from_slice(&[0; 10]); // comment, disk, attributes
            directory.extend_from_slice(&narrow(d.offset).to_le_bytes());
            directory.extend_from_slice(d.name.as_bytes());
            if !wide.is_empty() {
                directory.extend_from_slice(&[1, 0]);
                directory.extend_from_slice(&(wide.len() as u16).to_le_bytes());
                directory.extend_from_slice(&wide);
            }
        }
        let (count, size) = (self.done.len() as u64, directory.len() as u64);
        let end = start + size;
        // Zip64 end record and locator, always, as torch writes them.
        directory.extend_from_slice(&0x0606_4b50u32.to_le_bytes());
        directory.extend_from_slice(&44u64.to_le_bytes());
        directory.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for v in [count, count, size, start] {
            directory.extend_from_slice(&v.to_le_bytes());
        }
        directory.extend_from_slice(&0x0706_4b50u32.to_le_bytes());
        directory.extend_from_slice(&[0; 4]);
        directory.extend_from_slice(&end.to_le_bytes());
        directory.extend_from_slice(&1u32.to_le_bytes());
        directory.extend_from_slice(&0x0605_4b50u32.to_le_bytes());
        directory.extend_from_slice(&[0; 4]);
        for v in [count, count] {
            directory.extend_from_slice(&(v.min(0xffff) as u16).to_le_bytes());
        }
        for v in [size, start] {
            directory.extend_from_slice(&(v.min(WIDE) as u32).to_le_bytes());
        }
        directory.extend_from_slice(&[0, 0]);
        self.write(&directory)
    }
}

/// Bytes of the archive that [`Writer`] makes of an object with storages of these sizes.
pub(crate) fn archive_bytes(prefix: &'static str, object: &Object, storages: &[u64]) -> u64 {
    let measured = || -> std::io::Result<u64> {
        let mut w = Writer::start(std::io::sink(), prefix, object)?;
        for (i, &size) in storages.iter().enumerate() {
            let (name, offset) = w.begin(&format!("data/{i}"))?;
            w.at += size;
            w.end(name, offset, size, 0)?;
        }
        w.close()?;
        Ok(w.at)
    };
    measured().expect("nothing is written")
}

/// A whole archive of an object without tensors.
pub(crate) fn archive_of(prefix: &'static str, object: &Object) -> Vec<u8> {
    let written = Writer::start(Vec::new(), prefix, object).and_then(Writer::finish);
    written.expect("memory takes every byte")
}
