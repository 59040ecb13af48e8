//! Plans for adapter folders of Hugging Face's peft.

use ms_core::DType;

use super::{Container, FilePlan, Plan, Target};
use crate::checkpoint::Checkpoint;
use crate::layout::peft;
use crate::safetensors::make_header;
use crate::{Error, Result};

impl Plan {
    /// The adapters of a checkpoint as a peft folder.
    ///
    /// # Errors
    /// No adapters, adapters of different ranks, or some that peft has no form for.
    pub fn peft(source: &Checkpoint, alpha: f64, dtype: Option<DType>) -> Result<Self> {
        let rank = source
            .adapter_rank()
            .ok_or_else(|| Error::folder(source.root(), "no adapters, or adapters of different ranks"))?;
        let (list, modules) = peft::tensors(source)?;
        let mut tensors = Vec::new();
        for t in list {
            let dtype = dtype.map_or_else(|| source.dtype(&t.global), Ok)?;
            let (parameter, region, shape) = (t.global, t.region, t.shape);
            tensors.push(Target {
                name: t.name,
                parameter,
                dtype,
                shape,
                region,
                transposed: false,
                nf4: false,
                chunk: 0,
            });
        }
        let list: Vec<_> = tensors.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
        let header = make_header(&list, &[("format", "pt")]);
        let mut plan = Self::default();
        plan.files.push(FilePlan {
            path: "adapter_model.safetensors".into(),
            tensors,
            container: Container::Safetensors { header },
        });
        let settings = peft::settings(source.config(), rank, alpha, &modules);
        let mut text = serde_json::to_vec_pretty(&settings).expect("plain JSON");
        text.push(b'\n');
        plan.texts.push((peft::CONFIG.into(), text));
        Ok(plan)
    }
}
