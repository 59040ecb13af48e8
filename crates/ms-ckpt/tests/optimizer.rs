//! Optimizer state follows the weights through any form and any sharding.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ms_ckpt::layout::mcore::{Experts, FileGrid, Spelling, Version};
use ms_ckpt::layout::torch_dist::{self, Modules};
use ms_ckpt::sharded::{Piece, Writer};
use ms_ckpt::torch::{Node, TorchFile};
use ms_ckpt::{ArgsForm, Checkpoint, Form, Name, Plan, Run, RunOptions, State, open};
use ms_core::{DType, GridSizes, Region};
use ms_spec::{ModelConfig, ParamSpec, Slot, Stages, params};
use ms_testing::tree;
use proptest::prelude::*;
use serde_json::json;
use sha2::{Digest as _, Sha256};

const RUN: RunOptions = RunOptions { threads: 1, sync: false, replace: false };
const STATES: [&str; 3] = ["fp32_param", "exp_avg", "exp_avg_sq"];

fn config(experts: bool, tied: bool, layers: usize) -> ModelConfig {
    let mut json = json!({
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": 8, "intermediate_size": 12,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 2, "vocab_size": 36,
        "tie_word_embeddings": tied, "torch_dtype": "bfloat16"
    });
    if experts {
        json["model_type"] = json!("mixtral");
        json["num_local_experts"] = json!(4);
        json["num_experts_per_tok"] = json!(2);
    }
    ms_spec::hf::read_config(&json).unwrap()
}

/// Values that say to which element of which tensor they belong.
fn values(name: &str, n: usize, size: usize) -> Vec<u8> {
    let mut x = name.bytes().fold(7u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let top = (x >> 8) & 0xbfff_ffff;
        if size == 2 { ((top >> 8) as u16).to_le_bytes().to_vec() } else { top.to_le_bytes().to_vec() }
    };
    (0..n).flat_map(|_| next()).collect()
}

/// A training checkpoint of iteration 5, as ms-train would have saved it on one rank; `decoupled`: tables of words have a
/// learning rate of their own.
fn train(dir: &Path, config: &ModelConfig, distributed: bool, decoupled: bool) {
    let mut held: Vec<(String, ParamSpec, DType)> = Vec::new();
    for spec in params(config) {
        for state in STATES {
            held.push((format!("optimizer.state.{state}.{}", spec.name), spec.clone(), DType::F32));
        }
        held.push((spec.name.clone(), spec, DType::Bf16));
    }
    let bytes: Vec<Vec<u8>> = held.iter().map(|(n, s, d)| values(n, s.shape.numel(), d.size())).collect();
    let piece = |((name, spec, dtype), bytes): (&'_ (String, ParamSpec, DType), &'_ Vec<u8>)| -> (String, _, _, Vec<u8>) {
        (name.clone(), spec.shape, *dtype, bytes.clone())
    };
    let all: Vec<_> = held.iter().zip(&bytes).map(piece).collect();
    let pieces: Vec<Piece<'_>> = all
        .iter()
        .map(|(name, shape, dtype, bytes)| Piece {
            name,
            shape: *shape,
            dtype: *dtype,
            region: Region::whole(shape),
            flat: None,
            bytes: bytes[..].into(),
        })
        .collect();
    let writer = Writer::create(dir, 5).unwrap();
    writer.write_rank(0, &pieces).unwrap();
    let group = |m: f64| json!({"wd_mult": m, "lr_mult": 1.0, "lr": 0.25, "betas": [0.9, 0.95], "step": 5});
    let mut groups = vec![group(1.0), group(0.0)];
    if decoupled {
        let mut own = group(1.0);
        (own["is_decoupled_lr"], own["lr"]) = (json!(true), json!(0.75));
        groups.push(own);
    }
    let state = json!({
        "args": {"use_distributed_optimizer": distributed, "consumed_train_samples": 40, "lr": 0.5},
        "optimizer": {"optimizer": {"param_groups": groups}},
        "opt_param_scheduler": {"num_steps": 40, "max_lr": 0.5}
    });
    writer.finish(config, &state).unwrap();
}

