//! Overlap of communication and computation in tensor-parallel layers, from the flags of Megatron and MindSpeed.

use anyhow::Result;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::refuse;
use ms_dist::{LinearOverlap, Pieces};
use ms_spec::ModelConfig;

options! {
    /// What runs beside exchanges of tensor-parallel ranks.
    pub(crate) struct TpOverlap in "Parallelism" {
        weight_gradients: bool = "--no-async-tensor-model-parallel-allreduce", "finish exchanging gradients between ranks before weight gradients are computed, instead of overlapping both (upstream ignores it)";
        coc: bool = "--use-ascend-coc", "overlap matrix products with tensor-parallel exchanges: --coc-parallel-num pieces along the tokens, one is computed while another is exchanged";
        pieces: Given<usize> = "--coc-parallel-num", "with --use-ascend-coc: number of pieces (1, 2, 4 or 8), a divisor of a rank's tokens per micro-batch", range = "[1,8]";
        mode: Given<i64> = "--coc-mode", "with --use-ascend-coc: 0 and 1 compute whole products, 2 computes pieces, -1 follows --coc-parallel-num", range = "[-1,2]";
        fused: Given<bool> = "--coc-fused-kernel", "with --use-ascend-coc: use the largest of 8, 4 and 2 pieces that divides the tokens, whatever --coc-parallel-num says";
        mc2: bool = "--use-ascend-mc2", "with sequence parallelism: as --use-ascend-coc --coc-fused-kernel";
        former_mc2: bool = "--use-mc2", "with --upstream head: as --use-ascend-mc2; v2.0.0 ignores it";
        gathers: bool = "--mla-up-proj-tp-overlap", "latent attention with sequence parallelism: compute key/value projections while query latents are gathered", group = "Model families";
        pub(crate) split: bool = "--mla-mm-split", "required by --mla-up-proj-tp-overlap, as in upstream, where it splits the up-projections of latent attention; values are the same", group = "Model families";
    }
}

/// What decides how tokens can be cut.
pub(crate) struct Tokens {
    /// Of a micro-batch on a rank, all tensor-parallel ranks' together.
    pub(crate) all: usize,
    /// Ranks that share a matrix.
    pub(crate) tp: usize,
    /// Whether they share the tokens between matrices.
    pub(crate) shared: bool,
}

/// Resolves them.
///
/// # Errors
/// For what upstream refuses, and pieces that do not divide the tokens, of which upstream's would fail.
///
/// # Source
/// MindSpeed (2026), `features_manager/tensor_parallel/mc2.py` and `locl_coc.py`,
/// `core/tensor_parallel/coc_feature/min_comm_cfg.py` and `coc_utils.py`.
pub(crate) fn resolve(o: &TpOverlap, upstream: Upstream, tokens: &Tokens) -> Result<LinearOverlap> {
    let mc2 = o.mc2 || o.former_mc2 && upstream == Upstream::Head;
    if mc2 && o.coc {
        refuse!("--use-ascend-mc2: cannot be combined with --use-ascend-coc");
    }
    if mc2 && !(tokens.shared && tokens.tp > 1) {
        refuse!("--use-ascend-mc2: needs --tensor-model-parallel-size above 1 and --sequence-parallel");
    }
    if o.former_mc2 && !mc2 {
        tracing::warn!("--use-mc2 has no effect: v2.0.0 turns it off; --use-ascend-coc computes in pieces");
    }
    let pieces = match (mc2, o.coc) {
        (true, _) => Pieces::Finest,
        (_, true) => coc(o, tokens)?,
        (false, false) => {
            for (given, flag) in [
                (o.pieces.is_given(), "--coc-parallel-num"),
                (o.mode.is_given(), "--coc-mode"),
                (o.fused.is_given(), "--coc-fused-kernel"),
            ] {
                if given {
                    tracing::warn!("{flag} has no effect without --use-ascend-coc");
                }
            }
            Pieces::Number(1)
        }
    };
    Ok(LinearOverlap { weight_gradients: o.weight_gradients, pieces, overlap_gathers: o.gathers })
}

