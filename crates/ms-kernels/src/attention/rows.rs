//! Rows that attention reads, and rows that its gradients are written to.

use super::QkvRows;
use crate::Result;
use crate::error::{expect_len, expect_rows};
use crate::qkv::Packed;

/// Checks the lengths of rows and of the arrays that their gradients go to; rows of keys.
pub(crate) fn check_lengths<E>(
    op: &'static str,
    rows: &QkvRows<(&mut [E], &[E])>,
    shape: &Packed,
) -> Result<usize> {
    let widths = rows.widths(shape.groups, shape.heads_per_group, shape.head_dim);
    match rows {
        QkvRows::Packed((dqkv, qkv)) => {
            expect_len(op, "dqkv", qkv.len(), dqkv.len())?;
            expect_len(op, "qkv", shape.tokens * widths.queries(), qkv.len())?;
            Ok(shape.tokens)
        }
        QkvRows::Apart { q: (dq, q), kv: (dkv, kv) } => {
            expect_len(op, "q", shape.tokens * widths.queries(), q.len())?;
            expect_len(op, "dq", q.len(), dq.len())?;
            expect_len(op, "dkv", kv.len(), dkv.len())?;
            expect_rows(op, "kv", *widths.keys(), kv.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Heads, Options, Segment, backward, forward};
    use super::*;
    use crate::trial::{cpus, random};
    use crate::{Cpu, Element, Error};
    use half::bf16;

    /// Output, log-sum-exp and gradients.
    fn run<E: Element>(
        cpu: &Cpu,
        mut rows: QkvRows<(Vec<E>, Vec<E>)>,
        dout: &[E],
        shape: &Packed,
        segments: &[Segment],
    ) -> (Vec<E>, Vec<f32>, QkvRows<Vec<E>>) {
        let options = Options { scale: 0.3, window: Some(50), softcap: None, causal: true, alibi: None };
        let (g, n, d) = (shape.groups, shape.heads_per_group, shape.head_dim);
        let [q, k, v] = Heads::of(rows.as_ref().map(|(_, given)| &given[..]), shape);
        let (mut out, mut lse) = (vec![E::from_f32(9.0); dout.len()], vec![7.0; shape.tokens * g * n]);
        forward(cpu, &mut out, Some(&mut lse), q, k, v, g, n, d, segments, &options, None).unwrap();
        let operands = match &mut rows {
            QkvRows::Packed((to, given)) => QkvRows::Packed((&mut to[..], &given[..])),
            QkvRows::Apart { q, kv } => {
                QkvRows::Apart { q: (&mut q.0[..], &q.1[..]), kv: (&mut kv.0[..], &kv.1[..]) }
            }
        };
        backward(cpu, operands, dout, &out, &lse, shape, segments, &options, None).unwrap();
        (out, lse, rows.map(|(to, _)| to))
    }

    /// Queries, and keys and values, of packed rows.
    fn apart<E: Element>(qkv: &[E], shape: &Packed) -> [Vec<E>; 2] {
        let each = shape.heads_per_group * shape.head_dim;
        let groups = || qkv.chunks_exact(each + 2 * shape.head_dim);
        [
            groups().flat_map(|g| g[..each].to_vec()).collect(),
            groups().flat_map(|g| g[each..].to_vec()).collect(),
        ]
    }

    fn same<E: Element>(groups: usize, heads_per_group: usize) {
        let shape = Packed { tokens: 150, groups, heads_per_group, head_dim: 24 };
        let qkv = random::<E>(shape.tokens * shape.width(), 3);
        let dout = random::<E>(shape.tokens * shape.heads() * shape.head_dim, 5);
        let to = |rows: &[E]| vec![E::from_f32(5.0); rows.len()];
        // A document, and the last queries of one with some of its keys: a block of a ring.
        let segments =
            [Segment::of(0, 100), Segment { q_start: 110, q_len: 30, k_start: 101, k_len: 40, ahead: 7 }];
        for cpu in cpus(&[1, 2]) {
            let packed = run(&cpu, QkvRows::Packed((to(&qkv), qkv.clone())), &dout, &shape, &segments);
            let [q, kv] = apart(&qkv, &shape);
            let rows = QkvRows::Apart { q: (to(&q), q), kv: (to(&kv), kv) };
            let (out, lse, gradients) = run(&cpu, rows, &dout, &shape, &segments);
            assert!(out == packed.0 && lse == packed.1, "{groups} groups");
            let QkvRows::Packed(want) = packed.2 else { unreachable!("as it was given") };
            let [dq, dkv] = apart(&want, &shape);
            assert!(gradients == QkvRows::Apart { q: dq, kv: dkv }, "{groups} groups");
        }
    }

    #[test]
    fn sizes_whose_product_wraps_around_are_refused() {
        // 2^62 rows of 192 elements: without the check no elements are expected, and a segment of 64 tokens would be read.
        let shape = Packed { tokens: 1 << 62, groups: 4, heads_per_group: 1, head_dim: 16 };
        let options = Options { scale: 1.0, window: None, softcap: None, causal: true, alibi: None };
        for cpu in cpus(&[1]) {
            let rows: QkvRows<(&mut [f32], &[f32])> = QkvRows::Packed((&mut [], &[]));
            let done = backward(&cpu, rows, &[], &[], &[], &shape, &[Segment::of(0, 64)], &options, None);
            assert!(
                matches!(done, Err(Error::Size { name: "tokens", got, .. }) if got == 1 << 62),
                "{done:?}"
            );
        }
    }

    #[test]
    fn rows_apart_have_the_bits_of_packed_rows() {
        // Units of heads, and of groups.
        same::<f32>(1, 3);
        same::<f32>(2, 2);
        same::<bf16>(1, 3);
        same::<bf16>(2, 1);
    }

    #[test]
    fn more_keys_than_queries_are_packed_rows_whose_other_queries_nobody_asks_for() {
        // One group, in which each head is a unit, and two.
        for groups in [1, 2] {
            let all = Packed { tokens: 90, groups, heads_per_group: 3, head_dim: 24 };
            let few = Packed { tokens: 40, ..all };
            let qkv = random::<f32>(all.tokens * all.width(), 7);
            let [q, kv] = apart(&qkv, &all);
            let width = all.heads() * all.head_dim;
            let q = q[50 * width..].to_vec();
            let mut dout = random::<f32>(all.tokens * width, 9);
            dout[..50 * width].fill(0.0);
            let packed = Segment { q_start: 50, q_len: 40, k_start: 0, k_len: 90, ahead: 0 };
            let alone = Segment { q_start: 0, ..packed };
            for cpu in cpus(&[2]) {
                let rows = QkvRows::Packed((vec![5.0; qkv.len()], qkv.clone()));
                let (out, _, want) = run(&cpu, rows, &dout, &all, &[packed]);
                let rows = QkvRows::Apart {
                    q: (vec![5.0; q.len()], q.clone()),
                    kv: (vec![5.0; kv.len()], kv.clone()),
                };
                let (own, _, gradients) = run(&cpu, rows, &dout[50 * width..], &few, &[alone]);
                assert!(own == out[50 * width..], "{groups} groups");
                let QkvRows::Packed(want) = want else { unreachable!("as it was given") };
                let [dq, dkv] = apart(&want, &all);
                assert!(
                    gradients == QkvRows::Apart { q: dq[50 * width..].to_vec(), kv: dkv },
                    "{groups} groups"
                );
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let shape = Packed { tokens: 2, groups: 1, heads_per_group: 2, head_dim: 4 };
        let name = |q: [usize; 2], kv: [usize; 2]| {
            let mut rows = [q[0], q[1], kv[0], kv[1]].map(|len| vec![0f32; len]);
            let [dq, q, dkv, kv] = &mut rows;
            match check_lengths(
                "test",
                &QkvRows::Apart { q: (&mut dq[..], &q[..]), kv: (&mut dkv[..], &kv[..]) },
                &shape,
            ) {
                Ok(_) => "",
                Err(Error::Shape { name, .. }) => name,
                Err(_) => "another error",
            }
        };
        assert_eq!(name([16, 16], [40, 40]), "");
        assert_eq!(name([16, 15], [40, 40]), "q");
        assert_eq!(name([15, 16], [40, 40]), "dq");
        assert_eq!(name([16, 16], [39, 40]), "dkv");
        assert_eq!(name([16, 16], [41, 41]), "kv");
    }
}