fn convert(from: &Path, to: &Path, file_grid: &FileGrid, form: Form, grouped: bool) {
    let source = open(from).unwrap_or_else(|e| panic!("{file_grid:?}: {e}"));
    let run = Run::of(&source);
    assert!(run.optimizer, "{}: the state is there", from.display());
    let (c, args, dtype) = (source.config(), ArgsForm::Namespace, |name: &str| source.dtype(name));
    let experts = if grouped { Experts::Grouped } else { Experts::Sequential };
    let plan = match form {
        Form::Sharded => Plan::sharded(c, file_grid, &dtype, &run),
        Form::TorchDist => Plan::torch_dist(c, file_grid, Modules::default(), args, &dtype, &run),
        _ => Plan::mcore(c, file_grid, Spelling { experts, ..Spelling::default() }, args, &dtype, &run),
    };
    plan.unwrap().run(&source, to, &RUN, &|_| ()).unwrap();
}

fn check(dir: &Path) {
    let found: Checkpoint = open(dir).unwrap();
    assert_eq!(found.iteration(), 5);
    assert_eq!(found.args()["consumed_train_samples"], 40);
    assert_eq!(found.state()["opt_param_scheduler"]["num_steps"], 40);
    assert_eq!(found.state()["optimizer"]["optimizer"]["param_groups"][0]["step"], 5);
    for spec in params(found.config()) {
        let whole = Region::whole(&spec.shape);
        for (name, dtype) in STATES
            .map(|s| (format!("optimizer.state.{s}.{}", spec.name), DType::F32))
            .into_iter()
            .chain([(spec.name.clone(), DType::Bf16)])
        {
            let mut got = vec![0; spec.shape.numel() * dtype.size()];
            found.read_named(&name, &whole, None, dtype, &mut got).unwrap();
            assert!(got == values(&name, spec.shape.numel(), dtype.size()), "{name}");
        }
    }
}

/// Tensor- and expert-parallel ranks, and stages.
fn some_sizes() -> impl Strategy<Value = (usize, usize, Stages)> {
    let size = || prop::sample::select(vec![1usize, 2, 4]);
    (size(), 0usize..4, size()).prop_map(move |(tp, kind, ep)| {
        let two = Stages { pp: 2, ..Stages::default() };
        let stages = match kind {
            0 => Stages::default(),
            1 => two,
            2 => Stages { layers_per_chunk: Some(1), ..two },
            _ => Stages { pp: 4, ..two },
        };
        (tp, ep, stages)
    })
}

/// Ranks along two axes, and stages.
fn file_grid(tp: usize, ep: usize, stages: Stages) -> FileGrid {
    FileGrid::new(&GridSizes { tp, ep, ..GridSizes::default() }, stages, false).unwrap()
}

