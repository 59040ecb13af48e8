//! The parser against upstream's recorded command lines.

use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn train(argv: &[&str]) -> Args {
    parse(Program::Train, argv.iter().copied()).unwrap()
}

fn refusal(program: Program, argv: &[&str]) -> String {
    parse(program, argv.iter().copied()).unwrap_err().0
}

fn programs(name: &str) -> Option<(Program, bool)> {
    Some(match name {
        "preprocess_data.py" => (Program::Preprocess, false),
        "pretrain_gpt.py" | "posttrain_gpt.py" => (Program::Train, false),
        "inference.py" => (Program::Infer, false),
        "evaluation.py" => (Program::Eval, false),
        "convert_ckpt.py" => (Program::Convert, false),
        "convert_ckpt_v2.py" => (Program::Convert, true),
        _ => return None,
    })
}

#[test]
fn every_recorded_upstream_command_line_parses_to_what_upstream_makes_of_it() {
    let Some(path) = ms_testing::shared("goldens/scripts.jsonl") else {
        println!("skipped: no shared folder");
        return;
    };
    let (mut good, mut refused) = (0, 0);
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let Some((program, v2)) = programs(record["program"].as_str().unwrap()) else { continue };
        let Some(accepted) = record["upstream_accepts"].as_bool() else { continue };
        let head = v2 || record["version"] == "HEAD";
        let mut argv: Vec<String> =
            record["argv"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().to_owned()).collect();
        argv.push("--upstream".to_owned());
        argv.push(if head && program != Program::Convert || v2 { "head" } else { "v2.0.0" }.to_owned());
        let parsed = parse(program, argv);
        if accepted {
            let parsed = parsed.unwrap_or_else(|e| panic!("{}: {}", record["script"], e.0));
            assert_eq!(parsed.tolerated(), &[] as &[String], "{}", record["script"]);
            let (got, want) = (parsed.upstream_values(), record["parsed"].as_object().unwrap());
            for (dest, value) in want {
                let same = got
                    .get(dest)
                    .is_some_and(|g| g == value || (g.as_f64().is_some() && g.as_f64() == value.as_f64()));
                assert!(same, "{}: {dest}: got {:?}, want {value}", record["script"], got.get(dest));
            }
            assert_eq!(got.len(), want.len(), "{}", record["script"]);
            let complaint = parsed.check().err().map_or(String::new(), |e| e.0);
            assert!(!complaint.contains("expected a"), "{}: {complaint}", record["script"]);
            good += 1;
        } else {
            assert!(parsed.is_err() || !parsed.unwrap().tolerated().is_empty(), "{}", record["script"]);
            refused += 1;
        }
    }
    println!("{good} accepted command lines agree, {refused} refused ones are refused");
    assert!(good > 600 && refused > 10);
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
    assert_eq!(train(&["--lr", "-1.5"]).float("lr"), Some(-1.5));
    assert_eq!(train(&["--lr", "-.5"]).float("lr"), Some(-0.5));
    // argparse before Python 3.13 takes an exponent for a flag.
    assert!(refusal(Program::Train, &["--lr", "-1e-5"]).starts_with("unknown flag -1e-5"));
    assert_eq!(refusal(Program::Train, &["--lr", "--bf16"]), "--lr: expected one value");
}

#[test]
fn lists_take_words_up_to_the_next_flag() {
    let args = train(&["--data-path", "0.3", "a", "0.7", "b", "--split", "9,1,0", "--data-path"]);
    assert_eq!(args.list("data_path"), Vec::<String>::new());
    let args = train(&["--data-path", "0.3", "a", "--split=9,1,0"]);
    assert_eq!((args.list("data_path"), args.text("split")), (vec!["0.3".into(), "a".into()], Some("9,1,0")));
    assert_eq!(refusal(Program::Infer, &["--add-eos-token"]), "--add-eos-token: expected at least one value");
}

#[test]
fn switches_store_true_or_false_and_take_no_value() {
    let args = train(&["--no-masked-softmax-fusion", "--swiglu"]);
    assert_eq!(args.value("masked_softmax_fusion"), Some(&json!(false)));
    assert!(args.flag("swiglu") && !args.flag("bf16"));
    assert_eq!(refusal(Program::Train, &["--swiglu=1"]), "--swiglu takes no value");
    assert_eq!(
        refusal(Program::Train, &["--swiglu", "1"]),
        "unexpected word '1'\nhint: --swiglu takes no value"
    );
}

#[test]
fn abbreviations_are_unknown_and_get_a_suggestion() {
    assert_eq!(
        refusal(Program::Train, &["--tensor-model-parallel-siz", "2"]),
        "unknown flag --tensor-model-parallel-siz\nhint: did you mean --tensor-model-parallel-size?"
    );
}

#[test]
fn a_flag_of_the_other_version_names_that_version() {
    assert_eq!(
        refusal(Program::Train, &["--grad-reduce-in-bf16"]),
        "--grad-reduce-in-bf16 is no flag of v2.0.0\nhint: head has it: pass --upstream head"
    );
    assert!(parse(Program::Train, ["--grad-reduce-in-bf16", "--upstream", "head"]).is_ok());
}

