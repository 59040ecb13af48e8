//! Orders in which products of bf16 matrices are summed.

use super::train::{curve, metrics, model, ms_train, samples};

#[test]
fn every_instruction_set_gives_the_bits_of_the_order_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 3);
    let mut orders = Vec::new();
    for arithmetic in ms_kernels::Arithmetic::ALL {
        let mut curves = Vec::new();
        for isa in ms_kernels::Isa::all_available() {
            let file = dir.path().join(format!("{isa}-{arithmetic}.jsonl"));
            let mut command = ms_train();
            command.env("MS_ISA", isa.to_string()).args(model()).args(["--bf16", "--train-iters", "3"]);
            command.args(["--arithmetic", &arithmetic.to_string()]);
            command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).assert().success();
            curves.push((isa, curve(&file)));
        }
        for (isa, curve) in &curves {
            assert_eq!(curve, &curves[0].1, "{arithmetic}: {isa} differs from {}", curves[0].0);
        }
        orders.push(curves.swap_remove(0).1);
    }
    for (i, order) in orders.iter().enumerate() {
        assert!(!orders[..i].contains(order), "orders of sums round differently");
    }
}

#[test]
fn two_hundred_steps_end_alike_in_any_order_of_sums() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 200);
    let last = |arithmetic: &str, seed: &str| -> f64 {
        let file = dir.path().join(format!("{arithmetic}{seed}.jsonl"));
        let mut command = ms_train();
        command.args(model()).args(["--bf16", "--train-iters", "200", "--arithmetic", arithmetic]);
        command.args(["--seed", seed]).arg("--data-path").arg(&data).arg("--metrics-file").arg(&file);
        command.assert().success();
        let losses: Vec<f64> = metrics(&file).iter().filter_map(|m| m["lm loss"].as_f64()).collect();
        assert_eq!(losses.len(), 200);
        losses[190..].iter().sum::<f64>() / 10.0
    };
    let seeds = ["7", "8", "9", "10"].map(|seed| last("pair", seed));
    let noise = seeds.iter().fold(f64::MIN, |a, b| a.max(*b)) - seeds.iter().fold(f64::MAX, |a, b| a.min(*b));
    for order in ["tile32", "bfdot"] {
        let apart = (last(order, "7") - seeds[0]).abs();
        println!(
            "mean of the last ten losses, four seeds: {seeds:.5?}; {order} {apart:.5} away, seeds {noise:.5}"
        );
        assert!(apart <= noise, "{order}: {apart} from pair, {noise} between seeds");
    }
}

#[test]
fn a_run_that_goes_on_in_another_order_of_sums_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 20);
    let save = dir.path().join("save");
    let run = |arithmetic: &str, iterations: &str| {
        let mut command = ms_train();
        command.args(model()).args(["--bf16", "--train-iters", iterations, "--arithmetic", arithmetic]);
        command.arg("--override-opt_param-scheduler");
        command.arg("--data-path").arg(&data).arg("--save").arg(&save).arg("--load").arg(&save);
        let done = command.assert().success();
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    };
    run("pair", "1");
    assert!(!run("pair", "2").contains("--arithmetic"));
    let said = run("tile32", "3");
    assert!(said.contains("`--arithmetic pair` continues with the same bits"), "{said}");
    let manifest = std::fs::read_to_string(save.join("iter_0000003/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["state"]["arithmetic"], "tile32");
}
