//! Training on ranks: one test program for all of it, so that it is linked once and its tests share the cores.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of a test fail and speak like the test itself

mod alibi;
mod deferred_weight_gradients;
mod delayed;
mod dispatch;
mod families;
mod faults;
mod formulas;
mod inconsistent_inputs;
mod indexers;
mod kinds;
mod latents;
mod logits;
mod matrix;
mod memory;
mod optimizer_forms;
mod overlap;
mod overlap_loss;
mod overlapped_passes;
mod page;
mod parity;
mod prediction;
mod random_topologies;
mod rates;
mod recomputation;
mod remapped;
mod replicas;
mod rounded_gradients;
mod same_bits;
mod scaling;
mod shard_states;
mod simulated_network;
mod stage_messages;
mod volumes;
mod wall_time;
