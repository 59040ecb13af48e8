//! The safetensors container: a JSON header, then the bytes of the tensors, nothing else.
//!
//! Layout: header length (u64, little-endian), header, data. The header maps a tensor's name to its dtype, shape and byte
//! range in the data; `__metadata__` maps strings to strings. Ranges are contiguous, without gap or overlap.

use serde_json::{Map, Value, json};
use std::io::Write;

/// The longest header that is read: 100 MB, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Element type as the file spells it, one that [`element_size`] knows.
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors, in the order of the header's text.
    pub tensors: Vec<Entry>,
    /// `__metadata__`.
    pub metadata: Map<String, Value>,
    /// The header's text, with its padding.
    pub text: String,
}

/// Bytes of an element of a type as files spell it; `None`: no file has such a type.
pub fn element_size(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 1,
        _ => return None,
    })
}

/// Reads and checks the header of a whole file.
///
/// # Errors
/// What is wrong, with the tensor and the numbers, for an invalid file.
pub fn header(bytes: &[u8]) -> Result<Header, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("no safetensors file: {} bytes, expected at least 8", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(format!("the header is said to have {length} bytes, the file has {}", rest.len()));
    }
    let (text, data) = rest.split_at(length as usize);
    let text = std::str::from_utf8(text).map_err(|e| format!("the header is not UTF-8: {e}"))?;
    let json: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| format!("the header is not a JSON object: {e}"))?;
    let data_start = 8 + length as usize;
    let mut metadata = Map::new();
    let mut tensors = Vec::with_capacity(json.len());
    for (name, value) in json {
        if name == "__metadata__" {
            metadata = value.as_object().cloned().ok_or("__metadata__ is not an object")?;
            continue;
        }
        let entry = entry(&name, &value, data.len()).map_err(|e| format!("tensor {name}: {e}"))?;
        tensors.push(Entry { start: entry.start + data_start, end: entry.end + data_start, ..entry });
    }
    let mut order: Vec<&Entry> = tensors.iter().collect();
    order.sort_by_key(|e| (e.start, e.end));
    let mut next = data_start;
    for e in order {
        if e.start != next {
            return Err(format!("tensor {} starts at byte {}, expected {next}", e.name, e.start));
        }
        next = e.end;
    }
    if next != bytes.len() {
        return Err(format!("the tensors end at byte {next}, the file at {}", bytes.len()));
    }
    Ok(Header { tensors, metadata, text: text.to_owned() })
}

fn entry(name: &str, value: &Value, data: usize) -> Result<Entry, String> {
    let dtype = value["dtype"].as_str().ok_or("no dtype")?;
    let element = element_size(dtype).ok_or_else(|| format!("unknown dtype {dtype}"))?;
    let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
    let shape: Vec<usize> =
        value["shape"].as_array().and_then(|s| s.iter().map(number).collect()).ok_or("no shape")?;
    let offsets: Vec<usize> = value["data_offsets"]
        .as_array()
        .and_then(|s| s.iter().map(number).collect())
        .ok_or("no data_offsets")?;
    let &[start, end] = &offsets[..] else {
        return Err(format!("{} data_offsets, expected 2", offsets.len()));
    };
    if start > end || end > data {
        return Err(format!("bytes {start}..{end} are outside the data of {data} bytes"));
    }
    let bytes = shape.iter().try_fold(element, |n, &d| n.checked_mul(d));
    if bytes != Some(end - start) {
        return Err(format!("shape {shape:?} of {dtype} does not fill {} bytes", end - start));
    }
    Ok(Entry { name: name.to_owned(), dtype: dtype.to_owned(), shape, start, end })
}

/// The header of a file to be written: tensors, with their name, type as files spell it and shape, lie in the given order.
///
/// # Panics
/// For a type that no file has.
pub fn make_header(tensors: &[(String, &str, Vec<usize>)], metadata: &[(&str, &str)]) -> String {
    let mut map = Map::new();
    if !metadata.is_empty() {
        let meta: Map<String, Value> = metadata.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        map.insert("__metadata__".to_owned(), Value::Object(meta));
    }
    let mut at = 0usize;
    for (name, dtype, shape) in tensors {
        let element = element_size(dtype).expect("a type that files have");
        let end = at + shape.iter().product::<usize>() * element;
        map.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut text = Value::Object(map).to_string();
    // Data starts at a multiple of 8 bytes: the header is padded with spaces.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    text
}

/// Writes the length and text of a header.
///
/// # Errors
/// What `out` reports.
pub fn write_header(out: &mut dyn Write, text: &str) -> std::io::Result<()> {
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Vec<u8> {
        let tensors = [
            ("b".to_owned(), "BF16", vec![2, 3]),
            ("a".to_owned(), "F32", vec![]),
            ("empty".to_owned(), "I64", vec![0, 4]),
        ];
        let mut bytes = Vec::new();
        write_header(&mut bytes, &make_header(&tensors, &[("format", "pt")])).unwrap();
        bytes.extend(0..16u8);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = sample();
        let header = header(&bytes).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        let names: Vec<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["b", "a", "empty"]);
        let start = bytes.len() - 16;
        assert_eq!(start % 8, 0);
        assert_eq!((header.tensors[0].start, header.tensors[0].end), (start, start + 12));
        assert_eq!((header.tensors[1].dtype.as_str(), header.tensors[1].shape.len()), ("F32", 0));
    }

    #[test]
    fn hostile_headers_are_refused_with_the_numbers() {
        let file = |text: &str, data: usize| {
            let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(bytes.len() + data, 0);
            header(&bytes).unwrap_err()
        };
        let t = |shape: &str, offsets: &str| {
            format!(r#"{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert_eq!(file(&t("[1]", "[0,8]"), 4), "tensor x: bytes 0..8 are outside the data of 4 bytes");
        assert_eq!(file(&t("[2]", "[0,4]"), 4), "tensor x: shape [2] of F32 does not fill 4 bytes");
        let huge = t("[4611686018427387904,4611686018427387904]", "[0,0]");
        assert!(file(&huge, 0).contains("does not fill 0 bytes"));
        assert!(file(&t("[1]", "[4,8]"), 8).contains("starts at byte"), "a hole");
        assert!(file(&t("[1]", "[0,4]"), 8).contains("the tensors end at byte"), "bytes nobody owns");
        assert!(file("[]", 0).contains("not a JSON object"));
        assert!(header(&u64::MAX.to_le_bytes()).unwrap_err().contains("the file has 0"));
        assert!(header(&[1, 2, 3]).unwrap_err().contains("3 bytes"));
    }

    proptest! {
        #[test]
        fn changed_or_cut_files_are_an_error_or_stay_inside_themselves(
            at in 0usize..400, value in any::<u8>(), cut in 0usize..400,
        ) {
            let mut bytes = sample();
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut % bytes.len());
            if let Ok(header) = header(&bytes) {
                for t in header.tensors {
                    prop_assert!(t.start <= t.end && t.end <= bytes.len());
                }
            }
        }
    }
}
