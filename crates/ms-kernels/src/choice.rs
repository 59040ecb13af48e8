//! Choice of the fastest instruction set and summation order: measured, not read off the processor's flags.
//!
//! `vdpbf16ps` does twice the work of a multiply-add on Zen 4 and half of it on Sapphire Rapids, and AMX tiles may be present
//! but slow, so a short product with each candidate decides. The decision is kept in a file with the processor's name,
//! because two runs on one machine must not differ by measurement noise.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use half::bf16;

use crate::machine::thread_cpu_seconds;
use crate::matmul::{Dims, Form, Mat, Out, matmul};
use crate::{Arithmetic, Cpu, CpuError, Element, Isa, Result};

/// The instruction set and summation order for bf16 products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Instruction set of all kernels.
    pub isa: Isa,
    /// Order of sums of bf16 products.
    pub arithmetic: Arithmetic,
}

/// A candidate and the measured rate of a product with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The candidate.
    pub choice: Choice,
    /// Rate of a bf16 product of 96 x 512 x 512 on one thread, including packing, in GFLOP/s of processor time.
    pub gflops: f64,
    /// Whether the candidate gives the bits of the slowest body of its order, which has no special instruction.
    pub exact: bool,
}

/// A candidate must be faster by this factor to be chosen over one that needs fewer instruction sets.
const CLEARLY: f64 = 1.1;

/// Sizes of the product that is timed.
const DIMS: Dims = Dims { m: 96, n: 512, k: 512 };

impl Choice {
    /// The choice of this process.
    ///
    /// The instruction set is that of `MS_ISA`, if it is set; otherwise that in the file `kept`, if the file is from this
    /// processor; otherwise the fastest in a measurement of some milliseconds, which is then written there. If `asked` names
    /// a summation order, that order is used.
    ///
    /// # Errors
    /// [`CpuError::IsaName`] and [`CpuError::Isa`] if `MS_ISA` names no instruction set of this processor.
    pub fn of_process(asked: Option<Arithmetic>, kept: Option<&Path>) -> Result<Self, CpuError> {
        if let Some(isa) = Isa::from_env()? {
            return Ok(Self { isa, arithmetic: asked.unwrap_or_else(|| isa.arithmetic()) });
        }
        let name = processor_name();
        let known = || kept.and_then(|path| read(path, &name, asked));
        if let Some(choice) = known() {
            return Ok(choice);
        }
        // Processes that start together measure once, one after the other. A folder that cannot be written costs a
        // measurement at every start, nothing else.
        let _turn = kept.and_then(|path| turn(path).ok());
        if let Some(choice) = known() {
            return Ok(choice);
        }
        let choice = Self::fastest(&rates(asked), asked);
        if let Some(path) = kept {
            let _ = keep(path, &name, asked, choice);
        }
        Ok(choice)
    }

    /// The fastest of `rates`, which go from few instructions to many: later ones must be clearly faster.
    fn fastest(rates: &[Rate], asked: Option<Arithmetic>) -> Self {
        let mut best: Option<&Rate> = None;
        for rate in rates.iter().filter(|rate| rate.exact) {
            if best.is_none_or(|best| rate.gflops > CLEARLY * best.gflops) {
                best = Some(rate);
            }
        }
        let plain = Self { isa: Isa::Portable, arithmetic: asked.unwrap_or(Arithmetic::Pair) };
        best.map_or(plain, |rate| rate.choice)
    }
}

/// Measures every candidate of `asked`, or of all orders: the instruction sets of this processor that have a body of
/// their own for the order.
pub fn rates(asked: Option<Arithmetic>) -> Vec<Rate> {
    let available = Isa::all_available();
    let plain: Vec<Isa> = available.iter().copied().filter(|isa| *isa <= Isa::Avx512Convert).collect();
    let mut candidates = Vec::new();
    for arithmetic in Arithmetic::ALL.into_iter().filter(|own| asked.is_none_or(|asked| asked == *own)) {
        for &isa in &available {
            let is_candidate = match (arithmetic, isa) {
                // A later set has the same products: one that also rounds to bf16 with one instruction, and one with tiles for
                // weights of eight bits.
                (_, Isa::Avx512) if available.contains(&Isa::Avx512Convert) => false,
                (Arithmetic::Pair, Isa::Avx512Convert) => !available.contains(&Isa::Amx),
                // These instructions have another order; without them it is the set before.
                (Arithmetic::Pair | Arithmetic::Tile32, Isa::NeonBf16)
                | (Arithmetic::Tile32, Isa::Avx512Bf16) => false,
                (Arithmetic::Pair, _)
                | (Arithmetic::Tile32, Isa::Amx)
                | (Arithmetic::Bfdot, Isa::NeonBf16) => true,
                // An order that was not requested is a candidate only if an instruction implements it.
                (Arithmetic::Tile32, _) => asked.is_some(),
                // One stands for all that have the same loops: the latest without instructions of another order.
                (Arithmetic::Bfdot, _) => asked.is_some() && plain.last() == Some(&isa),
            };
            if is_candidate {
                candidates.push(Choice { isa, arithmetic });
            }
        }
    }
    // The plain loops are worth measuring only where there is nothing else.
    if candidates.len() > 1 {
        candidates.retain(|c| c.isa != Isa::Portable);
    }
    let (a, b) = (numbers(DIMS.m * DIMS.k, 3), numbers(DIMS.n * DIMS.k, 5));
    let mut trials: Vec<Trial> = candidates.into_iter().filter_map(|c| Trial::new(c, &a, &b)).collect();
    // Alternating, so that a burst of other load does not hit only one of them.
    let started = Instant::now();
    for round in 0..12 {
        trials.iter_mut().for_each(|trial| trial.run(&a, &b));
        if round >= 3 && started.elapsed().as_millis() > 60 {
            break;
        }
    }
    let flops = 2.0 * (DIMS.m * DIMS.n * DIMS.k) as f64;
    let rate = |t: &Trial| Rate { choice: t.choice, gflops: flops / t.best / 1e9, exact: t.exact };
    trials.iter().map(rate).collect()
}

