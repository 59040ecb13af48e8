//! The parser compared with upstream's recorded command lines.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use std::sync::OnceLock;

options! {
    /// A few flags of each kind, for a program of the tests.
    struct Few in "Optimizer" {
        beta1: f64 = "--adam-beta1", "decay of the first moment", range = "[0,1)";
        eps: f64 = "--adam-eps", "added to the root of the second moment", range = "(0,)";
        clip: f64 = "--clip-grad", "largest gradient norm; 0 turns clipping off", range = "[0,)";
        lr: Option<f64> = "--lr", "largest learning rate", group = "Learning rate", range = "[0,)";
        warmup: usize = "--lr-warmup-iters", "iterations of linear warm-up", group = "Learning rate", range = "[0,1000000000000]";
        seq_length: Option<usize> = "--seq-length", "tokens of a sample", group = "Batch", range = "[1,268435456]";
        hidden_dropout: Given<f64> = "--hidden-dropout", "dropout after the embedding and after every sublayer; 0 unless given", group = "Model", range = "[0,1)", unset = Unset::Otherwise;
        attention_dropout: Given<f64> = "--attention-dropout", "dropout of attention weights; 0 unless given", group = "Model", range = "[0,1)", unset = Unset::Otherwise;
        context: String = "--context-parallel-algo", "how they do: keys and values in a ring or gathered, heads for tokens, or both", group = "Parallelism";
        tp: usize = "--tensor-model-parallel-size", "ranks that share a matrix", group = "Parallelism", range = "[1,65536]";
        data: Vec<String> = "--data-path", "dataset prefix, weighted list of prefixes, or a .safetensors file of samples", group = "Data";
        bf16: bool = "--bf16", "compute in bfloat16, keep master weights in float32", group = "Precision";
        check_for_nan: bool = "--no-check-for-nan-in-loss-and-grad", "continue when a loss or gradient is not a number", group = "Logging";
        ratios: Vec<String> = "--compress-ratios", "tokens of a pooled entry, by layer; 0: a window alone, 4: an indexer picks entries", group = "Model families", range = "[0,268435456]";
        latent: Option<i64> = "--kv-lora-rank", "width of the key/value latent", group = "Model families", range = "[1,16777216]";
        groups: Option<i64> = "--topk-group", "groups of experts that stay open", range = "[1,16384]";
        threads: Option<usize> = "--threads", "threads of each rank's kernels", group = "Parallelism", range = "[1,1024]", own = own("threads");
    }
}

struct Nothing;

impl Options for Nothing {
    fn entries() -> Vec<Entry> {
        Vec::new()
    }

    fn read(_: &Reader<'_>) -> Result<Self, crate::Usage> {
        Ok(Self)
    }
}

/// A program of these tests that acts on a few flags of a trainer.
fn trainer() -> &'static Line {
    static LINE: OnceLock<Line> = OnceLock::new();
    LINE.get_or_init(|| Line::new::<(ConfigFile, Few)>(Program::Train, "ms-train", "trains"))
}

/// One that acts on nothing but what all do.
fn idle(program: Program) -> &'static Line {
    Box::leak(Box::new(Line::new::<Nothing>(program, "ms-idle", "does nothing")))
}

fn train(argv: &[&str]) -> Args {
    parse(trainer(), argv.iter().copied()).unwrap()
}

fn refusal(line: &'static Line, argv: &[&str]) -> String {
    parse(line, argv.iter().copied()).unwrap_err().0
}

#[test]
fn later_duplicates_win_and_the_first_place_is_kept() {
    let args = train(&["--lr", "1", "--bf16", "--lr", "2e-3"]);
    assert_eq!(
        args.upstream_values().into_iter().collect::<Vec<_>>(),
        [("lr".into(), json!(2e-3)), ("bf16".into(), json!(true))]
    );
}

