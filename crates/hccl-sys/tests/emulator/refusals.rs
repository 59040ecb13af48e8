//! What the first phases of experts', grouped, rotary and attention operators, and of products fused with communication, refuse:
//! the code that the page names, the rule, and the operand.

use super::scenarios::{ranks, scenarios};
use crate::client::{
    Array, Attention, BF16, BOOL, F16, F32, I32, I64, call, grouped_matmul, ints, list, message, ok, op,
    start, stream,
};
use crate::communicators::destroy;
use crate::fused::name_of;
use hccl_sys::types::{aclTensor, aclrtStream};
use std::ffi::CStr;
use std::ptr::null_mut;

scenarios! {
    experts_operators_refuse_what_their_pages_do_not_name grouped_products_refuse_what_their_pages_do_not_name
    rotations_refuse_what_their_pages_do_not_name layouts_of_training_are_those_of_its_pages
    products_with_communication_refuse_what_their_pages_do_not_name products_with_sums_are_not_on_every_chip
}

#[track_caller]
fn refused(code: i32, want: i32, rule: &str, says: &str) {
    let said = message();
    assert_eq!(code, want, "{rule} {says}: {said}");
    assert!(said.contains(rule) && said.contains(says), "expected {rule} and {says:?}, found {said}");
}

fn t(dims: &[i64], dtype: i32) -> *mut aclTensor {
    Array::new(dims, dtype).tensor()
}

fn none() -> *mut aclTensor {
    null_mut()
}

fn experts_operators_refuse_what_their_pages_do_not_name() {
    start(0);
    let s = stream();
    let permute = |index: (&[i64], i32), sorted: (&[i64], i32), padded: bool| {
        let (tokens, out) = (t(&[4, 6], F32), t(&[8, 6], F32));
        op!(
            s,
            experts.aclnnMoeTokenPermute(tokens, t(index.0, index.1), 0, padded, out, t(sorted.0, sorted.1))
        )
    };
    ok(permute((&[4, 2], I64), (&[8], I32), false));
    refused(permute((&[4, 2], I64), (&[8], I32), true), 561_002, "NN-14", "paddedMode");
    refused(permute((&[3, 2], I64), (&[8], I32), false), 561_002, "NN-13", "indices");
    refused(permute((&[4, 2], I64), (&[7], I32), false), 561_002, "NN-13", "sortedIndicesOut");
    refused(permute((&[4, 2], F32), (&[8], I32), false), 161_002, "NN-11", "indices");
    refused(permute((&[4, 2], I64), (&[8], I64), false), 161_002, "NN-11", "sortedIndicesOut");

    let unpermute = |sorted: &[i64], probs: *mut aclTensor, shape| {
        let (tokens, out) = (t(&[8, 6], BF16), t(&[4, 6], BF16));
        op!(s, experts.aclnnMoeTokenUnpermute(tokens, t(sorted, I32), probs, false, shape, out))
    };
    refused(unpermute(&[8], t(&[4, 3], BF16), null_mut()), 561_002, "NN-13", "sortedIndices");
    refused(unpermute(&[8], none(), null_mut()), 561_002, "NN-13", "sortedIndices");
    // Without padding the shape to restore is not needed; the vendor's adapter always gives one.
    ok(unpermute(&[8], t(&[4, 2], BF16), ints(&[4, 6])));
    refused(unpermute(&[8], t(&[4, 2], I32), null_mut()), 161_002, "NN-11", "probsOptional");

    let gating = |k: i64, y: &[i64], expert: i32, finished: *mut aclTensor| {
        let (x, y) = (t(&[4, 6], F16), t(y, F16));
        let (expert, row) = (t(&[4, k.max(1)], expert), t(&[4, k.max(1)], I32));
        op!(s, experts.aclnnMoeGatingTopKSoftmax(x, finished, k, y, expert, row))
    };
    ok(gating(2, &[4, 2], I32, none()));
    refused(gating(7, &[4, 7], I32, none()), 561_002, "NN-14", "k: expected at most e 6, found 7");
    refused(gating(0, &[4, 1], I32, none()), 561_002, "NN-14", "k: expected 1..1024, found 0");
    refused(gating(2, &[4, 3], I32, none()), 561_002, "NN-13", "yOut");
    refused(gating(2, &[4, 2], I64, none()), 161_002, "NN-11", "expertIdxOut");
    refused(gating(2, &[4, 2], I32, t(&[3], BOOL)), 561_002, "NN-13", "finishedOptional");

    let init = |count: i64, drop: i64, row: &[i64]| {
        let (x, expert, out) = (t(&[4, 6], F32), t(&[4, 2], I32), t(&[8, 6], F32));
        op!(s, experts.aclnnMoeInitRoutingV2:
            x, expert, 0, 0, 5, drop, count, false, out, t(row, I32), none(), none())
    };
    refused(init(3, 0, &[8]), 561_103, "NN-14", "expertTokensCountOrCumsumFlagOptional");
    refused(init(0, 2, &[8]), 561_103, "NN-14", "dropPadModeOptional");
    refused(init(0, 0, &[9]), 561_103, "NN-13", "expandedRowIdxOut");

    let finalize = |mode: i64, x1: *mut aclTensor, x2: *mut aclTensor, bias: *mut aclTensor| {
        let (x, row, out) = (t(&[8, 6], F32), t(&[8], I32), t(&[4, 6], F32));
        let scales = t(&[4, 2], F32);
        op!(s, experts.aclnnMoeFinalizeRoutingV2(x, row, x1, x2, bias, scales, none(), mode, out))
    };
    let more = || t(&[4, 6], F32);
    refused(finalize(4, none(), none(), none()), 561_103, "NN-14", "dropPadMode");
    refused(finalize(0, none(), more(), none()), 561_103, "NN-14", "x2Optional is there, x1Optional is not");
    refused(finalize(0, more(), none(), t(&[5, 6], F32)), 561_103, "NN-14", "biasOptional is there");
    refused(finalize(0, t(&[3, 6], F32), none(), none()), 561_103, "NN-13", "x1Optional");
    refused(finalize(0, t(&[4, 6], F16), none(), none()), 161_002, "NN-11", "x1Optional");
}

