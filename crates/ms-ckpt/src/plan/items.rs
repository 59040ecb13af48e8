//! The entries of a `.pt` file: tensors, and the side tensors of those stored as 4-bit codes.

use ms_core::DType;

use super::{FilePlan, Target};
use crate::Result;
use crate::cast::cast;
use crate::nf4::{Nf4Encoding, Scales, TABLE};

pub(super) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;
pub(super) type Feed<'a> = &'a mut dyn FnMut(&Target, Sink<'_>) -> Result<()>;

/// One tensor of a `.pt` file.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) chunk: usize,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    source: Source,
}

enum Source {
    /// Elements of this target of the plan.
    Elements(usize),
    /// Their 4-bit codes.
    Codes(usize, Nf4Encoding),
    /// Bytes that are held.
    InMemory(Vec<u8>),
}

impl Item {
    /// The entries of a planned file. Targets that become codes are read once, for their scales.
    pub(super) fn list(plan: &FilePlan, feed: Feed<'_>) -> Result<Vec<Self>> {
        let mut items = Vec::with_capacity(plan.tensors.len());
        for (i, t) in plan.tensors.iter().enumerate() {
            let item = |ending: &str, dtype: DType, shape: Vec<usize>, source: Source| Self {
                name: format!("{}{ending}", t.name),
                chunk: t.chunk,
                dtype,
                shape,
                source,
            };
            if !t.nf4 {
                items.push(item("", t.dtype, t.shape.clone(), Source::Elements(i)));
                continue;
            }
            let mut scales = Scales::default();
            floats(t, feed, &mut |values| scales.take(values.iter().copied()))?;
            let mut w = scales.finish(t.dtype, &t.shape);
            let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let elements: usize = t.shape.iter().product();
            let (absmax, nested) = (std::mem::take(&mut w.codes), std::mem::take(&mut w.nested));
            let (map, state) = (std::mem::take(&mut w.map), std::mem::take(&mut w.state).into_bytes());
            items.push(item("", DType::U8, vec![elements.div_ceil(2), 1], Source::Codes(i, w)));
            items.push(item(".absmax", DType::U8, vec![absmax.len()], Source::InMemory(absmax)));
            items.push(item(".quant_map", DType::F32, vec![16], Source::InMemory(bytes(&TABLE))));
            items.push(item(
                ".nested_absmax",
                DType::F32,
                vec![nested.len()],
                Source::InMemory(bytes(&nested)),
            ));
            items.push(item(".nested_quant_map", DType::F32, vec![256], Source::InMemory(bytes(&map))));
            let name = ".quant_state.bitsandbytes__nf4";
            items.push(item(name, DType::U8, vec![state.len()], Source::InMemory(state)));
        }
        Ok(items)
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }

    /// Hands over the bytes.
    pub(super) fn write(&self, plan: &FilePlan, feed: Feed<'_>, sink: Sink<'_>) -> Result<()> {
        match &self.source {
            Source::Elements(i) => feed(&plan.tensors[*i], sink),
            Source::InMemory(bytes) => sink(bytes),
            Source::Codes(i, written) => {
                let (mut at, mut high) = (0, None);
                let mut failed = Ok(());
                floats(&plan.tensors[*i], feed, &mut |values| {
                    let mut packed = Vec::with_capacity(values.len() / 2 + 1);
                    for &x in values {
                        let code = written.code(at, x);
                        at += 1;
                        match high.take() {
                            None => high = Some(code << 4),
                            Some(first) => packed.push(first | code),
                        }
                    }
                    if failed.is_ok() {
                        failed = sink(&packed);
                    }
                })?;
                failed?;
                high.map_or(Ok(()), |last| sink(&[last]))
            }
        }
    }
}

/// Hands over the elements of a target in float32.
fn floats(t: &Target, feed: Feed<'_>, take: &mut dyn FnMut(&[f32])) -> Result<()> {
    let mut values: Vec<f32> = Vec::new();
    let mut wide = Vec::new();
    feed(t, &mut |bytes| {
        // A bounded piece at a time: a source may hand over a whole file.
        for part in bytes.chunks(t.dtype.size() << 16) {
            wide.clear();
            cast(part, t.dtype, DType::F32, &mut wide);
            values.clear();
            let floats = wide.chunks_exact(4);
            values.extend(floats.map(|b| f32::from_le_bytes(b.try_into().expect("exact chunk"))));
            take(&values);
        }
        Ok(())
    })
}
