//! Every instance against the reference, the goldens and each other.

use half::bf16;

use super::{add, add_assign, axpy, cast, scale, zero};
use crate::trial::{random, same_everywhere};
use crate::{Cpu, Element, Error};

#[test]
fn every_instance_computes_each_element_and_rounds_once() {
    let len = 70_001;
    let (a, b) = (random::<bf16>(len, 1), random::<bf16>(len, 2));
    let (sum, sum2, scaled, wide, narrow) = same_everywhere("elementwise", |cpu| {
        let mut sum = vec![bf16::ZERO; len];
        add(cpu, &mut sum, &a, &b).unwrap();
        let mut sum2 = a.clone();
        add_assign(cpu, &mut sum2, &b).unwrap();
        let mut scaled = a.clone();
        scale(cpu, &mut scaled, 0.3);
        let mut wide = vec![0f32; len];
        cast(cpu, &mut wide, &a).unwrap();
        axpy(cpu, &mut wide, &vec![1.0; len], 0.001).unwrap();
        let mut narrow = vec![bf16::ONE; len];
        cast(cpu, &mut narrow, &wide).unwrap();
        (sum, sum2, scaled, wide, narrow)
    });
    assert!(sum == sum2);
    for i in 0..len {
        assert_eq!(sum[i], <bf16 as Element>::from_f32(a[i].to_f32() + b[i].to_f32()));
        assert_eq!(scaled[i], <bf16 as Element>::from_f32(a[i].to_f32() * 0.3));
        assert_eq!(wide[i], 1f32.mul_add(0.001, a[i].to_f32()));
        assert_eq!(narrow[i], <bf16 as Element>::from_f32(wide[i]));
    }
    let mut x = a;
    zero(&Cpu::single(), &mut x);
    assert!(x.iter().all(|v| v.to_bits() == 0));
}

#[test]
fn operands_of_different_lengths_are_errors() {
    let (cpu, mut x) = (Cpu::single(), [0f32; 3]);
    assert!(matches!(add(&cpu, &mut x, &[0.0; 3], &[0.0; 2]), Err(Error::Shape { name: "b", .. })));
    assert!(add_assign(&cpu, &mut x, &[0.0; 4]).is_err());
    assert!(axpy(&cpu, &mut x, &[0.0; 4], 1.0).is_err());
    assert!(cast(&cpu, &mut x, &[bf16::ZERO; 2]).is_err());
    assert_eq!(add::<f32>(&cpu, &mut [], &[], &[]), Ok(()));
}
