//! No rank materialises the logits of the whole vocabulary if ranks share it: the largest tensor requested from a rank's
//! arena is its own share.

use crate::parity::{Case, run};
use ms_core::DType;
use ms_nn::Recompute;
use ms_spec::{ModelConfig, Stages};
use ms_trainer::parity::{Shape, batches};
use ms_trainer::{PipelineOrder, Routing};

const ROWS: usize = 2;
const LENGTH: usize = 24;
/// Vocabulary size, so large that nothing else of the model comes close.
const WORDS: usize = 2048;

#[test]
fn a_ranks_largest_tensor_is_its_share_of_the_logits() {
    let size = ModelConfig { hidden: 8, ffn: 16, heads: 4, groups: 2, head_dim: 2, ..ModelConfig::tiny() };
    let c = ModelConfig { layers: 4, vocab: WORDS - 3, padded_vocab: WORDS, ..size };
    let chunks = Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() };
    for (tied, mtp) in [(false, 0), (true, 1)] {
        let c = ModelConfig { tied, mtp, ..c.clone() };
        for case in [
            Case::single(),
            Case::of(2, 2, 1, 1, 1),
            Case::of(2, 2, 1, 1, 1).sequence_parallel(),
            Case::of(4, 4, 1, 1, 1).sequence_parallel(),
            Case { defer_embedding_wgrad: Some(2), ..Case::of(4, 2, 1, 2, 1).sequence_parallel() },
            Case { stages: chunks.clone(), ..Case::of(4, 2, 1, 2, 1) },
            Case {
                recompute: Recompute::Uniform(1),
                order: PipelineOrder::ZeroBubble { group: None },
                ..Case::of(4, 2, 1, 2, 1)
            },
            Case { overlap: true, bucket_size: Some(3000), ..Case::of(4, 2, 2, 1, 1).sequence_parallel() },
        ] {
            let case = case.single_precision();
            let (tp, cp, pp) = (case.sizes.tp, case.sizes.cp, case.sizes.pp);
            let shape = Shape { rows: ROWS, length: LENGTH, micro: 2 * pp, packed: true };
            let found = run(&c, &case, Routing::default(), &batches(&c, shape, 1)).unwrap();
            let share = |ranks: usize| ROWS * LENGTH / cp * WORDS / ranks * DType::F32.size();
            // Ranks of the last stage have a head.
            for bytes in &found.bytes[case.world - case.world / pp..] {
                assert_eq!(bytes.largest, share(tp), "tied {tied}: {case:?}");
            }
            for (rank, bytes) in found.bytes.iter().enumerate() {
                assert!(tp == 1 || 2 * bytes.largest <= share(1), "rank {rank}: {case:?}");
            }
        }
    }
}
