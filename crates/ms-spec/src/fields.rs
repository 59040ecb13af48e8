//! Typed access to the fields of a JSON object.

use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::{Error, Result};

/// A JSON object and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) source: &'static str,
    pub(crate) map: &'a Map<String, Value>,
    /// Records the names of the fields that are read.
    pub(crate) asked: Option<&'a RefCell<BTreeSet<String>>>,
}

impl<'a> Fields<'a> {
    /// The value of a field that is there and not null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        if let Some(asked) = self.asked {
            asked.borrow_mut().insert(field.to_owned());
        }
        self.map.get(field).filter(|v| !v.is_null())
    }

    pub(crate) fn wrong(&self, field: &'static str, want: &'static str, got: &Value) -> Error {
        let mut got = got.to_string();
        got.truncate(got.char_indices().nth(80).map_or(got.len(), |(i, _)| i));
        Error::Field { source_name: self.source, field, want, got }
    }

    pub(crate) fn missing(&self, field: &'static str) -> Error {
        Error::Missing { source_name: self.source, field }
    }

    pub(crate) fn size(&self, field: &'static str) -> Result<Option<usize>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let int = value.as_u64().or_else(|| {
            let below = 0.0..2f64.powi(64);
            value.as_f64().filter(|x| x.fract() == 0.0 && below.contains(x)).map(|x| x as u64)
        });
        int.map(|i| Some(i as usize)).ok_or_else(|| self.wrong(field, "a whole number below 2^64", value))
    }

    /// A number, or a list with the same one for every layer.
    pub(crate) fn same_size(&self, field: &'static str) -> Result<Option<usize>> {
        let Some(list) = self.get(field).filter(|v| v.is_array()) else { return self.size(field) };
        let sizes = self.sizes(field)?.unwrap_or_default();
        match sizes.split_first() {
            Some((first, rest)) if rest.iter().all(|n| n == first) => Ok(Some(*first)),
            _ => Err(self.wrong(field, "the same number for every layer", list)),
        }
    }

    pub(crate) fn need(&self, field: &'static str) -> Result<usize> {
        self.size(field)?.ok_or_else(|| self.missing(field))
    }

    /// The first of several spellings that is there.
    pub(crate) fn size_of(&self, fields: &[&'static str]) -> Result<Option<usize>> {
        for field in fields {
            if let Some(size) = self.size(field)? {
                return Ok(Some(size));
            }
        }
        Ok(None)
    }

    /// The same, for a field that must be there.
    pub(crate) fn need_of(&self, fields: &[&'static str]) -> Result<usize> {
        self.size_of(fields)?.ok_or_else(|| self.missing(fields[0]))
    }

    pub(crate) fn float(&self, field: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let (want, legal) = range(field);
        value.as_f64().filter(|&x| legal(x)).map(Some).ok_or_else(|| self.wrong(field, want, value))
    }

    pub(crate) fn float_of(&self, fields: &[&'static str]) -> Result<Option<f64>> {
        for field in fields {
            if let Some(number) = self.float(field)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    pub(crate) fn floats(&self, field: &'static str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let (_, legal) = range(field);
        let number = |v: &Value| v.as_f64().filter(|&x| legal(x));
        let list = value.as_array().and_then(|a| a.iter().map(number).collect::<Option<Vec<f64>>>());
        list.map(Some).ok_or_else(|| self.wrong(field, list_of(field), value))
    }

    pub(crate) fn sizes(&self, field: &'static str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let list = value
            .as_array()
            .and_then(|a| a.iter().map(|n| n.as_u64().map(|n| n as usize)).collect::<Option<Vec<usize>>>());
        list.map(Some).ok_or_else(|| self.wrong(field, "a list of numbers", value))
    }

    pub(crate) fn texts(&self, field: &'static str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let list = value.as_array().and_then(|a| a.iter().map(Value::as_str).collect::<Option<Vec<&str>>>());
        list.map(Some).ok_or_else(|| self.wrong(field, "a list of words", value))
    }

    pub(crate) fn flag(&self, field: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(field, "true or false", value))
    }

    /// Whether a flag is given and true.
    pub(crate) fn on(&self, field: &'static str) -> Result<bool> {
        self.flag(field).map(|v| v.unwrap_or(false))
    }

    /// A flag that is true where a file is silent; null is false, as Python has it.
    pub(crate) fn on_unless_said(&self, field: &'static str) -> Result<bool> {
        self.flag(field).map(|v| v.unwrap_or(!self.map.contains_key(field)))
    }

    pub(crate) fn text(&self, field: &'static str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, "text", value))
    }

    pub(crate) fn object(&self, field: &'static str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(field, "an object", value))?;
        Ok(Some(Fields { source: self.source, map, asked: None }))
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::Unsupported { source_name: self.source, what: what.into() }
    }
}

/// Numbers that a model could not compute with, by field: those that something is divided by or a root or power is taken
/// of. Others need only be finite, which every number of JSON is.
fn range(field: &str) -> (&'static str, fn(f64) -> bool) {
    match field {
        _ if above_zero(field) => ("a number above 0", |x| x > 0.0),
        "partial_rotary_factor" | "rotary_pct" | "rotary_percent" | "rope_fraction" => {
            ("a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
        }
        "alpha"
        | "initializer_range"
        | "init_method_std"
        | "swiglu_limit"
        | "mscale"
        | "mscale_all_dim"
        | "rope_scaling_mscale"
        | "rope_scaling_mscale_all_dim" => ("a number of at least 0", |x| x >= 0.0),
        _ if field.ends_with("eps") || field.ends_with("epsilon") => ("a number of at least 0", |x| x >= 0.0),
        _ => ("a number", f64::is_finite),
    }
}

fn above_zero(field: &str) -> bool {
    matches!(
        field,
        "attention_factor"
            | "base"
            | "beta_fast"
            | "beta_slow"
            | "dim_model_base"
            | "factor"
            | "high_freq_factor"
            | "long_factor"
            | "long_mscale"
            | "low_freq_factor"
            | "query_pre_attn_scalar"
            | "rope_factor"
            | "rope_ratio"
            | "rope_scaling_alpha"
            | "rope_scaling_beta_fast"
            | "rope_scaling_beta_slow"
            | "rope_scaling_factor"
            | "rotary_base"
            | "rotary_emb_base"
            | "rotary_seq_len_interpolation_factor"
            | "short_factor"
            | "short_mscale"
    ) || field.ends_with("rope_theta")
        || field.ends_with("softcapping")
}

fn list_of(field: &str) -> &'static str {
    if above_zero(field) { "a list of numbers above 0" } else { "a list of numbers" }
}