/// Checks that latents are gathered, and as upstream can work at them meanwhile.
///
/// # Errors
/// As upstream, without what it needs.
///
/// # Source
/// MindSpeed-LLM (2026), `features_manager/transformer/multi_latent_attention/mla_feature.py`.
pub(crate) fn check_gathers(o: &TpOverlap, model: &ModelConfig, tp: usize, shared: bool) -> Result<()> {
    const FLAG: &str = "--mla-up-proj-tp-overlap";
    if !o.gathers {
        return Ok(());
    }
    if let Some(part) = model.lacks_for(FLAG) {
        tracing::warn!("{FLAG} has no effect: the model has no {part}");
        return Ok(());
    }
    for (given, flag) in [(o.split, "--mla-mm-split"), (shared, "--sequence-parallel")] {
        if !given {
            refuse!("{FLAG}: needs {flag}, as in upstream");
        }
    }
    if tp == 1 {
        tracing::warn!("{FLAG} has no effect without --tensor-model-parallel-size above 1");
    } else if model.queries_of().is_none() {
        tracing::warn!(
            "{FLAG} has no effect: queries without latents (--q-lora-rank) are made of the stream, which is gathered whole"
        );
    }
    Ok(())
}

/// The pieces of `--use-ascend-coc`.
fn coc(o: &TpOverlap, tokens: &Tokens) -> Result<Pieces> {
    let n = o.pieces.value;
    if !matches!(n, 1 | 2 | 4 | 8) {
        refuse!("--coc-parallel-num: expected 1, 2, 4 or 8, found {n}");
    }
    if tokens.tp == 1 {
        tracing::warn!("--use-ascend-coc has no effect without --tensor-model-parallel-size above 1");
        return Ok(Pieces::Number(1));
    }
    if o.fused.value {
        return Ok(Pieces::Finest);
    }
    if n == 1 || matches!(o.mode.value, 0 | 1) {
        tracing::warn!(
            "--use-ascend-coc has no effect with --coc-parallel-num {n} and --coc-mode {}: products stay whole",
            o.mode.value
        );
        return Ok(Pieces::Number(1));
    }
    let shares = if tokens.shared { tokens.tp } else { 1 };
    let own = tokens.all / shares;
    if own >= n && !own.is_multiple_of(n) {
        refuse!(
            "--coc-parallel-num: expected a divisor of the {own} tokens of a micro-batch that a rank has between matrices, found {n}"
        );
    }
    if Pieces::Number(n).of(tokens.all, shares) != n {
        tracing::warn!(
            "--coc-parallel-num {n}: products of {} tokens are too small to be cut and stay whole",
            tokens.all
        );
    }
    Ok(Pieces::Number(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--use-ascend-coc` with so many pieces, of 192 tokens that two ranks share.
    fn coc(n: usize, mode: i64, fused: bool) -> Pieces {
        let overlap = TpOverlap {
            weight_gradients: true,
            coc: true,
            pieces: Given { value: n, written: None },
            mode: Given { value: mode, written: None },
            fused: Given { value: fused, written: None },
            mc2: false,
            former_mc2: false,
            gathers: false,
            split: false,
        };
        let tokens = Tokens { all: 192, tp: 2, shared: true };
        resolve(&overlap, Upstream::V2_0_0, &tokens).unwrap().pieces
    }

    #[test]
    fn modes_and_numbers_of_pieces_mean_what_they_mean_upstream() {
        assert_eq!([1, 2, 8].map(|n| coc(n, -1, false)), [1, 2, 8].map(Pieces::Number));
        assert_eq!([0, 1, 2].map(|mode| coc(4, mode, false)), [1, 1, 4].map(Pieces::Number));
        assert_eq!(coc(4, -1, true), Pieces::Finest);
    }

    #[test]
    fn mc2_cuts_as_finely_as_it_can_and_its_former_name_means_it_at_head_alone() {
        let of = |former: bool, upstream| {
            let none = |value| Given { value, written: None };
            let overlap = TpOverlap {
                weight_gradients: false,
                coc: false,
                pieces: Given { value: 1, written: None },
                mode: Given { value: -1, written: None },
                fused: none(false),
                mc2: !former,
                former_mc2: former,
                gathers: false,
                split: false,
            };
            resolve(&overlap, upstream, &Tokens { all: 192, tp: 2, shared: true }).unwrap()
        };
        let finest =
            LinearOverlap { weight_gradients: false, pieces: Pieces::Finest, overlap_gathers: false };
        assert_eq!(of(false, Upstream::Head), finest);
        assert_eq!(of(true, Upstream::Head), finest);
        assert_eq!(of(true, Upstream::V2_0_0).pieces, Pieces::Number(1));
    }
}
