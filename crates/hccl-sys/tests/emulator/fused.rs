//! Products fused with communication among ranks of one process and of two: what they equal, and what must be found.

use super::scenarios::{ranks, scenarios};
use crate::client::{Array, F16, F32, I32, I64, call, message, noise, ok, op, start, stream};
use hccl_sys::types::{HcclComm, aclTensor, aclrtStream};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

scenarios! {
    a_fused_sum_has_the_bits_of_product_and_all_reduce ranks_that_gather_other_shapes an_operand_written_on_another_stream
    a_result_read_on_another_stream a_second_group_of_fused_products a_collective_beside_tokens_to_experts
    a_combination_with_another_dispatch a_fused_product_without_its_peer one_of_two_processes
}

/// The name by which operators find a communicator.
pub fn name_of(comm: HcclComm) -> CString {
    let mut name = [0u8; 128];
    assert_eq!(call!(hccl.HcclGetCommName(comm, name.as_mut_ptr().cast())), 0);
    CStr::from_bytes_until_nul(&name).unwrap().to_owned()
}

fn deterministic() {
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
}

/// Runs with `HCCL_DETERMINISTIC=true`.
fn a_fused_sum_has_the_bits_of_product_and_all_reduce() {
    ranks(4, |r, comm, s| {
        deterministic();
        let (m, k, n) = (5i64, 300i64, 7i64);
        let x = Array::of(&[m, k], F16, &noise((m * k) as usize, 10 + r as u64));
        let y = Array::of(&[k, n], F16, &noise((k * n) as usize, 20 + r as u64));
        let (fused, apart) = (Array::new(&[m, n], F16), Array::new(&[m, n], F16));
        let (name, none) = (name_of(comm), null_mut::<aclTensor>());
        ok(op!(s, experts.aclnnMatmulAllReduce:
            x.tensor(), y.tensor(), none, name.as_ptr(), c"sum".as_ptr(), 0, 1, fused.tensor()));
        ok(op!(s, products.aclnnMm(x.tensor(), y.tensor(), apart.tensor(), 0)));
        assert_eq!(call!(hccl.HcclAllReduce(apart.at, apart.at, (m * n) as u64, 3, 0, comm, s)), 0);
        assert_eq!(fused.read(s), apart.read(s));
    });
}

fn gather(s: aclrtStream, comm: HcclComm, x: &Array, n: i64, out: &Array) -> i32 {
    let (name, k) = (name_of(comm), x.dims[1]);
    let y = Array::of(&[k, n], F16, &vec![1.0; (k * n) as usize]);
    let all = Array::new(&[out.dims[0], k], F16);
    op!(s, experts.aclnnAllGatherMatmul:
        x.tensor(), y.tensor(), null_mut(), name.as_ptr(), 0, 0, 1, out.tensor(), all.tensor())
}

fn ones(m: i64) -> Array {
    Array::of(&[m, 256], F16, &vec![1.0; m as usize * 256])
}

fn ranks_that_gather_other_shapes() {
    ranks(2, |r, comm, s| {
        let m = 2 + r as i64;
        ok(gather(s, comm, &ones(m), 3, &Array::new(&[2 * m, 3], F16)));
        call!(rt.aclrtSynchronizeStream(s));
    });
}

fn an_operand_written_on_another_stream() {
    ranks(2, |_, comm, s| {
        let (x, other) = (ones(2), stream());
        ok(call!(rt.aclrtMemsetAsync(x.at, x.bytes(), 0, x.bytes(), other)));
        ok(gather(s, comm, &x, 3, &Array::new(&[4, 3], F16)));
    });
}

fn a_result_read_on_another_stream() {
    ranks(2, |_, comm, s| {
        let (out, other) = (Array::new(&[4, 3], F16), stream());
        ok(gather(s, comm, &ones(2), 3, &out));
        let mut host = null_mut();
        ok(call!(rt.aclrtMallocHost(&raw mut host, 24)));
        ok(call!(rt.aclrtMemcpyAsync(host, 24, out.at, 24, 2, other)));
    });
}

fn a_second_group_of_fused_products() {
    ranks(2, |r, comm, s| {
        let (mut parent, mut sub) = (comm, null_mut());
        let mut config = hccl_sys::types::HcclCommConfig::new();
        let mut ids = [0u32, 1];
        let code = call!(hccl.HcclCreateSubCommConfig:
            &raw mut parent, 2, ids.as_mut_ptr(), 1, r as u32, &raw mut config, &raw mut sub);
        assert_eq!(code, 0, "{}", message());
        for comm in [comm, sub] {
            ok(gather(s, comm, &ones(2), 3, &Array::new(&[4, 3], F16)));
            ok(call!(rt.aclrtSynchronizeStream(s)));
        }
    });
}

