//! Products of experts as PyTorch has them, on both devices.

use ms_core::{DType, Routes, Tensor};
use ms_testing::{golden, read_golden};

#[test]
fn rows_of_experts_give_pytorchs_products_and_gradients() {
    let (g, _) = read_golden(&golden("ops/grouped_matmul.safetensors"));
    let counts = g["tokens_per_expert"].i64();
    assert!(counts.contains(&0), "an expert without rows");
    let experts: Vec<i32> =
        counts.iter().enumerate().flat_map(|(e, &n)| vec![e as i32; n as usize]).collect();
    let routes = Routes::new(&experts, 1, counts.len()).unwrap();
    let ends: Vec<i64> = routes.starts[1..].iter().map(|&end| end as i64).collect();
    assert_eq!(ends, g["group_list"].i64());
    let [n_experts, k, n] = g["weight"].shape[..] else { panic!("[experts, in, out]") };
    // Here a matrix has a row for every output.
    let turned = |values: &[f64]| -> Vec<f64> {
        let matrices = values.chunks_exact(k * n);
        matrices.flat_map(|w| (0..n).flat_map(move |o| (0..k).map(move |i| w[i * n + o]))).collect()
    };
    for (device, dtype) in [(ms_reference::device(), DType::F64), (ms_cpu::device(2).unwrap(), DType::F32)] {
        let tensor = |shape: &[usize], values: &[f64]| {
            Tensor::from_reals(device.arena(), dtype, shape, values).unwrap()
        };
        let close = |what: &str, got: &Tensor, want: &[f64]| {
            let got = got.to_reals().unwrap();
            assert_eq!(got.len(), want.len(), "{what}");
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                // The values were computed in float32.
                assert!((g - w).abs() <= 2e-6 + 1e-5 * w.abs(), "{what}, {dtype}: element {i}: {g} for {w}");
            }
        };
        let x = tensor(&[experts.len(), k], &g["x"].values);
        let dy = tensor(&[experts.len(), n], &g["dy"].values);
        let w = tensor(&[n_experts, n, k], &turned(&g["weight"].values));
        close("y", &device.expert_linear(&x, &w, None, &routes).unwrap(), &g["y"].values);
        close("dx", &device.expert_linear_dx(&dy, &w, &routes).unwrap(), &g["dx"].values);
        // Gradients are added to what is there.
        let mut dw = tensor(&[n_experts, n, k], &vec![1.0; n_experts * n * k]);
        device.expert_linear_dw(dw.whole_mut().unwrap(), &dy, &x, &routes).unwrap();
        let want: Vec<f64> = turned(&g["dweight"].values).iter().map(|d| d + 1.0).collect();
        close("dw", &dw, &want);
    }
}
