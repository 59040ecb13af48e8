//! Scenarios that need settings of their own, and what their reports must hold.

use crate::{is_caught_as, passes_in, run_in};
use cann_emu::tree::Personality;

const ERROR: (&str, &str) = ("CANN_EMU_VIOLATION", "error");
const THREADS: (&str, &str) = ("CANN_EMU_HOSTS", "threads");
const LOG: (&str, &str) = ("CANN_EMU_VIOLATION", "log");

macro_rules! with {
    ($($name:ident [$($setting:expr),*])*) => {
        $(#[test] fn $name() { passes_in(stringify!($name), &["lazy", "threads"], &[$($setting),*]); })*
    };
}
with! {
    collectives_refuse_what_their_page_does_not_name [ERROR]
    a_changed_root_info_is_noticed [ERROR]
    ranks_that_disagree_are_all_told [ERROR]
    a_rank_that_never_joins_is_a_time_out_of_the_others [("HCCL_CONNECT_TIMEOUT", "1")]
    sums_of_ranks_have_one_order_when_asked []
    a_communicator_may_want_to_be_destroyed_twice [("HCCL_BUFFSIZE", "8")]
    groups_take_their_memory_from_the_device [("HCCL_BUFFSIZE", "3")]
    names_of_groups_differ_and_come_back [("HCCL_BUFFSIZE", "8")]
    heads_of_configurations_are_read_as_far_as_they_go []
    every_collective_in_every_type []
    after_a_device_error_every_call_fails [("CANN_EMU_FAULT", "async:507015@op:Add:1")]
    null_arguments_have_their_own_code []
    phases_need_a_device []
    a_workspace_that_is_null_ends_its_executor [ERROR]
    a_tensor_of_another_device_needs_access [ERROR]
    events_are_limited_and_have_kinds [ERROR, ("CANN_EMU_EVENTS", "3"), ("CANN_EMU_SOC", "Ascend910_9391")]
    a_context_ends_with_its_last_reset [ERROR]
    allocations_have_their_size_and_place [ERROR]
    a_profile_has_its_order [ERROR]
    operators_that_add_atomically_have_one_order_when_asked []
    results_are_perturbed_by_a_unit [("CANN_EMU_NUMERICS", "perturb")]
    sums_are_those_of_f64 [("CANN_EMU_NUMERICS", "oracle")]
    an_index_behind_the_table_reads_ones []
    attention_without_its_mask_attends_to_everything []
    attention_is_refused_in_the_first_phase []
    masks_of_every_form_say_the_same []
    experts_operators_refuse_what_their_pages_do_not_name []
    grouped_products_refuse_what_their_pages_do_not_name []
    rotations_refuse_what_their_pages_do_not_name []
    layouts_of_training_are_those_of_its_pages []
    products_with_communication_refuse_what_their_pages_do_not_name [("HCCL_BUFFSIZE", "8")]
    products_with_sums_are_not_on_every_chip [("CANN_EMU_SOC", "Ascend910_9391")]
    a_fused_sum_has_the_bits_of_product_and_all_reduce [("HCCL_DETERMINISTIC", "true")]
    a_fused_product_without_its_peer [("HCCL_EXEC_TIMEOUT", "1")]
    two_threads_that_share_by_an_event [THREADS]
    // Threads that the library cannot see meet elsewhere: by default they are one.
    two_threads_that_share_nothing []
}

/// Fused products of ranks that are processes, in both modes and releases.
#[test]
fn fused_products_of_two_processes() {
    for personality in [Personality::V81, Personality::V91] {
        for mode in ["lazy", "threads"] {
            let folder = tempfile::tempdir().unwrap();
            let at = folder.path().to_str().unwrap();
            let rank = |r: &'static str| {
                let settings =
                    [("CANN_RANK", r), ("CANN_FOLDER", at), ("CANN_EMU_MODE", mode), ("CANN_EMU_SEED", "3")];
                run_in(personality, "one_of_two_processes", &settings)
            };
            let all = std::thread::scope(|scope| {
                ["0", "1"].map(|r| scope.spawn(move || rank(r))).map(|t| t.join().unwrap())
            });
            for out in all {
                assert!(out.status.success(), "{mode}: {}", String::from_utf8_lossy(&out.stderr));
            }
        }
    }
}

#[test]
fn work_that_is_put_off_reads_when_it_is_done() {
    passes_in("page_locked_copies_happen_when_their_turn_comes", &["lazy"], &[]);
    passes_in("a_copy_that_came_too_early_holds_ones", &["lazy"], &[LOG]);
}

