//! A cut as Megatron's arguments.

use ms_spec::{ModelConfig, megatron};
use serde_json::{Map, Value, json};

use super::cut::{Cut, ExpertTp, MODEL};
use super::spelling::{Experts, Spelling};
use crate::Result;

impl Cut {
    /// The arguments that describe the cut, for the file's `args`.
    pub(crate) fn args(&self, config: &ModelConfig, spelling: Spelling) -> Result<Map<String, Value>> {
        let chunks = self.placement(config.layers)?[0].len();
        let list = |items: &[usize]| {
            let text: Vec<String> = items.iter().map(ToString::to_string).collect();
            Value::String(text.join(","))
        };
        let mut args = megatron::to_args(config);
        // What Megatron's arguments have no word for; its readers take no notice. Token ids are in other files.
        let said = megatron::from_args(&args).ok();
        let said = said.map(|said| ModelConfig { bos: config.bos, eos: config.eos.clone(), ..said });
        let mut set = |name: &str, value: Value| {
            args.insert(name.to_owned(), value);
        };
        set("num_layers", json!(config.layers + self.noop.len()));
        set("tensor_model_parallel_size", json!(self.tp));
        set("pipeline_model_parallel_size", json!(self.pp));
        let virtual_chunks = if chunks > 1 { json!(chunks) } else { Value::Null };
        set("virtual_pipeline_model_parallel_size", virtual_chunks);
        set("num_layers_per_virtual_pipeline_stage", json!(self.layers_per_chunk));
        set("num_layer_list", self.layer_list.as_deref().map_or(Value::Null, list));
        // Readers take them for a set of places among all slots, whatever the order in which they were put in.
        let slots = self.slots(config.layers)?;
        let empty: Vec<usize> = (0..slots.len()).filter(|&at| slots[at].is_none()).collect();
        set("noop_layers", if empty.is_empty() { Value::Null } else { list(&empty) });
        set("expert_model_parallel_size", json!(self.ep));
        if config.moe.is_some() {
            let etp = if self.expert_tp == ExpertTp::Cut { self.tp } else { 1 };
            set("expert_tensor_parallel_size", json!(etp));
            set("moe_tp_extend_ep", json!(self.expert_tp == ExpertTp::Extend));
            set("moe_grouped_gemm", json!(spelling.experts == Experts::Grouped));
        }
        if config.mla().is_some() {
            set("mla_mm_split", json!(spelling.mla_split));
        }
        if self.dual_pipe {
            set("schedules_method", json!("dualpipev"));
        }
        let te = if spelling.transformer_engine { "transformer_engine" } else { "local" };
        set("transformer_impl", json!(te));
        if config.beyond_plain().is_some() || said.as_ref() != Some(config) {
            let whole = serde_json::to_string(config).expect("a plain struct");
            set(MODEL, json!(whole));
        }
        set("context_parallel_size", json!(1));
        set("sequence_parallel", json!(false));
        set("iteration", json!(1));
        set("consumed_train_samples", json!(0));
        set("consumed_valid_samples", json!(0));
        Ok(args)
    }
}
