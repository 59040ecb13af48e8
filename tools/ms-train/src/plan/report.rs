//! The plan as text for people: memory by pipeline stage, schedule, communication and training, in readable units.

use serde_json::Value;
use std::fmt::Write as _;

/// Columns of the memory table, and the keys of a rank's JSON object they show.
const MEMORY: [(&str, &str); 6] = [
    ("weights", "weight_bytes"),
    ("gradients", "grad_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("activations", "activation_bytes"),
    ("offloaded", "swapped_bytes"),
    ("peak", "peak_bytes"),
];

/// The report of a plan, given the object that `--json` prints.
pub(super) fn report(plan: &Value) -> String {
    let mut out = String::new();
    let from = plan["model_from"].as_str().unwrap_or_default();
    let _ = writeln!(out, "Model: {} parameters, sizes from {from}", grouped(&plan["parameters"]));
    let _ = writeln!(
        out,
        "Ranks: {} ({}), {} each",
        plan["world"],
        plan["grid"].as_str().unwrap_or_default(),
        counted(plan["threads_per_rank"].as_u64().unwrap_or(1), "thread")
    );
    memory(&mut out, plan);
    pipeline(&mut out, plan);
    communication(&mut out, plan);
    training(&mut out, plan);
    if let Some(assumed) = plan["rehearsed_as_if"].as_array().filter(|list| !list.is_empty()) {
        let assumed: Vec<&str> = assumed.iter().filter_map(Value::as_str).collect();
        let _ = writeln!(out, "\nAssumed:\n  {}", assumed.join("\n  "));
    }
    out
}

/// Memory of a rank of each stage, and of all ranks on this machine.
fn memory(out: &mut String, plan: &Value) {
    let ranks = plan["ranks"].as_array().map_or(&[][..], Vec::as_slice);
    let stages = plan["layers_per_stage"].as_array().map_or(0, Vec::len);
    let _ = write!(out, "\nMemory of a rank, at most:\n  {:<5}  {:>6}", "stage", "layers");
    for (name, _) in MEMORY {
        let _ = write!(out, "  {name:>11}");
    }
    out.push('\n');
    for stage in 0..stages {
        let of_stage = || ranks.iter().filter(|rank| rank["stage"].as_u64() == Some(stage as u64));
        let _ = write!(out, "  {stage:<5}  {:>6}", plan["layers_per_stage"][stage]);
        for (_, key) in MEMORY {
            let most = of_stage().filter_map(|rank| rank[key].as_u64()).max();
            let _ = write!(out, "  {:>11}", most.map_or("-".to_owned(), bytes));
        }
        out.push('\n');
    }
    if ranks.iter().any(|rank| rank["peak_bytes"].is_null()) {
        out.push_str(
            "  A stage without a peak could not be rehearsed: its activations are an estimate by formula.\n",
        );
    }
    let needs = &plan["memory"];
    let available = needs["available"].as_u64().map(|n| format!(", {} available", bytes(n)));
    let _ = writeln!(
        out,
        "All ranks on this machine: about {} by formula{}",
        bytes(needs["total"].as_u64().unwrap_or(0)),
        available.unwrap_or_default()
    );
    let swap = &plan["smart_swap"];
    if swap.is_object() {
        let mut parts: Vec<&str> =
            swap["swapped"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.extend(swap["optimizer"].as_bool().unwrap_or(false).then_some("optimizer state"));
        let parts = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
        let _ = writeln!(out, "--smart-swap offloads: {parts}");
    }
}

/// The schedule of every stage.
fn pipeline(out: &mut String, plan: &Value) {
    let pipeline = &plan["pipeline"];
    let orders = pipeline["orders"].as_array().map_or(&[][..], Vec::as_slice);
    let _ = writeln!(
        out,
        "\nPipeline: {}, {} per iteration, bubble {:.1} %",
        counted(orders.len() as u64, "stage"),
        counted(plan["micro_batches_per_iteration"].as_u64().unwrap_or(0), "micro-batch"),
        plan["bubble"].as_f64().unwrap_or(0.0) * 100.0
    );
    if orders.len() < 2 {
        return;
    }
    for (stage, order) in orders.iter().enumerate() {
        let _ = writeln!(out, "  stage {stage:<3}  {}", abridged(order.as_str().unwrap_or_default()));
    }
    out.push_str("  (F forward, B backward, I input gradients, W weight gradients; micro-batch.chunk)\n");
}

/// Actions of a stage that are shown at the start and at the end of its schedule.
const FIRST_ACTIONS: usize = 40;
const LAST_ACTIONS: usize = 8;
/// Actions that are not left out between them if there are fewer.
const FEW_ACTIONS: usize = 4;

/// A schedule without its middle, which `--json` has, if it is long.
fn abridged(order: &str) -> String {
    let actions: Vec<&str> = order.split(' ').collect();
    let left_out = actions.len().saturating_sub(FIRST_ACTIONS + LAST_ACTIONS);
    // A few actions are no longer than what would stand for them.
    if left_out < FEW_ACTIONS {
        return order.to_owned();
    }
    let (first, last) = (&actions[..FIRST_ACTIONS], &actions[actions.len() - LAST_ACTIONS..]);
    format!("{} ({left_out} more, see --json) {}", first.join(" "), last.join(" "))
}

/// Bytes that a rank sends, by the axes on which it sends anything.
fn communication(out: &mut String, plan: &Value) {
    let sent = plan["communication_bytes_per_iteration"].as_object();
    let sent: Vec<(&String, u64)> = sent
        .into_iter()
        .flatten()
        .filter_map(|(axis, n)| n.as_u64().filter(|&n| n > 0).map(|n| (axis, n)))
        .collect();
    out.push_str("\nSent by a rank in an iteration, at most:");
    if sent.is_empty() {
        out.push_str(" nothing\n");
    } else {
        out.push('\n');
        for (axis, n) in sent {
            let _ = writeln!(out, "  {:<18} {:>11}", axis.replace('_', " "), bytes(n));
        }
    }
}

/// Length of the training, learning rate and weight decay.
fn training(out: &mut String, plan: &Value) {
    let (s, flops) = (&plan["schedule"], plan["flops_per_iteration"].as_f64().unwrap_or(0.0));
    let number = |key: &str| s[key].as_f64().unwrap_or(0.0);
    let _ = writeln!(
        out,
        "\nTraining: {} of {} tokens, {flops:.3e} FLOPs each",
        counted(plan["iterations"].as_u64().unwrap_or(0), "iteration"),
        grouped(&plan["tokens_per_iteration"]),
    );
    let _ = writeln!(
        out,
        "  learning rate {} at first, {} at most, {} at the end ({} decay over {} iterations, {} of warm-up)",
        short(number("first_lr")),
        short(number("peak_lr")),
        short(number("last_lr")),
        s["lr_decay_style"].as_str().unwrap_or_default(),
        short(number("decay_iterations")),
        short(number("warmup_iterations")),
    );
    let (first, last) = (number("first_weight_decay"), number("last_weight_decay"));
    let to = if first == last { String::new() } else { format!(" to {}", short(last)) };
    let _ = writeln!(out, "  weight decay {}{to}", short(first));
}

/// Bytes in binary units, with three digits: `1.40 MiB`.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A whole number with its digits in groups of three.
fn grouped(n: &Value) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// A number rounded to four significant digits, without trailing zeros.
fn short(x: f64) -> String {
    let rounded: f64 = format!("{x:.3e}").parse().unwrap_or(x);
    if rounded != 0.0 && rounded.abs() < 1e-3 { format!("{rounded:e}") } else { format!("{rounded}") }
}

/// A count with its noun in the singular or plural.
fn counted(n: u64, what: &str) -> String {
    let ending = match (n, what.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        _ => "s",
    };
    format!("{n} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_have_units_and_few_digits() {
        let said: Vec<String> = [0, 1023, 1024, 1_471_488, 1023 << 20, 24 << 30].map(bytes).into();
        assert_eq!(said, ["0 B", "1023 B", "1.00 KiB", "1.40 MiB", "1023 MiB", "24.0 GiB"]);
        assert_eq!(
            [json!(7), json!(180_800), json!(1_000_000)].map(|n| grouped(&n)),
            ["7", "180 800", "1 000 000"]
        );
        assert_eq!([0.0, 0.01, 8.999_999_999_999_998e-5, 12.5].map(short), ["0", "0.01", "9e-5", "12.5"]);
        assert_eq!(
            [counted(1, "micro-batch"), counted(2, "micro-batch"), counted(2, "stage")],
            ["1 micro-batch", "2 micro-batches", "2 stages"]
        );
    }
}
