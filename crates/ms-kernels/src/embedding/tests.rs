//! Every instance against the reference, the goldens and each other.

use half::bf16;

use super::{backward, forward};
use crate::trial::{random, same_everywhere, wide};
use crate::{Cpu, Error};

#[test]
fn rows_are_copied_and_gradients_added_in_token_order() {
    let (vocab, h, tokens) = (50, 200, 300);
    let table = random::<bf16>(vocab * h, 1);
    let dy = random::<bf16>(tokens * h, 2);
    let ids: Vec<i32> = (0..tokens).map(|t| ((t * t) % vocab) as i32).collect();
    let (out, sums) = same_everywhere("embedding", |cpu| {
        let mut out = vec![bf16::ZERO; tokens * h];
        forward(cpu, &mut out, &table, &ids, h).unwrap();
        let mut sums = vec![0.5f32; vocab * h];
        backward(cpu, &mut sums, &dy, &ids, h).unwrap();
        (out, sums)
    });
    let mut want = vec![0.5f32; vocab * h];
    for (t, &id) in ids.iter().enumerate() {
        let row = id as usize * h;
        assert_eq!(out[t * h..][..h], table[row..][..h]);
        for (s, g) in want[row..][..h].iter_mut().zip(wide(&dy[t * h..][..h])) {
            *s += g;
        }
    }
    assert_eq!(sums, want);
}

#[test]
fn an_id_outside_the_table_is_an_error() {
    let (cpu, table) = (Cpu::single(), [0f32; 6]);
    let mut out = [0f32; 4];
    let error = forward(&cpu, &mut out, &table, &[0, 3], 2).unwrap_err();
    assert_eq!(error, Error::Range { op: "embedding::forward", name: "ids", index: 1, value: 3, limit: 3 });
    assert!(forward(&cpu, &mut out, &table, &[-1, 0], 2).is_err());
    assert!(backward(&cpu, &mut [0f32; 6], &out, &[0, 7], 2).is_err());
    assert!(matches!(forward(&cpu, &mut out, &table, &[0], 2), Err(Error::Shape { name: "out", .. })));
}