fn grouped_products_refuse_what_their_pages_do_not_name() {
    start(0);
    let s = stream();
    let grouped = |how: [i64; 4], groups: i32, outs: usize| {
        let (x, w) = (list(&[t(&[4, 6], F16)]), list(&[t(&[2, 6, 3], F16)]));
        let out: Vec<_> = (0..outs).map(|_| t(&[4, 3], F16)).collect();
        grouped_matmul(s, [x, w, list(&out)], t(&[2], groups), how)
    };
    refused(grouped([4, 0, 0, 0], I64, 1), 161_002, "NN-14", "splitItem");
    refused(grouped([3, 1, 0, 0], I64, 1), 161_002, "NN-14", "groupType");
    refused(grouped([3, 0, 3, 0], I64, 1), 161_002, "NN-14", "groupListType");
    refused(grouped([3, 0, 0, 3], I64, 1), 161_002, "NN-14", "actType");
    refused(grouped([3, 0, 0, 0], I32, 1), 161_002, "NN-11", "groupListOptional");
    refused(grouped([3, 0, 0, 0], I64, 2), 161_002, "NN-13", "out: expected one tensor");
    let wide = [[1, 65_536], [1, 3]].map(|dims| list(&[t(&dims, F16)]));
    let lists = [wide[0], list(&[t(&[1, 1, 3], F16)]), wide[1]];
    let code = grouped_matmul(s, lists, t(&[1], I64), [3, 0, 0, 0]);
    refused(code, 161_002, "NN-13", "x: expected a last dimension of 1..65535");
}

