//! The order of operands, and what is left out.

use std::collections::BTreeMap;

/// Names of operands by operator, by the published interface as the emulator has it: from a table that this crate does not read.
fn published() -> BTreeMap<&'static str, Vec<&'static str>> {
    let names = |arguments: &'static str| {
        arguments.split_whitespace().filter_map(|a| Some(a.split_once(':')?.0)).collect()
    };
    cann_emu::interface::rows().map(|row| (row.symbol, names(row.arguments))).collect()
}

/// A name as both write it, without the interface's marks of optional, changed and written operands.
fn plain(name: &str) -> String {
    let name = name.replace('_', "").to_lowercase();
    let mut rest = name.as_str();
    while let Some(shorter) = ["ref", "optional", "out"].iter().find_map(|mark| rest.strip_suffix(mark)) {
        rest = shorter;
    }
    rest.to_owned()
}

/// The compiler does not see two operands of one type in each other's place.
#[test]
fn operands_stand_in_the_order_of_the_published_interface() {
    let published = published();
    let all = [
        super::attention::orders(),
        super::dense::orders(),
        super::experts::orders(),
        super::inference::orders(),
        super::joint::orders(),
        super::losses::orders(),
    ];
    let mut count = 0;
    for (symbol, names) in all.concat() {
        let ours: Vec<String> = names.iter().map(|n| plain(n)).collect();
        let theirs: Vec<String> = published[symbol].iter().map(|n| plain(n)).collect();
        assert_eq!(ours, theirs, "{symbol}");
        count += 1;
    }
    assert!(count > 60, "{count} operators");
}

#[test]
fn groups_that_are_left_out_ask_for_nothing() {
    let attention = super::AttentionOptions::default();
    assert!(attention.atten_mask.is_none() && attention.prefix.is_none());
    let far = i64::from(i32::MAX);
    assert_eq!((attention.sparse_mode, attention.pre_tokens, attention.next_tokens), (0, far, far));
    assert_eq!(attention.keep_prob.to_bits(), 1f64.to_bits());
    // Without a bias the pages want kind 1.
    assert_eq!(super::BiasOptions::default().pse_type, 1);
    assert_eq!(super::CrossEntropyOptions::default().reduction, c"mean");
}
