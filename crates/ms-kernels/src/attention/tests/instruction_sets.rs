//! Bits that instruction sets and instances have in common, where products alone do not decide.

use half::bf16;

use super::*;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn the_amx_kernels_give_the_bits_of_the_order_of_tiles() {
    use super::super::{backward as back, forward as front};
    use crate::Isa;
    use crate::cpu::Disjoint;
    use crate::matmul::kernel::tile32::{amx::Amx, trap};
    if !Isa::Avx512Bf16.is_available() {
        eprintln!("skipped: packing for AMX needs AVX-512");
        return;
    }
    let in_software = trap::install();
    let before = trap::performed();
    let shape = shape(331, 2, 2, 40);
    let segments = [Segment::of(0, 33), Segment::of(33, 298)];
    let qkv = random::<bf16>(shape.tokens * shape.width(), 3);
    let dout = random::<bf16>(shape.tokens * shape.heads() * shape.head_dim, 11);
    for options in [causal(40), Options { window: Some(70), softcap: Some(2.0), ..causal(40) }] {
        let plain = Cpu::with_arithmetic(1, Isa::Portable, Arithmetic::Tile32).unwrap();
        let want = run(&plain, &qkv, &dout, &shape, &segments, &options, None);
        let cpu = Cpu::with_arithmetic(2, Isa::Avx512Bf16, Arithmetic::Tile32).unwrap();
        let (mut out, mut lse) = (vec![bf16::ONE; want.out.len()], vec![0f32; want.lse.len()]);
        front::run::<Amx, bf16>(&front::Call {
            cpu: &cpu,
            out: Disjoint::new(&mut out),
            lse: Some(Disjoint::new(&mut lse)),
            q: Heads::queries(&qkv, &shape),
            k: Heads::keys(&qkv, &shape),
            v: Heads::values(&qkv, &shape),
            tokens: shape.tokens,
            groups: shape.groups,
            heads_per_group: shape.heads_per_group,
            dim: shape.head_dim,
            segments: &segments,
            options: &options,
            dropout: None,
        });
        assert!(out == want.out && lse == want.lse, "forward {options:?}");
        let mut dqkv = vec![bf16::ONE; qkv.len()];
        back::run::<Amx, bf16>(&back::Call {
            cpu: &cpu,
            to: QkvRows::Packed(Disjoint::new(&mut dqkv)),
            dout: &dout,
            heads: Heads::of(QkvRows::Packed(&qkv[..]), &shape),
            key_rows: shape.tokens,
            out: &out,
            lse: &lse,
            shape: &shape,
            segments: &segments,
            options: &options,
            dropout: None,
        });
        assert!(dqkv == want.dqkv, "backward {options:?}");
    }
    assert_eq!(trap::performed() > before, in_software, "the tile instructions ran");
}

/// Scores a hundred apart: most weights are no normal number, and as good as zero.
#[test]
fn weights_of_nearly_zero_and_nan_are_the_same_for_every_instruction_set() {
    fn agree<E: Element>(a: &[E], b: &[E]) -> bool {
        a.iter().zip(b).all(|(a, b)| {
            let (a, b) = (a.to_f32(), b.to_f32());
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        })
    }
    fn check<E: Element>(broken: &[usize]) {
        let shape = shape(150, 1, 2, 16);
        let mut qkv = random::<E>(shape.tokens * shape.width(), 7);
        broken.iter().for_each(|&at| qkv[at * shape.width()] = E::from_f32(f32::NAN));
        let dout = random::<E>(shape.tokens * shape.heads() * shape.head_dim, 11);
        let options = Options { scale: 40.0, ..causal(16) };
        for arithmetic in orders::<E>() {
            let mut first: Option<Run<E>> = None;
            for cpu in cpus_in(*arithmetic, &[1]) {
                let got = run(&cpu, &qkv, &dout, &shape, &[Segment::of(0, 150)], &options, None);
                let want = first.get_or_insert_with(|| Run {
                    dqkv: got.dqkv.clone(),
                    out: got.out.clone(),
                    lse: got.lse.clone(),
                });
                let same =
                    agree(&want.out, &got.out) && agree(&want.lse, &got.lse) && agree(&want.dqkv, &got.dqkv);
                assert!(same, "{} {cpu:?}, NaN in queries {broken:?}", E::NAME);
                let nan = got.out.iter().filter(|x| x.to_f32().is_nan()).count();
                assert_eq!(nan, broken.len() * shape.head_dim, "{} {cpu:?}", E::NAME);
            }
        }
    }
    for broken in [&[][..], &[20, 149]] {
        check::<f32>(broken);
        check::<bf16>(broken);
    }
}
