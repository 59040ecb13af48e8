//! Few queries of bf16 beside the formula; other tests of them stand with those of many.

use half::bf16;
use ms_testing::assert_close;

use crate::attention::{Heads, Options, Segment, forward, reference};
use crate::trial::{random, same_everywhere, wide, wide64};

#[test]
fn few_queries_of_bf16_match_the_formula_for_every_head_size_and_number_of_blocks() {
    // With 2300 keys several threads join the blocks.
    for (dim, per_group, keys) in
        [(8, 1, 5), (20, 3, 130), (32, 2, 129), (48, 4, 300), (64, 2, 2300), (80, 1, 16), (128, 5, 47)]
    {
        let (groups, count) = (3, 2);
        let heads = groups * per_group;
        let k = random::<bf16>(keys * groups * dim, 1);
        let v = random::<bf16>(keys * groups * dim, 2);
        let q = random::<bf16>(count * heads * dim, 3);
        let cache =
            |data| Heads { data, offset: 0, token_stride: groups * dim, group_stride: dim, head_stride: 0 };
        let queries = Heads {
            data: &q[..],
            offset: 0,
            token_stride: heads * dim,
            group_stride: per_group * dim,
            head_stride: dim,
        };
        let segment = [Segment { q_start: 0, q_len: count, k_start: 0, k_len: keys, ahead: 0 }];
        let scale = 1.0 / (dim as f32).sqrt();
        let options = Options { scale, window: None, softcap: None, causal: true, alibi: None };
        let (out, lse) = same_everywhere(&format!("head size {dim}"), |cpu| {
            let (mut out, mut lse) = (vec![bf16::ZERO; q.len()], vec![0f32; count * heads]);
            let (k, v) = (cache(&k[..]), cache(&v[..]));
            forward(
                cpu,
                &mut out,
                Some(&mut lse),
                queries,
                k,
                v,
                groups,
                per_group,
                dim,
                &segment,
                &options,
                None,
            )
            .unwrap();
            (out, lse)
        });
        for n in 0..heads {
            let of = |data: &[bf16], width: usize, at: usize| -> Vec<f64> {
                data.chunks_exact(width).flat_map(|row| wide64(&row[at * dim..][..dim])).collect()
            };
            let (k, v) = (of(&k, groups * dim, n / per_group), of(&v, groups * dim, n / per_group));
            let one =
                reference::Head { q: &of(&q, heads * dim, n), k: &k, v: &v, dim, number: n, dropout: None };
            let (want, want_lse) = one.forward(&options);
            for i in 0..count {
                let got = wide(&out[(i * heads + n) * dim..][..dim]);
                assert_close(&format!("head {n} of size {dim}"), &got, &want[i * dim..][..dim], 5e-3, 1e-4);
                let got = f64::from(lse[n * count + i]);
                assert!((got - want_lse[i]).abs() < 1e-5 * (1.0 + got.abs()), "{got} for {}", want_lse[i]);
            }
        }
    }
}