#[test]
fn negative_numbers_are_values_and_other_dashes_are_flags() {
    assert_eq!(train(&["--lr", "-1.5"]).value("lr"), Some(&json!(-1.5)));
    assert_eq!(train(&["--lr", "-.5"]).value("lr"), Some(&json!(-0.5)));
    // argparse before Python 3.13 takes an exponent for a flag.
    assert!(refusal(trainer(), &["--lr", "-1e-5"]).starts_with("unknown flag -1e-5"));
    assert_eq!(refusal(trainer(), &["--lr", "--bf16"]), "--lr: expected one value");
}

#[test]
fn lists_take_words_up_to_the_next_flag() {
    let args = train(&["--data-path", "0.3", "a", "0.7", "b", "--split", "9,1,0", "--data-path"]);
    assert_eq!(args.read::<Few>().unwrap().data, Vec::<String>::new());
    let args = train(&["--data-path", "0.3", "a", "--split=9,1,0"]);
    assert_eq!(
        (args.read::<Few>().unwrap().data, args.value("split")),
        (vec!["0.3".into(), "a".into()], Some(&json!("9,1,0")))
    );
    assert_eq!(refusal(trainer(), &["--add-eos-token"]), "--add-eos-token: expected at least one value");
}

#[test]
fn switches_store_true_or_false_and_take_no_value() {
    let args = train(&["--no-masked-softmax-fusion", "--swiglu"]);
    assert_eq!(args.value("masked_softmax_fusion"), Some(&json!(false)));
    assert_eq!((args.value("swiglu"), args.read::<Few>().unwrap().bf16), (Some(&json!(true)), false));
    assert_eq!(refusal(trainer(), &["--swiglu=1"]), "--swiglu takes no value");
    assert_eq!(refusal(trainer(), &["--swiglu", "1"]), "unexpected word '1'\nhint: --swiglu takes no value");
}

#[test]
fn abbreviations_are_unknown_and_get_a_suggestion() {
    assert_eq!(
        refusal(trainer(), &["--tensor-model-parallel-siz", "2"]),
        "unknown flag --tensor-model-parallel-siz\nhint: did you mean --tensor-model-parallel-size?"
    );
}

#[test]
fn a_flag_of_the_other_version_names_that_version() {
    assert_eq!(
        refusal(trainer(), &["--grad-reduce-in-bf16"]),
        "--grad-reduce-in-bf16 is not a flag of v2.0.0\nhint: head has it: pass --upstream head"
    );
    assert!(parse(trainer(), ["--grad-reduce-in-bf16", "--upstream", "head"]).is_ok());
}

#[test]
fn what_the_program_acts_on_is_taken_in_both_versions_and_is_said_to_be_of_one() {
    let beyond = |argv: &[&str]| train(argv).beyond_upstream().map(str::to_owned);
    assert_eq!(
        beyond(&["--tensor-model-parallel-size", "2", "--compress-ratios", "0"]).as_deref(),
        Some("--compress-ratios is not a flag of v2.0.0")
    );
    assert_eq!(beyond(&["--upstream", "head", "--compress-ratios", "0", "--threads", "1"]), None);
    assert_eq!(beyond(&["--tensor-model-parallel-size", "2", "--threads", "1"]), None);
}

#[test]
fn what_a_friendly_tool_tolerates_is_remembered() {
    let args = train(&["--rotary-base", "500000.0", "\r", "--load", "x", " "]);
    assert_eq!(args.value("rotary_base"), Some(&json!(500_000)));
    assert_eq!(args.tolerated().len(), 3);
    assert_eq!(
        refusal(trainer(), &["--rotary-base", "1.5"]),
        "--rotary-base: expected an integer, got '1.5'"
    );
}

#[test]
fn names_and_types_follow_the_version() {
    let old = train(&["--use-mcore-models", "--moe-layer-freq", "-1"]);
    assert_eq!(Value::Object(old.upstream_values()), json!({"use_mcore_models": true, "moe_layer_freq": -1}));
    let new = train(&["--upstream", "head", "--use-mcore-models", "--moe-layer-freq", "[1]*2"]);
    assert_eq!(
        Value::Object(new.upstream_values()),
        json!({"deprecated_use_mcore_models": true, "moe_layer_freq": "[1]*2"})
    );
    for upstream in ["v2.0.0", "head"] {
        let few: Few = train(&["--upstream", upstream, "--topk-group", "3"]).read().unwrap();
        assert_eq!(few.groups, Some(3), "{upstream}: the flag finds the value, whatever it is kept under");
    }
}

