//! The program, as its users call it: one test program for most of it, so that it is linked once and its tests share the cores.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of a test fail and speak like the test itself

mod arithmetic;
mod data_flags;
mod deepseek_v4;
mod evaluation;
mod flag_messages;
mod flags_of_versions;
mod golden_topologies;
mod half;
mod interruptions;
mod library;
mod mamba3;
mod megatron_files;
mod memory_check;
mod optimizer_forms;
mod other_forms;
mod parity;
mod picked_keys;
mod plan_goldens;
mod planning;
mod refusals;
mod resuming;
mod router_versions;
mod routers;
mod run_checks;
mod saving;
mod schedule;
mod scripts;
mod stages;
mod swapping;
#[path = "../tiny/mod.rs"]
mod tiny;
mod topology;
mod train;
mod upcycling;
mod variable_lengths;
mod windows;
