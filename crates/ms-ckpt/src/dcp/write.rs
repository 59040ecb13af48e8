//! Writing `.metadata` and the small files next to it, as `torch.distributed.checkpoint` and Megatron read them.

use std::collections::BTreeMap;

use ms_core::DType;

use crate::torch::{Object, archive_of, put_int, put_text, type_name};

/// A global tensor that is written.
#[derive(Clone, Debug)]
pub(crate) struct WrittenTensor {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    pub(crate) size: Vec<usize>,
    pub(crate) chunks: Vec<WrittenChunk>,
}

/// A box of it, and where its archive lies.
#[derive(Clone, Debug)]
pub(crate) struct WrittenChunk {
    pub(crate) offsets: Vec<usize>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) file: String,
    pub(crate) at: u64,
    pub(crate) length: u64,
}

/// Content of `metadata.json`.
pub(crate) fn backend_json() -> Vec<u8> {
    br#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}"#
        .to_vec()
}

/// The archive that stands for a module without extra state: a list of None, as Megatron's local modules save it.
pub(crate) fn extra_state() -> Vec<u8> {
    archive_of("archive", &Object::List(vec![Object::Plain(serde_json::Value::Null)]))
}

/// The pickle of a `Metadata`. `objects` are keys of byte objects, all at the same place in one file.
pub(crate) fn metadata_pickle(tensors: &[WrittenTensor], objects: &[String], place: (&str, u64)) -> Vec<u8> {
    let mut p = Pickler { out: vec![0x80, 2], memo: BTreeMap::new() };
    p.new_object(METADATA, "Metadata");
    p.fields(|p| {
        p.text("state_dict_metadata");
        p.dict(|p| {
            for t in tensors {
                p.text(&t.key);
                p.tensor(t);
            }
            for key in objects {
                p.text(key);
                p.new_object(METADATA, "BytesStorageMetadata");
                p.fields(|_| ());
            }
        });
        // Where a key stands in the nested dictionary: on top.
        p.text("planner_data");
        p.dict(|p| {
            for key in tensors.iter().map(|t| &t.key).chain(objects) {
                p.text(key);
                p.text(key);
                p.out.push(0x85);
            }
        });
        p.text("storage_data");
        p.dict(|p| {
            for t in tensors {
                for chunk in &t.chunks {
                    p.index(&t.key, Some(&chunk.offsets));
                    p.storage(&chunk.file, chunk.at, chunk.length);
                }
            }
            for key in objects {
                p.index(key, None);
                p.storage(place.0, 0, place.1);
            }
        });
        p.text("storage_meta");
        p.out.push(b'N');
        p.text("version");
        p.text("1.0.0");
    });
    p.out.push(b'.');
    p.out
}

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const FILESYSTEM: &str = "torch.distributed.checkpoint.filesystem";

struct Pickler {
    out: Vec<u8>,
    /// Number of the memo entry of names that were written before.
    memo: BTreeMap<String, u32>,
}

impl Pickler {
    /// Writes `put` once under a name, and refers to it after that.
    fn once(&mut self, name: String, put: impl FnOnce(&mut Vec<u8>)) {
        if let Some(&number) = self.memo.get(&name) {
            self.out.push(b'j');
            self.out.extend_from_slice(&number.to_le_bytes());
            return;
        }
        put(&mut self.out);
        let number = self.memo.len() as u32;
        self.out.push(b'r');
        self.out.extend_from_slice(&number.to_le_bytes());
        self.memo.insert(name, number);
    }

    fn text(&mut self, text: &str) {
        self.once(format!("'{text}"), |out| put_text(out, text));
    }

    fn global(&mut self, module: &str, name: &str) {
        self.once(format!("{module}.{name}"), |out| {
            out.push(b'c');
            out.extend_from_slice(module.as_bytes());
            out.push(b'\n');
            out.extend_from_slice(name.as_bytes());
            out.push(b'\n');
        });
    }

    /// An instance of a class without arguments; its fields follow.
    fn new_object(&mut self, module: &str, name: &str) {
        self.global(module, name);
        self.out.extend_from_slice(b")\x81");
    }

    fn dict(&mut self, items: impl FnOnce(&mut Self)) {
        self.out.extend_from_slice(b"}(");
        items(self);
        self.out.push(b'u');
    }

    fn fields(&mut self, items: impl FnOnce(&mut Self)) {
        self.dict(items);
        self.out.push(b'b');
    }

    fn size(&mut self, sizes: &[usize]) {
        self.global("torch", "Size");
        self.out.push(b'(');
        sizes.iter().for_each(|&n| put_int(&mut self.out, n as i64));
        self.out.extend_from_slice(b"t\x85R");
    }

    fn tensor(&mut self, t: &WrittenTensor) {
        self.new_object(METADATA, "TensorStorageMetadata");
        self.fields(|p| {
            p.text("properties");
            p.new_object(METADATA, "TensorProperties");
            p.out.push(b'(');
            p.global("torch", type_name(t.dtype));
            p.global("torch.serialization", "_get_layout");
            p.text("torch.strided");
            p.out.extend_from_slice(b"\x85R\x89"); // the layout; no gradient
            p.global(METADATA, "_MEM_FORMAT_ENCODING");
            p.out.extend_from_slice(b"K\x00\x85R\x89tb"); // contiguous; not pinned
            p.text("size");
            p.size(&t.size);
            p.text("chunks");
            p.out.extend_from_slice(b"](");
            for chunk in &t.chunks {
                p.new_object(METADATA, "ChunkStorageMetadata");
                p.fields(|p| {
                    p.text("offsets");
                    p.size(&chunk.offsets);
                    p.text("sizes");
                    p.size(&chunk.sizes);
                });
            }
            p.out.push(b'e');
        });
    }

    fn index(&mut self, key: &str, offsets: Option<&[usize]>) {
        self.new_object(METADATA, "MetadataIndex");
        self.fields(|p| {
            p.text("fqn");
            p.text(key);
            p.text("offset");
            match offsets {
                Some(offsets) => p.size(offsets),
                None => p.out.push(b'N'),
            }
            p.text("index");
            p.out.push(b'N');
        });
    }

    fn storage(&mut self, file: &str, at: u64, length: u64) {
        self.new_object(FILESYSTEM, "_StorageInfo");
        self.fields(|p| {
            p.text("relative_path");
            p.text(file);
            p.text("offset");
            put_int(&mut p.out, at as i64);
            p.text("length");
            put_int(&mut p.out, length as i64);
            p.text("transform_descriptors");
            p.out.push(b'N');
        });
    }
}