#[test]
fn choices_are_checked() {
    assert_eq!(
        refusal(trainer(), &["--lr-decay-style", "step"]),
        "--lr-decay-style: expected one of constant, linear, cosine, inverse-square-root, WSD, got 'step'"
    );
}

#[test]
fn refused_flags_only_count_when_they_ask_for_something() {
    assert!(train(&["--tp-y", "1", "--loss-scale", "0"]).check().is_ok());
    let error = train(&["--tp-y", "2", "--init-method-xavier-uniform"]).check().unwrap_err();
    assert!(
        error.0.contains("--tp-y: ") && error.0.contains("--init-method-xavier-uniform: "),
        "{}",
        error.0
    );
    // Values that request what is the case anyway, and those that do not.
    for (flag, same, other) in [
        ("--dist-ckpt-format", "torch_dist", "zarr"),
        ("--optimizer-selection", "fused_torch_adamw", "fused_ema_adamw"),
    ] {
        let given = |value| train(&["--upstream", "head", flag, value]).check();
        assert!(given(same).is_ok(), "{flag} {same}");
        assert!(given(other).unwrap_err().0.starts_with(&format!("{flag}: ")), "{flag} {other}");
    }
    let file = train(&["--upstream", "head", "--heterogeneous-layers-config-path", "layers.json"]).check();
    assert!(file.unwrap_err().0.contains("--heterogeneous-layers-config-path: "));
}

#[test]
fn flags_that_would_change_a_run_are_not_passed_over() {
    assert!(train(&["--tp-x", "1"]).check().is_ok());
    let wide = train(&["--tp-x", "2"]).check().unwrap_err().0;
    assert!(
        wide.contains("--tp-x: ") && wide.contains("2D tensor parallelism is not in this version"),
        "{wide}"
    );
    // Programs without batches of training pass it over.
    let lower = ["--upstream", "head", "--decrease-batch-size-if-needed"];
    assert!(parse(idle(Program::Infer), lower).unwrap().check().is_ok());
}

#[test]
fn flags_without_effect_say_why() {
    let args = parse(idle(Program::Infer), ["--lr", "1", "--use-flash-attn"]).unwrap();
    let notices = args.without_effect();
    assert_eq!((notices[0].flag, notices[0].reason.as_str()), ("--lr", "acts in ms-train"));
    assert_eq!(
        (notices[1].flag, notices[1].reason.as_str()),
        ("--use-flash-attn", "kernels here are fused already")
    );
}

#[test]
fn each_renamed_flag_names_its_own_successor() {
    for (old, new) in [
        ("--batch-size", "--micro-batch-size"),
        ("--warmup", "--lr-warmup-fraction"),
        ("--model-parallel-size", "--tensor-model-parallel-size"),
        ("--checkpoint-activations", "--recompute-activations"),
    ] {
        let flag = trainer().find(old, Upstream::V2_0_0).unwrap();
        assert_eq!(
            (flag.status, flag.note.as_str()),
            (Status::Refused, &*format!("renamed upstream: use {new}"))
        );
    }
}

#[test]
fn flags_of_methods_that_are_not_there_are_warned_of() {
    let given = ["--dpo-beta", "0.1", "--ref-model", "x", "--lora-alpha", "32", "--enable-hbmfault-repair"];
    let loud = |program| {
        let notices = parse(idle(program), given).unwrap().without_effect().into_iter();
        notices.filter(|n| n.loud).map(|n| (n.flag, n.reason)).collect::<Vec<_>>()
    };
    let named = loud(Program::Train);
    let flags: Vec<&str> = named.iter().map(|(flag, _)| *flag).collect();
    assert_eq!(flags, ["--dpo-beta", "--ref-model", "--lora-alpha", "--enable-hbmfault-repair"]);
    assert!(named.iter().all(|(_, reason)| reason.ends_with("not in this version")), "{named:?}");
    // What only evaluates has no method of training.
    assert_eq!(loud(Program::Eval), []);
    // Upstream's own defaults of fault tolerance ask for nothing.
    let quiet = parse(idle(Program::Train), ["--adlr-autoresume-interval", "1000"]).unwrap();
    assert!(quiet.without_effect().iter().all(|n| !n.loud));
}

