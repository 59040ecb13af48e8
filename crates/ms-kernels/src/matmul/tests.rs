//! Every instruction set and thread count compared with the formula, bit for bit.

use half::bf16;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

use super::{Dims, Form, Mat, Out, matmul, reference};
use crate::trial::{cpus, cpus_in, cpus_of_many_counts, random};
use crate::{Arithmetic, Cpu, Element, Error, Isa};

const FORMS: [Form; 3] = [Form::Nt, Form::Nn, Form::Tn];

struct Case<E> {
    form: Form,
    dims: Dims,
    a: Vec<E>,
    b: Vec<E>,
    a_stride: usize,
    b_stride: usize,
    formulas: RefCell<Vec<(Arithmetic, Rc<Formula>)>>,
}

/// What the formula gives for each element in one order of sums.
struct Formula {
    product: Vec<f32>,
    /// Added to what stood there, [`Case::before`].
    sum: Vec<f32>,
}

impl<E: Element> Case<E> {
    fn new(form: Form, m: usize, n: usize, k: usize, pad: usize) -> Self {
        let (a_rows, a_width) = if form == Form::Tn { (k, m) } else { (m, k) };
        let (b_rows, b_width) = if form == Form::Nt { (n, k) } else { (k, n) };
        let (a_stride, b_stride) = (a_width + pad, b_width + 2 * pad);
        Case {
            form,
            dims: Dims { m, n, k },
            a: random(a_rows * a_stride, 1 + m as u64),
            b: random(b_rows * b_stride, 2 + n as u64),
            a_stride,
            b_stride,
            formulas: RefCell::default(),
        }
    }
    fn a(&self) -> Mat<'_, E> {
        Mat { data: &self.a, stride: self.a_stride }
    }
    fn b(&self) -> Mat<'_, E> {
        Mat { data: &self.b, stride: self.b_stride }
    }
    /// How far apart rows of results are.
    fn stride(&self) -> usize {
        self.dims.n + 3
    }
    /// What sums are added to.
    fn before(&self) -> Vec<f32> {
        random(self.dims.m * self.stride(), 5)
    }
    /// What an order of sums gives, computed once.
    fn formula(&self, order: Arithmetic) -> Rc<Formula> {
        let mut known = self.formulas.borrow_mut();
        if let Some((_, formula)) = known.iter().find(|(of, _)| *of == order) {
            return Rc::clone(formula);
        }
        let (Dims { m, n, k }, before) = (self.dims, self.before());
        let all = |start: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            let element =
                |i, j| reference::element(order, self.form, k, self.a(), self.b(), i, j, start(i, j));
            (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
        };
        let sum = all(&|i, j| before[i * self.stride() + j]);
        let formula = Rc::new(Formula { product: all(&|_, _| 0.0), sum });
        known.push((order, Rc::clone(&formula)));
        formula
    }

    /// Runs all three kinds of output and compares with the formula.
    fn check(&self, cpu: &Cpu) {
        // Few rows are summed in another order: compare them by value.
        let by_value = self.form == Form::Nt && self.dims.m <= super::FEW_ROWS;
        self.check_product(cpu, by_value, |out| {
            matmul(cpu, self.form, self.dims, self.a(), self.b(), out).unwrap();
        });
    }

    /// [`Case::check`] of a `product` that is given where to put its result.
    fn check_product(&self, cpu: &Cpu, by_value: bool, product: impl Fn(Out<'_, E>)) {
        let (Dims { m, n, k }, formula) = (self.dims, self.formula(cpu.arithmetic()));
        let what = format!("{} {:?} {:?} {cpu:?}", E::NAME, self.form, self.dims);
        let same = |got: f32, want: f32, at: (usize, usize)| {
            if by_value {
                let bound =
                    1e-6 * (k as f32 + 8.0) + want.abs() * 1e-2 * f32::from(u8::from(E::NAME == "bf16"));
                assert!((got - want).abs() <= bound, "{what} at {at:?}: {got} for {want}");
            } else {
                assert_eq!(got.to_bits(), want.to_bits(), "{what} at {at:?}: {got} for {want}");
            }
        };
        let stride = self.stride();
        let marker = 77.0f32;
        let bias: Vec<E> = random(n, 9);
        let mut set = vec![E::from_f32(marker); m * stride];
        let out = Out::Set { data: &mut set, stride, bias: Some(&bias) };
        product(out);
        let mut set_f32 = vec![marker; m * stride];
        let out = Out::SetF32 { data: &mut set_f32, stride };
        product(out);
        let mut sum = self.before();
        let before = sum.clone();
        let out = Out::AddF32 { data: &mut sum, stride };
        product(out);
        for i in 0..m {
            for j in 0..n {
                let at = i * stride + j;
                let want = formula.product[i * n + j];
                same(set_f32[at], want, (i, j));
                same(set[at].to_f32(), E::round(want + bias[j].to_f32()), (i, j));
                same(sum[at], formula.sum[i * n + j], (i, j));
            }
            for j in n..stride {
                let at = i * stride + j;
                assert_eq!(set_f32[at], marker, "{what}: wrote past column {n}");
                assert_eq!(set[at].to_f32(), marker, "{what}: wrote past column {n}");
                assert_eq!(sum[at], before[at], "{what}: wrote past column {n}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_canonical_sums_at_the_edges_of_tiles_and_blocks() {
    let cpus = cpus(&[1]);
    for form in FORMS {
        for (m, n, k) in [
            (5, 1, 1),
            (1, 1, 1),
            (1, 40, 33),
            (3, 17, 64),
            (12, 32, 16),
            (13, 33, 17),
            (24, 64, 257),
            (7, 31, 0),
            (37, 70, 515),
            (6, 16, 2),
        ] {
            let (wide, narrow) = (Case::<f32>::new(form, m, n, k, 0), Case::<bf16>::new(form, m, n, k, 1));
            for cpu in &cpus {
                wide.check(cpu);
                narrow.check(cpu);
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_sums_of_the_other_orders() {
    for form in FORMS {
        for (m, n, k) in
            [(5, 1, 1), (12, 32, 16), (33, 33, 33), (6, 17, 96), (70, 100, 97), (9, 40, 1030), (8, 3, 0)]
        {
            let case = Case::<bf16>::new(form, m, n, k, 1);
            for arithmetic in [Arithmetic::Tile32, Arithmetic::Bfdot] {
                cpus_in(arithmetic, &[3]).iter().for_each(|cpu| case.check(cpu));
            }
        }
    }
    // What is f32 has one order.
    let case = Case::<f32>::new(Form::Nn, 13, 20, 70, 0);
    let product = |cpu: &Cpu| {
        let mut y = vec![0f32; 13 * 20];
        matmul(cpu, case.form, case.dims, case.a(), case.b(), Out::SetF32 { data: &mut y, stride: 20 })
            .unwrap();
        y
    };
    let [pair, tile32, bfdot] =
        Arithmetic::ALL.map(|order| product(&Cpu::with_arithmetic(2, Isa::detect(), order).unwrap()));
    assert_eq!([&tile32, &bfdot], [&pair; 2]);
}

#[test]
fn what_is_too_small_is_zero_in_the_sums_of_the_other_orders() {
    for form in FORMS {
        let mut case = Case::<bf16>::new(form, 33, 35, 97, 1);
        for (i, v) in case.a.iter_mut().chain(&mut case.b).enumerate() {
            // Products, partial sums and sums are normal, denormal or nothing.
            *v = bf16::from_f32(v.to_f32() * 2f32.powi(-56 - i as i32 % 12));
        }
        for arithmetic in [Arithmetic::Tile32, Arithmetic::Bfdot] {
            cpus_in(arithmetic, &[1]).iter().for_each(|cpu| case.check(cpu));
        }
    }
}

/// The instructions of the AMX kernels, by the processor or, where it has none, by a handler that performs them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn the_amx_kernels_give_the_sums_of_tiles_at_remainders_of_all_sizes() {
    use super::driver;
    use super::kernel::tile32::{amx::Amx, trap};
    let has_avx512 = Isa::Avx512Bf16.is_available();
    if !has_avx512 {
        eprintln!("skipped: packing for AMX needs AVX-512");
        return;
    }
    let in_software = trap::install();
    let before = trap::performed();
    for form in FORMS {
        for (m, n, k) in
            [(32, 32, 32), (1, 1, 1), (33, 35, 31), (31, 64, 66), (70, 37, 97), (5, 40, 1030), (8, 3, 0)]
        {
            for threads in [1, 3] {
                let cpu = Cpu::with_arithmetic(threads, Isa::Avx512Bf16, Arithmetic::Tile32).unwrap();
                let case = Case::<bf16>::new(form, m, n, k, 1);
                case.check_product(&cpu, false, |out| {
                    let target = driver::Target::new(out);
                    // SAFETY: sizes fit, and the instructions are performed.
                    unsafe {
                        driver::product::<Amx, bf16>(&cpu, form, case.dims, case.a(), case.b(), target);
                    };
                });
            }
        }
    }
    assert_eq!(trap::performed() > before, in_software, "the tile instructions ran");
    // SAFETY: the instructions are performed.
    assert_eq!(unsafe { super::kernel::tile32::amx::tile_loop(3) }, 3.0 * 4.0 * 16.0 * 16.0 * 32.0 * 2.0);
}

#[test]
fn the_number_of_threads_does_not_reach_the_bits() {
    let mut cpus = cpus_of_many_counts(Arithmetic::Pair);
    cpus.extend(cpus_of_many_counts(Arithmetic::Tile32));
    // In this order products of other sizes are on one and three threads.
    cpus.extend(cpus_in(Arithmetic::Bfdot, &[2, 5]));
    for form in FORMS {
        // More than one unit in both directions.
        let case = Case::<bf16>::new(form, 530, 410, 17, 0);
        for cpu in &cpus {
            case.check(cpu);
        }
    }
}

#[test]
fn blocks_of_rows_columns_and_terms_do_not_reach_the_bits() {
    let Some(&isa) = Isa::all_available().last() else { return };
    let (alone, cpu) = (Cpu::new(1, isa).unwrap(), Cpu::new(2, isa).unwrap());
    for form in FORMS {
        // Several blocks of rows in a unit, as one thread has them.
        Case::<bf16>::new(form, 530, 33, 530, 0).check(&alone);
        Case::<bf16>::new(form, 1013, 801, 5, 0).check(&cpu);
        Case::<bf16>::new(form, 9, 35, 1030, 0).check(&cpu);
        Case::<f32>::new(form, 9, 35, 1030, 2).check(&cpu);
    }
}

#[test]
fn few_rows_agree_between_instruction_sets_bit_for_bit() {
    // Long enough, too, for rows that are taken in parts.
    let shapes = [
        (1, 300, 515),
        (2, 70, 64),
        (4, 1000, 96),
        (3, 77, 97),
        (2, 37, 2100),
        (3, 21, 1400),
        (4, 35, 1100),
        (5, 33, 96),
        (6, 18, 1111),
        (5, 34, 1100),
        (7, 5, 33),
        (7, 9, 700),
        (8, 40, 2083),
        (1, 9, 2083),
    ];
    for (m, n, k) in shapes {
        let case = Case::<bf16>::new(Form::Nt, m, n, k, 1);
        let mut first: Option<Vec<f32>> = None;
        for cpu in cpus(&[1, 3]) {
            let mut y = vec![0f32; m * n];
            let out = Out::SetF32 { data: &mut y, stride: n };
            matmul(&cpu, Form::Nt, case.dims, case.a(), case.b(), out).unwrap();
            match &first {
                None => first = Some(y),
                Some(want) => {
                    assert!(want.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits()), "{cpu:?}");
                }
            }
        }
    }
}

#[test]
fn infinities_and_nan_pass_through_a_bf16_result() {
    for cpu in Arithmetic::ALL.into_iter().flat_map(|order| cpus_in(order, &[1])) {
        // More rows than the fewest, which have an order of their own.
        let (m, n, k) = (12, 3, 2);
        let mut a = vec![bf16::ONE; m * k];
        a[0] = bf16::INFINITY;
        a[k] = bf16::NAN;
        let b = vec![bf16::ONE; n * k];
        let mut y = vec![bf16::ZERO; m * n];
        let (a, b) = (Mat { data: &a, stride: k }, Mat { data: &b, stride: k });
        matmul(&cpu, Form::Nt, Dims { m, n, k }, a, b, Out::Set { data: &mut y, stride: n, bias: None })
            .unwrap();
        assert!(y[..n].iter().all(|v| v.is_infinite()), "{cpu:?} {y:?}");
        assert!(y[n..2 * n].iter().all(|v| v.is_nan()), "{cpu:?} {y:?}");
        assert!(y[2 * n..].iter().all(|&v| v == bf16::from_f32(2.0)), "{cpu:?} {y:?}");
    }
}

#[test]
fn operands_that_do_not_fit_are_errors_that_name_the_operand() {
    let cpu = Cpu::single();
    let dims = Dims { m: 4, n: 3, k: 5 };
    let (a, b) = (vec![0f32; 20], vec![0f32; 15]);
    let mut y = vec![0f32; 12];
    let run = |a: Mat<'_, f32>, b: Mat<'_, f32>, y: &mut [f32], bias: Option<&[f32]>| {
        matmul(&cpu, Form::Nt, dims, a, b, Out::Set { data: y, stride: 3, bias })
    };
    let (ma, mb) = (Mat { data: &a[..], stride: 5 }, Mat { data: &b[..], stride: 5 });
    assert_eq!(run(ma, mb, &mut y, None), Ok(()));
    let error = run(Mat { data: &a[..19], stride: 5 }, mb, &mut y, None).unwrap_err();
    assert_eq!(error.to_string(), "matmul: a has 19 elements, expected 20");
    assert!(matches!(run(ma, Mat { data: &b, stride: 4 }, &mut y, None), Err(Error::Size { name: "b", .. })));
    assert!(matches!(run(ma, mb, &mut y[..11], None), Err(Error::Shape { name: "out", .. })));
    assert!(matches!(run(ma, mb, &mut y, Some(&[0.0; 2])), Err(Error::Shape { name: "bias", .. })));
    let huge = Mat { data: &a[..], stride: usize::MAX / 2 };
    assert!(matches!(run(huge, mb, &mut y, None), Err(Error::Shape { name: "a", .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_size_matches_the_formula(m in 0usize..40, n in 0usize..70, k in 0usize..80, pad in 0usize..3, f in 0usize..3) {
        for cpu in cpus(&[1, 2]) {
            Case::<bf16>::new(FORMS[f], m, n, k, pad).check(&cpu);
            Case::<f32>::new(FORMS[f], m, n, k, pad).check(&cpu);
        }
    }
}
