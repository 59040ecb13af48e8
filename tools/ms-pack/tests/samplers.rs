//! The batches of each rank compared with those of Megatron's samplers.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

/// Each kind of sampler of Megatron's, resumed in the middle, on each of two ranks.
#[test]
fn samples_shows_the_batches_of_each_rank() {
    let want: serde_json::Value =
        serde_json::from_slice(&std::fs::read(ms_testing::golden("topology/samplers.json")).unwrap())
            .unwrap();
    for kind in ["single", "cyclic"] {
        let run = assert_cmd::Command::cargo_bin("ms-pack")
            .unwrap()
            .args(["samples", "--json", "--dataloader-type", kind])
            .args([
                "--total",
                &want["total"].to_string(),
                "--consumed-samples",
                &want["consumed"].to_string(),
            ])
            .args(["--micro-batch-size", &want["micro_batch_size"].to_string()])
            .args(["--data-parallel-size", &want["dp"].to_string()])
            .args(["--batches", &want[kind][0].as_array().unwrap().len().to_string()])
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let got: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(got["batches"], want[kind], "{kind}");
    }
}