#[test]
fn a_configuration_file_stands_behind_the_line() {
    let mut args = train(&["--lr", "1e-3"]);
    let text = "seq-length = 64\nlr = 5.0\ndata_path = [\"a\", \"b\"]\n[optimizer]\nadam_beta2 = 0.95\nbf16 = true\n";
    args.layer_toml(text, Path::new("run.toml")).unwrap();
    let origins: Vec<_> = args.all().filter(|a| ["lr", "seq_length", "clip_grad"].contains(&a.0)).collect();
    assert_eq!(
        origins,
        [
            ("clip_grad", Some(&json!(1.0)), Origin::Default),
            ("lr", Some(&json!(1e-3)), Origin::Flag),
            ("seq_length", Some(&json!(64)), Origin::Config)
        ]
    );
    let few: Few = args.read().unwrap();
    assert_eq!((args.value("adam_beta2"), few.bf16, few.data.len()), (Some(&json!(0.95)), true, 2));
    let error = args.layer_toml("seq_lenght = 3", Path::new("run.toml")).unwrap_err();
    assert_eq!(error.0, "run.toml: unknown flag --seq-lenght\nhint: did you mean --seq-length?");
    let twice = "lr = 1.0\n[data]\nseq_length = 3\n[more]\nseq-length = 4\n";
    let error = args.layer_toml(twice, Path::new("run.toml")).unwrap_err();
    assert_eq!(error.0, "run.toml: seq-length: a second value of --seq-length");
    for (text, flag) in [("upstream = \"head\"", "--upstream"), ("print_args = true", "--print-args")] {
        let error = args.layer_toml(text, Path::new("run.toml")).unwrap_err();
        assert!(error.0.contains(&format!("pass {flag} there")), "{error:?}");
    }
}

#[test]
fn numbers_out_of_range_are_refused_under_the_name_that_was_used() {
    let complaint = |argv: &[&str]| train(argv).check().err().map_or(String::new(), |e| e.0);
    assert_eq!(complaint(&["--clip-grad", "nan"]), "--clip-grad: expected a number of at least 0, found NaN");
    assert_eq!(
        complaint(&["--adam-beta1=1.5"]),
        "--adam-beta1: expected a number from 0 to below 1, found 1.5"
    );
    assert_eq!(complaint(&["--adam-beta1=0.5", "--clip-grad", "0"]), "");
    let several = complaint(&["--compress-ratios", "4", "-1", "128", "--adam-eps", "0"]);
    assert!(several.contains("--compress-ratios: ") && several.contains("--adam-eps: "), "{several}");
    // A flag that this program does not act on is ignored.
    assert!(parse(idle(Program::Infer), ["--adam-eps", "0"]).unwrap().check().is_ok());
}

#[test]
fn values_are_read_with_their_defaults_and_whether_they_were_given() {
    let few: Few = train(&["--adam-beta1", "0.5", "--attention-dropout", "0", "--tp", "4"]).read().unwrap();
    assert_eq!((few.beta1, few.eps, few.clip, few.lr, few.tp), (0.5, 1e-8, 1.0, None, 4));
    assert_eq!((few.attention_dropout.given(), few.hidden_dropout.given()), (Some(&0.0), None));
    assert_eq!((few.hidden_dropout.value, few.attention_dropout.written), (0.1, Some("--attention-dropout")));
    assert_eq!((few.warmup, few.seq_length, few.threads, few.latent), (0, None, None, None));
    assert!(few.check_for_nan && few.ratios.is_empty());
    assert_eq!(few.context, "ulysses_cp_algo");
    let head: Few = train(&["--upstream", "head", "--no-check-for-nan-in-loss-and-grad"]).read().unwrap();
    assert_eq!((head.context.as_str(), head.check_for_nan), ("megatron_cp_algo", false));
}