/// A candidate while it is measured.
struct Trial {
    choice: Choice,
    cpu: Cpu,
    out: Vec<f32>,
    /// Least seconds of a product.
    best: f64,
    exact: bool,
}

impl Trial {
    fn new(choice: Choice, a: &[bf16], b: &[bf16]) -> Option<Self> {
        let cpu = Cpu::with_arithmetic(1, choice.isa, choice.arithmetic).ok()?;
        let mut trial =
            Self { choice, cpu, out: vec![0.0; DIMS.m * DIMS.n], best: f64::INFINITY, exact: true };
        trial.exact = trial.agrees(a, b);
        Some(trial)
    }

    /// Compares a product with sizes that divide nothing with the loops that any processor runs.
    fn agrees(&self, a: &[bf16], b: &[bf16]) -> bool {
        let dims = Dims { m: 37, n: 45, k: 83 };
        let Ok(plain) = Cpu::with_arithmetic(1, Isa::Portable, self.choice.arithmetic) else { return false };
        [Form::Nt, Form::Nn, Form::Tn].into_iter().all(|form| {
            let product = |cpu: &Cpu| {
                let mut y = vec![0f32; dims.m * dims.n];
                let out = Out::AddF32 { data: &mut y, stride: dims.n };
                let (a, b) = (Mat { data: a, stride: 89 }, Mat { data: b, stride: 97 });
                matmul(cpu, form, dims, a, b, out).map(|()| y)
            };
            match (product(&self.cpu), product(&plain)) {
                (Ok(got), Ok(want)) => got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits()),
                _ => false,
            }
        })
    }

    fn run(&mut self, a: &[bf16], b: &[bf16]) {
        let start = thread_cpu_seconds();
        let (a, b) = (Mat { data: a, stride: DIMS.k }, Mat { data: b, stride: DIMS.k });
        let out = Out::SetF32 { data: &mut self.out, stride: DIMS.n };
        if matmul(&self.cpu, Form::Nt, DIMS, a, b, out).is_ok() {
            self.best = self.best.min(thread_cpu_seconds() - start);
        }
    }
}

/// Numbers in (-1, 1), for zeros run faster than what a model holds.
fn numbers(len: usize, seed: u64) -> Vec<bf16> {
    let mut s = seed;
    (0..len)
        .map(|_| {
            s = s.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            <bf16 as Element>::from_f32((s >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
        })
        .collect()
}

/// The system's description of this processor: vendor, family, model, stepping and name, as far as available.
pub fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))
            .map(|(_, value)| value.trim().to_owned())
    };
    let fields =
        ["vendor_id", "cpu family", "model", "stepping", "model name", "CPU implementer", "CPU part"];
    let parts: Vec<String> = fields.into_iter().filter_map(field).collect();
    if parts.is_empty() { std::env::consts::ARCH.to_owned() } else { parts.join(" ") }
}

/// What a choice depends on: the version of this crate, the processor and its instruction sets, the requested order.
fn key(name: &str, asked: Option<Arithmetic>) -> String {
    let asked = asked.map_or_else(|| "any".to_owned(), |a| a.to_string());
    format!("{}\t{name}\t{}\t{asked}\t", env!("CARGO_PKG_VERSION"), Isa::available_names())
}

/// The choice that stands in a file, unless it is of another processor or cannot be read.
fn read(path: &Path, name: &str, asked: Option<Arithmetic>) -> Option<Choice> {
    let text = std::fs::read_to_string(path).ok()?;
    let key = key(name, asked);
    let (isa, arithmetic) = text.lines().find_map(|line| line.strip_prefix(&key))?.split_once('\t')?;
    let choice = Choice { isa: isa.parse().ok()?, arithmetic: arithmetic.parse().ok()? };
    let fits = choice.isa.is_available() && asked.is_none_or(|asked| asked == choice.arithmetic);
    fits.then_some(choice)
}

