//! Characters that the two engines treat differently, because they use different versions of Unicode.

use serde_json::Value;

/// Letters, digits and marks that are new in Unicode 17, from and to: the reference knows those of Unicode 16. Found by encoding
/// every character with both engines, next to an apostrophe, letters, digits and itself.
const NEW_LETTERS: [(u32, u32); 27] = [
    (0x88f, 0x88f),
    (0xc5c, 0xc5c),
    (0xcdc, 0xcdc),
    (0x1acf, 0x1add),
    (0x1ae0, 0x1aeb),
    (0xa7ce, 0xa7cf),
    (0xa7d2, 0xa7d2),
    (0xa7d4, 0xa7d4),
    (0xa7f1, 0xa7f1),
    (0x10940, 0x10959),
    (0x10ec5, 0x10ec7),
    (0x10efa, 0x10efb),
    (0x11b60, 0x11b67),
    (0x11db0, 0x11ddb),
    (0x11de0, 0x11de9),
    (0x16ea0, 0x16eb8),
    (0x16ebb, 0x16ed3),
    (0x16ff2, 0x16ff6),
    (0x187f8, 0x187ff),
    (0x18d09, 0x18d1e),
    (0x18d80, 0x18df2),
    (0x1e6c0, 0x1e6de),
    (0x1e6e0, 0x1e6f5),
    (0x1e6fe, 0x1e6ff),
    (0x2b73a, 0x2b73f),
    (0x2cea2, 0x2cead),
    (0x323b0, 0x33479),
];

/// Characters that are changed, composed or put in order by the normal forms of Unicode 18 and not by those that the
/// reference knows (about Unicode 10), and the parts of such compositions.
const NEW_FORMS: [(u32, u32); 77] = [
    (0x558, 0x558),
    (0x58b, 0x58c),
    (0x5c8, 0x5c9),
    (0x7fd, 0x7fd),
    (0x897, 0x89f),
    (0x8ca, 0x8d3),
    (0x9fe, 0x9fe),
    (0xc3c, 0xc3c),
    (0xd3b, 0xd3c),
    (0xeba, 0xeba),
    (0x1715, 0x1715),
    (0x1abf, 0x1af0),
    (0x1df6, 0x1dfa),
    (0x209d, 0x209f),
    (0x32ff, 0x32ff),
    (0xa7f1, 0xa7f4),
    (0xa82c, 0xa82c),
    (0xab69, 0xab69),
    (0x105c9, 0x105c9),
    (0x105d2, 0x105d2),
    (0x105da, 0x105da),
    (0x105e4, 0x105e4),
    (0x10781, 0x10785),
    (0x10787, 0x107b0),
    (0x107b2, 0x107bf),
    (0x10d24, 0x10d27),
    (0x10d69, 0x10d6d),
    (0x10eab, 0x10eac),
    (0x10ecb, 0x10ecf),
    (0x10ef0, 0x10efb),
    (0x10efd, 0x10eff),
    (0x10f46, 0x10f50),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x1133b, 0x1133b),
    (0x11382, 0x113c9),
    (0x113ce, 0x113d0),
    (0x1145e, 0x1145e),
    (0x11839, 0x1183a),
    (0x11930, 0x11938),
    (0x1193d, 0x1193e),
    (0x11943, 0x11943),
    (0x119e0, 0x119e0),
    (0x11a34, 0x11a34),
    (0x11a47, 0x11a47),
    (0x11a99, 0x11a99),
    (0x11d42, 0x11d42),
    (0x11d44, 0x11d45),
    (0x11d97, 0x11d97),
    (0x11f41, 0x11f42),
    (0x1611e, 0x16129),
    (0x1612f, 0x1612f),
    (0x16d63, 0x16d6a),
    (0x16ff0, 0x16ff1),
    (0x1b123, 0x1b126),
    (0x1ccd6, 0x1ccf9),
    (0x1d127, 0x1d128),
    (0x1d250, 0x1d252),
    (0x1d25b, 0x1d25c),
    (0x1d25f, 0x1d25f),
    (0x1d280, 0x1d281),
    (0x1d6a6, 0x1d6a6),
    (0x1df95, 0x1df95),
    (0x1dfcd, 0x1dfff),
    (0x1e030, 0x1e06d),
    (0x1e08f, 0x1e08f),
    (0x1e130, 0x1e136),
    (0x1e2ae, 0x1e2ae),
    (0x1e2ec, 0x1e2ef),
    (0x1e4ec, 0x1e4ef),
    (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3),
    (0x1e6e6, 0x1e6e6),
    (0x1e6ee, 0x1e6ef),
    (0x1e6f5, 0x1e6f5),
    (0x1f16c, 0x1f16c),
    (0x1fbf0, 0x1fbf9),
];

/// Pages of 256 characters that hold any of either list; most texts have none of them.
const PAGES: [u64; 68] = mark(mark([0; 68], &NEW_LETTERS, 8), &NEW_FORMS, 8);

/// Runs of 64 characters that hold any of either list, of those of three bytes: a word by the first byte, a bit by the second.
const RUNS: [u64; 16] = mark(mark([0; 16], &NEW_LETTERS, 6), &NEW_FORMS, 6);

