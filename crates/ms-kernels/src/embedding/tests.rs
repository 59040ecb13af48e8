//! Every instance against the reference, the goldens and each other.

use half::bf16;

use super::{Share, backward, forward};
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
        forward(cpu, &mut out, &table, &ids, h, Share::all(vocab)).unwrap();
        let mut sums = vec![0.5f32; vocab * h];
        backward(cpu, &mut sums, &dy, &ids, h, Share::all(vocab)).unwrap();
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
    let error = forward(&cpu, &mut out, &table, &[0, 3], 2, Share::all(3)).unwrap_err();
    assert_eq!(error, Error::Range { op: "embedding::forward", name: "ids", index: 1, value: 3, limit: 3 });
    assert!(forward(&cpu, &mut out, &table, &[-1, 0], 2, Share::all(3)).is_err());
    assert!(backward(&cpu, &mut [0f32; 6], &out, &[0, 7], 2, Share::all(3)).is_err());
    assert!(matches!(
        forward(&cpu, &mut out, &table, &[0], 2, Share::all(3)),
        Err(Error::Shape { name: "out", .. })
    ));
}

#[test]
fn shares_of_a_table_add_up_to_the_whole() {
    let (vocab, h, tokens, shares) = (12, 5, 40, 3);
    let table = random::<f32>(vocab * h, 1);
    let dy = random::<f32>(tokens * h, 2);
    let ids: Vec<i32> = (0..tokens).map(|t| ((t * 7) % vocab) as i32).collect();
    let cpu = Cpu::single();
    let (mut whole, mut dwhole) = (vec![0f32; tokens * h], vec![0f32; vocab * h]);
    forward(&cpu, &mut whole, &table, &ids, h, Share::all(vocab)).unwrap();
    backward(&cpu, &mut dwhole, &dy, &ids, h, Share::all(vocab)).unwrap();
    let (mut sum, rows) = (vec![0f32; tokens * h], vocab / shares);
    for rank in 0..shares {
        let (share, part) =
            (Share { first: rank * rows, whole: vocab }, rank * rows * h..(rank + 1) * rows * h);
        let mut out = vec![7f32; tokens * h];
        forward(&cpu, &mut out, &table[part.clone()], &ids, h, share).unwrap();
        sum.iter_mut().zip(&out).for_each(|(s, x)| *s += x);
        let mut dtable = vec![0f32; rows * h];
        backward(&cpu, &mut dtable, &dy, &ids, h, share).unwrap();
        assert_eq!(dtable, dwhole[part]);
    }
    assert_eq!(sum, whole);
    let beyond = Share { first: 4, whole: 12 };
    assert!(forward(&cpu, &mut sum[..h], &table[..4 * h], &[12], h, beyond).is_err());
}