/// Ends the process, and names the rule and both places.
macro_rules! caught {
    ($($name:ident $rule:literal [$($says:literal),*])*) => {
        $(#[test] fn $name() { is_caught_as(stringify!($name), $rule, &[$($says),*]); })*
    };
}
caught! {
    a_collective_and_another_stream_without_an_event "RACE-01" ["HcclAllReduce (call ", "aclrtMemcpyAsync (call "]
    buffers_of_a_collective_on_the_host "COMM-06" ["HcclAllReduce"]
    buffers_of_a_collective_on_another_device "COMM-06" ["HcclAllReduce"]
    a_scalar_destroyed_twice "NN-01" ["made by aclCreateScalar (call ", "destroyed by aclDestroyScalar (call "]
    an_array_destroyed_twice "NN-01" ["made by aclCreateIntArray (call ", "destroyed by aclDestroyIntArray (call "]
    an_element_of_a_destroyed_list "NN-01" ["made by aclCreateTensor (call ", "destroyed by aclDestroyTensorList (call "]
    a_destroyed_tensor_in_use "NN-01" ["destroyed by aclDestroyTensor (call "]
    a_storage_outside_its_allocation "NN-05" ["1000"]
    a_workspace_freed_before_it_is_used "MEM-03" ["aclrtFree"]
    a_workspace_across_two_allocations "NN-04" ["bytes needed"]
    a_copy_to_a_device_without_access "MEM-02" ["aclrtMemcpy"]
    ranks_that_gather_other_shapes "COMM-01" ["x1 [2, 256]", "x1 [3, 256]"]
    an_operand_written_on_another_stream "RACE-01" ["aclnnAllGatherMatmul (call ", "aclrtMemsetAsync (call "]
    a_result_read_on_another_stream "RACE-01" ["aclnnAllGatherMatmul (call ", "aclrtMemcpyAsync (call "]
    a_second_group_of_fused_products "COMM-08" ["aclnnAllGatherMatmul"]
    a_collective_beside_tokens_to_experts "COMM-09" ["HcclAllReduce"]
    a_combination_with_another_dispatch "NN-16" ["aclnnMoeDistributeCombineV2"]
}

/// Runs a scenario that ends well, and gives its report's lines.
pub(super) fn report_of(scenario: &str, settings: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.jsonl");
    let mut settings = settings.to_vec();
    settings.push(("CANN_EMU_REPORT", path.to_str().unwrap()));
    let out = run_in(Personality::V91, scenario, &settings);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Line by line: a rule, and a part of the message.
#[track_caller]
fn reported(lines: &[String], want: &[(&str, &str)]) {
    assert_eq!(lines.len(), want.len(), "{lines:#?}");
    for (line, (rule, says)) in lines.iter().zip(want) {
        assert!(
            line.contains(&format!("\"rule\":\"{rule}\"")) && line.contains(says),
            "{rule} {says}: {line}"
        );
        for field in ["severity", "must", "message", "call", "thread", "trace"] {
            assert!(line.contains(&format!("\"{field}\":")), "{field}: {line}");
        }
    }
}

#[test]
fn what_is_left_at_the_end_is_reported() {
    let lines = report_of("what_is_left_is_reported", &[]);
    let (kept, left): (Vec<String>, Vec<String>) = lines.into_iter().partition(|l| l.contains("NN-12"));
    reported(
        &left,
        &[
            ("NN-06", "aclnnAdd"),
            ("RES-01", "1 aclrtStream left, the first made by aclrtCreateStream"),
            ("RES-01", "1 aclrtEvent left, the first made by aclrtCreateEventWithFlag"),
            ("RES-01", "device allocations left"),
        ],
    );
    assert!(
        kept.iter().any(|l| l.contains("aclTensor left"))
            && kept.iter().any(|l| l.contains("aclScalar left"))
    );
    reported(&report_of("nothing_is_left_after_a_refusal", &[]), &[]);
}

#[test]
fn a_report_says_where_and_how_sure() {
    let early = report_of("a_copy_that_came_too_early_holds_ones", &[LOG]);
    reported(&early, &[("RACE-01", "aclrtMemcpy (call ")]);
    assert!(
        early[0].contains("\"severity\":\"documented\"") && early[0].contains("aclnnAdd (call "),
        "{}",
        early[0]
    );
    assert!(!early[0].contains("\"trace\":\"\""), "a back trace");
    let behind = report_of("an_address_between_the_lines", &[]);
    reported(&behind, &[("MEM-07", "aclnnMul")]);
    assert!(behind[0].contains("\"severity\":\"cautious\""), "{}", behind[0]);
    let threads = report_of("phases_on_two_threads", &[]);
    let threads: Vec<String> = threads.into_iter().filter(|l| !l.contains("RACE-02")).collect();
    reported(&threads, &[("NN-07", "another thread")]);
}

#[test]
fn every_rank_hears_both_calls_of_a_mismatch() {
    let lines = report_of("every_rank_is_told_of_a_mismatch", &[ERROR]);
    let both = (
        "COMM-01",
        "call 1: rank 0 calls HcclAllReduce of 4 elements of type 4, operation 0, root 0, rank 2 calls HcclAllGather",
    );
    reported(&lines, &[both; 3]);
    for rank in 0..3 {
        assert!(lines.iter().any(|l| l.contains(&format!("on rank {rank} of 3"))), "{lines:#?}");
    }
}

/// Calls in their order with their arguments; addresses stand for themselves.
#[test]
fn a_trace_holds_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let out =
        run_in(Personality::V91, "ten_calls_leave_a_trace", &[("CANN_EMU_TRACE", path.to_str().unwrap())]);
    assert!(out.status.success());
    let text = std::fs::read_to_string(path).unwrap();
    let calls: Vec<&str> = text.lines().map(|l| l.split(['(', ' ']).nth(1).unwrap()).collect();
    let array = ["aclrtMalloc", "aclrtMemcpy"];
    let add = ["aclCreateTensor", "aclCreateTensor", "aclCreateScalar", "aclCreateTensor"];
    let phases = ["aclnnAddGetWorkspaceSize"];
    let mut want = vec!["aclInit", "aclrtSetDevice"];
    want.extend(
        array.iter().chain(&array).chain(&["aclrtMalloc", "aclrtCreateStream"]).chain(&add).chain(&phases),
    );
    let seen: Vec<&str> = calls.iter().copied().filter(|c| *c != "aclGetRecentErrMsg").collect();
    assert_eq!(seen[..want.len()], want, "{text}");
    assert_eq!(*seen.last().unwrap(), "aclrtSynchronizeStream");
    for (i, line) in text.lines().enumerate() {
        assert!(line.starts_with(&format!("{} ", i + 1)), "{line}");
    }
    assert!(text.contains(" aclrtSetDevice(0)\n"), "{text}");
}

#[test]
fn a_fault_that_could_never_hit_ends_the_program() {
    for fault in ["missing-symbol", "oom", "lightning@aclrtMalloc"] {
        let out = run_in(Personality::V91, "copies_go_there_and_back", &[("CANN_EMU_FAULT", fault)]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            !out.status.success() && text.contains(&format!("CANN_EMU_FAULT: {fault}")),
            "{fault}: {text}"
        );
    }
}

/// An operator and a function of the runtime that are to be missing are missing, in both releases; the others are there.
#[test]
fn a_missing_symbol_is_missing() {
    for personality in [Personality::V81, Personality::V91] {
        let fault = ("CANN_EMU_FAULT", "missing-symbol:aclnnAdd,missing-symbol:aclrtMemcpy2d");
        let out = run_in(personality, "two_symbols_are_missing", &[fault]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert!(!run_in(personality, "two_symbols_are_missing", &[]).status.success());
    }
}

/// With each thread of the host an actor of its own, what only one of them has waited for the other does not know.
#[test]
fn host_threads_are_actors_when_asked() {
    let settings = [THREADS, ("CANN_EMU_MODE", "threads")];
    let out = run_in(Personality::V91, "two_threads_that_share_nothing", &settings);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "{text}");
    for says in ["RACE-01", "aclrtMemcpy (call ", "aclrtMemsetAsync (call ", "host thread "] {
        assert!(text.contains(says), "expected {says}, found {text}");
    }
}

/// A time-out of one rank, in both spellings, is the others' next synchronisation.
#[test]
fn a_rank_that_is_late_is_a_time_out() {
    for fault in ["timeout:rank1@HcclAllReduce:1", "timeout@HcclAllReduce:1:rank1"] {
        let settings = [("CANN_EMU_FAULT", fault), ("HCCL_EXEC_TIMEOUT", "1"), ("CANN_EMU_MODE", "threads")];
        let out = run_in(Personality::V91, "one_all_reduce_of_two_ranks", &settings);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("rank 0: 107020"), "{fault}: {text}{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_killed_rank_ends_its_process() {
    let settings = [("CANN_EMU_FAULT", "kill:rank1@step"), ("CANN_EMU_MODE", "threads")];
    let out = run_in(Personality::V91, "one_all_reduce_of_two_ranks", &settings);
    assert_eq!(out.status.code(), Some(137), "{}", String::from_utf8_lossy(&out.stdout));
}