/// Sets the bits of all groups of `2^shift` characters that the ranges touch and that have a bit.
const fn mark<const N: usize>(mut groups: [u64; N], ranges: &[(u32, u32)], shift: u32) -> [u64; N] {
    let mut i = 0;
    while i < ranges.len() {
        let mut group = ranges[i].0 >> shift;
        while group <= ranges[i].1 >> shift && ((group >> 6) as usize) < N {
            groups[(group >> 6) as usize] |= 1 << (group & 63);
            group += 1;
        }
        i += 1;
    }
    groups
}

/// Whether a character that begins with this byte may be in either list: none of most alphabets, of Han or of Hangul is.
const fn is_rare(byte: u8) -> bool {
    // Without branches, for vectors: d5-d7, df-e3, ea, f0 and more.
    (byte.wrapping_sub(0xd5) <= 2) | (byte.wrapping_sub(0xdf) <= 4) | (byte == 0xea) | (byte >= 0xf0)
}

/// Bytes of a text that are examined together.
const BLOCK: usize = 64;

/// Characters that a text must not contain for both engines to agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disputed {
    /// New letters, digits and marks.
    Letters,
    /// Also those that normal forms are about.
    Forms,
}

impl Disputed {
    /// Those that matter under a tokenizer's normalizer.
    pub(super) fn under(normalizer: &Value) -> Self {
        let forms = ["NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "StripAccents", "Nmt", "Precompiled"];
        let is_form = |step: &Value| step["type"].as_str().is_some_and(|kind| forms.contains(&kind));
        let steps = normalizer["normalizers"].as_array();
        if is_form(normalizer) || steps.is_some_and(|steps| steps.iter().any(is_form)) {
            Self::Forms
        } else {
            Self::Letters
        }
    }

    /// Where the first of them stands in the text, in bytes.
    pub(super) fn find(self, text: &str) -> Option<usize> {
        // Blocks are checked as a whole first, which is vectorised.
        let mut from = 0;
        for block in text.as_bytes().chunks(BLOCK) {
            if block.iter().fold(false, |any, &byte| any | is_rare(byte)) {
                let mut rare = (from..).zip(block).filter(|&(_, &byte)| is_rare(byte));
                if let Some((at, _)) = rare.find(|&(at, _)| self.holds(text, at)) {
                    return Some(at);
                }
            }
            from += block.len();
        }
        None
    }

    /// Whether the character at `at`, whose first byte is rare, is one of them.
    fn holds(self, text: &str, at: usize) -> bool {
        let bytes = &text.as_bytes()[at..];
        if matches!(bytes[0], 0xe0..0xf0) && RUNS[usize::from(bytes[0] & 15)] >> (bytes[1] & 63) & 1 == 0 {
            return false;
        }
        let within = |ranges: &[(u32, u32)], c: u32| {
            let next = ranges.partition_point(|&(_, to)| to < c);
            ranges.get(next).is_some_and(|&(from, _)| from <= c)
        };
        let c = text[at..].chars().next().map_or(0, u32::from);
        PAGES[(c >> 14) as usize] >> (c >> 8 & 63) & 1 == 1
            && (within(&NEW_LETTERS, c) || (self == Self::Forms && within(&NEW_FORMS, c)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_character_of_the_lists_is_found_and_no_other() {
        let inside =
            |ranges: &[(u32, u32)], c: u32| ranges.iter().any(|&(from, to)| (from..=to).contains(&c));
        for ranges in [&NEW_LETTERS[..], &NEW_FORMS] {
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0) && ranges.iter().all(|r| r.0 <= r.1));
            for &(from, to) in ranges {
                let first = |c| char::from_u32(c).unwrap().encode_utf8(&mut [0; 4]).as_bytes()[0];
                assert!((from..=to).all(|c| is_rare(first(c))), "{from:x}");
            }
            for c in ranges.iter().flat_map(|&(from, to)| [from - 1, from, to, to + 1]) {
                let text = format!("àa{}é", char::from_u32(c).unwrap());
                let found =
                    |disputed: Disputed| disputed.find(&text).inspect(|&at| assert_eq!(at, 3)).is_some();
                assert_eq!(found(Disputed::Letters), inside(&NEW_LETTERS, c), "{c:x}");
                let either = inside(&NEW_LETTERS, c) || inside(&NEW_FORMS, c);
                assert_eq!(found(Disputed::Forms), either, "{c:x}");
            }
        }
        for at in 0..2 * BLOCK {
            let text = format!(
                "{}\u{32ff}\u{11de3}",
                "“a”。中"[..].repeat(9).chars().cycle().take(at).collect::<String>()
            );
            let first = text.find('\u{32ff}');
            assert_eq!(Disputed::Forms.find(&text), first, "{at}");
            assert_eq!(Disputed::Letters.find(&text), first.map(|at| at + 3), "{at}");
        }
        assert_eq!(Disputed::Forms.find("plain text, 中文, हिन्दी, 한국어, e\u{301}, 😀"), None);
    }

    #[test]
    fn normal_forms_matter_under_normalizers_that_use_them() {
        let under = |value: Value| Disputed::under(&value);
        assert_eq!(under(json!(null)), Disputed::Letters);
        assert_eq!(under(json!({"type": "Prepend", "prepend": "▁"})), Disputed::Letters);
        assert_eq!(under(json!({"type": "NFC"})), Disputed::Forms);
        let steps = json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKC"}]});
        assert_eq!(under(steps), Disputed::Forms);
    }
}