#[test]
fn weights_are_read_where_a_rank_lacks_its_optimizer() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    train(&path("run"), &config(false, false, 2), true, false);
    convert(&path("run"), &path("files"), &file_grid(2, 1, Stages::default()), Form::Mcore, false);
    check(&path("files"));
    std::fs::remove_file(path("files/iter_0000005/mp_rank_01/distrib_optim.pt")).unwrap();
    let found = open(&path("files")).unwrap();
    assert!(!found.has_optimizer() && found.torn_state().is_some());
    for spec in params(found.config()) {
        let mut got = vec![0; spec.shape.numel() * 2];
        found.read_named(&spec.name, &Region::whole(&spec.shape), None, DType::Bf16, &mut got).unwrap();
        assert!(got == values(&spec.name, spec.shape.numel(), 2), "{}", spec.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn by_way_of_another_cut_or_directly_the_state_is_the_same(
        (experts, tied, distributed, grouped, decoupled) in any::<(bool, bool, bool, bool, bool)>(),
        (a, b) in (some_sizes(), some_sizes()),
        form in prop::sample::select(vec![Form::Mcore, Form::Sharded, Form::TorchDist]),
    ) {
        let only = |(tp, ep, stages): (usize, usize, Stages)| file_grid(tp, if experts { ep } else { 1 }, stages);
        let (a, b) = (only(a), only(b));
        let c = config(experts, tied, 4);
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        train(&path("run"), &c, distributed, decoupled);
        check(&path("run"));
        convert(&path("run"), &path("a"), &a, form, grouped);
        check(&path("a"));
        convert(&path("a"), &path("ab"), &b, Form::Mcore, grouped);
        check(&path("ab"));
        convert(&path("run"), &path("b"), &b, Form::Mcore, grouped);
        let state = |name: &str| -> BTreeMap<PathBuf, Vec<u8>> {
            tree(&path(name)).into_iter().filter(|(p, _)| p.ends_with("distrib_optim.pt")).collect()
        };
        prop_assert_eq!(state("ab").is_empty(), !distributed);
        prop_assert!(state("ab") == state("b"), "{:?} {:?}", a, b);
        convert(&path("ab"), &path("back"), &FileGrid::default(), Form::Sharded, false);
        check(&path("back"));
    }
}

#[test]
fn a_distributed_optimizers_file_has_whole_buffers_by_chunk_and_type() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    train(&path("run"), &config(true, false, 2), true, false);
    convert(&path("run"), &path("out"), &file_grid(1, 2, Stages::default()), Form::Mcore, true);
    let file = path("out/iter_0000005/mp_rank_00_000/distrib_optim.pt");
    let file = TorchFile::open(&file).unwrap();
    let Node::List(chain) = file.root() else { panic!("dense parameters and experts apart") };
    let buffer = chain[1].get("0").unwrap().get("(torch.bfloat16, torch.float32)").unwrap();
    // Two layers of two experts on this rank: [8, 2 * 24] and [2 * 12, 8].
    assert_eq!(buffer.get("numel_unpadded").unwrap().to_json(), 2 * (384 + 192));
    let Some(Node::Tensor(tensor)) = buffer.get("exp_avg") else { panic!() };
    assert_eq!(file.view("exp_avg", tensor).unwrap().shape, [2 * (384 + 192)]);
    assert_eq!(chain[0].get("buckets_coalesced").unwrap().to_json(), true);
}

/// The buffer of `exp_avg` that is written for a model, in one piece.
fn flat(c: &ModelConfig, spelling: Spelling) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    train(&path("run"), c, true, false);
    let source = open(&path("run")).unwrap();
    let dtype = |name: &str| source.dtype(name);
    let (grid, args, run) = (FileGrid::default(), ArgsForm::Namespace, Run::of(&source));
    let plan = Plan::mcore(source.config(), &grid, spelling, args, &dtype, &run).unwrap();
    plan.run(&source, &path("out"), &RUN, &|_| ()).unwrap();
    check(&path("out"));
    let file = TorchFile::open(&path("out/iter_0000005/mp_rank_00/distrib_optim.pt")).unwrap();
    let buffer = file.root().get("0").unwrap().get("(torch.bfloat16, torch.float32)").unwrap();
    let Some(Node::Tensor(tensor)) = buffer.get("exp_avg") else { panic!() };
    file.read("exp_avg", tensor).unwrap()
}

/// The same of parameters that are registered in this order; `NAME#E` is expert E of four.
fn registered(c: &ModelConfig, names: &[&str]) -> Vec<u8> {
    let specs = params(c);
    let mut flat = Vec::new();
    for name in names.iter().rev() {
        let (name, expert) = name.split_once('#').map_or((*name, None), |(name, e)| (name, e.parse().ok()));
        let spec = specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("{name}"));
        let whole = values(&format!("optimizer.state.exp_avg.{name}"), spec.shape.numel(), 4);
        let (at, n) = expert.map_or((0, whole.len()), |e: usize| (e * whole.len() / 4, whole.len() / 4));
        flat.resize(flat.len().next_multiple_of(64 * 4), 0);
        flat.extend_from_slice(&whole[at..at + n]);
    }
    flat
}

