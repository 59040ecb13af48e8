//! Every operator of the fused set compared with its formula, over element types and odd shapes.

use crate::runtime::start;
use crate::scenarios;
use ascend_rs::check::{Size, all};
use std::collections::BTreeSet;

scenarios! {
    every_second_operator_equals_its_formula
    and_so_do_the_others
    every_operator_has_a_check
    operands_with_gaps_give_the_same
}

/// What the emulator's own formula tests leave to the checks here.
const LEFT_HERE: &str = include_str!("../../../cann-emu/src/nn/formulas/elsewhere.txt");

#[test]
fn the_emulator_leaves_to_these_checks_what_they_check() {
    let checked: BTreeSet<&str> =
        all().iter().flat_map(|c| c.operators).map(|n| n.trim_start_matches("aclnn")).collect();
    assert_eq!(LEFT_HERE.lines().collect::<BTreeSet<&str>>(), checked);
}

/// One element, fewer rows than columns and more, sizes that no block divides.
const SIZES: [(usize, usize); 4] = [(1, 1), (3, 5), (13, 7), (5, 33)];

fn every_second_operator_equals_its_formula() {
    equal_formulas(0);
}

fn and_so_do_the_others() {
    equal_formulas(1);
}

/// Two tests, for a processor each.
fn equal_formulas(first: usize) {
    let (toolkit, _device, stream) = start();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for check in all().iter().skip(first).step_by(2) {
        if check.missing(&toolkit).is_some() {
            continue;
        }
        for dtype in check.dtypes {
            for (rows, columns) in SIZES {
                let size = Size { rows, columns };
                count += 1;
                match check.run(&stream, *dtype, size) {
                    Ok(o) if o.error <= 1.0 => assert!(!o.worst.is_empty(), "{check:?} compared nothing"),
                    Ok(o) => {
                        wrong.push(format!("{:?} {dtype} {rows}x{columns}: {}", check.operators, o.worst));
                    }
                    Err(e) => wrong.push(format!("{:?} {dtype} {rows}x{columns}: {e}", check.operators)),
                }
            }
        }
    }
    println!("{count} runs");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Operators whose pages want elements that follow one another.
const WITHOUT_GAPS: &[&str] = &["aclnnSwiGlu"];

/// Every operator takes operands with other elements between theirs, or says in its first phase that it does not.
fn operands_with_gaps_give_the_same() {
    let (toolkit, _device, stream) = start();
    let (mut wrong, mut refused) = (Vec::new(), BTreeSet::new());
    for check in all().iter().filter(|c| c.missing(&toolkit).is_none()) {
        for dtype in check.dtypes {
            for (rows, columns) in [(3, 5), (13, 7)] {
                match check.run_with_gaps(&stream, *dtype, Size { rows, columns }) {
                    Ok(o) if o.error <= 1.0 => {}
                    Ok(o) => wrong.push(format!("{:?} {dtype}: {}", check.operators, o.worst)),
                    Err(e) if e.to_string().contains("161002") => drop(refused.insert(check.operators[0])),
                    Err(e) => wrong.push(format!("{:?} {dtype}: {e}", check.operators)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(refused.into_iter().collect::<Vec<_>>(), WITHOUT_GAPS);
}

fn every_operator_has_a_check() {
    let (toolkit, _device, _stream) = start();
    let checked: BTreeSet<&str> = all().iter().flat_map(|c| c.operators).copied().collect();
    let known: BTreeSet<&str> = ascend_rs::ops::available(&toolkit).iter().map(|(n, _)| *n).collect();
    assert_eq!(checked, known);
}