/// Waits until no other process measures for the same file; it is this one's turn until the result is dropped.
fn turn(path: &Path) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let lock = File::create(path.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Adds a choice to the file, which appears whole; the oldest of many others go.
fn keep(path: &Path, name: &str, asked: Option<Arithmetic>, choice: Choice) -> std::io::Result<()> {
    const MOST: usize = 64;
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let key = key(name, asked);
    let others: Vec<&str> = old.lines().filter(|line| !line.starts_with(&key)).collect();
    let mut text = String::new();
    for other in &others[others.len().saturating_sub(MOST)..] {
        text += other;
        text.push('\n');
    }
    text += &format!("{key}{}\t{}\n", choice.isa, choice.arithmetic);
    // Kernels stand below the crate that writes files; what is lost with the power is measured again.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(isa: Isa, arithmetic: Arithmetic, gflops: f64, exact: bool) -> Rate {
        Rate { choice: Choice { isa, arithmetic }, gflops, exact }
    }

    #[test]
    fn the_fastest_exact_candidate_is_taken_and_noise_decides_nothing() {
        use Arithmetic::{Pair, Tile32};
        let fastest = |rates: &[Rate]| Choice::fastest(rates, None);
        // Zen 4: the dot instruction is worth it.
        let zen = [
            rate(Isa::Avx2, Pair, 70.0, true),
            rate(Isa::Avx512, Pair, 75.0, true),
            rate(Isa::Avx512Bf16, Pair, 150.0, true),
        ];
        assert_eq!(fastest(&zen).isa, Isa::Avx512Bf16);
        // Sapphire Rapids: it is not, tiles are, and a tile unit that computes something else is left alone.
        let mut rapids = [
            rate(Isa::Avx2, Pair, 60.0, true),
            rate(Isa::Avx512Convert, Pair, 110.0, true),
            rate(Isa::Avx512Bf16, Pair, 65.0, true),
            rate(Isa::Amx, Tile32, 400.0, true),
        ];
        assert_eq!(fastest(&rapids), Choice { isa: Isa::Amx, arithmetic: Tile32 });
        rapids[3].exact = false;
        assert_eq!(fastest(&rapids), Choice { isa: Isa::Avx512Convert, arithmetic: Pair });
        assert_eq!(
            fastest(&[rate(Isa::Avx512, Pair, 100.0, true), rate(Isa::Avx512Bf16, Pair, 104.0, true)]).isa,
            Isa::Avx512
        );
        assert_eq!(fastest(&[]).isa, Isa::Portable);
        // A requested order is respected, whatever was measured.
        let plain = Choice { isa: Isa::Portable, arithmetic: Tile32 };
        assert_eq!(Choice::fastest(&[rate(Isa::Avx2, Tile32, 1.0, false)], Some(Tile32)), plain);
    }

    #[test]
    fn every_candidate_of_this_processor_gives_the_bits_of_the_plain_loops() {
        for asked in Arithmetic::ALL.into_iter().map(Some).chain([None]) {
            let rates = rates(asked);
            assert!(!rates.is_empty());
            for rate in rates {
                assert!(rate.exact && rate.gflops.is_finite() && rate.gflops > 0.0, "{rate:?}");
                assert!(asked.is_none_or(|asked| asked == rate.choice.arithmetic), "{asked:?} {rate:?}");
                // What has the same products and rounds faster stands for it.
                assert!(rate.choice.isa != Isa::Avx512 || !Isa::Avx512Convert.is_available(), "{rate:?}");
            }
        }
    }

    #[test]
    fn a_choice_is_kept_for_the_processor_and_order_that_it_was_made_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/arithmetic.tsv");
        let choice = Choice { isa: Isa::Portable, arithmetic: Arithmetic::Pair };
        assert_eq!(read(&path, "here", None), None);
        drop(turn(&path).unwrap());
        keep(&path, "here", None, choice).unwrap();
        keep(&path, "there", None, choice).unwrap();
        keep(&path, "here", Some(Arithmetic::Tile32), Choice { arithmetic: Arithmetic::Tile32, ..choice })
            .unwrap();
        assert_eq!(read(&path, "here", None), Some(choice));
        assert_eq!(read(&path, "here", Some(Arithmetic::Pair)), None);
        assert_eq!(read(&path, "here", Some(Arithmetic::Tile32)).unwrap().arithmetic, Arithmetic::Tile32);
        assert_eq!(read(&path, "elsewhere", None), None);
        for i in 0..70 {
            keep(&path, &format!("processor {i}"), None, choice).unwrap();
        }
        assert_eq!(read(&path, "here", None), None, "the oldest goes first");
        assert_eq!(read(&path, "processor 69", None), Some(choice));
        std::fs::write(&path, format!("{}portable\tpears\n", key("here", None))).unwrap();
        assert_eq!(read(&path, "here", None), None, "a damaged file is measured anew");
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 2, "the file, and the one that processes wait for");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        if Isa::from_env() == Ok(None) {
            let choice = Choice::of_process(Some(Arithmetic::Tile32), Some(&file.join("below"))).unwrap();
            assert_eq!(choice.arithmetic, Arithmetic::Tile32);
        }
    }
}