fn rotations_refuse_what_their_pages_do_not_name() {
    start(0);
    let s = stream();
    let rotary = |x: &[i64], cos: &[i64], mode: i64| {
        let (x, out) = (t(x, F32), t(x, F32));
        op!(s, attention.aclnnRotaryPositionEmbedding(x, t(cos, F32), t(cos, F32), mode, out))
    };
    ok(rotary(&[2, 3, 4, 8], &[1, 3, 1, 8], 0));
    refused(
        rotary(&[2, 3, 4, 7], &[1, 3, 1, 7], 0),
        161_002,
        "NN-14",
        "D: expected a multiple of 2 2, found 7",
    );
    refused(rotary(&[2, 3, 4, 896], &[1, 3, 1, 896], 0), 161_002, "NN-14", "D: expected 2..895");
    refused(rotary(&[2, 3, 4, 8], &[1, 3, 1, 8], 2), 161_002, "NN-14", "mode: expected 0|1 on A2");
    refused(rotary(&[2, 3, 4, 8], &[1, 4, 1, 8], 0), 161_002, "NN-13", "cos");
    refused(rotary(&[3, 8], &[3, 8], 0), 161_002, "NN-13", "3 to 4 dimensions");
    let both = |query: &[i64], cos: &[i64], layout: i64| {
        let (q, k) = (t(query, F16), t(query, F16));
        op!(s, attention.aclnnApplyRotaryPosEmb(q, k, t(cos, F16), t(cos, F16), layout))
    };
    ok(both(&[2, 3, 4, 64], &[2, 3, 1, 64], 1));
    refused(both(&[2, 3, 4, 32], &[2, 3, 1, 32], 1), 161_002, "NN-14", "D: expected 64|128");
    refused(both(&[2, 3, 4, 64], &[2, 3, 1, 64], 2), 161_002, "NN-14", "layout");
    refused(both(&[2, 3, 4, 64], &[2, 3, 4, 64], 1), 161_002, "NN-13", "cos");
}

/// A layout of inference's attention, or of the other kind of sequences, is none of training's.
fn layouts_of_training_are_those_of_its_pages() {
    start(0);
    let s = stream();
    let of = |dims: &[i64], layout, statistics: &[i64]| Attention {
        qkv: [(); 3].map(|()| t(dims, F32)),
        mask: none(),
        layout,
        heads: 2,
        scale: 1.0,
        mode: 0,
        statistics: [(); 2].map(|()| t(statistics, F32)),
        out: t(dims, F32),
    };
    let padded = |dims: &[i64], layout| of(dims, layout, &[2, 2, 3, 8]).forward(s);
    ok(padded(&[2, 2, 3, 4], c"BNSD"));
    refused(padded(&[2, 2, 3, 4], c"NBSD"), 161_002, "NN-14", "inputLayout");
    refused(padded(&[2, 3, 4], c"NTD"), 161_002, "NN-14", "inputLayout");
    refused(padded(&[3, 2, 4], c"TND"), 161_002, "NN-14", "inputLayout");
    let rows = |dims: &[i64], layout| of(dims, layout, &[2, 6, 8]).of_rows(s, &[6]);
    ok(rows(&[6, 2, 4], c"TND"));
    refused(rows(&[2, 6, 4], c"NTD"), 161_002, "NN-14", "inputLayout");
    refused(rows(&[1, 2, 6, 4], c"BNSD"), 161_002, "NN-14", "inputLayout");
    let gradient = |dims: &[i64], layout| {
        let gradients = [(); 3].map(|()| t(dims, F32));
        of(dims, layout, &[2, 2, 3, 8]).gradient(s, t(dims, F32), gradients)
    };
    refused(gradient(&[2, 2, 3, 4], c"NBSD"), 161_002, "NN-14", "inputLayout");
}

fn gather(
    s: aclrtStream,
    group: &CStr,
    (m, k, n): (i64, i64, i64),
    bias: *mut aclTensor,
    (index, turns, mode): (i64, i64, i64),
    rows: i64,
) -> i32 {
    let (x, y) = (t(&[m, k], F16), t(&[k, n], F16));
    let (out, all) = (t(&[rows, n], F16), t(&[rows, k], F16));
    op!(s, experts.aclnnAllGatherMatmul(x, y, bias, group.as_ptr(), index, turns, mode, out, all))
}