#[test]
fn what_a_friendly_tool_tolerates_is_remembered() {
    let args = train(&["--rotary-base", "500000.0", "\r", "--load", "x", " "]);
    assert_eq!(args.int("rotary_base"), Some(500_000));
    assert_eq!(args.tolerated().len(), 3);
    assert_eq!(
        refusal(Program::Train, &["--rotary-base", "1.5"]),
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
    assert!(new.flag("use_mcore_models"), "either name finds the value");
}

#[test]
fn choices_are_checked() {
    assert_eq!(
        refusal(Program::Train, &["--lr-decay-style", "step"]),
        "--lr-decay-style: expected one of constant, linear, cosine, inverse-square-root, WSD, got 'step'"
    );
}

#[test]
fn refused_flags_only_count_when_they_ask_for_something() {
    assert!(train(&["--cla-share-factor", "1", "--loss-scale", "0"]).check().is_ok());
    let error = train(&["--cla-share-factor", "2", "--data-parallel-random-init"]).check().unwrap_err();
    assert!(
        error.0.contains("--cla-share-factor: ") && error.0.contains("--data-parallel-random-init: "),
        "{}",
        error.0
    );
}

#[test]
fn flags_without_effect_say_why() {
    let args = parse(Program::Infer, ["--lr", "1", "--use-flash-attn"]).unwrap();
    let notices = args.without_effect();
    assert_eq!(notices[0], Notice { flag: "--lr", reason: "no effect in this program" });
    assert_eq!(notices[1].flag, "--use-flash-attn");
}

#[test]
fn a_configuration_file_stands_behind_the_line() {
    let mut args = train(&["--lr", "1e-3"]);
    let text = "seq-length = 64\nlr = 5.0\ndata_path = [\"a\", \"b\"]\n[optimizer]\nadam_beta2 = 0.95\nbf16 = true\n";
    args.layer_toml(text, Path::new("run.toml")).unwrap();
    assert_eq!(args.with_origin("lr"), (Some(&json!(1e-3)), Origin::Flag));
    assert_eq!(args.with_origin("seq_length"), (Some(&json!(64)), Origin::Config));
    assert_eq!(args.with_origin("clip_grad"), (Some(&json!(1.0)), Origin::Default));
    assert_eq!(
        (args.float("adam_beta2"), args.flag("bf16"), args.list("data_path").len()),
        (Some(0.95), true, 2)
    );
    let error = args.layer_toml("seq_lenght = 3", Path::new("run.toml")).unwrap_err();
    assert_eq!(error.0, "run.toml: unknown flag --seq-lenght\nhint: did you mean --seq-length?");
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
    // A flag that this program does not act on is not looked at.
    assert!(parse(Program::Infer, ["--adam-eps", "0"]).unwrap().check().is_ok());
}

#[test]
fn every_row_is_well_formed_and_named_once_per_program() {
    for program in [Program::Train, Program::Infer, Program::Eval, Program::Preprocess, Program::Convert] {
        for upstream in [Upstream::V2_0_0, Upstream::Head] {
            let names: Vec<&str> = flags(program, upstream).map(|f| f.flag).collect();
            let mut unique = names.clone();
            unique.dedup();
            assert_eq!(names, unique, "{program:?} {upstream:?}");
            for flag in flags(program, upstream) {
                assert!(!flag.note.is_empty() && !flag.group.is_empty(), "{}", flag.flag);
                let numeric = matches!(flag.kind, Kind::Int | Kind::Float | Kind::Freq);
                let ranged = numeric && flag.status == Status::Supported;
                assert_eq!(flag.range().is_some(), ranged, "{}", flag.flag);
                let default = flag.default(upstream).as_f64();
                assert!(
                    default.zip(flag.range()).is_none_or(|(x, range)| range.contains(x)),
                    "{}: its default is out of range",
                    flag.flag
                );
                assert_eq!(
                    flag.arity == Arity::Zero,
                    matches!(flag.kind, Kind::True | Kind::False),
                    "{}",
                    flag.flag
                );
            }
        }
    }
}

#[test]
fn help_lists_supported_flags_with_meaning_and_the_others_with_reasons() {
    let short = short_help(Program::Train, Upstream::V2_0_0, "ms-train", "trains");
    assert!(short.contains("Optimizer: ") && short.contains(" --adam-beta1") && short.lines().count() < 60);
    let long = long_help(Program::Train, Upstream::V2_0_0, "ms-train", "trains", false);
    assert!(long.contains("Model families: ") && !long.contains("--rope-scaling-alpha"));
    assert!(long_help(Program::Train, Upstream::V2_0_0, "ms-train", "trains", true).len() > long.len());
    assert!(model_help(Program::Train, Upstream::V2_0_0, "ms-train").contains("--kv-lora-rank"));
    let warm = word_help(Program::Train, Upstream::V2_0_0, "ms-train", "warm-up").unwrap();
    assert!(warm.contains("  --lr-warmup-iters N\n") && !warm.contains("--adam-beta1"), "{warm}");
    assert_eq!(word_help(Program::Train, Upstream::V2_0_0, "ms-train", "xyzzy"), None);
    assert!(long.contains("  --seq-length N\n      tokens of a sample\n"));
    assert!(long.contains("--help upstream") && long.contains("ms-train help WORD"), "{long}");
    let others = upstream_help(Program::Train, Upstream::V2_0_0);
    assert!(others.contains("this attention kind is not in this version:\n"), "{others}");
    // Defaults are shown as they are typed, and a default that does not hold as upstream's.
    assert!(long.contains("[ulysses_cp_algo]") && !long.contains("[\"") && !long.contains("[[]]"), "{long}");
    for flag in ["--attention-dropout", "--hidden-dropout"] {
        let about = long.split_once(&format!("  {flag} X\n")).and_then(|(_, rest)| rest.lines().next());
        assert!(about.is_some_and(|line| line.ends_with(" [upstream: 0.1]")), "{about:?}");
    }
    command(Program::Train, "ms-train", "trains").debug_assert();
    command(Program::Convert, "ms-convert", "converts").debug_assert();
}
