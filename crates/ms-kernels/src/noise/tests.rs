//! What dropout and jitter draw, on average and by place.

use super::*;
use crate::trial::same_everywhere;

fn keys(n: u64) -> Vec<u64> {
    (0..n).map(|t| mix(t + 17)).collect()
}

#[test]
fn a_share_of_the_values_is_dropped_and_the_mean_stays() {
    let (tokens, width, rate) = (400, 101, 0.3);
    let x = vec![1f32; tokens * width];
    let y = same_everywhere("dropout", |cpu| {
        let mut y = vec![0f32; x.len()];
        multiply(cpu, &mut y, &x, &keys(tokens as u64), 5, Noise::Dropout { rate }).unwrap();
        y
    });
    let dropped = y.iter().filter(|&&v| v == 0.0).count() as f64 / y.len() as f64;
    let mean = y.iter().map(|&v| f64::from(v)).sum::<f64>() / y.len() as f64;
    // Five standard deviations of 40400 draws.
    assert!((dropped - rate).abs() < 5.0 * (rate * (1.0 - rate) / y.len() as f64).sqrt(), "{dropped}");
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!(y.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.7).abs() < 1e-6));
    // No row, column or neighbour is like another.
    let kept = |t: usize, w: usize| y[t * width + w] != 0.0;
    let alike = |a: &dyn Fn(usize) -> bool, b: &dyn Fn(usize) -> bool, n: usize| {
        (0..n).filter(|&i| a(i) == b(i)).count() as f64 / n as f64
    };
    let want = rate * rate + (1.0 - rate) * (1.0 - rate);
    for w in 0..width - 1 {
        let same = alike(&|t| kept(t, w), &|t| kept(t, w + 1), tokens);
        assert!((same - want).abs() < 0.13, "columns {w} and {}: {same}", w + 1);
    }
}

#[test]
fn what_is_drawn_depends_on_token_place_and_column_alone() {
    let (width, noise) = (7, Noise::Dropout { rate: 0.5 });
    let x = vec![1f32; 6 * width];
    let run = |keys: &[u64], site| {
        let mut y = vec![0f32; keys.len() * width];
        multiply(&Cpu::single(), &mut y, &x[..keys.len() * width], keys, site, noise).unwrap();
        y
    };
    let all = run(&keys(6), 3);
    assert_eq!(all[2 * width..4 * width], run(&keys(6)[2..4], 3), "a share of the tokens");
    assert_ne!(all, run(&keys(6), 4), "another place");
    assert_eq!(all, run(&keys(6), 3), "once more");
}

#[test]
fn jitter_stays_within_its_width() {
    let x = vec![2f32; 300];
    let mut y = vec![0f32; 300];
    multiply(&Cpu::single(), &mut y, &x, &keys(30), 0, Noise::Jitter { eps: 0.01 }).unwrap();
    assert!(y.iter().all(|v| (1.98..2.02).contains(v)));
    let mean = y.iter().sum::<f32>() / 300.0;
    assert!((mean - 2.0).abs() < 0.004, "{mean}");
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let mut y = [0f32; 5];
    let e = multiply(&Cpu::single(), &mut y, &[0f32; 5], &[1, 2], 0, Noise::Jitter { eps: 0.1 });
    assert!(e.is_err());
}