#[test]
fn state_without_names_is_in_the_order_in_which_upstreams_modules_register_parameters() {
    const WORDS: [&str; 1] = ["embedding.word_embeddings.weight"];
    const ENDS: [&str; 2] = ["decoder.final_layernorm.weight", "output_layer.weight"];
    let weight = |name: &&str| {
        let (module, expert) = name.split_once('#').map_or((*name, None), |(module, e)| (module, Some(e)));
        format!("decoder.layers.0.{module}.weight{}", expert.map_or_else(String::new, |e| format!("#{e}")))
    };
    let ordered = |c: &ModelConfig, spelling: Spelling, names: &[&str]| {
        let inside: Vec<String> = names.iter().map(weight).collect();
        let all: Vec<&str> = WORDS.into_iter().chain(inside.iter().map(String::as_str)).chain(ENDS).collect();
        assert!(flat(c, spelling) == registered(c, &all), "{spelling:?}");
    };
    let (own, plain) = (Spelling::default(), config(false, false, 1));
    let (proj, qkv) = ("self_attention.linear_proj", "self_attention.linear_qkv");
    let mlp = ["pre_mlp_layernorm", "mlp.linear_fc1", "mlp.linear_fc2"];
    ordered(&plain, own, &[&["input_layernorm", proj, qkv][..], &mlp].concat());
    // Transformer Engine's projection has the norm.
    for as_trained in [false, true] {
        let te = Spelling { transformer_engine: true, as_trained, ..own };
        ordered(&plain, te, &[&[proj, "input_layernorm", qkv][..], &mlp].concat());
    }
    // Experts one by one, or all first matrices and then all second ones.
    let before = ["input_layernorm", proj, qkv, "pre_mlp_layernorm", "mlp.router"];
    let (first, second) = ("mlp.experts.linear_fc1", "mlp.experts.linear_fc2");
    let expert = |e: usize| [format!("{first}#{e}"), format!("{second}#{e}")];
    let each: Vec<String> = (0..4).flat_map(expert).collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    ordered(&config(true, false, 1), own, &[&before[..], &each].concat());
    // Latents: head registers the second norm after the queries' projection.
    let json = json!({
        "model_type": "deepseek_v3", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 12, "vocab_size": 36,
        "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 2,
        "qk_rope_head_dim": 2, "v_head_dim": 2, "n_routed_experts": 2, "n_shared_experts": 1,
        "num_experts_per_tok": 1, "moe_intermediate_size": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    });
    let latent = ms_spec::hf::read_config(&json).unwrap();
    let [q_norm, kv_norm, q_up, kv_up] =
        ["q_layernorm", "kv_layernorm", "linear_q_up_proj", "linear_kv_up_proj"]
            .map(|module| format!("self_attention.{module}"));
    for (version, [second, third]) in
        [(Version::V2_0_0, [&kv_norm, &q_up]), (Version::Head, [&q_up, &kv_norm])]
    {
        let inside = ["input_layernorm", proj, qkv, &q_norm, second, third, &kv_up];
        ordered(&latent, Spelling { version, ..own }, &[&inside[..], &mlp].concat());
    }
}

#[test]
fn a_distributed_checkpoint_of_shared_out_experts_has_the_keys_of_two_optimizers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    train(&path("run"), &config(true, false, 2), true, false);
    let keys = |to: &str, ep: usize| -> Vec<String> {
        convert(&path("run"), &path(to), &file_grid(1, ep, Stages::default()), Form::TorchDist, false);
        check(&path(to));
        torch_dist::keys(&path(to)).unwrap().into_iter().map(|key| key.name).collect()
    };
    let groups = |optimizer: &Node| {
        let groups = optimizer.get("optimizer").unwrap().get("param_groups").unwrap().to_json();
        let of = |group: &serde_json::Value| (group["wd_mult"].as_f64(), group["is_expert_parallel"] == true);
        groups.as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let optimizer = |to: &str| {
        let file = TorchFile::open(&path(to).join("iter_0000005/common.pt")).unwrap();
        file.root().get("optimizer").unwrap().clone()
    };
    let (expert, other) = ("mlp.experts.experts.linear_fc1.weight", "self_attention.linear_proj.weight");
    let key = |chain: &str, name: &str| format!("{chain}optimizer.state.exp_avg.decoder.layers.{name}");
    let two = keys("two", 2);
    assert!(two.contains(&key("chained_1.", expert)) && two.contains(&key("chained_0.", other)), "{two:?}");
    let both = ["0", "1"].map(|n| groups(optimizer("two").get(n).unwrap()));
    assert_eq!(both, [vec![(Some(1.0), false), (Some(0.0), false)], vec![(Some(1.0), true)]]);
    let one = keys("one", 1);
    assert!(one.contains(&key("", expert)) && one.contains(&key("", other)), "{one:?}");
    assert_eq!(groups(&optimizer("one")), both[0]);
}