/// Two tokens to two experts of 64 columns, in the version that both releases have or the one behind it.
fn dispatch(r: usize, comm: HcclComm, s: aclrtStream) -> [Array; 4] {
    let name = name_of(comm);
    let x = Array::of(&[2, 64], F16, &[1.0; 128]);
    let ids = Array::of(&[2, 1], I32, &[0.0, 1.0]);
    let (rows, notes) = (Array::new(&[4, 64], F16), Array::new(&[512], I32));
    let (numbers, counts) = (Array::new(&[1], I64), Array::new(&[2], I32));
    let none = null_mut();
    ok(op!(s, experts.aclnnMoeDistributeDispatchV2:
        x.tensor(), ids.tensor(), none, none, none, name.as_ptr(), 2, r as i64, 2, c"".as_ptr(), 0, 0, 0, 0,
        0, 0, 0, 1, c"fullmesh".as_ptr(), rows.tensor(), none, notes.tensor(), numbers.tensor(),
        counts.tensor(), none, none));
    [rows, notes, counts, ids]
}

fn a_collective_beside_tokens_to_experts() {
    ranks(2, |r, comm, s| {
        dispatch(r, comm, s);
        let a = Array::of(&[4], F32, &[1.0; 4]);
        call!(hccl.HcclAllReduce(a.at, a.at, 4, 4, 0, comm, s));
    });
}

/// What the dispatch gave for the combination is lost: the counts of rows are another call's.
fn a_combination_with_another_dispatch() {
    ranks(2, |r, comm, s| {
        let [rows, notes, counts, ids] = dispatch(r, comm, s);
        ok(call!(rt.aclrtSynchronizeStream(s)));
        let changed: Vec<f64> = notes.read(s).iter().map(|v| 1.0 - v).collect();
        let notes = Array::of(&[512], I32, &changed);
        let (weights, out) = (Array::of(&[2, 1], F32, &[1.0; 2]), Array::new(&[2, 64], F16));
        let (name, none) = (name_of(comm), null_mut());
        ok(op!(s, experts.aclnnMoeDistributeCombineV2:
            rows.tensor(), ids.tensor(), notes.tensor(), counts.tensor(), weights.tensor(), none, none, none,
            none, none, none, none, name.as_ptr(), 2, r as i64, 2, c"".as_ptr(), 0, 0, 0, 0, 0, 0, 0, 0, 0,
            c"fullmesh".as_ptr(), out.tensor()));
        call!(rt.aclrtSynchronizeStream(s));
    });
}

/// Runs with `HCCL_EXEC_TIMEOUT=1`.
fn a_fused_product_without_its_peer() {
    ranks(2, |r, comm, s| {
        if r == 0 {
            ok(gather(s, comm, &ones(2), 3, &Array::new(&[4, 3], F16)));
            assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 107_020);
        } else {
            // Its end of the group must stay: a rank that is gone is another error.
            std::thread::sleep(Duration::from_secs(2));
        }
    });
}

/// Rank `CANN_RANK` of two processes that meet by a file in `CANN_FOLDER`.
fn one_of_two_processes() {
    let rank: usize = std::env::var("CANN_RANK").unwrap().parse().unwrap();
    let path = PathBuf::from(std::env::var("CANN_FOLDER").unwrap()).join("root");
    start(rank as i32);
    let info = super::processes::meet(rank, &path);
    let mut comm = null_mut();
    assert_eq!(call!(hccl.HcclCommInitRootInfo(2, &raw const *info, rank as u32, &raw mut comm)), 0);
    let s = stream();
    let x = Array::of(&[2, 256], F16, &vec![rank as f64 + 1.0; 512]);
    let out = Array::new(&[4, 3], F16);
    ok(gather(s, comm, &x, 3, &out));
    let want: Vec<f64> = (0..12).map(|i| 256.0 * f64::from(1 + i / 6)).collect();
    assert_eq!(out.read(s), want);
    // A product followed by a reduce-scatter, and one followed by an all-reduce.
    let (name, y) = (name_of(comm), Array::of(&[256, 3], F16, &vec![1.0; 768]));
    let (part, sum) = (Array::new(&[1, 3], F16), Array::new(&[2, 3], F16));
    let none = null_mut();
    let how = c"sum".as_ptr();
    ok(op!(s, experts.aclnnMatmulReduceScatter:
        x.tensor(), y.tensor(), none, name.as_ptr(), how, 0, 1, part.tensor()));
    ok(op!(
        s,
        experts.aclnnMatmulAllReduce(x.tensor(), y.tensor(), none, name.as_ptr(), how, 0, 1, sum.tensor())
    ));
    assert_eq!(part.read(s), [768.0; 3]);
    assert_eq!(sum.read(s), [768.0; 6]);
    // Rank 0 has the group's meeting place; it leaves last.
    let left = path.with_extension("left");
    if rank == 1 {
        std::fs::write(left, "").unwrap();
    } else {
        while !left.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