#[test]
fn a_short_spelling_acts_where_the_long_one_does() {
    let long = |line: &'static Line| line.flags(Upstream::V2_0_0).find(|f| f.flag == "--tp").map(Flag::acts);
    assert_eq!((long(trainer()), long(idle(Program::Infer))), (Some(true), Some(false)));
    assert_eq!(
        train(&["--tp", "2"]).written_flags().next(),
        Some(("tensor_model_parallel_size".into(), "--tp"))
    );
}

#[test]
fn a_flag_that_is_read_twice_or_said_to_do_nothing_is_no_line() {
    options! { #[allow(dead_code)] struct Again in "Optimizer" { lr: Option<f64> = "--lr", "once more", range = "[0,)"; } }
    options! { #[allow(dead_code)] struct Fused in "Other" { on: bool = "--deterministic-mode", "a choice"; } }
    options! { #[allow(dead_code)] struct Text in "Other" { lr: Option<String> = "--bf16", "a switch is not a string"; } }
    options! { #[allow(dead_code)] struct Unknown in "Other" { lr: bool = "--no-such-flag", "nobody has it"; } }
    fn refused<O: Options>() -> String {
        let made = std::panic::catch_unwind(|| Line::new::<O>(Program::Train, "ms-train", ""));
        *made.unwrap_err().downcast::<String>().unwrap()
    }
    assert_eq!(refused::<(Few, Again)>(), "ms-train: --lr is read by two options");
    assert_eq!(
        refused::<Fused>(),
        "ms-train: --deterministic-mode is read, and others.tsv says that it is not"
    );
    assert_eq!(refused::<Text>(), "--bf16: values of kind True are read as Str");
    assert_eq!(refused::<Unknown>(), "ms-train: upstream has no --no-such-flag");
}

#[test]
fn what_holds_without_a_flag_is_told_by_its_fields_not_by_words_of_its_help() {
    options! {
        #[allow(dead_code)]
        struct Worded in "Model" {
            shown: usize = "--shown", "not short for anything, when it is not given or otherwise", own = own_or("shown", "3");
            hidden: f64 = "--hidden-dropout", "no dropout by default", unset = Unset::Otherwise;
            kind: Option<String> = "--lr-decay-style", "shape of the schedule", unset = Unset::Is("a curve");
        }
    }
    let line = Line::new::<Worded>(Program::Train, "ms-train", "trains");
    let long = long_help(&line, Upstream::V2_0_0, "trains", false);
    for (words, end) in [
        ("not short for anything, when it is not given or otherwise", "[3]"),
        ("no dropout by default", "[upstream: 0.1]"),
        ("shape of the schedule", "[a curve]"),
    ] {
        assert!(long.contains(&format!("      {words} {end}\n")), "{long}");
    }
    // A short spelling shows no default of its own.
    let short = long_help(trainer(), Upstream::V2_0_0, "trains", false);
    assert!(short.contains("  --tp N\n      short for --tensor-model-parallel-size\n"), "{short}");
}

#[test]
fn a_program_has_its_own_words_for_flags_that_it_shares() {
    options! {
        #[allow(dead_code)]
        struct Shared in "Pipeline" {
            noop: Option<String> = "--noop-layers", "positions of empty layers", group = "Pipeline";
            kind: Option<String> = "--rope-scaling-type", "RoPE scaling method", group = "Model families";
        }
    }
    let line = Line::new::<Shared>(Program::Train, "ms-train", "trains");
    let line = line.with_help(&[("--noop-layers", "layers that are none")]);
    let long = long_help(&line, Upstream::V2_0_0, "trains", false);
    assert!(long.contains("      layers that are none\n") && !long.contains("positions of empty"), "{long}");
    // One flag of a group is a flag, and is named where others are counted.
    assert!(long.contains("Model families: 1 flag for some"), "{long}");
    let short = short_help(&line, Upstream::V2_0_0);
    assert!(short.contains("Pipeline: --noop-layers\n") && !short.contains("1 flags"), "{short}");
}

#[test]
fn help_lists_supported_flags_with_meaning_and_the_others_with_reasons() {
    let short = short_help(trainer(), Upstream::V2_0_0);
    assert!(short.contains("Optimizer: ") && short.contains(" --adam-beta1"));
    let long = long_help(trainer(), Upstream::V2_0_0, "trains", false);
    assert!(long.contains("Model families: ") && !long.contains("--rope-scaling-alpha"));
    assert!(long_help(trainer(), Upstream::V2_0_0, "trains", true).len() > long.len());
    assert!(model_help(trainer(), Upstream::V2_0_0).contains("--kv-lora-rank"));
    let warm = word_help(trainer(), Upstream::V2_0_0, "warm-up").unwrap();
    assert!(warm.contains("  --lr-warmup-iters N\n") && !warm.contains("--adam-beta1"), "{warm}");
    assert_eq!(word_help(trainer(), Upstream::V2_0_0, "xyzzy"), None);
    assert!(long.contains("  --seq-length N\n      tokens of a sample\n"));
    assert!(long.contains("--help upstream") && long.contains("ms-train help WORD"), "{long}");
    let others = upstream_help(trainer(), Upstream::V2_0_0);
    assert!(others.contains("low precision is not in this version:\n"), "{others}");
    // Defaults are shown as they are typed, and a default that does not hold as upstream's.
    assert!(long.contains("[ulysses_cp_algo]") && !long.contains("[\"") && !long.contains("[[]]"), "{long}");
    for flag in ["--attention-dropout", "--hidden-dropout"] {
        let about = long.split_once(&format!("  {flag} X\n")).and_then(|(_, rest)| rest.lines().next());
        assert!(about.is_some_and(|line| line.ends_with(" [upstream: 0.1]")), "{about:?}");
    }
    command(trainer()).debug_assert();
}

#[test]
fn what_was_given_is_a_line_for_a_shell_that_says_the_same() {
    let mut args = train(&[
        "--lr",
        "1e-4",
        "--data-path",
        "0.3",
        "a b",
        "--first-k-dense-replace",
        "-1",
        "--no-masked-softmax-fusion",
        "--spec",
        "",
        "--split=9,1,0",
    ]);
    args.layer_toml("bf16 = true\nswiglu = false\n", Path::new("f.toml")).unwrap();
    let line = args.to_shell();
    let words = "--lr 0.0001 --data-path 0.3 'a b' --first-k-dense-replace=-1 --no-masked-softmax-fusion --spec '' --split 9,1,0 --bf16";
    assert_eq!(line, words);
    let words = words.split(' ').flat_map(|word| match word {
        "'a" => vec!["a b"],
        "b'" => vec![],
        other => vec![other.trim_matches('\'')],
    });
    let again = parse(trainer(), words).unwrap();
    assert_eq!(args.forget("swiglu"), Some((json!(false), "--swiglu")));
    assert_eq!(again.record(), args.record());
    assert_eq!(train(&["--spec", "it's"]).to_shell(), r"--spec 'it'\''s'");
}

#[test]
fn a_programs_own_words_stand_in_front_or_among_its_flags() {
    let words = |most: usize, line: &str| {
        let mut argv: Vec<std::ffi::OsString> = line.split(' ').map(Into::into).collect();
        let knows =
            |before: &[std::ffi::OsString], word: &str| before.len() < 2 && ["run", "a"].contains(&word);
        let words = take_words(trainer(), &mut argv, most, knows).unwrap();
        [words, argv].map(|words| words.join(std::ffi::OsStr::new(" ")).into_string().unwrap())
    };
    for (most, line, own, left) in [
        (2, "run any --lr 1", "run any", "--lr 1"),
        (1, "run a b --lr 1", "run a", "b --lr 1"),
        (0, "--json run --lr 1 a --swiglu run", "run a", "--json --lr 1 --swiglu run"),
        // Values of flags are none, whatever they are called.
        (2, "--spec run --data-path a run --lr=1 run", "run", "--spec run --data-path a run --lr=1"),
        (2, "--json other", "", "--json other"),
        // What an unknown flag takes is not known.
        (2, "--unheard-of run", "", "--unheard-of run"),
    ] {
        assert_eq!(words(most, line), [own, left], "{line}");
    }
}
