//! From flags to context parallelism.

use super::ParallelismOptions;
use anyhow::{Result, bail};
use ms_cli::{Usage, refuse};
use ms_dist::{ContextParallel, TokenMapping};
use ms_spec::ModelConfig;

/// The equivalent of `--cp-comm-type` as a `--context-parallel-algo`, and the ranks that exchange heads; `None`: nothing is
/// requested.
///
/// # Errors
/// For layers that exchange in several ways, and levels that do not make up the ranks of a sequence.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/arguments.py` and `megatron/core/model_parallel_config.py`.
fn in_words_of_megatron(o: &ParallelismOptions, cp: usize) -> Result<Option<(&'static str, Option<usize>)>> {
    const FLAG: &str = "--cp-comm-type";
    let Some([first, rest @ ..]) = o.comm.given().map(Vec::as_slice) else {
        return Ok(None);
    };
    const WORDS: [&str; 5] = ["p2p", "a2a", "all_gather", "allgather", "a2a+p2p"];
    if let Some(other) = [first].into_iter().chain(rest).find(|word| !WORDS.contains(&word.as_str())) {
        refuse!("{FLAG}: expected p2p, a2a, all_gather or a2a+p2p, found {other}");
    }
    if cp == 1 {
        return Ok(None);
    }
    if let Some(other) = rest.iter().find(|other| *other != first) {
        refuse!(
            "{FLAG}: expected one way for all layers, found {first} and {other}; a list is read one entry too far upstream \
             (transformer_layer.py of Megatron-core 0.12.1 counts layers from 1), which ends the run at the last layer"
        );
    }
    let asked = match first.as_str() {
        "p2p" => ("megatron_cp_algo", None),
        "a2a" => ("ulysses_cp_algo", None),
        "all_gather" | "allgather" => ("kvallgather_cp_algo", None),
        _ => {
            let levels: Vec<usize> = o.levels.iter().filter_map(|word| word.parse().ok()).collect();
            let [heads, ring] = levels[..] else { bail!(wrong_levels(o, cp)) };
            if heads.checked_mul(ring) != Some(cp) {
                bail!(wrong_levels(o, cp));
            }
            ("hybrid_cp_algo", Some(heads))
        }
    };
    if let Some(given) = o.context.given().filter(|given| *given != asked.0) {
        refuse!("{FLAG} {first}: cannot be combined with --context-parallel-algo {given}");
    }
    Ok(Some(asked))
}

fn wrong_levels(o: &ParallelismOptions, cp: usize) -> Usage {
    let found = if o.levels.is_empty() { "none".to_owned() } else { o.levels.join(" ") };
    Usage(format!(
        "--hierarchical-context-parallel-sizes: expected two sizes whose product is --context-parallel-size {cp}, found {found}"
    ))
}

/// What upstream refuses with gathered heads.
///
/// # Source
/// MindSpeed, `features_manager/context_parallel/context_parallel_kv_cache.py`.
pub(super) fn gathered_heads(
    o: &ParallelismOptions,
    cp: usize,
    context: &ContextParallel,
    model: &ModelConfig,
) -> Result<()> {
    const FLAG: &str = "--use-ulysses-allgather-kv";
    let refused = if cp == 1 {
        "--context-parallel-size above 1, found 1"
    } else if *context != ContextParallel::Ulysses {
        "--context-parallel-algo ulysses_cp_algo, found another"
    } else if model.groups == model.heads {
        "--group-query-attention, found as many keys as heads"
    } else {
        return Ok(());
    };
    if o.gathers_heads { refuse!("{FLAG}: expected {refused}") } else { Ok(()) }
}

/// How ranks share a sequence.
///
/// # Errors
/// If sizes do not fit together.
pub(super) fn context(o: &ParallelismOptions, cp: usize) -> Result<ContextParallel> {
    let asked = in_words_of_megatron(o, cp)?;
    let algorithm = asked.map_or(o.context.value.as_str(), |asked| asked.0);
    let (window, ulysses) = (o.window.value, asked.and_then(|asked| asked.1).or(o.ulysses.value));
    let in_order = o.mask == "general" || o.old_mask.as_deref() == Some("general");
    Ok(match algorithm {
        "ulysses_cp_algo" | "mamba_cp_algo" => ContextParallel::Ulysses,
        "kvallgather_cp_algo" => ContextParallel::Gather,
        "hybrid_cp_algo" | "hybrid_adaptive_cp_algo" => {
            // Upstream asks for a degree of several ranks alone.
            let shares = |u: &usize| *u > 1 && *u < cp && cp.is_multiple_of(*u);
            let Some(ulysses) = (if cp == 1 { Some(1) } else { ulysses.filter(shares) }) else {
                if !(2..cp).any(|u| shares(&u)) {
                    refuse!(
                        "--context-parallel-algo {algorithm}: expected a --context-parallel-size that is a product of two degrees \
                         above 1, found {cp}"
                    );
                }
                refuse!(
                    "--ulysses-degree-in-cp: {algorithm} needs a degree above 1 that divides --context-parallel-size {cp} \
                     and is smaller, found {}",
                    ulysses.map_or("none".to_owned(), |u| u.to_string())
                );
            };
            if algorithm == "hybrid_adaptive_cp_algo" {
                return Ok(ContextParallel::Adaptive { ulysses, remap: remap(o) });
            }
            check_window(window, cp / ulysses, "the ring of hybrid_cp_algo")?;
            if in_order {
                return Ok(ContextParallel::InOrder { ulysses, window });
            }
            ContextParallel::Hybrid { ulysses, window }
        }
        "adaptive_cp_algo" => ContextParallel::Adaptive { ulysses: 1, remap: remap(o) },
        _ => {
            check_window(window, cp, "--context-parallel-size")?;
            if in_order {
                return Ok(ContextParallel::InOrder { ulysses: 1, window });
            }
            ContextParallel::Ring { window }
        }
    })
}

/// Which tokens of a row adaptive context parallelism gives its ranks.
///
/// # Source
/// MindSpeed `2.0.0_core_r0.8.0`, `mindspeed/core/context_parallel/utils.py`, `get_adaptive_cp_info`.
fn remap(o: &ParallelismOptions) -> TokenMapping {
    match (o.reschedules_only, o.maps_tokens) {
        (true, _) => TokenMapping::InOrder,
        (false, true) => TokenMapping::Tokens,
        (false, false) => TokenMapping::Runs,
    }
}

/// Checks that a ring of `ring` ranks divides into windows of `window` ranks, more than one of them.
fn check_window(window: usize, ring: usize, what: &str) -> Result<()> {
    if ring > 1 && (window >= ring.max(2) || !ring.is_multiple_of(window)) {
        refuse!("--cp-window-size: expected a divisor of {what} {ring} below it, found {window}");
    }
    Ok(())
}
