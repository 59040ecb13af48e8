//! Rows of Parquet and Arrow tables as objects.

use super::arrow_stream::ArrowBatches;
use super::groups::{Groups, ParquetBatches, bad, known};
use arrow_array::cast::AsArray;
use arrow_array::types as t;
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use bytes::Bytes;
use serde_json::{Map, Number, Value};
use std::fs::File;
use std::io::{Read, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A table's rows, batch by batch.
pub(super) enum Table {
    Parquet(Box<dyn ParquetBatches>),
    Arrow(ArrowBatches),
}

impl Table {
    /// `most` is the longest record in bytes, from which the bounds of pages follow.
    pub(super) fn parquet_file(file: File, most: usize) -> Result<Self> {
        guarded(move || Ok(Self::Parquet(Box::new(Groups::new(file, most)?))))
    }

    /// A Parquet file that cannot be sought in; its table of contents stands at its end, so all of it is needed.
    pub(super) fn parquet_bytes(bytes: Vec<u8>, most: usize) -> Result<Self> {
        guarded(move || Ok(Self::Parquet(Box::new(Groups::new(Bytes::from(bytes), most)?))))
    }

    pub(super) fn arrow(input: Box<dyn Read + Send>) -> Self {
        Self::Arrow(ArrowBatches::new(input))
    }

    /// The next batch that has rows.
    pub(super) fn next(&mut self) -> Result<Option<Arc<RecordBatch>>> {
        loop {
            let batch = guarded(|| match self {
                Self::Parquet(groups) => groups.next(),
                Self::Arrow(batches) => batches.next(),
            })?;
            match batch {
                Some(batch) if batch.num_rows() == 0 => {}
                other => return Ok(other.map(Arc::new)),
            }
        }
    }
}

/// The libraries of these formats may panic at a file that lies; here that is an error like any other.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a broken file");
        Err(bad(format!("the file contradicts itself: {text}")))
    })
}

/// Bytes that row `row` of a batch has as an object, at least; counting stops beyond `most`. What a dictionary holds once
/// counts as often as it occurs.
pub(super) fn row_bytes(batch: &RecordBatch, row: usize, most: usize) -> usize {
    batch.columns().iter().fold(0, |sum, column| {
        if sum > most { sum } else { sum.saturating_add(cell_bytes(column.as_ref(), row, most - sum)) }
    })
}

fn cell_bytes(array: &dyn Array, row: usize, most: usize) -> usize {
    if !known(array.data_type()) || array.is_null(row) {
        return 1;
    }
    let items = |items: &Arc<dyn Array>| {
        let mut sum = 2usize;
        if weightless(items.data_type()) {
            // It is refused when it is read.
            return sum;
        }
        for i in 0..items.len() {
            if sum > most {
                break;
            }
            sum = sum.saturating_add(cell_bytes(items.as_ref(), i, most - sum) + 1);
        }
        sum
    };
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).len(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).len(),
        DataType::Utf8View => array.as_string_view().value(row).len(),
        DataType::List(_) => items(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => items(&array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => items(&array.as_fixed_size_list().value(row)),
        DataType::Struct(_) => array.as_struct().columns().iter().fold(2, |sum, column| {
            if sum > most { sum } else { sum.saturating_add(cell_bytes(column.as_ref(), row, most - sum)) }
        }),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = value(dictionary.keys(), row).ok().flatten();
            let key = key.and_then(|key| usize::try_from(key.as_u64()?).ok());
            key.map_or(1, |key| cell_bytes(dictionary.values().as_ref(), key, most))
        }
        _ => 1,
    }
}

/// Row `row` of a batch as an object.
///
/// Columns of types that have no counterpart in JSON (times, decimals, raw bytes, …) are left out.
///
/// # Errors
/// What is wrong with the values.
pub(super) fn object(batch: &RecordBatch, row: usize) -> std::result::Result<Map<String, Value>, String> {
    let schema = batch.schema_ref();
    let mut out = Map::new();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if let Some(value) =
            value(column.as_ref(), row).map_err(|reason| format!("{}: {reason}", field.name()))?
        {
            out.insert(field.name().clone(), value);
        }
    }
    Ok(out)
}

/// A cell, or what is wrong with it.
type Cell = std::result::Result<Option<Value>, String>;

/// A cell; `None` if its type has no counterpart.
fn value(array: &dyn Array, row: usize) -> Cell {
    macro_rules! integer {
        ($t:ty) => {
            Value::from(array.as_primitive::<$t>().value(row))
        };
    }
    if !known(array.data_type()) {
        return Ok(None);
    }
    if array.is_null(row) {
        return Ok(Some(Value::Null));
    }
    Ok(Some(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).into(),
        DataType::Utf8View => array.as_string_view().value(row).into(),
        DataType::Int8 => integer!(t::Int8Type),
        DataType::Int16 => integer!(t::Int16Type),
        DataType::Int32 => integer!(t::Int32Type),
        DataType::Int64 => integer!(t::Int64Type),
        DataType::UInt8 => integer!(t::UInt8Type),
        DataType::UInt16 => integer!(t::UInt16Type),
        DataType::UInt32 => integer!(t::UInt32Type),
        DataType::UInt64 => integer!(t::UInt64Type),
        DataType::Float32 => float(array.as_primitive::<t::Float32Type>().value(row).into()),
        DataType::Float64 => float(array.as_primitive::<t::Float64Type>().value(row)),
        DataType::List(_) => list(&array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row))?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let mut out = Map::new();
            for (field, column) in fields.iter().zip(columns) {
                if let Some(value) = value(column.as_ref(), row)? {
                    out.insert(field.name().clone(), value);
                }
            }
            Value::Object(out)
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = value(dictionary.keys(), row)?.and_then(|key| usize::try_from(key.as_u64()?).ok());
            return key.map_or(Ok(None), |key| value(dictionary.values().as_ref(), key));
        }
        _ => return Ok(None),
    }))
}

/// Items that take up no bytes may be as many as a broken file claims, so there may be none of them.
fn list(items: &Arc<dyn Array>) -> std::result::Result<Value, String> {
    if !items.is_empty() && weightless(items.data_type()) {
        return Err(format!("a list of {} items that hold nothing ({})", items.len(), items.data_type()));
    }
    let mut out = Vec::new();
    for i in 0..items.len() {
        out.extend(value(items.as_ref(), i)?);
    }
    Ok(Value::Array(out))
}

/// Whether any number of values of a type can stand in no bytes, or in a few.
fn weightless(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::FixedSizeBinary(0) | DataType::FixedSizeList(_, 0) => true,
        DataType::RunEndEncoded(..) => true,
        DataType::FixedSizeList(item, _) => weightless(item.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| weightless(field.data_type())),
        _ => false,
    }
}

/// JSON has no infinities and no NaN.
fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}
