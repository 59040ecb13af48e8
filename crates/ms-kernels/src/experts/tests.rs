//! Compared with upstream's order of rows, and the transposes as gradients.

use super::*;
use crate::trial::{random, same_everywhere};
use ms_testing::{golden, read_golden};

#[test]
fn rows_are_sorted_as_upstream_sorts_them() {
    let path = golden("ops/moe_routing.safetensors");
    let (g, _) = read_golden(&path);
    let experts: Vec<i32> = g["permute.flat_expert"].i64().iter().map(|&e| e as i32).collect();
    let routes = Routes::new(&experts, 4, 16).unwrap();
    let order: Vec<i64> = routes.copies.iter().map(|&c| i64::from(c)).collect();
    assert_eq!(order, g["permute.order"].i64());
    let tokens: Vec<i64> = order.iter().map(|c| c / 4).collect();
    assert_eq!(tokens, g["permute.token_of_row"].i64());
}

#[test]
fn gradients_are_the_transposes() {
    let (tokens, k, count, h) = (9, 2, 4, 5);
    let experts: Vec<i32> = (0..tokens as i32).flat_map(|t| [t % 4, (t * 3 + 1) % 4]).collect();
    let routes = Routes::new(&experts, k, count).unwrap();
    let (x, w, dy) =
        (random::<f32>(tokens * h, 1), random::<f32>(tokens * k, 2), random::<f32>(tokens * h, 3));
    let (y, out, drow, dw, dx) = same_everywhere("experts", |cpu| {
        let mut y = vec![0f32; tokens * k * h];
        dispatch(cpu, &mut y, &x, &routes).unwrap();
        let mut out = vec![0f32; tokens * h];
        combine(cpu, &mut out, &y, &w, &routes).unwrap();
        let (mut drow, mut dw) = (vec![0f32; y.len()], vec![0f32; w.len()]);
        combine_backward(cpu, &mut drow, &mut dw, &dy, &y, &w, &routes).unwrap();
        let mut dx = vec![0f32; x.len()];
        dispatch_backward(cpu, &mut dx, &drow, &routes).unwrap();
        (y, out, drow, dw, dx)
    });
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let along = dot(&out, &dy);
    for (name, value) in [("rows", dot(&y, &drow)), ("weights", dot(&w, &dw)), ("tokens", dot(&x, &dx))] {
        assert!((value - along).abs() < 1e-5, "{name}: {value} for {along}");
    }
    // Every copy carries its token.
    for (r, &copy) in routes.copies.iter().enumerate() {
        assert_eq!(y[r * h..][..h], x[copy as usize / k * h..][..h]);
    }
}

#[test]
fn ranks_that_take_some_copies_each_sum_to_one_that_takes_all() {
    let (tokens, k, count, h) = (9, 2, 4, 5);
    let experts: Vec<i32> = (0..tokens as i32).flat_map(|t| [t % 4, (t * 3 + 1) % 4]).collect();
    let (x, w, dy) =
        (random::<f32>(tokens * h, 1), random::<f32>(tokens * k, 2), random::<f32>(tokens * h, 3));
    let through = |cpu: &Cpu, routes: &Routes| {
        let rows = routes.copies.len() * h;
        let (mut y, mut out) = (vec![0f32; rows], vec![0f32; tokens * h]);
        dispatch(cpu, &mut y, &x, routes).unwrap();
        combine(cpu, &mut out, &y, &w, routes).unwrap();
        let (mut drow, mut dw, mut dx) = (vec![0f32; rows], vec![1f32; w.len()], vec![0f32; x.len()]);
        combine_backward(cpu, &mut drow, &mut dw, &dy, &y, &w, routes).unwrap();
        dispatch_backward(cpu, &mut dx, &drow, routes).unwrap();
        [out, dw, dx]
    };
    let whole = Routes::new(&experts, k, count).unwrap();
    let all = same_everywhere("experts", |cpu| through(cpu, &whole));
    let parts = [0, 2].map(|first| {
        let here: Vec<Option<usize>> =
            experts.iter().map(|&e| (e as usize).checked_sub(first).filter(|&e| e < 2)).collect();
        let part = Routes::taking(&here, k, 2).unwrap();
        // Rows of an expert in the order that they have where all are taken.
        assert_eq!(part.copies, whole.copies[whole.starts[first]..whole.starts[first + 2]]);
        same_everywhere("experts", |cpu| through(cpu, &part))
    });
    for (i, all) in all.iter().enumerate() {
        for (j, want) in all.iter().enumerate() {
            let got = parts[0][i][j] + parts[1][i][j];
            assert!((got - want).abs() < 1e-5, "{i} {j}: {got} for {want}");
        }
    }
    let e = Routes::taking(&[Some(2), None], 1, 2).unwrap_err().to_string();
    assert!(e.contains("is 2"), "{e}");
}

#[test]
fn an_expert_that_does_not_exist_is_refused() {
    let e = Routes::new(&[0, 4], 1, 4).unwrap_err().to_string();
    assert!(e.contains("experts[1] is 4"), "{e}");
}
