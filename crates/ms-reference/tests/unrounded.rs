//! Numbers of a model's description reach f64 computations unrounded: each of these values would change if rounded to f32.

use ms_core::{
    Activation, Alibi, AttentionOptions, DType, HeadLayout, Result, Router, RouterScore, Segment, StateSpace,
    Tensor,
};
use ms_reference::device;

fn given(shape: &[usize], values: &[f64]) -> Result<Tensor> {
    Tensor::from_reals(device().arena(), DType::F64, shape, values)
}

#[test]
fn limits_of_activations_are_not_rounded() -> Result<()> {
    let (x, limit) = (given(&[1, 2], &[5.0, 5.0])?, 0.1);
    let of = |kind| device().activation(&x, kind, true)?.to_reals();
    let silu = |g: f64, alpha: f64| g / (1.0 + (-alpha * g).exp());
    let near = |kind, want: f64| Ok::<bool, ms_core::Error>((of(kind)?[0] - want).abs() < 1e-15);
    assert!(near(Activation::Limited { limit }, limit * limit)?);
    assert!(near(Activation::ClampedSilu { limit }, silu(limit, 1.0) * limit)?);
    assert!(near(Activation::Clamped { alpha: 1.702, limit }, silu(limit, 1.702) * (limit + 1.0))?);
    Ok(())
}

#[test]
fn a_sparse_mixer_leaves_out_what_is_just_beyond_its_jitter() -> Result<()> {
    let router = Router {
        score: RouterScore::SparseMixer { jitter: 0.1 },
        top_k: 2,
        groups: None,
        normalise: false,
        scale: 1.0,
    };
    // Behind the best by more than 2 · 0.1 of it, and by less than twice 0.1 as f32 has it.
    let (_, weights) = device().route(&given(&[1, 2], &[1.0, 1.0 - 0.2 - 1.5e-9])?, None, &router)?;
    assert_eq!(weights.to_reals()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn slopes_by_distance_are_not_rounded() -> Result<()> {
    // The tenth of twelve heads: 2^(-3/2).
    let alibi = Some(Alibi { heads: 12, first: 9 });
    let options = AttentionOptions { scale: 1.0, window: None, softcap: None, alibi };
    let heads = HeadLayout { groups: 1, heads_per_group: 1, head_dim: 1 };
    // Queries of zeros: scores are the penalty alone; the first value is 1, the other 0.
    let qkv = given(&[2, 3], &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0])?;
    let (out, _) =
        device().attention(ms_core::QkvRows::Packed(&qkv), heads, &[Segment::of(0, 2)], &options, None)?;
    let far = (-(2f64.powf(-1.5))).exp();
    assert!((out.to_reals()?[1] - far / (1.0 + far)).abs() < 1e-15);
    Ok(())
}

#[test]
fn limits_of_steps_are_not_rounded() -> Result<()> {
    let shape = StateSpace { heads: 1, head_dim: 1, groups: 1, state: 1, step_limit: (0.1, 0.1) };
    let (one, zero) = (given(&[1, 1], &[1.0])?, given(&[1, 1], &[0.0])?);
    let weights = given(&[1], &[0.0])?;
    let inputs = [&one, &one, &one, &zero];
    let made = device().state_space(inputs, [&weights; 3], None, &[Segment::of(0, 1)], &shape)?;
    assert_eq!(made.to_reals()?, [0.1]);
    Ok(())
}
