//! A model and its sharding as Megatron's arguments.

use ms_core::Axis;
use ms_spec::{ModelConfig, Role, Stages, megatron};
use serde_json::{Map, Value, json};

use super::file_grid::{FileGrid, MODEL};
use super::spelling::{Experts, Spelling};
use crate::Result;

impl FileGrid {
    /// The arguments that describe both, for the file's `args`.
    pub(crate) fn args(&self, config: &ModelConfig, spelling: Spelling) -> Result<Map<String, Value>> {
        let chunks = self.placement(config)?.chunks();
        let Stages { layers_per_chunk, layer_list, dual_pipe, .. } = self.stages();
        let list = |items: &[usize]| {
            let text: Vec<String> = items.iter().map(ToString::to_string).collect();
            Value::String(text.join(","))
        };
        // Arguments count by slots; readers take the empty ones for a set of places among all, whatever the order in which they
        // were put in.
        let slots = self.slots(config.layers)?;
        let empty: Vec<usize> = (0..slots.len()).filter(|&at| slots[at].is_none()).collect();
        let mut args = megatron::to_args(&megatron::with_empty_slots(config, &slots));
        let empty_slots = if empty.is_empty() { Value::Null } else { list(&empty) };
        args.insert("noop_layers".to_owned(), empty_slots);
        // What Megatron's arguments have no word for; its readers take no notice. Token ids are in other files, and a model of
        // other files may be put into other slots than it was drawn in.
        let said = megatron::from_saved_args(&args).ok();
        let said = said.map(|said| ModelConfig {
            bos: config.bos,
            eos: config.eos.clone(),
            empty_slots: config.empty_slots,
            ..said
        });
        let mut set = |name: &str, value: Value| {
            args.insert(name.to_owned(), value);
        };
        // Upstream's converters find by it how wide the first projection is, whatever the gate's function.
        if config.activation.gated() {
            set("swiglu", json!(true));
        }
        set("tensor_model_parallel_size", json!(self.size(Axis::Tp)));
        set("pipeline_model_parallel_size", json!(self.size(Axis::Pp)));
        let virtual_chunks = if chunks > 1 { json!(chunks) } else { Value::Null };
        set("virtual_pipeline_model_parallel_size", virtual_chunks);
        // Upstream's converter of 2026 looks for the layers of both directions there.
        let both = dual_pipe.then(|| slots.len() / self.size(Axis::Pp) / 2);
        set("num_layers_per_virtual_pipeline_stage", json!(layers_per_chunk.or(both)));
        set("num_layer_list", layer_list.as_deref().map_or(Value::Null, list));
        set("expert_model_parallel_size", json!(self.size(Axis::Ep)));
        // The same converter reads groups of queries from there alone, and takes as many keys as queries without.
        set("num_key_value_heads", json!(config.groups));
        if config.moe.is_some() {
            // Upstream keeps that of dense layers where experts are shared out, and refuses 1 there.
            let etp =
                if self.extend_ep() { self.size(Axis::Tp) } else { self.grid().expert().size(Axis::Tp) };
            set("expert_tensor_parallel_size", json!(etp));
            set("moe_tp_extend_ep", json!(self.extend_ep()));
            set("moe_grouped_gemm", json!(spelling.experts == Experts::Grouped));
        }
        if config.head_parts(Role::LinearKvUpProj).is_some() {
            set("mla_mm_split", json!(spelling.split_heads));
        }
        if *dual_pipe {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ms_core::GridSizes;

    #[test]
    fn arguments_have_what_upstreams_converters_read() {
        let config = |name: &str| {
            let folder = ms_testing::golden_model(name).unwrap();
            let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
            ms_spec::hf::read_config(&ms_spec::hf::parse_json(&text).unwrap()).unwrap()
        };
        let args = |config: &ModelConfig, grid: &FileGrid| grid.args(config, Spelling::default()).unwrap();
        let one = FileGrid::default();
        assert_eq!(args(&config("gemma2"), &one)["swiglu"], true);
        assert_eq!(args(&config("bloom"), &one)["add_position_embedding"], true);
        let grouped = config("llama3_gqa");
        assert!(grouped.groups < grouped.heads);
        assert_eq!(args(&grouped, &one)["num_key_value_heads"], grouped.groups);
        let eight = ModelConfig { layers: 8, ..grouped };
        let stages = Stages { pp: 2, dual_pipe: true, ..Stages::default() };
        let both = FileGrid::new(&GridSizes::default(), stages, false).unwrap();
        assert_eq!(args(&eight, &both)["num_layers_per_virtual_pipeline_stage"], 2);
    }
}