#[test]
fn tables_of_words_with_a_rate_of_their_own_are_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (distributed, tied) in [(false, false), (false, true), (true, false)] {
        let [run, out] = ["run", "out"].map(|name| path(&format!("{name} {distributed} {tied}")));
        train(&run, &config(false, tied, 2), distributed, true);
        convert(&run, &out, &FileGrid::default(), Form::Mcore, false);
        let file = TorchFile::open(&out.join("iter_0000005/mp_rank_00/model_optim_rng.pt")).unwrap();
        let groups = file.root().get("optimizer").unwrap().get("optimizer").unwrap().get("param_groups");
        let groups = groups.unwrap().to_json();
        let own = |group: &&serde_json::Value| group["is_decoupled_lr"] == true;
        let [own] = groups.as_array().unwrap().iter().filter(own).collect::<Vec<_>>()[..] else {
            panic!("one group has a rate of its own: {groups}")
        };
        assert_eq!((&own["lr"], groups.as_array().unwrap().len()), (&json!(0.75), 3));
        let tables = own["params"].as_array().map(Vec::len);
        assert_eq!(tables, (!distributed).then_some(if tied { 1 } else { 2 }));
    }
}

#[test]
fn state_of_another_model_is_refused_with_the_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (name, layers) in [("two", 2), ("three", 3)] {
        train(&path(name), &config(false, false, layers), true, false);
        convert(&path(name), &path(&format!("{name}.pt")), &FileGrid::default(), Form::Mcore, false);
    }
    let file = "iter_0000005/mp_rank_00/distrib_optim.pt";
    std::fs::copy(path("three.pt").join(file), path("two.pt").join(file)).unwrap();
    let message = open(&path("two.pt")).unwrap_err().to_string();
    assert!(
        message.contains("distrib_optim.pt: the buffer of chunk 0 (torch.bfloat16, torch.float32) has"),
        "{message}"
    );
    std::fs::write(path("two.pt").join(file), b"PK").unwrap();
    assert!(open(&path("two.pt")).is_err());
}

/// The canonical name of one of Megatron's parameters, and which half of it that is where there are two experts.
fn canonical(name: &str) -> (String, Option<usize>) {
    let Some((layer, rest)) = name.split_once(".local_experts.") else { return (name.to_owned(), None) };
    let (expert, module) = rest.split_once('.').unwrap();
    (format!("{layer}.{module}"), Some(expert.parse().unwrap()))
}