fn products_with_communication_refuse_what_their_pages_do_not_name() {
    ranks(2, |_, comm, s| {
        let name = name_of(comm);
        let plain = (0, 0, 1);
        refused(gather(s, c"nobody", (2, 256, 3), none(), plain, 4), 161_002, "COMM-07", "nobody");
        refused(
            gather(s, &name, (2, 255, 3), none(), plain, 4),
            161_002,
            "NN-14",
            "k: expected 256..65534, found 255",
        );
        refused(gather(s, &name, (2, 256, 3), t(&[3], F16), plain, 4), 161_002, "NN-14", "bias must be null");
        refused(gather(s, &name, (2, 256, 3), none(), (1, 0, 1), 4), 161_002, "NN-14", "gatherIndex");
        refused(gather(s, &name, (2, 256, 3), none(), (0, 1, 1), 4), 161_002, "NN-14", "commTurn");
        refused(gather(s, &name, (2, 256, 3), none(), (0, 0, 0), 4), 161_002, "NN-14", "streamMode");
        refused(
            gather(s, &name, (2, 256, 3), none(), plain, 6),
            161_002,
            "NN-13",
            "output: expected [m*R,n] with m*R 4",
        );
        let scatter = |m: i64, how: &CStr| {
            let (x, y, out) = (t(&[m, 256], BF16), t(&[256, 3], BF16), t(&[m / 2, 3], BF16));
            op!(s, experts.aclnnMatmulReduceScatter(x, y, none(), name.as_ptr(), how.as_ptr(), 0, 1, out))
        };
        refused(scatter(4, c"max"), 161_002, "NN-14", "reduceOp");
        refused(scatter(5, c"sum"), 161_002, "NN-14", "m: expected a multiple of R 2, found 5");
        let sum = |dtype: i32| {
            let (x, y, out) = (t(&[4, 6], dtype), t(&[6, 3], dtype), t(&[4, 3], dtype));
            op!(s, experts.aclnnMatmulAllReduce(x, y, none(), name.as_ptr(), c"sum".as_ptr(), 0, 1, out))
        };
        refused(sum(F32), 161_002, "NN-11", "x1");
        // What is not on this kind of chip: the exchange of tokens by experts.
        let (no, counts) = (none(), ints(&[1, 1]));
        let (x, w, y) = (t(&[2, 6], F16), t(&[1, 6, 3], F16), t(&[2, 3], F16));
        if crate::client::cann().experts.aclnnAlltoAllvGroupedMatMul.is_some() {
            let code = op!(s, experts.aclnnAlltoAllvGroupedMatMul:
                x, w, no, no, no, no, name.as_ptr(), 2, counts, counts, false, false, false, y, no, no);
            refused(code, 561_003, "NN-15", "A3");
        }
        destroy(comm);
    });
    ranks(3, |_, comm, s| {
        let code = gather(s, &name_of(comm), (2, 256, 3), none(), (0, 0, 1), 6);
        refused(code, 161_002, "NN-14", "R: expected 2|4|8 on A2, found 3");
    });
}

/// Runs as an A3.
fn products_with_sums_are_not_on_every_chip() {
    ranks(2, |_, comm, s| {
        let (x, y, out) = (t(&[4, 6], F16), t(&[6, 3], F16), t(&[4, 3], F16));
        let name = name_of(comm);
        let code =
            op!(s, experts.aclnnMatmulAllReduce(x, y, none(), name.as_ptr(), c"sum".as_ptr(), 0, 1, out));
        refused(code, 561_003, "NN-15", "it runs on A2, not on Ascend910_9391");
        ok(gather(s, &name, (2, 256, 3), none(), (0, 0, 1), 4));
        ok(call!(rt.aclrtSynchronizeStream(s)));
    });
}
