//! `ms-profile schedule`: known schedules with their bubbles, through the program.

use assert_cmd::Command;
use serde_json::Value;

fn schedule(args: &str) -> assert_cmd::assert::Assert {
    let mut command = Command::cargo_bin("ms-profile").expect("the program is built");
    command.arg("schedule").args(args.split_whitespace()).assert()
}

fn text(args: &str) -> String {
    String::from_utf8(schedule(args).success().get_output().stdout.clone()).expect("text")
}

fn object(args: &str) -> Value {
    let out = schedule(&format!("{args} --json")).success().get_output().stdout.clone();
    serde_json::from_slice(&out).expect("one JSON object")
}

#[test]
fn one_forward_one_backward_is_drawn_with_its_bubble() {
    let want = "\
stage 0 01  00211 22
        FF..BBFBB.BB
stage 1  000111222
        .FBBFBBFBB..

bubble           25.0 % of the time of all stages
length           12 forwards of a chunk
live activations 2 1 passes of a chunk at most, by stage
";
    assert_eq!(text("--pipeline-model-parallel-size 2 --micro-batches 3"), want);
}

#[test]
fn bubbles_are_those_of_the_papers() {
    let bubble = |args: &str| object(args)["bubble_fraction"].as_f64().expect("a number");
    let (pp, m) = (4.0, 8.0);
    let plain = bubble("--pipeline-model-parallel-size 4 --micro-batches 8");
    assert!((plain - (pp - 1.0) / (m + pp - 1.0)).abs() < 1e-12, "{plain}");
    // Narayanan et al., arXiv:2104.04473: with v chunks the bubble's length is that of one chunk.
    let chunks =
        bubble("--pipeline-model-parallel-size 4 --micro-batches 8 --num-virtual-stages-per-pipeline-rank 2");
    assert!((chunks - (pp - 1.0) / (2.0 * m + pp - 1.0)).abs() < 1e-12, "{chunks}");
    // Qi et al., arXiv:2401.10241, ZB-H1: (p - 1)(F + B - W), a third of the plain one.
    let zero = bubble("--pipeline-model-parallel-size 4 --micro-batches 8 --schedules-method zero-bubble");
    assert!((zero - (pp - 1.0) / (3.0 * m + pp - 1.0)).abs() < 1e-12, "{zero}");
}

#[test]
fn a_long_schedule_is_folded_and_an_impossible_one_refused() {
    let drawn = text("--pipeline-model-parallel-size 2 --micro-batches 40 --width 60");
    assert!(drawn.lines().all(|line| line.len() <= 60), "{drawn}");
    let refused =
        schedule("--pipeline-model-parallel-size 4 --micro-batches 3 --schedules-method dualpipev").code(2);
    let message = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(message.contains("--micro-batches 3") && message.contains("at least 7"), "{message}");
}

#[test]
fn chunks_are_named_as_in_training_and_passes_in_the_bubble_keep_their_input() {
    let chunks = "--pp 2 --micro-batches 8 --num-virtual-stages-per-pipeline-rank 2";
    let layers = "--pp 2 --micro-batches 8 --num-layers 12 --num-layers-per-virtual-pipeline-stage 3";
    assert_eq!(object(layers), object(chunks));
    // Stage 0 keeps five passes of a chunk; in a pipeline of four chunks four of them whole.
    let found = object(&format!("{layers} --recompute-in-bubble"));
    assert_eq!(found["max_in_flight"], serde_json::json!([5, 3]));
    assert_eq!(found["max_kept_whole"], serde_json::json!([4, 3]));
    assert_eq!(object(layers).get("max_kept_whole"), None);
    let drawn = text(&format!("{layers} --recompute-in-bubble"));
    assert!(drawn.ends_with("                 4 3 of them whole, of the others the input\n"), "{drawn}");
    for (args, want) in [
        (
            "--pp 2 --micro-batches 8 --num-layers 10 --num-layers-per-virtual-pipeline-stage 3",
            "10 layers, found 3",
        ),
        ("--pp 2 --micro-batches 8 --recompute-in-bubble", "--recompute-in-bubble: expected chunks"),
    ] {
        let refused = schedule(args).code(2);
        let message = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(message.contains(want), "{message}");
    }
}

#[test]
fn chunks_take_as_long_as_they_have_layers() {
    // The second stage takes twice the time: it is busy except for the first forward and the last backward of the other.
    let want = "\
stage 0 01     002   11    22
        FF.....BBF...BB....BB
stage 1  000000111111222222
        .FFBBBBFFBBBBFFBBBB..

bubble           35.7 % of the time of all stages
length           21 forwards of a layer
live activations 2 1 passes of a chunk at most, by stage
";
    assert_eq!(text("--pp 2 --micro-batches 3 --num-layer-list 1,2"), want);
    let found = object("--pp 2 --micro-batches 3 --num-layer-list 1,2");
    // Three passes of one and of two layers, three each, in twice as long as the last stage and the ends of the first take.
    assert_eq!(found["bubble_fraction"].as_f64(), Some(1.0 - (9.0 + 18.0) / 2.0 / 21.0));
    // Equal layers change nothing, but the unit.
    let (even, plain) =
        (object("--pp 2 --micro-batches 4 --num-layer-list 3,3"), object("--pp 2 --micro-batches 4"));
    assert_eq!((&even["bubble_fraction"], &even["orders"]), (&plain["bubble_fraction"], &plain["orders"]));
    let chunks = object("--pp 2 --micro-batches 4 --num-layer-list 1,1,1,1");
    assert_eq!(chunks, object("--pp 2 --micro-batches 4 --num-virtual-stages-per-pipeline-rank 2"));
    let refused = schedule("--pp 2 --micro-batches 4 --num-layer-list 1,1,1").code(2);
    let message = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(message.contains("--num-layer-list: expected layers of 2 stages"), "{message}");
}

#[test]
fn passes_that_go_together_are_drawn_in_their_time() {
    let args = "--pp 2 --micro-batches 8 --schedules-method dualpipev";
    let (apart, together) = (object(args), object(&format!("{args} --moe-fb-overlap")));
    assert_ne!(apart["spans"], together["spans"]);
    // A forward pass of one micro-batch in a column, followed by the two columns of a backward pass of another.
    let drawn = text("--pp 2 --micro-batches 4 --schedules-method dualpipev --moe-fb-overlap");
    let stage: Vec<&str> = drawn.lines().take(2).collect();
    assert_eq!(
        stage,
        ["stage 0 0120001311 20022 311332233", "        FFFfiwfFbb.fBBbb.fBBbbIWIW"],
        "{drawn}"
    );
    schedule("--pp 2 --micro-batches 8 --moe-fb-overlap").code(2);
}