#[test]
fn what_megatron_cores_optimizers_saved_is_read_and_written_element_by_element() {
    for (kind, distributed) in [("", true), ("experts", true), ("ordinary", false)] {
        let folder = ms_testing::workspace_root().join("tests/golden/distrib_optim").join(kind);
        let found = open(&folder).unwrap();
        assert!(found.has_optimizer(), "{kind}");
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_str(&text).unwrap();
        let specs = params(found.config());
        let names: BTreeSet<String> = expected.keys().map(|name| canonical(name).0).collect();
        assert_eq!(names, specs.iter().map(|spec| spec.name.clone()).collect(), "{kind}");
        for (theirs, states) in &expected {
            let (name, half) = canonical(theirs);
            let spec = specs.iter().find(|spec| spec.name == name).unwrap();
            for state in STATES {
                let mut got = vec![0; spec.shape.numel() * 4];
                let name = format!("optimizer.state.{state}.{name}");
                found.read_named(&name, &Region::whole(&spec.shape), None, DType::F32, &mut got).unwrap();
                let got = half.map_or(&got[..], |e| &got[e * got.len() / 2..][..got.len() / 2]);
                let hash: String = Sha256::digest(got).iter().map(|b| format!("{b:02x}")).collect();
                assert_eq!(hash, states[state], "{kind}: {state} of {theirs}");
            }
        }
        // Written again in one piece they are the same buffers, or the same tensors of each group.
        let dir = tempfile::tempdir().unwrap();
        let again = dir.path().join("again");
        convert(&folder, &again, &FileGrid::default(), Form::Mcore, false);
        let [old, new] = [&folder, &again].map(|root| {
            let name = if distributed { "distrib_optim.pt" } else { "model_optim_rng.pt" };
            let file = TorchFile::open(&root.join("iter_0000001/mp_rank_00").join(name)).unwrap();
            let read = |name: &str, node: &Node| match node {
                Node::Tensor(tensor) => file.read(name, tensor).unwrap(),
                other => panic!("{name}: {other:?}"),
            };
            if distributed {
                let typed = file.root().get("0").unwrap().get("(torch.bfloat16, torch.float32)").unwrap();
                let buffer = |state| read(state, typed.get(state).unwrap());
                return ["param", "exp_avg", "exp_avg_sq"].map(buffer).to_vec();
            }
            let masters = file.root().get("optimizer").unwrap().get("fp32_from_fp16_params").unwrap();
            let Node::List(groups) = masters else { panic!("{masters:?}") };
            let group = |group: &Node| match group {
                Node::List(masters) => masters.iter().flat_map(|node| read("master", node)).collect(),
                other => panic!("{other:?}"),
            };
            groups.iter().map(group).collect()
        });
        assert!(old == new, "{kind}");
    }
}

#[test]
fn what_stands_for_states_is_known_from_what_they_are() {
    let (dir, config) = (tempfile::tempdir().unwrap(), config(false, false, 1));
    let specs = params(&config);
    let words = &specs[0];
    assert_eq!(words.slot, Slot::WORDS);
    // The table of words is float32 and has no master weights; a name that only looks like a state of it is nobody's.
    let looks = "optimizer.state.exp_avg.other".to_owned();
    let state = |state| Name::state(state, &words.slot).to_string();
    let named = [words.name.clone(), state(State::ExpAvg), state(State::Momentum), looks.clone()];
    let bytes = named.each_ref().map(|name| values(name, words.shape.numel(), 4));
    let pieces: Vec<Piece<'_>> = named
        .iter()
        .zip(&bytes)
        .map(|(name, bytes)| Piece {
            name,
            shape: words.shape,
            dtype: DType::F32,
            region: Region::whole(&words.shape),
            flat: None,
            bytes: bytes[..].into(),
        })
        .collect();
    let writer = Writer::create(dir.path(), 1).unwrap();
    writer.write_rank(0, &pieces).unwrap();
    writer.finish(&config, &json!({})).unwrap();
    let found = open(dir.path()).unwrap();

    // Read with four more rows: of weights the last is repeated, of what was learned there is nothing.
    let (rows, width) = (words.shape[0], words.shape[1]);
    let padded = Region::whole(&[rows + 4, width].into());
    let read = |name: &str| -> ms_ckpt::Result<Vec<u8>> {
        let mut got = vec![1; padded.shape.numel() * 4];
        found.read_named(name, &padded, None, DType::F32, &mut got)?;
        Ok(got)
    };
    let last = bytes[0][(rows - 1) * width * 4..].repeat(4);
    let weight = [&bytes[0][..], &last[..]].concat();
    assert!(read(&words.name).unwrap() == weight);
    assert!(read(&state(State::Master)).unwrap() == weight, "the weight is its own master");
    for (moment, bytes) in [(State::ExpAvg, &bytes[1]), (State::Momentum, &bytes[2])] {
        let want = [&bytes[..], &vec![0; 4 * width * 4]].concat();
        assert!(read(&state(moment)).unwrap() == want, "{moment:?}");
    }
    let missing = read(&state(State::ExpAvgSq)).unwrap_err().to_string();
    assert!(missing.contains(&state(State::ExpAvgSq)), "{missing}");
    let shape = read(&looks).unwrap_err().to_string();
    assert!(shape.contains(&looks), "a tensor of no vocabulary is not padded: {shape}");
}
