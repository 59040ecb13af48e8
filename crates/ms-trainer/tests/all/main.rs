//! Training on ranks: one test program for all of it, so that it is linked once and its tests share the cores.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of a test fail and speak like the test itself

mod alibi;
mod beside;
mod bits;
mod borders;
mod delayed;
mod dispatch;
mod drawn;
mod families;
mod faults;
mod formulas;
mod held_back;
mod indexers;
mod keeping;
mod kinds;
mod latents;
mod logits;
mod matrix;
mod memory;
mod optimizer_forms;
mod overlap;
mod overlap_loss;
mod page;
mod parity;
mod prediction;
mod rates;
mod remapped;
mod replicas;
mod rounded_gradients;
mod scaling;
mod shard_states;
mod slips;
mod volumes;
mod wall_time;
mod wire;
