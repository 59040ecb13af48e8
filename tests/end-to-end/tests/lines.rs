//! The command lines of the programs: each row of their tables, and upstream's recorded command lines.

#![allow(clippy::unwrap_used)] // tests

use ms_cli::megatron::{Arity, Line, Program, Upstream, ValueKind, command, parse, short_help};
use serde_json::Value;
use std::collections::BTreeSet;

const LINES: [fn() -> &'static Line; 5] =
    [ms_train::line, ms_infer::line, ms_eval::line, ms_preprocess::line, ms_convert::line];

/// The program that takes an upstream program's command lines, and whether it is the converter of head.
fn program(name: &str) -> Option<(&'static Line, bool)> {
    Some(match name {
        "preprocess_data.py" => (ms_preprocess::line(), false),
        "pretrain_gpt.py" | "posttrain_gpt.py" => (ms_train::line(), false),
        "inference.py" => (ms_infer::line(), false),
        "evaluation.py" => (ms_eval::line(), false),
        "convert_ckpt.py" => (ms_convert::line(), false),
        "convert_ckpt_v2.py" => (ms_convert::line(), true),
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
    for record in std::fs::read_to_string(path).unwrap().lines() {
        let record: Value = serde_json::from_str(record).unwrap();
        let Some((line, v2)) = program(record["program"].as_str().unwrap()) else { continue };
        let Some(accepted) = record["upstream_accepts"].as_bool() else { continue };
        let head = v2 || record["version"] == "HEAD";
        let mut argv: Vec<String> =
            record["argv"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().to_owned()).collect();
        argv.push("--upstream".to_owned());
        argv.push(if head && line.program != Program::Convert || v2 { "head" } else { "v2.0.0" }.to_owned());
        let parsed = parse(line, argv);
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
fn every_row_is_well_formed_and_named_once_per_program() {
    for line in LINES.map(|line| line()) {
        for upstream in [Upstream::V2_0_0, Upstream::Head] {
            let names: Vec<&str> = line.flags(upstream).map(|f| f.flag).collect();
            let mut unique = names.clone();
            unique.dedup();
            assert_eq!(names, unique, "{} {upstream:?}", line.name);
            for flag in line.flags(upstream) {
                assert!(!flag.note.is_empty() && !flag.group.is_empty(), "{}", flag.flag);
                let numeric = matches!(flag.kind, ValueKind::Int | ValueKind::Float | ValueKind::Freq);
                let ranged = numeric && flag.acts();
                assert_eq!(flag.range().is_some(), ranged, "{}", flag.flag);
                let default = flag.default(upstream).as_f64();
                assert!(
                    default.zip(flag.range()).is_none_or(|(x, range)| range.contains(x)),
                    "{}: its default is out of range",
                    flag.flag
                );
                assert_eq!(
                    flag.arity == Arity::Zero,
                    matches!(flag.kind, ValueKind::True | ValueKind::False),
                    "{}",
                    flag.flag
                );
            }
        }
    }
}

#[test]
fn help_of_programs_that_train_nothing_speaks_of_no_training() {
    for line in [ms_infer::line(), ms_eval::line()] {
        for flag in line.flags(Upstream::V2_0_0).filter(|flag| flag.acts()) {
            for word in ["optimizer", "master weights", "data order", "rank's"] {
                assert!(!flag.note.contains(word), "{} {}: {}", line.name, flag.flag, flag.note);
            }
        }
    }
    for line in LINES.map(|line| line()) {
        let short = short_help(line, Upstream::V2_0_0);
        assert!(short.starts_with(|c: char| c.is_uppercase()), "{}: {short}", line.name);
        assert!(!short.contains(": 1 flags"), "{short}");
    }
}

#[test]
fn what_a_program_leaves_to_others_another_one_acts_on() {
    // A flag is read by a program or stands in others.tsv with a reason; those of upstream's trainer, which three programs
    // share, may be read by another one of the three.
    let [train, infer, eval, preprocess, convert] = LINES.map(|line| line());
    let read: BTreeSet<&str> = [train, infer, eval].iter().flat_map(|line| acting(line)).collect();
    for line in [train, infer, eval] {
        let left: Vec<&str> = line.left_to_others().filter(|flag| !read.contains(flag)).collect();
        assert_eq!(left, [""; 0], "{}: neither read nor in others.tsv", line.name);
        assert!(line.left_to_others().count() < acting(train).count(), "{}", line.name);
    }
    for line in [preprocess, convert] {
        assert_eq!(
            line.left_to_others().collect::<Vec<_>>(),
            [""; 0],
            "{}: neither read nor in others.tsv",
            line.name
        );
    }
}

/// The flags that a program acts on in some version.
fn acting(line: &'static Line) -> impl Iterator<Item = &'static str> {
    let of = |upstream| line.flags(upstream).filter(|flag| flag.acts()).map(|flag| flag.flag);
    of(Upstream::V2_0_0).chain(of(Upstream::Head))
}

#[test]
fn short_help_fits_a_screen_and_completions_can_be_made() {
    for line in LINES.map(|line| line()) {
        for upstream in [Upstream::V2_0_0, Upstream::Head] {
            let help = short_help(line, upstream);
            assert!(help.lines().count() < 60, "{}: {} lines", line.name, help.lines().count());
        }
        command(line).debug_assert();
    }
}
